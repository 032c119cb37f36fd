"""Bounds on sequence lengths: `dims`, position tables."""

from collections.abc import Mapping

from specc.analysis.length_limits import (
    compute_max_length,
    find_divisibility_constraints,
    find_joint_length_limits,
    find_length_limits,
    find_min_lengths,
)
from specc.ir.dim import DimError
from specc.ir.dim_parser import parse_dim
from specc.ir.graph import Graph
from specc.preprocessing.input_checks import LengthBound


def find_length_bounds(graph: Graph) -> dict[str, LengthBound]:
    """What each length may be: what `dims` promises and what is taken of it, and what a
    table of positions holds, also of several together.
    """
    most, taken = find_length_limits(graph), find_min_lengths(graph)
    # Of several lengths together, under the text of their sum.
    bounds = {
        text: LengthBound(0, limit.most, limit.reason)
        for text, limit in find_joint_length_limits(graph).items()
    }
    for text, quotient in find_divisibility_constraints(graph).items():
        bounds[text] = LengthBound(0, 0, f"`{quotient[1:-1]}` is a length of this model")
    for symbol in {*graph.least, *most, *taken}:
        limit, rows = most.get(symbol), taken.get(symbol, 0)
        reasons = []
        if symbol in graph.least:
            reasons.append(f"`dims` promises {symbol} >= {graph.least[symbol]}")
        if rows:
            reasons.append(f"rows are taken that are there from {symbol} = {rows} on")
        if limit:
            reasons.append(limit.reason)
        bounds[symbol] = LengthBound(
            max(graph.least.get(symbol, 0), rows), limit.most if limit else None, "; ".join(reasons)
        )
    return bounds


def max_context_length(
    bounds: Mapping[str, LengthBound], symbol: str, known: Mapping[str, int]
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
            found.append(compute_max_length(length, symbol, known, bound.high))
    return min(found, default=None)
