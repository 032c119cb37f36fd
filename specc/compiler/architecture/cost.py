"""What an architecture costs as its input grows: the n² of attention, and what a window
would save, or saves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, DimError, total
from specc.ir.graph import Graph, Node
from specc.passes.measure.cost import multiply_adds
from specc.passes.measure.limits import limits
from specc.passes.measure.outline import outline
from specc.passes.prove.local import local_of

LEAST, MOST = 64, 16_384
"""Lengths between which costs are drawn."""

WINDOW = 256
"""Keys that a query would see, to compare with."""

SOLID = ("all of it", "attention", "all but attention")
"""What is; other curves are what would be."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Multiply-adds at every length."""

    name: str
    values: tuple[float, ...]
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Curves over lengths that every axis in `symbols` has, for one example; `stops` says
    why there are no longer ones.
    """

    symbols: tuple[str, ...]
    lengths: tuple[int, ...]
    curves: tuple[Curve, ...]
    stops: str = ""


def cost_of(graph: Graph) -> Cost | None:
    """What a graph costs; None where no axis but that of examples may grow, or the cost
    does not depend on one.
    """
    root = outline(graph)
    work = root.all_work()
    examples = {v.type.shape[0].name for v in graph.inputs.values() if v.type.rank}
    symbols = tuple(sorted(work.symbols() - examples))
    if not symbols:
        return None
    at = _at(examples, symbols)
    most, stops = _most(graph, symbols)
    lengths = tuple(n for n in _lengths(most) if _number(work, at(n)) is not None)
    if len(lengths) < 2:
        return None
    curves = tuple(_curves(graph, work, [at(n) for n in lengths]))
    return Cost(symbols=symbols, lengths=lengths, curves=curves, stops=stops)


def _curves(
    graph: Graph, work: Dim, places: Sequence[Mapping[str, int]]
) -> Iterator[Curve]:
    """The curves of a graph at each of some places."""
    attends = [n for n, _ in graph.nodes if isinstance(n.op, ops.Attend | ops.Weigh)]
    attention = total(multiply_adds(n) for n in attends)
    # a text that is shorter than its blocks is done at once, so each length is asked
    less = [_number(outline(graph, at).all_spared(), at) or 0 for at in places]
    none = [0.0] * len(places)

    def curve(name: str, dim: Dim, minus: Sequence[float]) -> Curve:
        return _curve(name, dim, minus, places)

    yield curve("all of it", work, less)
    if not attention.terms:
        return
    yield curve("attention", attention, less)
    yield curve("all but attention", work - attention, none)
    if any(less):
        yield curve("all at once", work, none)
    saved = [sum(_saved(node, at) for node in attends) for at in places]
    if any(saved) and not _has_window(graph, attends):
        yield curve(f"with a window of {WINDOW}", work, saved)


def _curve(
    name: str, dim: Dim, minus: Sequence[float], places: Sequence[Mapping[str, int]]
) -> Curve:
    """A formula at each place, less what is not done there."""
    values = [float(_number(dim, at) or 0) for at in places]
    left = tuple(v - m for v, m in zip(values, minus, strict=True))
    return Curve(name=name, values=left, dashed=name not in SOLID)


def _has_window(graph: Graph, attends: Sequence[Node]) -> bool:
    """Whether an attention sees so many keys at most, however long a text is."""
    padded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.keep]
    found = [local_of(node, padded) for node in attends]
    return any(local is not None and local.window is not None for local in found)


def _at(
    examples: set[str | None], symbols: tuple[str, ...]
) -> Callable[[int], Mapping[str, int]]:
    """One example, every other axis as long as is said."""
    ones = {name: 1 for name in examples if name}
    return lambda n: {**ones, **dict.fromkeys(symbols, n)}


def _lengths(most: int) -> Iterator[int]:
    """Powers of two, and the longest that is possible."""
    n = LEAST
    while n <= most:
        yield n
        n *= 2
    if n // 2 != most and most < MOST:
        yield most


def _most(graph: Graph, symbols: tuple[str, ...]) -> tuple[int, str]:
    """The greatest length, and what forbids a greater one."""
    found = [limits(graph)[s] for s in symbols if s in limits(graph)]
    least = min(found, key=lambda limit: limit.most, default=None)
    if least is None or least.most >= MOST:
        return MOST, ""
    return least.most, f"{least.symbol} is at most {least.most}: {least.reason}"


def _number(dim: Dim, at: Mapping[str, int]) -> int | None:
    """A formula at these lengths; None where they do not fit the model."""
    try:
        return dim.substitute(at).number
    except DimError:
        return None


def _saved(node: Node, at: Mapping[str, int]) -> float:
    """Multiply-adds of an attention that a window would save."""
    if isinstance(node.op, ops.Attend):
        keys = node.op.key(node).type.shape[2]
    else:
        assert isinstance(node.op, ops.Weigh)
        keys = node.op.weights(node).type.shape[-1]
    seen, cost = _number(keys, at) or 0, _number(multiply_adds(node), at) or 0
    return cost * (1 - WINDOW / seen) if seen > WINDOW else 0.0
