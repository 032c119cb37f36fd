"""Evaluate recursive rules over a graph with memoization, a budget and no recursion.

A rule is a generator: it yields the questions whose answers it needs, receives them, and returns
its own answer. The evaluation uses an explicit stack, so that graphs may be arbitrarily deep,
and memoizes answers, so that shared operands are visited once: a chain of thirty `where` nodes,
each reading its predecessor twice, needs thirty answers instead of 2^30.
"""

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

MAX_TRAVERSAL_STEPS = 50_000
"""How many different questions are asked about one grid before the proof gives up."""

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")
TraversalRule: TypeAlias = Callable[[Q], Generator[Q, A, A]]


@dataclass
class TraversalBudget:
    """A limit on the number of values inspected for one band."""

    steps: int = MAX_TRAVERSAL_STEPS

    @property
    def spent(self) -> bool:
        """True once more values were requested than the budget allows."""
        return self.steps < 0

    def take(self) -> bool:
        """Count one question more; whether it may be asked."""
        self.steps -= 1
        return not self.spent


def solve_memoized(
    question: Q, rule: TraversalRule[Q, A], known: dict[Q, A], budget: TraversalBudget, otherwise: A
) -> A:
    """Return the answer to a question, and store in `known` the answers to all questions it asked.
    Beyond the budget the answer is `otherwise`, which must hold of every value.
    """
    if question in known:
        return known[question]
    if not budget.take():
        return otherwise
    # Each question that is open stands above the one that asked it. `given` is what the
    # top is sent; a generator that was only just made takes nothing yet.
    open_ = [(question, rule(question))]
    given, fresh = otherwise, True
    while open_:
        here, work = open_[-1]
        try:
            asked = next(work) if fresh else work.send(given)
        except StopIteration as done:
            known[here] = given = done.value
            open_.pop()
            fresh = False
            continue
        fresh = asked not in known and budget.take()
        if fresh:
            open_.append((asked, rule(asked)))
        else:
            given = known.get(asked, otherwise)
    return known[question]
