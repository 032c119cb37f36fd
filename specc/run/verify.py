"""`specc verify`: a compiled model against the float64 reference, on random inputs of
several sizes.

The smallest that the spec allows come first, then different primes; ids from the first
to the last of their table; a batch whose rows are padded differently, on the side that
the spec declares. What two results have in common to agree is in `specc.run.agreement`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn, TypeAlias

import numpy as np

from specc import backend
from specc.files.memory import check_room
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.dim import Dim, DimError, total
from specc.ir.fitting import fitting, strides_of
from specc.ir.graph import Graph, Node, Value
from specc.passes.measure.cost import multiply_adds
from specc.passes.measure.limits import limits, rows_taken, ways
from specc.run.agreement import EXPLAINED, NUDGE, TOLERANCE, Difference, compare, moves
from specc.run.half import EXPLAINED as HALF_EXPLAINED
from specc.run.half import form_of, roundings
from specc.run.loaded import Loaded
from specc.run.products import Whole
from specc.run.rounds import Round, lengths_told
from specc.run.small_states import following
from specc.text.diagnostic import fail

Draw: TypeAlias = Callable[
    [Graph, Mapping[str, int], np.random.Generator], dict[str, Array]
]
"""Makes the inputs of a graph for lengths."""

SIZES = (1, 2, 3, 5, 7, 11, 13)
BEYOND = 9
"""How many rows more than those up to which attention is done at once."""

FEW = 2
"""How long the other axes are beside a long one."""

MOST_WORK = 2_000_000_000
"""Multiply-adds in float64 of a round over long texts: about a second."""

ANY_INT = 10
"""Numbers that look nothing up are drawn below this."""


def verify(
    model: Loaded,
    *,
    seed: int = 0,
    rounds: int = 3,
    draw: Draw | None = None,
    most: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """A line a round, of `rounds_of` the same."""
    found = rounds_of(model, seed=seed, rounds=rounds, draw=draw, most=most)
    return (str(one) for one in found)


def rounds_of(
    model: Loaded,
    *,
    seed: int = 0,
    rounds: int = 3,
    draw: Draw | None = None,
    most: Mapping[str, int] | None = None,
) -> Iterator[Round]:
    """What each round found. Fails with E0930 at the first output that differs by more
    than it may. A model with rounded weights is compared with nothing else rounded, against the
    numbers that its weights stand for; beside that each of its products with one of
    whole numbers, E0855.

    E0932, after the last round, where a result differs by no more than rounding
    explains. `draw` makes other inputs than random ones, `most` are bounds of lengths
    that the graph does not tell.
    """
    if model.manifest.decodes is not None:
        why = "it decodes by itself; a package of `--for step` can be"
        yield Round(compared=False, agrees=None, note=f"not compared, because {why}")
        return
    room = model.file.room()
    # The reference has the weights once more, as they are stored.
    check_room(str(model.path), room.stored, room.stored, room.numbers)
    rng = np.random.default_rng(seed)
    graph, weights = model.manifest.graph, model.weights()
    shaky: list[str] = []
    exact, half = model.exact(), form_of(graph)
    whole = Whole.of(model)
    for sizes in _all_sizes(graph, rounds, most):
        inputs = (draw or random_inputs)(graph, sizes, rng)
        want = _wanted(graph, inputs, weights, got := exact.session.run(inputs))
        apart = _apart(got, want)
        worst = max((d.size for d in apart.values()), default=0.0)
        found = Round(sizes=sizes, results=len(apart), worst=worst)
        wrong = {n: d for n, d in apart.items() if d.what}
        if half:
            note = _in_half(half, graph, inputs, weights, want, apart)
            yield replace(found, note=note)
        elif not wrong:
            yield replace(found, note=whole.told(inputs, lengths_told(sizes)))
        else:
            # only now, because it runs the reference several times more: does float64
            # itself move as far when the weights are rounded?
            moved = moves(graph, inputs, weights, want)
            _check_explained(wrong, moved, lengths_told(sizes))
            shaky += list(wrong)
            yield replace(found, agrees=None, note=_shaky(wrong, moved))
    if shaky:
        _undecided(sorted(set(shaky)))


def _wanted(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    got: Mapping[str, Array],
) -> dict[str, Array]:
    """What the reference gives, beside what the model gave."""
    after = following(graph, got, weights)
    made = backend.reference().run(graph, inputs, weights, after=after)
    return {name: np.asarray(value) for name, value in made.items()}


def _all_sizes(
    graph: Graph, rounds: int, most: Mapping[str, int] | None
) -> Iterator[dict[str, int]]:
    """The lengths of every round; one more in which texts are so long that attention
    goes another way, where that is not too much for float64.
    """
    yield from (sizes_for(graph, turn, most) for turn in range(rounds))
    long = {symbol: above + BEYOND for symbol, above in ways(graph).items()}
    bounds = {symbol: limit.most for symbol, limit in limits(graph).items()}
    sizes = sizes_for(graph, rounds, most)
    # float64 takes its time for long texts; two of them already are neighbours
    few = sizes_for(graph, 0, most)
    for symbol, size in sizes.items():
        length = long.get(symbol, min(size, FEW))
        ends = [b[symbol] for b in (bounds, most or {}) if symbol in b]
        sizes[symbol] = max(few[symbol], min([length, *ends]))
    found = fitting(graph, sizes, bounds)
    work = total(multiply_adds(node) for node, _ in graph.nodes)
    if rounds and long and found and _worth(work, found, graph):
        yield found


def _worth(work: Dim, sizes: Mapping[str, int], graph: Graph) -> bool:
    env = {**sizes, **{name: dim.at(sizes) for name, dim in graph.facts.items()}}
    try:
        return work.at(env) <= MOST_WORK
    except DimError:
        return False


def _in_half(
    half: str,
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    want: Mapping[str, Array],
    apart: Mapping[str, Difference],
) -> str:
    """What is said of results that were computed in 16 bits. Fails with E0930 where they
    differ by more than that explains, E0980 where a number does not fit.
    """
    moved = roundings(graph, inputs, weights, want)
    for name, difference in apart.items():
        most = max(TOLERANCE, HALF_EXPLAINED * moved[name])
        if difference.size > most:
            lost = f"rounding to {half} makes {moved[name]:.1e} of it"
            fail("E0930", difference.what, notes=[*difference.notes, lost])
    most = max(moved.values(), default=0.0)
    return f", of which {half} explains {most:.1e}"


def _explained(difference: Difference, moved: float) -> bool:
    """Whether a difference says nothing, because the reference itself moves when its
    weights are rounded.
    """
    return moved > TOLERANCE and difference.size <= EXPLAINED * moved


def _apart(
    got: Mapping[str, Array], want: Mapping[str, Array]
) -> dict[str, Difference]:
    return {n: compare(n, np.asarray(got[n]), result) for n, result in want.items()}


def _check_explained(
    wrong: Mapping[str, Difference], moved: Mapping[str, float], sizes: str
) -> None:
    """Fails with E0930 at a difference that rounding does not explain."""
    for name, difference in wrong.items():
        if not _explained(difference, moved[name]):
            fail("E0930", difference.what, notes=[*difference.notes, sizes])


def _shaky(wrong: Mapping[str, Difference], moved: Mapping[str, float]) -> str:
    name = max(wrong, key=lambda n: moved[n])
    size, own = wrong[name].size, moved[name]
    return (
        f"ill-conditioned: `{name}` differs by {size:.1e}, and moves by {own:.1e} "
        "when weights are rounded once more"
    )


def _undecided(names: list[str]) -> NoReturn:
    """E0932: neither an agreement nor a difference."""
    results = ", ".join(f"`{n}`" for n in names)
    fail(
        "E0932",
        f"{results}: too sensitive to rounding to be compared",
        notes=[
            f"in float64 itself more than {TOLERANCE:g} of the largest value changes"
            f" when every weight changes by {NUDGE:g} of itself, as much as rounding "
            "it to float32 may change it"
        ],
        helps=[
            "look for a difference of nearly equal numbers, or for numbers of a very large size"
        ],
    )


def _symbols(graph: Graph) -> set[str]:
    """The lengths of the inputs that are known only when the model runs."""
    dims = (d for v in graph.inputs.values() for d in v.type.shape)
    return {symbol for dim in dims for symbol in dim.symbols()}


def sizes_for(
    graph: Graph, turn: int, most: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A length for every symbol: the smallest first, then distinct primes, so that
    exchanged axes cannot cancel.

    None is longer than a table of positions allows, or than `most` says. Where the
    graph has no value at these, the nearest at which it has one.
    """
    above = {symbol: limit.most for symbol, limit in limits(graph).items()}
    above |= most or {}
    least = rows_taken(graph)
    sizes, rows = {}, {}
    # A length that is a fact follows from others.
    for n, symbol in enumerate(sorted(_symbols(graph) - graph.facts.keys())):
        wanted = rows[symbol] = 1 if turn == 0 else SIZES[(n + turn) % len(SIZES)]
        sizes[symbol] = max(
            min(wanted, above.get(symbol, wanted)),
            graph.least.get(symbol, 1),
            least.get(symbol, 1),
        )
    found = fitting(graph, sizes, above)
    if found is None:
        return sizes
    # Behind strides the nearest length gives a single row, in which nothing can be
    # exchanged: it becomes as much longer as gives as many as were wanted.
    strides = strides_of(graph)
    longer = {
        symbol: length + (rows[symbol] - 1) * strides[symbol]
        for symbol, length in found.items()
        if length > rows[symbol] and symbol in strides
    }
    return fitting(graph, found | longer, above) or found


def random_inputs(
    graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator
) -> dict[str, Array]:
    """Inputs a caller could give: ids inside their tables, padding on the declared
    side, numbers around zero.
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
            made[name] = _keep(shape, facts.keep, rng)
        elif value.type.dtype == "bool":
            made[name] = rng.random(shape) < 0.7
        elif value.type.dtype in ("i64", "i32"):
            below = facts.below.number if facts.below is not None else None
            # ids that are changed on their way to a table have no bound of their own
            below = below or min(looked_up.get(value, ANY_INT), ANY_INT)
            made[name] = _ids(shape, below, rng).astype(
                "i8" if value.type.dtype == "i64" else "i4"
            )
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


def _keep(shape: tuple[int, ...], side: str, rng: np.random.Generator) -> Array:
    """True where a row exists: everything in the first batch row, some padding in the
    others.

    Where no side is declared, rows have it on the left and on the right in turn.
    """
    length = shape[-1]
    lengths = (
        rng.integers(max(1, length // 2), length + 1, shape[:-1])
        if length
        else np.zeros(shape[:-1], int)
    )
    lengths.reshape(-1)[:1] = length
    row = np.arange(length)
    left, right = row >= (length - lengths[..., None]), row < lengths[..., None]
    if side != "any":
        return left if side == "left" else right
    turns = np.arange(lengths.size).reshape(lengths.shape) % 2 == 1
    return np.where(turns[..., None], left, right)
