"""Rearrange patterns of weight expressions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specc.ir.axis_pattern import (
    AxisGroup,
    RearrangePattern,
    RearrangePatternError,
    parse_rearrange_pattern,
)

if TYPE_CHECKING:  # a spec is checked without NumPy
    from specc.ir.array import Array


class PatternMismatch(Exception):
    """Why a pattern does not apply, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class RearrangePlan:
    """A pattern with all lengths known: reshape to `split`, transpose by `order`,
    reshape to `merged`.
    """

    split: tuple[int, ...]
    order: tuple[int, ...]
    merged: tuple[int, ...]

    def apply(self, x: "Array") -> "Array":
        """The elements of `x` in their new places."""
        return x.reshape(self.split).transpose(self.order).reshape(self.merged)


def plan_rearrange(text: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> RearrangePlan:
    """What the pattern does to an array of that shape. Raises Unfit."""
    pattern = _pattern(text)
    if len(pattern.left) != len(shape):
        axes = f"the pattern is for {len(pattern.left)} axes"
        raise PatternMismatch(f"{axes}, the tensor has {len(shape)}: {list(shape)}")
    known: dict[str, int] = {}
    for axis, length in zip(pattern.left, shape, strict=True):
        _solve(axis, length, sizes, known)
    return RearrangePlan(
        tuple(known[n] for n in pattern.before),
        pattern.order(),
        tuple(math.prod(known[n] for n in axis) for axis in pattern.right),
    )


def _pattern(text: str) -> RearrangePattern:
    """The pattern, whose names stand once on each side. Raises Unfit."""
    try:
        pattern = parse_rearrange_pattern(text)
    except RearrangePatternError as fault:
        raise PatternMismatch(str(fault)) from None
    # every name once on each side: a sum or a repetition would make new elements
    for side in (pattern.before, pattern.after):
        for name in side:
            if side.count(name) > 1:
                raise PatternMismatch(f"`{name}` stands twice on one side of the pattern")
    if odd := pattern.odd():
        raise PatternMismatch(f"`{odd[0]}` stands on one side of the pattern only")
    return pattern


def _divides(part: int, length: int) -> bool:
    return part != 0 and length % part == 0


def _solve(group: AxisGroup, length: int, sizes: Mapping[str, int], known: dict[str, int]) -> None:
    """Lengths of the names of one axis; at most one of them may be left open."""
    told = {n: sizes[n] for n in group if n in sizes}
    left = [n for n in group if n not in told]
    given, text = math.prod(told.values()), " ".join(group)
    # one unknown can be divided out, of two only the product is known
    if len(left) > 1:
        raise PatternMismatch(
            f"say how long `{left[0]}` or `{left[1]}` is: both are open in `({text})`"
        )
    if left and not _divides(given, length):
        raise PatternMismatch(
            f"an axis of {length} cannot be split as `({text})`: {given} does not divide it"
        )
    if not left and given != length:
        raise PatternMismatch(
            f"an axis of {length} cannot be split as `({text})`, which makes {given}"
        )
    known |= told | dict.fromkeys(left, length // max(given, 1))
