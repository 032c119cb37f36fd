"""Prove that a model is causal, i.e. that no op and no input default makes a position depend on a
later position.

The analysis takes a graph, the name of the graph input with the time axis, and the requested
outputs. The result is a list of errors, one per op that violates causality. If no op violates
causality, the list is empty and a decode step can be derived.

The proof is local, i.e. each op on which the outputs depend must be causal on its own. During
generation, position t + 1 of an intermediate value does not exist yet. The reported op is therefore
the cause of the violation.

Attention without a mask reads all keys, including later keys. In this example, the `flip` is not
reported because no output depends on it:

    $ causality x y
    graph "g"
    input "x" %0: f32[b, n, 4]
    %1: f32[b, 1, n, 4] = insert(%0) {axis=1}
    %2: f32[b, 1, n, 4], %3: f32[b, 1, n, n] = attend(%1, %1, %1) {scale=0.5, cap=0.0}
    %4: f32[b, n, 4] = flip(%0) {axis=1}
    output "y" %2
    end
    gives
    E0712 `y` cannot be generated along `n`: without a mask, positions attend to later positions

An input default is computed from the current input. When new positions are appended, the values of
the default at earlier positions must not change. A default that has no time axis is computed only
once, so it must not depend on the time axis.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from specc.analysis.attention_causality_messages import format_zero_attention_weights_help
from specc.analysis.causality_messages import (
    describe_causality_violation,
    find_node_span,
    format_op_name,
    make_time_axis_labels,
    make_violation_error,
    make_violation_labels,
)
from specc.analysis.masked_constants import find_nonzero_interval
from specc.analysis.time_axis_prefix_and_chunks import find_chunk_count_symbol
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.analysis.time_dependence_and_unsupported_loops import (
    UNSUPPORTED_NODE_HELPS,
    TimeDataflow,
    UnsupportedNode,
    iterate_unsupported_nodes,
)
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value, collect_required_nodes
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph


def check_causality(
    graph: Graph, symbol: str, time_input: str, outputs: Sequence[str], chunk_size: int = 1
) -> list[Diagnostic]:
    """Return one error (E0711 to E0717) for each op that prevents the generation of `outputs`, in
    graph order. If there are no errors, a decode step can be derived.

    The input `time_input` has a time axis with the symbolic dimension `symbol`. Each step receives
    `chunk_size` positions of this input.
    """
    flow = trace_time_dataflow(graph, symbol, chunk_size)
    output_values = [graph.outputs[name] for name in outputs]
    live_nodes = collect_required_nodes(output_values)
    used_inputs = {a for node in live_nodes for a in node.operands}
    output = next(iter(outputs), "")
    errors = [
        *_check_parameters(graph, flow, used_inputs, output),
        *_check_inputs(graph, flow, used_inputs, output),
    ]
    for violation in flow.violations:
        if violation.node in live_nodes:
            # the error message names the first output that depends on the violating node
            name = next(
                n for n in outputs if violation.node in collect_required_nodes([graph.outputs[n]])
            )
            errors.append(make_violation_error(graph, flow, violation, name, time_input))
    if not errors:
        errors += [
            _make_unsupported_node_error(flow, unsupported)
            for unsupported in iterate_unsupported_nodes(graph, flow, live_nodes)
        ]
        for name, value in zip(outputs, output_values, strict=True):
            errors += _check_output(graph, flow, name, value, time_input)
    return _deduplicate_errors(errors)


def check_streaming_causality(
    graph: Graph, symbol: str, time_input: str, outputs: Sequence[str], chunk_size: int
) -> list[Diagnostic]:
    """Return one error (E0711 to E0717) for each op that prevents streaming of `outputs`. Unlike
    `check_causality`, also reject `same_group` masks, because a chunk may end within a group.
    """
    if has_same_group_mask(graph):
        title = f"`{outputs[0]}` {CANNOT_STREAM} `{symbol}`: a chunk may end within a group"
        helps = ("use the mask `causal` instead of `same_group`",)
        return [Diagnostic("E0712", title, helps=helps)]
    return [
        replace(error, title=error.title.replace(CANNOT_GENERATE, CANNOT_STREAM))
        for error in check_causality(graph, symbol, time_input, outputs, chunk_size)
    ]


CANNOT_GENERATE = "cannot be generated along"
CANNOT_STREAM = "cannot be streamed along"


def has_same_group_mask(graph: Graph) -> bool:
    """Return True if the graph has a `same_group` mask, so that steps must receive whole groups."""
    return any(node.op == ops.Compare("same_group") for node, _ in graph.nodes)


def _deduplicate_errors(errors: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Drop errors with equal code, title and location, e.g. from iterations of an unrolled loop."""
    first_errors: dict[tuple[str, str, Label | None], Diagnostic] = {}
    for error in errors:
        key = (error.code, error.title, error.primary)
        first = first_errors.get(key)
        first_errors[key] = replace(first, count=first.count + error.count) if first else error
    return list(first_errors.values())


def _check_parameters(
    graph: Graph, flow: TimeDataflow, used_inputs: set[Value], output: str
) -> Iterator[Diagnostic]:
    for name, value in graph.parameters.items():
        if value in used_inputs and any(d.symbols() & flow.dependent_symbols for d in value.shape):
            span = graph.parameter_facts[name].span
            yield Diagnostic(
                "E0716",
                f"`{output}` cannot be generated along `{flow.time_symbol}`: the size of "
                "a weight depends on it",
                Label.from_span(span, f"`{name}` is {value.type}"),
                notes=(f"`{name}` is {value.type}",),
                helps=("give the weight a fixed size and index it by position",),
            )


def _check_inputs(
    graph: Graph, flow: TimeDataflow, used_inputs: set[Value], output: str
) -> Iterator[Diagnostic]:
    """Yield E0716 for each input axis that grows with time, but not by one per position."""
    for name, value in graph.inputs.items():
        dependent_lengths = [
            d
            for d in value.shape
            if flow.time_axis.get_prefix_length(d) != 0 and d.symbols() & flow.dependent_symbols
        ]
        if value in used_inputs and dependent_lengths:
            span = graph.input_facts[name].span
            yield Diagnostic(
                "E0716",
                f"`{output}` cannot be generated along `{flow.time_symbol}`: `{name}` has length "
                f"{dependent_lengths[0]}",
                Label.from_span(
                    span,
                    "the positions of this axis cannot be matched to new positions of "
                    f"`{flow.time_symbol}`",
                ),
                helps=(
                    f"declare `{name}` with the length `{flow.time_symbol}`, an independent length "
                    "or a static length",
                ),
            )


def _make_unsupported_node_error(flow: TimeDataflow, unsupported: UnsupportedNode) -> Diagnostic:
    span = find_node_span(unsupported.graph, unsupported.node)
    return Diagnostic(
        "E0717",
        f"cannot derive a decode step along `{flow.time_symbol}`: {unsupported.reason}",
        Label.from_span(span, f"`{format_op_name(unsupported.node.op)}`: {unsupported.reason}"),
        helps=UNSUPPORTED_NODE_HELPS,
    )


def _check_output(
    graph: Graph, flow: TimeDataflow, name: str, value: Value, time_input: str
) -> Iterator[Diagnostic]:
    state = flow.get_state(value)
    title = f"`{name}` cannot be generated along `{flow.time_symbol}`"
    span = find_node_span(graph, value.node)
    if not state.is_time_dependent:
        yield Diagnostic(
            "E0716",
            f"{title}: it does not depend on `{time_input}`",
            Label.from_span(span, "this does not change during generation"),
            helps=(f"compute it from `{time_input}`",),
        )
    if len(state.axes) > 1:
        query, key = sorted(state.axes)[:2]
        interval = find_nonzero_interval(value, query, key, flow.time_axis)
        if interval.low < 0:
            yield Diagnostic(
                "E0712",
                f"{title}: the result contains values for later positions",
                Label.from_span(span, "this has one value per pair of positions"),
                helps=(format_zero_attention_weights_help(value.rank, max(state.axes)),),
            )


def find_time_symbol(graph: Graph, time_input: str, chunk_size: int = 1) -> str | None:
    """Return the symbolic dimension of the time axis of an input. The time axis is axis 1 (after
    the batch axis), or axis 0 of a vector. Return None unless the size of the time axis is
    `chunk_size * symbol`.
    """
    value = graph.inputs[time_input]
    return find_chunk_count_symbol(value, int(value.rank > 1), chunk_size) if value.rank else None


def check_causality_of_defaults(
    graph: Graph, defaults: Graph | None, symbol: str, time_input: str, outputs: Iterable[str]
) -> list[Diagnostic]:
    """Return E0718 for each input default that changes as the time axis grows, if `outputs` depend
    on it.
    """
    if defaults is None:
        return []
    used_inputs = [
        n for n in _list_read_inputs(graph, outputs) if n in defaults.outputs and n != time_input
    ]
    errors: dict[Node | None, Diagnostic] = {}
    for error in _iterate_default_errors(
        build_input_defaults_graph(defaults, [n for n in defaults.outputs if n != time_input]),
        used_inputs,
        symbol,
        time_input,
    ):
        errors.setdefault(*error)
    return list(errors.values())


def _list_read_inputs(graph: Graph, outputs: Iterable[str]) -> list[str]:
    """Return the names of inputs on which `outputs` depend, and of inputs that are outputs."""
    output_values = [graph.outputs[name] for name in outputs]
    used_values = {a for node in collect_required_nodes(output_values) for a in node.args}
    used_values.update(output_values)
    return [n for n, v in graph.inputs.items() if v in used_values]


def _iterate_default_errors(
    defaults: Graph, used_inputs: Iterable[str], symbol: str, time_input: str
) -> Iterator[tuple[Node | None, Diagnostic]]:
    """Yield the first error of each input default, with the node that causes the error."""
    flow = trace_time_dataflow(defaults, symbol)
    axis_labels = make_time_axis_labels(defaults.input_facts.get(time_input), symbol)
    for name in used_inputs:
        value = defaults.outputs[name]
        live_nodes, state = collect_required_nodes([value]), flow.get_state(value)
        violation = next((k for k in flow.violations if k.node in live_nodes), None)
        if violation is None and (state.axes or not state.is_time_dependent):
            continue
        node: Node | None
        if violation:
            message = describe_causality_violation(defaults, violation, flow)
            node, reason, notes = violation.node, message.text, message.notes
            primary, secondary = make_violation_labels(defaults, violation, flow)
        else:
            reason = f"the default is computed from `{time_input}`, which grows during generation"
            node = value.node
            notes, secondary = (f"a default without the axis `{symbol}` is computed once",), ()
            primary = Label.from_span(find_node_span(defaults, node), reason)
        title = f"the default of `{name}` would change during generation: {reason}"
        helps = (
            f"compute it from earlier positions, like `cumsum(x)`, or remove the default `{name}`",
        )
        yield node, Diagnostic("E0718", title, primary, (*secondary, *axis_labels), notes, helps)
