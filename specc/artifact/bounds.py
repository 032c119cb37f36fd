"""What lengths a model takes: what a spec promises of them, and what its tables hold."""

from collections.abc import Mapping

from specc.data.check import Bound
from specc.ir.dim import DimError
from specc.ir.dim_text import parse_dim
from specc.ir.graph import Graph
from specc.passes.measure.limits import divided, limits, most_of, rows_taken, shared


def bounds_of(graph: Graph) -> dict[str, Bound]:
    """What each length may be: what `dims` promises and what is taken of it, and what a
    table of positions holds, also of several together.
    """
    most, taken = limits(graph), rows_taken(graph)
    # Of several lengths together, under the text of their sum.
    bounds = {
        text: Bound(0, limit.most, limit.reason)
        for text, limit in shared(graph).items()
    }
    for text, quotient in divided(graph).items():
        bounds[text] = Bound(0, 0, f"`{quotient[1:-1]}` is a length of this model")
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


def context_of(
    bounds: Mapping[str, Bound], symbol: str, known: Mapping[str, int]
) -> int | None:
    """The most that `symbol` may be beside other lengths that are `known`; None where
    nothing says.
    """
    found = []
    for text, bound in bounds.items():
        try:
            length = parse_dim(text)
        except DimError:  # a package may have come from anywhere
            continue
        told = length.symbols() - {symbol} <= known.keys()
        if symbol in length.symbols() and bound.high is not None and told:
            found.append(most_of(length, symbol, known, bound.high))
    return min(found, default=None)
