"""Numbers that depend on lengths: run-time values, config values that are symbols during a check,
errors, and integers for float parameters.
"""

from pathlib import Path

import numpy as np
import pytest
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc
import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc_onnx import build_model, get_target

X = np.random.default_rng(0).normal(size=(2, 5, 4))


def spec(directory: Path, body: str, result: str = "float[batch, seq, 4]", config: str = "") -> str:
    path = directory / "spec.specc"
    path.write_text(
        f"specc 1\nmodel m\n{config}\ndims batch, seq\n"
        f"graph g(x: float[batch, seq, 4]) -> (y: {result}) {{\n{body}\n}}\n"
    )
    return str(path)


def both(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Return the reference's result, after comparing the compiled model with it."""
    want = specc_numpy.evaluate_graph(graph, {"x": x}, {})
    assert_outputs_match(
        want,
        open_silent_session(build_model(graph, get_target("onnx")).model).run(
            None, {"x": x.astype(np.float32)}
        ),
    )
    return want["y"]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_attention_scale_depends_on_run_time_width(rows: int, tmp_path: Path) -> None:
    body = "xt = transpose(x)\n_, w = attend(xt, xt, xt, mask=all)\nreturn w"
    x = X[:, :rows]
    scores = x.swapaxes(1, 2) @ x / np.sqrt(rows)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    graph = elaborate_spec(open_spec(spec(tmp_path, body, "float[batch, 4, 4]"))).graph
    np.testing.assert_allclose(both(graph, x), powers / powers.sum(-1, keepdims=True), rtol=1e-10)


def test_scale_depends_on_run_time_length(tmp_path: Path) -> None:
    body = "return attend(x, x, x, mask=all, scale=log(float(length(x, axis=1))))"
    scores = X @ X.swapaxes(1, 2) * np.log(5)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    graph = elaborate_spec(open_spec(spec(tmp_path, body))).graph
    np.testing.assert_allclose(
        both(graph, X), powers / powers.sum(-1, keepdims=True) @ X, rtol=1e-10
    )


def test_integer_from_lengths_combines_with_integers(tmp_path: Path) -> None:
    body = (
        "return float(where(positions(x) < int(length(x, axis=1) * 0.5), "
        "positions(x), floor(seq * 0.5)))"
    )
    graph = elaborate_spec(open_spec(spec(tmp_path, body, "float[seq]"))).graph
    np.testing.assert_array_equal(both(graph, X), [0, 1, 2, 2, 2])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return rms_norm(x, eps=0.1 / seq) @ n", "E0315"),
        ("return layer_norm(x, eps=seq) @ n", "E0315"),
        ("return attend(x, x, x, mask=all, cap=sqrt(seq))", "E0315"),
        ("return delay(x, first=seq * 0.5)", "E0315"),
        ("return x + sinusoid(positions(x), dim=4, layout=halves, base=float(seq))", "E0315"),
        ("return x[:, 0:int(seq * 0.5)]", "E0208"),
        ("return x * (2.0 if seq * 0.5 > 7.0 else 3.0)", "E0207"),
        ("return x * (2.0 if seq > 7.5 else 3.0)", "E0207"),
        ("return x * (2.0 if min(seq, 7.5) in [1, 2] else 3.0)", "E0207"),
        ("repeat i in int(seq * 0.5) { x = relu(x) }\nreturn x", "E0207"),
        ("return x * float(positions(x) + seq * 0.5)", "E0206"),
    ],
)
def test_run_time_lengths_are_rejected_as_attributes(body: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(spec(tmp_path, body)))
    assert [d.code for d in failed.value.diagnostics] == [code]
    assert failed.value.diagnostics[0].primary


def test_fraction_of_symbolic_config_value(tmp_path: Path) -> None:
    config = "config { d: int = 32  part: float = 0.25  whole: float }"
    body = """
a = rotate(ones(shape=[batch, 2, seq, d]), positions(x), rope(theta=10000.0 * whole), pairs=half, dim=int(part * d))
return x * (d ** -0.5) * sum(a) / whole"""
    path = spec(tmp_path, body.replace("sum(a)", "sum(sum(sum(sum(a))), axis=0)"), config=config)
    assert check_spec(open_spec(path)).missing
    assert check_spec(open_spec(path, config_settings=["whole=2.0"])).model
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(path, config_settings=["whole=2.0", "d=4"]))
    assert "features, not 1" in failed.value.diagnostics[0].title


@pytest.mark.parametrize(
    ("config", "body"),
    [
        ('config { n: int = 16 }\nrequire n % 8 == 0, "eighths"', "return x if n > 4 else -x"),
        (
            'config { n: int }\nrequire n % 8 == 0, "eighths"',
            "repeat i in n { x = relu(x) }\nreturn x",
        ),
        (
            'config { n: int = 6  m: int = 3 }\nrequire n > m + 1, "more"',
            "return x if n > 4 & m > 2 else -x",
        ),
        ("config { n: int = 6 }", 'require n > 5, "more"\nreturn x if n > 7 else -x'),
    ],
)
def test_forbidden_sizes_are_not_tried(config: str, body: str, tmp_path: Path) -> None:
    assert check_spec(open_spec(spec(tmp_path, body, config=config))).trials


def test_unsatisfiable_requirement_is_reported_once(tmp_path: Path) -> None:
    config = 'config { n: int }\nrequire n > 1000000, "more"'
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(spec(tmp_path, "return x if n > 4 else -x", config=config)))
    assert [d.code for d in failed.value.diagnostics] == ["E0404"]


FLOAT_PARAMETERS = """specc 1
model m
config { w: int = 3 }
dims batch, n
block half(x: float[batch, n, 2], k: float) -> float[batch, n, 2] {
  t: float = k
  return x * (k / 2) + (t + 1) / 2
}
bias slope(k: float) = cast(i - j, to=float) * (k / 4)
graph g(x: float[batch, n, 2]) -> (y: float[batch, n, 2], z: float[batch, n, 2], a: float[batch, n, 2]) {
  a, _ = attend(x, x, x, mask=all, add=slope(length(x, axis=1)))
  return half(x, length(x, axis=1)), half(x, w), a
}
"""


@pytest.mark.parametrize("n", [1, 2, 5])
def test_half_of_a_length_keeps_its_fraction(n: int, tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(FLOAT_PARAMETERS)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx")
    x = np.random.default_rng(n).normal(size=(2, n, 2)).astype(np.float32)
    found = specc.load(tmp_path / "m.onnx").run(x=x)
    np.testing.assert_allclose(found["y"], x * (n / 2) + (n + 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(found["z"], x * 1.5 + 2.0, rtol=1e-6)
    rows = np.arange(n)
    scores = x.astype(float) @ x.astype(float).transpose(0, 2, 1) / 2**0.5
    weights = np.exp(scores + (rows[:, None] - rows) * (n / 4))
    wanted = weights / weights.sum(-1, keepdims=True) @ x
    np.testing.assert_allclose(found["a"], wanted, rtol=1e-5, atol=1e-6)
