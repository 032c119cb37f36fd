"""Numerical stability of logsumexp, log_softmax, expm1 and log1p in float32, compared with
float64 formulas and Python's math module.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import open_silent_session

import specc_numpy
from specc.analysis.causality import check_causality
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc_onnx import build_model, get_target

Array = NDArray[Any]

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n]) -> (y: float[...]) {{
  return {function}(x)
}}
"""
ROWS = np.array(
    [
        [0.0, 100.0, 99.0, -100.0],
        [1e4, 1e4, -1e4, 9999.0],
        [-math.inf, 1.0, -math.inf, -2.0],
        [1e-8, -1e-8, 0.5, -30.0],
    ],
    np.float32,
)
SMALL = np.geomspace(1e-37, 0.9, 4001)
POINTS = np.concatenate(
    [[0.0, 1e-42, -1e-42, 88.0], SMALL, -SMALL, np.linspace(-0.99, 30.0, 4001)]
).astype(np.float32)


def compute(function: str, x: Array, directory: Path) -> tuple[Array, Array]:
    """Return the float32 result of the ONNX model and that of the reference."""
    path = directory / "m.specc"
    path.write_text(SPEC.format(function=function), encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    session = open_silent_session(build_model(graph, get_target("ort-cpu")).model)
    (found,) = session.run(None, {"x": x})
    with np.errstate(all="ignore"):
        reference = specc_numpy.evaluate_graph(graph, {"x": x}, {})["y"]
    return found, reference


def check_close(found: Array, expected: Array) -> None:
    """Assert that values agree within 1e-5 relative, infinities exactly."""
    single = expected.astype(np.float32)
    same = (found == single) | (np.isnan(found) & np.isnan(single))
    with np.errstate(all="ignore"):
        error = np.abs(found - expected) / np.abs(expected)
    assert (same | (error <= 1e-5)).all(), np.nanmax(np.where(same, 0, error))


@pytest.mark.parametrize("function", ["expm1", "log1p"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_near_zero_agree_with_math(function: str, tmp_path: Path) -> None:
    found, reference = compute(function, POINTS[None], tmp_path)
    expected = np.array([[getattr(math, function)(float(v)) for v in POINTS]])
    check_close(found, expected)
    check_close(reference, expected)


def test_functions_at_their_ends(tmp_path: Path) -> None:
    x = np.array([[-math.inf, math.inf, 100.0, 1e4, 3e38, math.nan]], np.float32)
    found, _ = compute("expm1", x, tmp_path)
    assert np.array_equal(
        found, [[-1, math.inf, math.inf, math.inf, math.inf, math.nan]], equal_nan=True
    )
    x[0, 0] = -1.0
    found, _ = compute("log1p", x, tmp_path)
    check_close(
        found,
        np.array(
            [[-math.inf, math.inf, math.log1p(100), math.log1p(1e4), math.log(3e38), math.nan]]
        ),
    )


def sum_exactly(row: Array) -> float:
    """Return log(sum(exp(row))) with the largest term taken out in float64."""
    top = max(float(v) for v in row)
    return top + math.log(math.fsum(math.exp(float(v) - top) for v in row))


def test_logsumexp_of_large_and_infinite_values(tmp_path: Path) -> None:
    expected = np.array([sum_exactly(row) for row in ROWS])
    for values in compute("logsumexp", ROWS, tmp_path):
        check_close(values, expected)


def test_log_softmax_of_large_and_infinite_values(tmp_path: Path) -> None:
    expected = np.array([[float(v) - sum_exactly(row) for v in row] for row in ROWS])
    for values in compute("log_softmax", ROWS, tmp_path):
        check_close(values, expected)


def test_logsumexp_where_nothing_is_finite(tmp_path: Path) -> None:
    x = np.array([[-math.inf, -math.inf], [math.inf, 0.0]], np.float32)
    for values in compute("logsumexp", x, tmp_path):
        assert np.array_equal(values, [-math.inf, math.inf])


@pytest.mark.parametrize("naive", ["log(sum(exp(x), axis=-1))", "log(softmax(x))", "exp(x) - 1.0"])
def test_naive_formulas_fail_the_same_comparison(naive: str, tmp_path: Path) -> None:
    function = {"log(sum": "logsumexp", "log(sof": "log_softmax"}.get(naive[:7], "expm1")
    stable, _ = compute(function, ROWS, tmp_path)
    path = tmp_path / "naive.specc"
    path.write_text(SPEC.format(function="").replace("return (x)", f"return {naive}"), "utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    session = open_silent_session(build_model(graph, get_target("ort-cpu")).model)
    (found,) = session.run(None, {"x": ROWS})
    with pytest.raises(AssertionError):
        check_close(found, stable.astype(np.float64))


GENERATIVE = """specc 1
model m
dims batch, n
mask causal_mask = j <= i
graph lm(ids: int[batch, n]) -> (logits: float[batch, n, 8]) {{
  x = embedding(ids, size=9, dim=8) @ e
  s = where(squeeze(grid({mask}, x, x), axis=1), grid(dot, x, x), -inf)
  w = exp(log_softmax(s, axis=-1))
  return linear(weigh(w, x), out=8) @ head + insert(logsumexp(s, axis=-1), axis=-1)
}}
generate text of ids from logits {{ stop = 2 }}
"""


def find_faults(text: str, directory: Path) -> list[str]:
    """Return the codes of the causality proof of a generative spec."""
    path = directory / "m.specc"
    path.write_text(text, encoding="utf-8")
    graph = elaborate_spec(open_spec(str(path))).graph
    return [fault.code for fault in check_causality(graph, "n", "ids", ["logits"])]


def test_masked_keys_leave_log_softmax_causal(tmp_path: Path) -> None:
    assert not find_faults(GENERATIVE.format(mask="causal_mask"), tmp_path)
    assert find_faults(GENERATIVE.format(mask="all"), tmp_path)
