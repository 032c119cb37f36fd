"""The interface between decode strategies and models."""

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
    """A model with its decode state for a batch. Fed tokens stay: the next call continues after
    them.
    """

    def step(self, tokens: Ints) -> Floats:
        """Feed new tokens i64[rows n], first the whole prompt → f32[rows vocab], the logits after
        the last.

        An empty prompt is for a model with prefix positions.
        """
        ...

    def reorder(self, rows: Ints) -> None:
        """Reorder the batch: row r continues from `rows[r]`; i64[m], more or fewer than before."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One step of a batch: `tokens` i64[rows], `log_probs` f32[rows] if requested, `ended`
    bool[rows].

    `ended` is true from the token that ends a row, inclusive; later steps of that row hold filler,
    with log-probability 0.
    """

    tokens: Ints
    log_probs: Floats | None
    ended: Bools


class DecodeObserver(Protocol):
    """An observer that may end sequences, e.g. at stop strings or on user request."""

    def __call__(self, tokens: Ints, ended: Bools) -> Bools:
        """Take new tokens i64[rows] and ended rows bool[rows]; return rows that end now."""
        ...


def check_prompt(prompt: Ints) -> None:
    """Check that prompts are i64[rows n]; only the model knows whether n may be 0."""
    assert prompt.ndim == 2, "a prompt is [rows, tokens]"


def check_logits(made: Floats, live: Sequence[bool] | Bools, texts: Sequence[int] = ()) -> Floats:
    """Return f32[rows vocab]. E0961 if an unfinished row has no finite maximum. `texts` maps each
    row to its sequence, by default its index.
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
    """Raise E0961: the sequence `row` cannot continue."""
    raise_error(
        "E0961",
        f"the model's scores for the next token of text {row + 1} are no numbers",
        notes=notes,
        helps=[
            "compare the model with the reference: specc verify MODEL.onnx",
            "look for NaN in its weights",
        ],
    )
