"""Random inputs of a graph for given lengths."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from specc.analysis.length_limits import find_length_limits, find_min_lengths
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.length_constraints import find_total_strides, find_valid_lengths

Draw: TypeAlias = Callable[[Graph, Mapping[str, int], np.random.Generator, float], dict[str, Array]]
"""Makes the inputs of a graph for lengths and a density of booleans."""

SIZES = (1, 2, 3, 5, 7, 11, 13)
ANY_INT = 10
"""Integers that look nothing up are drawn below this."""
USUAL = 0.7
"""The share of booleans that are true, unless asked otherwise."""
DENSITIES = (USUAL, 1.0, 0.02)
"""Shares of booleans that are true: usual, dense and sparse."""


def _symbols(graph: Graph) -> set[str]:
    """The lengths of the inputs that are known only when the model runs."""
    dims = (d for v in graph.inputs.values() for d in v.type.shape)
    return {symbol for dim in dims for symbol in dim.symbols()}


def sizes_for(graph: Graph, turn: int, most: Mapping[str, int] | None = None) -> dict[str, int]:
    """A length for every symbol: the smallest first, then distinct primes, so that
    exchanged axes cannot cancel.

    None is longer than a table of positions allows, or than `most` says. Where the
    graph has no value at these, the nearest at which it has one.
    """
    above = {symbol: limit.most for symbol, limit in find_length_limits(graph).items()}
    above |= most or {}
    least = find_min_lengths(graph)
    sizes, rows = {}, {}
    # A length that is a fact follows from others.
    for n, symbol in enumerate(sorted(_symbols(graph) - graph.facts.keys())):
        wanted = rows[symbol] = 1 if turn == 0 else SIZES[(n + turn) % len(SIZES)]
        sizes[symbol] = max(
            min(wanted, above.get(symbol, wanted)), graph.least.get(symbol, 1), least.get(symbol, 1)
        )
    found = find_valid_lengths(graph, sizes, above)
    if found is None:
        return sizes
    # Behind strides the nearest length gives a single row, in which nothing can be
    # exchanged: it becomes as much longer as gives as many as were wanted, in every other
    # round with a remainder.
    strides = find_total_strides(graph)
    part = turn > 0 and turn % 2 == 0
    longer = {
        symbol: length + (rows[symbol] - 1 + part) * strides[symbol] - part
        for symbol, length in found.items()
        if length > rows[symbol] and symbol in strides
    }
    return find_valid_lengths(graph, found | longer, above) or found


def random_inputs(
    graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator, density: float = USUAL
) -> dict[str, Array]:
    """Inputs a caller could give: ids inside their tables, padding on the declared
    side, numbers around zero, booleans of which the share `density` is true.

    Padding masks are dense and sparse too: no padding at 1, little else at 0.
    """
    env = dict(sizes)
    for name, dim in graph.facts.items():
        env[name] = dim.at(env)
    looked_up = shortest_tables(graph, env)
    made: dict[str, Array] = {}
    for name, value in graph.inputs.items():
        shape = tuple(d.at(env) for d in value.type.shape)
        facts = graph.input_facts[name]
        if facts.keep:
            made[name] = _keep(shape, facts.keep, rng, density)
        elif value.type.dtype == "bool":
            made[name] = rng.random(shape) < density
        elif value.type.dtype in ("i64", "i32"):
            below = facts.below.number if facts.below is not None else None
            # ids that are changed on their way to a table have no bound of their own
            below = below or min(looked_up.get(value, ANY_INT), ANY_INT)
            made[name] = _ids(shape, below, rng).astype("i8" if value.type.dtype == "i64" else "i4")
        else:
            made[name] = rng.normal(size=shape).astype("f4")
    return made


def shortest_tables(graph: Graph, sizes: Mapping[str, int]) -> dict[Value, int]:
    """For each input of whole numbers that reaches ids of a table, however changed, the
    rows of the shortest such table.

    `embedding(max(ids, 0))` asks for rows that `ids` names, though `ids` itself is no
    index. Loops are not looked into: what is scanned has a bound of its own there.
    """
    reached = {v: {v} for v in graph.inputs.values() if _is_whole(v)}
    shortest: dict[Value, int] = {}
    for node, results in graph.nodes:
        if table := _table_of(node):
            ids, rows = table[0], table[1].at(sizes)
            for value in reached.get(ids, ()):
                shortest[value] = min(shortest.get(value, rows), rows)
        # Fractions are no ids any more, whatever they were made of.
        sources = set().union(*(reached.get(a, ()) for a in node.args if a))
        reached |= {result: sources for result in results if _is_whole(result)}
    return shortest


def _is_whole(value: Value) -> bool:
    return value.type.dtype in ("i64", "i32")


def _table_of(node: Node) -> tuple[Value, Dim] | None:
    """The ids of a node that looks rows up, and how many rows there are."""
    match node.op:
        case ops.Embedding():
            return node.op.ids(node), node.op.table(node).type.shape[0]
        case ops.Gather(axis=axis):
            return node.op.ids(node), node.op.table(node).type.shape[axis]
    return None


def _ids(shape: tuple[int, ...], below: int, rng: np.random.Generator) -> Array:
    """Numbers below a bound, the last and the first of them among them."""
    made = rng.integers(0, below, shape)
    if made.size > 1:
        made.flat[0], made.flat[-1] = below - 1, 0
    return made


def _keep(shape: tuple[int, ...], side: str, rng: np.random.Generator, density: float) -> Array:
    """True where a row exists: everything in the first batch row, some padding in the
    others. All of them have none for a density of 1, most for one near 0.

    Where no side is declared, rows have it on the left and on the right in turn.
    """
    length = shape[-1]
    # half of the usual density on: between half of a row and all of it
    least = length // 2 if density == USUAL else int(length * density)
    lengths = (
        rng.integers(max(1, least), length + 1, shape[:-1]) if length else np.zeros(shape[:-1], int)
    )
    if density >= USUAL:
        lengths.reshape(-1)[:1] = length
    else:
        lengths = np.minimum(lengths, max(1, least))
    row = np.arange(length)
    left, right = row >= (length - lengths[..., None]), row < lengths[..., None]
    if side != "any":
        return left if side == "left" else right
    turns = np.arange(lengths.size).reshape(lengths.shape) % 2 == 1
    return np.where(turns[..., None], left, right)
