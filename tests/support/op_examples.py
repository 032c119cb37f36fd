"""At least one example of every op, with operands of different lengths, and how to draw
their values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Value
from specc.ir.op import Op
from specc.ir.ops.tensor import ARITH_FUNCTIONS, COMPARE_FUNCTIONS, POINTWISE_FUNCTIONS
from specc.ir.types import Type

Array = NDArray[Any]


@dataclass(frozen=True)
class Example:
    """`op` applied to operands of these types. Whole numbers are drawn from 0 up to `below`."""

    op: Op
    operands: tuple[Type | None, ...]
    below: int = 5
    positive: bool = False

    def __str__(self) -> str:
        attributes = [
            str(v) for v in self.op.attributes().values() if isinstance(v, str | int | float)
        ]
        absent = "".join("_" if a is None else "x" for a in self.operands)
        return "-".join([self.op.name, *attributes, absent])

    def draw(self, rng: np.random.Generator) -> list[Array | None]:
        """Random operands."""
        return [self.values(a, rng) if a else None for a in self.operands]

    def values(self, type: Type, rng: np.random.Generator) -> Array:
        """Random values of one operand."""
        shape = tuple(d.evaluate({}) for d in type.shape)
        if type.dtype == "bool":
            return rng.random(shape) < 0.6
        if type.dtype in ("i64", "i32"):
            return rng.integers(0, self.below, shape)
        if type.dtype in LOW:
            low, high, kind = LOW[type.dtype]
            return rng.integers(low, high + 1, shape).astype(kind)
        drawn: Array = rng.normal(size=shape)
        return np.abs(drawn) + 0.1 if self.positive else drawn


LOW = {"i8": (-127, 127, np.int8), "u8": (0, 255, np.uint8), "i4": (-8, 7, np.int8)}
"""What bytes of rounded weights hold, and how NumPy holds them."""


def q(dtype: str, *shape: int) -> Type:
    return Type.of(dtype, *shape)


def f(*shape: int) -> Type:
    return Type.of("f64", *shape)


def i(*shape: int) -> Type:
    return Type.of("i64", *shape)


def b(*shape: int) -> Type:
    return Type.of("bool", *shape)


def running_body() -> Graph:
    """`carry' = carry + row · captured`, collected: `carry' + row`; rows are f[2 3]."""
    build = Builder()
    row = build.input("row", Input(f(2, 3)))
    carry = build.input("carry", Input(f(2, 3)))
    captured = build.input("captured", Input(f(3)))
    after = build.one(ops.Arith("add"), carry, build.one(ops.Arith("mul"), row, captured))
    return build.finish("body", {"carry": after, "y": build.one(ops.Arith("add"), after, row)})


def expert_body(axes: int = 0) -> Graph:
    """`tanh(rows · own wᵀ + shared)`; rows are f[… routed 3] behind `axes` axes of 1."""
    build = Builder()
    ones = (Dim.of(1),) * axes
    shape = (*ones, Dim.symbol("routed"), Dim.of(3))
    rows = build.input("rows", Input(Type("f64", shape)))
    own = build.input("own w", Input(f(4, 3)))
    shared = build.input("shared", Input(f(4)))
    made = build.one(ops.Linear(), rows, own, shared)
    return build.finish("body", {"y": build.one(ops.Pointwise("tanh"), made)})


def mapped_body() -> Graph:
    """No carries: every row doubled and mixed over its last axis."""
    build = Builder()
    row = build.input("row", Input(f(2, 3)))
    twice = build.one(ops.Arith("add"), row, row)
    return build.finish("body", {"y": build.one(ops.Softmax(1), twice), "z": twice})


def halting_body() -> Graph:
    """Sums rows until one is large: `h = h + x` where not done, collecting the sums."""
    body = Builder()
    x = body.input("x", Input(f(6, 3)))
    h = body.input("h", Input(f(6, 3)))
    done = body.input("done", Input(b(6)))
    held = body.one(ops.Insert(1), done)
    after = body.one(ops.Arith("add"), h, x)
    most = body.one(ops.Reduce("max", 1), after)
    large = body.one(ops.Compare("gt"), most, body.one(ops.Constant(2.0, most.type.dtype)))
    zero = body.one(ops.Constant(0.0, after.type.dtype))
    outputs = {
        "next h": body.one(ops.Where(), held, h, after),
        "next done": body.one(ops.Where(), done, done, large),
        "sum": body.one(ops.Where(), held, zero, after),
    }
    return body.finish("halting", outputs)


def drifting_body() -> Graph:
    """A carry whose rows move one place with every step, so that what they read grows."""
    build = Builder()
    row = build.input("row", Input(f(5)))
    carry = build.input("carry", Input(f(5)))
    after = build.one(ops.Arith("add"), build.one(ops.Delay(0, 1, 0.0), carry), row)
    return build.finish("body", {"carry": after, "y": after})


def along(kernel: int, dilation: int = 1, ahead: int = 0) -> ops.Conv:
    """A convolution along rows that keeps their number and reads so many ahead."""
    before = dilation * (kernel - 1) - ahead
    return ops.Conv((kernel,), (1,), (dilation,), (before, ahead))


def _windows() -> list[Example]:
    two = Dim.of(2)
    rows, picture = f(2, 9, 4), f(2, 4, 7, 9)
    return [
        *(
            Example(along(3, d, a), (f(2, 7, 3), f(4, 3, 3), f(4)))
            for d, a in ((1, 0), (2, 0), (1, 1), (2, 3))
        ),
        Example(ops.Conv((3,), (2,), (1,), (1, 1)), (rows, f(5, 4, 3), f(5))),
        Example(ops.Conv((2,), (3,), (2,), (0, 4)), (rows, f(5, 4, 2), None)),
        Example(ops.Conv((3,), (1,), (1,), (0, 0), two), (rows, f(6, 2, 3), None)),
        Example(
            ops.Conv((3, 2), (2, 1), (1, 2), (1, 0, 0, 2), two), (picture, f(6, 2, 3, 2), f(6))
        ),
        Example(ops.Conv((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)), (picture, f(5, 4, 3, 3), None)),
        Example(ops.ConvTranspose((4,), (2,), (1,), (1, 1)), (rows, f(4, 5, 4), f(5))),
        Example(ops.ConvTranspose((3,), (1,), (2,), (1, 0), two), (rows, f(4, 3, 3), None)),
        Example(
            ops.ConvTranspose((3, 2), (2, 3), (1, 2), (1, 0, 0, -1), two),
            (picture, f(4, 3, 3, 2), f(6)),
        ),
        Example(ops.MaxPool((3,), (1,), (1,), (1, 1)), (rows,)),
        Example(ops.MaxPool((2,), (2,), (2,), (0, 1)), (rows,)),
        Example(ops.MaxPool((3, 2), (2, 2), (1, 1), (1, 0, 1, 1)), (picture,)),
        Example(ops.AveragePool((3,), (1,), (1, 1), (0,), True), (rows,)),
        Example(ops.AveragePool((3,), (2,), (1, 1), (0,), False), (rows,)),
        Example(ops.AveragePool((3, 2), (2, 2), (1, 1, 1, 0), (0, 1), True), (picture,)),
        *(
            Example(ops.KeepRows(stride, lag), (b(8, 9),))
            for stride, lag in ((2, 0), (1, 2), (3, 1), (2, -1), (1, -2))
        ),
    ]


def _shapes() -> list[Example]:
    return [
        *(Example(ops.Constant(v, t), ()) for v, t in ((1.5, "f32"), (3, "i64"), (True, "bool"))),
        Example(ops.Range(Dim.of(4)), ()),
        Example(ops.Size(Dim.of(7)), ()),
        Example(ops.Extent(1), (f(2, 3, 5),)),
        Example(ops.Transpose((2, 0, 1)), (f(2, 3, 5),)),
        Example(ops.Split(1, (Dim.of(2), Dim.of(3))), (f(2, 6, 5),)),
        Example(ops.Merge(1, 2), (f(2, 3, 5, 7),)),
        Example(ops.Insert(1), (f(2, 3),)),
        Example(ops.Squeeze(1), (f(2, 1, 3),)),
        Example(ops.Expand(1, Dim.of(4)), (f(2, 1, 3),)),
        Example(ops.Concat(1), (f(2, 3, 5), f(2, 4, 5), f(2, 1, 5))),
        Example(ops.Slice(1, Dim.of(1), Dim.of(4)), (f(2, 5, 3),)),
        Example(ops.Index(1, Dim.of(2)), (f(2, 5, 3),)),
        Example(ops.Last(1), (f(2, 5, 3),)),
        Example(ops.Gather(1), (f(2, 5, 3), i(2, 4))),
        Example(ops.Gather(0), (f(5, 3), i(4))),
        Example(ops.Gather(2), (f(2, 3, 5), i(2, 3, 4))),
        Example(ops.Flip(1), (f(2, 5, 3),)),
        Example(ops.Delay(1, 2, 0.5), (f(2, 5, 3),)),
        Example(ops.Delay(0, 0, 0), (f(3, 2),)),
        Example(ops.CumSum(1), (f(2, 5, 3),)),
        Example(ops.ArgMax(1), (f(2, 5, 3),)),
        Example(ops.Sort(1), (f(2, 5, 3),)),
        Example(ops.Sort(2, descending=True), (f(2, 3, 5),)),
        Example(ops.Stride(1, Dim.of(1), Dim.of(6), Dim.of(2)), (f(2, 7, 3),)),
        *(Example(ops.Roll(1, Dim.of(by)), (f(2, 5, 3),)) for by in (2, -1, 12)),
        Example(ops.Pad(1, Dim.of(2), Dim.of(1), value=1.5), (f(2, 5, 3),)),
        Example(ops.Pad(0, Dim.of(0), Dim.of(2), value=True), (b(5, 3),)),
        *(
            Example(ops.Pad(1, Dim.of(3), Dim.of(2), mode), (f(2, 4, 3),))
            for mode in ("reflect", "edge")
        ),
        Example(ops.TopK(1, Dim.of(3)), (f(2, 5, 3),)),
        Example(ops.TopK(1, Dim.of(4), largest=False), (i(2, 5),), below=3),
        Example(ops.OneHot(Dim.of(5)), (i(2, 3),)),
        *(Example(ops.Reduce(fn, 1), (f(2, 5, 3),)) for fn in ("sum", "mean", "max", "min")),
        *(Example(ops.Reduce(fn, 0), (b(5, 3),)) for fn in ("any", "all")),
    ]


def _numbers() -> list[Example]:
    return [
        *(
            Example(ops.Pointwise(fn), (f(2, 3),), positive=fn in ("log", "log1p", "sqrt"))
            for fn in POINTWISE_FUNCTIONS
        ),
        *(Example(ops.Arith(fn), (f(2, 3, 5), f(3, 1)), positive=True) for fn in ARITH_FUNCTIONS),
        *(Example(ops.Compare(fn), (i(2, 3, 5), i(3, 1)), below=3) for fn in COMPARE_FUNCTIONS),
        Example(ops.And(), (b(2, 3), b(3))),
        Example(ops.Or(), (b(2, 3), b(2, 1))),
        Example(ops.Not(), (b(2, 3),)),
        Example(ops.Where(), (b(2, 1, 5), f(2, 3, 1), f(1, 3, 5))),
        Example(ops.Cast("f64"), (i(2, 3),)),
        Example(ops.Cast("i64"), (b(2, 3),)),
        Example(ops.MatMul(), (f(2, 3, 5), f(5, 7))),
        Example(ops.MatMul(), (f(1, 3, 5), f(2, 5, 7))),
        Example(ops.Einsum("b i d, b j d -> b i j"), (f(2, 3, 5), f(2, 4, 5))),
        Example(ops.Einsum("b h i j, b j e -> b i h e"), (f(2, 3, 4, 5), f(2, 5, 7))),
        Example(ops.Einsum("b i -> i"), (f(2, 3),)),
    ]


def _layers() -> list[Example]:
    mask = (f(2, 3, 5), b(3, 5))
    qkv = f(2, 6, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 7)
    return [
        Example(ops.Linear(), (f(2, 3, 5), f(7, 5), f(7))),
        Example(ops.Linear(), (f(3, 5), f(7, 5), None)),
        Example(ops.Embedding(), (i(2, 3), f(5, 7))),
        Example(ops.LayerNorm(1e-5), (f(2, 3, 5), f(5), f(5))),
        Example(ops.LayerNorm(1e-5), (f(2, 5), None, None)),
        Example(ops.RMSNorm(1e-6), (f(2, 3, 5), f(5))),
        Example(ops.Dropout(0.5, 0), (f(2, 5, 3),)),
        Example(ops.Softmax(1), (f(2, 5, 3),)),
        Example(ops.MaskedSoftmax(), mask),
        Example(ops.MaskedSoftmax(), (f(2, 3, 5), b(2, 1, 5))),
        Example(ops.Hard(), mask),
        Example(ops.Share(), mask),
        Example(ops.Weigh(), (f(2, 3, 5), f(2, 5, 7))),
        Example(ops.Weigh(), (f(6, 3, 5), f(1, 5, 7))),
        Example(ops.Attend(0.5), (*qkv, None, None, None)),
        Example(ops.Attend(0.5, 3.0), (*qkv, b(2, 1, 3, 5), f(1, 6, 3, 5), f(6))),
        Example(ops.Attend(0.5), (*qkv, b(1, 6, 3, 5), None, None)),
        Example(ops.Patches(), (f(2, 3, 4, 6), f(5, 3, 2, 3), f(5))),
        *_windows(),
        *(
            Example(ops.Sinusoid(Dim.of(6), layout), (i(2, 3),))
            for layout in ("interleaved", "halves", "fairseq")
        ),
        Example(ops.RopeAngles(Dim.of(6), 10000.0), (i(2, 3),)),
        Example(ops.RopeAngles(Dim.of(4), 1.0, 2.0, (1.0, 0.5)), (i(3),)),
        Example(ops.RopeAngles(Dim.of(8), 10.0, axes=(0, 1, 2, 0)), (i(2, 3), i(2, 3), i(2, 3))),
        Example(ops.Rotate("half"), (f(2, 3, 5, 6), f(2, 5, 3), f(2, 5, 3))),
        Example(ops.Rotate("interleaved"), (f(2, 3, 5, 6), f(1, 5, 2), f(1, 5, 2))),
        Example(ops.Scan(running_body(), 1, 1, 1), (f(2, 5, 3), f(2, 3), f(3))),
        Example(ops.Scan(running_body(), 1, 1, 0, reverse=True), (f(5, 2, 3), f(2, 3), f(3))),
        Example(
            ops.Scan(running_body(), 1, 1, 1, masked=True), (b(2, 5), f(2, 5, 3), f(2, 3), f(3))
        ),
        Example(ops.Scan(mapped_body(), 1, 0, 2), (f(2, 3, 4),)),
        Example(ops.Scan(drifting_body(), 1, 1, 0), (f(4, 5), f(5))),
        *(
            Example(ops.Scan(halting_body(), 1, 2, axis, reverse=back, until=1), (x, f(6, 3), b(6)))
            for axis, x, back in ((1, f(6, 5, 3), False), (0, f(5, 6, 3), True))
        ),
        Example(
            ops.Scan(halting_body(), 1, 2, 1, masked=True, until=1),
            (b(6, 5), f(6, 5, 3), f(6, 3), b(6)),
        ),
        Example(
            ops.Route(expert_body(), Dim.of(5), 1), (f(6, 3), i(6, 2), f(6, 2), f(5, 4, 3), f(4))
        ),
        Example(
            ops.Route(expert_body(1), Dim.of(5), 1, masked=True),
            (f(2, 3, 3), i(2, 3, 2), f(2, 3, 2), b(2, 3), f(5, 4, 3), f(4)),
        ),
    ]


def _recurrent() -> list[Example]:
    x, keep, h = f(2, 5, 3), b(2, 5), f(2, 4)
    rnn, gru, lstm = ((x, f(4, 3), f(4, 4)), (x, f(12, 3), f(12, 4)), (x, f(16, 3), f(16, 4)))
    return [
        Example(ops.Rnn(), rnn),
        Example(ops.Rnn("relu", reverse=True), (*rnn, f(4), None, keep)),
        Example(ops.Rnn("sigmoid"), (*rnn, f(4), f(4), keep, h)),
        *(
            Example(ops.Gru(r, u), (*gru, f(12), f(12)))
            for r in ("before", "after")
            for u in ("old", "new")
        ),
        Example(ops.Gru("before", reverse=True), (*gru, None, f(12), keep, h)),
        Example(ops.Gru("after"), (*gru, None, None, keep)),
        Example(ops.Lstm(), lstm),
        Example(ops.Lstm(), (*lstm, f(16), f(16), None, h, h)),
        Example(ops.Lstm(reverse=True), (*lstm, f(16), f(16), keep, h, h, f(12))),
        Example(ops.Lstm(), (*lstm[:2], f(16, 2), f(16), f(16), keep, f(2, 2), h, None, f(2, 4))),
        Example(
            ops.Lstm(reverse=True), (*lstm[:2], f(16, 2), None, None, None, None, h, f(12), f(2, 4))
        ),
    ]


def _resized() -> list[Example]:
    """Longer, shorter, to one point, by factors that leave a rest; in front and behind."""
    sizes = Dim.of(7), Dim.of(3)
    return [
        *(
            Example(ops.Resize(2, sizes, mode), (f(2, 3, 4, 5),))
            for mode in ("bilinear", "bicubic", "nearest", "nearest_exact")
        ),
        *(
            Example(ops.Resize(1, sizes, mode, align_corners=True), (f(2, 4, 5, 3),))
            for mode in ("bilinear", "bicubic")
        ),
        *(
            Example(ops.Resize(1, (Dim.of(9),), mode, factors=(1.9,)), (f(2, 5, 3),))
            for mode in ("bilinear", "bicubic", "nearest", "nearest_exact")
        ),
        Example(ops.Resize(2, (Dim.of(1),), "bilinear"), (f(2, 3, 4),)),
        *(
            Example(ops.Resize(1, (Dim.of(3), Dim.of(7)), mode, antialias=True), (f(2, 7, 5, 2),))
            for mode in ("bilinear", "bicubic")
        ),
        Example(ops.Resize(1, (*sizes, Dim.of(2)), "bilinear"), (f(2, 4, 5, 3),)),
        Example(ops.Resize(0, (Dim.of(8),), "nearest"), (i(5, 3),)),
        Example(ops.GridSample("bilinear"), (f(2, 3, 4, 5), f(2, 6, 3, 2))),
        Example(ops.GridSample("nearest", "border", True), (f(2, 3, 4, 5), f(2, 7, 2))),
        Example(ops.GridSample("bilinear", "reflection"), (f(2, 3, 4, 5), f(2, 7, 2))),
    ]


def _normed() -> list[Example]:
    return [
        Example(ops.GroupNorm(1, Dim.of(2), 1e-5), (f(2, 6, 3), f(6), f(6))),
        Example(ops.GroupNorm(1, Dim.of(3), 1e-5), (f(2, 6), None, None)),
        Example(ops.GroupNorm(3, Dim.of(1), 1e-3), (f(2, 2, 3, 4), f(4), None)),
        Example(ops.GroupNorm(2, Dim.of(4), 1e-5), (f(2, 3, 4, 3), None, f(4))),
    ]


def _rounded() -> list[Example]:
    """Products and tables in every form that rounded weights have."""
    x, bias = f(2, 3, 21), f(5)
    forms: list[tuple[ops.LinearQ, Type, Type]] = [
        (ops.LinearQ(), q("i8", 5, 21), f(5)),
        (ops.LinearQ(rounding="row"), q("i8", 5, 21), f(5)),
        (ops.LinearQ(layout="columns"), q("i8", 21, 5), f(5)),
        (ops.LinearQ(layout="columns", rounding="row"), q("i8", 21, 5), f(5)),
        (ops.LinearQ(layout="columns", rounding="tensor"), q("i8", 21, 5), f(5)),
        (ops.LinearQ(8, 16, rounding="block"), q("u8", 5, 2, 16), f(5, 2)),
        (ops.LinearQ(4, 16, rounding="block"), q("u8", 5, 2, 8), f(5, 2)),
        (ops.LinearQ(4, 16, rounding="row"), q("u8", 5, 2, 8), f(5, 2)),
        (ops.LinearQ(8, 16, "columns"), q("i8", 21, 5), f(2, 5)),
        (ops.LinearQ(4, 16, "columns"), q("i4", 21, 5), f(2, 5)),
    ]
    wide = Dim.of(7)
    # four gates of 4 by rows of 3, with a scale a gate
    lstm = f(2, 5, 3), q("i8", 3, 16), q("i8", 4, 16), f(16), f(16)
    keep, h = b(2, 5), f(2, 4)
    return [
        Example(ops.LstmQ(), lstm),
        Example(ops.LstmQ(reverse=True), (*lstm, f(16), f(16), keep, h, h, f(12))),
        *(Example(op, (x, w, s, b)) for op, w, s in forms for b in (bias, None)),
        Example(ops.LinearQ(rounding="row"), (f(21), q("i8", 5, 21), f(5), bias)),
        Example(ops.Quantize(), (f(2, 3, 5, 4), f(3, 1, 4))),
        Example(ops.Dequantize(), (q("i8", 2, 3, 5, 4), f(3, 1, 4))),
        Example(ops.EmbeddingQ(wide), (i(2, 3), q("i8", 5, 7), f(5))),
        Example(ops.EmbeddingQ(wide, layout="columns"), (i(2, 3), q("i8", 7, 5), f(5))),
        *(
            Example(
                ops.EmbeddingQ(Dim.of(21), bits, 16), (i(2, 3), q("u8", 5, 2, 2 * bits), f(5, 2))
            )
            for bits in (4, 8)
        ),
        Example(ops.EmbeddingQ(Dim.of(21), 8, 16, "columns"), (i(4), q("i8", 21, 5), f(2, 5))),
    ]


EXAMPLES: list[Example] = [
    *_rounded(),
    *_shapes(),
    *_numbers(),
    *_layers(),
    *_recurrent(),
    *_resized(),
    *_normed(),
]


def graph_of(example: Example) -> tuple[Graph, list[Value | None]]:
    """The graph of one node whose operands are its inputs."""
    build = Builder()
    args = [build.input(f"x{n}", Input(a)) if a else None for n, a in enumerate(example.operands)]
    results = build.add(example.op, *args)
    return build.finish(example.op.name, {f"y{n}": r for n, r in enumerate(results)}), args
