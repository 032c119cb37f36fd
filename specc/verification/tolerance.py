"""Compare results with the reference within float32 tolerance."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from specc.ir.array import Array

RELATIVE_TOLERANCE = 1e-5
MAX_INFORMATIVE_BOUND = 1e-2
"""Error bounds above this share of the largest value are uninformative."""


@dataclass(frozen=True)
class ResultDifference:
    """The difference of a result, `size` of the largest value; it agrees if `what` is empty."""

    size: float
    what: str = ""
    notes: tuple[str, ...] = ()


def compare_result(name: str, got: Array, want: Array) -> ResultDifference:
    """Compare the result `name` with the reference."""
    if got.shape != want.shape:
        return ResultDifference(
            np.inf, f"`{name}` has the shape {list(got.shape)}, the reference {list(want.shape)}"
        )
    if want.dtype.kind in "ib":
        wrong = int((got != want).sum())
        what = f"`{name}` differs from the reference in {wrong} places" if wrong else ""
        return ResultDifference(wrong / max(want.size, 1), what)
    want = _as_stored(want, got.dtype)
    got = np.asarray(got, np.float64)
    if odd := _find_odd(got, want):
        return ResultDifference(
            np.inf, f"`{name}` differs from the reference in NaN or infinity", (odd,)
        )
    apart, largest = _apart(got, want)
    size = float(apart.max(initial=0)) / largest
    if size <= RELATIVE_TOLERANCE:
        return ResultDifference(size)
    at = np.unravel_index(int(np.argmax(apart)), want.shape)
    where = ", ".join(map(str, at))
    return ResultDifference(
        size,
        f"`{name}` differs from the reference by {size:.1e} of its largest value, "
        f"more than {RELATIVE_TOLERANCE:g}",
        (
            f"largest at [{where}]: {float(got[at]):.7g} where the reference has "
            f"{float(want[at]):.7g}",
        ),
    )


def _as_stored(want: Array, dtype: DTypeLike) -> Array:
    """Return the reference with infinity for values out of range of the result's dtype."""
    most = np.finfo(dtype).max if np.dtype(dtype).kind == "f" else np.inf
    return np.where(np.abs(want) > most, np.copysign(np.inf, want), want)


def _find_odd(got: Array, want: Array) -> str:
    """Describe the first position where only one is finite, or the infinities differ."""
    usual = np.isfinite(got) & np.isfinite(want)
    wrong = ~(usual | (got == want) | (np.isnan(got) & np.isnan(want)))
    if not wrong.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(wrong)[0])
    where = ", ".join(map(str, at))
    places = f"in {int(wrong.sum())} places" if wrong.sum() > 1 else "at one position"
    return (
        f"{places}, first at [{where}]: {float(got[at])} where the reference has {float(want[at])}"
    )


def _apart(a: Array, b: Array) -> tuple[Array, float]:
    """Return the elementwise distance of two tensors, and the maximum of the second."""
    usual = np.isfinite(a) & np.isfinite(b)
    apart = np.abs(np.where(usual, a, 0) - np.where(usual, b, 0))
    return apart, float(np.abs(np.where(usual, b, 0)).max(initial=0)) or 1.0


def relative_change(after: Array, before: Array) -> float:
    """Return the difference of a result relative to its maximum; for integers, the fraction that
    differs.
    """
    if before.dtype.kind in "ib":
        return float((after != before).mean()) if before.size else 0.0
    if _find_odd(after, before):
        return np.inf
    apart, largest = _apart(after, before)
    return float(apart.max(initial=0)) / largest


def is_explained(got: Array, want: Array, bound: Array) -> bool:
    """Return whether every element beyond the tolerance is within `bound`, its absolute rounding
    error.
    """
    return got.shape == want.shape and not count_unexplained(got, want, bound)


def count_unexplained(got: Array, want: Array, bound: Array) -> int:
    """Return the number of positions, all axes but the last, with an element that differs by
    more than the tolerance and than `bound`.
    """
    if want.dtype.kind in "iub":
        wrong = (got != want) & ~np.isinf(bound)
    else:
        want = _as_stored(want, got.dtype)
        with np.errstate(invalid="ignore"):
            apart = np.abs(np.asarray(got, np.float64) - want)
        equal = (got == want) | (np.isnan(got) & np.isnan(want))
        allowed = np.maximum(bound, RELATIVE_TOLERANCE * largest_value(want))
        wrong = ~(equal | np.isinf(bound) | (apart <= allowed))
    return int(wrong.any(-1).sum() if wrong.ndim > 1 else wrong.sum())


def is_informative(want: Array, bound: Array) -> bool:
    """Return whether the bounds are small for at least half of the elements."""
    allowed = MAX_INFORMATIVE_BOUND * largest_value(want)
    return not bound.size or float((bound <= allowed).mean()) >= 0.5


def largest_value(x: Array) -> float:
    """Return the largest finite magnitude of a tensor; 1 if there is none."""
    return float(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0)) or 1.0


@dataclass(frozen=True, kw_only=True)
class VerificationRound:
    """The comparison of a graph with its reference at one set of lengths.

    `agrees` is None if undecided: nothing was `compared`, or rounding decides. `worst` is the
    largest difference of the `results`, relative to the maximum of that result. `note` ends the
    line. `uncovered` are the branches and loop bodies that no round executed, `skipped_lengths` the
    lengths that are too long for the reference; set after the last round.
    """

    graph: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    compared: bool = True
    agrees: bool | None = True
    results: int = 0
    worst: float = 0.0
    note: str = ""
    uncovered: tuple[str, ...] = ()
    skipped_lengths: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """What no round covered, in words."""
        skipped = " and ".join(self.skipped_lengths)
        lengths = f"lengths {skipped}, too long for the float64 reference"
        return (*self.uncovered, *([lengths] if skipped else []))

    def __str__(self) -> str:
        graph = f"{self.graph}: " if self.graph else ""
        if self.missing:
            return f"{graph}not covered: {', '.join(self.missing)}"
        lengths = f"{format_lengths(self.sizes)}: " if self.compared else ""
        return f"{graph}{lengths}{self._format_agreement()}{self.note}"

    def _format_agreement(self) -> str:
        """Format how many results agree, and their difference; "" otherwise."""
        if not (self.compared and self.agrees):
            return ""
        one = self.results == 1
        agree = "1 result agrees" if one else f"{self.results} results agree"
        return f"{agree}, worst difference {self.worst:.1e} of the largest value"

    def to_json(self) -> dict[str, object]:
        """Return JSON values; the note without its separator."""
        return {
            "graph": self.graph,
            "sizes": dict(self.sizes),
            "compared": self.compared,
            "agrees": self.agrees,
            "results": self.results,
            "max_error": self.worst,
            "note": self.note.lstrip("; ,"),
            "uncovered_subgraphs": list(self.uncovered),
            "skipped_lengths": list(self.skipped_lengths),
        }


def uncovered_round(
    uncovered: tuple[str, ...], skipped_lengths: tuple[str, ...]
) -> VerificationRound:
    """Return the entry after the last round, which says what no round covered."""
    return VerificationRound(
        compared=False, agrees=None, uncovered=uncovered, skipped_lengths=skipped_lengths
    )


def format_lengths(sizes: Mapping[str, int]) -> str:
    """Format `batch=2, seq=3`."""
    return ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"
