"""What lengths a model takes: what a spec promises of them, and what its tables hold."""

from specc.data.check import Bound
from specc.ir.graph import Graph
from specc.passes.measure.limits import limits, rows_taken


def bounds_of(graph: Graph) -> dict[str, Bound]:
    """What each length may be: what `dims` promises and what is taken of it, and what a
    table of positions holds.
    """
    most, taken = limits(graph), rows_taken(graph)
    bounds = {}
    for symbol in {*graph.least, *most, *taken}:
        limit, rows = most.get(symbol), taken.get(symbol, 0)
        reasons = []
        if symbol in graph.least:
            reasons.append(f"`dims` promises {symbol} >= {graph.least[symbol]}")
        if rows:
            reasons.append(f"rows are taken that are there from {symbol} = {rows} on")
        if limit:
            reasons.append(limit.reason)
        bounds[symbol] = Bound(
            max(graph.least.get(symbol, 0), rows),
            limit.most if limit else None,
            "; ".join(reasons),
        )
    return bounds
