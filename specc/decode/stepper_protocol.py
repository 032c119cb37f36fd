"""What a decode strategy needs from a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]


class Stepper(Protocol):
    """A model at some point of some texts. What was fed stays: the next call goes on behind it."""

    def step(self, tokens: Ints) -> Floats:
        """Feeds i64[rows n] new tokens, the whole prompt at first → f32[rows vocab],
        the logits behind the last. A prompt of no tokens is for a model that has rows
        before a text.
        """
        ...

    def reorder(self, rows: Ints) -> None:
        """Make row r continue what row `rows[r]` was; i64[m], more or fewer rows than before."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One step of a batch: `tokens` i64[rows], `log_probs` f32[rows] where asked for,
    `ended` bool[rows].

    `ended` holds for a row from the token on that ends it, that token included; what
    stands in later steps of that row is filler, of log-probability 0.
    """

    tokens: Ints
    log_probs: Floats | None
    ended: Bools


class DecodeObserver(Protocol):
    """An observer that may end sequences: stop strings, a user who has seen enough."""

    def __call__(self, tokens: Ints, ended: Bools) -> Bools:
        """Take new tokens i64[rows] and ended rows bool[rows]; return rows that end now."""
        ...


def check_prompt(prompt: Ints) -> None:
    """Prompts are i64[rows n]; whether n may be 0 the model knows."""
    assert prompt.ndim == 2, "a prompt is [rows, tokens]"


def check_logits(made: Floats, live: Sequence[bool] | Bools, texts: Sequence[int] = ()) -> Floats:
    """f32[rows vocab] as the loops read them. Fails with E0961 where a live row has no
    best token.

    `texts` tells which text each row belongs to, where that is not the one of its
    number.
    """
    logits = np.asarray(made, np.float32)
    assert logits.ndim == 2, f"a stepper gives logits [rows, vocab], not {logits.shape}"
    best = logits.max(axis=1, initial=-np.inf)  # is NaN where any of the row is
    wrong = ~np.isfinite(best) & np.asarray(live, np.bool_)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        fail_no_logits(
            texts[row] if texts else row, [f"the best of {logits.shape[1]} is {best[row]}"]
        )
    return logits


def fail_no_logits(row: int, notes: Sequence[str] = ()) -> NoReturn:
    """E0961: the text `row` cannot go on."""
    raise_error(
        "E0961",
        f"the model's scores for the next token of text {row + 1} are no numbers",
        notes=notes,
        helps=[
            "compare the model with the reference: specc verify MODEL.onnx",
            "look for NaN in its weights",
        ],
    )
