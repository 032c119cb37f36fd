"""Lower `Scan` to ONNX `Scan` or `Loop`; a linear recurrence over many positions runs in chunks.

What the body captures it reads from outside by name. ONNX Runtime's Scan refuses length
0, so where that may happen one row of zeros is scanned instead and everything it did is
taken back.
"""

from collections.abc import Sequence

from specc.analysis.linear_recurrence import MAX_LOOP_LENGTH, match_linear_recurrence
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Input, Value, collect_needed_nodes
from specc.ir.ops.loop import Loop, remove_axis
from specc.ir.types import Type
from specc.transforms.chunk_scan import LinearRecurrence, compute_in_chunks
from specc_onnx.lower.blocked_attention import set_lengths_nonempty
from specc_onnx.lower.emitter import (
    Emitter,
    emit_body_results,
    make_body_graph,
    make_branch,
    make_value_info,
)
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower, lower_nodes
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_full,
    emit_min_length_padding,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
    emit_where,
)


@lower(ops.Scan)
def scan(op: ops.Scan, g: Emitter, *args: Tensor) -> tuple[str, ...]:
    """Lower to a loop over positions, and to one over chunks where that is possible."""
    found = match_linear_recurrence(op, [a.value for a in args])
    rows = op.parts(args).rows[0].type.shape[op.axis]
    if found is None or (rows.number or MAX_LOOP_LENGTH + 1) <= MAX_LOOP_LENGTH:
        return emit_scan(op, g, *args)
    if rows.number is not None:
        return _emit_chunks(op, g, args, found)
    if rows.name is not None:
        known = g.facts.branch_lengths.get(rows.name, 0)
        g.facts.branch_lengths[rows.name] = max(MAX_LOOP_LENGTH, known)
    with g.outside("lengths"):
        long = g.node("Greater", g.dim(rows), g.constant(MAX_LOOP_LENGTH, "i64"))
    site = g.site

    def compute_chunks() -> tuple[str, ...]:
        with set_lengths_nonempty(g, rows):
            return _emit_chunks(op, g, args, found)

    then = make_branch(g, "chunks", site.types, compute_chunks)
    g.site = site
    otherwise = make_branch(g, "positions", site.types, lambda: emit_scan(op, g, *args))
    g.site = site
    return g.nodes("If", len(site.types), long, then_branch=then, else_branch=otherwise)


def _emit_chunks(
    op: ops.Scan, g: Emitter, args: Sequence[Tensor], found: LinearRecurrence
) -> tuple[str, ...]:
    b = Builder()
    inner = [b.input(f"x{n}", Input(a.type)) for n, a in enumerate(args)]
    results = compute_in_chunks(b, op, inner, found)
    # A separate graph is lowered into the current one: its inputs are the operands.
    g.values.tensors.update(zip(inner, args, strict=True))
    site = g.site
    lower_nodes(g, b.finish("chunks", {f"y{n}": v for n, v in enumerate(results)}))
    g.site = site
    return tuple(g.values.tensors[v].name for v in results)


def emit_scan(op: ops.Scan, g: Emitter, *args: Tensor) -> tuple[str, ...]:
    """Lower to `Scan`, or to `Loop` for early exit and targets that need it."""
    if op.until != -1 or g.target.loops == "loop":
        return emit_loop_node(op, g, *args)
    given = op.parts(args)
    scanned, axes = _emit_scanned_operands(op, g, given)
    body = _build_scan_body(op, g, given.keep, given.starts, given.captured)
    backwards = [int(op.reverse)]
    collected = len(op.body.outputs) - op.carries
    results = g.nodes(
        "Scan",
        len(op.body.outputs),
        *(c.name for c in given.starts),
        *scanned,
        body=body,
        num_scan_inputs=len(scanned),
        scan_input_axes=axes,
        scan_input_directions=backwards * len(scanned),
        scan_output_directions=backwards * collected if collected else None,
    )
    stacked = [emit_collected_axis(op, g, r, t.rank) for r, t in _list_collected(op, g, results)]
    results = (*results[: op.carries], *stacked)
    length = given.rows[0].type.shape[op.axis]
    if g.lengths.positive(length):
        return results
    return _emit_without_placeholder(op, g, results, given.starts, length)


def _emit_scanned_operands(
    op: ops.Scan, g: Emitter, given: Loop[Tensor]
) -> tuple[list[str], list[int]]:
    """Emit the scanned values, padded to at least one position, and their scan axes."""
    tensors, axes = [*given.rows], [op.axis] * op.scanned
    # `keep` is `[b, t]`: its time axis is 1, whatever that of the others is.
    if given.keep is not None:
        tensors, axes = [given.keep, *tensors], [1, *axes]
    names = [emit_min_length_padding(g, t, axis) for t, axis in zip(tensors, axes, strict=True)]
    for n, (x, axis) in enumerate(zip(tensors, axes, strict=True)):
        if any(not g.lengths.positive(d) for d in x.type.shape[axis + 1 :]):
            names[n], axes[n] = _emit_axis_first(g, names[n], axis, x.type.rank), 0
    return names, axes


def _emit_axis_first(g: Emitter, x: str, axis: int, rank: int) -> str:
    """Move the loop's axis to the front. `scan_input_axes` would do so, but ONNX Runtime 1.31
    crashes if an axis after it is empty, as in an empty cache.
    """
    order = [axis, *(n for n in range(rank) if n != axis)]
    return x if axis == 0 else g.node("Transpose", x, perm=order)


def _list_collected(op: ops.Scan, g: Emitter, results: tuple[str, ...]) -> list[tuple[str, Type]]:
    return list(zip(results, g.site.types, strict=True))[op.carries :]


def emit_collected_axis(op: ops.Scan, g: Emitter, stacked: str, rank: int) -> str:
    """Move the axis of collected values; `scan_output_axes` crashes for an empty batch (ONNX
    Runtime 1.31).
    """
    # ONNX stacks outputs along the first axis.
    order = [*range(1, op.axis + 1), 0, *range(op.axis + 1, rank)]
    return stacked if op.axis == 0 else g.node("Transpose", stacked, perm=order)


def _emit_without_placeholder(
    op: ops.Scan, g: Emitter, results: tuple[str, ...], carried: Sequence[Tensor], length: Dim
) -> tuple[str, ...]:
    """Return the results without the placeholder position of an empty axis."""
    some = g.node("Greater", g.dim(length), g.constant(0, "i64"))
    ends = [
        emit_where(g, start.type.dtype, some, end, start.name)
        for start, end in zip(carried, results[: op.carries], strict=True)
    ]
    stacked = [emit_slice(g, r, op.axis, Dim.of(0), length) for r in results[op.carries :]]
    return (*ends, *stacked)


def _build_scan_body(
    op: ops.Scan,
    g: Emitter,
    keep: Tensor | None,
    carried: Sequence[Tensor],
    captured: Sequence[Tensor],
) -> object:
    """Build the body graph with ONNX's input order: carries, then `keep`, then scanned values."""
    inner = list(op.body.inputs.items())
    rows, carries = inner[: op.scanned], inner[op.scanned : op.scanned + op.carries]
    with g.body() as opened:
        kept = None
        if keep is not None:
            kept = Tensor(g.unique(g.place("keep")), remove_axis(keep.type, 1))
        inputs = [add_body_input(g, name, value) for name, value in carries]
        inputs += [kept] if kept else []
        inputs += [add_body_input(g, name, value) for name, value in rows]
        results = lower_scan_body(op, g, captured, kept)
    types = [v.type for v in op.body.outputs.values()]
    return make_body_graph(
        g.place("body"), opened, results, types, [make_value_info(t.name, t.type) for t in inputs]
    )


def add_body_input(g: Emitter, name: str, value: Value) -> Tensor:
    """Add an input with a unique name to a body."""
    g.values.tensors[value] = Tensor(g.unique(g.place(name)), value.type, value)
    return g.values.tensors[value]


def lower_scan_body(
    op: ops.Scan, g: Emitter, captured: Sequence[Tensor], kept: Tensor | None
) -> list[str]:
    """Lower the body for given positions and carries; return the results of an iteration."""
    inputs = list(op.body.inputs.values())
    outer = inputs[op.scanned + op.carries :]
    g.values.tensors.update(zip(outer, captured, strict=True))
    for name, value in op.body.parameters.items():
        g.values.tensors[value] = g.values.parameters[name]
    site = g.site
    # Nodes of the body set the site to their own.
    if op.lasting:
        made = _lower_lasting_body(op, g)
    else:
        lower_nodes(g, op.body)
        made = [g.values.tensors[value].name for value in op.body.outputs.values()]
    g.site = site
    return _emit_iteration_results(op, g, made, kept)


def _lower_lasting_body(op: ops.Scan, g: Emitter) -> list[str]:
    """Lower what every iteration makes, and under an `If` what only unfinished rows need."""
    values = list(op.body.outputs.values())
    ending = values[: len(values) - op.lasting]
    always = collect_needed_nodes(values[len(ending) :])
    lower_nodes(g, op.body, always)
    starts = op.inner().starts
    left = _emit_any_unfinished(g, g.values.tensors[starts[op.until]].name)
    types = [v.type for v in ending]

    def lower_body() -> list[str]:
        lower_nodes(g, op.body, {n for n, _ in op.body.nodes} - always)
        return [g.values.tensors[v].name for v in ending]

    def emit_unchanged() -> list[str]:
        zeros = [emit_full(g, 0, t.dtype, t.shape) for t in types[op.carries :]]
        return [*(g.values.tensors[v].name for v in starts), *zeros]

    results = g.nodes(
        "If",
        len(ending),
        left,
        then_branch=make_branch(g, g.place("going"), types, lower_body),
        else_branch=make_branch(g, g.place("over"), types, emit_unchanged),
    )
    return [*results, *(g.values.tensors[v].name for v in values[len(ending) :])]


def _emit_iteration_results(
    op: ops.Scan, g: Emitter, made: Sequence[str], kept: Tensor | None
) -> list[str]:
    """Return the results of a step; a masked position changes no carry and collects zeros."""
    body = op.body
    before = list(body.inputs.values())[op.scanned : op.scanned + op.carries]
    names: list[str] = []
    for n, (value, result) in enumerate(zip(body.outputs.values(), made, strict=True)):
        if kept is not None:
            dtype, carried = value.type.dtype, n < op.carries
            old = g.values.tensors[before[n]].name if carried else g.constant(0, dtype)
            result = emit_where(g, dtype, _emit_broadcast_keep(g, kept, value.type), result, old)
        names.append(result)
    return emit_body_results(g, names)


def _emit_broadcast_keep(g: Emitter, kept: Tensor, type: Type) -> str:
    """Emit `keep` at one position, `[b]`, with as many axes as `type`."""
    shape = (*kept.type.shape, *[Dim.of(1)] * (type.rank - kept.type.rank))
    return emit_reshape(g, kept.name, kept.type.shape, shape)


def emit_loop_node(op: ops.Scan, g: Emitter, *args: Tensor) -> tuple[str, ...]:
    """Emit a `Loop` node that runs to the last position, or until all elements are done."""
    given = op.parts(args)
    length = given.rows[0].type.shape[op.axis]
    turns = g.dim(length)
    body = _build_loop_body(op, g, given, turns)
    ends = _has_early_exit(op)
    more = _emit_any_unfinished(g, given.starts[op.until].name) if ends else None
    carried = [c.name for c in given.starts]
    count = len(op.body.outputs)
    results = g.nodes("Loop", count, turns, more, *carried, body=body)
    # if all iterations run and there is at least one, no output is missing
    whole = not ends and g.lengths.positive(length)
    stacked = []
    for rows, type in _list_collected(op, g, results):
        every = rows if whole else _emit_zero_filled(op, g, rows, type, turns)
        stacked.append(emit_collected_axis(op, g, _emit_scan_order(op, g, every), type.rank))
    return (*results[: op.carries], *stacked)


def _build_loop_body(op: ops.Scan, g: Emitter, given: Loop[Tensor], turns: str) -> object:
    """Emit the body in the form of `Loop`: iteration index, condition, carries."""
    inner = list(op.body.inputs.items())
    starts = inner[op.scanned : op.scanned + op.carries]
    with g.body() as opened:
        number = Tensor(g.unique(g.place("turn")), Type("i64", ()))
        going = Tensor(g.unique(g.place("go")), Type("bool", ()))
        inputs = [number, going, *(add_body_input(g, name, v) for name, v in starts)]
        at = number.name
        if op.reverse:
            last = g.node("Sub", turns, g.constant(1, "i64"))
            at = g.node("Sub", last, at)
        for (_, value), x in zip(inner, given.rows, strict=False):
            row = g.node("Gather", x.name, at, axis=op.axis)
            g.values.tensors[value] = Tensor(row, value.type, value)
        kept = None
        if given.keep is not None:
            name = g.node("Gather", given.keep.name, at, axis=1)
            kept = Tensor(name, remove_axis(given.keep.type, 1))
        results = lower_scan_body(op, g, given.captured, kept)
        # an input name must not be an output name
        more = (
            _emit_any_unfinished(g, results[op.until])
            if _has_early_exit(op)
            else g.alias(going.name, g.place("on"))
        )
    types = [Type("bool", ()), *(v.type for v in op.body.outputs.values())]
    declared = [make_value_info(t.name, t.type) for t in inputs]
    return make_body_graph(g.place("body"), opened, [more, *results], types, declared)


def _has_early_exit(op: ops.Scan) -> bool:
    """Return whether iterations after the last active element are skipped."""
    return op.until != -1 and not op.lasting


def _emit_any_unfinished(g: Emitter, done: str) -> str:
    """Emit whether an element is not done: a sum, since the minimum of no elements is undefined."""
    left = emit_cast(g, g.node("Not", done), "bool", "i32")
    count = g.node("ReduceSum", left, keepdims=0)
    return g.node("Greater", count, g.constant(0, "i32"))


def _emit_zero_filled(op: ops.Scan, g: Emitter, stacked: str, type: Type, turns: str) -> str:
    """Emit collected values by iteration, with zeros for iterations that did not run."""
    rest = remove_axis(type, op.axis).shape
    run = g.node("Shape", stacked, start=0, end=1)
    # With zero iterations ONNX Runtime returns no shape for the outputs either.
    shape = g.node("Concat", run, g.shape(rest), axis=0)
    known = g.node("Reshape", stacked, shape, allowzero=1)
    missing = g.node("Sub", emit_unsqueeze(g, turns, 0), run)
    shape = g.node("Concat", missing, g.shape(rest), axis=0)
    zeros = g.node("Expand", g.constant(0, type.dtype), shape)
    return g.node("Concat", known, zeros, axis=0)


def _emit_scan_order(op: ops.Scan, g: Emitter, stacked: str) -> str:
    """Reverse the collected positions of a loop that runs backwards."""
    if not op.reverse:
        return stacked
    ends = (g.vector(n) for n in (-1, -(2**62), 0, -1))
    return g.node("Slice", stacked, *ends)
