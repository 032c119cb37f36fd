"""Run the static analyses of `specc check` and `specc explain`, and format their results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specc.analysis.batch_independence import check_batch_independence, find_batch_symbol
from specc.analysis.causality import (
    check_causality,
    check_causality_of_defaults,
    check_streaming_causality,
    find_time_symbol,
    has_same_group_mask,
)
from specc.analysis.causality_messages import (
    describe_causality_violation,
    find_node_span,
    format_op_name,
    make_violation_labels,
)
from specc.analysis.mask_bands import find_band_interval
from specc.analysis.padding_check import check_padding
from specc.analysis.time_axis_prefix_and_chunks import compute_chunk_size, express_length_in_chunks
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.analysis.time_dependence_and_unsupported_loops import CausalityViolation, TimeDataflow
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.graph import Graph, Value, collect_required_nodes
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph, inline_defaults
from specc.ir.types import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisCausality:
    """The result of a causality check along the axis with the symbolic dimension `symbol`.

    `is_causal` is None if no output has this axis. `reason` describes the op that reads later
    positions. `is_bidirectional` is True if attention reads later positions and the graph has no
    causal mask, as in an encoder. `receptive_fields` maps each output to its receptive field along
    the axis.
    """

    symbol: str
    is_causal: bool | None
    reason: str = ""
    is_bidirectional: bool = False
    receptive_fields: Mapping[str, Interval]

    def format_line(self) -> str:
        """Format this result as the line that `specc check` prints."""
        if self.is_causal is None:
            return f"every output depends on all positions of {self.symbol}"
        if self.is_causal:
            return f"causal along {self.symbol}"
        kind = "bidirectional" if self.is_bidirectional else "not causal"
        return f"{kind} along {self.symbol}: {self.reason}"


def check_causality_of_dynamic_axes(
    graph: Graph, excluded: tuple[str | None, ...]
) -> Iterator[AxisCausality]:
    """Check causality along each dynamic axis of the inputs, except the axes in `excluded`."""
    lengths = [
        dim.name
        for value in graph.inputs.values()
        for dim in value.shape
        if dim.name and dim.name not in excluded
    ]
    for symbol in dict.fromkeys(lengths):
        yield check_axis_causality(graph, symbol)


def check_axis_causality(graph: Graph, symbol: str) -> AxisCausality:
    """Check causality along the axis with the symbolic dimension `symbol`."""
    flow = trace_time_dataflow(graph, symbol)
    fields = compute_receptive_fields(graph, flow)
    if not fields:
        return AxisCausality(symbol=symbol, is_causal=None, receptive_fields={})
    live = collect_required_nodes(graph.outputs[name] for name in fields)
    violation = next((candidate for candidate in flow.violations if candidate.node in live), None)
    if violation is not None:
        # report the violating op only if the model is probably meant to be causal
        is_bidirectional = _is_attention(violation) and not _has_causal_mask(graph, symbol)
        return AxisCausality(
            symbol=symbol,
            is_causal=False,
            reason="outputs may depend on later positions"
            if is_bidirectional
            else _format_violation_reason(graph, violation, flow),
            is_bidirectional=is_bidirectional,
            receptive_fields=fields,
        )
    acausal_output = next((n for n, interval in fields.items() if interval.low < 0), "")
    reason = f"`{acausal_output}` reads later positions" if acausal_output else ""
    return AxisCausality(
        symbol=symbol, is_causal=not acausal_output, reason=reason, receptive_fields=fields
    )


def _is_attention(violation: CausalityViolation) -> bool:
    """Return True if the violating op is attention, even if the attention is inside a loop body."""
    while violation.body_violation:
        _, violation = violation.body_violation
    return isinstance(violation.node.op, ops.Attend | ops.AttentionNormalizer)


def _has_causal_mask(graph: Graph, symbol: str) -> bool:
    """Return True if the graph compares query and key positions along the axis `symbol` such that
    all later positions are excluded, or all except the next position.
    """
    comparisons = (values for node, values in graph.nodes if isinstance(node.op, ops.Compare))
    return any(_is_causal_mask(value, symbol) for values in comparisons for value in values)


def _is_causal_mask(mask: Value, symbol: str) -> bool:
    rank = len(mask.shape)
    is_square = [dim.name for dim in mask.shape[-2:]] == [symbol, symbol]
    # a lower bound of -1 indicates a causal mask with an off-by-one error
    return is_square and find_band_interval(mask, rank - 2, rank - 1).low >= -1


def compute_receptive_fields(graph: Graph, flow: TimeDataflow) -> dict[str, Interval]:
    """Return the receptive field of each output that has a time axis. For an attention map, the
    time axis is the query axis.
    """
    axes = {name: flow.get_state(value).axes for name, value in graph.outputs.items()}
    return {name: intervals[min(intervals)] for name, intervals in axes.items() if intervals}


def _format_violation_reason(
    graph: Graph, violation: CausalityViolation, flow: TimeDataflow
) -> str:
    """Format a causality violation, e.g. "`attend` (bert.specc:88:9): the mask is not proved …"."""
    primary, _ = make_violation_labels(graph, violation, flow)
    span = primary.span if primary else find_node_span(graph, violation.node)
    # an error inside std is reported at the call in the user's spec
    location = f" ({span.caller or span})" if span else ""
    description = describe_causality_violation(graph, violation, flow).text
    return f"`{format_op_name(violation.node.op)}`{location}: {description}"


FINITE_VALUES_CONDITION = "if padded values are finite and cause no overflow"
"""The assumption of the padding analysis, phrased for use in messages."""


@dataclass(frozen=True, kw_only=True)
class AnalysisReport:
    """The results of all analyses of a graph.

    `time_symbol` is the symbolic dimension of the time axis, along which the model generates or
    streams, and `chunk_size` is the number of positions per step. `batch_symbol` is the symbolic
    dimension of the batch axis, or None if there is no batch axis. `is_causal` is None if there is
    no time axis, and `is_batch_independent` is None if there is no batch axis. `receptive_fields`
    maps each output to its receptive field along the time axis. `padding_masks` maps the padding
    masks of dynamic axes to the side on which padding is assumed: `left`, `right` or `any`.
    `other_axes` contains the causality results for dynamic axes other than the time and batch axes.
    `has_same_group_mask` is True if the graph contains a `same_group` mask.
    """

    time_symbol: str | None
    chunk_size: int
    is_causal: bool | None
    receptive_fields: Mapping[str, Interval]
    batch_symbol: str | None
    is_batch_independent: bool | None
    padding_masks: Mapping[str, str]
    other_axes: tuple[AxisCausality, ...] = ()
    has_same_group_mask: bool = False
    errors: tuple[Diagnostic, ...] = field(default=())
    warnings: tuple[Diagnostic, ...] = field(default=())

    def format_lines(self) -> list[str]:
        """Return the lines that `specc check` prints, one per analysis result."""
        lines = []
        if self.time_symbol and self.is_causal:
            lines += self._format_causality_lines()
        lines += [each.format_line() for each in self.other_axes]
        if self.batch_symbol and self.is_batch_independent:
            lines.append("batch elements are independent")
        return [*lines, *self._format_padding_lines()]

    def _format_padding_lines(self) -> list[str]:
        """Format the line that states that padding has no effect, if this has been proved."""
        if not self.padding_masks or any(w.code == "W0601" for w in self.warnings):
            return []
        names = ", ".join(
            f"{name}: padding on the {side}" if side in ("left", "right") else name
            for name, side in self.padding_masks.items()
        )
        return [f"padding does not affect the outputs ({names}), {FINITE_VALUES_CONDITION}"]

    def _format_causality_lines(self) -> list[str]:
        """Format lines that state whether each output is causal, and its receptive field."""
        suffix = f", in chunks of {self.chunk_size} positions" if self.chunk_size > 1 else ""
        format_field = (
            _format_receptive_field if self.chunk_size == 1 else _format_chunked_receptive_field
        )
        fields = self.receptive_fields.items()
        return [
            f"causal along {self.time_symbol}{suffix}",
            *(f"  {format_field(name, interval)}" for name, interval in fields),
            *(
                ["  positions of a group arrive in one step (same_group)"]
                * self.has_same_group_mask
            ),
        ]


def analyze_graph(
    graph: Graph,
    time_input: str | None = None,
    logits_output: str | None = None,
    defaults: Graph | None = None,
    streamed_outputs: Sequence[str] = (),
) -> AnalysisReport:
    """Run all analyses on `graph`, whose input defaults are `defaults`.

    `time_input` is the input with the time axis, and `logits_output` is the output from which
    tokens are sampled. A streaming model computes `streamed_outputs` as its input arrives.
    """
    symbol = find_time_symbol(graph, time_input) if time_input else None
    chunk_size, errors, fields = 1, list[Diagnostic](), dict[str, Interval]()
    if time_input and symbol is None:
        errors = [_make_no_time_axis_error(graph, time_input)]
    elif time_input and symbol:
        names = streamed_outputs or ([logits_output] if logits_output else list(graph.outputs))
        chunk_size, errors, fields = _check_time_axis(
            graph, symbol, time_input, names, is_streaming=bool(streamed_outputs)
        )
        errors = errors or check_causality_of_defaults(graph, defaults, symbol, time_input, names)
    inlined_graph = inline_defaults(graph, defaults) if defaults else graph
    batch_symbol = find_batch_symbol(inlined_graph)
    batch_warnings = check_batch_independence(inlined_graph, batch_symbol) if batch_symbol else []
    return AnalysisReport(
        time_symbol=symbol,
        chunk_size=chunk_size,
        is_causal=not errors if symbol else None,
        receptive_fields=fields,
        batch_symbol=batch_symbol,
        is_batch_independent=not batch_warnings if batch_symbol else None,
        padding_masks=_find_padding_masks(graph),
        has_same_group_mask=has_same_group_mask(graph),
        other_axes=()
        if errors
        else tuple(check_causality_of_dynamic_axes(graph, (symbol, batch_symbol))),
        errors=tuple(errors),
        warnings=(*batch_warnings, *check_padding(_inline_computed_inputs(graph, defaults))),
    )


def _find_padding_masks(graph: Graph) -> dict[str, str]:
    """Return the padding side of every padding mask over a dynamic axis, keyed by input name."""
    return {
        name: facts.padding_side
        for name, facts in graph.input_facts.items()
        if facts.padding_side and any(d.number is None for d in graph.inputs[name].shape[-1:])
    }


def _check_time_axis(
    graph: Graph, symbol: str, time_input: str, outputs: Sequence[str], *, is_streaming: bool
) -> tuple[int, list[Diagnostic], dict[str, Interval]]:
    """Check whether the model can generate or stream `outputs` along the time axis of `time_input`.
    Return the chunk size, the errors and the receptive fields.
    """
    chunk_size = compute_chunk_size(graph, symbol, outputs) if is_streaming else 1
    graph = express_length_in_chunks(graph, symbol, chunk_size)
    check = check_streaming_causality if is_streaming else check_causality
    errors = check(graph, symbol, time_input, outputs, chunk_size)
    # `check_causality` has already traced and cached the dataflow
    flow = trace_time_dataflow(graph, symbol, chunk_size)
    return chunk_size, errors, compute_receptive_fields(graph, flow)


def _inline_computed_inputs(graph: Graph, defaults: Graph | None) -> Graph:
    """Inline input defaults that are computed from other inputs, except those of padding masks."""
    names = [
        n
        for n in (defaults.outputs if defaults else ())
        if n in graph.inputs and not graph.input_facts[n].padding_side
    ]
    return (
        inline_defaults(graph, build_input_defaults_graph(defaults, names))
        if defaults and names
        else graph
    )


def _make_no_time_axis_error(graph: Graph, time_input: str) -> Diagnostic:
    span = graph.input_facts[time_input].span
    return Diagnostic(
        "E0702",
        f"`{time_input}` has no time axis: no axis after the batch has a dynamic length",
        Label.from_span(span, f"this is {graph.inputs[time_input].type}"),
        helps=("declare it with the axes [batch, length], where `length` is declared in `dims`",),
    )


def _format_chunked_receptive_field(name: str, field: Interval) -> str:
    if field.is_empty or field.high == float("inf"):
        return f"{name} depends on all previous input positions"
    # the receptive field extends to the last position of the same chunk
    return f"{name} depends on the last {int(field.high) + 1} input positions"


def _format_receptive_field(name: str, field: Interval) -> str:
    if field.is_empty:
        return f"{name} depends on no position"
    if field.high == float("inf"):
        return f"{name}[t] depends on positions <= t"
    if field.high == 0:
        return f"{name}[t] depends on position t"
    return f"{name}[t] depends on positions t-{int(field.high)} to t"
