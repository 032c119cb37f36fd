"""Rotary embeddings with position ids that count padding: which products cancel it.

Query i is rotated by the angles of position i, key j by those of position j; their product
depends on the difference only, which padding before both does not change. Any other use of the
features exposes the angles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.analysis.padding_positions import PaddingCount
from specc.ir import ops
from specc.ir.graph import Node, Value


@dataclass(frozen=True, slots=True)
class RotationFact:
    """The angles and feature pairs of a rotation (`key`), and the feature axis; None for the
    angles themselves. Values with equal keys are rotated alike.
    """

    key: object
    axis: int | None

    @property
    def shown(self) -> bool:
        """True if a result depends on the absolute angles."""
        return self.key is EXPOSED_ROTATION.key


EXPOSED_ROTATION = RotationFact("shown", None)


def infer_rotation(
    node: Node, turned: Sequence[RotationFact | None], counts: Sequence[PaddingCount]
) -> RotationFact | None:
    """Return the rotation that a result carries, or None."""
    if isinstance(node.op, ops.RopeAngles):
        # Angles of positions that count padding change with it; others do not.
        return RotationFact((tuple(node.args), node.op), None) if any(counts) else None
    # An extent creates position indices and does not read its operand's values.
    if not any(turned) or isinstance(node.op, ops.Extent):
        return None
    if (free := _is_rotation_cancelled(node, turned)) is not None:
        return None if free else EXPOSED_ROTATION
    match node.op:
        case ops.Rotate(pairs):
            return _infer_rotate(turned, pairs)
        case ops.Concat(axis):
            return _infer_concat_rotation(node, turned, axis)
        case ops.Arith(fn):
            return _infer_scaled_rotation(node, fn, turned[0], turned[1])
    return _infer_unary_rotation(node, turned[0])


def _infer_unary_rotation(node: Node, turned: RotationFact | None) -> RotationFact:
    """Return the rotation after a unary op; other ops with several operands expose the angles."""
    if turned is None:
        return EXPOSED_ROTATION
    match node.op:
        case ops.Cast(to):
            # After rounding, equally rotated values need not be equal.
            return turned if to.startswith(("f", "b")) and to != "bool" else EXPOSED_ROTATION
        case ops.Pointwise("neg"):
            # -x is x rotated by 180° more, the same at all positions.
            return turned if turned.axis is not None else EXPOSED_ROTATION
    if node.op.view or isinstance(node.op, ops.Slice | ops.Stride):
        return _infer_view_rotation(node, turned)
    return EXPOSED_ROTATION


def _is_rotation_cancelled(node: Node, turned: Sequence[RotationFact | None]) -> bool | None:
    """Return True if a sum of products does not depend on the angles because both factors are
    rotated alike; None for other ops.
    """
    match node.op:
        case ops.Attend():
            # A rotated value or mask reaches the result; rotations of queries and keys cancel.
            alone = not any(turned[2:])
            return alone and _is_matched_product(turned[0], turned[1], 3, 3)
        case ops.MatMul():
            left, right = (a.rank for a in node.operands)
            return _is_matched_product(turned[0], turned[1], left - 1, right - 2)
        case ops.Einsum(equation):
            return _is_matched_einsum(equation, turned)
    return None


def _infer_rotate(turned: Sequence[RotationFact | None], pairs: str) -> RotationFact:
    """Return the rotation by cosine and sine of the same angles, if not rotated before."""
    x, cosines, sines = turned
    alike = x is None and cosines is not None and cosines == sines
    if not alike or cosines is None or cosines.axis is not None:
        return EXPOSED_ROTATION
    return RotationFact((cosines, pairs), 3)


def _is_matched_product(
    left: RotationFact | None, right: RotationFact | None, at: int, to: int
) -> bool:
    """Return True if two factors with the same rotation are multiplied and summed over their
    features.
    """
    return (
        left is not None
        and right is not None
        and left.key == right.key
        and (left.axis, right.axis) == (at, to)
    )


def _is_matched_einsum(equation: str, turned: Sequence[RotationFact | None]) -> bool:
    terms, result = equation.split("->")
    names = [t.split() for t in terms.split(",")]
    if len(turned) != 2 or turned[0] is None or turned[1] is None or turned[0].key != turned[1].key:
        return False
    letters = {n[t.axis] for n, t in zip(names, turned, strict=True) if t and t.axis is not None}
    return (
        len(letters) == 1
        and None not in (turned[0].axis, turned[1].axis)
        and not letters & set(result.split())
    )


def _infer_concat_rotation(
    node: Node, turned: Sequence[RotationFact | None], axis: int
) -> RotationFact:
    """Return the rotation of concatenated features, some of them rotated, or of concatenated
    positions rotated alike.
    """
    features = {t.axis for t in turned if t}
    if len(features) != 1 or None in features:
        return EXPOSED_ROTATION
    (at,) = features
    if axis != at:
        # More positions, or heads, of vectors rotated by the same angles.
        return turned[0] if turned[0] and len(set(turned)) == 1 else EXPOSED_ROTATION
    # Half of the features rotated, half not, as in GPT-J: only vectors with the same layout are
    # rotated equally.
    parts = zip(turned, node.args, strict=True)
    return RotationFact(tuple(t.key if t else str(a and a.shape[axis]) for t, a in parts), axis)


def _infer_scaled_rotation(
    node: Node, fn: str, first: RotationFact | None, second: RotationFact | None
) -> RotationFact:
    """Return the rotation after scaling all features alike, or of the sum of two values rotated
    alike.
    """
    # Rotation is linear: the sum of two vectors rotated by one angle is rotated by it.
    alike = first is not None and first == second and first.axis is not None
    if first and alike and fn in ("add", "sub"):
        return first
    if (first and second) or fn not in ("mul", "div"):
        return EXPOSED_ROTATION
    left, right = ops.Arith.left(node), ops.Arith.right(node)
    if first:
        return _infer_product_rotation(first, left, right)
    # A scalar divided by a rotated vector is not a rotated vector.
    if second and fn == "mul":
        return _infer_product_rotation(second, right, left)
    return EXPOSED_ROTATION


def _infer_product_rotation(turned: RotationFact, own: Value, factor: Value) -> RotationFact:
    """Return the rotation of `own * factor`. The factor must be the same for all features of a
    vector: per-feature weights do not commute with the rotation.
    """
    if turned.axis is None or own.rank < factor.rank:
        return EXPOSED_ROTATION
    place = turned.axis - (own.rank - factor.rank)
    return turned if place < 0 or factor.shape[place] == 1 else EXPOSED_ROTATION


def _infer_view_rotation(node: Node, turned: RotationFact) -> RotationFact:
    """Return the rotation after a view, which must keep the feature axis intact."""
    at = turned.axis
    if turned.shown or at is None:
        # Each view of angles is a separate set: cosines of all positions, and those of a half.
        return replace(turned, key=(node.op, turned.key)) if not turned.shown else EXPOSED_ROTATION
    match node.op:
        case ops.Transpose(order):
            return replace(turned, axis=order.index(at))
        case ops.Insert(axis):
            return replace(turned, axis=at + (axis <= at))
        case ops.Squeeze(axis):
            return replace(turned, axis=at - (axis < at))
        case ops.Split(axis, sizes) if axis != at:
            return replace(turned, axis=at + (len(sizes) - 1 if axis < at else 0))
        case ops.Merge(axis, count) if not axis <= at < axis + count:
            return replace(turned, axis=at - (count - 1 if axis < at else 0))
        case ops.Expand(axis) if axis != at:
            return turned
        case ops.Slice(axis) | ops.Stride(axis) if axis != at:
            return turned
    return EXPOSED_ROTATION
