"""Run all analyses for `specc check` and `specc explain`, with causality per axis."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specc.analysis.batch_independence import check_batch_independence, find_batch_symbol
from specc.analysis.causality import (
    check_causality,
    check_default_causality,
    check_streaming_causality,
    find_node_span,
    find_time_symbol,
    format_op_name,
    has_groups,
    make_leak_labels,
)
from specc.analysis.causality_messages import describe_leak
from specc.analysis.padding_check import check_padding
from specc.analysis.time_axis import compute_chunk_size, substitute_chunked_length
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.analysis.time_dataflow_facts import Leak, TimeFlow
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir.graph import Graph, collect_needed_nodes
from specc.ir.model import inline_defaults, resolve_absent_inputs
from specc.ir.types import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisCausality:
    """Causality along the axis `symbol`.

    `causal` is None if no output has this axis. `reason` names the op that reads later positions.
    `fields` maps each output to its receptive field.
    """

    symbol: str
    causal: bool | None
    reason: str = ""
    fields: Mapping[str, Interval]

    def line(self) -> str:
        """Return the line that `specc check` prints."""
        if self.causal is None:
            return f"every output depends on all positions of {self.symbol}"
        if self.causal:
            return f"causal along {self.symbol}"
        return f"not causal along {self.symbol}: {self.reason}"


def check_each_axis(graph: Graph, besides: tuple[str | None, ...]) -> Iterator[AxisCausality]:
    """Yield the causality of each dynamic length of an input, in input order, except `besides`."""
    lengths = [
        dim.name
        for value in graph.inputs.values()
        for dim in value.shape
        if dim.name and dim.name not in besides
    ]
    for symbol in dict.fromkeys(lengths):
        yield check_axis_causality(graph, symbol)


def check_axis_causality(graph: Graph, symbol: str) -> AxisCausality:
    """Return the causality along one axis."""
    found = trace_time_dataflow(graph, symbol)
    fields = compute_receptive_fields(graph, found)
    if not fields:
        return AxisCausality(symbol=symbol, causal=None, fields={})
    live = collect_needed_nodes(graph.outputs[name] for name in fields)
    leak = next((each for each in found.leaks if each.node in live), None)
    if leak is not None:
        return AxisCausality(
            symbol=symbol, causal=False, reason=_explain_leak(graph, leak, found), fields=fields
        )
    ahead = next((n for n, reach in fields.items() if reach.lo < 0), "")
    why = f"`{ahead}` reads later rows" if ahead else ""
    return AxisCausality(symbol=symbol, causal=not ahead, reason=why, fields=fields)


def compute_receptive_fields(graph: Graph, found: TimeFlow) -> dict[str, Interval]:
    """Return how far back the positions of each output look; for attention maps, their queries."""
    axes = {name: found.state(value).axes for name, value in graph.outputs.items()}
    return {name: reach[min(reach)] for name, reach in axes.items() if reach}


def _explain_leak(graph: Graph, leak: Leak, found: TimeFlow) -> str:
    """`attend` (bert.specc:88:9): its mask is not proved to exclude later positions."""
    primary, _ = make_leak_labels(graph, leak, found)
    span = primary.span if primary else find_node_span(graph, leak.node)
    # for an error inside std, the user's own call comes first
    place = f" ({span.caller or span})" if span else ""
    what = describe_leak(graph, leak, found).what
    return f"`{format_op_name(leak.node.op)}`{place}: {what}"


FINITE_VALUES_CONDITION = "if its values are finite and nothing computed from them overflows"
"""The assumption of the padding proof."""


@dataclass(frozen=True, kw_only=True)
class AnalysisReport:
    """Results of all analyses of a graph.

    `growing` is the symbol of the time axis along which the model generates or streams, `chunk`
    its positions per step; `batch` is the symbol of the batch, if there is one. `causal` and
    `is_batch_independent` are None if there is nothing to prove. `fields`
    maps each output to its receptive field along `growing`. `padded` names the padding masks.
    `others` are the other dynamic axes. `grouped`: a mask is `same_group`.
    """

    growing: str | None
    chunk: int
    causal: bool | None
    fields: Mapping[str, Interval]
    batch: str | None
    is_batch_independent: bool | None
    padded: tuple[str, ...]
    others: tuple[AxisCausality, ...] = ()
    grouped: bool = False
    errors: tuple[Diagnostic, ...] = field(default=())
    warnings: tuple[Diagnostic, ...] = field(default=())

    def lines(self) -> list[str]:
        """Return the lines that `specc check` prints, one fact per line."""
        said = []
        if self.growing and self.causal:
            said += self._causal_lines()
        said += [each.line() for each in self.others]
        if self.batch and self.is_batch_independent:
            said.append("batch elements are independent")
        if self.padded and not any(w.code == "W0601" for w in self.warnings):
            names = ", ".join(self.padded)
            said.append(f"padding does not affect the outputs ({names}), {FINITE_VALUES_CONDITION}")
        return said

    def _causal_lines(self) -> list[str]:
        """Return the lines on causality and the receptive field of each output."""
        by = f", in chunks of {self.chunk} positions" if self.chunk > 1 else ""
        format_field = _format_field if self.chunk == 1 else _format_chunked_field
        reaches = self.fields.items()
        return [
            f"causal along {self.growing}{by}",
            *(f"  {format_field(name, reach)}" for name, reach in reaches),
            *(["  positions of a group arrive in one step (same_group)"] * self.grouped),
        ]


def analyze_graph(
    graph: Graph,
    growing: str | None = None,
    source: str | None = None,
    defaults: Graph | None = None,
    streamed: Sequence[str] = (),
) -> AnalysisReport:
    """Run all analyses on `graph`, whose inputs have these `defaults`.

    `growing` is the input with the time axis, `source` the output that tokens are chosen from; for
    a streaming model `streamed` are the outputs computed as input arrives.
    """
    symbol = find_time_symbol(graph, growing) if growing else None
    proved = _TimeAxisFacts()
    if growing is not None:
        wanted = list(streamed) or ([source] if source else list(graph.outputs))
        proved = _check_time_axis(graph, growing, wanted, bool(streamed))
        if symbol and not proved.errors:
            proved.errors = check_default_causality(graph, defaults, symbol, growing, wanted)
    inside = inline_defaults(graph, defaults) if defaults else graph
    batch = find_batch_symbol(inside)
    mixed = check_batch_independence(inside, batch) if batch else []
    return AnalysisReport(
        growing=symbol,
        chunk=proved.chunk,
        causal=not proved.errors if symbol else None,
        fields=proved.fields,
        batch=batch,
        is_batch_independent=not mixed if batch else None,
        padded=tuple(n for n, f in graph.input_facts.items() if f.keep),
        grouped=has_groups(graph),
        others=() if proved.errors else tuple(check_each_axis(graph, (symbol, batch))),
        errors=tuple(proved.errors),
        warnings=(*mixed, *check_padding(_inline_computed_inputs(graph, defaults))),
    )


@dataclass
class _TimeAxisFacts:
    """Facts about the time axis."""

    chunk: int = 1
    errors: list[Diagnostic] = field(default_factory=list)
    fields: Mapping[str, Interval] = field(default_factory=dict)


def _check_time_axis(
    graph: Graph, growing: str, wanted: Sequence[str], streamed: bool
) -> _TimeAxisFacts:
    """Check whether the model can generate or stream along the time axis of `growing`."""
    symbol = find_time_symbol(graph, growing)
    if symbol is None:
        return _TimeAxisFacts(errors=[_report_no_time_axis(graph, growing)])
    if not streamed:
        faults = check_causality(graph, symbol, growing, wanted)
        return _TimeAxisFacts(
            1, faults, compute_receptive_fields(graph, trace_time_dataflow(graph, symbol))
        )
    chunk = compute_chunk_size(graph, symbol, wanted)
    whole = substitute_chunked_length(graph, symbol, chunk)
    faults = check_streaming_causality(whole, symbol, growing, wanted, chunk)
    return _TimeAxisFacts(
        chunk, faults, compute_receptive_fields(whole, trace_time_dataflow(whole, symbol, chunk))
    )


def _inline_computed_inputs(graph: Graph, defaults: Graph | None) -> Graph:
    """Return the graph with inputs that follow from other inputs inlined, except padding masks."""
    names = (
        [n for n in defaults.outputs if n in graph.inputs and not graph.input_facts[n].keep]
        if defaults
        else []
    )
    return (
        inline_defaults(graph, resolve_absent_inputs(defaults, names))
        if defaults and names
        else graph
    )


def _report_no_time_axis(graph: Graph, growing: str) -> Diagnostic:
    span = graph.input_facts[growing].span
    return Diagnostic(
        "E0702",
        f"`{growing}` has no time axis: it has no axis after the batch whose length is a "
        "run-time length",
        Label.at(span, f"this is {graph.inputs[growing].type}"),
        helps=("give it the axes [batch, length], with a length of `dims`",),
    )


def _format_chunked_field(name: str, field: Interval) -> str:
    if field.is_empty or field.hi == float("inf"):
        return f"{name} depends on all previous input positions"
    # up to the last position of its chunk
    return f"{name} depends on the last {int(field.hi) + 1} input positions"


def _format_field(name: str, field: Interval) -> str:
    if field.is_empty:
        return f"{name} depends on no position"
    if field.hi == float("inf"):
        return f"{name}[t] depends on positions <= t"
    if field.hi == 0:
        return f"{name}[t] depends on position t"
    return f"{name}[t] depends on positions t-{int(field.hi)} to t"
