"""Weights stored as `[in, out]`: results are unchanged, for weights that only matrix products
read."""

import numpy as np

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.ir_verifier import find_graph_errors
from specc.ir.types import Type
from specc.transforms.transposed_weights_and_norm_folding import (
    find_linear_weights,
    restore_weight_layout,
    transpose_stored_weights,
)


def build_linear_graph(out: int, width: int, *, shown: bool = False) -> Graph:
    """Build two linear layers; one matrix is read by another op too."""
    made = GraphBuilder()
    x = made.add_input("x", Input(Type("f32", (Dim.symbol("n"), Dim.from_value(width)))))
    w = made.add_parameter(Parameter(name="w", type=Type.of("f32", out, width), initializer=""))
    b = made.add_parameter(Parameter(name="b", type=Type.of("f32", out), initializer=""))
    v = made.add_parameter(Parameter(name="v", type=Type.of("f32", width, out), initializer=""))
    y = made.add_op(ops.Linear(), made.add_op(ops.Linear(), x, w, b), v, None)
    z = made.add_op(ops.MatMul(), x, v)
    more = {"w": w} if shown else {}
    return made.build_graph("g", {"y": y, "z": z, **more})


def test_results_are_unchanged() -> None:
    rng = np.random.default_rng(0)
    for out, width in rng.integers(1, 6, (8, 2)):
        whole = build_linear_graph(int(out), int(width))
        assert find_linear_weights(whole) == {"w"}
        turned = transpose_stored_weights(whole, {"w"})
        assert not find_graph_errors(turned)
        assert [d.number for d in turned.parameters["w"].type.shape] == [width, out]
        given = {"x": rng.normal(size=(3, width))}
        weights = {
            n: rng.normal(size=[d.number for d in v.type.shape])
            for n, v in whole.parameters.items()
        }
        wanted = specc_numpy.evaluate_graph(whole, given, weights)
        found = specc_numpy.evaluate_graph(turned, given, {**weights, "w": weights["w"].T})
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


def test_transposition_is_reversible() -> None:
    whole = build_linear_graph(2, 3)
    assert format_ir(restore_weight_layout(transpose_stored_weights(whole, {"w"}))) == format_ir(
        whole
    )
    assert restore_weight_layout(whole) is whole


def test_output_matrix_is_not_transposed() -> None:
    assert not find_linear_weights(build_linear_graph(2, 3, shown=True))
