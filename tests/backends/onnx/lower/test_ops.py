"""ONNX Runtime computes the same results as the reference for every op at every supported opset. A
case consists of an op, the types of its operands and the range of their values. Symbols stand for
lengths, which are tested at several sizes, one of them 1, and at 0 where the op allows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.op_examples import QUANTIZED_RANGES, make_sequence_conv

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.op import OPS_BY_NAME, Op
from specc.ir.types import Type
from specc_onnx import build_model, get_target
from specc_onnx.lower.registry import lower

B, T, S = Dim.symbol("b"), Dim.symbol("t"), Dim.symbol("s")
D = Dim.from_value
OPSETS = (17, 20, 23, 24, 26)
NUMBERS_FROM_0 = (
    "gather",
    "embedding",
    "quantized_embedding",
    "sinusoid",
    "rope_angles",
    "one_hot",
)
SIZES: tuple[dict[str, int], ...] = (
    {"b": 3, "t": 5, "s": 7},
    {"b": 1, "t": 1, "s": 1},
    {"b": 2, "t": 4, "s": 2},
)
EMPTY: tuple[dict[str, int], ...] = (
    {"b": 2, "t": 0, "s": 3},
    {"b": 0, "t": 2, "s": 3},
    {"b": 2, "t": 3, "s": 0},
)


@dataclass(frozen=True)
class Case:
    """An op and operands such as `f32[b t 8]`. Integers are less than `below`; with `empty`,
    lengths of 0 are tested too.
    """

    op: Op
    args: tuple[str | None, ...]
    below: int = 4
    positive: bool = False
    empty: bool = True
    least: Mapping[str, int] = field(default_factory=dict)
    masked: int | None = None

    def __str__(self) -> str:
        return f"{self.op} {' '.join(map(str, self.args))}"


def parse_type(text: str) -> Type:
    dtype, _, inside = text.rstrip("]").partition("[")
    names = {"b": B, "t": T, "s": S, "t+s": T + S, "2*t": T * 2}
    return Type(dtype, tuple(names[d] if d in names else D(int(d)) for d in inside.split()))


F = "f32[b t 6]"
CASES: list[Case] = [
    *[Case(ops.Constant(v, d), ()) for v, d in ((1.5, "f32"), (7, "i64"), (True, "bool"))],
    Case(ops.Range(D(5)), ()),
    Case(ops.Range(T), (F,)[:0]),
    Case(ops.Extent(1), (F,)),
    Case(ops.Size(T * 2 + 1), ()),
    *[Case(ops.Pointwise(fn), (F,), positive=fn in ("log", "sqrt", "reciprocal"))
      for fn in ops.tensor.POINTWISE_FUNCTIONS],
    *[Case(ops.Pointwise(fn), ("f64[t]",)) for fn in ("gelu", "gelu_tanh", "softplus", "erf", "silu")],
    *[Case(ops.Pointwise(fn), ("i64[b t]",)) for fn in ("abs", "neg", "sign")],
    *[Case(ops.Arith(fn), (F, "f32[t 1]"), positive=fn == "pow") for fn in ops.tensor.ARITH_FUNCTIONS],
    *[Case(ops.Arith(fn), ("i64[b t]", "i64[t]")) for fn in ops.tensor.ARITH_FUNCTIONS if fn not in ("div", "pow")],
    *[Case(ops.Arith(fn), ("i32[b t]", "i32[1]")) for fn in ("floordiv", "mod", "min")],
    *[Case(ops.Compare(fn), ("i64[b 1 t]", "i64[s 1]")) for fn in ops.tensor.COMPARE_FUNCTIONS],
    Case(ops.Compare("lt"), (F, F)),
    Case(ops.And(), ("bool[b 1]", "bool[t]")),
    Case(ops.Or(), ("bool[b t]", "bool[b t]")),
    Case(ops.Not(), ("bool[b t]",)),
    Case(ops.Where(), ("bool[b t 1]", F, "f32[6]")),
    Case(ops.Where(), ("bool[b t]", "bool[t]", "bool[b 1]")),
    *[Case(ops.Cast(to), ("f32[b t]",)) for to in ("i64", "i32", "f64", "f32")],
    *[Case(ops.Cast(to), ("bool[b t]",)) for to in ("i64", "f32")],
    Case(ops.Transpose((2, 0, 1)), (F,)),
    Case(ops.Split(2, (D(2), D(3))), (F,)),
    Case(ops.Split(1, (T, D(2))), ("f32[b 2*t 3]",)),
    Case(ops.Merge(1, 2), (F,)),
    Case(ops.Merge(0, 2), (F,)),
    Case(ops.Merge(0, 3), (F,)),
    Case(ops.Merge(1, 2), ("f32[b t s 4]",)),
    Case(ops.Insert(1), (F,)),
    Case(ops.Insert(3), (F,)),
    Case(ops.Squeeze(1), ("bool[b 1 t]",)),
    Case(ops.Expand(1, T), ("i64[b 1 3]",)),
    Case(ops.Expand(1, T + 2), ("f32[b 1 t]",)),
    Case(ops.Concat(1), (F, "f32[b s 6]", F)),
    Case(ops.Concat(0), ("bool[t]", "bool[s]")),
    Case(ops.Slice(2, D(1), D(4)), (F,)),
    Case(ops.Slice(1, D(0), T), ("f32[b t+s 2]",)),
    Case(ops.Slice(1, T, T + S), ("f32[b t+s 2]",)),
    Case(ops.Index(2, D(5)), (F,)),
    Case(ops.Index(1, D(0)), (F,), empty=False),
    Case(ops.Index(1, T - 1), (F,), empty=False),
    Case(ops.Last(1), (F,), empty=False),
    Case(ops.Gather(0), ("f32[4 6]", "i64[b]")),
    Case(ops.Gather(1), ("f32[b 4 6]", "i64[b t]")),
    Case(ops.Gather(2), ("bool[b t 4]", "i32[b t s]")),
    Case(ops.Flip(1), (F,)),
    Case(ops.Flip(0), ("bool[t]",)),
    Case(ops.Delay(1, 2, 1.5), (F,)),
    Case(ops.Delay(0, 1, True), ("bool[t b]",)),
    Case(ops.Delay(1, 0, 0), ("i64[b t]",)),
    Case(ops.CumSum(1), (F,)),
    Case(ops.CumSum(0), ("i64[t b]",)),
    *[Case(ops.Reduce(fn, axis), (F,)) for fn in ("sum", "mean", "max", "min") for axis in (0, 1, 2)],
    *[Case(ops.Reduce(fn, 1), ("i64[b t]",), empty=False) for fn in ("sum", "max", "min")],
    *[Case(ops.Reduce(fn, 1), ("bool[b t s]",)) for fn in ("any", "all")],
    Case(ops.ArgMax(2), ("f32[b t 5]",)),
    Case(ops.ArgMax(0), ("i64[t]",), empty=False),
    Case(ops.Sort(1), ("f32[b t 2]",)),
    Case(ops.Sort(1, descending=True), ("i64[b t]",)),
    Case(ops.StridedSlice(2, D(1), D(6), D(2)), (F,)),
    Case(ops.StridedSlice(1, D(0), T, D(3)), (F,)),
    Case(ops.StridedSlice(0, S, T + S, D(2)), ("bool[t+s b]",)),
    *[Case(ops.Roll(axis, D(by)), (F,)) for axis, by in ((1, 2), (1, -3), (2, 4), (0, 7))],
    Case(ops.Roll(1, S), ("bool[b t]",)),
    Case(ops.Pad(1, D(2), S, value=0.5), (F,)),
    Case(ops.Pad(2, D(0), D(3)), ("i64[b t 2]",)),
    Case(ops.Pad(0, D(1), D(0), value=True), ("bool[b t]",)),
    Case(ops.Pad(2, D(5), D(3), "reflect"), (F,)),
    Case(ops.Pad(1, T - 1, D(0), "reflect"), (F,), empty=False),
    Case(ops.Pad(1, S, D(2), "edge"), (F,), empty=False),
    *[Case(ops.Resize(2, (D(7), D(4)), mode, corners), ("f32[b 2 5 6]",))
      for mode, corners in (("bilinear", False), ("bilinear", True), ("bicubic", False),
                            ("bicubic", True), ("nearest", False), ("nearest_exact", False))],
    *[Case(ops.Resize(1, (D(3), D(8)), mode, antialias=True), ("f32[b 7 5 2]",)) for mode in ("bilinear", "bicubic")],
    *[Case(ops.Resize(1, (S,), mode), (F,), empty=False)
      for mode in ("bilinear", "bicubic", "nearest", "nearest_exact")],
    *[Case(ops.Resize(1, (S, T * 2), mode), ("f32[b t s 3]",), empty=False) for mode in ("bilinear", "nearest")],
    *[Case(ops.Resize(2, (D(9),), mode, factors=(1.6,)), (F,), empty=mode != "nearest")
      for mode in ("bilinear", "bicubic", "nearest", "nearest_exact")],
    Case(ops.Resize(1, (T * 2,), "bilinear", factors=(2.0,)), (F,), empty=False),
    Case(ops.Resize(1, (D(7), D(4), D(3)), "bilinear"), ("f32[b 5 6 2]",)),
    Case(ops.Resize(0, (S,), "nearest"), ("bool[t b]",), empty=False),
    *[Case(ops.GridSample(mode, padding, corners), ("f32[b 3 5 6]", "f32[b t s 2]"))
      for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection") for corners in (False, True)],
    Case(ops.GridSample("bilinear"), ("f32[b 3 t s]", "f32[b 2]"), empty=False),
    Case(ops.GroupNorm(1, D(3), 1e-5), ("f32[b 6 t]", "f32[6]", "f32[6]")),
    Case(ops.GroupNorm(1, D(3), 1e-5), ("f32[b 6]", None, "f32[6]")),
    Case(ops.GroupNorm(3, D(2), 1e-5), ("f32[b t s 4]", "f32[4]", None)),
    Case(ops.GroupNorm(1, D(2), 1e-5), ("f32[b 4 3 5]", "f32[4]", "f32[4]")),
    Case(ops.TopK(2, D(4)), (F,)),
    Case(ops.TopK(1, T), ("i64[b t]",)),
    Case(ops.TopK(1, T, largest=False), ("i64[b t+s]",)),
    Case(ops.TopK(0, D(2), largest=False), ("f32[4 b]",)),
    Case(ops.OneHot(D(3)), ("i64[b t]",)),
    Case(ops.MatMul(), ("f32[b 1 t 3]", "f32[s 3 4]")),
    Case(ops.Einsum("b i d, b j d -> b i j"), ("f32[b t 4]", "f32[b s 4]")),
    Case(ops.Einsum("row col -> col row"), ("f32[t 4]",)),
    Case(ops.Einsum("b i d, d e, e f j -> j b f"), ("f32[b t 4]", "f32[4 3]", "f32[3 2 s]")),
    Case(ops.Einsum("i, j -> j i"), ("f32[t]", "f32[s]")),
    Case(ops.Einsum("b i j, b i -> b"), ("f32[b t 3]", "f32[b t]")),
    Case(ops.Einsum("i i -> i"), ("f32[4 4]",)),
    Case(ops.Linear(), (F, "f32[4 6]", "f32[4]")),
    Case(ops.Linear(), (F, "f32[4 6]", None)),
    Case(ops.Linear(), ("f32[b 6]", "f32[4 6]", "f32[4]")),
    Case(ops.Linear(), ("f32[6]", "f32[4 6]", "f32[4]")),
    Case(ops.Linear(), ("f32[b t s 6]", "f32[4 6]", "f32[4]")),
    Case(ops.Linear(), ("f64[b t 6]", "f64[4 6]", "f64[4]")),
    Case(ops.Embedding(), ("i64[b t]", "f32[4 6]")),
    Case(ops.Embedding(), ("i32[t]", "f32[4 6]")),
    Case(ops.LayerNorm(1e-5), (F, "f32[6]", "f32[6]")),
    Case(ops.LayerNorm(1e-12), (F, None, None)),
    Case(ops.LayerNorm(1e-5), (F, None, "f32[6]")),
    Case(ops.RMSNorm(1e-5), (F, "f32[6]")),
    Case(ops.RMSNorm(1e-5), (F, None)),
    Case(ops.Dropout(0.5, 0), (F,)),
    Case(ops.Softmax(1), (F,)),
    Case(ops.MaskedSoftmax(), ("f32[b 2 t s]", "bool[b 1 1 s]"), masked=1),
    Case(ops.MaskedSoftmax(), ("f32[b t s]", "bool[t s]"), masked=1),
    Case(ops.MaskedHardmax(), ("f32[b 2 t s]", "bool[b 1 1 s]"), masked=1),
    Case(ops.MaskedHardmax(), ("f32[b t s]", "bool[b t s]"), masked=1),
    Case(ops.MaskedL1Normalization(), ("f32[b 2 t s]", "bool[b 1 1 s]"), masked=1),
    Case(ops.MaskedL1Normalization(), ("f32[b t s]", "bool[b t s]"), masked=1),
    Case(ops.WeightedSum(), ("f32[b 2 t s]", "f32[b 2 s 3]")),
    Case(ops.WeightedSum(), ("f32[2 t s]", "f32[b 1 s 3]")),
    Case(ops.PatchEmbedding(), ("f32[b 3 8 6]", "f32[5 3 4 2]", "f32[5]")),
    Case(ops.PatchEmbedding(), ("f32[b 1 4 4]", "f32[5 1 2 2]", None)),
    *[Case(make_sequence_conv(3, dilation, ahead), ("f32[b t 4]", "f32[5 4 3]", "f32[5]"))
      for dilation, ahead in ((1, 0), (1, 1), (2, 0), (2, 3))],
    Case(ops.Conv((7,), (1,), (1,), (3, 3), D(4)), ("f32[b t 4]", "f32[4 1 7]", "f32[4]")),
    Case(ops.Conv((8,), (2,), (2,), (10, 4), D(4)), ("f32[b t 4]", "f32[8 1 8]", None)),
    Case(make_sequence_conv(1), ("f32[b t 4]", "f32[5 4 1]", None)),
    Case(ops.Conv((3,), (2,), (1,), (1, 1)), ("f32[b t 4]", "f32[5 4 3]", "f32[5]")),
    Case(ops.Conv((5,), (4,), (1,), (2, 2), D(2)), ("f32[b t 4]", "f32[6 2 5]", None)),
    Case(ops.Conv((3,), (3,), (2,), (4, 0)), ("f32[b t 4]", "f32[5 4 3]", "f32[5]")),
    Case(ops.Conv((2,), (1,), (1,), (1, 1)), ("f32[b t 4]", "f32[5 4 2]", "f32[5]")),
    Case(ops.Conv((4,), (3,), (1,), (0, 0)), ("f32[b 9 4]", "f32[5 4 4]", "f32[5]")),
    Case(ops.Conv((3, 2), (1, 1), (1, 2), (1, 0, 1, 2), D(2)), ("f32[b 4 t s]", "f32[6 2 3 2]", "f32[6]"), empty=False),
    Case(ops.Conv((4, 4), (4, 4), (1, 1), (0, 0, 0, 0)), ("f32[b 3 8 12]", "f32[5 3 4 4]", None)),
    Case(ops.ConvTranspose((4,), (2,), (1,), (1, 1)), ("f32[b t 4]", "f32[4 5 4]", "f32[5]")),
    Case(ops.ConvTranspose((3,), (1,), (2,), (1, 0), D(2)), ("f32[b t 4]", "f32[4 3 3]", None)),
    Case(ops.ConvTranspose((3, 2), (2, 3), (1, 2), (1, 0, 0, -1), D(2)),
         ("f32[b 4 t s]", "f32[4 3 3 2]", "f32[6]")),
    Case(ops.MaxPool((3,), (1,), (1,), (1, 1)), ("f32[b t 4]",)),
    Case(ops.MaxPool((3,), (2,), (2,), (2, 2)), ("f32[b t 4]",)),
    Case(ops.MaxPool((3, 2), (2, 1), (1, 1), (1, 0, 1, 1)), ("f32[b 3 t s]",), empty=False),
    *[Case(ops.AveragePool((3,), (2,), (1, 0), (1,), counted), ("f32[b t 4]",)) for counted in (True, False)],
    *[Case(ops.AveragePool((3, 2), (2, 2), (1, 0, 1, 0), (0, 1), counted), ("f32[b 3 t s]",), empty=False)
      for counted in (True, False)],
    *[Case(ops.DownsamplePaddingMask(stride, lag), ("bool[b t]",)) for stride, lag in ((2, 0), (1, -1), (3, -2))],
    *[Case(ops.DownsamplePaddingMask(stride, lag), ("bool[b 9]",)) for stride, lag in ((2, 1), (1, 3), (2, -4))],
    *[Case(ops.Sinusoid(D(6), layout), ("i64[b t]",), below=9000)
      for layout in ("interleaved", "halves", "fairseq")],
    Case(ops.RopeAngles(D(6), 10000.0), ("i64[b t]",), below=100_000),
    Case(ops.RopeAngles(D(4), 1.0, 1.25, (0.5, 0.125)), ("i32[t]",), below=100),
    Case(ops.RopeAngles(D(6), 10.0, axes=(1, 0, 1)), ("i64[b t]", "i64[b t]"), below=100),
    *[Case(ops.Rotate(pairs), ("f32[b 2 t 8]", f"f32[{batch} t {r}]", f"f32[{batch} t {r}]"))
      for pairs in ("half", "interleaved") for r in (4, 3) for batch in ("b", "1")],
]  # fmt: skip


def list_quantized_cases() -> list[Case]:
    """Quantized weights in every form, with activations of one, two and three axes."""
    found = []
    forms: list[tuple[ops.QuantizedLinear, str, str]] = [
        (ops.QuantizedLinear(), "i8[5 21]", "f32[5]"),
        (ops.QuantizedLinear(rounding="row"), "i8[5 21]", "f32[5]"),
        (ops.QuantizedLinear(layout="columns", rounding="row"), "i8[21 5]", "f32[5]"),
        (ops.QuantizedLinear(rounding="tensor"), "i8[5 21]", "f32[5]"),
        (ops.QuantizedLinear(layout="columns", rounding="tensor"), "i8[21 5]", "f32[5]"),
        (ops.QuantizedLinear(8, 16, rounding="block"), "u8[5 2 16]", "f32[5 2]"),
        (ops.QuantizedLinear(4, 16, rounding="block"), "u8[5 2 8]", "f32[5 2]"),
        (ops.QuantizedLinear(4, 16, rounding="row"), "u8[5 2 8]", "f32[5 2]"),
        (ops.QuantizedLinear(8, 16, "columns"), "i8[21 5]", "f32[2 5]"),
    ]
    for op, w, s in forms:
        found += [
            Case(op, (x, w, s, bias))
            for x in ("f32[21]", "f32[b 21]", "f32[b t 21]")
            for bias in ("f32[5]", None)
        ]
    found += [
        *(
            Case(
                ops.QuantizedLinear(bits, 16),
                ("f32[b t 21]", f"u8[5 2 {2 * bits}]", "f32[5 2]", bias, f"u8[5 {bits // 4}]"),
            )
            for bits in (4, 8)
            for bias in ("f32[5]", None)
        ),
        Case(
            ops.QuantizedLinear(8, 16, rounding="block"),
            ("f64[b t 21]", "u8[5 2 16]", "f64[5 2]", "f64[5]"),
        ),
        Case(ops.Quantize(), ("f32[b 3 t 4]", "f32[3 1 4]")),
        Case(ops.Dequantize(), ("i8[b 3 t 4]", "f32[3 1 4]")),
        Case(ops.QuantizedEmbedding(D(7)), ("i64[b t]", "i8[4 7]", "f32[4]")),
        Case(ops.QuantizedEmbedding(D(7), layout="columns"), ("i32[t]", "i8[7 4]", "f32[4]")),
        Case(ops.QuantizedEmbedding(D(21), 4, 16), ("i64[b t]", "u8[4 2 8]", "f32[4 2]")),
        Case(ops.QuantizedEmbedding(D(21), 8, 16), ("i64[b t]", "u8[4 2 16]", "f32[4 2]")),
        Case(ops.QuantizedEmbedding(D(21), 8, 16, "columns"), ("i64[b t]", "i8[21 4]", "f32[2 4]")),
    ]
    return found


CASES += list_quantized_cases()


def list_attention_cases() -> list[Case]:
    """Masks of every broadcast form, grouped heads, softcap, bias and sinks together."""
    q, k, v = "f32[b 4 t 8]", "f32[b 2 s 8]", "f32[b 2 s 6]"
    masks = ("bool[1 1 t s]", "bool[b 1 1 s]", "bool[1 4 1 s]", "bool[b 4 t s]")
    found = [Case(ops.Attend(0.3), (q, k, v, m), masked=3) for m in masks]
    adds = ("f32[b 4 t s]", "f32[1 4 t s]", "f32[1 1 1 s]")
    found += [
        Case(ops.Attend(0.3, cap), (q, k, v, masks[1], a), masked=3)
        for a in adds
        for cap in (0.0, 1.5)
    ]
    found += [
        Case(ops.Attend(0.3, cap), (q, k, v, masks[0], None, "f32[4]"), masked=3)
        for cap in (0.0, 1.5)
    ]
    found += [Case(ops.Attend(1.0), (q, k, v, masks[1], adds[0], "f32[4]"), masked=3)]
    found += [Case(ops.Attend(1.0), ("f32[b 2 t 8]", k, v, masks[3].replace("4", "2")), masked=3)]
    found += [
        Case(ops.Attend(0.5), ("f64[b 2 t 8]", "f64[b 2 s 8]", "f64[b 2 s 6]", masks[1]), masked=3)
    ]
    return [
        *found,
        *[
            Case(c.op, c.args, masked=3, least={"b": 1, "t": 1, "s": 1}, empty=False)
            for c in found[:4]
        ],
    ]


CASES += list_attention_cases()


def list_recurrent_cases() -> list[Case]:
    """Every operand of every layer, both directions, and loops where ONNX has no operator."""
    keep, h = "bool[b t]", "f32[b 4]"
    rnn, gru, lstm = ((F, f"f32[{n * 4} 6]", f"f32[{n * 4} 4]") for n in (1, 3, 4))
    found = [
        Case(ops.Rnn(), rnn),
        Case(ops.Rnn("relu", reverse=True), (*rnn, "f32[4]", None, keep), masked=5),
        Case(ops.Rnn("sigmoid"), (*rnn, "f32[4]", "f32[4]", keep, h), masked=5),
        Case(ops.Lstm(), (*lstm, None, None, None, None, h)),
        Case(
            ops.Lstm(),
            (*lstm[:2], "f32[16 2]", "f32[16]", None, keep, None, None, None, "f32[2 4]"),
            masked=5,
        ),
        Case(ops.Lstm(), ("f64[b t 6]", "f64[16 6]", "f64[16 4]", None, "f64[16]")),
    ]
    for reverse in (False, True):
        for reset in ("before", "after"):
            found.append(Case(ops.Gru(reset, "new", reverse), (*gru, "f32[12]", "f32[12]")))
            found.append(
                Case(ops.Gru(reset, "old", reverse), (*gru, "f32[12]", None, keep, h), masked=5)
            )
        every = ("f32[16]", "f32[16]", keep, h, h, "f32[12]")
        found.append(Case(ops.Lstm(reverse), (*lstm, *every), masked=5))
        found.append(Case(ops.Lstm(reverse), (*lstm, "f32[16]", "f32[16]")))
    found += [Case(found[-1].op, found[-1].args, least={"b": 1, "t": 1}, empty=False)]
    # gates of 4 by weights of 8 bits, which lie turned over
    whole = (F, "i8[6 16]", "i8[4 16]", "f32[16]", "f32[16]")
    biased = (*whole, "f32[16]", None)
    found += [
        Case(ops.QuantizedLstm(), whole),
        Case(ops.QuantizedLstm(reverse=True), (*biased, keep, h, h, "f32[12]"), masked=7),
    ]
    return found


CASES += list_recurrent_cases()


def build_graph(case: Case) -> Graph:
    """Return a graph of the op alone, with its operands as inputs; the input `anchor` determines
    all lengths.
    """
    b = GraphBuilder()
    b.add_input("anchor", Input(Type("f32", (B, T, S))))
    args = [
        None if a is None else b.add_input(f"x{n}", Input(parse_type(a)))
        for n, a in enumerate(case.args)
    ]
    results = b.add_node(case.op, *args, scope="some.scope")
    return b.build_graph("op", {f"y{n}": r for n, r in enumerate(results)}, min_lengths=case.least)


def make_values(case: Case, graph: Graph, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(1)
    found: dict[str, NDArray[Any]] = {"anchor": np.zeros([sizes[n] for n in "bts"], np.float32)}
    for n, arg in enumerate(case.args):
        if arg is None:
            continue
        shape = [d.evaluate(sizes) for d in graph.inputs[f"x{n}"].type.shape]
        dtype = graph.inputs[f"x{n}"].type.dtype
        if dtype == "bool":
            found[f"x{n}"] = rng.random(shape) < 0.6
            if n == case.masked and shape[0]:
                found[f"x{n}"][0] = False  # rows that see nothing
        elif dtype in ("i64", "i32"):
            low = 0 if case.op.name in NUMBERS_FROM_0 else -case.below
            kind = np.int64 if dtype == "i64" else np.int32
            found[f"x{n}"] = rng.integers(low, case.below, shape).astype(kind)
        elif dtype in QUANTIZED_RANGES:
            low, high, stored = QUANTIZED_RANGES[dtype]
            found[f"x{n}"] = rng.integers(low, high + 1, shape).astype(stored)
        else:
            x = rng.standard_normal(shape) * 2
            x = np.abs(x) + 0.1 if case.positive else x
            found[f"x{n}"] = x.astype({"f32": np.float32, "f64": np.float64}[dtype])
    return found


def check_agreement(graph: Graph, session: Any, given: dict[str, NDArray[Any]]) -> None:
    known = {i.name for i in session.get_inputs()}
    got = session.run(None, {k: v for k, v in given.items() if k in known})
    assert_outputs_match(specc_numpy.evaluate_graph(graph, given, {}), got)


def test_every_op_has_a_rule() -> None:
    assert not {*OPS_BY_NAME.values()} - lower.rules.keys()


def test_every_op_without_a_body_has_a_case() -> None:
    assert {c.op.name for c in CASES} | {"scan", "mixture_of_experts"} == set(OPS_BY_NAME)


FIRST_CASES = {case.op.name: case for case in reversed(CASES)}
SWEEP = [
    pytest.param(
        case, marks=() if n % 2 == 0 or case in FIRST_CASES.values() else pytest.mark.parity
    )
    for n, case in enumerate(CASES)
]
"""One case per op and every second one by default, the others in the parity suite."""


@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_onnx_runtime_equals_the_reference(case: Case) -> None:
    graph = build_graph(case)
    seen: set[bytes] = set()
    for opset in OPSETS:
        built = build_model(graph, get_target("onnx"), opset)
        onnx.checker.check_model(built.model, full_check=True)
        session = open_silent_session(built.model)
        del built.model.opset_import[:]
        if (body := built.model.graph.SerializeToString()) in seen and opset != OPSETS[-1]:
            continue  # the same nodes as at an older opset
        seen.add(body)
        for sizes in (*SIZES, *(EMPTY if case.empty else ())):
            check_agreement(graph, session, make_values(case, graph, sizes))


@pytest.mark.parametrize("case", list_quantized_cases(), ids=str)
def test_quantized_weights_for_cuda_equal_the_reference(case: Case) -> None:
    """Only weight-only quantization: CUDA kernels do not quantize activations per block."""
    op = case.op
    if isinstance(op, ops.QuantizedLinear) and op.rounding == "block":
        case = replace(case, op=replace(op, rounding="none"))
    graph = build_graph(case)
    session = open_silent_session(build_model(graph, get_target("ort-cuda")).model)
    for sizes in (*SIZES, *(EMPTY if case.empty else ())):
        check_agreement(graph, session, make_values(case, graph, sizes))
