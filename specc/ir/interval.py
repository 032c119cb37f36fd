"""Integer intervals with inclusive ends, either of which may be infinite.

They say which rows are read: `t_result - t_operand` lies in the interval.
"""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Interval:
    """`lo` to `hi`; nothing where `lo > hi`."""

    lo: float
    hi: float

    @property
    def empty(self) -> bool:
        """Whether it holds no number."""
        return self.lo > self.hi

    def __add__(self, other: "Interval") -> "Interval":
        if self.empty or other.empty:
            return EMPTY_INTERVAL
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def moved(self, by: int) -> "Interval":
        """All of it by so many numbers further."""
        return Interval(self.lo + by, self.hi + by)

    def times(self, factor: int) -> "Interval":
        """Counted in parts, `factor` of them for one."""
        return Interval(self.lo * factor, self.hi * factor)

    def __or__(self, other: "Interval") -> "Interval":
        """The smallest interval that holds both."""
        if self.empty or other.empty:
            return self if other.empty else other
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def __and__(self, other: "Interval") -> "Interval":
        """What both hold."""
        both = Interval(max(self.lo, other.lo), min(self.hi, other.hi))
        return EMPTY_INTERVAL if both.empty else both

    def __contains__(self, number: float) -> bool:
        return self.lo <= number <= self.hi

    def __str__(self) -> str:
        return (
            "nothing"
            if self.empty
            else f"[{_format_endpoint(self.lo)}, {_format_endpoint(self.hi)}]"
        )


def _format_endpoint(number: float) -> str:
    return {inf: "∞", -inf: "-∞"}.get(number) or str(int(number))


EMPTY_INTERVAL = Interval(inf, -inf)
FULL_INTERVAL = Interval(-inf, inf)
SAME_POSITION = Interval(0, 0)
PAST_POSITIONS = Interval(0, inf)
FUTURE_POSITIONS = Interval(-inf, 0)
