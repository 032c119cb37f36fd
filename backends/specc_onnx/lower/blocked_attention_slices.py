"""Slice query-key masks, scores and attention operands by recomputing them per block. If an op is
elementwise along queries and keys, its operands are sliced instead of its result. For example, for
a block of 32 queries and 95 keys, `j <= i` compares 32 query positions with 95 key positions.
Values with only one of the two axes and results of all other ops are leaves, which the caller
slices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specc.analysis.mask_bands import find_band_interval
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Node, Value
from specc.ir.loop_dependence import find_op_dependences
from specc.ir.op import Op
from specc.ir.types import EMPTY_INTERVAL, Interval, ShapeError, Type
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.fused_and_decomposed_attention import (
    AttentionOperands,
    can_fuse_attention,
    find_packed_heads,
)
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower_nodes

QueryKeyAxes: TypeAlias = tuple[int | None, int | None]
"""The query axis and the key axis of a value."""

LeafFunction: TypeAlias = Callable[[Value, QueryKeyAxes], Value]
"""A function that returns the slice of a leaf along its query axis and its key axis."""


@dataclass(kw_only=True)
class QueryKeySlicer:
    """A builder that recomputes query-key tensors `[…, q, k]` for the slices `queries` and `keys`.
    `slice_leaf` slices leaves. `query_key_leaves` collects the leaves that have both a query axis
    and a key axis. If `recomputes_single_axis_values` is True, values with only one of the two axes
    are also recomputed. Results of expensive ops other than MatMul are not. Attention weights are
    recomputed only if their mask excludes all keys outside `visible_band`.
    """

    queries: Dim
    keys: Dim
    slice_leaf: LeafFunction = lambda value, axes: value
    scope: str = ""
    recomputes_single_axis_values: bool = False
    visible_band: Interval = EMPTY_INTERVAL
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    query_key_leaves: list[Value] = field(default_factory=list)
    _slices: dict[tuple[Value, QueryKeyAxes], Value] = field(default_factory=dict)

    def build_slice(self, value: Value, axes: QueryKeyAxes) -> Value:
        """Add nodes that compute the slice of `value` along `axes`, and return the slice."""
        stack = [(value, axes)]
        # The traversal uses an explicit stack, because masks may be computed by thousands of nodes.
        while stack:
            key = stack[-1]
            if key in self._slices:
                stack.pop()
                continue
            operands = self._slice_all_operands(*key)
            if operands is None:
                self._slices[key] = self._slice_leaf(*key)
                continue
            pending_operands = [o for o in operands if o and o not in self._slices]
            if pending_operands:
                stack += pending_operands
                continue
            operand_slices = [self._slices[o] if o else None for o in operands]
            self._slices[key] = self._recompute_node(*key, operand_slices) or self._slice_leaf(*key)
        return self._slices[value, axes]

    def build_graph(self, value: Value) -> Graph:
        """Return the graph that computes `value`, a result of `build_slice`, from the leaves."""
        return self.builder.build_graph("slice", {"slice": value})

    def _slice_all_operands(
        self, value: Value, axes: QueryKeyAxes
    ) -> list[tuple[Value, QueryKeyAxes] | None] | None:
        """Return the operands of `value` and their query and key axes, or None if it is a leaf."""
        node = value.node
        present_axes = [axis for axis in axes if axis is not None]
        if node is None or not self._should_recompute(node.op, len(present_axes)):
            return None
        dependences = _find_result_dependences(node, value.index)
        if self._takes_all_keys(node, axes):
            return [_align_query_key_operand(a) for a in node.args if a]
        if not all(_is_elementwise_axis(node.op, dependences, axis) for axis in present_axes):
            return None
        return [
            None if a is None else (a, _map_query_key_axes(dependences, n, axes))
            for n, a in enumerate(node.args)
        ]

    def _should_recompute(self, op: Op, axis_count: int) -> bool:
        """Return True if results of `op` are recomputed instead of sliced. `axis_count` is 2 if the
        results have a query axis and a key axis, otherwise 1.
        """
        if isinstance(op, ops.Scan):
            return False
        is_cheap = not op.is_compute_intensive or isinstance(op, ops.MatMul | ops.Einsum)
        return axis_count == 2 or (
            axis_count == 1 and self.recomputes_single_axis_values and is_cheap
        )

    def _takes_all_keys(self, node: Node, axes: QueryKeyAxes) -> bool:
        """Return True if the slice contains all keys whose attention weights can be nonzero."""
        op = node.op
        if not isinstance(op, ops.AttentionNormalizer):
            return False
        mask = op.mask(node)
        key_axis = op.scores(node).type.rank - 1
        band = find_band_interval(mask, mask.type.rank - 2, mask.type.rank - 1)
        is_band_visible = self.visible_band.low <= band.low and band.high <= self.visible_band.high
        return is_band_visible and axes == (key_axis - 1, key_axis)

    def _slice_leaf(self, value: Value, axes: QueryKeyAxes) -> Value:
        if axes == (None, None):
            return value
        if None not in axes:
            self.query_key_leaves.append(value)
        return self.slice_leaf(value, axes)

    def _recompute_node(
        self, value: Value, axes: QueryKeyAxes, operands: Sequence[Value | None]
    ) -> Value | None:
        """Copy the node of `value` with sliced `operands`, or return None if its shape is wrong."""
        node = value.node
        assert node is not None, "a value without a node is a leaf"
        shape = list(value.type.shape)
        for axis, length in zip(axes, (self.queries, self.keys), strict=True):
            if axis is not None:
                shape[axis] = length
        op = node.op
        if isinstance(op, ops.Expand) and op.axis in axes:
            op = replace(op, length=shape[op.axis])
        try:
            result = self.builder.add_node(op, *operands, scope=self.scope)[value.index]
        except ShapeError:
            return None
        return result if result.type.shape == tuple(shape) else None


def _find_result_dependences(node: Node, result_index: int) -> list[Dependence]:
    """Return how the result of a node depends on each of its operands."""
    types = tuple(a.type if a else None for a in node.args)
    dependences = find_op_dependences(node.op, types, node.op.infer_result_types(*types))
    return [dependence for dependence in dependences if dependence.result == result_index]


def _is_elementwise_axis(op: Op, dependences: Sequence[Dependence], axis: int) -> bool:
    """Return True if each result axis position depends only on the same operand position."""
    kinds = {d.kind for d in dependences if d.result_axis == axis}
    is_expanded = isinstance(op, ops.Expand) and op.axis == axis
    return kinds == {"same"} or (is_expanded and not kinds)


def _align_query_key_operand(operand: Value) -> tuple[Value, QueryKeyAxes]:
    """Return an operand with its query axis and key axis, which are None if they are broadcast."""
    shape = operand.type.shape
    key_axis = len(shape) - 1
    query, key = (None if shape[axis] == 1 else axis for axis in (key_axis - 1, key_axis))
    return operand, (query, key)


def _map_query_key_axes(
    dependences: Sequence[Dependence], operand: int, axes: QueryKeyAxes
) -> QueryKeyAxes:
    """Return the operand axes that become the result axes `axes`, with None for broadcast axes."""
    operand_axes = {
        d.result_axis: d.operand_axis
        for d in reversed(dependences)
        if d.operand == operand and d.kind == "same"
    }
    query, key = (None if axis is None else operand_axes.get(axis) for axis in axes)
    return query, key


@dataclass(frozen=True, slots=True)
class PositionSpan:
    """A selection of positions. It consists of `global_positions`, i64[n] (None if there are none),
    followed, if `has_range`, by the range from `start` to `stop` (exclusive), both i64[1]. `length`
    is the total number of selected positions.
    """

    start: OnnxValue
    stop: OnnxValue
    length: Dim
    global_positions: OnnxValue | None = None
    has_range: bool = True


def slice_attention_operands(
    op: ops.Attend,
    g: Emitter,
    operands: AttentionOperands,
    queries: PositionSpan,
    keys: PositionSpan | None,
) -> AttentionOperands:
    """Emit the operands for attention of a span of queries to a span of keys (None: all keys). The
    mask and the bias are recomputed. The queries, keys and values are sliced.
    """
    mask, bias = (
        emit_mask_slice(g, x, queries, keys) if x and x.value else x
        for x in (operands.mask, operands.bias)
    )
    if mask is not None and keys is not None and keys.global_positions:
        is_counted = _emit_not_duplicated(keys, keys.global_positions)
        mask = (mask & is_counted).with_type(mask.type, mask.value)
    packed_heads = find_packed_heads(g, operands) if can_fuse_attention(op, g, operands) else None
    q, k, v = (
        _emit_head_slice(g, x, span, packed)
        for x, span, packed in zip(
            (operands.q, operands.k, operands.v),
            (queries, keys, keys),
            packed_heads or (None, None, None),
            strict=True,
        )
    )
    return replace(operands, q=q, k=k, v=v, mask=mask, bias=bias)


def emit_query_key_slice(
    g: Emitter,
    x: Tensor,
    axes: QueryKeyAxes,
    spans: tuple[PositionSpan | None, PositionSpan | None],
    *,
    recomputes_single_axis_values: bool = False,
    visible_band: Interval = EMPTY_INTERVAL,
) -> Tensor:
    """Recompute `x` in the innermost body for a span of queries and a span of keys (None: all
    positions). `axes` contains the query axis and the key axis of `x`. The keyword arguments are
    those of `QueryKeySlicer`.
    """
    assert x.value is not None, "an operand from the IR graph has an IR value"

    def slice_leaf(value: Value, axes: QueryKeyAxes) -> Value:
        tensor = g.values.tensors[value]
        slice_tensor = emit_position_slice(g, tensor, axes, spans)
        if slice_tensor is tensor:
            return value
        slice_result = Value(slice_tensor.type)
        g.values.tensors[slice_result] = slice_tensor.with_type(slice_tensor.type, slice_result)
        return slice_result

    queries, keys = (
        span.length if span else x.shape[0 if axis is None else axis]
        for span, axis in zip(spans, axes, strict=True)
    )
    slicer = QueryKeySlicer(
        queries=queries,
        keys=keys,
        slice_leaf=slice_leaf,
        scope=g.context.scope,
        recomputes_single_axis_values=recomputes_single_axis_values,
        visible_band=visible_band,
    )
    value = slicer.build_slice(x.value, axes)
    lower_nodes(g, slicer.build_graph(value))
    return g.values.tensors[value]


def emit_mask_slice(
    g: Emitter, x: Tensor, queries: PositionSpan | None = None, keys: PositionSpan | None = None
) -> Tensor:
    """Emit a mask or bias `[b, h, q, k]` for spans of queries and keys (None: all positions)."""
    shape = x.shape
    axes: QueryKeyAxes = (None if shape[2] == 1 else 2, None if shape[3] == 1 else 3)
    return emit_query_key_slice(g, x, axes, (queries, keys))


def _emit_not_duplicated(keys: PositionSpan, global_positions: OnnxValue) -> OnnxValue:
    """Emit a mask without the global keys inside the window, which would be counted twice."""
    g, is_before = keys.start.g, global_positions < keys.start
    is_after = global_positions >= keys.stop
    in_window = g.emit_node("Expand", True, keys.stop - keys.start)
    return g.emit_node("Concat", is_before | is_after, in_window, axis=0)


def _emit_head_slice(
    g: Emitter, x: Tensor, span: PositionSpan | None, packed_heads: OnnxValue | None
) -> Tensor:
    """Emit a slice of `x` `[b, h, t, d]`, or of the packed heads `packed_heads` `[b, t, h·d]`."""
    if span is None or packed_heads is None:
        return emit_position_slice(g, x, (2,), (span,))
    b, h, t, d = x.shape
    packed_slice = emit_position_slice(g, packed_heads.with_shape((b, t, h * d)), (1,), (span,))
    heads = g.new_tensor("heads", _set_axis_length(x.type, 2, span.length))
    g.cache.packed_heads[heads.name] = packed_slice
    return heads


def emit_position_slice(
    g: Emitter, x: Tensor, axes: Sequence[int | None], spans: Sequence[PositionSpan | None]
) -> Tensor:
    """Slice `x` to `spans` along `axes`. An axis is unchanged if it or its span is None."""
    axis_spans = [
        (axis, span)
        for axis, span in zip(axes, spans, strict=True)
        if axis is not None and span is not None
    ]
    if not axis_spans:
        return x
    type = x.type
    result: OnnxValue = x
    # One `Slice` selects the ranges of all axes that have no global positions.
    if ranges := [(axis, span) for axis, span in axis_spans if not span.global_positions]:
        starts = _emit_index_vector(g, [span.start for _, span in ranges])
        stops = _emit_index_vector(g, [span.stop for _, span in ranges])
        result = x.apply_op("Slice", starts, stops, [axis for axis, _ in ranges])
    for axis, span in axis_spans:
        type = _set_axis_length(type, axis, span.length)
        result = _emit_gathered_positions(result, axis, span)
    g.innermost_body.types[result.name] = type
    return result.with_type(type)


def _emit_gathered_positions(x: OnnxValue, axis: int, span: PositionSpan) -> OnnxValue:
    """Emit the positions of a span. Global positions come first. Return `x` if there are no global
    positions.
    """
    if span.global_positions is None:
        return x
    positions = x.gather(span.global_positions, axis)
    if not span.has_range:
        return positions
    window = x.apply_op("Slice", span.start, span.stop, [axis])
    return positions.apply_op("Concat", window, axis=axis)


def _emit_index_vector(g: Emitter, indices: Sequence[OnnxValue]) -> OnnxValue:
    return indices[0] if len(indices) == 1 else g.emit_node("Concat", *indices, axis=0)


def _set_axis_length(type: Type, axis: int, length: Dim) -> Type:
    return Type(type.dtype, (*type.shape[:axis], length, *type.shape[axis + 1 :]))
