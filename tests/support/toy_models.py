"""Table models for tests of generation: the logits of a token depend on the whole preceding
sequence.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from specc.decode.token_selection import Floats, Ints

Table = Callable[[tuple[int, ...]], Sequence[float]]


class TableDecoder:
    """A decoder session over `table`, which returns the logits after a sequence. Records the sequences and
    the number of input tokens.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.texts: list[tuple[int, ...]] = []
        self.input_count: list[tuple[int, ...]] = []

    def step(self, tokens: Ints) -> Floats:
        assert tokens.dtype == np.int64
        self.input_count.append(tokens.shape)
        self.texts = self.texts or [()] * len(tokens)
        assert len(tokens) == len(self.texts), "as many rows as there are texts"
        self.texts = [(*text, *map(int, new)) for text, new in zip(self.texts, tokens, strict=True)]
        return np.array([self.table(text) for text in self.texts], np.float32)

    def reorder(self, rows: Ints) -> None:
        self.texts = [self.texts[r] for r in rows]


def make_hashed_logits(seed: int, vocab: int, spread: float = 2.0, grid: float = 0.0) -> Table:
    """Return a table of random logits, a new sample for each sequence. `grid` rounds them, so that
    ties occur.
    """

    def table(text: tuple[int, ...]) -> Sequence[float]:
        logits = np.random.default_rng([seed, *text]).normal(0, spread, vocab)
        return np.round(logits / grid) * grid if grid else logits

    return table


def make_continuing_logits(*texts: str, letters: str = "abcdefgh", end: str = ".") -> Table:
    """Return a table that prefers to continue a sequence as one of `texts`; letters count from 1
    after `end`, which is 0.
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
    """Return the sum of the log-probabilities of a sequence after a prompt, in float64."""
    total = 0.0
    for n, token in enumerate(text):
        logits = np.asarray(table((*prompt, *text[:n])), np.float32).astype(np.float64)
        total += logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return total


def list_all_texts(vocab: int, max_length: int, stop: int) -> list[tuple[int, ...]]:
    """Return all sequences that end with `stop` within `longest` tokens or have that length."""
    found = []
    for n in range(1, max_length + 1):
        for text in product(range(vocab), repeat=n):
            if stop not in text[:-1] and (text[-1] == stop or n == max_length):
                found.append(text)
    return found
