"""Everything that is proved about a graph, in one report for `specc check` and `specc explain`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.ir.defaults import closed
from specc.ir.graph import Graph
from specc.ir.interval import Interval
from specc.passes.prove.batch import batch_symbol, mixing
from specc.passes.prove.causality import growing_symbol, prove
from specc.passes.prove.defaults import prove_defaults
from specc.passes.prove.every_axis import Along, along_each, fields_of
from specc.passes.prove.flow import flow
from specc.passes.prove.padding import padding
from specc.passes.simplify.inline import inline_defaults
from specc.text.diagnostic import Diagnostic, Label


@dataclass(frozen=True, kw_only=True)
class Report:
    """`growing` is the symbol along which the model generates, `batch` that of the
    batch, where there is one.

    `causal` and `apart` are None where there is nothing to prove. `fields` maps each
    output to the reach of its rows along `growing`: how far back it looks. `padded`
    names the inputs that say what is padding. `others` are the other run-time axes.
    """

    growing: str | None
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
            said.append(f"causal along {self.growing}")
            said += [
                f"  {name} reads {_back(reach)}" for name, reach in self.fields.items()
            ]
        said += [each.line() for each in self.others]
        if self.batch and self.apart:
            said.append(f"rows of {self.batch} stay apart")
        if self.padded and not any(w.code == "W0601" for w in self.warnings):
            said.append(f"padding stays out of the results ({', '.join(self.padded)})")
        return said


def report(
    graph: Graph,
    growing: str | None = None,
    source: str | None = None,
    defaults: Graph | None = None,
) -> Report:
    """What is proved of `graph`, whose inputs have these `defaults`.

    `growing` names the input that grows, `source` the output drawn from.
    """
    symbol = growing_symbol(graph, growing) if growing else None
    errors: list[Diagnostic] = []
    fields: dict[str, Interval] = {}
    if growing and not symbol:
        errors = [_cannot_grow(graph, growing)]
    if symbol and growing:
        wanted = [source] if source else list(graph.outputs)
        errors = prove(graph, symbol, growing, wanted) or prove_defaults(
            graph, defaults, symbol, growing, wanted
        )
        fields = fields_of(graph, flow(graph, symbol))
    inside = inline_defaults(graph, defaults) if defaults else graph
    batch = batch_symbol(inside)
    mixed = mixing(inside, batch) if batch else []
    return Report(
        growing=symbol,
        causal=not errors if symbol else None,
        fields=fields,
        batch=batch,
        apart=not mixed if batch else None,
        padded=tuple(n for n, f in graph.input_facts.items() if f.keep),
        others=() if errors else tuple(along_each(graph, (symbol, batch))),
        errors=tuple(errors),
        warnings=(*mixed, *padding(_computed(graph, defaults))),
    )


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


def _back(reach: Interval) -> str:
    if reach.empty:
        return "no rows"
    if reach.hi == float("inf"):
        return "all rows before it"
    if reach.hi == 0:
        return "its own row"
    return f"its own row and {int(reach.hi)} before it"
