"""Analyses of recurrent layers: causality, padding, batch independence, cost."""

from typing import Literal

import pytest

from specc.analysis.batch_independence import check_batch_independence
from specc.analysis.causality import check_causality
from specc.analysis.model_cost import count_multiply_adds
from specc.analysis.padding_check import check_padding
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.types import Type

B, T = Dim.symbol("batch"), Dim.symbol("seq")
LAYERS = {1: ops.Rnn, 3: ops.Gru, 4: ops.Lstm}


def build_layer(
    gates: int,
    reverse: bool,
    masked: bool,
    result: int = 0,
    side: Literal["any", "right", "left"] = "any",
) -> Graph:
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", B, T, 3)))
    keep = b.add_input("keep", Input(Type.of("bool", B, T), padding_side=side))
    w = b.add_input("w", Input(Type.of("f32", gates * 5, 3)))
    u = b.add_input("u", Input(Type.of("f32", gates * 5, 5)))
    op = ops.Gru("after", reverse=reverse) if gates == 3 else LAYERS[gates](reverse=reverse)  # type: ignore[call-arg]
    made = b.add_node(op, x, w, u, None, None, keep if masked else None)
    return b.build_graph("main", {"y": made[result]})


@pytest.mark.parametrize("gates", LAYERS)
def test_causality_by_direction(gates: int) -> None:
    assert check_causality(build_layer(gates, False, True), "seq", "x", ["y"]) == []
    assert check_causality(build_layer(gates, False, True, result=1), "seq", "x", ["y"]) == []
    (fault,) = check_causality(build_layer(gates, True, False), "seq", "x", ["y"])
    assert fault.code == "E0715"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("result", [0, 1])
def test_padding_of_masked_and_unmasked_layers(reverse: bool, result: int) -> None:
    assert check_padding(build_layer(4, reverse, True, result)) == []
    (warning,) = check_padding(build_layer(4, reverse, False, result))
    assert warning.code == "W0601"
    assert warning.helps == ("add `keep=keep`",)


def test_right_padding_does_not_reach_earlier_positions() -> None:
    assert check_padding(build_layer(3, False, False, 0, "right")) == []
    assert len(check_padding(build_layer(3, False, False, 1, "right"))) == 1
    assert len(check_padding(build_layer(3, True, False, 0, "right"))) == 1


@pytest.mark.parametrize("gates", LAYERS)
def test_batch_independence(gates: int) -> None:
    assert check_batch_independence(build_layer(gates, True, True), "batch") == []


def test_cost_includes_the_projection() -> None:
    ((node, _),) = build_layer(4, False, True).nodes
    assert count_multiply_adds(node) == B * T * 20 * (3 + 5)
    b = GraphBuilder()
    types = [("x", (B, T, 3)), ("w", (20, 3)), ("u", (20, 2)), ("r", (2, 5))]
    x, w, u, r = (b.add_input(n, Input(Type.of("f32", *s))) for n, s in types)
    b.add_node(ops.Lstm(), x, w, u, None, None, None, None, None, None, r)
    (node,) = b.nodes
    assert count_multiply_adds(node) == B * T * (20 * (3 + 2) + 2 * 5)
