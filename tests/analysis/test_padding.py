"""The padding analysis: when padded positions can affect a result."""

from typing import Literal

import pytest

from specc.analysis.padding_check import check_padding
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input, Value
from specc.ir.types import Type

B, S = Dim.symbol("batch"), Dim.symbol("src")
Side = Literal["left", "right", "any"]


class Model:
    """`x: f32[batch src 4]` with `keep: keep[batch, src]`."""

    def __init__(self, side: Side = "any") -> None:
        self.build = GraphBuilder()
        self.x = self.build.add_input("x", Input(Type.of("f32", B, S, 4)))
        self.keep = self.build.add_input("keep", Input(Type.of("bool", B, S), padding_side=side))

    def one(self, op: ops.Attend | object, *args: Value | None) -> Value:
        return self.build.add_op(op, *args)  # type: ignore[arg-type]  # any op

    def warnings(self, output: Value) -> list[str]:
        return [d.title for d in check_padding(self.build.build_graph("main", {"y": output}))]

    def attend(self, masked: bool) -> Value:
        mask = self.one(ops.Insert(1), self.one(ops.Insert(1), self.keep)) if masked else None
        heads = self.one(ops.Insert(1), self.x)
        return self.one(ops.Attend(0.5), heads, heads, heads, mask)

    def zeroed(self) -> Value:
        return self.one(
            ops.Arith("mul"), self.x, self.one(ops.Cast("f32"), self.one(ops.Insert(2), self.keep))
        )


def test_attention_needs_a_mask() -> None:
    model = Model()
    assert model.warnings(model.attend(True)) == []
    assert model.warnings(model.attend(False)) == [
        "padded positions affect `y`: `attend` reads them without a mask"
    ]


def test_mean_and_sum() -> None:
    model = Model()
    assert model.warnings(model.one(ops.Reduce("sum", 1), model.zeroed())) == []
    assert len(model.warnings(model.one(ops.Reduce("mean", 1), model.zeroed()))) == 1
    assert len(model.warnings(model.one(ops.Reduce("sum", 1), model.x))) == 1


def test_maximum_of_masked_values() -> None:
    model = Model()
    low = model.one(ops.Constant(float("-inf"), "f32"))
    covered = model.one(ops.Where(), model.one(ops.Insert(2), model.keep), model.x, low)
    assert model.warnings(model.one(ops.Reduce("max", 1), covered)) == []
    assert model.warnings(model.one(ops.Softmax(1), covered)) == []
    assert len(model.warnings(model.one(ops.Reduce("max", 1), model.x))) == 1


@pytest.mark.parametrize(("side", "clean"), [("right", True), ("left", False), ("any", False)])
def test_first_position_by_padding_side(side: Side, clean: bool) -> None:
    model = Model(side)
    assert (model.warnings(model.one(ops.Index(1, Dim.from_value(0)), model.x)) == []) is clean


@pytest.mark.parametrize(("side", "clean"), [("right", False), ("left", True), ("any", False)])
def test_last_position_by_padding_side(side: Side, clean: bool) -> None:
    model = Model(side)
    assert (model.warnings(model.one(ops.Last(1), model.x)) == []) is clean


@pytest.mark.parametrize(("side", "clean"), [("right", True), ("left", False), ("any", False)])
def test_position_ids_by_padding_side(side: Side, clean: bool) -> None:
    model = Model(side)
    table = model.one(ops.Sinusoid(Dim.from_value(4), "halves"), model.one(ops.Extent(1), model.x))
    found = model.warnings(model.one(ops.Arith("add"), model.x, table))
    assert (found == []) is clean
    if found:
        assert found[0].endswith(
            "position ids count from the start of the sequence, including padding"
        )


class BiasedModel(Model):
    """An attention with a bias over the key positions; padding on the left."""

    def __init__(self) -> None:
        super().__init__("left")
        self.rows = self.one(ops.Cast("f32"), self.one(ops.Extent(1), self.x))
        self.slopes = self.build.add_input("slopes", Input(Type.of("f32", 1, 2, 1, 1)))
        self.heads = self.one(ops.Expand(1, Dim.from_value(2)), self.one(ops.Insert(1), self.x))
        self.mask = self.one(ops.Insert(1), self.one(ops.Insert(1), self.keep))

    def attended(self, bias: Value, sinks: Value | None = None) -> Value:
        return self.one(ops.Attend(0.5), self.heads, self.heads, self.heads, self.mask, bias, sinks)


def test_bias_linear_in_the_position() -> None:
    """ALiBi as `slope * j`: softmax is invariant to a constant added to all scores."""
    model = BiasedModel()
    far = model.one(ops.Arith("mul"), model.slopes, model.rows)
    assert model.warnings(model.attended(far)) == []
    assert model.warnings(model.attended(model.one(ops.Pointwise("neg"), far))) == []
    scores = model.one(
        ops.MatMul(), model.heads, model.one(ops.Transpose((0, 1, 3, 2)), model.heads)
    )
    moved = model.one(ops.Arith("add"), scores, far)
    weights = model.one(ops.MaskedSoftmax(), moved, model.mask)
    assert model.warnings(model.one(ops.WeightedSum(), weights, model.heads)) == []


def test_bias_nonlinear_in_the_position() -> None:
    model = BiasedModel()
    squared = model.one(ops.Arith("mul"), model.rows, model.rows)
    by_key = model.one(
        ops.Arith("mul"), model.rows, model.build.add_input("w", Input(Type.of("f32", S)))
    )
    for bias in (squared, by_key, model.one(ops.Pointwise("tanh"), model.rows)):
        assert (
            len(model.warnings(model.attended(model.one(ops.Arith("mul"), model.slopes, bias))))
            == 1
        )
    sinks = model.build.add_input("sinks", Input(Type.of("f32", 2)))
    assert (
        len(
            model.warnings(
                model.attended(model.one(ops.Arith("mul"), model.slopes, model.rows), sinks)
            )
        )
        == 1
    )


def test_position_ids_from_the_padding_mask() -> None:
    model = Model("left")
    ids = model.one(ops.CumSum(1), model.one(ops.Cast("i64"), model.keep))
    table = model.one(ops.Sinusoid(Dim.from_value(4), "halves"), ids)
    assert model.warnings(model.one(ops.Arith("add"), model.x, table)) == []


def test_rope_is_relative() -> None:
    model = Model("left")
    rows = model.one(ops.Insert(0), model.one(ops.Extent(1), model.x))
    cos, sin = model.build.add_node(ops.RopeAngles(Dim.from_value(4), 1e4), rows)
    heads = model.one(ops.Insert(1), model.x)
    turned = model.one(ops.Rotate("half"), heads, cos, sin)
    mask = model.one(ops.Insert(1), model.one(ops.Insert(1), model.keep))
    assert model.warnings(model.one(ops.Attend(0.5), turned, turned, heads, mask)) == []
    assert len(model.warnings(model.one(ops.Attend(0.5), turned, heads, heads, mask))) == 1


def test_scalar_input() -> None:
    b = GraphBuilder()
    t = b.add_input("t", Input(Type("f32", ())))
    assert not check_padding(b.build_graph("g", {"y": b.add_op(ops.Pointwise("neg"), t)}))
