"""Lengths at which a graph can be computed: every row that is taken is there, and every
quotient is whole.

Whoever tries a model at lengths of his own choice asks here first: `x[:, 0:30]` has no
value where there are eleven rows, nor has `split(x, into=[n / 2, 2], axis=1)`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, DimError, Part, smallest
from specc.ir.graph import Graph, Node, Value
from specc.ir.tables import rooms

REACHES = (4, 16, 64, 600)
"""How far lengths are moved from the wanted ones, tried one after the other."""

MOST_TRIES = 1_500
"""In each reach."""


@dataclass(frozen=True)
class Demand:
    """A length that must have a value, and where it counts rows one that is not below 0."""

    length: Dim
    rows: bool

    def met(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is so where symbols have these values."""
        try:
            return self.length.at(sizes) >= 0 or not self.rows
        except DimError:
            return False


def fitting(
    graph: Graph,
    wanted: Mapping[str, int],
    most: Mapping[str, int] | None = None,
    apart: Collection[int] = (),
) -> dict[str, int] | None:
    """Lengths near the wanted ones at which all demands are met; None where none are
    found.

    No length becomes more than `most` says, or less than the graph promises, or is
    moved to a number in `apart`.
    """
    open_ = [d for d in demands(graph) if d.length.symbols() <= wanted.keys()]
    if all(d.met(wanted) for d in open_):
        return dict(wanted)
    moved = {s for d in open_ for s in d.length.symbols()}
    symbols = sorted(moved, key=lambda s: (_needs(s, open_), s))
    # Near numbers first, in all lengths: a far one in the first length would be found
    # before a near one in the last.
    for reach in REACHES:
        tries = dict[str, list[int]]()
        for s in symbols:
            largest = (most or {}).get(s, wanted[s] + reach)
            near = _near(wanted[s], reach, graph.least.get(s, 1), largest)
            tries[s] = [n for n in near if n == wanted[s] or n not in apart]
        if found := _search(symbols, tries, open_):
            return {**wanted, **found}
    return None


def strides_of(graph: Graph) -> dict[str, int]:
    """How many rows of a length become one behind all strides; of lengths that some
    quotient has.
    """
    found: dict[str, int] = {}
    lengths = (d for _, results in graph.nodes for r in results for d in r.type.shape)
    for part in (p for length in lengths for p in _quotients(length)):
        divided, by = part.args
        for symbol in divided.symbols():
            found[symbol] = max(found.get(symbol, 1), by.number or 1)
    return found


def _quotients(length: Dim) -> Iterator[Part]:
    for monomial, _ in length.terms:
        for atom, _ in monomial:
            if isinstance(atom, Part) and atom.fn == "//":
                yield atom


def demands(graph: Graph) -> set[Demand]:
    """What lengths must have a value, of symbols that are no facts."""
    found = {Demand(d, True) for d in graph.facts.values()} | _of_nodes(graph)
    found |= {Demand(room.most - room.length, True) for room in rooms(graph)}
    found = {Demand(d.length.substitute(graph.facts), d.rows) for d in found}
    # A number is no question, and a symbol by itself may be anything.
    return {d for d in found if d.length.number is None and d.length.name is None}


def _of_nodes(graph: Graph) -> set[Demand]:
    """Those of its nodes, and of nodes in bodies of loops."""
    found: set[Demand] = set()
    for node, results in nodes_within(graph):
        made = [d for r in results for d in r.type.shape]
        found |= {Demand(d, True) for d in (*rows_of(node), *made)}
        # An attribute need not count rows: it must only have a value.
        found |= {Demand(d, False) for d in _dims(node.op.attributes().values())}
    return found


def nodes_within(graph: Graph) -> Iterator[tuple[Node, tuple[Value, ...]]]:
    """Its nodes, and those in bodies of loops, whose symbols are the same."""
    for node, results in graph.nodes:
        yield node, results
        if isinstance(node.op, ops.Scan):
            yield from nodes_within(node.op.body)


def rows_of(node: Node) -> tuple[Dim, ...]:
    """Lengths that must not be below 0, so that every row is there that a node takes."""
    match node:
        case Node(ops.Slice(axis=axis, start=start, stop=stop), (Value() as x,)):
            return start, stop - start, x.type.shape[axis] - stop
        case Node(
            ops.Stride(axis=axis, start=start, stop=stop, step=step), (Value() as x,)
        ):
            return start, stop - start, x.type.shape[axis] - stop, step - 1
        case Node(ops.TopK(axis=axis, k=k), (Value() as x,)):
            return k, x.type.shape[axis] - k
        case Node(ops.Pad(axis=axis) as op, (Value() as x,)):
            return op.rooms(x.type.shape[axis])
        case Node(ops.Resize(axis=axis, sizes=sizes), (Value() as x,)):
            changed = x.type.shape[axis : axis + len(sizes)]
            return tuple(d - 1 for d in (*sizes, *changed))
        case Node(ops.Index(axis=axis, at=at), (Value() as x,)):
            return at, x.type.shape[axis] - at - 1
        case Node(
            ops.Conv() | ops.MaxPool() | ops.AveragePool() as op, (Value() as x, *_)
        ):
            # Rows are the second axis, those of a picture the third and fourth.
            moved = x.type.shape[len(op.kernel) :]
            return tuple(op.spare(moved[n], n) for n in range(len(op.kernel)))
        case Node(ops.KeepRows() as op, (Value() as x,)):
            length = x.type.shape[1]
            return (op.rows(length) - smallest(length, 1),)
    return ()


def _dims(attributes: Iterable[object]) -> Iterator[Dim]:
    for value in attributes:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from _dims(value)


def _needs(symbol: str, open_: Iterable[Demand]) -> bool:
    """Whether a demand has this symbol and others: it is chosen after those that stand alone."""
    read = [d.length.symbols() for d in open_]
    return any(symbol in symbols and len(symbols) > 1 for symbols in read)


def _near(wanted: int, reach: int, least: int, most: int) -> Iterator[int]:
    """The number itself, then those above it, then those below."""
    yield from range(wanted, min(wanted + reach, most) + 1)
    yield from range(wanted - 1, max(wanted - reach, least) - 1, -1)


def _search(
    symbols: list[str], tries: Mapping[str, list[int]], open_: Iterable[Demand]
) -> dict[str, int] | None:
    """The first choice that meets all demands, one symbol after the other; None after
    too many tries.
    """
    # A demand is asked as soon as the last of its symbols has a value, so that what it
    # refuses is not combined with every value of the symbols behind.
    place = {s: n for n, s in enumerate(symbols)}
    due: list[list[Demand]] = [[] for _ in symbols]
    for demand in open_:
        due[max(place[s] for s in demand.length.symbols())].append(demand)
    sizes: dict[str, int] = {}
    stack, left = [iter(tries[symbols[0]])], MOST_TRIES
    while stack and left:
        left -= 1
        at = len(stack) - 1
        number = next(stack[-1], None)
        if number is None:
            stack.pop()
            continue
        sizes[symbols[at]] = number
        if all(d.met(sizes) for d in due[at]):
            if at + 1 == len(symbols):
                return sizes
            stack.append(iter(tries[symbols[at + 1]]))
    return None
