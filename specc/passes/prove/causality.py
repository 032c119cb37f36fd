"""The proof that a model can be generated: no op lets a position see a later one.

On entry: a graph, the input that grows and the outputs that are asked for. On leaving:
nothing, where a step can be derived, or one error for each op at fault.

The proof is local. Each op on the way to what is wanted must be causal by itself,
because while the model generates, row t + 1 of a value between does not exist yet,
whatever a later op does with it. So the op that is named is the op at fault.

An attention without a mask sees every key, later ones too; the flip beside it, which
no output reads, is not mentioned:

    $ causality x y
    graph "g"
    input "x" %0: f32[b, n, 4]
    %1: f32[b, 1, n, 4] = insert(%0) {axis=1}
    %2: f32[b, 1, n, 4], %3: f32[b, 1, n, n] = attend(%1, %1, %1) {scale=0.5, cap=0.0}
    %4: f32[b, n, 4] = flip(%0) {axis=1}
    output "y" %2
    end
    gives
    E0712 `y` cannot be generated along `n`: without a mask a position sees every later one
"""

from collections.abc import Iterator, Sequence

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.interval import Interval
from specc.ir.op import Op
from specc.passes.prove.bands import band
from specc.passes.prove.crossing import CROSSED, LOOK_BACK, crossed, crossing
from specc.passes.prove.flow import Flow, Leak, flow
from specc.passes.prove.over_keys import over_keys
from specc.passes.prove.said import Said, in_normalizer, of_rows
from specc.passes.prove.windows import window_words
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span


def prove(
    graph: Graph, symbol: str, growing: str, outputs: Sequence[str]
) -> list[Diagnostic]:
    """Why `outputs` cannot be generated along the axis `symbol` of the input `growing`;
    nothing if they can.

    Errors E0711 to E0717, one for each op at fault, in the graph's order.
    """
    found = flow(graph, symbol)
    wanted = [graph.outputs[name] for name in outputs]
    live = needed(wanted)
    output = outputs[0] if outputs else ""
    faults = [
        *_parameters(graph, found, live, output),
        *_inputs(graph, found, live, output),
    ]
    for leak in found.leaks:
        if leak.node in live:
            name = next(
                n
                for n, v in zip(outputs, wanted, strict=True)
                if leak.node in needed([v])
            )
            faults.append(_diagnostic(graph, found, leak, name, growing))
    if not faults:
        faults += [
            _crossed(graph, found, node, why)
            for node, why in crossing(graph, found, live)
        ]
        for name, value in zip(outputs, wanted, strict=True):
            faults += _output(graph, found, name, value, growing)
    return faults


def span_of(graph: Graph, node: Node | None) -> Span | None:
    """The first text that asked for a node; where none is known, that of something it reads."""
    todo, seen = [node], set()
    while todo:
        here = todo.pop(0)
        if here is None or here in seen:
            continue
        seen.add(here)
        made = graph.made.get(here)
        if made and made.spans:
            return made.spans[0]
        todo += [a.node for a in here.args if a]
    return None


def spoken(op: Op) -> str:
    """What an op is called in a message: its function where it has several, else its name."""
    fn = op.attributes().get("fn")
    return fn if isinstance(fn, str) else op.name


def _parameters(
    graph: Graph, found: Flow, live: set[Node], output: str
) -> Iterator[Diagnostic]:
    used = {a for node in live for a in node.args}
    for name, value in graph.parameters.items():
        if value in used and any(d.symbols() & found.related for d in value.type.shape):
            span = graph.parameter_facts[name].span
            yield Diagnostic(
                "E0716",
                f"`{output}` cannot be generated along `{found.symbol}`: the size of "
                "a weight depends on it",
                Label(span, f"`{name}` is {value.type}") if span else None,
                notes=(f"`{name}` is {value.type}",),
                helps=(
                    "give the weight a fixed number of rows and look them up by position",
                ),
            )


def _inputs(
    graph: Graph, found: Flow, live: set[Node], output: str
) -> Iterator[Diagnostic]:
    """Inputs of which no row is known to belong to a new row: their length follows from
    that of what grows.
    """
    used = {a for node in live for a in node.args}
    for name, value in graph.inputs.items():
        own = [
            d
            for d in value.type.shape
            if d.name != found.symbol and d.symbols() & found.related
        ]
        if value in used and own:
            span = graph.input_facts[name].span
            yield Diagnostic(
                "E0716",
                f"`{output}` cannot be generated along `{found.symbol}`: `{name}` is {own[0]} long",
                Label(
                    span,
                    f"nothing says which of its rows belong to a new row of `{found.symbol}`",
                )
                if span
                else None,
                helps=(
                    f"give `{name}` the length `{found.symbol}`, a length of its own, "
                    "or a fixed one",
                ),
            )


def _crossed(graph: Graph, found: Flow, node: Node, why: str) -> Diagnostic:
    span = span_of(graph, node)
    return Diagnostic(
        "E0717",
        f"no step can be derived along `{found.symbol}`: {why}",
        Label(span, f"`{spoken(node.op)}`: {why}") if span else None,
        helps=CROSSED,
    )


def _output(
    graph: Graph, found: Flow, name: str, value: Value, growing: str
) -> Iterator[Diagnostic]:
    state = found.state(value)
    title = f"`{name}` cannot be generated along `{found.symbol}`"
    span = span_of(graph, value.node)
    if not state.moves:
        yield Diagnostic(
            "E0716",
            f"{title}: it does not depend on `{growing}`",
            Label(span, "this stays the same whatever is generated") if span else None,
            helps=(f"compute it from `{growing}`",),
        )
    if len(state.axes) > 1:
        query, key = sorted(state.axes)[:2]
        reach = band(value, query, key)
        if reach.lo < 0:
            yield Diagnostic(
                "E0712",
                f"{title}: its rows hold values for later positions",
                Label(span, "this has a value for every pair of positions")
                if span
                else None,
                helps=("mask it first, with a mask that has `& causal`",),
            )


def _diagnostic(
    graph: Graph, found: Flow, leak: Leak, output: str, growing: str
) -> Diagnostic:
    said = said_of(leak, found)
    primary, others = labels_of(graph, leak, found)
    said = in_normalizer(said, primary)
    title = f"`{output}` cannot be generated along `{found.symbol}`: {said.what}"
    facts = graph.input_facts.get(growing)
    if facts and facts.span:
        others = (*others, Label(facts.span, f"`{found.symbol}` grows here"))
    notes = said.notes
    if (
        leak.why == "ahead"
        and leak.reach.lo > -UNBOUNDED
        and _made_up(found, graph.outputs.get(output))
    ):
        notes = (*notes, MADE_UP)
    return Diagnostic(said.code, title, primary, others, notes, said.helps)


def labels_of(
    graph: Graph, leak: Leak, found: Flow
) -> tuple[Label | None, tuple[Label, ...]]:
    """Where a leak is, and where the rows come from that are read; inside a loop, in its body."""
    place, at = graph, leak
    while at.inside:
        place, at = at.inside
    span = span_of(place, at.node) or span_of(graph, leak.node)
    primary = (
        Label(span, f"`{spoken(at.node.op)}`: {said_of(at, found).what}")
        if span
        else None
    )
    operand = at.node.args[at.operand] if at.operand is not None else None
    read = span_of(place, operand.node) if operand else None
    there = (
        (Label(read, f"these are the rows it reads, along `{found.symbol}`"),)
        if read and read != span
        else ()
    )
    return primary, there


UNBOUNDED = float("inf")

MADE_UP = (
    "a later `delay` makes up for this, but the row does not exist yet while generating"
)


def _made_up(found: Flow, output: Value | None) -> bool:
    """Whether the accumulated reach is causal although one op is not."""
    if output is None:
        return False
    axes = found.state(output).axes.values()
    return bool(axes) and all(r.lo >= 0 for r in axes)


def said_of(leak: Leak, found: Flow) -> Said:
    """The words for a leak; those for the op inside, where it is in a loop."""
    if leak.inside:
        return said_of(leak.inside[1], found)
    symbol = found.symbol
    match leak.why:
        case "length":
            return Said(
                "E0714",
                f"this is the final length of `{symbol}`, which is not known while generating",
                helps=("use the row numbers, `positions(x)`, or what is `last(x)`",),
            )
        case "newest":
            return Said(
                "E0713",
                "the newest position is added back to earlier ones",
                helps=("take `last(...)` at the end, or use a running sum",),
            )
        case "captured":
            return Said(
                "E0715",
                f"what this loop takes from outside depends on `{symbol}`",
                helps=("pass it as a scanned input",),
            )
        case "shape":
            return Said(
                "E0711", f"the rows of its result are no longer the rows of `{symbol}`"
            )
    if crossed(leak.node, leak.why):
        return Said("E0717", LOOK_BACK, helps=CROSSED)
    return over_keys(leak, found) or _reads(leak)


def _reads(leak: Leak) -> Said:
    """The words for an op that reads rows ahead."""
    ahead, every = _count(leak.reach), leak.why == "all"
    match leak.node.op:
        case ops.Attend() | ops.MaskedSoftmax() | ops.Hard() | ops.Share():
            return _mask(leak)
        case ops.Weigh() | ops.MatMul() | ops.Einsum():
            return Said(
                "E0712",
                "its rows hold values for later positions",
                _low(leak.reach),
                (
                    "mask it first: weigh with `attend(..., mask=causal)` or `masked_softmax`",
                ),
            )
        case ops.Reduce(fn=fn) if every:
            return Said(
                "E0711",
                f"this {fn} reads every position",
                helps=("use `last(x)`, or a running sum, `cumsum(x)`",),
            )
        case ops.Softmax():
            return Said(
                "E0711",
                "this softmax divides by a sum over every position",
                helps=("to weigh keys use `attend(...)`",),
            )
        case ops.LayerNorm() | ops.RMSNorm():
            return Said(
                "E0711",
                "this norm takes its statistics over every position",
                helps=("normalize the features, or use a running sum",),
            )
        case ops.Flip():
            return Said("E0711", "this turns the sequence around")
        case ops.Concat():
            return Said(
                "E0711",
                "joining along a growing axis moves its positions",
                helps=("to shift a sequence by one use `delay(x, by=1)`",),
            )
        case ops.Slice() | ops.Index():
            return Said(
                "E0711",
                "the rows of a growing axis cannot be picked by number",
                helps=(
                    "use `last(x)` for the newest row, `delay(x, by=1)` for the row before",
                ),
            )
        case ops.Split() | ops.Merge():
            return Said("E0711", "a growing axis can be neither split nor merged")
        case ops.Scan(reverse=True):
            forward = "scan forward along a growing axis"
            return Said("E0715", "this scan runs backwards", helps=(forward,))
        case ops.Rnn(reverse=True) | ops.Gru(reverse=True) | ops.Lstm(reverse=True):
            return Said(
                "E0715",
                "this layer runs backwards",
                helps=("use `direction=forward` along a growing axis",),
            )
        case ops.Conv() | ops.MaxPool() | ops.AveragePool() | ops.ConvTranspose():
            what, helps = window_words(leak.node.op, ahead, every)
            return Said("E0711", what, helps=helps)
        case ops.ArgMax() | ops.Sort() | ops.Gather():
            return Said(
                "E0711",
                "this picks among every position",
                helps=("weigh them with `attend(...)`",),
            )
    reads = (
        "this reads every position" if every else f"this lets position t see {ahead}"
    )
    return of_rows(leak.node.op, reads)


def _mask(leak: Leak) -> Said:
    """An attention whose mask is absent or too wide."""
    op = leak.node.op
    unmasked = isinstance(op, ops.Attend) and op.mask(leak.node) is None
    if unmasked:
        return Said(
            "E0712",
            "without a mask a position sees every later one",
            helps=("write `mask=causal`",),
        )
    if leak.reach.lo == -UNBOUNDED or leak.why == "all":
        return Said(
            "E0712",
            "its mask lets a position see every later one",
            helps=("add `& causal` to the mask",),
        )
    what = f"its mask lets a position see {_count(leak.reach)}"
    return Said("E0712", what, _low(leak.reach), ("add `& causal` to the mask",))


def _low(reach: Interval) -> tuple[str, ...]:
    if reach.empty or reach.lo == -UNBOUNDED:
        return ()
    return (f"q - k can be as low as {int(reach.lo)} here",)


def _count(reach: Interval) -> str:
    if reach.empty or reach.lo == -UNBOUNDED:
        return "every later one"
    return f"{-int(reach.lo)} later position{'s' if reach.lo < -1 else ''}"


def growing_symbol(graph: Graph, growing: str) -> str | None:
    """The symbol of the axis along which an input grows: the axis behind the batch,
    else the first.
    """
    shape: tuple[Dim, ...] = graph.inputs[growing].type.shape
    axis = 1 if len(shape) > 1 else 0
    return shape[axis].name if shape else None
