"""Patterns such as `(h three d) i -> three (h d) i`: split axes, move them, merge them.

After einops (Rogozhnikov 2022, "Einops: Clear and Reliable Tensor Manipulations with Einstein-like
Notation"): every name stands once on each side, so the pattern only ever moves elements.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a spec is checked without NumPy
    from numpy.typing import NDArray


_GROUP = re.compile(r"\s*(?:\(([^()]*)\)|([A-Za-z_]\w*|1))")


class Unfit(Exception):
    """Why a pattern does not apply, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Moves:
    """A pattern with all lengths known: reshape to `split`, transpose by `order`, reshape to `merged`."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    merged: tuple[int, ...]

    def apply(self, x: "NDArray[Any]") -> "NDArray[Any]":
        """The elements of `x` in their new places."""
        return x.reshape(self.split).transpose(self.order).reshape(self.merged)


def moves(pattern: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Moves:
    """What the pattern does to an array of that shape. Raises Unfit."""
    left, arrow, right = pattern.partition("->")
    if not arrow:
        raise Unfit("the pattern has no `->`")
    before, after = _groups(left), _groups(right)
    names, results = [n for g in before for n in g], [n for g in after for n in g]
    for side in (names, results):
        for name in side:
            if side.count(name) > 1:
                raise Unfit(f"`{name}` stands twice on one side of the pattern")
    if set(names) != set(results):
        odd = sorted(set(names) ^ set(results))
        raise Unfit(f"`{odd[0]}` stands on one side of the pattern only")
    if len(before) != len(shape):
        raise Unfit(f"the pattern is for {len(before)} axes, the tensor has {len(shape)}: {list(shape)}")
    known: dict[str, int] = {}
    for group, length in zip(before, shape, strict=True):
        _solve(group, length, sizes, known)
    return Moves(
        tuple(known[n] for n in names),
        tuple(names.index(n) for n in results),
        tuple(math.prod(known[n] for n in g) for g in after),
    )


def _groups(side: str) -> list[list[str]]:
    """`(h d) i` to [[h, d], [i]]; a `1` is an axis of length 1, an empty group."""
    found: list[list[str]] = []
    at = 0
    while side[at:].strip():
        part = _GROUP.match(side, at)
        if not part:
            raise Unfit(f"the pattern cannot be read at `{side[at:].strip()[:20]}`")
        names = part[1].split() if part[1] is not None else [part[2]]
        if wrong := [n for n in names if not (n.isidentifier() or n == "1")]:
            raise Unfit(f"`{wrong[0]}` is no name of an axis")
        found.append([n for n in names if n != "1"])
        at = part.end()
    return found


def _solve(group: list[str], length: int, sizes: Mapping[str, int], known: dict[str, int]) -> None:
    """Lengths of the names of one axis; at most one of them may be left open."""
    given = math.prod(sizes[n] for n in group if n in sizes)
    open_names = [n for n in group if n not in sizes]
    text = " ".join(group)
    if len(open_names) > 1:
        raise Unfit(f"say how long `{open_names[0]}` or `{open_names[1]}` is: both are open in `({text})`")
    if open_names and (given == 0 or length % given):
        raise Unfit(f"an axis of {length} cannot be split as `({text})`: {given} does not divide it")
    if not open_names and given != length:
        raise Unfit(f"an axis of {length} cannot be split as `({text})`, which makes {given}")
    known.update({n: sizes[n] if n in sizes else length // given for n in group})
