"""Built-in functions that select, shift and resample positions, compared with NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc
from specc.weights.formats.safetensors import write_safetensors

Array = NDArray[Any]
RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 6, 8)).astype(np.float32)
P = RNG.standard_normal((2, 4, 6, 8)).astype(np.float32) + 3
NORM = {
    "t.weight": RNG.standard_normal(4).astype(np.float32),
    "t.bias": RNG.standard_normal(4).astype(np.float32),
    "t.running_mean": RNG.standard_normal(4).astype(np.float32) + 3,
    "t.running_var": RNG.uniform(0.5, 2, 4).astype(np.float32),
    "t.num_batches_tracked": np.array(17),
}


def run_spec(directory: Path, text: str, inputs: str, weights: dict[str, Array], x: Array) -> Array:
    path = directory / "m.specc"
    path.write_text(
        f"specc 1\nmodel m\nconfig {{ shift: int = 2 }}\ndims batch, n\n"
        f"graph g({inputs}) -> (y: float[batch, ...]) {{ return {text} }}\n"
    )
    model = directory / "m.onnx"
    if weights:
        write_safetensors(directory / "w.safetensors", weights)
        specc.compile(path, model, weights=directory / "w.safetensors")
    else:
        specc.compile(path, model, init=0)
    found: Array = specc.load(model).run(x=x)["y"]
    return found


def assert_close(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


ROWS = {
    # values that are equal for all sequences and positions
    "gather(x, insert(insert(7 - range(8), axis=0), axis=0), axis=2)": X[:, :, ::-1],
    "gather(x, insert(5 - range(6), axis=0))": X[:, ::-1],
    "roll(x, shift)": np.roll(X, 2, 1),
    "roll(x, -shift, axis=2)": np.roll(X, -2, 2),
    "x[:, 1::shift]": X[:, 1::2],
    "x[:, ::2, 1:-1:3]": X[:, ::2, 1:-1:3],
    "pad(x, before=1, after=shift, value=0.5)": np.pad(
        X, ((0, 0), (1, 2), (0, 0)), constant_values=0.5
    ),
    "pad(x, after=shift, mode=reflect, axis=-1)": np.pad(
        X, ((0, 0), (0, 0), (0, 2)), mode="reflect"
    ),
    "pad(x, before=3, mode=edge)": np.pad(X, ((0, 0), (3, 0), (0, 0)), mode="edge"),
    "topk(x, shift)": -np.sort(-X, axis=-1)[..., :2],
    "resize(x, size=[12, 16], axis=1, mode=nearest)": X.repeat(2, 1).repeat(2, 2),
    "resize(x, factor=0.5, axis=1, mode=bilinear)": (X.reshape(2, 3, 2, 4, 2).mean(axis=(2, 4))),
}


@pytest.mark.parametrize("text", ROWS)
def test_axis_functions_match_numpy(text: str, tmp_path: Path) -> None:
    assert_close(run_spec(tmp_path, text, "x: float[batch, n, 8]", {}, X), ROWS[text])


def test_group_norm_weight_names(tmp_path: Path) -> None:
    grouped = P.astype(np.float64).reshape(2, 2, -1)
    mean, spread = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    wanted = ((grouped - mean) / np.sqrt(spread + 1e-5)).reshape(P.shape)
    weight, bias = (NORM[n][:, None, None] for n in ("t.weight", "t.bias"))
    found = run_spec(
        tmp_path, "group_norm(x, groups=2, eps=1e-5) @ t", "x: float[batch, 4, n, 8]",
        {n: NORM[n] for n in ("t.weight", "t.bias")}, P,
    )  # fmt: skip
    assert_close(found, wanted * weight + bias)


def test_batch_norm_weight_names(tmp_path: Path) -> None:
    """`num_batches_tracked`, which PyTorch stores too, is not read."""
    mean, spread, weight, bias = (
        NORM[f"t.{n}"][:, None, None].astype(np.float64)
        for n in ("running_mean", "running_var", "weight", "bias")
    )
    wanted = (P - mean) / np.sqrt(spread + 1e-3) * weight + bias
    found = run_spec(tmp_path, "batch_norm(x, eps=1e-3) @ t", "x: float[batch, 4, n, 8]", NORM, P)
    assert_close(found, wanted)
