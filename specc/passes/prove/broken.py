"""Where a zero at padded rows cannot be trusted: infinity, sums over nothing, and what
comes of them, no number (NaN).

Whatever number `x` holds at a padded row, `x * keep` is zero there. But zero times
infinity is no number, and what is none passes through every sum that it enters.
"""

from math import isinf
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.passes.prove.row_numbers import number_of
from specc.passes.prove.rows import Rows
from specc.passes.prove.seen import number_or_infinity, topped
from specc.passes.prove.standing import Standing

Signs: TypeAlias = frozenset[int]
"""Of which sign infinity may be: 1, -1, either, or neither."""
NONE: Signs = frozenset()
BOTH: Signs = frozenset((1, -1))

BOUNDED = (ops.Softmax, ops.MaskedSoftmax, ops.Hard)
"""Ops behind which there is no infinity."""

KEEPING = ("ceil", "floor", "round")
"""Functions that leave infinity as it is."""
RISING = ("exp", "expm1", "relu", "relu2", "softplus", "sqrt", "log", "log1p")
"""Functions that are endless above alone."""
GATED = ("gelu", "gelu_tanh", "quick_gelu", "silu")
"""A number times a share of it that goes to 0: minus infinity by 0 is no number."""

PASSING = (ops.Where, ops.Pointwise, ops.Cast, ops.MaskedSoftmax)
"""Ops behind which infinity is no reason to expect NaN, but for some functions; nor is
it behind a view. What is NaN already goes through them all.
"""


def endless(standing: Standing) -> Signs:
    """Of which sign a result may be infinite."""
    given, node = [r.endless for r in standing.given], standing.node
    if not _floating(standing.value):
        return NONE
    if _hidden_again(standing):
        return given[2]
    match node.op:
        case ops.Constant(value=value):
            return frozenset((1 if value > 0 else -1,)) if isinf(value) else NONE
        case ops.Pointwise(fn=fn):
            return _behind(fn, given[0])
        case ops.Arith(fn="max" | "min" | "add" | "sub" as fn):
            return _of_two(fn, *given)
        case ops.Reduce(fn="max", axis=axis) if axis in standing.given[0].peaks:
            return given[0] - {-1}  # some row that exists holds a number
        case ops.Where():
            return given[1] | given[2]
    if isinstance(node.op, BOUNDED):
        return NONE
    found = frozenset().union(*given)
    # Anything else may turn the sign: a product, a map by weights.
    same = node.op.view or isinstance(
        node.op, ops.Cast | ops.Reduce | ops.Sort | ops.TopK
    )
    return found if same or not found else BOTH


def _floating(value: Value) -> bool:
    """Whether a result could be infinite or no number: true, false and whole numbers
    never are, those made of NaN, such as the row numbers of a sort, not either.
    """
    return value.type.dtype[0] not in "iu" and value.type.dtype != "bool"


def _of_two(fn: str, left: Signs, right: Signs) -> Signs:
    """Of which sign the larger, the smaller, the sum or the difference is infinite."""
    if fn == "sub":
        return left | _negated(right)
    if fn == "add":
        return left | right
    # The larger of minus infinity and a number is the number.
    kept = 1 if fn == "max" else -1
    return frozenset(s for s in left | right if s == kept or s in left & right)


def _negated(signs: Signs) -> Signs:
    return frozenset(-s for s in signs)


def _behind(fn: str, signs: Signs) -> Signs:
    """Of which sign a function of infinity is infinite."""
    if fn == "neg":
        return _negated(signs)
    if fn == "abs":
        return frozenset((1,)) if signs else NONE
    if fn in KEEPING:
        return signs
    # The others are finite there, or, as sine and cosine, no number at all.
    return signs & {1} if fn in RISING or fn in GATED else NONE


def _undefined(fn: str, signs: Signs) -> bool:
    """Whether a function of infinity may be no number."""
    if fn in ("sin", "cos"):
        return bool(signs)
    return -1 in signs and (fn in GATED or fn in ("sqrt", "log", "log1p"))


def behind(standing: Standing) -> Value | None:
    """The mask where it is false alone infinity was put, if all infinity in a result,
    and all that is broken by it, comes from there.
    """
    given, node = standing.given, standing.node
    match node:
        case Node(ops.Where(), (mask, _, low)) if not _wrong(given[1]):
            if isinf(number_or_infinity(low) or 0.0):
                return mask
    masks = {r.behind for r in given if _wrong(r) or r.behind}
    if len(masks) != 1 or _by_zero(standing):
        return None
    return masks.pop()


def _wrong(rows: Rows) -> bool:
    return rows.broken or bool(rows.endless)


def _hidden_again(standing: Standing) -> bool:
    """Whether a `where` hides what infinity came of by the mask that put it there."""
    node, given = standing.node, standing.given
    mask = node.first
    return (
        isinstance(node.op, ops.Where)
        and mask is not None
        and given[1].behind is mask
        and not given[0].broken
    )


def hollow(standing: Standing) -> bool:
    """Whether a result may be zero because no row was left to sum."""
    given, node = standing.given, standing.node
    match node.op:
        case ops.Reduce(fn="sum", axis=axis):
            # A sum over keys that still has a row a query: the row of a padded query
            # may see no key at all. Without the padded axis, at least one row exists.
            by_row = not standing.lengths.isdisjoint(standing.value.type.shape)
            return by_row and axis in given[0].zero and not topped(node.first, axis)
        case ops.Arith(fn="max" | "add"):
            # `max(sum, 1e-9)` and `sum + 1e-9` are the usual mends.
            return all(
                r.hollow or not (number_of(a) or 0) > 0
                for r, a in zip(given, node.args, strict=True)
            )
        case ops.Arith(fn="mul" | "div") | ops.Cast():
            return any(r.hollow for r in given)
        case ops.Pointwise(fn="sqrt" | "abs" | "relu"):
            return any(r.hollow for r in given)
    return node.op.view and any(r.hollow for r in given)


def broken(standing: Standing) -> bool:
    """Whether a result may be no number where rows are padded: infinity less infinity,
    or zero by zero.
    """
    given, node = standing.given, standing.node
    if not _floating(standing.value):
        return False
    if _hidden_again(standing):
        return given[2].broken
    match node.op:
        case ops.Where() if given[0].zero >= {k.result_axis for k in standing.keeps}:
            # `where(keep, x, 0)`: whatever `x` holds, at padded rows it is not taken.
            return given[2].broken
        case ops.Pointwise(fn=fn) if _undefined(fn, given[0].endless):
            return True
    if _by_zero(standing) or any(r.broken for r in given):
        return True
    return not _passes(node) and any(r.endless for r in given)


def _by_zero(standing: Standing) -> bool:
    """Whether a result divides by what may be zero where rows are padded."""
    match standing.node.op:
        case ops.Arith(fn="div"):
            divisor = standing.given[1]
        case ops.Pointwise(fn="log" | "reciprocal"):
            divisor = standing.given[0]
        case _:
            return False
    return divisor.hollow or bool(divisor.zero)


def _passes(node: Node) -> bool:
    """Whether infinity may go into an op without NaN being expected of it: a maximum is
    one of what it is given, while `inf - inf` and `0 * inf` are no numbers.
    """
    match node.op:
        case ops.Arith(fn="max") | ops.Reduce(fn="max") | ops.Sort() | ops.TopK():
            return True
    return node.op.view or isinstance(node.op, PASSING)
