"""Built-in `route`: mixture of experts, with a check that experts treat tokens independently."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.frontend.body_extraction import extract_body_graph
from specc.frontend.builtins.registry import CallSite, register_builtin
from specc.frontend.context import AlreadyReported
from specc.frontend.parameter_kinds import FunctionValue
from specc.frontend.spec_values import (
    POISON,
    SpecValue,
    Tensor,
    describe_value,
    format_type,
    take_first_result,
)
from specc.frontend.weight_sharing import ExpertStack
from specc.ir import ops
from specc.ir.dependence import AxisTrace, trace_axes
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, NodeOrigin, Value, collect_needed_nodes
from specc.ir.interval import SAME_POSITION
from specc.ir.ir_verifier import is_length_dependent
from specc.ir.types import Type
from specc.syntax import ast


def check_tokens_independent(
    site: CallSite, body: Graph, captured: Sequence[Value], length: str
) -> None:
    """E0331 where a row looks at others or at how many there are, E0333 where something
    inside is as long as only an input tells. `length` is the number of rows.
    """
    made: Mapping[Node, NodeOrigin] = {**site.context.builder.made, **body.made}
    # How many rows chose an expert is nobody's business but the loop's: it changes with
    # the batch.
    for node in _find_count_reads(body, captured, length):
        _raise_tokens_mixed(site, made, node, "counts the rows that it is given")
    for node in _find_token_mixing(body):
        _raise_tokens_mixed(site, made, node, "reads other rows than its own")
    for value in (*captured, *(r for _, results in body.nodes for r in results)):
        for dim in value.type.shape:
            if site.context.late(dim.symbols() - {length}):
                _raise_runtime_length(site, made, value, dim)


def _find_count_reads(body: Graph, captured: Sequence[Value], length: str) -> Iterator[Node]:
    """The nodes that hold how many rows there are, inside or on the way to what the body
    captures.
    """
    yield from (node for node, _ in body.nodes if is_length_dependent(node))
    for node in collect_needed_nodes(captured):
        values = node.op.attributes().values()
        if any(isinstance(v, Dim) and length in v.symbols() for v in values):
            yield node


def _find_token_mixing(body: Graph) -> Iterator[Node]:
    """The nodes through which a row of the result reads more than the row it was."""
    rows = next(iter(body.inputs.values()))
    # Followed from the rows that are given to what is made of them; anything but the
    # same row is told.
    found = trace_axes(body, {rows: AxisTrace({rows.type.rank - 2: SAME_POSITION})})
    for node, results in body.nodes:
        reads = [found[r] for r in results if r in found]
        if any(t.all or set(t.axes.values()) - {SAME_POSITION} for t in reads):
            yield node


def _raise_tokens_mixed(
    site: CallSite, made: Mapping[Node, NodeOrigin], node: Node, does: str
) -> NoReturn:
    """E0331 at an op of the block, and where experts are run."""
    known = made.get(node, NodeOrigin()).spans
    at = known[-1] if known else site.span
    fn = node.op.attributes().get("fn")
    said = fn if isinstance(fn, str) else node.op.name
    there = Label(site.span, "experts are run here") if site.span else None
    raise Failed(
        Diagnostic(
            "E0331",
            f"an expert is given the rows that chose it, and {does}",
            Label(at, f"`{said}` does") if at else None,
            (there,) if there and at is not site.span else (),
            helps=("do this before `route`, on all rows",),
        )
    )


def _raise_runtime_length(
    site: CallSite, made: Mapping[Node, NodeOrigin], value: Value, dim: Dim
) -> NoReturn:
    """E0333 for a length that only an input tells."""
    known = made.get(value.node, NodeOrigin()).spans if value.node else ()
    raise_error(
        "E0333",
        f"an expert reads what is {dim} long, which only an input tells",
        known[-1] if known else site.span,
        f"this reads {format_type(value.type)}",
        helps=[
            "what belongs to a row goes with it, as `concat([x, …])`; a table has a "
            "length that the config says"
        ],
    )


def drop_unused_weights(body: Graph, own: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """The body without weights that nothing in it reads, and the values that hold the
    others. Its inputs are the rows, then one for each of `own`, then captures.
    """
    # A weight that nothing reads would be asked of a checkpoint that has none.
    read = {a for n, _ in body.nodes for a in n.args} | {*body.outputs.values()}
    names = list(body.inputs)[1 : 1 + len(own)]
    unread = {name for name in names if body.inputs[name] not in read}
    inputs = {n: v for n, v in body.inputs.items() if n not in unread}
    facts = {n: f for n, f in body.input_facts.items() if n not in unread}
    kept = [v for n, v in zip(names, own, strict=True) if n not in unread]
    return replace(body, inputs=inputs, input_facts=facts), kept


ROUTED_LENGTH = "routed"
"""What the number of rows is called that one expert is given."""


@register_builtin(weights=True)
def route(
    site: CallSite,
    x: Tensor,
    ids: Tensor,
    gates: Tensor,
    *,
    to: FunctionValue,
    experts: Dim,
    keep: Tensor | None = None,
) -> Tensor:
    """The sum of what the experts named in `ids` make of a row, each times its gate: a
    mixture of experts (arXiv:1701.06538, eq. 1). `x` is [… d], `ids` and `gates` are
    [… k].

    `to` is the block of one expert; its weights lie in the model with an axis of length
    `experts` in front. `keep` […] says which rows exist: the others go to nobody and
    give zeros. Only experts that somebody chose are run.
    """
    _check_routed_operands(site, x, ids, gates, keep)
    _check_expert_count(site, ids.shape[-1], gates, experts)
    length = _make_length_name(site, x)
    stack = ExpertStack(experts)
    ones = (Dim.of(1),) * (len(x.shape) - 2)
    shape = (*ones, Dim.symbol(length), x.shape[-1])
    rows = Value(Type(x.type.dtype, shape))
    start = len(site.context.builder.nodes)
    made = _elaborate_expert(site, to, rows, stack, _rename_lengths_inside(site, x, length))
    own = {f"own {name}": value for name, value in stack.inside.items()}
    body, captured = extract_body_graph(
        site.context.builder, {"rows": rows, **own}, {"y": made.value}, start, length
    )
    check_tokens_independent(site, body, captured, length)
    body, weights = drop_unused_weights(body, list(stack.outside.values()))
    op = ops.Route(body, experts, len(weights), keep is not None)
    given = [x, ids, gates, *([keep] if keep else [])]
    return site.one(op, *given, *(Tensor(v) for v in (*weights, *captured)))


# --- what is given --------------------------------------------------------------------


OPERAND_DTYPES = {
    "ids": ("whole numbers", ("i64", "i32")),
    "gates": ("numbers with a fraction", ("f32", "f16", "bf16", "f64")),
    "keep": ("true or false", ("bool",)),
}
"""What the operands beside the rows hold."""


def _check_routed_operands(
    site: CallSite, x: Tensor, ids: Tensor, gates: Tensor, keep: Tensor | None
) -> None:
    """E0332 for operands that have not the rows of `x`, or hold something else."""
    if len(x.shape) < 2:
        helps = ["put an axis of 1 in front: insert(…, axis=0)"]
        title = "`route` sends the rows of a tensor, […, d], to experts"
        site.fail("E0332", title, "x", f"this is {describe_value(x)}", helps=helps)
    rows = x.shape[:-1]
    beside = {"ids": (ids, "k"), "gates": (gates, "k"), "keep": (keep, "")}
    for name, (value, behind) in beside.items():
        if value is None:
            continue
        words, dtypes = OPERAND_DTYPES[name]
        label = f"this is {describe_value(value)}"
        if value.type.dtype not in dtypes:
            site.fail("E0332", f"`{name}` of `route` holds {words}", name, label)
        lead, rank = value.shape[: len(rows)], len(rows) + len(behind)
        if lead != rows or len(value.shape) != rank:
            shown = ", ".join([*map(str, rows), *behind])
            title = f"`{name}` of `route` has the rows of what is routed: [{shown}]"
            site.fail("E0332", title, name, label)


def _check_expert_count(site: CallSite, k: Dim, gates: Tensor, experts: Dim) -> None:
    """E0332 for other gates than experts of a row, E0330 for more of these than there
    are, E0333 where an input decides how many there are.
    """
    many = gates.shape[-1]
    if k != many:
        axis = len(gates.shape) - 1
        mend = f"take those of the chosen ones: `gather(…, ids, axis={axis})`"
        title = f"`ids` names {k} experts for a row, and `gates` has {many} numbers"
        helps = [mend] if many == experts else []
        site.fail("E0332", title, "gates", f"this is {describe_value(gates)}", helps=helps)
    if site.context.late(experts.symbols()):
        title = f"there would be {experts} experts, which only an input tells"
        helps = ["their weights are of one size for every input: give a config value"]
        site.fail("E0333", title, "experts", helps=helps)
    if experts.number is None:
        return
    if experts.number < 1:
        site.fail("E0330", f"there would be {experts} experts", "experts")
    if k.number is not None and k.number > experts.number:
        title = f"each row is sent to {k} experts, and there are {experts}"
        site.fail("E0330", title, "ids", f"this names {k} of them")


# --- the block of one expert ----------------------------------------------------------


def _make_length_name(site: CallSite, x: Tensor) -> str:
    """A name for the number of rows that nothing else in sight has."""
    name, lengths = ROUTED_LENGTH, site.context.lengths
    taken: Sequence[str] = [*site.env.module.dims, *site.env.dims, *lengths]
    while name in taken or any(name in d.symbols() for d in x.shape):
        name += "_again"
    return name


def _rename_lengths_inside(site: CallSite, x: Tensor, length: str) -> dict[str, Dim]:
    """What the run-time lengths of the file stand for in the block: `x: float[batch,
    seq, d]` is declared of the rows that an expert is sent as well.
    """
    found: dict[str, Dim] = {}
    for name in site.env.module.dims:
        dim = site.env.find_runtime_length(name)
        if dim is not None and dim == x.shape[-2]:
            dim = Dim.symbol(length)
        elif dim is not None and dim in x.shape[:-2]:
            dim = Dim.of(1)
        if dim is not None:
            found[name] = dim
    return found


def _elaborate_expert(
    site: CallSite, to: FunctionValue, rows: Value, stack: ExpertStack, lengths: dict[str, Dim]
) -> Tensor:
    """What the block gives for rows that stand for those an expert is sent. E0331 where
    that is not a row for each.
    """
    context, call = site.context, site.call
    names: dict[str, SpecValue] = {"to": to, "x": Tensor(rows, site.spans.get("x"))}
    # the call is a new one, which stands where the user wrote `route`
    function = ast.Name("to", span=call.function.span)
    inner = ast.Call(function, (ast.Name("x", span=call.span),), span=call.span)
    (length,) = rows.type.shape[-2].symbols()
    before, context.lengths = context.lengths, context.lengths | {length}
    context.expert_stacks.append(stack)
    try:
        there = replace(site.env, names=names, lengths=lengths)
        with context.apart():
            made = take_first_result(context.evaluator.call(context, inner, there))
    except Failed as failed:
        shown = format_type(rows.type)
        raise Failed(*(_add_expert_note(d, shown) for d in failed.diagnostics)) from None
    finally:
        context.expert_stacks.pop()
        context.lengths = before
    if made is POISON:
        raise AlreadyReported
    if not isinstance(made, Tensor) or made.shape[:-1] != rows.type.shape[:-1]:
        title = f"an expert gives {describe_value(made)} for {format_type(rows.type)}"
        helps = ["give a row for each row, […, out] for […, in]"]
        site.fail("E0331", title, "to", helps=helps)
    if made.type.dtype not in OPERAND_DTYPES["gates"][1]:
        title = f"what experts give is summed: it cannot be {describe_value(made)}"
        site.fail("E0331", title, "to")
    return made


def _add_expert_note(fault: Diagnostic, rows: str) -> Diagnostic:
    """A fault about lengths that meet, with what an expert is given."""
    if fault.code != "E0302":
        return fault
    note = (
        f"an expert is given {rows}, the rows that chose it; what belongs to a row goes "
        "to `route` with it, as `concat([x, …])`"
    )
    return replace(fault, notes=(*fault.notes, note))
