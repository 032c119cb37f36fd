"""Evaluation of graphs by the NumPy reference: lengths are bound from the inputs, and errors name
invalid inputs.
"""

import numpy as np
import pytest

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter
from specc.ir.input_shapes_and_defaults import infer_symbol_sizes
from specc.ir.types import Type

B, T, N = Dim.symbol("batch"), Dim.symbol("seq"), Dim.symbol("n")


def build_lookup_graph() -> Graph:
    build = GraphBuilder()
    ids = build.add_input("ids", Input(Type.of("i64", B, T)))
    scale = build.add_input("scale", Input(Type.of("f32", B)))
    table = build.add_parameter(
        Parameter(name="table", type=Type.of("f32", 5, 2), initializer="normal")
    )
    x = build.add_op(ops.Embedding(), ids, table)
    build.names["embedded"] = x
    wide = build.add_op(ops.Insert(1), build.add_op(ops.Insert(1), scale))
    return build.build_graph(
        "main", {"y": build.add_op(ops.Arith("mul"), x, wide)}, min_lengths={"seq": 1}
    )


TABLE = {"table": np.arange(10, dtype=np.float32).reshape(5, 2)}


def test_floats_are_float64_and_values_are_requested_by_name() -> None:
    inputs = {"ids": np.array([[1, 4]]), "scale": np.array([2.0], np.float32)}
    found = specc_numpy.evaluate_graph(
        build_lookup_graph(), inputs, TABLE, value_names=("y", "embedded")
    )
    assert found["y"].dtype == np.float64
    np.testing.assert_array_equal(found["embedded"], [[[2, 3], [8, 9]]])
    np.testing.assert_array_equal(found["y"], [[[4, 6], [16, 18]]])


GOOD = {"ids": np.array([[1, 4]]), "scale": np.ones(1)}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": GOOD["ids"]}, r"E0910\]: missing model input `scale`"),
        ({**GOOD, "more": np.ones(1)}, r"E0910\]: unknown model input `more`"),
        (
            {**GOOD, "ids": np.ones((1, 2))},
            r"E0907\]: the input `ids` is float64, expected integers",
        ),
        ({**GOOD, "ids": np.array([1])}, r"E0911\]: `ids` has 1 axes, expected 2"),
        ({**GOOD, "scale": np.ones(3)}, r"E0912\]: `batch` is 1 in `ids` but 3 in `scale`"),
        ({**GOOD, "ids": np.ones((1, 0), int)}, r"E0912\]: `seq` is 0, expected at least 1"),
        (
            {**GOOD, "ids": np.array([[1, 5]])},
            r"E0913\]: an embedding table has indices 0 to 4, got 5",
        ),
        (
            {**GOOD, "ids": np.array([[-1, 0]])},
            r"E0913\]: an embedding table has indices 0 to 4, got -1",
        ),
    ],
)
def test_errors_name_invalid_inputs(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(SpeccError, match=message.replace("[", r"\[")):
        specc_numpy.evaluate_graph(build_lookup_graph(), inputs, TABLE)


def test_lengths_are_solved_from_sums_and_multiples() -> None:
    given = [("x", Type.of("f32", 2 * N + 1, T), (9, 3)), ("y", Type.of("f32", N + T), (7,))]
    assert infer_symbol_sizes(given) == {"n": 4, "seq": 3}
    assert infer_symbol_sizes(
        [("x", Type.of("f32", T), (6,))], {"half": divide_dims_exactly(T, 2)}
    ) == {"seq": 6, "half": 3}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8, 3), "not a valid length of `2\\*n \\+ 1`"),
        ((9, 2), "`seq` is 2, but must equal `n`, which is 4"),
    ],
)
def test_inconsistent_lengths_are_rejected(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(SpeccError, match=message):
        infer_symbol_sizes([("x", Type.of("f32", 2 * N + 1, T), shape)], {"seq": N})


def build_counting_body() -> Graph:
    inner = GraphBuilder()
    row, carry = (
        inner.add_input("x", Input(Type.of("f32", B))),
        inner.add_input("c", Input(Type.of("f32", B))),
    )
    after = inner.add_op(ops.Arith("add"), row, carry)
    return inner.build_graph("body", {"c": after, "y": after})


def run_scan(reverse: bool) -> Graph:
    build = GraphBuilder()
    keep = build.add_input("keep", Input(Type.of("bool", B, T), padding_side="any"))
    x, c = (
        build.add_input("x", Input(Type.of("f32", B, T))),
        build.add_input("c", Input(Type.of("f32", B))),
    )
    last, every = build.add_node(
        ops.Scan(build_counting_body(), 1, 1, 1, reverse=reverse, has_mask=True), keep, x, c
    )
    return build.build_graph("main", {"last": last, "every": every})


@pytest.mark.parametrize(("reverse", "expected"), [(False, [[1, 0, 4, 8]]), (True, [[8, 0, 7, 4]])])
def test_scan_skips_masked_positions(reverse: bool, expected: list[list[int]]) -> None:
    inputs = {
        "x": np.array([[1.0, 2, 3, 4]]),
        "keep": np.array([[True, False, True, True]]),
        "c": np.zeros(1),
    }
    found = specc_numpy.evaluate_graph(run_scan(reverse), inputs, {})
    np.testing.assert_array_equal(found["every"], expected)
    np.testing.assert_array_equal(found["last"], [8])


def test_scan_over_an_empty_axis_returns_the_initial_carry() -> None:
    inputs = {"x": np.ones((2, 0)), "keep": np.ones((2, 0), bool), "c": np.array([5.0, 6.0])}
    found = specc_numpy.evaluate_graph(run_scan(False), inputs, {})
    np.testing.assert_array_equal(found["last"], [5, 6])
    assert found["every"].shape == (2, 0)
