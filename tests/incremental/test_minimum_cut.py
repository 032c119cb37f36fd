"""The minimum cut: the cheapest way to have what is wanted, kept or done again."""

from itertools import combinations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from specc.incremental.state_selection import CutChoice, find_minimum_cut


def cost(choices: dict[int, CutChoice[int]], sinks: list[int], kept: set[int]) -> float:
    """What it costs to have the sinks when just these are kept: everything else that is
    wanted is done again.
    """
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
def networks(draw: st.DrawFn) -> tuple[dict[int, CutChoice[int]], list[int]]:
    count = draw(st.integers(1, 6))
    choices = {}
    for n in range(count):
        operands = draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) if n else []
        again = draw(st.sampled_from([0.0, 1.0, 3.0, inf])) if operands else inf
        choices[n] = CutChoice(float(draw(st.integers(1, 9))), again, operands)
    return choices, draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))


@given(networks())
def test_no_other_choice_is_cheaper(network: tuple[dict[int, CutChoice[int]], list[int]]) -> None:
    choices, sinks = network
    every = (set(c) for size in range(len(choices) + 1) for c in combinations(choices, size))
    best = min(cost(choices, sinks, kept) for kept in every)
    assert cost(choices, sinks, set(find_minimum_cut(choices, sinks))) == best


def test_of_equal_choices_the_one_nearest_the_sink_is_taken() -> None:
    chain = {"a": CutChoice[str](4, inf), "b": CutChoice(4, 0, ["a"]), "c": CutChoice(4, 0, ["b"])}
    assert find_minimum_cut(chain, ["c"]) == ["c"]


def test_what_is_never_wanted_is_not_kept() -> None:
    assert find_minimum_cut({"a": CutChoice[str](1, inf)}, []) == []
