"""Vectors that were turned by angles which count padding: only products of two turned alike are free of it.

Query i is turned by the angles of row i, key j by those of row j; in the product of both the difference is left,
which padding before them does not change. Anything else that is done with the features shows the angles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.graph import Node
from specc.passes.row_numbers import Count


@dataclass(frozen=True, slots=True)
class Turned:
    """By which angles, in which pairs (`key`), and along which axis the features lie; None for the angles themselves.

    Two values of one key are turned alike.
    """

    key: object
    axis: int | None

    @property
    def shown(self) -> bool:
        """Whether the angles are seen."""
        return self.key is SHOWN.key


SHOWN = Turned("shown", None)


def turned_of(node: Node, turned: Sequence[Turned | None], counts: Sequence[Count]) -> Turned | None:
    """What a result was turned by."""
    if isinstance(node.op, ops.RopeAngles):
        return Turned((node.args[0], node.op), None) if counts[0] else None
    if not any(turned) or isinstance(node.op, ops.Extent):
        return None
    first, second = turned[0], turned[1] if len(turned) > 1 else None
    match node.op:
        case ops.Rotate(pairs=pairs):
            alike = first is None and second is not None and second == turned[2] and second.axis is None
            return Turned((second, pairs), 3) if alike else SHOWN
        case ops.Concat(axis=axis):
            return _joined(node, turned, axis)
        case ops.Attend():
            return None if _product(first, second, 3, 3) and turned[2:] == [None] * (len(turned) - 2) else SHOWN
        case ops.MatMul():
            left, right = (a.type.rank for a in node.args if a)
            return None if _product(first, second, left - 1, right - 2) else SHOWN
        case ops.Einsum(equation=equation):
            return None if _contracted(equation, turned) else SHOWN
        case ops.Arith(fn=fn):
            return _scaled(node, fn, first, second)
        case ops.Cast(to=to):
            return first if to.startswith(("f", "b")) and to != "bool" else SHOWN
        case ops.Pointwise(fn="neg"):
            return first if first and first.axis is not None else SHOWN
    return _seen(node, first) if first and (node.op.view or isinstance(node.op, ops.Slice)) else SHOWN


def _product(left: Turned | None, right: Turned | None, at: int, to: int) -> bool:
    """Whether two that are turned alike are multiplied feature by feature and summed."""
    return left is not None and right is not None and left.key == right.key and (left.axis, right.axis) == (at, to)


def _contracted(equation: str, turned: Sequence[Turned | None]) -> bool:
    terms, result = equation.split("->")
    names = [t.split() for t in terms.split(",")]
    if len(turned) != 2 or turned[0] is None or turned[1] is None or turned[0].key != turned[1].key:
        return False
    letters = {n[t.axis] for n, t in zip(names, turned, strict=True) if t and t.axis is not None}
    return len(letters) == 1 and None not in (turned[0].axis, turned[1].axis) and not letters & set(result.split())


def _joined(node: Node, turned: Sequence[Turned | None], axis: int) -> Turned:
    """Parts of features behind each other, some of them turned; or other rows of the same kind."""
    features = {t.axis for t in turned if t}
    if len(features) != 1 or None in features:
        return SHOWN
    (at,) = features
    if axis != at:
        return turned[0] if turned[0] and len(set(turned)) == 1 else SHOWN
    parts = zip(turned, node.args, strict=True)
    return Turned(tuple(t.key if t else str(a and a.type.shape[axis]) for t, a in parts), axis)


def _scaled(node: Node, fn: str, first: Turned | None, second: Turned | None) -> Turned:
    """Multiplied by what is the same for all features, or the sum of two that are turned alike."""
    if fn in ("add", "sub") and first is not None and first == second and first.axis is not None:
        return first
    kept, other = (first, node.args[1]) if first else (second, node.args[0])
    if (first and second) or kept is None or kept.axis is None or other is None or fn not in ("mul", "div"):
        return SHOWN
    rank = max(a.type.rank for a in node.args if a)
    own = node.args[0 if first else 1]
    if own is None or own.type.rank != rank or (fn == "div" and second):
        return SHOWN
    place = kept.axis - (rank - other.type.rank)
    return kept if place < 0 or other.type.shape[place] == 1 else SHOWN


def _seen(node: Node, turned: Turned) -> Turned:
    """What a view shows of it: the axis of the features must stay what it is."""
    at = turned.axis
    if turned.shown or at is None:
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
        case ops.Expand(axis=axis) | ops.Slice(axis=axis) if axis != at:
            return turned
    return SHOWN
