"""Attention over all queries at once: the `Attention` operator, or products and a softmax.

ONNX Runtime 1.31 on CPU needs a mask of full query length and no empty axis. Mask and bias
become one float mask; queries without visible keys give zeros. `is_causal` is not used, because
opsets align its positions differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, multiply_dims
from specc.ir.types import Type
from specc_onnx.lower.emitter import Emitter, Tensor, make_branch
from specc_onnx.lower.nn import emit_masked_softmax
from specc_onnx.lower.onnx_nodes import PROBABILITIES_OUTPUT_MODE
from specc_onnx.lower.tensor_helpers import (
    emit_expand,
    emit_full,
    emit_reshape,
    emit_unsqueeze,
    is_always_true,
    make_typed_tensor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """Operands of one attention; `combined_mask` if mask and bias are combined already."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    add: Tensor | None
    sinks: Tensor | None
    combined_mask: str | None = None

    @property
    def grid(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Shape of the scores: batch, heads, queries, keys."""
        b, h, q, _ = self.q.shape
        return b, h, q, self.k.shape[2]

    @property
    def groups(self) -> Dim:
        """Number of key/value heads."""
        return self.k.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionResult:
    """Result of attention, `[b, t, h·e]` if `packed`, else `[b, h, t, e]`; its `weights`, "" if
    unavailable; `notes` name the values from which instrumentation can compute the weights.
    """

    result: str
    packed: bool
    weights: str
    notes: Mapping[str, str]


def emit_dense_attention(op: ops.Attend, g: Emitter, parts: AttentionParts) -> AttentionResult:
    """Emit attention of all queries at once."""
    return (
        emit_fused_attention if can_fuse_attention(op, g, parts) else emit_decomposed_attention
    )(op, g, parts)


def can_fuse_attention(op: ops.Attend, g: Emitter, parts: AttentionParts) -> bool:
    """Return whether the standard operator `Attention` can compute this attention."""
    # `Attention` has no sinks and takes the square root of the scale. Its f64 CPU kernel returns
    # NaN for a query without visible keys.
    wanted = {parts.q.dtype, *(["weights"] if g.site.is_used[1] else [])}
    return (
        g.has("Attention")
        and parts.sinks is None
        and op.scale > 0
        and wanted <= g.target.attention_dtypes
    )


def emit_result_per_head(g: Emitter, made: AttentionResult, heads: Dim, width: Dim) -> str:
    """Emit the result as `[b, h, t, e]`; unused nodes are removed later."""
    if not made.packed:
        return made.result
    last = -1 if width.number is None else width.number
    split = g.node("Reshape", made.result, [0, 0, heads.number or 0, last])
    result = g.node("Transpose", split, perm=[0, 2, 1, 3])
    g.layouts.packed[result] = made.result
    return result


def emit_decomposed_attention(op: ops.Attend, g: Emitter, parts: AttentionParts) -> AttentionResult:
    """Emit attention as products and a softmax; grouped query heads broadcast their key head."""
    dtype = parts.q.dtype
    b, h, q, k = parts.grid
    group_size = None if h == parts.groups else divide_dims_exactly(h, parts.groups)
    queries, keys, values = (
        _emit_grouped_heads(g, t, parts.groups, group_size) for t in (parts.q, parts.k, parts.v)
    )
    rank = 4 if group_size is None else 5
    # Keys are `[.., t, d]`; the product takes `[.., d, t]`.
    keys = g.node("Transpose", keys, perm=[*range(rank - 2), rank - 1, rank - 2])
    # Queries are scaled instead of scores, which are more for long sequences.
    if op.scale != 1.0:
        queries = g.node("Mul", queries, g.constant(op.scale, dtype))
    scores = g.node("MatMul", queries, keys)
    grouped_scores_shape = (
        (b, parts.groups, group_size, q, k) if group_size is not None else parts.grid
    )
    scores = emit_reshape(g, scores, parts.grid, before=grouped_scores_shape)
    if op.cap > 0:
        cap = g.constant(op.cap, dtype)
        scores = g.node("Mul", g.node("Tanh", g.node("Div", scores, cap)), cap)
    if parts.add is not None:
        scores = g.node("Add", scores, parts.add)
    weights = _emit_attention_weights(g, parts, scores)
    result = g.node(
        "MatMul", emit_reshape(g, weights, grouped_scores_shape, before=parts.grid), values
    )
    e = parts.v.shape[3]
    grouped_result_shape = (
        (b, parts.groups, group_size, q, e) if group_size is not None else (b, h, q, e)
    )
    result = emit_reshape(g, result, (b, h, q, e), before=grouped_result_shape)
    notes = {"weights": weights}
    return AttentionResult(result=result, packed=False, weights=weights, notes=notes)


def _emit_grouped_heads(g: Emitter, x: Tensor, groups: Dim, group_size: Dim | None) -> str:
    """Emit `[b, h, t, d]` as `[b, g, h/g, t, d]`, keys and values as `[b, g, 1, t, d]`."""
    if group_size is None:
        return x.name
    b, heads, t, d = x.shape
    if heads == groups:
        return emit_unsqueeze(g, x.name, 2)
    return emit_reshape(g, x, (b, groups, group_size, t, d))


def _emit_attention_weights(g: Emitter, parts: AttentionParts, scores: str) -> str:
    """Emit the softmax; a sink is an additional visible key whose weight is dropped."""
    dtype = parts.q.dtype
    b, h, q, k = parts.grid
    if parts.sinks is None:
        return emit_masked_softmax(g, scores, dtype, parts.mask, parts.add is None)
    if parts.mask is not None and not is_always_true(parts.mask):
        scores = g.node("Where", parts.mask, scores, g.constant(float("-inf"), dtype))
    sinks = g.node(
        "Expand", g.node("Reshape", parts.sinks, g.shape((1, h, 1, 1))), g.shape((b, 1, q, 1))
    )
    both = g.node("Softmax", g.node("Concat", scores, sinks, axis=3), axis=-1)
    return g.node("Slice", both, [0], g.shape([k]), [3])


def emit_fused_attention(op: ops.Attend, g: Emitter, parts: AttentionParts) -> AttentionResult:
    """Emit one `Attention` node, on packed heads where all three operands have them."""
    b, h, q, _ = parts.grid
    e = parts.v.shape[3]
    three = (parts.q, parts.k, parts.v)
    options: dict[str, Any] = {"scale": op.scale, "softcap": op.cap if op.cap > 0 else None}
    packed = find_packed_heads(g, parts)
    names: list[str | None] = [t.name for t in three]
    if packed is not None:
        # Packed heads need no transposes around the operator.
        names = [*packed]
        options |= {"q_num_heads": h.number, "kv_num_heads": parts.groups.number}
    shape = (b, q, h * e) if packed else (b, h, q, e)
    weights_read = g.site.is_used[1]
    # Without users, the kernel need not materialize the weights.
    if weights_read:
        options["qk_matmul_output_mode"] = PROBABILITIES_OUTPUT_MODE
    names.append(parts.combined_mask or emit_combined_mask(g, parts))
    is_packed = packed is not None
    return _emit_guarded_attention(
        g,
        parts,
        AttentionCall(
            names=names, options=options, shape=shape, weights_read=weights_read, packed=is_packed
        ),
    )


def find_packed_heads(g: Emitter, parts: AttentionParts) -> tuple[str, str, str] | None:
    """Return q, k and v as `[b, t, h·d]` if all three exist so and the kernel reads it."""
    q, k, v = (g.layouts.packed.get(t.name) for t in (parts.q, parts.k, parts.v))
    known = parts.grid[1].number and parts.groups.number
    if not g.target.packed_heads or not known or q is None or k is None or v is None:
        return None
    return q, k, v


def emit_combined_mask(g: Emitter, parts: AttentionParts) -> str | None:
    """Emit mask and bias as one full-size tensor; None if all keys are visible."""
    q, k = parts.grid[2:]
    mask, add = parts.mask, parts.add
    dtype = parts.q.dtype
    if add is None:
        return (
            None
            if mask is None or is_always_true(mask)
            else emit_expand(g, mask, (*mask.shape[:2], q, k))
        )
    if mask is None or is_always_true(mask):
        # ONNX Runtime requires the full query length, although ONNX would broadcast one row.
        return emit_expand(g, add, (*add.shape[:2], q, k))
    both = g.node("Where", mask, add, g.constant(float("-inf"), dtype))
    sides = [(m if a == 1 else a) for m, a in zip(mask.shape, add.shape, strict=True)]
    return emit_expand(g, make_typed_tensor(both, dtype, sides), (*sides[:2], q, k))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Inputs, attributes and result shape of an `Attention` node."""

    names: Sequence[str | None]
    options: Mapping[str, Any]
    shape: tuple[Dim, ...]
    weights_read: bool
    packed: bool

    @property
    def results(self) -> int:
        """Number of outputs of the node: the weights are the fourth."""
        return 4 if self.weights_read else 1


def _emit_guarded_attention(
    g: Emitter, parts: AttentionParts, call: AttentionCall
) -> AttentionResult:
    """Emit the `Attention` node, inside an `If` that returns zeros where an axis may be empty."""
    dtype, grid = parts.q.dtype, parts.grid
    b, _, q, k = grid
    maybe_empty = [d for d in dict.fromkeys((b, q, k)) if not g.lengths.is_positive(d)]
    if not maybe_empty:
        result, *more = g.nodes("Attention", call.results, *call.names, **call.options)
        return AttentionResult(
            result=result,
            packed=call.packed,
            weights=more[-1] if more else "",
            notes={"node": result},
        )
    # The product is 0 if any length is 0.
    with g.outside("lengths"):
        is_nonempty = g.node("Greater", g.dim(multiply_dims(maybe_empty)), 0)
    count = 1 + call.weights_read
    types = [Type(dtype, call.shape), Type(dtype, grid)][:count]

    def emit_attention() -> list[str]:
        made = g.nodes("Attention", call.results, *call.names, **call.options)
        return [made[0], made[-1]][:count]

    def emit_zeros() -> list[str]:
        return [emit_full(g, 0, dtype, t.shape) for t in types]

    nonempty_branch = make_branch(g, "some", types, emit_attention)
    empty_branch = make_branch(g, "none", types, emit_zeros)
    results = g.nodes(
        "If", count, is_nonempty, then_branch=nonempty_branch, else_branch=empty_branch
    )
    return AttentionResult(
        result=results[0],
        packed=call.packed,
        weights=results[1] if call.weights_read else "",
        notes={"node": nonempty_branch.output[0].name, "guard": results[0]},
    )
