"""Everything that is proved about a graph, in one report for `specc check` and `specc explain`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specc.ir.defaults import closed
from specc.ir.graph import Graph
from specc.ir.interval import Interval
from specc.passes.prove.batch import batch_symbol, mixing
from specc.passes.prove.causality import growing_symbol, prove, prove_stream
from specc.passes.prove.chunks import chunk_of, in_chunks
from specc.passes.prove.defaults import prove_defaults
from specc.passes.prove.every_axis import Along, along_each, fields_of
from specc.passes.prove.flow import flow
from specc.passes.prove.padding import padding
from specc.passes.simplify.inline import inline_defaults
from specc.text.diagnostic import Diagnostic, Label

CONDITION = "if its values are finite and nothing computed from them overflows"
"""What the padding proof takes for granted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """`growing` is the symbol along which the model generates or is streamed, so many
    rows at a time as a `chunk` has; `batch` that of the batch, where there is one.

    `causal` and `apart` are None where there is nothing to prove. `fields` maps each
    output to the reach of its rows along `growing`: how far back it looks. `padded`
    names the inputs that say what is padding. `others` are the other run-time axes.
    """

    growing: str | None
    chunk: int
    causal: bool | None
    fields: Mapping[str, Interval]
    batch: str | None
    apart: bool | None
    padded: tuple[str, ...]
    others: tuple[Along, ...] = ()
    errors: tuple[Diagnostic, ...] = field(default=())
    warnings: tuple[Diagnostic, ...] = field(default=())

    def lines(self) -> list[str]:
        """What `specc check` prints, one fact a line."""
        said = []
        if self.growing and self.causal:
            said += self._causal_lines()
        said += [each.line() for each in self.others]
        if self.batch and self.apart:
            said.append(f"rows of {self.batch} stay apart")
        if self.padded and not any(w.code == "W0601" for w in self.warnings):
            names = ", ".join(self.padded)
            said.append(f"padding stays out of the results ({names}), {CONDITION}")
        return said

    def _causal_lines(self) -> list[str]:
        """That it is causal, and how far back each result looks."""
        by = f", in chunks of {self.chunk} rows" if self.chunk > 1 else ""
        back = _back if self.chunk == 1 else _back_in_chunks
        reaches = self.fields.items()
        return [
            f"causal along {self.growing}{by}",
            *(f"  {name} reads {back(reach)}" for name, reach in reaches),
        ]


def report(
    graph: Graph,
    growing: str | None = None,
    source: str | None = None,
    defaults: Graph | None = None,
    streamed: Sequence[str] = (),
) -> Report:
    """What is proved of `graph`, whose inputs have these `defaults`.

    `growing` names the input that grows, `source` the output drawn from; of a stream
    `streamed` names the outputs that are made as its rows come.
    """
    symbol = growing_symbol(graph, growing) if growing else None
    proved = _Proved()
    if growing is not None:
        wanted = list(streamed) or ([source] if source else list(graph.outputs))
        proved = _proved(graph, growing, wanted, bool(streamed))
        if symbol and not proved.errors:
            proved.errors = prove_defaults(graph, defaults, symbol, growing, wanted)
    inside = inline_defaults(graph, defaults) if defaults else graph
    batch = batch_symbol(inside)
    mixed = mixing(inside, batch) if batch else []
    return Report(
        growing=symbol,
        chunk=proved.chunk,
        causal=not proved.errors if symbol else None,
        fields=proved.fields,
        batch=batch,
        apart=not mixed if batch else None,
        padded=tuple(n for n, f in graph.input_facts.items() if f.keep),
        others=() if proved.errors else tuple(along_each(graph, (symbol, batch))),
        errors=tuple(proved.errors),
        warnings=(*mixed, *padding(_computed(graph, defaults))),
    )


@dataclass
class _Proved:
    """What is known along the axis that grows."""

    chunk: int = 1
    errors: list[Diagnostic] = field(default_factory=list)
    fields: Mapping[str, Interval] = field(default_factory=dict)


def _proved(
    graph: Graph, growing: str, wanted: Sequence[str], streamed: bool
) -> _Proved:
    """Whether results can be drawn from, or made while rows come: of whole chunks."""
    symbol = growing_symbol(graph, growing)
    if symbol is None:
        return _Proved(errors=[_cannot_grow(graph, growing)])
    if not streamed:
        faults = prove(graph, symbol, growing, wanted)
        return _Proved(1, faults, fields_of(graph, flow(graph, symbol)))
    chunk = chunk_of(graph, symbol, wanted)
    whole = in_chunks(graph, symbol, chunk)
    faults = prove_stream(whole, symbol, growing, wanted, chunk)
    return _Proved(chunk, faults, fields_of(whole, flow(whole, symbol, chunk)))


def _computed(graph: Graph, defaults: Graph | None) -> Graph:
    """The graph with what follows from other inputs inside, but for what says which rows exist."""
    names = (
        [
            n
            for n in defaults.outputs
            if n in graph.inputs and not graph.input_facts[n].keep
        ]
        if defaults
        else []
    )
    return (
        inline_defaults(graph, closed(defaults, names)) if defaults and names else graph
    )


def _cannot_grow(graph: Graph, growing: str) -> Diagnostic:
    span = graph.input_facts[growing].span
    return Diagnostic(
        "E0702",
        f"`{growing}` cannot grow: it has no axis behind the batch whose length is a "
        "run-time length",
        Label(span, f"this is {graph.inputs[growing].type}") if span else None,
        helps=("give it the axes [batch, length], the length from `dims`",),
    )


def _back_in_chunks(reach: Interval) -> str:
    if reach.empty or reach.hi == float("inf"):
        return "all rows before it"
    # Up to the last row of the chunk that it stands for.
    return f"the last {int(reach.hi) + 1} rows that came in"


def _back(reach: Interval) -> str:
    if reach.empty:
        return "no rows"
    if reach.hi == float("inf"):
        return "all rows before it"
    if reach.hi == 0:
        return "its own row"
    return f"its own row and {int(reach.hi)} before it"
