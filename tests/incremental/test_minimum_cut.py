"""The minimum cut: the cheapest set of values to cache instead of recomputing."""

from itertools import combinations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from specc.incremental.state_selection import CacheCandidate, find_minimum_cut


def compute_cost(
    choices: dict[int, CacheCandidate[int]], sinks: list[int], kept: set[int]
) -> float:
    """Return the cost of the sinks with the given cached values; all other needed values are
    recomputed."""
    total, todo, seen = 0.0, list(sinks), set[int]()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in kept:
            total += choices[value].cache_cost
        else:
            total += choices[value].recompute_cost
            todo += choices[value].operands
    return total


@st.composite
def random_networks(draw: st.DrawFn) -> tuple[dict[int, CacheCandidate[int]], list[int]]:
    count = draw(st.integers(1, 6))
    choices = {}
    for n in range(count):
        operands = draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) if n else []
        again = draw(st.sampled_from([0.0, 1.0, 3.0, inf])) if operands else inf
        choices[n] = CacheCandidate(float(draw(st.integers(1, 9))), again, operands)
    return choices, draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))


@given(random_networks())
def test_cut_is_minimal(network: tuple[dict[int, CacheCandidate[int]], list[int]]) -> None:
    choices, sinks = network
    every = (set(c) for size in range(len(choices) + 1) for c in combinations(choices, size))
    best = min(compute_cost(choices, sinks, kept) for kept in every)
    assert compute_cost(choices, sinks, set(find_minimum_cut(choices, sinks))) == best


def test_ties_prefer_the_sink() -> None:
    chain = {
        "a": CacheCandidate[str](4, inf),
        "b": CacheCandidate(4, 0, ["a"]),
        "c": CacheCandidate(4, 0, ["b"]),
    }
    assert find_minimum_cut(chain, ["c"]) == ["c"]


def test_unused_values_are_not_cached() -> None:
    assert find_minimum_cut({"a": CacheCandidate[str](1, inf)}, []) == []
