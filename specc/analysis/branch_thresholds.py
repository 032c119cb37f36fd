"""Lengths from which constants in masks, position buckets and caches take effect."""

from collections.abc import Iterator

from specc.ir import ops
from specc.ir.dim import Dim, DimFunction
from specc.ir.graph import Graph, Node, Value
from specc.ir.length_constraints import iterate_nested_nodes

MAX_THRESHOLD = 4096
"""Larger constants are no distances between positions: minus infinity, a RoPE base."""

_ELEMENTWISE = (ops.Arith, ops.Compare, ops.Pointwise, ops.And, ops.Or, ops.Not)


def find_position_constants(graph: Graph) -> dict[str, int]:
    """Return the largest constant, rounded up, that positions along each symbol are
    compared or combined with, or that a length of it is clipped by.

    `abs(i - j) < 8` over an axis `n` gives 8 for `n`: shorter sequences do not tell
    `8` from `9`.
    """
    found: dict[str, int] = {}

    def add(symbols: frozenset[str], number: float) -> None:
        size = abs(number)
        if 1 < size <= MAX_THRESHOLD:
            for symbol in symbols:
                found[symbol] = max(found.get(symbol, 0), int(-(-size // 1)))

    positions: dict[Value, frozenset[str]] = {}
    for node, results in iterate_nested_nodes(graph):
        symbols = _find_position_symbols(node, positions)
        if symbols:
            positions |= dict.fromkeys(results, symbols)
            for number in _iterate_constants(node):
                add(symbols, number)
        for length in (d for r in results for d in r.type.shape):
            for clipped in _iterate_clip_bounds(length):
                add(frozenset(length.symbols()), clipped)
    known = {s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()}
    return {s: n for s, n in found.items() if s in known}


def _find_position_symbols(node: Node, known: dict[Value, frozenset[str]]) -> frozenset[str]:
    """Return the symbols of the axes whose positions the results of a node count."""
    match node.op:
        case ops.Range(length=length):
            return frozenset(length.symbols())
        case ops.Extent(axis=axis):
            x = node.args[0]
            return frozenset(x.type.shape[axis].symbols()) if x else frozenset()
    if node.op.view or isinstance(node.op, (*_ELEMENTWISE, ops.Cast)):
        return frozenset().union(*(known.get(a, frozenset()) for a in node.args if a))
    return frozenset()


def _iterate_constants(node: Node) -> Iterator[float]:
    """Yield the constant operands of a sum, product or comparison."""
    if isinstance(node.op, ops.Arith | ops.Compare):
        for value in node.args:
            while (
                value and value.node and (value.node.op.view or isinstance(value.node.op, ops.Cast))
            ):
                if isinstance(value.node.op, ops.Constant):
                    yield float(value.node.op.value)
                    break
                value = value.node.args[0] if value.node.args else None


def _iterate_clip_bounds(length: Dim) -> Iterator[int]:
    """Yield the constants in minima and maxima of a length."""
    for monomial, _ in length.terms:
        for atom, _ in monomial:
            if isinstance(atom, DimFunction) and atom.fn in ("min", "max"):
                for part in atom.args:
                    yield from (c for m, c in part.terms if not m)
