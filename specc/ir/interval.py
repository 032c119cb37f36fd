"""Integer intervals with inclusive, possibly infinite ends.

They express which positions are read: `t_result - t_operand` lies in the interval.
"""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Interval:
    """`lo` to `hi`; empty if `lo > hi`."""

    lo: float
    hi: float

    @property
    def is_empty(self) -> bool:
        """Return whether it is empty."""
        return self.lo > self.hi

    def __add__(self, other: "Interval") -> "Interval":
        if self.is_empty or other.is_empty:
            return EMPTY_INTERVAL
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def shift(self, offset: int) -> "Interval":
        """Return the interval shifted by `offset`."""
        return Interval(self.lo + offset, self.hi + offset)

    def scale(self, factor: int) -> "Interval":
        """Return the interval scaled by `factor`."""
        return Interval(self.lo * factor, self.hi * factor)

    def __or__(self, other: "Interval") -> "Interval":
        """Return the smallest interval containing both."""
        if self.is_empty or other.is_empty:
            return self if other.is_empty else other
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def __and__(self, other: "Interval") -> "Interval":
        """Return the intersection."""
        both = Interval(max(self.lo, other.lo), min(self.hi, other.hi))
        return EMPTY_INTERVAL if both.is_empty else both

    def __contains__(self, number: float) -> bool:
        return self.lo <= number <= self.hi

    def __str__(self) -> str:
        return (
            "nothing"
            if self.is_empty
            else f"[{_format_endpoint(self.lo)}, {_format_endpoint(self.hi)}]"
        )


def _format_endpoint(number: float) -> str:
    return {inf: "∞", -inf: "-∞"}.get(number) or str(int(number))


EMPTY_INTERVAL = Interval(inf, -inf)
FULL_INTERVAL = Interval(-inf, inf)
SAME_POSITION = Interval(0, 0)
PAST_POSITIONS = Interval(0, inf)
FUTURE_POSITIONS = Interval(-inf, 0)
