"""`rearrange` patterns as ops: splits, one transpose, merges of neighbors.

`b n (h d) -> b h n d` of [2, 5, 12] with sizes=[3]: split axis 2 into [3, 4], which
gives [2, 5, 3, 4], then transpose by (0, 2, 1, 3) to [2, 3, 5, 4].
"""

from collections.abc import Iterator

from specc.elaborate.values import Tensor, describe
from specc.elaborate.vocabulary.registry import Site
from specc.ir import ops
from specc.ir.dim import Dim, DimError, exact, product
from specc.ir.op import Op
from specc.ir.pattern import Axis, Pattern, PatternFault, parse


def steps_of(site: Site, x: Tensor, pattern: str, sizes: tuple[Dim, ...]) -> list[Op]:
    """The ops that turn `x` into what the pattern says. E0306 for a pattern that says
    nothing definite.
    """
    parsed = _parsed(site, x, pattern)
    # from behind: taking an axis away moves those after it
    empty = [n for n, axis in enumerate(parsed.left) if not axis]
    steps: list[Op] = [ops.Squeeze(n) for n in reversed(empty)]
    steps += _splits(site, x, parsed, sizes)
    order = parsed.order()
    if order != tuple(range(len(order))):
        steps.append(ops.Transpose(order))
    # from the front: each step leaves the axes before it as they are in the end
    for n, axis in enumerate(parsed.right):
        if not axis:
            steps.append(ops.Insert(n))
        elif len(axis) > 1:
            steps.append(ops.Merge(n, len(axis)))
    return steps


def _parsed(site: Site, x: Tensor, text: str) -> Pattern:
    if text.count("->") != 1:
        site.fail("E0306", "a pattern has two sides: `b n (h d) -> b h n d`", "pattern")
    try:
        pattern = parse(text)
    except PatternFault as fault:
        site.fail("E0306", str(fault), "pattern")
    if odd := pattern.odd():
        title = f"each name stands once on each side: {', '.join(odd)}"
        site.fail("E0306", title, "pattern")
    if len(pattern.left) != len(x.shape):
        title = f"the pattern has {len(pattern.left)} axes on the left"
        site.fail("E0306", title, "pattern", describe(x))
    return pattern


def _splits(
    site: Site, x: Tensor, pattern: Pattern, sizes: tuple[Dim, ...]
) -> Iterator[Op]:
    """A split for each axis that has several names. `sizes` go to the names from the
    left, except the last of each axis, which follows from the others.
    """
    given = iter(sizes)
    lengths = [
        (axis, _lengths(site, axis, whole, given))
        for axis, whole in zip(pattern.left, x.shape, strict=True)
        if axis
    ]
    if next(given, None) is not None:
        site.fail("E0306", "there are more sizes than the pattern needs", "sizes")
    at = 0
    for axis, parts in lengths:
        if len(axis) > 1:
            yield ops.Split(at, parts)
        at += len(axis)


def _lengths(
    site: Site, axis: Axis, whole: Dim, given: Iterator[Dim]
) -> tuple[Dim, ...]:
    if len(axis) == 1:
        return (whole,)
    lengths = []
    for _ in axis[:-1]:
        size = next(given, None)
        if size is None:
            title = (
                f"`sizes` gives the lengths inside ({' '.join(axis)}) except the last"
            )
            site.fail("E0306", title, "pattern")
        lengths.append(size)
    try:
        return (*lengths, exact(whole, product(lengths)))
    except DimError as error:
        site.fail("E0310", str(error), "sizes")
