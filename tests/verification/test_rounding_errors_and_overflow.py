"""Differences that float32 rounding explains are accepted; all others are errors."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.onnx_sessions import save_with_hash
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc
from specc import backend
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.array import Array
from specc.runtime.random_inputs import make_random_inputs
from specc.runtime.single_model_file import LoadedModel
from specc.verification.model_verification import verify_graph
from specc.verification.rounding_errors_and_overflow import (
    compute_position_error_bounds,
    make_perturbed_evaluator,
)
from specc.weights.formats.safetensors import write_safetensors

Change = Callable[[Mapping[str, Array], int], dict[str, Array]]
HEAD = """specc 1
model m
config { d: int = 32  heads: int = 2 }
dims batch, n
graph lm(ids: int[batch, n]) -> (logits: float[batch, n, 50]) {
  x = embedding(ids, size=50, dim=d) @ embed
  repeat k in 2 under "layers.{k}" {
    x = x + (mixer(rms_norm(x, eps=1e-6) @ norm1) @ mixer)
    x = x + (gated_mlp(rms_norm(x, eps=1e-6) @ norm2, hidden=48, act=silu) @ mlp)
  }
  return linear(rms_norm(x, eps=1e-6) @ norm, out=50, bias=false) @ head
}
block mixer(x: float[b, n, d]) -> float[b, n, d] {
"""
RECURRENCES = {
    "gated linear attention": HEAD
    + """
  q = split(linear(x, out=d, bias=false) @ q, into=[heads, d / heads], axis=2)
  k = split(linear(x, out=d, bias=false) @ k, into=[heads, d / heads], axis=2)
  v = split(linear(x, out=d, bias=false) @ v, into=[heads, d / heads], axis=2)
  gate = sigmoid(linear(linear(x, out=16, bias=false) @ gate1, out=d) @ gate2) ** 0.0625
  a = split(gate, into=[heads, d / heads], axis=2)
  s = zeros(shape=[length(x, axis=0), heads, d / heads, d / heads])
  scan q_t, k_t, v_t, a_t in q, k, v, a along n carry s collect o {
    s = insert(a_t, axis=3) * s + insert(k_t, axis=3) * insert(v_t, axis=2)
    o = einsum("b h k, b h k v -> b h v", q_t, s)
  }
  o = merge(rms_norm(o, eps=1e-5) @ norm, axis=2)
  return linear(o * silu(linear(x, out=d) @ r), out=d, bias=false) @ o
}
""",
    "recurrent gates": HEAD
    + """
  r = sigmoid(linear(x, out=d) @ gate_a)
  i = sigmoid(linear(x, out=d) @ gate_x)
  a = exp(-8.0 * softplus(parameter(shape=[d]) @ lambda) * r)
  u = sqrt(1.0 - a * a) * (i * x)
  h = zeros(shape=[length(x, axis=0), d])
  scan a_t, u_t in a, u along n carry h collect y {
    h = a_t * h + u_t
    y = h
  }
  return linear(gelu(linear(x, out=d) @ gate) * y, out=d) @ down
}
""",
}
LLAMA = {"vocab": 97, "d": 32, "heads": 4, "kv_heads": 2, "layers": 2, "hidden": 48}


def add_outliers(weights: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Multiply an eighth of the rows of each matrix by 100, set others to zero, and others to
    denormal values."""
    rng, found = np.random.default_rng(seed), {}
    for name, value in weights.items():
        made = np.array(value, np.float32)
        if made.ndim == 2:
            rows = rng.permutation(len(made))
            few = max(1, len(rows) // 8)
            made[rows[:few]] *= 100
            made[rows[few : 2 * few]] = 0
            made[rows[2 * few : 3 * few]] *= np.float32(1e-40)
        found[name] = made
    return found


def scale_matrices(weights: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Scale matrices so that each product is four times as large as its input."""
    rng, found = np.random.default_rng(seed), {}
    for name, value in weights.items():
        size = 4 / np.sqrt(value.shape[-1]) if value.ndim > 1 else 0.3
        noise = size * rng.normal(size=value.shape)
        found[name] = (noise if value.ndim > 1 else value + noise).astype(np.float32)
    return found


def compile_changed(
    spec: Path | str, directory: Path, change: Change, seed: int, **config: int
) -> Path:
    """Compile a model with changed random weights."""
    specc.compile(spec, directory / "plain.onnx", init=seed, set=config)
    weights = specc.load(directory / "plain.onnx").weights()
    write_safetensors(directory / "w.safetensors", change(weights, seed))
    path = directory / "m.onnx"
    options = {"weights": directory / "w.safetensors", "weights_as": "inline"}
    specc.compile(spec, path, set=config, **options)
    return path


def compile_llama(directory: Path, seed: int) -> Path:
    """Compile a small Llama with outlier rows."""
    return compile_changed("llama", directory, add_outliers, seed, **LLAMA)


def test_outlier_zero_and_denormal_rows_agree(tmp_path: Path) -> None:
    found = list(verify_graph(specc.load(compile_llama(tmp_path, 0)).scoring_model))
    assert all(one.is_within_tolerance for one in found)
    long = max(found, key=lambda one: one.sizes["seq"])
    assert long.max_error > 1e-5
    assert ", of which float32 rounding explains" in str(long)


@pytest.mark.parametrize(
    ("spec", "change"),
    sample_sweep(
        list(product(("gated linear attention", "recurrent gates"), (add_outliers, scale_matrices)))
    ),
)
def test_published_recurrences_agree(spec: str, change: Change, tmp_path: Path) -> None:
    """`sigmoid(x) ** (1 / 16)` of GLA (arXiv:2312.06635, sec. 4.4); `sqrt(1 - a * a)` of
    Griffin (arXiv:2402.19427, eq. 4), where `a` is nearly 1.
    """
    (tmp_path / "spec.specc").write_text(RECURRENCES[spec])
    for seed in (1, 2):
        path = compile_changed(tmp_path / "spec.specc", tmp_path, change, seed)
        found = list(verify_graph(specc.load(path).scoring_model))
        assert sum(one.is_within_tolerance is True for one in found) > len(found) // 2


def draw_normal(weights: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Replace all weights, norms and decays too, by samples of N(0, 1.5²)."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=w.shape, scale=1.5).astype("f4") for name, w in weights.items()}


@pytest.mark.parametrize("spec", ["mamba", pytest.param("mamba2", marks=pytest.mark.slow)])
def test_state_space_models_with_large_weights_agree(spec: str, tmp_path: Path) -> None:
    """Their gates are as small as sigmoid(-30), and multiply values of any size."""
    path = compile_changed(spec, tmp_path, draw_normal, 1, **SMALL_CONFIGS[spec])
    assert all(one.is_within_tolerance for one in verify_graph(specc.load(path).scoring_model))


def test_overflow_of_float32_is_named(tmp_path: Path) -> None:
    def enlarge(weights: Mapping[str, Array], seed: int) -> dict[str, Array]:
        return {n: np.float32(1e20) * w if "up_proj" in n else w for n, w in weights.items()}

    path = compile_changed("llama", tmp_path, enlarge, 0, **LLAMA)
    with pytest.raises(SpeccError, match="E0980") as failure:
        list(verify_graph(specc.load(path).scoring_model))
    assert "the norm sums its square" in str(failure.value)


@pytest.mark.slow
def test_positions_where_rounding_rarely_decides_agree(tmp_path: Path) -> None:
    """One of 1042 positions moves in none of the samples that determine the bounds."""
    config = {**LLAMA, "d": 64, "hidden": 96, "layers": 4}
    found = list(
        verify_graph(
            specc.load(compile_changed("llama", tmp_path, add_outliers, 0, **config)).scoring_model
        )
    )
    assert all(one.is_within_tolerance for one in found)


@pytest.mark.parametrize("by", [1e-2, 1e-3])
def test_a_mistake_in_an_ill_conditioned_model_is_found(by: float, tmp_path: Path) -> None:
    """Well-conditioned positions reveal the error."""
    path = compile_llama(tmp_path, 0)
    model: LoadedModel = specc.load(path).scoring_model
    changed = onnx.load(path)
    for tensor in changed.graph.initializer:
        if tensor.name == model.manifest.initializers["lm_head.weight"]:
            value = numpy_helper.to_array(tensor) * np.float32(1 + by)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    save_with_hash(changed, path)
    wrong = specc.load(path).scoring_model
    right = model.weights()
    wrong.weights = lambda: right
    with pytest.raises(SpeccError, match="E0930"):
        list(verify_graph(wrong))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_bounds_hold_for_float32_arithmetic(scale: float, tmp_path: Path) -> None:
    """NumPy in float32 stays within the bounds, which are proportional to the condition number:
    `tanh` of sums of large terms."""
    text = """specc 1
model m
dims batch
graph g(x: float[batch, 64]) -> (y: float[batch, 16]) {
  return tanh(linear(x, out=16, bias=false) @ a)
}
"""
    (tmp_path / "m.specc").write_text(text)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx").scoring_model
    graph, (name,) = model.manifest.graph, model.weights()
    rng = np.random.default_rng(0)
    w = (rng.normal(size=(16, 64)) * scale).astype("f4")
    inputs = make_random_inputs(graph, {"batch": 200}, rng)
    want = backend.load_reference_backend().evaluate_graph(graph, inputs, {name: w})
    (bound,) = compute_position_error_bounds(
        make_perturbed_evaluator(graph, inputs, {name: w}), want
    ).values()
    got = np.tanh(inputs["x"] @ w.T)
    error = np.abs(got - want["y"])
    assert (error <= bound).all()
    assert error.max() >= bound.max() / 1000
