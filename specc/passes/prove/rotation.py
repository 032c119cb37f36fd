"""Vectors that were turned by angles which count padding: only products of two turned
alike are free of it.

Query i is turned by the angles of row i, key j by those of row j; in the product of
both the difference is left, which padding before them does not change. Anything else
that is done with the features shows the angles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.passes.prove.row_numbers import Count


@dataclass(frozen=True, slots=True)
class Turned:
    """By which angles, in which pairs (`key`), and along which axis the features lie;
    None for the angles themselves.

    Two values of one key are turned alike.
    """

    key: object
    axis: int | None

    @property
    def shown(self) -> bool:
        """Whether the angles are seen."""
        return self.key is SHOWN.key


SHOWN = Turned("shown", None)


def turned_of(
    node: Node, turned: Sequence[Turned | None], counts: Sequence[Count]
) -> Turned | None:
    """What a result was turned by."""
    if isinstance(node.op, ops.RopeAngles):
        # Angles of rows whose numbers count padding turn with it; others are plain.
        return Turned((node.op.rows(node), node.op), None) if counts[0] else None
    # An extent makes row numbers; it does not look at what it is given.
    if not any(turned) or isinstance(node.op, ops.Extent):
        return None
    if (free := _multiplied(node, turned)) is not None:
        return None if free else SHOWN
    match node.op:
        case ops.Rotate(pairs=pairs):
            return _rotated(turned, pairs)
        case ops.Concat(axis=axis):
            return _joined(node, turned, axis)
        case ops.Arith(fn=fn):
            return _scaled(node, fn, turned[0], turned[1])
    return _alone(node, turned[0])


def _alone(node: Node, turned: Turned | None) -> Turned:
    """What an op leaves of its one operand; an op of several that comes here mixes them."""
    if turned is None:
        return SHOWN
    match node.op:
        case ops.Cast(to=to):
            # Cut to whole numbers, two that are turned alike no longer are.
            return turned if to.startswith(("f", "b")) and to != "bool" else SHOWN
        case ops.Pointwise(fn="neg"):
            # -x is x turned by half a turn more, the same at all rows.
            return turned if turned.axis is not None else SHOWN
    if node.op.view or isinstance(node.op, ops.Slice | ops.Stride):
        return _seen(node, turned)
    return SHOWN


def _multiplied(node: Node, turned: Sequence[Turned | None]) -> bool | None:
    """Whether a sum of products is free of the angles, since both factors are turned
    alike; None for other ops.
    """
    match node.op:
        case ops.Attend():
            # A turned value, or mask, comes out in the result; queries and keys do not.
            alone = not any(turned[2:])
            return alone and _product(turned[0], turned[1], 3, 3)
        case ops.MatMul():
            left, right = (a.type.rank for a in node.args if a)
            return _product(turned[0], turned[1], left - 1, right - 2)
        case ops.Einsum(equation=equation):
            return _contracted(equation, turned)
    return None


def _rotated(turned: Sequence[Turned | None], pairs: str) -> Turned:
    """Features behind a rotation: by both angles of one origin, and not turned before."""
    x, cosines, sines = turned
    alike = x is None and cosines is not None and cosines == sines
    if not alike or cosines is None or cosines.axis is not None:
        return SHOWN
    return Turned((cosines, pairs), 3)


def _product(left: Turned | None, right: Turned | None, at: int, to: int) -> bool:
    """Whether two that are turned alike are multiplied feature by feature and summed."""
    return (
        left is not None
        and right is not None
        and left.key == right.key
        and (left.axis, right.axis) == (at, to)
    )


def _contracted(equation: str, turned: Sequence[Turned | None]) -> bool:
    terms, result = equation.split("->")
    names = [t.split() for t in terms.split(",")]
    if (
        len(turned) != 2
        or turned[0] is None
        or turned[1] is None
        or turned[0].key != turned[1].key
    ):
        return False
    letters = {
        n[t.axis]
        for n, t in zip(names, turned, strict=True)
        if t and t.axis is not None
    }
    return (
        len(letters) == 1
        and None not in (turned[0].axis, turned[1].axis)
        and not letters & set(result.split())
    )


def _joined(node: Node, turned: Sequence[Turned | None], axis: int) -> Turned:
    """Parts of features behind each other, some of them turned; or other rows of the same kind."""
    features = {t.axis for t in turned if t}
    if len(features) != 1 or None in features:
        return SHOWN
    (at,) = features
    if axis != at:
        # More rows, or heads, of vectors that are all turned by the same angles.
        return turned[0] if turned[0] and len(set(turned)) == 1 else SHOWN
    # Half of the features turned, half not, as in GPT-J: turned alike is what has the
    # same parts in the same places.
    parts = zip(turned, node.args, strict=True)
    return Turned(
        tuple(t.key if t else str(a and a.type.shape[axis]) for t, a in parts), axis
    )


def _scaled(node: Node, fn: str, first: Turned | None, second: Turned | None) -> Turned:
    """Multiplied by what is the same for all features, or the sum of two that are turned alike."""
    # A turn is linear: the sum of two vectors turned by one angle is turned by it.
    alike = first is not None and first == second and first.axis is not None
    if first and alike and fn in ("add", "sub"):
        return first
    if (first and second) or fn not in ("mul", "div"):
        return SHOWN
    left, right = ops.Arith.left(node), ops.Arith.right(node)
    if first:
        return _times(first, left, right)
    # A number by what is turned is not what is turned by a number.
    if second and fn == "mul":
        return _times(second, right, left)
    return SHOWN


def _times(turned: Turned, own: Value, factor: Value) -> Turned:
    """Turned features by a factor, which must be one for all features of a vector: each
    feature by a weight of its own would no longer be a turn.
    """
    if turned.axis is None or own.type.rank < factor.type.rank:
        return SHOWN
    place = turned.axis - (own.type.rank - factor.type.rank)
    return turned if place < 0 or factor.type.shape[place] == 1 else SHOWN


def _seen(node: Node, turned: Turned) -> Turned:
    """What a view shows of it: the axis of the features must stay what it is."""
    at = turned.axis
    if turned.shown or at is None:
        # Of angles each view is another set: cosines of all rows and those of a half.
        return replace(turned, key=(node.op, turned.key)) if not turned.shown else SHOWN
    match node.op:
        case ops.Transpose(order=order):
            return replace(turned, axis=order.index(at))
        case ops.Insert(axis=axis):
            return replace(turned, axis=at + (axis <= at))
        case ops.Squeeze(axis=axis):
            return replace(turned, axis=at - (axis < at))
        case ops.Split(axis=axis, sizes=sizes) if axis != at:
            return replace(turned, axis=at + (len(sizes) - 1 if axis < at else 0))
        case ops.Merge(axis=axis, count=count) if not axis <= at < axis + count:
            return replace(turned, axis=at - (count - 1 if axis < at else 0))
        case ops.Expand(axis=axis) if axis != at:
            return turned
        case ops.Slice(axis=axis) | ops.Stride(axis=axis) if axis != at:
            return turned
    return SHOWN
