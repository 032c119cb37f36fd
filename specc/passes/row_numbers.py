"""Row numbers that count padding: how far they may be used before a result changes with the padding.

A row number grows by one with every padded row before it, twice a row number by two. What padding adds to a value is
followed as its *count*: so many times the number of padded rows, and times which values. A difference or a comparison
is the same however much padding there is if both sides have equal counts; so are weights of a softmax over rows whose
scores all grow by the same amount, as ALiBi's do when it is written as `slope * j`. Everything else that a
row number goes into shows how much padding there was.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value

Count: TypeAlias = Mapping[tuple[object, ...], Fraction] | None
"""What each padded row before adds: products of values with their coefficients; None, not the same at all rows."""

NOTHING: Count = {}
EVERY_ROW: Count = {(): Fraction(1)}
LINEAR = (ops.Where, ops.Cast, ops.Arith)


def either(one: Count, other: Count) -> Count:
    """What padding adds to a value that is one or the other."""
    return one if one == other else None


def count_of(node: Node, counts: Sequence[Count], length: Dim) -> Count:
    """What padding adds to a result, from what it adds to the operands."""
    if not any(counts):
        return NOTHING
    if None in counts:
        return None
    first, second = counts[0] or {}, (counts[1] if len(counts) > 1 else None) or {}
    match node.op:
        case ops.Arith(fn="add" | "sub" as fn):
            return _sum(first, second, 1 if fn == "add" else -1)
        case ops.Arith(fn="mul"):
            return _times(first or second, node.args[0 if second else 1], length) if not (first and second) else None
        case ops.Arith(fn="div") if not second and (divisor := number_of(node.args[1])):
            return _sum({}, first, 1 / divisor)
        case ops.Arith(fn="min" | "max"):
            return either(first, second)
        case ops.Arith():
            return None
        case ops.Where():
            return either(second, counts[2]) if not first else None
        case ops.Cast(to=to):
            whole = node.args[0] is not None and node.args[0].type.dtype in ("i64", "i32")
            return first if to != "bool" and (whole or to not in ("i64", "i32")) else None
        case ops.Pointwise(fn="neg"):
            return _sum({}, first, -1)
        case ops.Reduce(fn="max" | "min"):
            return first
    return _seen_as(node, first) if node.op.view and not isinstance(node.op, ops.Extent) else NOTHING


def _sum(one: Mapping[tuple[object, ...], Fraction], other: Mapping[tuple[object, ...], Fraction], by: object) -> Count:
    """`one + by * other`."""
    made = dict(one)
    for product, number in other.items():
        made[product] = made.get(product, Fraction(0)) + number * Fraction(by)  # type: ignore[call-overload]
    return {p: n for p, n in made.items() if n}


def _times(count: Mapping[tuple[object, ...], Fraction], factor: Value | None, length: Dim) -> Count:
    """A count times another operand; None where that is not the same at all rows."""
    number = number_of(factor)
    if number is not None:
        return _sum({}, count, number)
    if factor is None or length in factor.type.shape:
        return None
    return {(*p, factor): n for p, n in count.items()}


def _seen_as(node: Node, count: Mapping[tuple[object, ...], Fraction]) -> Count:
    """The count of what a view shows: values that are its factors are seen as it shows them."""
    return {((node.op, p),) if p else p: n for p, n in count.items()}


def number_of(value: Value | None) -> Fraction | None:
    """The number that a value is everywhere, if it is seen to be one."""
    while value and value.node and value.node.args and (value.node.op.view or isinstance(value.node.op, ops.Cast)):
        if isinstance(value.node.op, ops.Extent) or value.type.dtype == "bool":
            return None
        value = value.node.args[0]
    match value and value.node and value.node.op:
        case ops.Constant(value=number) if not isinstance(number, bool) and isfinite(number):
            return Fraction(number)
    return None


def shows(node: Node, counts: Sequence[Count], length: Dim) -> bool:
    """Whether an op that is given row numbers uses them for more than differences."""
    if None in counts:
        return True
    if not any(counts):
        return False
    match node.op:
        case ops.Compare():
            return counts[0] != counts[1]
        case ops.RopeAngles() | ops.Extent():
            return False
        case ops.ArgMax() | ops.Reduce(fn="max" | "min"):
            return set(counts[0] or {}) != {()}  # the greatest stays the greatest where all grow alike
        case ops.Attend() | ops.MaskedSoftmax() | ops.Hard() | ops.Softmax():
            return not _moves_all_alike(node, counts, length)
    if isinstance(node.op, LINEAR) or node.op == ops.Pointwise("neg"):
        return count_of(node, counts, length) is None
    return not node.op.view


def _moves_all_alike(node: Node, counts: Sequence[Count], length: Dim) -> bool:
    """Whether padding adds the same to every score of a softmax over the padded axis, and to nothing else."""
    scores, keys, fixed = 0, node.args[0], None
    match node.op:
        case ops.Softmax(axis=axis):
            pass
        case ops.Attend():
            scores, keys, axis = 4, node.args[1], 2
            fixed = node.args[5] if len(node.args) > 5 else None  # a sink's score stays where it is
        case _:
            axis = -1
    alone = not any(c for n, c in enumerate(counts) if n != scores)
    return alone and keys is not None and keys.type.shape[axis] == length and fixed is None
