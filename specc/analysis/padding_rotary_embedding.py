"""Track rotary embeddings whose position ids count padding, and find contractions in which the
rotation caused by padding cancels.

RoPE rotates the query at position `i` by the angles of position `i`, and the key at position `j` by
the angles of position `j`. The dot product of query and key depends only on `i - j`. Padding before
both positions does not change this difference. All other uses of rotated features depend on the
absolute angles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.analysis.padding_position_ids import PaddingCount
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.loop_dependence import find_dependences


@dataclass(frozen=True, slots=True)
class RotaryEmbedding:
    """The rotation of a value's features by RoPE. `key` identifies its angles and feature pairs,
    and `feature_axis` is the axis of the rotated features. `feature_axis` is None for the angles
    themselves. Values with equal keys have the same rotation.
    """

    key: object
    feature_axis: int | None

    @property
    def depends_on_absolute_angles(self) -> bool:
        """True if a result depends on the absolute angles."""
        return self.key is ABSOLUTE_ROTATION.key


ABSOLUTE_ROTATION = RotaryEmbedding("absolute", None)
"""A marker for values that depend on absolute angles."""


FEATURE_PRESERVING_VIEWS = (
    *(ops.Transpose, ops.Insert, ops.Squeeze, ops.Split, ops.Merge, ops.Expand),
    *(ops.Slice, ops.StridedSlice),
)
"""Views and slices. They move complete feature vectors unless they change the feature axis."""


def infer_rotary_embedding(
    node: Node,
    rotary_embeddings: Sequence[RotaryEmbedding | None],
    padding_counts: Sequence[PaddingCount],
) -> RotaryEmbedding | None:
    """Return the rotation of a result's features, or None if no angle depends on padding."""
    if isinstance(node.op, ops.RopeAngles):
        # Only the angles of position ids that include padding change with the amount of padding.
        return RotaryEmbedding((tuple(node.args), node.op), None) if any(padding_counts) else None
    # An `extent` creates position ids without reading the elements of its operand.
    if not any(rotary_embeddings) or isinstance(node.op, ops.Extent):
        return None
    if (is_cancelled := _match_cancelled_rotation(node, rotary_embeddings)) is not None:
        return None if is_cancelled else ABSOLUTE_ROTATION
    match node.op:
        case ops.Rotate(pairs):
            return _infer_rotate(rotary_embeddings, pairs)
        case ops.Concat(axis):
            return _infer_concat_rotation(node, rotary_embeddings, axis)
        case ops.Arith(function_name):
            return _infer_scaled_rotation(
                node, function_name, rotary_embeddings[0], rotary_embeddings[1]
            )
    return _infer_unary_rotation(node, rotary_embeddings[0])


def _infer_unary_rotation(node: Node, rotation: RotaryEmbedding | None) -> RotaryEmbedding:
    """Return the rotation after a unary op, or `ABSOLUTE_ROTATION` if it is not preserved."""
    if rotation is None:
        return ABSOLUTE_ROTATION
    match node.op:
        case ops.Cast(to):
            # Rounding to integers changes the rotation, so only casts to floating-point types
            # preserve it.
            return rotation if to.startswith(("f", "b")) and to != "bool" else ABSOLUTE_ROTATION
        case ops.Pointwise("neg"):
            # -x is x rotated by an additional 180° at all positions
            return rotation if rotation.feature_axis is not None else ABSOLUTE_ROTATION
    if node.op.is_view or isinstance(node.op, ops.Slice | ops.StridedSlice):
        return _infer_view_rotation(node, rotation)
    return ABSOLUTE_ROTATION


def _match_cancelled_rotation(
    node: Node, rotations: Sequence[RotaryEmbedding | None]
) -> bool | None:
    """Return True if a contraction does not depend on absolute angles because both factors have the
    same rotation. Return False if the contraction depends on absolute angles. Return None for other
    ops.
    """
    match node.op:
        case ops.Attend():
            # The rotations of queries and keys cancel, but rotations of values and masks do not.
            return not any(rotations[2:]) and _is_matched_product(rotations[0], rotations[1], 3, 3)
        case ops.MatMul():
            left, right = (a.rank for a in node.operands)
            return _is_matched_product(rotations[0], rotations[1], left - 1, right - 2)
        case ops.Einsum(equation):
            return _is_matched_einsum(equation, rotations)
    return None


def _infer_rotate(rotations: Sequence[RotaryEmbedding | None], pairs: str) -> RotaryEmbedding:
    """Return the rotation that `rotate` applies to unrotated features. The result depends on
    absolute angles if the features are already rotated, or if cosine and sine have different
    angles.
    """
    x, cosines, sines = rotations
    if x or cosines is None or cosines != sines or cosines.feature_axis is not None:
        return ABSOLUTE_ROTATION
    return RotaryEmbedding((cosines, pairs), 3)


def _is_matched_product(
    left: RotaryEmbedding | None, right: RotaryEmbedding | None, left_axis: int, right_axis: int
) -> bool:
    """Return True if two factors contract their feature axes and have the same rotation."""
    return (
        left is not None
        and right is not None
        and left.key == right.key
        and (left.feature_axis, right.feature_axis) == (left_axis, right_axis)
    )


def _is_matched_einsum(equation: str, rotations: Sequence[RotaryEmbedding | None]) -> bool:
    inputs, result = equation.split("->")
    labels = {
        term.split()[r.feature_axis]
        for term, r in zip(inputs.split(","), rotations, strict=True)
        if r and r.feature_axis is not None
    }
    keys = {r.key if r and r.feature_axis is not None else None for r in rotations}
    is_matched = len(rotations) == 2 and len(keys) == 1 and None not in keys
    return is_matched and len(labels) == 1 and labels.isdisjoint(result.split())


def _infer_concat_rotation(
    node: Node, rotations: Sequence[RotaryEmbedding | None], axis: int
) -> RotaryEmbedding:
    """Return the rotation of a concatenation of features (some may be unrotated) or of equally
    rotated positions.
    """
    feature_axes = {t.feature_axis for t in rotations if t}
    if len(feature_axes) != 1 or None in feature_axes:
        return ABSOLUTE_ROTATION
    (feature_axis,) = feature_axes
    if axis != feature_axis:
        # the vectors of the concatenated positions or heads are rotated by the same angles
        return rotations[0] if rotations[0] and len(set(rotations)) == 1 else ABSOLUTE_ROTATION
    # Only some features are rotated, as in GPT-J. Two vectors have the same rotation only if the
    # same features are rotated.
    parts = zip(rotations, node.args, strict=True)
    return RotaryEmbedding(tuple(t.key if t else str(a and a.shape[axis]) for t, a in parts), axis)


def _infer_scaled_rotation(
    node: Node, function_name: str, first: RotaryEmbedding | None, second: RotaryEmbedding | None
) -> RotaryEmbedding:
    """Return the rotation of scaled features, or of a sum of equally rotated features."""
    # Rotation is linear: the sum of two vectors rotated by the same angle is also rotated by the
    # angle.
    left, right = ops.Arith.left(node), ops.Arith.right(node)
    match first, second, function_name:
        case RotaryEmbedding(feature_axis=int()), _, "add" | "sub" if first == second:
            return first
        case RotaryEmbedding(), None, "mul" | "div":
            return _infer_product_rotation(first, left, right)
        # A scalar divided by a rotated vector is not a rotated vector.
        case None, RotaryEmbedding(), "mul":
            return _infer_product_rotation(second, right, left)
    return ABSOLUTE_ROTATION


def _infer_product_rotation(
    rotation: RotaryEmbedding, rotated: Value, factor: Value
) -> RotaryEmbedding:
    """Return the rotation of `rotated * factor`. The factor must be the same for all features of a
    vector, because per-feature weights do not commute with the rotation.
    """
    if rotation.feature_axis is None or rotated.rank < factor.rank:
        return ABSOLUTE_ROTATION
    factor_axis = rotation.feature_axis - (rotated.rank - factor.rank)
    return rotation if factor_axis < 0 or factor.shape[factor_axis] == 1 else ABSOLUTE_ROTATION


def _infer_view_rotation(node: Node, rotation: RotaryEmbedding) -> RotaryEmbedding:
    """Return the rotation after a view, which must not split or merge the feature axis."""
    if rotation.depends_on_absolute_angles:
        return ABSOLUTE_ROTATION
    if rotation.feature_axis is None:
        # Different views of the same angles are different rotations, e.g. if one view contains all
        # positions and another view contains half of the positions.
        return replace(rotation, key=(node.op, rotation.key))
    for dependence in find_dependences(node):
        is_kept = dependence.kind == "same" and isinstance(node.op, FEATURE_PRESERVING_VIEWS)
        if is_kept and dependence.operand_axis == rotation.feature_axis:
            return replace(rotation, feature_axis=dependence.result_axis)
    return ABSOLUTE_ROTATION
