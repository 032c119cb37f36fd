"""Parse einops-style axis patterns such as `(h three d) i -> three (h d) i`.

After einops (Rogozhnikov 2022, "Einops: Clear and Reliable Tensor Manipulations with
Einstein-like Notation"). This is the text alone: what a pattern does to a tensor is
known to `rearrange` of the language, and to that of `load` for tensors of a file.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

_AXIS_GROUP_PATTERN = re.compile(r"\s*(?:\(([^()]*)\)|([A-Za-z_]\w*|1))")

AxisGroup: TypeAlias = tuple[str, ...]
"""The names of the factors of one axis, the last one fastest; empty for a `1`."""


class RearrangePatternError(Exception):
    """Why a text is no pattern, as a sentence without its end."""


@dataclass(frozen=True, slots=True)
class RearrangePattern:
    """The axes of a tensor before and after."""

    left: tuple[AxisGroup, ...]
    right: tuple[AxisGroup, ...]

    @property
    def before(self) -> list[str]:
        """The axis names on the left, as when all axes are split."""
        return [name for axis in self.left for name in axis]

    @property
    def after(self) -> list[str]:
        """The names on the right."""
        return [name for axis in self.right for name in axis]

    def odd(self) -> list[str]:
        """Return the names that do not occur once on each side; with none, elements are
        only moved.
        """
        before, after = self.before, self.after
        names = {*before, *after}
        return sorted(n for n in names if before.count(n) != 1 or after.count(n) != 1)

    def order(self) -> tuple[int, ...]:
        """Return the permutation from left to right; `odd` must be empty."""
        before = self.before
        return tuple(before.index(name) for name in self.after)


def parse_rearrange_pattern(text: str) -> RearrangePattern:
    """Parse both sides of a pattern. Raises RearrangePatternError."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise RearrangePatternError("the pattern has no `->`")
    return RearrangePattern(_parse_side(left), _parse_side(right))


def _parse_side(text: str) -> tuple[AxisGroup, ...]:
    """Parse `(h d) i 1` to ((h, d), (i,), ())."""
    axes: list[AxisGroup] = []
    at = 0
    while text[at:].strip():
        part = _AXIS_GROUP_PATTERN.match(text, at)
        if not part:
            raise RearrangePatternError(f"the pattern cannot be read at `{text[at:].strip()[:20]}`")
        names = part[1].split() if part[1] is not None else [part[2]]
        if wrong := [n for n in names if not (n.isidentifier() or n == "1")]:
            raise RearrangePatternError(f"`{wrong[0]}` is no name of an axis")
        axes.append(tuple(n for n in names if n != "1"))
        at = part.end()
    return tuple(axes)
