"""Models for tests of generation that are tables: the logits of a token depend on the
whole text before it.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from specc.decode.token_choice import Floats, Ints

Table = Callable[[tuple[int, ...]], Sequence[float]]


class TableStepper:
    """A stepper over `table`, which gives the logits behind a text. Keeps the texts,
    and how much it was fed.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.texts: list[tuple[int, ...]] = []
        self.fed: list[tuple[int, ...]] = []

    def step(self, tokens: Ints) -> Floats:
        assert tokens.dtype == np.int64
        self.fed.append(tokens.shape)
        self.texts = self.texts or [()] * len(tokens)
        assert len(tokens) == len(self.texts), "as many rows as there are texts"
        self.texts = [(*text, *map(int, new)) for text, new in zip(self.texts, tokens, strict=True)]
        return np.array([self.table(text) for text in self.texts], np.float32)

    def reorder(self, rows: Ints) -> None:
        self.texts = [self.texts[r] for r in rows]


def make_hashed_logits(seed: int, vocab: int, spread: float = 2.0, grid: float = 0.0) -> Table:
    """Logits drawn anew for every text. `grid` rounds them to its multiples, so that
    many are equal.
    """

    def table(text: tuple[int, ...]) -> Sequence[float]:
        logits = np.random.default_rng([seed, *text]).normal(0, spread, vocab)
        return np.round(logits / grid) * grid if grid else logits

    return table


def make_continuing_logits(*texts: str, letters: str = "abcdefgh", end: str = ".") -> Table:
    """Prefers to continue a text as one of `texts` goes on; letters count from 1 behind
    `end`, which is 0.
    """
    names = end + letters

    def table(text: tuple[int, ...]) -> Sequence[float]:
        so_far = "".join(names[t] for t in text)
        wanted = next(
            (t[len(so_far)] for t in texts if t.startswith(so_far) and len(t) > len(so_far)), end
        )
        return [5.0 if name == wanted else 0.0 for name in names]

    return table


def sum_log_probabilities(table: Table, prompt: tuple[int, ...], text: Sequence[int]) -> float:
    """The summed log-probabilities of a text behind a prompt, in float64."""
    total = 0.0
    for n, token in enumerate(text):
        logits = np.asarray(table((*prompt, *text[:n])), np.float32).astype(np.float64)
        total += logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return total


def list_all_texts(vocab: int, longest: int, stop: int) -> list[tuple[int, ...]]:
    """All texts that end by `stop` within `longest` tokens or are that long."""
    found = []
    for n in range(1, longest + 1):
        for text in product(range(vocab), repeat=n):
            if stop not in text[:-1] and (text[-1] == stop or n == longest):
                found.append(text)
    return found
