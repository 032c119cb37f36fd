"""Causality along every run-time axis of a graph, also where nothing is generated: a fact
for the reader, never an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specc.ir.graph import Graph, needed
from specc.ir.interval import Interval
from specc.passes.prove.causality import labels_of, span_of, spoken
from specc.passes.prove.flow import Flow, flow
from specc.passes.prove.leaks import said_of
from specc.passes.prove.moving import Leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Along:
    """What holds along the axis `symbol`.

    `causal` is None where no result has rows along it. `why` says what looks ahead, and
    where. `fields` maps each result to how far back its rows look.
    """

    symbol: str
    causal: bool | None
    why: str = ""
    fields: Mapping[str, Interval]

    def line(self) -> str:
        """What `specc check` says."""
        if self.causal is None:
            return f"every result reads all of {self.symbol}"
        if self.causal:
            return f"causal along {self.symbol}"
        return f"not causal along {self.symbol}: {self.why}"


def along_each(graph: Graph, besides: tuple[str | None, ...]) -> Iterator[Along]:
    """The facts for each run-time length that an input has, in the order of the inputs,
    `besides` some.
    """
    lengths = [
        dim.name
        for value in graph.inputs.values()
        for dim in value.type.shape
        if dim.name and dim.name not in besides
    ]
    for symbol in dict.fromkeys(lengths):
        yield along(graph, symbol)


def along(graph: Graph, symbol: str) -> Along:
    """The fact for one axis."""
    found = flow(graph, symbol)
    fields = fields_of(graph, found)
    if not fields:
        return Along(symbol=symbol, causal=None, fields={})
    live = needed(graph.outputs[name] for name in fields)
    leak = next((each for each in found.leaks if each.node in live), None)
    if leak is not None:
        return Along(
            symbol=symbol, causal=False, why=_why(graph, leak, found), fields=fields
        )
    ahead = next((n for n, reach in fields.items() if reach.lo < 0), "")
    why = f"`{ahead}` reads later rows" if ahead else ""
    return Along(symbol=symbol, causal=not ahead, why=why, fields=fields)


def fields_of(graph: Graph, found: Flow) -> dict[str, Interval]:
    """How far back the rows of each output look; of a map of attention, its queries."""
    axes = {name: found.state(value).axes for name, value in graph.outputs.items()}
    return {name: reach[min(reach)] for name, reach in axes.items() if reach}


def _why(graph: Graph, leak: Leak, found: Flow) -> str:
    """`attend` (bert.specc:88:9): nothing shows that its mask hides later positions."""
    primary, _ = labels_of(graph, leak, found)
    span = primary.span if primary else span_of(graph, leak.node)
    # a fault in std is the user's own call first
    place = f" ({span.caller or span})" if span else ""
    what = said_of(graph, leak, found).what
    return f"`{spoken(leak.node.op)}`{place}: {what}"
