"""Rows of an axis, cut out of whatever has that axis: neighbors, and in front of them
some others by their numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.portion import Axes, Leaf, Portion
from specc_onnx.lower.table import lower_nodes
from specc_onnx.lower.whole import Parts, fused, packed_heads


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from `start` up to `stop`, each i64[1], or none where they are ""; in front
    of them those whose numbers are `others`, i64[n]. There are `length`.
    """

    start: str
    stop: str
    length: Dim
    others: str = ""


def cut_parts(
    op: ops.Attend, g: Emitter, parts: Parts, queries: Span, keys: Span | None
) -> Parts:
    """The operands of an attention of some queries over some keys, or over all."""

    def leaf(value: Value, axes: Axes) -> Value:
        x = rows_of(g, g.tensors[value], axes, (queries, keys))
        # What has no value yet is another tensor than the one that was given.
        made = value if x.value is value else Value(x.type)
        g.tensors[made] = replace(x, value=made)
        return made

    length = keys.length if keys else parts.grid[3]
    portion = portion_of(g, queries.length, length, leaf)
    mask, add = (
        lowered(g, portion, x) if x and x.value else x for x in (parts.mask, parts.add)
    )
    if mask is not None and keys is not None and keys.others:
        mask = replace(mask, name=g.node("And", mask.name, _once(g, keys)))
    q, k, v = _operands(op, g, parts, (queries, keys, keys))
    return replace(parts, q=q, k=k, v=v, mask=mask, add=add)


def _operands(
    op: ops.Attend, g: Emitter, parts: Parts, spans: Sequence[Span | None]
) -> list[Tensor]:
    """Query, key and value, of each the rows of its span."""
    whole = (parts.q, parts.k, parts.v)
    packed: Sequence[str | None] | None = None
    if fused(op, g, parts):
        packed = packed_heads(g, parts)
    names = packed or (None, None, None)
    operands = zip(whole, spans, names, strict=True)
    return [_heads(g, x, span, name) for x, span, name in operands]


def portion_of(g: Emitter, queries: Dim, keys: Dim, leaf: Leaf) -> Portion:
    """Grids of these lengths, to be made under the scope of what is being lowered."""
    return Portion(queries=queries, keys=keys, leaf=leaf, scope=g.site.scope)


def lowered(g: Emitter, portion: Portion, x: Tensor) -> Tensor:
    """A portion of a mask or of added scores, `[b, h, q, k]`, written into the innermost
    body.
    """
    assert x.value is not None, "what has no value was made by a rule, as no mask is"
    shape = x.type.shape
    axes: Axes = (None if shape[2] == 1 else 2, None if shape[3] == 1 else 3)
    value = portion.of(x.value, axes)
    site = g.site
    lower_nodes(g, portion.graph(value))
    g.site = site
    return g.tensors[value]


def _once(g: Emitter, keys: Span) -> str:
    """False for those of the other keys that are among the neighbors as well."""
    before = g.node("Less", keys.others, keys.start)
    behind = g.node("GreaterOrEqual", keys.others, keys.stop)
    near = g.node("Sub", keys.stop, keys.start)
    all_near = g.node("Expand", g.constant(True, "bool"), near)
    return g.node("Concat", g.node("Or", before, behind), all_near, axis=0)


def _heads(g: Emitter, x: Tensor, span: Span | None, packed: str | None) -> Tensor:
    """Rows of `[b, h, t, d]`; of the packed form where the kernel reads that, and then
    the other has a name only.
    """
    if span is None or packed is None:
        return rows_of(g, x, (2,), (span,))
    b, h, t, d = x.type.shape
    rows = rows_of(g, Tensor(packed, Type(x.type.dtype, (b, t, h * d))), (1,), (span,))
    name = g.unique(g.place("heads"))
    g.packed[name] = rows.name
    return Tensor(name, _with_length(x.type, 2, span.length))


def rows_of(
    g: Emitter, x: Tensor, axes: Sequence[int | None], spans: Sequence[Span | None]
) -> Tensor:
    """Rows of a tensor along some of its axes; itself where there are no spans."""
    chosen = [
        (axis, span)
        for axis, span in zip(axes, spans, strict=True)
        if axis is not None and span is not None
    ]
    if not chosen:
        return x
    name, type = x.name, x.type
    if near := [(axis, span) for axis, span in chosen if not span.others]:
        starts = _vector(g, [span.start for _, span in near])
        stops = _vector(g, [span.stop for _, span in near])
        name = g.node("Slice", name, starts, stops, g.vector(*(a for a, _ in near)))
    for axis, span in chosen:
        type = _with_length(type, axis, span.length)
        if span.others:
            name = _by_number(g, name, axis, span)
    g.bodies[-1].types[name] = type
    return Tensor(name, type)


def _by_number(g: Emitter, x: str, axis: int, span: Span) -> str:
    """Rows by their numbers, with neighboring ones behind them."""
    others = g.node("Gather", x, span.others, axis=axis)
    if not span.start:
        return others
    near = g.node("Slice", x, span.start, span.stop, g.vector(axis))
    return g.node("Concat", others, near, axis=axis)


def _vector(g: Emitter, numbers: Sequence[str]) -> str:
    return numbers[0] if len(numbers) == 1 else g.node("Concat", *numbers, axis=0)


def _with_length(type: Type, axis: int, length: Dim) -> Type:
    return Type(type.dtype, (*type.shape[:axis], length, *type.shape[axis + 1 :]))
