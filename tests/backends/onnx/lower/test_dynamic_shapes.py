"""Every kind of length is found at run time, from whatever the inputs tell."""

import numpy as np
import pytest
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, floor_divide_dims, max_dims, min_dims, mod_dims
from specc.ir.graph import Builder, Graph, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target

P, N, K = Dim.symbol("past"), Dim.symbol("new"), Dim.symbol("k")


def sizes(*lengths: Dim, inputs: dict[str, Type], **more: object) -> Graph:
    b = Builder()
    for name, type in inputs.items():
        b.input(name, Input(type))
    results = {f"y{n}": b.one(ops.Size(d)) for n, d in enumerate(lengths)}
    return b.finish("sizes", results, **more)  # type: ignore[arg-type]


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
    graph = sizes(*formulas, inputs={"a": Type.of("f32", P, N)})
    for shape in ((5, 3), (0, 1), (12, 7)):
        assert_lengths(graph, a=shape)


def test_a_length_that_stands_only_in_sums_is_what_remains() -> None:
    """A step graph's keys have `past + new` rows; the tokens say how many are new."""
    inputs = {"keys": Type.of("f32", P + N, 2), "tokens": Type.of("f32", N)}
    assert_lengths(sizes(P, N, P * 2, inputs=inputs), keys=(9, 2), tokens=(4,))


def test_chains_of_sums_and_multiples_are_followed() -> None:
    inputs = {
        "a": Type.of("f32", P + N + K),
        "b": Type.of("f32", N + K * 2),
        "c": Type.of("f32", K * 3),
    }
    assert_lengths(sizes(P, N, K, inputs=inputs), a=(10,), b=(7,), c=(6,))


def test_facts_say_what_no_input_does() -> None:
    graph = sizes(P, P + 1, inputs={"a": Type.of("f32", N)}, length_equations={"past": N * 2})
    assert_lengths(graph, a=(3,))


def test_a_length_nobody_tells_is_a_fault_of_ours() -> None:
    graph = sizes(P, inputs={"a": Type.of("f32", N)})
    with pytest.raises(AssertionError, match="no input determines the length past"):
        build_model(graph, get_target("onnx"))


def test_known_lengths_stay_constants_and_equal_ones_are_found_once() -> None:
    graph = sizes(P + N, P + N + 0, Dim.of(4), inputs={"a": Type.of("f32", P, N)})
    kinds = [n.op_type for n in build_model(graph, get_target("onnx")).model.graph.node]
    assert sorted(kinds) == ["Add", "Identity", "Identity", "Shape", "Shape", "Squeeze"]
