"""`rearrange` patterns, checked to be made of splits, transposes and merges of neighbors."""

import re
from collections.abc import Iterator

from specc.elaborate.values import Tensor, describe
from specc.elaborate.vocabulary.registry import Site
from specc.ir import ops
from specc.ir.dim import Dim, DimError, exact, product
from specc.ir.op import Op

GROUP = re.compile(r"\(([^()]*)\)|(\S+)")


def steps_of(site: Site, x: Tensor, pattern: str, sizes: tuple[Dim, ...]) -> list[Op]:
    """The ops that turn `x` into what the pattern says. E0306 for a pattern that says nothing definite."""
    if pattern.count("->") != 1:
        site.fail("E0306", "a pattern has two sides: `b n (h d) -> b h n d`", "pattern")
    left, right = (_groups(side) for side in pattern.split("->"))
    before = [n for g in left for n in g if n != "1"]
    after = [n for g in right for n in g if n != "1"]
    if len(set(before)) != len(before) or sorted(before) != sorted(after):
        odd = sorted({n for n in (*before, *after) if before.count(n) != 1 or after.count(n) != 1})
        site.fail("E0306", f"each name stands once on each side: {', '.join(odd)}", "pattern")
    if len(left) != len(x.shape):
        site.fail("E0306", f"the pattern has {len(left)} axes on the left", "pattern", describe(x))
    steps: list[Op] = []
    given = iter(sizes)
    for axis in reversed([n for n, g in enumerate(left) if g == ["1"]]):
        steps.append(ops.Squeeze(axis))
    groups = [(g, x.shape[n]) for n, g in enumerate(left) if g != ["1"]]
    lengths = [_lengths(site, g, whole, given) for g, whole in groups]
    if next(given, None) is not None:
        site.fail("E0306", "there are more sizes than the pattern needs", "sizes")
    axis = 0
    for (group, _), each in zip(groups, lengths, strict=True):
        if len(group) > 1:
            steps.append(ops.Split(axis, each))
        axis += len(group)
    order = tuple(before.index(n) for n in after)
    if order != tuple(range(len(order))):
        steps.append(ops.Transpose(order))
    for axis, group in enumerate(right):
        if group == ["1"]:
            steps.append(ops.Insert(axis))
        elif len(group) > 1:
            steps.append(ops.Merge(axis, len(group)))
    return steps


def _groups(side: str) -> list[list[str]]:
    return [inner.split() if not alone else [alone] for inner, alone in GROUP.findall(side)]


def _lengths(site: Site, group: list[str], whole: Dim, given: Iterator[Dim]) -> tuple[Dim, ...]:
    if len(group) == 1:
        return (whole,)
    found = []
    for _ in group[:-1]:
        size = next(given, None)
        if size is None:
            site.fail("E0306", f"`sizes` gives the lengths inside ({' '.join(group)}) except the last", "pattern")
        found.append(size)
    try:
        return (*found, exact(whole, product(found)))
    except DimError as error:
        site.fail("E0310", str(error), "sizes")
