"""Dynamic lengths of every kind are computed at run time from the input shapes."""

import numpy as np
import pytest
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, floor_divide_dims, max_dims, min_dims, mod_dims
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target

P, N, K = Dim.symbol("past"), Dim.symbol("new"), Dim.symbol("k")


def list_sizes(*lengths: Dim, inputs: dict[str, Type], **more: object) -> Graph:
    b = GraphBuilder()
    for name, type in inputs.items():
        b.add_input(name, Input(type))
    results = {f"y{n}": b.add_op(ops.Size(d)) for n, d in enumerate(lengths)}
    return b.build_graph("sizes", results, **more)  # type: ignore[arg-type]


def assert_lengths(graph: Graph, **shapes: tuple[int, ...]) -> None:
    given = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    session = open_silent_session(build_model(graph, get_target("onnx")).model)
    assert_outputs_match(specc_numpy.evaluate_graph(graph, given, {}), session.run(None, given))


def test_polynomials_and_functions() -> None:
    formulas = (
        P + N,
        P * N * 3 + 2,
        (N + 1) * (N + 1) - P,
        7 - N,
        floor_divide_dims(P * 3 + N, 4),
        floor_divide_dims(N - 9, 4),
        mod_dims(P, N),
        max_dims(P, N * 2),
        min_dims(P, 4),
        divide_dims_exactly(P * N * N, N),
        divide_dims_exactly(P * 2 + N * 2, 2),
    )
    graph = list_sizes(*formulas, inputs={"a": Type.of("f32", P, N)})
    for shape in ((5, 3), (0, 1), (12, 7)):
        assert_lengths(graph, a=shape)


def test_length_inside_a_sum_is_solved() -> None:
    """The keys of a decode step have `past + new` positions; the tokens determine `new`."""
    inputs = {"keys": Type.of("f32", P + N, 2), "tokens": Type.of("f32", N)}
    assert_lengths(list_sizes(P, N, P * 2, inputs=inputs), keys=(9, 2), tokens=(4,))


def test_chains_of_sums_and_multiples_are_solved() -> None:
    inputs = {
        "a": Type.of("f32", P + N + K),
        "b": Type.of("f32", N + K * 2),
        "c": Type.of("f32", K * 3),
    }
    assert_lengths(list_sizes(P, N, K, inputs=inputs), a=(10,), b=(7,), c=(6,))


def test_length_equations_replace_missing_inputs() -> None:
    graph = list_sizes(P, P + 1, inputs={"a": Type.of("f32", N)}, length_equations={"past": N * 2})
    assert_lengths(graph, a=(3,))


def test_undetermined_length_fails_an_assertion() -> None:
    graph = list_sizes(P, inputs={"a": Type.of("f32", N)})
    with pytest.raises(AssertionError, match="no input determines the length past"):
        build_model(graph, get_target("onnx"))


def test_static_lengths_are_constants_and_equal_lengths_are_shared() -> None:
    graph = list_sizes(P + N, P + N + 0, Dim.from_value(4), inputs={"a": Type.of("f32", P, N)})
    kinds = [n.op_type for n in build_model(graph, get_target("onnx")).model.graph.node]
    assert sorted(kinds) == ["Add", "Identity", "Identity", "Shape", "Shape", "Squeeze"]
