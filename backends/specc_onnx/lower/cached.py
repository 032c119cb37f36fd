"""Lowering of `Attend` over caches that are written in place.

ONNX Runtime's `GroupQueryAttention` writes the new rows into the buffer it is given;
`specc_onnx.emit.caches` decides where it serves, and says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.arrange import always, cast, cut, full, rows, typed, unsqueeze
from specc_onnx.lower.emitter import CONTRIB, Emitter, Tensor, graph_of

CAPACITY = Dim.symbol("capacity")
"""How many rows a buffer has room for."""


def buffer_type(type: Type) -> Type:
    """The type of the buffer that holds such keys or values."""
    return Type(type.dtype, (*type.shape[:2], CAPACITY, type.shape[3]))


HIDDEN = float("-inf")
"""The bias of a key that is not seen, below any that is. A row that sees none is made
zeros afterwards.
"""


@dataclass(frozen=True, slots=True)
class _Grown:
    """Keys or values that attention reads: the rows of a buffer with new ones behind
    them, which nobody has put together. Those that are kept in 8 bits have a `scale`,
    and the kernel rounds the new ones itself.
    """

    joined: Value
    past: Tensor
    fresh: Tensor
    scale: Tensor | None = None

    @classmethod
    def of(cls, g: Emitter, x: Tensor) -> "_Grown":
        # `caches_of` chose them so: a concatenation of a buffer and new rows
        assert x.value is not None
        scale, joined = _kept(x.value)
        past, fresh = _operands(joined)
        if scale is not None:
            fresh, _ = _operands(fresh)
        units = None if scale is None else g.tensors[scale]
        return cls(joined, g.tensors[past], g.tensors[fresh], units)


def in_buffers(g: Emitter, x: Tensor) -> bool:
    """Whether keys are a buffer with new rows behind it, which only `build_in_place` sets
    up.
    """
    if x.value is None:
        return False
    node = _kept(x.value)[1].node
    return node is not None and bool(node.args) and node.args[0] in g.buffers


def _kept(value: Value) -> tuple[Value | None, Value]:
    """The scale of what is kept in 8 bits, and what is kept; no scale where that is the
    numbers themselves.
    """
    if value.node is None or not isinstance(value.node.op, ops.Dequantize):
        return None, value
    joined, scale = _operands(value)
    return scale, joined


def _operands(value: Value) -> tuple[Value, Value]:
    """The two values that one is made of."""
    assert value.node is not None
    first, second = value.node.args
    assert first is not None
    assert second is not None
    return first, second


def cached_attention(
    op: ops.Attend,
    g: Emitter,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    add: Tensor | None,
) -> str:
    """One `GroupQueryAttention`; the buffers it has written into take the places of `k`
    and `v`. With 5 rows in the buffers and 2 new tokens it reads buffers of 7 rows or
    more, `filled` 6 (the last row's number), `total` 7.
    """
    b, h, asked, d = q.type.shape
    keys, values = _Grown.of(g, k), _Grown.of(g, v)
    count, whole = keys.fresh.type.shape[2], k.type.shape[2]
    query = _packed(g, q)
    # The kernel wants a query for every new key. A step that asks for the newest row
    # alone after several were given has fewer: what stands in for the others is cut off
    # again below.
    fewer = asked != count
    if fewer:
        query = _behind_nothing(g, query, (b, count - asked, h * d), q.type.dtype)
    grown = (keys, values)
    call = _Call(
        op=op,
        heads=(h, k.type.shape[1]),
        grown=grown,
        rows=(query, *(_packed(g, x.fresh) for x in grown)),
        filled=_filled(g, b, whole),
        result=Type(q.type.dtype, (b, count, h * d)),
    )
    masked = mask is not None and not always(mask)
    if g.target.unmasked and mask is not None and masked and add is None:
        plain = _hides_later_rows_alone(g, mask, (asked, whole))
        result, *written = _either(g, call, plain, mask)
    else:
        bias = _bias(g, q.type.dtype, (count, whole), mask, add)
        result, *written = call.written(g, bias)
    for each, name in zip(grown, written, strict=True):
        g.tensors[each.joined] = Tensor(name, each.joined.type, each.joined)
    if fewer:
        result = cut(g, result, 1, count - asked, count)
    if mask is not None and masked:
        result = _seeing(g, result, mask, q.type.dtype)
    return _opened(g, result, h, d)


def _filled(g: Emitter, batch: Dim, whole: Dim) -> tuple[str, str]:
    """The last row's number of each text, and how many rows there are, new ones too."""
    with g.outside("lengths"):
        total = cast(g, g.dim(whole), "i64", "i32")
        last = cast(g, g.dim(whole - 1), "i64", "i32")
        return g.node("Expand", last, g.shape([batch])), total


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A `GroupQueryAttention` to be: heads of queries, and of keys and values; queries
    and new keys and values; how much of the buffers is `filled`; the type of its result.
    """

    op: ops.Attend
    heads: tuple[Dim, Dim]
    grown: tuple[_Grown, _Grown]
    rows: tuple[str, ...]
    filled: tuple[str, str]
    result: Type

    def written(self, g: Emitter, bias: str | None) -> tuple[str, ...]:
        """Its result and the buffers."""
        rotation = [None, None, None]  # the kernel's own, which no spec asks for
        buffers = [x.past.name for x in self.grown]
        scales, kinds = _in_8_bits(*self.grown)
        return g.nodes(
            "GroupQueryAttention",
            3,
            *(*self.rows, *buffers, *self.filled, *rotation, bias, *scales),
            domain=CONTRIB,
            num_heads=self.heads[0].number,
            kv_num_heads=self.heads[1].number,
            scale=self.op.scale,
            softcap=self.op.cap if self.op.cap > 0 else None,
            **kinds,
        )


def _either(g: Emitter, call: _Call, plain: str, mask: Tensor) -> tuple[str, ...]:
    """Attention without a bias where it turns out that none is needed: kernels that are
    given one are slower ones. Both branches write into the same buffers.
    """
    types = (call.result, *(buffer_type(x.past.type) for x in call.grown))
    grid = call.result.shape[1], call.grown[0].joined.type.shape[2]
    with g.body() as then:
        made = call.written(g, None)
    without = graph_of("plain", then, made, types)
    with g.body() as otherwise:
        made = call.written(g, _bias(g, call.result.dtype, grid, mask, None))
    with_bias = graph_of("masked", otherwise, made, types)
    return g.nodes("If", 3, plain, then_branch=without, else_branch=with_bias)


def _hides_later_rows_alone(g: Emitter, mask: Tensor, grid: tuple[Dim, Dim]) -> str:
    """Whether a mask shows every key up to the query itself, as the kernel does: a bool.
    With 5 rows in the buffers and 2 new ones, the queries are rows 5 and 6 of 7.
    """
    queries, keys = grid
    with g.outside("lengths"):
        before = g.dim(keys - queries)
        query = unsqueeze(g, g.node("Add", rows(g, queries), before), 1)
        later = g.node("Greater", rows(g, keys), query)
    shown = g.node("Or", mask.name, later)
    least = g.node("ReduceMin", cast(g, shown, "bool", "i32"), keepdims=0)
    return g.node("Equal", least, g.constant(1, "i32"))


def _in_8_bits(
    keys: _Grown, values: _Grown
) -> tuple[list[str | None], dict[str, str | int]]:
    """The operands and attributes of a kernel whose buffers hold 8 bits; none of others."""
    if keys.scale is None or values.scale is None:
        return [], {}
    kinds: dict[str, str | int] = {"kv_cache_bit_width": 8}
    kinds |= dict.fromkeys(("k_quant_type", "v_quant_type"), "PER_CHANNEL")
    # sinks have a place before scales, and none are asked for
    return [None, keys.scale.name, values.scale.name], kinds


def _opened(g: Emitter, packed: str, heads: Dim, width: Dim) -> str:
    """`[b, t, h·d]` as `[b, h, t, d]`; whoever wants it packed finds it so."""
    shape = g.vector(0, 0, heads.number or 0, width.number or 0)
    turned = g.node("Transpose", g.node("Reshape", packed, shape), perm=[0, 2, 1, 3])
    g.packed[turned] = packed
    return turned


def _packed(g: Emitter, x: Tensor) -> str:
    """`[b, h, t, d]` as `[b, t, h·d]`."""
    if (known := g.packed.get(x.name)) is not None:
        return known
    _, h, _, d = x.type.shape
    turned = g.node("Transpose", x.name, perm=[0, 2, 1, 3])
    return g.node("Reshape", turned, g.vector(0, 0, (h.number or 0) * (d.number or 0)))


def _behind_nothing(g: Emitter, query: str, shape: Sequence[Dim], dtype: str) -> str:
    """The newest queries alone, where the kernel wants one for every new key: zeros
    stand for the others.
    """
    return g.node("Concat", full(g, 0, dtype, shape), query, axis=1)


def _bias(
    g: Emitter,
    dtype: str,
    grid: tuple[Dim, Dim],
    mask: Tensor | None,
    add: Tensor | None,
) -> str | None:
    """What is added to scores, of full query and key length; the kernel hides later
    rows by itself.
    """
    if mask is not None and not always(mask):
        zero = add.name if add else g.constant(0.0, dtype)
        shown = g.node("Where", mask.name, zero, g.constant(HIDDEN, dtype))
        sides = mask.type.shape
        if add is not None:
            sides = tuple(
                m if a == 1 else a for m, a in zip(sides, add.type.shape, strict=True)
            )
        bias = typed(shown, dtype, sides)
    elif add is not None:
        bias = add
    else:
        return None
    wanted = (*bias.type.shape[:2], *grid)
    return (
        bias.name
        if bias.type.shape == wanted
        else g.node("Expand", bias.name, g.shape(wanted))
    )


def _seeing(g: Emitter, result: str, mask: Tensor, dtype: str) -> str:
    """Zeros for the rows that see no key; `result` is `[b, t, h·d]`, the mask the same
    for all heads.
    """
    seen = g.node(
        "ReduceMax", cast(g, mask.name, "bool", "f32"), g.vector(3), keepdims=0
    )
    some = g.node("Transpose", seen, perm=[0, 2, 1])
    return g.node("Where", cast(g, some, "f32", "bool"), result, g.constant(0, dtype))
