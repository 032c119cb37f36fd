"""Prove that a model can generate: no op lets a position depend on a later one, and
no input default does.

Input: a graph, the input with the time axis and the requested outputs. Output: nothing if a
decode step can be derived, else one error per op that violates causality.

The proof is local. Each op on the way to the outputs must be causal by itself, because during
generation position t + 1 of an intermediate value does not exist yet, whatever a later op does
with it. So the reported op is the cause.

Attention without a mask sees every key, including later ones; the `flip` next to it, which no
output reads, is not reported:

    $ causality x y
    graph "g"
    input "x" %0: f32[b, n, 4]
    %1: f32[b, 1, n, 4] = insert(%0) {axis=1}
    %2: f32[b, 1, n, 4], %3: f32[b, 1, n, n] = attend(%1, %1, %1) {scale=0.5, cap=0.0}
    %4: f32[b, n, 4] = flip(%0) {axis=1}
    output "y" %2
    end
    gives
    E0712 `y` cannot be generated along `n`: without a mask every position attends to later ones

A default is computed from the current input. Its values for existing positions must not change
when more arrive, and a default without a time axis must not depend on one, since it is computed
once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from specc.analysis.causality_message_parts import adapt_to_normalizer, zero_later_keys
from specc.analysis.causality_messages import describe_leak
from specc.analysis.masked_values import find_nonzero_interval
from specc.analysis.time_axis import find_chunk_symbol
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.analysis.time_dataflow_facts import (
    UNSUPPORTED_LOOP_HELPS,
    Leak,
    TimeFlow,
    UnsupportedLoop,
    find_unsupported_loops,
)
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Span
from specc.ir import ops
from specc.ir.graph import Graph, Input, Node, Value, collect_needed_nodes
from specc.ir.model import resolve_absent_inputs
from specc.ir.op import Op


def check_causality(
    graph: Graph, symbol: str, growing: str, outputs: Sequence[str], chunk: int = 1
) -> list[Diagnostic]:
    """Return why `outputs` cannot be generated along the axis `symbol` of the input `growing`,
    which counts chunks of `chunk` positions; empty if they can.

    Errors E0711 to E0717, one per violating op, in graph order.
    """
    found = trace_time_dataflow(graph, symbol, chunk)
    wanted = [graph.outputs[name] for name in outputs]
    live = collect_needed_nodes(wanted)
    used = {a for node in live for a in node.operands}
    output = outputs[0] if outputs else ""
    faults = [
        *_check_parameters(graph, found, used, output),
        *_check_inputs(graph, found, used, output),
    ]
    for leak in found.leaks:
        if leak.node in live:
            name = next(
                n
                for n, v in zip(outputs, wanted, strict=True)
                if leak.node in collect_needed_nodes([v])
            )
            faults.append(_make_diagnostic(graph, found, leak, name, growing))
    if not faults:
        faults += [
            _report_unsupported_loop(found, each)
            for each in find_unsupported_loops(graph, found, live)
        ]
        for name, value in zip(outputs, wanted, strict=True):
            faults += _check_output(graph, found, name, value, growing)
    return _deduplicate_errors(faults)


def check_streaming_causality(
    graph: Graph, symbol: str, growing: str, outputs: Sequence[str], chunk: int
) -> list[Diagnostic]:
    """Check causality of outputs that are computed while input arrives, in chunks that may split
    a group.
    """
    if has_groups(graph):
        title = f"`{outputs[0]}` {CANNOT_STREAM} `{symbol}`: a chunk may end within a group"
        helps = ("use the mask `causal` instead of `same_group`",)
        return [Diagnostic("E0712", title, helps=helps)]
    return [
        replace(fault, title=fault.title.replace(CANNOT_GENERATE, CANNOT_STREAM))
        for fault in check_causality(graph, symbol, growing, outputs, chunk)
    ]


CANNOT_GENERATE = "cannot be generated along"
CANNOT_STREAM = "cannot be streamed along"


def has_groups(graph: Graph) -> bool:
    """Return True if the graph has a `same_group` mask: a step then gets all tokens of a group."""
    return any(node.op == ops.Compare("same_group") for node, _ in graph.nodes)


def _deduplicate_errors(faults: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Keep one error per location: a statement in a loop leaks in each iteration."""
    first: dict[tuple[str, str, Label | None], Diagnostic] = {}
    for fault in faults:
        known = first.setdefault((fault.code, fault.title, fault.primary), fault)
        if known is not fault:
            first[known.code, known.title, known.primary] = replace(
                known, count=known.count + fault.count
            )
    return list(first.values())


def find_node_span(graph: Graph, node: Node | None) -> Span | None:
    """Return the first source span of a node, or of the nearest operand that has one."""
    todo, seen = [node], set()
    while todo:
        here = todo.pop(0)
        if here is None or here in seen:
            continue
        seen.add(here)
        if spans := graph.get_origin(here).spans:
            return spans[0]
        todo += [a.node for a in here.operands]
    return None


def format_op_name(op: Op) -> str:
    """Return the name of an op in messages: its function if it has several, else its own name."""
    fn = op.attributes().get("fn")
    return fn if isinstance(fn, str) else op.name


def _check_parameters(
    graph: Graph, found: TimeFlow, used: set[Value], output: str
) -> Iterator[Diagnostic]:
    for name, value in graph.parameters.items():
        if value in used and any(d.symbols() & found.related for d in value.shape):
            span = graph.parameter_facts[name].span
            yield Diagnostic(
                "E0716",
                f"`{output}` cannot be generated along `{found.symbol}`: the size of "
                "a weight depends on it",
                Label.at(span, f"`{name}` is {value.type}"),
                notes=(f"`{name}` is {value.type}",),
                helps=("give the weight a fixed number of rows and index it by position",),
            )


def _check_inputs(
    graph: Graph, found: TimeFlow, used: set[Value], output: str
) -> Iterator[Diagnostic]:
    """Report inputs whose length follows from the time axis, but not position by position."""
    for name, value in graph.inputs.items():
        own = [
            d
            for d in value.shape
            if found.clock.get_prefix_length(d) != 0 and d.symbols() & found.related
        ]
        if value in used and own:
            span = graph.input_facts[name].span
            yield Diagnostic(
                "E0716",
                f"`{output}` cannot be generated along `{found.symbol}`: `{name}` is {own[0]} long",
                Label.at(
                    span,
                    f"unknown which of its positions belong to a new position of `{found.symbol}`",
                ),
                helps=(
                    f"give `{name}` the length `{found.symbol}`, a length of its own, "
                    "or a fixed one",
                ),
            )


def _report_unsupported_loop(found: TimeFlow, at: UnsupportedLoop) -> Diagnostic:
    span = find_node_span(at.place, at.node)
    return Diagnostic(
        "E0717",
        f"no step can be derived along `{found.symbol}`: {at.reason}",
        Label.at(span, f"`{format_op_name(at.node.op)}`: {at.reason}"),
        helps=UNSUPPORTED_LOOP_HELPS,
    )


def _check_output(
    graph: Graph, found: TimeFlow, name: str, value: Value, growing: str
) -> Iterator[Diagnostic]:
    state = found.state(value)
    title = f"`{name}` cannot be generated along `{found.symbol}`"
    span = find_node_span(graph, value.node)
    if not state.moves:
        yield Diagnostic(
            "E0716",
            f"{title}: it does not depend on `{growing}`",
            Label.at(span, "this stays the same whatever is generated"),
            helps=(f"compute it from `{growing}`",),
        )
    if len(state.axes) > 1:
        query, key = sorted(state.axes)[:2]
        reach = find_nonzero_interval(value, query, key, found.clock)
        if reach.lo < 0:
            yield Diagnostic(
                "E0712",
                f"{title}: it contains values for later positions",
                Label.at(span, "this has a value for every pair of positions"),
                helps=(zero_later_keys(value.rank, max(state.axes)),),
            )


def _make_diagnostic(
    graph: Graph, found: TimeFlow, leak: Leak, output: str, growing: str
) -> Diagnostic:
    said = describe_leak(graph, leak, found)
    primary, others = make_leak_labels(graph, leak, found)
    said = adapt_to_normalizer(said, primary)
    title = f"`{output}` cannot be generated along `{found.symbol}`: {said.what}"
    others += _make_time_axis_labels(graph.input_facts.get(growing), found.symbol)
    notes = said.notes
    if (
        leak.reason == "ahead"
        and leak.reach.lo > -inf
        and _is_compensated_later(found, graph.outputs.get(output))
    ):
        notes = (*notes, LATER_DELAY_NOTE)
    return Diagnostic(said.code, title, primary, others, notes, said.helps)


def make_leak_labels(
    graph: Graph, leak: Leak, found: TimeFlow
) -> tuple[Label | None, tuple[Label, ...]]:
    """Return the label of a leak, in a loop of the node in its body, and that of what it reads."""
    place, at = graph, leak
    while at.inside:
        place, at = at.inside
    span = find_node_span(place, at.node) or find_node_span(graph, leak.node)
    primary = Label.at(
        span, f"`{format_op_name(at.node.op)}`: {describe_leak(place, at, found).what}"
    )
    operand = at.node.args[at.operand] if at.operand is not None else None
    read = find_node_span(place, operand.node) if operand else None
    there = (
        (Label(read, f"these are the positions it reads, along `{found.symbol}`"),)
        if read and read != span
        else ()
    )
    return primary, there


LATER_DELAY_NOTE = (
    "a later `delay` compensates for this, but the position does not exist yet during generation"
)


def _is_compensated_later(found: TimeFlow, output: Value | None) -> bool:
    """Return True if the accumulated receptive field is causal although one op is not."""
    if output is None:
        return False
    axes = found.state(output).axes.values()
    return bool(axes) and all(r.lo >= 0 for r in axes)


def find_time_symbol(graph: Graph, growing: str, chunk: int = 1) -> str | None:
    """Return the symbol of the time axis of an input: the axis after the batch, else the first.
    With `chunk` the axis is that many times as long.
    """
    value = graph.inputs[growing]
    axis = 1 if value.rank > 1 else 0
    return find_chunk_symbol(value, axis, chunk) if value.rank else None


def check_default_causality(
    graph: Graph, defaults: Graph | None, symbol: str, growing: str, outputs: Iterable[str]
) -> list[Diagnostic]:
    """Return an error E0718 for each default read by `outputs` that changes as `symbol` grows."""
    if defaults is None:
        return []
    live = collect_needed_nodes(graph.outputs[name] for name in outputs)
    read = {a for node in live for a in node.args} | {graph.outputs[name] for name in outputs}
    used = [
        n for n, v in graph.inputs.items() if v in read and n in defaults.outputs and n != growing
    ]
    faults: dict[Node | None, Diagnostic] = {}
    for fault in _iterate_default_errors(
        resolve_absent_inputs(defaults, [n for n in defaults.outputs if n != growing]),
        used,
        symbol,
        growing,
    ):
        faults.setdefault(*fault)
    return list(faults.values())


def _make_time_axis_labels(facts: Input | None, symbol: str) -> tuple[Label, ...]:
    """Return the label of the declaration of the time axis."""
    if facts is None or facts.span is None:
        return ()
    return (Label(facts.span, f"`{symbol}` is the time axis"),)


def _iterate_default_errors(
    defaults: Graph, used: Iterable[str], symbol: str, growing: str
) -> Iterator[tuple[Node | None, Diagnostic]]:
    """Yield the first error of each default with its node, so that one cause is reported once."""
    found = trace_time_dataflow(defaults, symbol)
    grows = _make_time_axis_labels(defaults.input_facts.get(growing), symbol)
    for name in used:
        value = defaults.outputs[name]
        live, state = collect_needed_nodes([value]), found.state(value)
        leak = next((k for k in found.leaks if k.node in live), None)
        if leak is None and (state.axes or not state.moves):
            continue
        node: Node | None
        if leak:
            said = describe_leak(defaults, leak, found)
            node, why, notes = leak.node, said.what, said.notes
            primary, others = make_leak_labels(defaults, leak, found)
        else:
            why = f"it is computed from `{growing}`, which grows during generation"
            node = value.node
            notes, others = (f"a default without the axis `{symbol}` is computed once",), ()
            primary = Label.at(find_node_span(defaults, node), why)
        title = f"the default of `{name}` would change during generation: {why}"
        helps = (
            f"compute it from earlier positions, as `cumsum(x)` is, or give `{name}` no default",
        )
        yield node, Diagnostic("E0718", title, primary, (*others, *grows), notes, helps)
