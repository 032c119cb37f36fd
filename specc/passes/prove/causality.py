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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.op import Op
from specc.passes.prove.beyond import hidden
from specc.passes.prove.chunks import chunked
from specc.passes.prove.crossing import CROSSED, Crossing, crossing
from specc.passes.prove.flow import Flow, Leak, flow
from specc.passes.prove.leaks import said_of
from specc.passes.prove.said import in_normalizer, zero_later_keys
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span


def prove(
    graph: Graph, symbol: str, growing: str, outputs: Sequence[str], chunk: int = 1
) -> list[Diagnostic]:
    """Why `outputs` cannot be generated along the axis `symbol` of the input `growing`,
    which counts chunks of so many of its rows; nothing if they can.

    Errors E0711 to E0717, one for each op at fault, in the graph's order.
    """
    found = flow(graph, symbol, chunk)
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
        faults += [_crossed(found, each) for each in crossing(graph, found, live)]
        for name, value in zip(outputs, wanted, strict=True):
            faults += _output(graph, found, name, value, growing)
    return _once(faults)


def prove_stream(
    graph: Graph, symbol: str, growing: str, outputs: Sequence[str], chunk: int
) -> list[Diagnostic]:
    """The same, said of outputs that are made while the rows of an input come."""
    return [
        replace(fault, title=fault.title.replace(GENERATED, "cannot be streamed along"))
        for fault in prove(graph, symbol, growing, outputs, chunk)
    ]


GENERATED = "cannot be generated along"


def _once(faults: Iterable[Diagnostic]) -> list[Diagnostic]:
    """One error for each place: what is written in a loop leaks in each of its turns."""
    first: dict[tuple[str, str, Label | None], Diagnostic] = {}
    for fault in faults:
        known = first.setdefault((fault.code, fault.title, fault.primary), fault)
        if known is not fault:
            first[known.code, known.title, known.primary] = replace(
                known, count=known.count + fault.count
            )
    return list(first.values())


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
            if found.clock.head(d) != 0 and d.symbols() & found.related
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


def _crossed(found: Flow, at: Crossing) -> Diagnostic:
    span = span_of(at.place, at.node)
    return Diagnostic(
        "E0717",
        f"no step can be derived along `{found.symbol}`: {at.why}",
        Label(span, f"`{spoken(at.node.op)}`: {at.why}") if span else None,
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
        reach = hidden(value, query, key, found.clock)
        if reach.lo < 0:
            yield Diagnostic(
                "E0712",
                f"{title}: its rows hold values for later positions",
                Label(span, "this has a value for every pair of positions")
                if span
                else None,
                helps=(zero_later_keys(value.type.rank, max(state.axes)),),
            )


def _diagnostic(
    graph: Graph, found: Flow, leak: Leak, output: str, growing: str
) -> Diagnostic:
    said = said_of(graph, leak, found)
    primary, others = labels_of(graph, leak, found)
    said = in_normalizer(said, primary)
    title = f"`{output}` cannot be generated along `{found.symbol}`: {said.what}"
    facts = graph.input_facts.get(growing)
    if facts and facts.span:
        others = (*others, Label(facts.span, f"`{found.symbol}` grows here"))
    notes = said.notes
    if (
        leak.why == "ahead"
        and leak.reach.lo > -inf
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
        Label(span, f"`{spoken(at.node.op)}`: {said_of(place, at, found).what}")
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


MADE_UP = (
    "a later `delay` makes up for this, but the row does not exist yet while generating"
)


def _made_up(found: Flow, output: Value | None) -> bool:
    """Whether the accumulated reach is causal although one op is not."""
    if output is None:
        return False
    axes = found.state(output).axes.values()
    return bool(axes) and all(r.lo >= 0 for r in axes)


def growing_symbol(graph: Graph, growing: str, chunk: int = 1) -> str | None:
    """The symbol of the axis along which an input grows: the axis behind the batch,
    else the first. With a `chunk` it is so many times as long.
    """
    value = graph.inputs[growing]
    axis = 1 if value.type.rank > 1 else 0
    return chunked(value, axis, chunk) if value.type.rank else None
