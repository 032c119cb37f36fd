"""Lower attention to a window around a predicted center (Luong's local-p, arXiv:1508.04025, sec.
3.2).

    abs(float(j) - center[i]) <= radius

Each decode step has one query per sequence. If less than half of all keys are between the minimum
and the maximum center, extended by the radius, only these keys are scored and summed. The weights
of all other keys are zero.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.ir.types import Type
from specc_onnx.lower.blocked_attention_slices import (
    PositionSpan,
    emit_position_slice,
    emit_query_key_slice,
)
from specc_onnx.lower.dynamic_shapes import bind_dim_size
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.fused_and_decomposed_attention import emit_masked_softmax
from specc_onnx.lower.onnx_values import OnnxValue, Operand, Tensor
from specc_onnx.lower.reshape_reduce_and_matmul import emit_matmul, emit_reduce
from specc_onnx.lower.subgraphs import emit_if

WINDOW_KEYS_DIM = Dim.symbol("near.keys")
"""The number of keys in the union of all batch elements' windows, as a dimension."""

MIN_KEYS = 1000
"""The maximum number of keys for which attention to all keys is as fast as slicing the window."""


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """The span of keys in a window. `reads_window_only`, bool[], is false if all keys are used."""

    keys: PositionSpan
    reads_window_only: OnnxValue


def find_attention_window(g: Emitter, mask: Tensor) -> tuple[Value, Value] | None:
    """Return the center and the radius of the window that a mask `[…, 1, k]` selects, or None if it
    has no window.
    """
    shape = mask.shape
    if not g.target.uses_blocked_attention or len(shape) < 2 or shape[-2] != 1 or shape[-1].number:
        return None
    return _match_window(g, mask.value, shape[-1])


def _match_window(g: Emitter, mask: Value | None, keys: Dim) -> tuple[Value, Value] | None:
    """Match a mask `abs(j - center) <= radius` over `keys` positions `j`, or the conjunction of
    this mask with other masks. Return the center and the radius.
    """
    conditions = [mask]
    # The comparison may be an operand of a logical AND with other masks.
    while conditions:
        value = _find_outer_value(g, conditions.pop())
        match value and value.node:
            case Node(ops.And(), operands):
                conditions += operands
            case Node(
                ops.Compare(fn="le" | "lt"),
                (
                    Value(node=Node(ops.Pointwise(fn="abs"), (Value(node=Node() as difference),))),
                    Value() as radius,
                ),
            ):
                center = _match_center(g, difference, keys)
                if center is not None and keys not in radius.type.shape:
                    return center, radius
            case Node(op, (inner,)) if op.is_view:
                conditions.append(inner)
    return None


def _match_center(g: Emitter, difference: Node, keys: Dim) -> Value | None:
    """Match a difference of key positions and center in either order. Return the center or None."""
    match difference:
        case Node(ops.Arith(fn="sub"), (Value() as left, Value() as right)):
            for positions, center in ((left, right), (right, left)):
                are_key_ids = positions.type.shape[-1:] == (keys,) and _are_position_ids(
                    g, positions
                )
                if are_key_ids and keys not in center.type.shape:
                    return center
    return None


def _are_position_ids(g: Emitter, value: Value | None) -> bool:
    """Return True if a value contains position ids, in any layout."""
    while (value := _find_outer_value(g, value)) is not None and value.node is not None:
        if isinstance(value.node.op, ops.Extent | ops.Range):
            return True
        if not (value.node.op.is_view or isinstance(value.node.op, ops.Cast)):
            return False
        value = value.node.first_operand
    return False


def _find_outer_value(g: Emitter, value: Value | None) -> Value | None:
    """Return the outer value that a loop body captures as `value`, or `value` itself."""
    while value is not None and value.node is None and value in g.values.tensors:
        outer_value = g.values.tensors[value].value
        if outer_value is None or outer_value is value:
            break
        value = outer_value
    return value


def _emit_window_keys(g: Emitter, center: Value, radius: Value, keys: Dim) -> WindowKeys:
    """Emit the span of key positions (`keys`) from the minimum to the maximum center, extended by
    the radius plus 1 on both sides.
    """
    margin = _emit_extreme(g, radius, "ReduceMax", 0.0).apply_op("Ceil") + 1.0
    length = g.emit_length(keys).cast("f32")

    def emit_end(end: OnnxValue) -> OnnxValue:
        end = end.floor().maximum(0.0)
        return end.minimum(length).cast("i64").unsqueeze(0)

    # For an empty batch, the placeholder center is the opposite end of the key axis, so that the
    # window is minimal.
    first = emit_end(_emit_extreme(g, center, "ReduceMin", length) - margin)
    last = emit_end(_emit_extreme(g, center, "ReduceMax", 0.0) + margin)
    all_keys, one = g.emit_shape([keys]), [1]
    start = first.minimum(all_keys - one)
    stop = (last.maximum(start) + one).minimum(all_keys)
    span_length = stop - start
    is_short = span_length + span_length < all_keys
    return WindowKeys(PositionSpan(start, stop, WINDOW_KEYS_DIM), is_short.squeeze(0))


def _emit_extreme(g: Emitter, value: Value, op_type: str, placeholder: Operand) -> OnnxValue:
    """Emit the minimum (`op_type` "ReduceMin") or maximum of a value and `placeholder`, f32[]."""
    elements = g.values.tensors[value].cast("f32").reshape([-1])
    placeholder = g.emit_node("Unsqueeze", placeholder, [0])
    return emit_reduce(op_type, elements.apply_op("Concat", placeholder, axis=0), 0)


def emit_window_attention_weights(
    g: Emitter, window: tuple[Value, Value], operands: tuple[Tensor, Tensor]
) -> OnnxValue:
    """Emit attention weights `[…, 1, k]` by applying a masked softmax to `operands` (scores and
    mask). Keys outside `window` (center and radius) get a weight of 0, and their scores are not
    computed.
    """
    type = g.context.types[0]
    keys = type.shape[-1]
    with g.hoist_nodes("lengths"):
        has_many_keys = g.emit_length(keys) > MIN_KEYS
    index_type = Type.of("i64", 1)
    types = [type, index_type, index_type, Type("bool", ())]

    def emit_long_sequence() -> tuple[OnnxValue, ...]:
        window_keys = _emit_window_keys(g, *window, keys)
        weights = _emit_window_or_all_weights(g, window_keys, operands)
        span = window_keys.keys
        return weights, span.start, span.stop, window_keys.reads_window_only

    def emit_short_sequence() -> tuple[OnnxValue, ...]:
        weights = _emit_key_weights(g, operands, None)
        return weights, g.emit_shape([0]), g.emit_shape([0]), g.emit_constant(False, "bool")

    branches = {"many": emit_long_sequence, "few": emit_short_sequence}
    result, start, stop, reads_window_only = emit_if(
        g, has_many_keys, types, branches, isolated_branches=branches
    )
    g.cache.window_keys[result.name] = WindowKeys(
        PositionSpan(start, stop, WINDOW_KEYS_DIM), reads_window_only
    )
    return result


def _emit_window_or_all_weights(
    g: Emitter, window: WindowKeys, operands: tuple[Tensor, Tensor]
) -> OnnxValue:
    """Emit the attention weights of the window keys, or of all keys if the window is long."""
    type = g.context.types[0]
    zero_starts = [0] * (type.rank - 1)

    def emit_window() -> list[OnnxValue]:
        with _bind_window_length(g, window):
            weights = _emit_key_weights(g, operands, window.keys)
            keys_after = g.emit_shape([type.shape[-1]]) - window.keys.stop
            pads = (zero_starts, window.keys.start, zero_starts, keys_after)
            return [weights.apply_op("Pad", g.emit_node("Concat", *pads, axis=0))]

    branches = {"near": emit_window, "all": lambda: [_emit_key_weights(g, operands, None)]}
    return emit_if(g, window.reads_window_only, [type], branches, isolated_branches=["all"])[0]


def _emit_key_weights(
    g: Emitter, operands: tuple[Tensor, Tensor], keys: PositionSpan | None
) -> OnnxValue:
    """Emit the attention weights of a span of keys (None: all keys). Scores and mask are recomputed
    in the innermost body.
    """
    scores, mask = (
        emit_query_key_slice(
            g, x, (None, x.rank - 1), (None, keys), recomputes_single_axis_values=True
        )
        for x in operands
    )
    return emit_masked_softmax(scores, mask)


def emit_window_weighted_sum(g: Emitter, weights: Tensor, values: Tensor) -> OnnxValue | None:
    """Emit the weighted sum of `values` over the keys of the window. Return None if `weights` were
    not computed by `emit_window_attention_weights`.
    """
    window = _find_window_keys(g, weights.value)
    if window is None:
        return None
    type = g.context.types[0]

    def emit_window_only() -> list[OnnxValue]:
        with _bind_window_length(g, window):
            window_weights = emit_position_slice(g, weights, (weights.rank - 1,), (window.keys,))
            window_values = emit_position_slice(g, values, (values.rank - 2,), (window.keys,))
            return [emit_matmul(window_weights, window_values)]

    branches = {"near": emit_window_only, "all": lambda: [emit_matmul(weights, values)]}
    return emit_if(g, window.reads_window_only, [type], branches)[0]


def _find_window_keys(g: Emitter, value: Value | None) -> WindowKeys | None:
    """Return the window of the attention weights that `value` scales, or None if it scales none."""
    pending = [value]
    while pending:
        value = pending.pop()
        if value is None or value not in g.values.tensors:
            continue
        if (window := g.cache.window_keys.get(g.values.tensors[value].name)) is not None:
            return window
        match value.node:
            case Node(ops.Arith(fn="mul"), factors):
                pending += factors
            case Node(ops.Insert() | ops.Squeeze(), (inner,)):
                pending.append(inner)
    return None


def _bind_window_length(g: Emitter, window: WindowKeys) -> AbstractContextManager[None]:
    """Return a context manager that binds `WINDOW_KEYS_DIM` to the number of keys in the window."""
    count = window.keys.stop - window.keys.start
    return bind_dim_size(g, WINDOW_KEYS_DIM, count.squeeze(0))
