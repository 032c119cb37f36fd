"""Lengths from which the numbers in masks, position buckets and caches matter."""

from collections.abc import Iterator

from specc.ir import ops
from specc.ir.dim import Dim, Part
from specc.ir.fitting import nodes_within
from specc.ir.graph import Graph, Node, Value

LARGEST = 4096
"""Larger constants are no distances between positions: minus infinity, a RoPE base."""

_ELEMENTWISE = (ops.Arith, ops.Compare, ops.Pointwise, ops.And, ops.Or, ops.Not)


def position_constants(graph: Graph) -> dict[str, int]:
    """Return the largest constant, rounded up, that positions along each symbol are
    compared or combined with, or that a length of it is clipped by.

    `abs(i - j) < 8` over an axis `n` gives 8 for `n`: shorter sequences do not tell
    `8` from `9`.
    """
    found: dict[str, int] = {}

    def add(symbols: frozenset[str], number: float) -> None:
        size = abs(number)
        if 1 < size <= LARGEST:
            for symbol in symbols:
                found[symbol] = max(found.get(symbol, 0), int(-(-size // 1)))

    positions: dict[Value, frozenset[str]] = {}
    for node, results in nodes_within(graph):
        symbols = _positions(node, positions)
        if symbols:
            positions |= dict.fromkeys(results, symbols)
            for number in _constants(node):
                add(symbols, number)
        for length in (d for r in results for d in r.type.shape):
            for clipped in _clips(length):
                add(frozenset(length.symbols()), clipped)
    known = {
        s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()
    }
    return {s: n for s, n in found.items() if s in known}


def _positions(node: Node, known: dict[Value, frozenset[str]]) -> frozenset[str]:
    """The symbols along which the results of a node count positions."""
    match node.op:
        case ops.Range(length=length):
            return frozenset(length.symbols())
        case ops.Extent(axis=axis):
            x = node.args[0]
            return frozenset(x.type.shape[axis].symbols()) if x else frozenset()
    if node.op.view or isinstance(node.op, (*_ELEMENTWISE, ops.Cast)):
        return frozenset().union(*(known.get(a, frozenset()) for a in node.args if a))
    return frozenset()


def _constants(node: Node) -> Iterator[float]:
    """The constants among the operands of a sum, product or comparison."""
    if isinstance(node.op, ops.Arith | ops.Compare):
        for value in node.args:
            while (
                value
                and value.node
                and (value.node.op.view or isinstance(value.node.op, ops.Cast))
            ):
                if isinstance(value.node.op, ops.Constant):
                    yield float(value.node.op.value)
                    break
                value = value.node.args[0] if value.node.args else None


def _clips(length: Dim) -> Iterator[int]:
    """The numbers in minima and maxima of a length."""
    for monomial, _ in length.terms:
        for atom, _ in monomial:
            if isinstance(atom, Part) and atom.fn in ("min", "max"):
                for part in atom.args:
                    yield from (c for m, c in part.terms if not m)
