"""Blocks of the standard library, each compared with its formula."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.elaborated_specs import (
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    sample_spec_weights,
)

from specc_numpy import evaluate_graph

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5, 8)).astype(np.float32)
KEEP = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)


def run_statements(
    tmp_path: Path, inputs: str, results: str, body: str, given: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
    """Return the result of a graph with these statements, which ONNX Runtime must reproduce, and
    its weights.
    """
    text = (
        f"specc 1\nmodel try\ndims batch, seq\ngraph f({inputs}) -> (y: {results}) {{\n{body}\n}}\n"
    )
    (tmp_path / "try.specc").write_text(text)
    spec = elaborate_with_config(str(tmp_path / "try.specc"))
    weights = sample_spec_weights(spec)
    wanted = evaluate_graph(spec.model.graph, given, weights)["y"]
    assert_arrays_close(OrtModel(spec, weights).run(given)["y"], wanted, "in ONNX Runtime")
    return wanted, weights


def run_on_sequence(tmp_path: Path, body: str, results: str = "float[batch, 8]") -> NDArray[Any]:
    """Return the result for `x` and `keep` above."""
    inputs = "x: float[batch, seq, 8], keep: keep[batch, seq]"
    return run_statements(tmp_path, inputs, results, body, {"x": X, "keep": KEEP})[0]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("cls_token(x)", X[:, 0]),
        ("mean_pool(x)", X.mean(1)),
        (
            "masked_mean_pool(x, keep)",
            np.stack([x[k].mean(0) for x, k in zip(X, KEEP, strict=True)]),
        ),
        ("masked_max_pool(x, keep)", np.stack([x[k].max(0) for x, k in zip(X, KEEP, strict=True)])),
        ("last_token(x, keep)", np.stack([X[0, 2], X[1, 4], X[2, 4]])),
    ],
)
def test_pooling_blocks_agree_with_their_formulas(
    call: str, wanted: NDArray[Any], tmp_path: Path
) -> None:
    assert_arrays_close(
        run_on_sequence(tmp_path, f"return {call}"), wanted.astype(np.float64), call, 1e-6
    )


@pytest.mark.parametrize("block", ["masked_mean_pool", "masked_max_pool", "last_token"])
def test_pooling_of_a_fully_masked_sequence_is_zero(block: str, tmp_path: Path) -> None:
    inputs = "x: float[batch, seq, 8], keep: keep[batch, seq]"
    keep = np.array([[False] * 5, [True] * 5, [False] * 5])
    given = {"x": X, "keep": keep}
    call = f"return {block}(x, keep)"
    found = run_statements(tmp_path, inputs, "float[batch, 8]", call, given)[0]
    assert not found[[0, 2]].any()
    assert found[1].any()


def test_position_ids_do_not_count_padding(tmp_path: Path) -> None:
    found = run_on_sequence(tmp_path, "return position_ids(keep)", "int[batch, seq]")
    assert [row[kept].tolist() for row, kept in zip(found, KEEP, strict=True)] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2, 3, 4],
    ]


@pytest.mark.parametrize("place", ["pre", "post", "sandwich"])
def test_pre_norm_and_post_norm_agree_with_their_formulas(place: str, tmp_path: Path) -> None:
    """`f` doubles its input, so that only the norms are tested."""
    body = f'return residual(x, f=gated, norm=rms_norm(eps=1e-6), norm_placement={place}, name="n")\n}}\n'
    body += "block gated(x: float[b, n, d]) -> float[b, n, d] {\n  return x * 2.0"
    given = {"x": X, "keep": KEEP}
    inputs = "x: float[batch, seq, 8], keep: keep[batch, seq]"
    found, weights = run_statements(tmp_path, inputs, "float[batch, seq, 8]", body, given)

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights[name]

    x = X.astype(np.float64)
    wanted = {
        "post": lambda: norm(3 * x, "n.weight"),
        "pre": lambda: x + 2 * norm(x, "n.weight"),
        "sandwich": lambda: x + norm(2 * norm(x, "n.weight"), "n_out.weight"),
    }[place]()
    assert_arrays_close(found, wanted, place, 1e-9)


def test_classification_head_agrees_with_its_formula(tmp_path: Path) -> None:
    body = "return classification_head(masked_mean_pool(x, keep), classes=3) @ head"
    inputs = "x: float[batch, seq, 8], keep: keep[batch, seq]"
    found, w = run_statements(tmp_path, inputs, "float[batch, 3]", body, {"x": X, "keep": KEEP})
    pooled = np.stack([x[k].astype(np.float64).mean(0) for x, k in zip(X, KEEP, strict=True)])
    hidden = np.tanh(pooled @ w["head.dense.weight"].T + w["head.dense.bias"])
    wanted = hidden @ w["head.out_proj.weight"].T + w["head.out_proj.bias"]
    assert_arrays_close(found, wanted, "classification_head", 1e-9)


def test_sinusoid_grid_equals_that_of_the_masked_autoencoder(tmp_path: Path) -> None:
    body = "return x + sinusoid_2d(rows=2, columns=3, dim=8)"
    inputs = "x: float[batch, 6, 8]"
    found, _ = run_statements(
        tmp_path, inputs, "float[batch, 6, 8]", body, {"x": np.zeros((1, 6, 8), np.float32)}
    )
    frequencies = 1 / 10000 ** (np.arange(2) / 2)
    wanted = []
    for row in range(2):
        for column in range(3):
            across, down = column * frequencies, row * frequencies
            wanted.append(np.r_[np.sin(across), np.cos(across), np.sin(down), np.cos(down)])
    assert_arrays_close(found[0], np.array(wanted), "sinusoid_2d", 1e-9)


def test_upsample_bilinear_aligns_pixel_centers(tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 3, 2, 4)).astype(np.float32)
    body = "return upsample_bilinear(x, factor=3)"
    found, _ = run_statements(
        tmp_path, "x: float[batch, 3, 2, 4]", "float[batch, 3, 6, 12]", body, {"x": x}
    )
    wanted = np.empty((2, 3, 6, 12))
    for p in range(6):
        for q in range(12):
            r, c = (np.clip((n + 0.5) / 3 - 0.5, 0, size - 1) for n, size in ((p, 2), (q, 4)))
            r0, c0 = int(r), int(c)
            r1, c1, a, b = min(r0 + 1, 1), min(c0 + 1, 3), r - r0, c - c0
            upper = (1 - b) * x[:, :, r0, c0] + b * x[:, :, r0, c1]
            lower = (1 - b) * x[:, :, r1, c0] + b * x[:, :, r1, c1]
            wanted[:, :, p, q] = (1 - a) * upper + a * lower
    assert_arrays_close(found, wanted, "upsample_bilinear", 1e-6)


def test_unpatchify_inverts_patch_embedding(tmp_path: Path) -> None:
    picture = RNG.standard_normal((2, 3, 6, 4)).astype(np.float32)
    patches = picture.reshape(2, 3, 3, 2, 2, 2).transpose(0, 2, 4, 3, 5, 1).reshape(2, 6, 12)
    body = "return unpatchify(x, rows=3, columns=2, patch=2)"
    found, _ = run_statements(
        tmp_path, "x: float[batch, 6, 12]", "float[batch, 3, 6, 4]", body, {"x": patches}
    )
    assert_arrays_close(found, picture.astype(np.float64), "unpatchify", 0.0)


@pytest.mark.parametrize("parts", [(1, 1), (2, 3), (6, 4), (7, 9)])
def test_adaptive_avg_pool2d_averages_overlapping_parts(
    parts: tuple[int, int], tmp_path: Path
) -> None:
    """Also with fewer positions than parts; one of the lengths is dynamic."""
    rows, columns = parts
    x = RNG.standard_normal((2, 3, 5, 8)).astype(np.float32)
    body = f"return adaptive_avg_pool2d(x, rows={rows}, columns={columns})"
    found, _ = run_statements(
        tmp_path,
        "x: float[batch, 3, seq, 8]",
        f"float[batch, 3, {rows}, {columns}]",
        body,
        {"x": x},
    )
    wanted = np.empty((2, 3, rows, columns))
    for i in range(rows):
        for j in range(columns):
            down = slice(math.floor(i * 5 / rows), math.ceil((i + 1) * 5 / rows))
            across = slice(math.floor(j * 8 / columns), math.ceil((j + 1) * 8 / columns))
            wanted[:, :, i, j] = x[:, :, down, across].mean((2, 3))
    assert_arrays_close(found, wanted, "adaptive_avg_pool2d", 1e-6)
