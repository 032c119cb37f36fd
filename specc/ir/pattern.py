"""Patterns of axes, such as `(h three d) i -> three (h d) i`: split, moved, merged.

After einops (Rogozhnikov 2022, "Einops: Clear and Reliable Tensor Manipulations with
Einstein-like Notation"). This is the text alone: what a pattern does to a tensor is
known to `rearrange` of the language, and to that of `load` for tensors of a file.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

_AXIS = re.compile(r"\s*(?:\(([^()]*)\)|([A-Za-z_]\w*|1))")

Axis: TypeAlias = tuple[str, ...]
"""The names that one axis is made of, the last running fastest; none for a `1`."""


class PatternFault(Exception):
    """Why a text is no pattern, as a sentence without its end."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The axes of a tensor before and after."""

    left: tuple[Axis, ...]
    right: tuple[Axis, ...]

    @property
    def before(self) -> list[str]:
        """The names on the left, as the axes are when all are split."""
        return [name for axis in self.left for name in axis]

    @property
    def after(self) -> list[str]:
        """The names on the right."""
        return [name for axis in self.right for name in axis]

    def odd(self) -> list[str]:
        """Names that do not stand once on each side: with them nothing is only moved."""
        before, after = self.before, self.after
        names = {*before, *after}
        return sorted(n for n in names if before.count(n) != 1 or after.count(n) != 1)

    def order(self) -> tuple[int, ...]:
        """Which name of the left stands where on the right; none may be odd."""
        before = self.before
        return tuple(before.index(name) for name in self.after)


def parse(text: str) -> Pattern:
    """The two sides of a pattern. Raises PatternFault."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise PatternFault("the pattern has no `->`")
    return Pattern(_side(left), _side(right))


def _side(text: str) -> tuple[Axis, ...]:
    """`(h d) i 1` to ((h, d), (i,), ())."""
    axes: list[Axis] = []
    at = 0
    while text[at:].strip():
        part = _AXIS.match(text, at)
        if not part:
            raise PatternFault(
                f"the pattern cannot be read at `{text[at:].strip()[:20]}`"
            )
        names = part[1].split() if part[1] is not None else [part[2]]
        if wrong := [n for n in names if not (n.isidentifier() or n == "1")]:
            raise PatternFault(f"`{wrong[0]}` is no name of an axis")
        axes.append(tuple(n for n in names if n != "1"))
        at = part.end()
    return tuple(axes)
