"""Attention over in-place KV buffers (`GroupQueryAttention`).

ONNX Runtime's `GroupQueryAttention` writes the new rows into the buffer it is given;
`specc_onnx.emit.kv_buffers` decides where it serves, and says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter, make_branch
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.tensor_helpers import (
    emit_arange,
    emit_cast,
    emit_full,
    emit_slice,
    emit_unsqueeze,
    is_always_true,
    make_typed_tensor,
)

BUFFER_CAPACITY_DIM = Dim.symbol("capacity")
"""The capacity of a KV buffer, in positions."""


def get_buffer_type(type: Type) -> Type:
    """Return the type of the buffer for such keys or values."""
    return Type(type.dtype, (*type.shape[:2], BUFFER_CAPACITY_DIM, type.shape[3]))


MASKED_BIAS = float("-inf")
"""The bias of a masked key, below that of any visible one. Rows without visible keys are set to
zero afterwards."""


@dataclass(frozen=True, slots=True)
class _AppendedBuffer:
    """Keys or values of an attention: a buffer and new positions, which the kernel appends, and
    quantizes if there is a `scale`.
    """

    joined: Value
    past: Tensor
    fresh: Tensor
    scale: Tensor | None = None

    @classmethod
    def of(cls, g: Emitter, x: Tensor) -> "_AppendedBuffer":
        # `caches_of` selected them: a concatenation of a buffer and new positions
        assert x.value is not None
        scale, joined = _split_scale(x.value)
        past, fresh = _get_two_operands(joined)
        if scale is not None:
            fresh, _ = _get_two_operands(fresh)
        units = None if scale is None else g.values.tensors[scale]
        return cls(joined, g.values.tensors[past], g.values.tensors[fresh], units)


def is_kv_buffer(g: Emitter, x: Tensor) -> bool:
    """Return True if keys are a KV buffer with new positions appended."""
    if x.value is None:
        return False
    node = _split_scale(x.value)[1].node
    return node is not None and bool(node.args) and node.args[0] in g.values.buffers


def _split_scale(value: Value) -> tuple[Value | None, Value]:
    """Return the scale of an int8 cache, or None, and the stored value."""
    if value.node is None or not isinstance(value.node.op, ops.Dequantize):
        return None, value
    joined, scale = _get_two_operands(value)
    return scale, joined


def _get_two_operands(value: Value) -> tuple[Value, Value]:
    """Return the two operands of a concatenation."""
    assert value.node is not None
    first, second = value.node.args
    assert first is not None
    assert second is not None
    return first, second


def emit_kv_buffer_attention(
    op: ops.Attend,
    g: Emitter,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    add: Tensor | None,
) -> str:
    """Emit a `GroupQueryAttention` whose written buffers replace `k` and `v`. With 5 positions in
    the buffers and 2 new ones, capacity is at least 7, `filled` 6 and `total` 7.
    """
    b, h, asked, d = q.type.shape
    keys, values = _AppendedBuffer.of(g, k), _AppendedBuffer.of(g, v)
    count, whole = keys.fresh.type.shape[2], k.type.shape[2]
    query = _emit_packed_heads(g, q)
    # The kernel takes a query for every new key. A step that returns only the newest position after
    # several were given has fewer: placeholders are added here and sliced off below.
    fewer = asked != count
    if fewer:
        query = _emit_padded_queries(g, query, (b, count - asked, h * d), q.type.dtype)
    grown = (keys, values)
    call = _GroupQueryCall(
        op=op,
        heads=(h, k.type.shape[1]),
        grown=grown,
        rows=(query, *(_emit_packed_heads(g, x.fresh) for x in grown)),
        filled=_emit_fill_counts(g, b, whole),
        result=Type(q.type.dtype, (b, count, h * d)),
    )
    masked = mask is not None and not is_always_true(mask)
    if g.target.unmasked and mask is not None and masked and add is None:
        plain = _emit_is_causal_mask(g, mask, (asked, whole))
        result, *written = _emit_unbiased_if_causal(g, call, plain, mask)
    else:
        bias = _emit_attention_bias(g, q.type.dtype, (count, whole), mask, add)
        result, *written = call.emit_call(g, bias)
    for each, name in zip(grown, written, strict=True):
        g.values.tensors[each.joined] = Tensor(name, each.joined.type, each.joined)
    if fewer:
        result = emit_slice(g, result, 1, count - asked, count)
    if mask is not None and masked:
        result = _emit_zeros_for_masked(g, result, mask, q.type.dtype)
    return _emit_unpacked_heads(g, result, h, d)


def _emit_fill_counts(g: Emitter, batch: Dim, whole: Dim) -> tuple[str, str]:
    """Emit the last position of each sequence, and the number of positions including new ones."""
    with g.outside("lengths"):
        total = emit_cast(g, g.dim(whole), "i64", "i32")
        last = emit_cast(g, g.dim(whole - 1), "i64", "i32")
        return g.node("Expand", last, g.shape([batch])), total


@dataclass(frozen=True, kw_only=True)
class _GroupQueryCall:
    """A `GroupQueryAttention` to be: heads of queries, and of keys and values; queries
    and new keys and values; how much of the buffers is `filled`; the type of its result.
    """

    op: ops.Attend
    heads: tuple[Dim, Dim]
    grown: tuple[_AppendedBuffer, _AppendedBuffer]
    rows: tuple[str, ...]
    filled: tuple[str, str]
    result: Type

    def emit_call(self, g: Emitter, bias: str | None) -> tuple[str, ...]:
        """Return the attention result and the updated buffers."""
        rotation = [None, None, None]  # the kernel's own names, which no spec uses
        buffers = [x.past.name for x in self.grown]
        scales, kinds = _get_int8_operands(*self.grown)
        return g.nodes(
            "GroupQueryAttention",
            3,
            *(*self.rows, *buffers, *self.filled, *rotation, bias, *scales),
            domain=CONTRIB_DOMAIN,
            num_heads=self.heads[0].number,
            kv_num_heads=self.heads[1].number,
            scale=self.op.scale,
            softcap=self.op.cap if self.op.cap > 0 else None,
            **kinds,
        )


def _emit_unbiased_if_causal(
    g: Emitter, call: _GroupQueryCall, plain: str, mask: Tensor
) -> tuple[str, ...]:
    """Emit attention without a bias, which is faster, if the mask is causal at run time."""
    types = (call.result, *(get_buffer_type(x.past.type) for x in call.grown))
    grid = call.result.shape[1], call.grown[0].joined.type.shape[2]

    def attend_with_bias() -> tuple[str, ...]:
        return call.emit_call(g, _emit_attention_bias(g, call.result.dtype, grid, mask, None))

    without = make_branch(g, "plain", types, lambda: call.emit_call(g, None))
    with_bias = make_branch(g, "masked", types, attend_with_bias)
    return g.nodes("If", 3, plain, then_branch=without, else_branch=with_bias)


def _emit_is_causal_mask(g: Emitter, mask: Tensor, grid: tuple[Dim, Dim]) -> str:
    """Emit whether a mask shows every key up to the query itself, bool[]."""
    queries, keys = grid
    with g.outside("lengths"):
        before = g.dim(keys - queries)
        query = emit_unsqueeze(g, g.node("Add", emit_arange(g, queries), before), 1)
        later = g.node("Greater", emit_arange(g, keys), query)
    shown = g.node("Or", mask.name, later)
    least = g.node("ReduceMin", emit_cast(g, shown, "bool", "i32"), keepdims=0)
    return g.node("Equal", least, g.constant(1, "i32"))


def _get_int8_operands(
    keys: _AppendedBuffer, values: _AppendedBuffer
) -> tuple[list[str | None], dict[str, str | int]]:
    """Return the operands and attributes of the kernel for int8 buffers; none for others."""
    if keys.scale is None or values.scale is None:
        return [], {}
    kinds: dict[str, str | int] = {"kv_cache_bit_width": 8}
    kinds |= dict.fromkeys(("k_quant_type", "v_quant_type"), "PER_CHANNEL")
    # the sinks operand precedes the scales; none are given
    return [None, keys.scale.name, values.scale.name], kinds


def _emit_unpacked_heads(g: Emitter, packed: str, heads: Dim, width: Dim) -> str:
    """Transpose `[b, t, h·d]` to `[b, h, t, d]`; the packed form is kept for reuse."""
    shape = g.vector(0, 0, heads.number or 0, width.number or 0)
    is_transposed = g.node("Transpose", g.node("Reshape", packed, shape), perm=[0, 2, 1, 3])
    g.layouts.packed[is_transposed] = packed
    return is_transposed


def _emit_packed_heads(g: Emitter, x: Tensor) -> str:
    """`[b, h, t, d]` as `[b, t, h·d]`."""
    if (known := g.layouts.packed.get(x.name)) is not None:
        return known
    _, h, _, d = x.type.shape
    is_transposed = g.node("Transpose", x.name, perm=[0, 2, 1, 3])
    return g.node("Reshape", is_transposed, g.vector(0, 0, (h.number or 0) * (d.number or 0)))


def _emit_padded_queries(g: Emitter, query: str, shape: Sequence[Dim], dtype: str) -> str:
    """Pad the newest queries at the front: the kernel needs one per new key."""
    return g.node("Concat", emit_full(g, 0, dtype, shape), query, axis=1)


def _emit_attention_bias(
    g: Emitter, dtype: str, grid: tuple[Dim, Dim], mask: Tensor | None, add: Tensor | None
) -> str | None:
    """Emit mask and bias as one full-size bias; the kernel itself is causal."""
    if mask is not None and not is_always_true(mask):
        zero = add.name if add else g.constant(0.0, dtype)
        shown = g.node("Where", mask.name, zero, g.constant(MASKED_BIAS, dtype))
        sides = mask.type.shape
        if add is not None:
            sides = tuple(m if a == 1 else a for m, a in zip(sides, add.type.shape, strict=True))
        bias = make_typed_tensor(shown, dtype, sides)
    elif add is not None:
        bias = add
    else:
        return None
    wanted = (*bias.type.shape[:2], *grid)
    return bias.name if bias.type.shape == wanted else g.node("Expand", bias.name, g.shape(wanted))


def _emit_zeros_for_masked(g: Emitter, result: str, mask: Tensor, dtype: str) -> str:
    """Zero the rows of `[b, t, h·d]` that see no key; the mask is that of all heads."""
    seen = g.node("ReduceMax", emit_cast(g, mask.name, "bool", "f32"), g.vector(3), keepdims=0)
    some = g.node("Transpose", seen, perm=[0, 2, 1])
    return g.node("Where", emit_cast(g, some, "f32", "bool"), result, g.constant(0, dtype))
