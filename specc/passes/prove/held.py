"""Which number stands wherever rows are padded, and along which axes rows are ranks.

On entry: a node, and what is known of its operands along a padded axis. On leaving: for
axes of a result, the number that stands wherever the row is padded: minus infinity
behind `where(keep, s, -inf)`, zero behind its exponential, whatever else the rows hold.

Sorted from the greatest on, what is minus infinity comes last. So along a sorted axis
rows are *ranks*: whichever side padding stood on, its ranks are the last, and a row
number made there counts none of it. What is a rank meets only ranks, and numbers that
were made from nothing but row numbers and constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isinf

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.interval import EMPTY
from specc.ir.link import Link
from specc.passes.prove.beyond import absorbed, sorts_last
from specc.passes.prove.extremes import extremes
from specc.passes.prove.finite import everywhere
from specc.passes.prove.pairs import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    Pairs,
    combined,
    cut,
    mapped,
    together,
)
from specc.passes.prove.rows import Rows
from specc.passes.prove.standing import Standing

MOST_DEPTH = 20
"""How deep it is looked for row numbers."""


def held(standing: Standing) -> Mapping[int, float]:
    """The number at padded rows of a result, axis by axis."""
    found = {}
    for axis in standing.axes():
        number = _number(standing, axis)
        if number is not None:
            found[axis] = number
    return found | _along(standing)


def fill(standing: Standing, found: Mapping[int, float]) -> Mapping[int, float]:
    """Return the number of each axis that stands at its padded positions and at those
    that `pad` or `concat` added beside them; `found` are the numbers at padded ones.
    """
    filled = {}
    for axis, number in found.items():
        if standing.value.type.shape[axis] not in standing.joined or _fills(
            standing, axis, number
        ):
            filled[axis] = number
    return filled


def _fills(standing: Standing, axis: int, number: float) -> bool:
    """Whether a number at padded positions stands at those added beside them, too."""
    match standing.node.op:
        case ops.Pad(axis=along, value=value) if along == axis:
            return float(value) == number and _filled(standing, 0, axis) == number
        case ops.Concat(axis=along) if along == axis:
            return all(
                (_filled(standing, n, axis) if there else everywhere(a)) == number
                for n, (a, there) in enumerate(
                    zip(standing.node.args, standing.along(axis), strict=True)
                )
                if a
            )
    given = [replace(r, zero=frozenset(), held=r.fill) for r in standing.given]
    return _number(replace(standing, given=given), axis) == number


def _filled(standing: Standing, operand: int, axis: int) -> float | None:
    return standing.given[operand].fill.get(axis)


def _along(standing: Standing) -> dict[int, float]:
    """The number at padded rows that an op gives which works along their axis."""
    node, given = standing.node, standing.given
    match node.op:
        case ops.Sort(axis=axis) if standing.value.index == 0:
            number = given[0].held.get(axis)
            if number is not None and sorts_last(node, number):
                return {axis: number}
        # padded rows are the last, and an infinite sum stays infinite
        case ops.CumSum(axis=axis) if axis in given[0].ranked:
            number = given[0].held.get(axis, 0.0)
            return {axis: number} if isinf(number) else {}
        case ops.Gather(axis=axis) if in_order(node, given):
            return {axis: given[0].held[axis]}
        case ops.MaskedSoftmax():
            last = standing.value.type.rank - 1
            return {last: 0.0} if given[0].held.get(last) == -inf else {}
    return {}


def ranked(standing: Standing) -> frozenset[int]:
    """The axes of a result along which rows are ranks."""
    node, given = standing.node, standing.given
    found = {
        k.result_axis
        for k in standing.keeps
        if k.result_axis is not None and k.operand_axis in given[k.operand].ranked
    }
    match node.op:
        case ops.Sort(axis=axis) if axis in standing.padded():
            found.add(axis)
        case ops.CumSum(axis=axis) if axis in given[0].ranked:
            found.add(axis)
        case ops.Extent(axis=axis) if axis in given[0].ranked:
            found.add(0)
        case ops.Gather(axis=axis) if in_order(node, given):
            found.add(axis)
    return frozenset(found)


def mixed(standing: Standing) -> bool:
    """Whether a result puts ranks beside rows that are none."""
    return any(
        not _counts_ranks(standing, k)
        for k in standing.keeps
        if k.operand_axis not in standing.given[k.operand].ranked
        and _beside(standing, k.result_axis)
    )


def counted_anew(standing: Standing) -> set[int]:
    """Operands that are row numbers beside ranks: they count ranks."""
    return {
        k.operand
        for k in standing.keeps
        if _beside(standing, k.result_axis) and _counts_ranks(standing, k)
    }


def _counts_ranks(standing: Standing, link: Link) -> bool:
    """Whether an operand is row numbers of one axis, which may as well be ranks; those
    of a query beside them count padding.
    """
    value = standing.node.args[link.operand]
    shape = value.type.shape if value else ()
    return by_numbers(value) and sum(d in standing.lengths for d in shape) == 1


def _beside(standing: Standing, axis: int | None) -> bool:
    """Whether another operand has ranks along an axis of the result."""
    return any(
        k.result_axis == axis and k.operand_axis in standing.given[k.operand].ranked
        for k in standing.keeps
    )


def in_order(node: Node, given: Sequence[Rows]) -> bool:
    """Whether a gather picks rows by the numbers of a sort that puts padded ones last,
    from what holds one number there.
    """
    match node:
        case Node(ops.Gather(axis=axis), (_, Value(node=Node(ops.Sort()), index=1))):
            return axis in given[0].held and axis in given[1].ranked
    return False


def by_numbers(value: Value | None, depth: int = 0) -> bool:
    """Whether a value is made of row numbers and constants alone."""
    if value is None or value.node is None or depth > MOST_DEPTH:
        return False
    op = value.node.op
    if isinstance(op, ops.Extent | ops.Range | ops.Constant):
        return True
    plain = isinstance(
        op, ops.Arith | ops.Compare | ops.Cast | ops.Pointwise | ops.And | ops.Or
    )
    return (plain or op.view) and all(
        by_numbers(a, depth + 1) for a in value.node.args if a
    )


def _number(standing: Standing, axis: int) -> float | None:
    """The number that an op makes of numbers at padded rows."""
    node = standing.node
    numbers = [_of(standing, n, axis) for n in range(len(node.args))]
    match node.op:
        case ops.Where() | ops.And() | ops.Or() | ops.Not():
            return _chosen(node, numbers)
        case ops.Pointwise(fn=fn):
            return _only(mapped(FUNCTIONS.get(fn), _pairs(numbers[0])))
        case ops.Cast(to=to):
            whole = to in ("i64", "i32")
            return _only(mapped(cut if whole else float, _pairs(numbers[0])))
        case ops.Compare(fn=fn):
            return _only(combined(COMPARISONS[fn], *map(_pairs, numbers)))
        case ops.Arith(fn=fn):
            return _arithmetic(standing, fn, numbers, axis)
        case ops.Slice() | ops.Stride() | ops.Pad() | ops.Concat():
            return _in_all_parts(standing, numbers, axis)
    # A view shows what stands there; row numbers it makes are its own.
    shows = node.op.view and not isinstance(node.op, ops.Extent)
    return next((n for n in numbers if n is not None), None) if shows else None


def _in_all_parts(
    standing: Standing, numbers: list[float | None], axis: int
) -> float | None:
    """The number that all parts hold; those without padded positions have others."""
    along = standing.along(axis)
    known = {n for n, there in zip(numbers, along, strict=True) if there}
    return known.pop() if len(known) == 1 else None


def _chosen(node: Node, numbers: list[float | None]) -> float | None:
    """By truth values: one side of a `where`, or what decides `and` and `or`."""
    first, *others = numbers
    match node.op:
        case ops.Not():
            return None if first is None else 1.0 - first
        case ops.Where() if first is not None:
            return others[0] if first else others[1]
        case ops.And() if 0.0 in numbers:
            return 0.0
        case ops.Or() if 1.0 in numbers:
            return 1.0
        case ops.Where():
            return others[0] if others[0] == others[1] else None
    return first if first == others[0] else None


def _arithmetic(
    standing: Standing, fn: str, numbers: list[float | None], axis: int
) -> float | None:
    """Of two numbers, or of one beside which the other does not count."""
    found = [combined(ARITHMETIC[fn], *map(_pairs, numbers))]
    along = standing.along(axis)
    for here, there in ((0, 1), (1, 0)):
        number, rows = numbers[here], standing.given[there]
        tame = not along[there] or not (rows.broken or rows.endless)
        if number is not None and tame:
            least = extremes(standing.node.args[there])[0]
            made = absorbed(fn, number, least, here == 1)
            found += [{made: EMPTY}] if made is not None else []
    return _only(together(found))


def _of(standing: Standing, operand: int, axis: int) -> float | None:
    """The number of an operand where a row along an axis of the result is padded."""
    rows = standing.given[operand]
    own = [
        k.operand_axis
        for k in standing.keeps
        if k.operand == operand and k.result_axis == axis
    ]
    value = standing.node.args[operand]
    if not own:
        return everywhere(value) if value else None
    return rows.at_padded(own[0])


def _pairs(number: float | None) -> Pairs:
    return {} if number is None else {number: EMPTY}


def _only(pairs: Pairs) -> float | None:
    return next(iter(pairs), None)
