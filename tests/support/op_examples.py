"""At least one example of every op, with operands of different lengths and their random values."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.op import Op
from specc.ir.ops.tensor import ARITH_FUNCTIONS, COMPARE_FUNCTIONS, POINTWISE_FUNCTIONS
from specc.ir.types import Type

Array = NDArray[Any]


@dataclass(frozen=True)
class OpExample:
    """An op applied to operands of these types. Integers are sampled from [0, below)."""

    op: Op
    operands: tuple[Type | None, ...]
    below: int = 5
    positive: bool = False

    def __str__(self) -> str:
        attributes = [
            str(v) for v in self.op.get_attributes().values() if isinstance(v, str | int | float)
        ]
        absent = "".join("_" if a is None else "x" for a in self.operands)
        return "-".join([self.op.name, *attributes, absent])

    def sample_operands(self, rng: np.random.Generator) -> list[Array | None]:
        """Return random operands."""
        return [self.values(a, rng) if a else None for a in self.operands]

    def values(self, type: Type, rng: np.random.Generator) -> Array:
        """Return random values of one operand."""
        shape = tuple(d.evaluate({}) for d in type.shape)
        if type.dtype == "bool":
            return rng.random(shape) < 0.6
        if type.dtype in ("i64", "i32"):
            return rng.integers(0, self.below, shape)
        if type.dtype in QUANTIZED_RANGES:
            low, high, kind = QUANTIZED_RANGES[type.dtype]
            return rng.integers(low, high + 1, shape).astype(kind)
        drawn: Array = rng.normal(size=shape)
        return np.abs(drawn) + 0.1 if self.positive else drawn


QUANTIZED_RANGES = {"i8": (-127, 127, np.int8), "u8": (0, 255, np.uint8), "i4": (-8, 7, np.int8)}
"""Range of quantized values, and their NumPy dtype."""


def quantized_type(dtype: str, *shape: int) -> Type:
    return Type.of(dtype, *shape)


def float_type(*shape: int) -> Type:
    return Type.of("f64", *shape)


def int_type(*shape: int) -> Type:
    return Type.of("i64", *shape)


def bool_type(*shape: int) -> Type:
    return Type.of("bool", *shape)


def make_running_body() -> Graph:
    """Return `carry' = carry + row · captured`, with the output `carry' + row`; rows are f[2 3]."""
    build = GraphBuilder()
    row = build.add_input("row", Input(float_type(2, 3)))
    carry = build.add_input("carry", Input(float_type(2, 3)))
    captured = build.add_input("captured", Input(float_type(3)))
    after = build.add_op(ops.Arith("add"), carry, build.add_op(ops.Arith("mul"), row, captured))
    return build.build_graph(
        "body", {"carry": after, "y": build.add_op(ops.Arith("add"), after, row)}
    )


def make_expert_body(axes: int = 0) -> Graph:
    """Return `tanh(rows · weightᵀ + shared)`; rows are f[… routed 3] after `axes` axes of length 1."""
    build = GraphBuilder()
    ones = (Dim.from_value(1),) * axes
    shape = (*ones, Dim.symbol("routed"), Dim.from_value(3))
    rows = build.add_input("rows", Input(Type("f64", shape)))
    own = build.add_input("own w", Input(float_type(4, 3)))
    shared = build.add_input("shared", Input(float_type(4)))
    made = build.add_op(ops.Linear(), rows, own, shared)
    return build.build_graph("body", {"y": build.add_op(ops.Pointwise("tanh"), made)})


def make_mapped_body() -> Graph:
    """Return a body without carries: each row doubled and mixed along its last axis."""
    build = GraphBuilder()
    row = build.add_input("row", Input(float_type(2, 3)))
    twice = build.add_op(ops.Arith("add"), row, row)
    return build.build_graph("body", {"y": build.add_op(ops.Softmax(1), twice), "z": twice})


def make_halting_body() -> Graph:
    """Return a body that sums rows until one is large: `h = h + x` if not done, with the sums as
    output.
    """
    body = GraphBuilder()
    x = body.add_input("x", Input(float_type(6, 3)))
    h = body.add_input("h", Input(float_type(6, 3)))
    done = body.add_input("done", Input(bool_type(6)))
    held = body.add_op(ops.Insert(1), done)
    after = body.add_op(ops.Arith("add"), h, x)
    most = body.add_op(ops.Reduce("max", 1), after)
    large = body.add_op(ops.Compare("gt"), most, body.add_op(ops.Constant(2.0, most.type.dtype)))
    zero = body.add_op(ops.Constant(0.0, after.type.dtype))
    outputs = {
        "next h": body.add_op(ops.Where(), held, h, after),
        "next done": body.add_op(ops.Where(), done, done, large),
        "sum": body.add_op(ops.Where(), held, zero, after),
    }
    return body.build_graph("halting", outputs)


def make_drifting_body() -> Graph:
    """Return a body whose carry shifts its rows by one in each iteration, so that its receptive
    field grows.
    """
    build = GraphBuilder()
    row = build.add_input("row", Input(float_type(5)))
    carry = build.add_input("carry", Input(float_type(5)))
    after = build.add_op(ops.Arith("add"), build.add_op(ops.Delay(0, 1, 0.0), carry), row)
    return build.build_graph("body", {"carry": after, "y": after})


def make_sequence_conv(kernel: int, dilation: int = 1, ahead: int = 0) -> ops.Conv:
    """Return a convolution along the sequence that keeps its length and reads `ahead` later
    positions.
    """
    before = dilation * (kernel - 1) - ahead
    return ops.Conv((kernel,), (1,), (dilation,), (before, ahead))


def _windows() -> list[OpExample]:
    two = Dim.from_value(2)
    rows, picture = float_type(2, 9, 4), float_type(2, 4, 7, 9)
    return [
        *(
            OpExample(
                make_sequence_conv(3, d, a),
                (float_type(2, 7, 3), float_type(4, 3, 3), float_type(4)),
            )
            for d, a in ((1, 0), (2, 0), (1, 1), (2, 3))
        ),
        OpExample(ops.Conv((3,), (2,), (1,), (1, 1)), (rows, float_type(5, 4, 3), float_type(5))),
        OpExample(ops.Conv((2,), (3,), (2,), (0, 4)), (rows, float_type(5, 4, 2), None)),
        OpExample(ops.Conv((3,), (1,), (1,), (0, 0), two), (rows, float_type(6, 2, 3), None)),
        OpExample(
            ops.Conv((3, 2), (2, 1), (1, 2), (1, 0, 0, 2), two),
            (picture, float_type(6, 2, 3, 2), float_type(6)),
        ),
        OpExample(
            ops.Conv((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)), (picture, float_type(5, 4, 3, 3), None)
        ),
        OpExample(
            ops.ConvTranspose((4,), (2,), (1,), (1, 1)), (rows, float_type(4, 5, 4), float_type(5))
        ),
        OpExample(
            ops.ConvTranspose((3,), (1,), (2,), (1, 0), two), (rows, float_type(4, 3, 3), None)
        ),
        OpExample(
            ops.ConvTranspose((3, 2), (2, 3), (1, 2), (1, 0, 0, -1), two),
            (picture, float_type(4, 3, 3, 2), float_type(6)),
        ),
        OpExample(ops.MaxPool((3,), (1,), (1,), (1, 1)), (rows,)),
        OpExample(ops.MaxPool((2,), (2,), (2,), (0, 1)), (rows,)),
        OpExample(ops.MaxPool((3, 2), (2, 2), (1, 1), (1, 0, 1, 1)), (picture,)),
        OpExample(ops.AveragePool((3,), (1,), (1, 1), (0,), True), (rows,)),
        OpExample(ops.AveragePool((3,), (2,), (1, 1), (0,), False), (rows,)),
        OpExample(ops.AveragePool((3, 2), (2, 2), (1, 1, 1, 0), (0, 1), True), (picture,)),
        *(
            OpExample(ops.DownsamplePaddingMask(stride, lag), (bool_type(8, 9),))
            for stride, lag in ((2, 0), (1, 2), (3, 1), (2, -1), (1, -2))
        ),
    ]


def _shapes() -> list[OpExample]:
    return [
        *(OpExample(ops.Constant(v, t), ()) for v, t in ((1.5, "f32"), (3, "i64"), (True, "bool"))),
        OpExample(ops.Range(Dim.from_value(4)), ()),
        OpExample(ops.Size(Dim.from_value(7)), ()),
        OpExample(ops.Extent(1), (float_type(2, 3, 5),)),
        OpExample(ops.Transpose((2, 0, 1)), (float_type(2, 3, 5),)),
        OpExample(ops.Split(1, (Dim.from_value(2), Dim.from_value(3))), (float_type(2, 6, 5),)),
        OpExample(ops.Merge(1, 2), (float_type(2, 3, 5, 7),)),
        OpExample(ops.Insert(1), (float_type(2, 3),)),
        OpExample(ops.Squeeze(1), (float_type(2, 1, 3),)),
        OpExample(ops.Expand(1, Dim.from_value(4)), (float_type(2, 1, 3),)),
        OpExample(ops.Concat(1), (float_type(2, 3, 5), float_type(2, 4, 5), float_type(2, 1, 5))),
        OpExample(ops.Slice(1, Dim.from_value(1), Dim.from_value(4)), (float_type(2, 5, 3),)),
        OpExample(ops.Index(1, Dim.from_value(2)), (float_type(2, 5, 3),)),
        OpExample(ops.Last(1), (float_type(2, 5, 3),)),
        OpExample(ops.Gather(1), (float_type(2, 5, 3), int_type(2, 4))),
        OpExample(ops.Gather(0), (float_type(5, 3), int_type(4))),
        OpExample(ops.Gather(2), (float_type(2, 3, 5), int_type(2, 3, 4))),
        OpExample(ops.Flip(1), (float_type(2, 5, 3),)),
        OpExample(ops.Delay(1, 2, 0.5), (float_type(2, 5, 3),)),
        OpExample(ops.Delay(0, 0, 0), (float_type(3, 2),)),
        OpExample(ops.CumSum(1), (float_type(2, 5, 3),)),
        OpExample(ops.ArgMax(1), (float_type(2, 5, 3),)),
        OpExample(ops.Sort(1), (float_type(2, 5, 3),)),
        OpExample(ops.Sort(2, descending=True), (float_type(2, 3, 5),)),
        OpExample(
            ops.StridedSlice(1, Dim.from_value(1), Dim.from_value(6), Dim.from_value(2)),
            (float_type(2, 7, 3),),
        ),
        *(OpExample(ops.Roll(1, Dim.from_value(by)), (float_type(2, 5, 3),)) for by in (2, -1, 12)),
        OpExample(
            ops.Pad(1, Dim.from_value(2), Dim.from_value(1), value=1.5), (float_type(2, 5, 3),)
        ),
        OpExample(ops.Pad(0, Dim.from_value(0), Dim.from_value(2), value=True), (bool_type(5, 3),)),
        *(
            OpExample(
                ops.Pad(1, Dim.from_value(3), Dim.from_value(2), mode), (float_type(2, 4, 3),)
            )
            for mode in ("reflect", "edge")
        ),
        OpExample(ops.TopK(1, Dim.from_value(3)), (float_type(2, 5, 3),)),
        OpExample(ops.TopK(1, Dim.from_value(4), largest=False), (int_type(2, 5),), below=3),
        OpExample(ops.OneHot(Dim.from_value(5)), (int_type(2, 3),)),
        *(
            OpExample(ops.Reduce(fn, 1), (float_type(2, 5, 3),))
            for fn in ("sum", "mean", "max", "min")
        ),
        *(OpExample(ops.Reduce(fn, 0), (bool_type(5, 3),)) for fn in ("any", "all")),
    ]


def _numbers() -> list[OpExample]:
    return [
        *(
            OpExample(
                ops.Pointwise(fn), (float_type(2, 3),), positive=fn in ("log", "log1p", "sqrt")
            )
            for fn in POINTWISE_FUNCTIONS
        ),
        *(
            OpExample(ops.Arith(fn), (float_type(2, 3, 5), float_type(3, 1)), positive=True)
            for fn in ARITH_FUNCTIONS
        ),
        *(
            OpExample(ops.Compare(fn), (int_type(2, 3, 5), int_type(3, 1)), below=3)
            for fn in COMPARE_FUNCTIONS
        ),
        OpExample(ops.And(), (bool_type(2, 3), bool_type(3))),
        OpExample(ops.Or(), (bool_type(2, 3), bool_type(2, 1))),
        OpExample(ops.Not(), (bool_type(2, 3),)),
        OpExample(ops.Where(), (bool_type(2, 1, 5), float_type(2, 3, 1), float_type(1, 3, 5))),
        OpExample(ops.Cast("f64"), (int_type(2, 3),)),
        OpExample(ops.Cast("i64"), (bool_type(2, 3),)),
        OpExample(ops.MatMul(), (float_type(2, 3, 5), float_type(5, 7))),
        OpExample(ops.MatMul(), (float_type(1, 3, 5), float_type(2, 5, 7))),
        OpExample(ops.Einsum("b i d, b j d -> b i j"), (float_type(2, 3, 5), float_type(2, 4, 5))),
        OpExample(
            ops.Einsum("b h i j, b j e -> b i h e"), (float_type(2, 3, 4, 5), float_type(2, 5, 7))
        ),
        OpExample(ops.Einsum("b i -> i"), (float_type(2, 3),)),
    ]


def _layers() -> list[OpExample]:
    mask = (float_type(2, 3, 5), bool_type(3, 5))
    qkv = float_type(2, 6, 3, 4), float_type(2, 2, 5, 4), float_type(2, 2, 5, 7)
    return [
        OpExample(ops.Linear(), (float_type(2, 3, 5), float_type(7, 5), float_type(7))),
        OpExample(ops.Linear(), (float_type(3, 5), float_type(7, 5), None)),
        OpExample(ops.Embedding(), (int_type(2, 3), float_type(5, 7))),
        OpExample(ops.LayerNorm(1e-5), (float_type(2, 3, 5), float_type(5), float_type(5))),
        OpExample(ops.LayerNorm(1e-5), (float_type(2, 5), None, None)),
        OpExample(ops.RMSNorm(1e-6), (float_type(2, 3, 5), float_type(5))),
        OpExample(ops.Dropout(0.5, 0), (float_type(2, 5, 3),)),
        OpExample(ops.Softmax(1), (float_type(2, 5, 3),)),
        OpExample(ops.MaskedSoftmax(), mask),
        OpExample(ops.MaskedSoftmax(), (float_type(2, 3, 5), bool_type(2, 1, 5))),
        OpExample(ops.MaskedHardmax(), mask),
        OpExample(ops.MaskedL1Normalization(), mask),
        OpExample(ops.WeightedSum(), (float_type(2, 3, 5), float_type(2, 5, 7))),
        OpExample(ops.WeightedSum(), (float_type(6, 3, 5), float_type(1, 5, 7))),
        OpExample(ops.Attend(0.5), (*qkv, None, None, None)),
        OpExample(
            ops.Attend(0.5, 3.0),
            (*qkv, bool_type(2, 1, 3, 5), float_type(1, 6, 3, 5), float_type(6)),
        ),
        OpExample(ops.Attend(0.5), (*qkv, bool_type(1, 6, 3, 5), None, None)),
        OpExample(
            ops.PatchEmbedding(), (float_type(2, 3, 4, 6), float_type(5, 3, 2, 3), float_type(5))
        ),
        *_windows(),
        *(
            OpExample(ops.Sinusoid(Dim.from_value(6), layout), (int_type(2, 3),))
            for layout in ("interleaved", "halves", "fairseq")
        ),
        OpExample(ops.RopeAngles(Dim.from_value(6), 10000.0), (int_type(2, 3),)),
        OpExample(ops.RopeAngles(Dim.from_value(4), 1.0, 2.0, (1.0, 0.5)), (int_type(3),)),
        OpExample(
            ops.RopeAngles(Dim.from_value(8), 10.0, axes=(0, 1, 2, 0)),
            (int_type(2, 3), int_type(2, 3), int_type(2, 3)),
        ),
        OpExample(
            ops.Rotate("half"), (float_type(2, 3, 5, 6), float_type(2, 5, 3), float_type(2, 5, 3))
        ),
        OpExample(
            ops.Rotate("interleaved"),
            (float_type(2, 3, 5, 6), float_type(1, 5, 2), float_type(1, 5, 2)),
        ),
        OpExample(
            ops.Scan(make_running_body(), 1, 1, 1),
            (float_type(2, 5, 3), float_type(2, 3), float_type(3)),
        ),
        OpExample(
            ops.Scan(make_running_body(), 1, 1, 0, reverse=True),
            (float_type(5, 2, 3), float_type(2, 3), float_type(3)),
        ),
        OpExample(
            ops.Scan(make_running_body(), 1, 1, 1, has_mask=True),
            (bool_type(2, 5), float_type(2, 5, 3), float_type(2, 3), float_type(3)),
        ),
        OpExample(ops.Scan(make_mapped_body(), 1, 0, 2), (float_type(2, 3, 4),)),
        OpExample(ops.Scan(make_drifting_body(), 1, 1, 0), (float_type(4, 5), float_type(5))),
        *(
            OpExample(
                ops.Scan(make_halting_body(), 1, 2, axis, reverse=back, end_condition_index=1),
                (x, float_type(6, 3), bool_type(6)),
            )
            for axis, x, back in ((1, float_type(6, 5, 3), False), (0, float_type(5, 6, 3), True))
        ),
        OpExample(
            ops.Scan(make_halting_body(), 1, 2, 1, has_mask=True, end_condition_index=1),
            (bool_type(6, 5), float_type(6, 5, 3), float_type(6, 3), bool_type(6)),
        ),
        OpExample(
            ops.MixtureOfExperts(make_expert_body(), Dim.from_value(5), 1),
            (
                float_type(6, 3),
                int_type(6, 2),
                float_type(6, 2),
                float_type(5, 4, 3),
                float_type(4),
            ),
        ),
        OpExample(
            ops.MixtureOfExperts(make_expert_body(1), Dim.from_value(5), 1, has_mask=True),
            (
                float_type(2, 3, 3),
                int_type(2, 3, 2),
                float_type(2, 3, 2),
                bool_type(2, 3),
                float_type(5, 4, 3),
                float_type(4),
            ),
        ),
    ]


def _recurrent() -> list[OpExample]:
    x, keep, h = float_type(2, 5, 3), bool_type(2, 5), float_type(2, 4)
    rnn, gru, lstm = (
        (x, float_type(4, 3), float_type(4, 4)),
        (x, float_type(12, 3), float_type(12, 4)),
        (x, float_type(16, 3), float_type(16, 4)),
    )
    return [
        OpExample(ops.Rnn(), rnn),
        OpExample(ops.Rnn("relu", reverse=True), (*rnn, float_type(4), None, keep)),
        OpExample(ops.Rnn("sigmoid"), (*rnn, float_type(4), float_type(4), keep, h)),
        *(
            OpExample(ops.Gru(r, u), (*gru, float_type(12), float_type(12)))
            for r in ("before", "after")
            for u in ("old", "new")
        ),
        OpExample(ops.Gru("before", reverse=True), (*gru, None, float_type(12), keep, h)),
        OpExample(ops.Gru("after"), (*gru, None, None, keep)),
        OpExample(ops.Lstm(), lstm),
        OpExample(ops.Lstm(), (*lstm, float_type(16), float_type(16), None, h, h)),
        OpExample(
            ops.Lstm(reverse=True),
            (*lstm, float_type(16), float_type(16), keep, h, h, float_type(12)),
        ),
        OpExample(
            ops.Lstm(),
            (
                *lstm[:2],
                float_type(16, 2),
                float_type(16),
                float_type(16),
                keep,
                float_type(2, 2),
                h,
                None,
                float_type(2, 4),
            ),
        ),
        OpExample(
            ops.Lstm(reverse=True),
            (
                *lstm[:2],
                float_type(16, 2),
                None,
                None,
                None,
                None,
                h,
                float_type(12),
                float_type(2, 4),
            ),
        ),
    ]


def _resized() -> list[OpExample]:
    """Longer, shorter, to length 1, by non-integer factors; at leading and trailing axes."""
    sizes = Dim.from_value(7), Dim.from_value(3)
    return [
        *(
            OpExample(ops.Resize(2, sizes, mode), (float_type(2, 3, 4, 5),))
            for mode in ("bilinear", "bicubic", "nearest", "nearest_exact")
        ),
        *(
            OpExample(ops.Resize(1, sizes, mode, align_corners=True), (float_type(2, 4, 5, 3),))
            for mode in ("bilinear", "bicubic")
        ),
        *(
            OpExample(
                ops.Resize(1, (Dim.from_value(9),), mode, factors=(1.9,)), (float_type(2, 5, 3),)
            )
            for mode in ("bilinear", "bicubic", "nearest", "nearest_exact")
        ),
        OpExample(ops.Resize(2, (Dim.from_value(1),), "bilinear"), (float_type(2, 3, 4),)),
        *(
            OpExample(
                ops.Resize(1, (Dim.from_value(3), Dim.from_value(7)), mode, antialias=True),
                (float_type(2, 7, 5, 2),),
            )
            for mode in ("bilinear", "bicubic")
        ),
        OpExample(
            ops.Resize(1, (*sizes, Dim.from_value(2)), "bilinear"), (float_type(2, 4, 5, 3),)
        ),
        OpExample(ops.Resize(0, (Dim.from_value(8),), "nearest"), (int_type(5, 3),)),
        OpExample(ops.GridSample("bilinear"), (float_type(2, 3, 4, 5), float_type(2, 6, 3, 2))),
        OpExample(
            ops.GridSample("nearest", "border", True), (float_type(2, 3, 4, 5), float_type(2, 7, 2))
        ),
        OpExample(
            ops.GridSample("bilinear", "reflection"), (float_type(2, 3, 4, 5), float_type(2, 7, 2))
        ),
    ]


def _normed() -> list[OpExample]:
    return [
        OpExample(
            ops.GroupNorm(1, Dim.from_value(2), 1e-5),
            (float_type(2, 6, 3), float_type(6), float_type(6)),
        ),
        OpExample(ops.GroupNorm(1, Dim.from_value(3), 1e-5), (float_type(2, 6), None, None)),
        OpExample(
            ops.GroupNorm(3, Dim.from_value(1), 1e-3), (float_type(2, 2, 3, 4), float_type(4), None)
        ),
        OpExample(
            ops.GroupNorm(2, Dim.from_value(4), 1e-5), (float_type(2, 3, 4, 3), None, float_type(4))
        ),
    ]


def _rounded() -> list[OpExample]:
    """Linear layers and embeddings in every quantization format."""
    x, bias = float_type(2, 3, 21), float_type(5)
    forms: list[tuple[ops.QuantizedLinear, Type, Type]] = [
        (ops.QuantizedLinear(), quantized_type("i8", 5, 21), float_type(5)),
        (ops.QuantizedLinear(rounding="row"), quantized_type("i8", 5, 21), float_type(5)),
        (ops.QuantizedLinear(layout="columns"), quantized_type("i8", 21, 5), float_type(5)),
        (
            ops.QuantizedLinear(layout="columns", rounding="row"),
            quantized_type("i8", 21, 5),
            float_type(5),
        ),
        (
            ops.QuantizedLinear(layout="columns", rounding="tensor"),
            quantized_type("i8", 21, 5),
            float_type(5),
        ),
        (
            ops.QuantizedLinear(8, 16, rounding="block"),
            quantized_type("u8", 5, 2, 16),
            float_type(5, 2),
        ),
        (
            ops.QuantizedLinear(4, 16, rounding="block"),
            quantized_type("u8", 5, 2, 8),
            float_type(5, 2),
        ),
        (
            ops.QuantizedLinear(4, 16, rounding="row"),
            quantized_type("u8", 5, 2, 8),
            float_type(5, 2),
        ),
        (ops.QuantizedLinear(8, 16, "columns"), quantized_type("i8", 21, 5), float_type(2, 5)),
        (ops.QuantizedLinear(4, 16, "columns"), quantized_type("i4", 21, 5), float_type(2, 5)),
    ]
    wide = Dim.from_value(7)
    # four gates of 4 by rows of 3, with one scale per gate
    lstm = (
        float_type(2, 5, 3),
        quantized_type("i8", 3, 16),
        quantized_type("i8", 4, 16),
        float_type(16),
        float_type(16),
    )
    keep, h = bool_type(2, 5), float_type(2, 4)
    return [
        OpExample(ops.QuantizedLstm(), lstm),
        OpExample(
            ops.QuantizedLstm(reverse=True),
            (*lstm, float_type(16), float_type(16), keep, h, h, float_type(12)),
        ),
        *(OpExample(op, (x, w, s, b)) for op, w, s in forms for b in (bias, None)),
        *(
            OpExample(
                ops.QuantizedLinear(bits, 16),
                (
                    x,
                    quantized_type("u8", 5, 2, 2 * bits),
                    float_type(5, 2),
                    bias,
                    quantized_type("u8", 5, bits // 4),
                ),
            )
            for bits in (4, 8)
        ),
        OpExample(
            ops.QuantizedLinear(rounding="row"),
            (float_type(21), quantized_type("i8", 5, 21), float_type(5), bias),
        ),
        OpExample(ops.Quantize(), (float_type(2, 3, 5, 4), float_type(3, 1, 4))),
        OpExample(ops.Dequantize(), (quantized_type("i8", 2, 3, 5, 4), float_type(3, 1, 4))),
        OpExample(
            ops.QuantizedEmbedding(wide),
            (int_type(2, 3), quantized_type("i8", 5, 7), float_type(5)),
        ),
        OpExample(
            ops.QuantizedEmbedding(wide, layout="columns"),
            (int_type(2, 3), quantized_type("i8", 7, 5), float_type(5)),
        ),
        *(
            OpExample(
                ops.QuantizedEmbedding(Dim.from_value(21), bits, 16),
                (int_type(2, 3), quantized_type("u8", 5, 2, 2 * bits), float_type(5, 2)),
            )
            for bits in (4, 8)
        ),
        OpExample(
            ops.QuantizedEmbedding(Dim.from_value(21), 8, 16, "columns"),
            (int_type(4), quantized_type("i8", 21, 5), float_type(2, 5)),
        ),
    ]


EXAMPLES: list[OpExample] = [
    *_rounded(),
    *_shapes(),
    *_numbers(),
    *_layers(),
    *_recurrent(),
    *_resized(),
    *_normed(),
]


def build_example_graph(example: OpExample) -> tuple[Graph, list[Value | None]]:
    """Return the graph of one node with an input for each operand."""
    build = GraphBuilder()
    args = [
        build.add_input(f"x{n}", Input(a)) if a else None for n, a in enumerate(example.operands)
    ]
    results = build.add_node(example.op, *args)
    return build.build_graph(example.op.name, {f"y{n}": r for n, r in enumerate(results)}), args
