"""Attention in blocks of neighboring queries, each over the keys that its mask can show.

    If(long)  a Loop over blocks: keys and mask of a block are cut out in its body
    else      one attention, as it is below that length

The mask of a block is made in the body from row numbers of the block, and that of the
short form inside an `If` as well: a model that is given a long text holds no tensor of
`n · n` numbers. Blocks are equally long; the last one begins earlier and gives rows of
its neighbor once more, which are cut off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf

from onnx import GraphProto

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc.passes.prove.local import Local
from specc_onnx.lower.arrange import full
from specc_onnx.lower.emitter import Body, Emitter, Tensor, declare, graph_of
from specc_onnx.lower.portion import Axes, Leaf, Portion
from specc_onnx.lower.table import lower_nodes
from specc_onnx.lower.whole import Made, Parts, fused, packed_heads, shown, whole

KEYS = Dim.symbol("block.keys")
"""How many keys a block looks at, where that is not the same for all blocks."""

BLOCKS = "blocks"
"""The scope of what only cuts rows out and puts them together again."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the loop gives: `stacked` blocks, in front of each other, and their `count`,
    i64[1].
    """

    stacked: str
    count: str
    packed: bool


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one axis, from `start` up to `stop`, each i64[1]; there are `length`."""

    start: str
    stop: str
    length: Dim


def local_attention(op: ops.Attend, g: Emitter, parts: Parts, local: Local) -> Made:
    """The result, made in blocks for more rows than `local.above`."""
    b, h, n, _ = parts.grid
    e = parts.v.type.shape[3]
    flat = fused(op, g, parts) and packed_heads(g, parts) is not None
    type = Type(parts.q.type.dtype, (b, n, h * e) if flat else (b, h, n, e))
    long = _long(g, b, n, local)
    plain, told = _short(op, g, parts, long)
    with g.body() as short:
        made = whole(op, g, plain)
        otherwise = _branch(g, short, "short", made.result, type)
    with g.body() as opened, _known(g, b, n):
        loop = _loop(op, g, parts, local)
        with _named(g, BLOCKS):
            joined = _joined(g, loop, parts, local)
        then = _branch(g, opened, "long", joined, type)
    result = g.node("If", long, then_branch=then, else_branch=otherwise)
    told = {**made.told, **told, "blocks": result}
    return Made(result=result, packed=flat, weights="", told=told)


@contextmanager
def _named(g: Emitter, scope: str) -> Iterator[None]:
    """Name what is written inside by what it is for: dozens of small nodes a layer."""
    site, g.site = g.site, replace(g.site, scopes=(scope,))
    try:
        yield
    finally:
        g.site = site


def _branch(g: Emitter, body: Body, name: str, result: str, type: Type) -> GraphProto:
    """A branch of an `If`, whose result has to be made inside."""
    if not any(result in node.output for node in body.nodes):
        result = g.alias(result, g.place(name))
    return graph_of(name, body, [result], [type])


def _long(g: Emitter, batch: Dim, rows: Dim, local: Local) -> str:
    """Whether there are so many rows that blocks pay; an empty batch has none."""
    if rows.name is not None:
        g.beyond[rows.name] = max(local.above, g.beyond.get(rows.name, 0))
    with g.outside("lengths"):
        long = g.node("Greater", g.dim(rows), g.constant(local.above, "i64"))
        if g.lengths.positive(batch):
            return long
        some = g.node("Greater", g.dim(batch), g.constant(0, "i64"))
        return g.node("And", long, some)


@contextmanager
def _known(g: Emitter, *lengths: Dim) -> Iterator[None]:
    """What is written inside runs only where these lengths are not 0."""
    before = g.lengths
    g.lengths = replace(before, sure=before.sure | {*lengths})
    try:
        yield
    finally:
        g.lengths = before


# --- one attention --------------------------------------------------------------------


def _short(
    op: ops.Attend, g: Emitter, parts: Parts, long: str
) -> tuple[Parts, dict[str, str]]:
    """The operands of the short form, and what says where they are made: mask and added
    scores only where they are used, but once for all attentions that share them.
    """
    short = Short(g, parts, long)
    if fused(op, g, parts):
        both = short.both()
        return replace(parts, mask=None, add=None, shown=both), {"mask": both}
    mask, add = short.one(parts.mask), short.one(parts.add)
    told = {"mask": mask and mask.name, "added": add and add.name}
    return replace(parts, mask=mask, add=add), {n: t for n, t in told.items() if t}


@dataclass(frozen=True, slots=True)
class Short:
    """What the short form of an attention reads, each made inside an `If`."""

    g: Emitter
    parts: Parts
    long: str

    def both(self) -> str:
        """Mask and added scores as one tensor of all queries and keys."""
        mask, add = self.parts.mask, self.parts.add

        def make() -> Tensor:
            remade = replace(self.parts, mask=self._again(mask), add=self._again(add))
            name = shown(self.g, remade)
            # Nothing is done in blocks that has no mask.
            assert name is not None
            dtype = "bool" if add is None else add.type.dtype
            given = [x.type.shape for x in (mask, add) if x]
            sides = [
                next((d for d in ds if d != 1), ds[0])
                for ds in zip(*given, strict=True)
            ]
            return Tensor(name, Type(dtype, (*sides[:2], *self.parts.grid[2:])))

        return self._hoisted(
            (mask.value if mask else None, add.value if add else None), make
        )

    def one(self, x: Tensor | None) -> Tensor | None:
        """A mask, or added scores."""
        if x is None:
            return None
        made = self._hoisted((x.value,), lambda: self._again(x) or x)
        return replace(x, name=made)

    def _again(self, x: Tensor | None) -> Tensor | None:
        """The same values, made anew in the innermost body."""
        if x is None or x.value is None:
            return x
        n = self.parts.grid[2]
        portion = _portion(self.g, n, n, lambda value, axes: value)
        return _lowered(self.g, portion, x)

    def _hoisted(
        self, key: tuple[Value | None, ...], make: Callable[[], Tensor]
    ) -> str:
        """What `make` makes where it is short; one number, for nobody, where it is not."""
        g, known = self.g, (self.long, *key)
        if known in g.hoisted:
            return g.hoisted[known]
        with g.body(apart=True) as short:
            made = make()
            otherwise = _branch(g, short, "short", made.name, made.type)
        one = Type(made.type.dtype, (Dim.of(1),) * made.type.rank)
        with g.body() as nothing:
            filled = full(g, 0, one.dtype, one.shape)
            then = _branch(g, nothing, "unused", filled, one)
        result = g.node("If", self.long, then_branch=then, else_branch=otherwise)
        # What stands in a loop's body is seen there alone.
        if len(g.bodies) == 1:
            g.hoisted[known] = result
        return result


def _portion(g: Emitter, queries: Dim, keys: Dim, leaf: Leaf) -> Portion:
    return Portion(queries=queries, keys=keys, leaf=leaf, scope=g.site.scope)


def _lowered(g: Emitter, portion: Portion, x: Tensor) -> Tensor:
    """A portion of a mask or of added scores, `[b, h, q, k]`, written into the innermost
    body.
    """
    assert x.value is not None
    shape = x.type.shape
    axes: Axes = (None if shape[2] == 1 else 2, None if shape[3] == 1 else 3)
    value = portion.of(x.value, axes)
    site = g.site
    lower_nodes(g, portion.graph(value))
    g.site = site
    return g.tensors[value]


# --- a loop over blocks ---------------------------------------------------------------


def _loop(op: ops.Attend, g: Emitter, parts: Parts, local: Local) -> Blocks:
    """The blocks, `[blocks, b, block, h·e]` or `[blocks, b, h, block, e]`."""
    n = parts.grid[2]
    block = g.vector(local.block)
    rows = g.shape([n])
    up = g.node("Add", rows, g.vector(local.block - 1))
    count = g.node("Div", up, block)
    with g.body() as body:
        turn, going = (
            Tensor(g.unique(g.place(name)), Type(dtype, ()))
            for name, dtype in (("block", "i64"), ("go", "bool"))
        )
        with _named(g, BLOCKS):
            queries = _queries(g, turn.name, rows, local)
            keys = _keys(g, queries, rows, local)
        made = _one_block(op, g, parts, queries, keys)
        on = g.alias(going.name, g.place("on"))
    b, h, _, _ = parts.grid
    e, size = parts.v.type.shape[3], Dim.of(local.block)
    shape = (b, size, h * e) if made.packed else (b, h, size, e)
    types = [going.type, Type(parts.q.type.dtype, shape)]
    inputs = [declare(t.name, t.type) for t in (turn, going)]
    graph = graph_of("block", body, [on, made.result], types, inputs)
    turns = g.node("Squeeze", count, g.vector(0))
    stacked = g.node("Loop", turns, g.constant(True, "bool"), body=graph)
    return Blocks(stacked, count, made.packed)


def _queries(g: Emitter, turn: str, rows: str, local: Local) -> Span:
    """The rows of a block; those of the last end where the axis does."""
    place = g.node("Mul", g.node("Unsqueeze", turn, g.vector(0)), g.vector(local.block))
    start = g.node("Min", place, g.node("Sub", rows, g.vector(local.block)))
    stop = g.node("Add", start, g.vector(local.block))
    return Span(start, stop, Dim.of(local.block))


def _keys(g: Emitter, queries: Span, rows: str, local: Local) -> Span:
    """The keys of a block: from the farthest that its first query sees up to the
    nearest that its last one does; there is always one.
    """
    zero, one = g.vector(0), g.vector(1)
    back, ahead = local.band.hi, -local.band.lo
    start, stop = zero, rows
    if back != inf:
        start = g.node("Sub", queries.start, g.vector(int(back)))
        start = g.node("Max", start, zero)
    if local.keys is not None:
        start = g.node("Min", start, g.node("Sub", rows, g.vector(local.keys)))
        stop = g.node("Add", start, g.vector(local.keys))
        return Span(start, stop, Dim.of(local.keys))
    # Where the band leaves out the row itself, a block at an end may see nothing.
    if back < 0:
        start = g.node("Min", start, g.node("Sub", rows, one))
    if ahead != inf:
        stop = g.node("Min", g.node("Add", queries.stop, g.vector(int(ahead))), rows)
        stop = g.node("Max", stop, one) if ahead < 0 else stop
    return Span(start, stop, KEYS)


def _one_block(
    op: ops.Attend, g: Emitter, parts: Parts, queries: Span, keys: Span
) -> Made:
    """The attention of a block, lowered as any other."""
    lengths = g.lengths
    sure = lengths.sure | {queries.length, keys.length}
    g.lengths = replace(lengths, sure=sure)
    if keys.length == KEYS:
        count = g.node("Squeeze", g.node("Sub", keys.stop, keys.start), g.vector(0))
        numbers = {**lengths.numbers, str(KEYS): count}
        with g.rooted(replace(g.lengths, numbers=numbers)):
            made = whole(op, g, _cut_parts(op, g, parts, queries, keys))
    else:
        made = whole(op, g, _cut_parts(op, g, parts, queries, keys))
    g.lengths = lengths
    return made


def _cut_parts(
    op: ops.Attend, g: Emitter, parts: Parts, queries: Span, keys: Span
) -> Parts:
    """The operands of a block."""

    def rows_of(value: Value, axes: Axes) -> Value:
        return _rows(g, g.tensors[value], axes, queries, keys)

    spans = (queries, keys, keys)
    packed = packed_heads(g, parts) if fused(op, g, parts) else None
    all_rows = (parts.q, parts.k, parts.v)
    with _named(g, BLOCKS):
        portion = _portion(g, queries.length, keys.length, rows_of)
        mask, add = (
            _lowered(g, portion, x) if x and x.value else x
            for x in (parts.mask, parts.add)
        )
        q, k, v = (
            _heads(g, x, span, packed[n] if packed else None)
            for n, (x, span) in enumerate(zip(all_rows, spans, strict=True))
        )
    return replace(parts, q=q, k=k, v=v, mask=mask, add=add)


def _heads(g: Emitter, x: Tensor, span: Span, packed: str | None) -> Tensor:
    """Rows of `[b, h, t, d]`; of the packed form where the kernel reads that, and then
    the other has a name only.
    """
    type = _with_length(x.type, 2, span.length)
    if packed is None:
        return Tensor(_cut(g, x.name, [2], [span], type), type)
    b, h, t, d = type.shape
    rows = _cut(g, packed, [1], [span], Type(type.dtype, (b, t, h * d)))
    name = g.unique(g.place("heads"))
    g.packed[name] = rows
    return Tensor(name, type)


def _rows(g: Emitter, x: Tensor, axes: Axes, queries: Span, keys: Span) -> Value:
    """Rows of a value along one of two axes, or both, as a value of its own."""
    type, places, spans = x.type, [], []
    for axis, span in zip(axes, (queries, keys), strict=True):
        if axis is not None:
            type = _with_length(type, axis, span.length)
            places.append(axis)
            spans.append(span)
    made = Value(type)
    g.tensors[made] = Tensor(_cut(g, x.name, places, spans, type), type, made)
    return made


def _cut(g: Emitter, x: str, axes: list[int], spans: list[Span], type: Type) -> str:
    ends = [
        each[0] if len(each) == 1 else g.node("Concat", *each, axis=0)
        for each in ([s.start for s in spans], [s.stop for s in spans])
    ]
    name = g.node("Slice", x, *ends, g.vector(*axes))
    g.bodies[-1].types[name] = type
    return name


def _with_length(type: Type, axis: int, length: Dim) -> Type:
    return Type(type.dtype, (*type.shape[:axis], length, *type.shape[axis + 1 :]))


def _joined(g: Emitter, loop: "Blocks", parts: Parts, local: Local) -> str:
    """Stacked blocks as rows side by side. Of the last block only those rows count
    that the block before it does not have: of 3 blocks of 4 for 10 rows, which begin at
    rows 0, 4 and 6, the last two of the last.
    """
    _, h, n, _ = parts.grid
    e = parts.v.type.shape[3]
    # The widths are numbers, or it is not done in blocks.
    ends = [0, -1, (h * e).number or 0] if loop.packed else [0, 0, -1, e.number or 0]
    axis = len(ends) - 2
    order = [1, 0, 2, 3] if loop.packed else [1, 2, 0, 3, 4]
    turned = g.node("Transpose", loop.stacked, perm=order)
    side_by_side = g.node("Reshape", turned, g.vector(*ends))
    block, at = g.vector(local.block), g.vector(axis)
    before = g.node("Mul", g.node("Sub", loop.count, g.vector(1)), block)
    begins = g.node("Sub", g.shape([n]), block)
    again = g.node("Sub", g.node("Add", before, before), begins)
    stop = g.node("Add", before, block)
    first = g.node("Slice", side_by_side, g.vector(0), before, at)
    last = g.node("Slice", side_by_side, again, stop, at)
    return g.node("Concat", first, last, axis=axis)
