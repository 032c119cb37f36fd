"""Attention options combine: every score function with every normalizer, span, kind of query and
number of heads.

ONNX Runtime is compared with the float64 reference for all combinations; the reference is compared,
for two score functions, with loops over queries and keys written from the definitions.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.elaborated_specs import (
    ElaboratedSpec,
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from support.parameter_sweeps import cover_axes, sample_sweep

Array = NDArray[Any]
B, H, Q, K, D, REACH = 3, 2, 4, 5, 6, 1.5

SCORES = [
    "dot",
    "scaled_dot",
    "general",
    "additive(7)",
    "cosine(sharpness=4.0)",
    "location(3)",
    "gaussian",
    "triangle(4.0)",
    "epanechnikov(5.0)",
]
LEARNED = ("general", "additive", "location", "gaussian")
NORMALIZERS = ["softmax", "queries", "hard", "sampled", "kernel", "uniform"]
SPANS = {
    "global": "visible(keep)",
    "causal": "visible(keep) & causal",
    "local_m": "visible(keep) & window(2, ahead=1)",
    "around": "visible(keep) & local_window(at, 1)",
    "monotonic": "visible(keep) & trailing_window(at, 2)",
    "local_p": f"visible(keep) & local_window(center, {REACH})",
}
KINDS = {"self": ("b, n, d", "n"), "cross": ("b, n, d", "m"), "alone": ("b, d", "m")}


def make_spec(score: str, kind: str, heads: int) -> str:
    """Return a model that returns all normalizers over all spans: mixed values and weights."""
    query = {"alone": f"[batch, {D}]"}.get(kind, f"[batch, {f'{heads}, ' * (heads > 1)}n, {D}]")
    key = f"[batch, {f'{heads}, ' * (heads > 1)}{KINDS[kind][1]}, {D}]"
    shown = query.replace(str(D) + "]", KINDS[kind][1] + "]")
    rows = "1" if kind == "alone" else "n"
    lines, results = [], []
    for how in NORMALIZERS:
        for span, mask in SPANS.items():
            if kind == "alone" and span in ("causal", "local_m"):
                continue  # a query without a length axis has no position
            name = f"{how}_{span}"
            noise = ", noise=noise" if how == "sampled" else ""
            lines.append(
                f"  o_{name}, w_{name} = attend_by({score}, x, y, y, mask={mask}, "
                f"normalize={how}{noise}) @ a"
            )
            if span == "local_p":
                middle = {"alone": "center[:, 0]", "self": "center", "cross": "center"}[kind]
                if heads > 1:
                    middle = f"expand(insert(center, axis=1), axis=1, length={heads})"
                lines.append(f"  w_{name} = gaussian_window(w_{name}, {middle}, {REACH})")
                lines.append(f"  o_{name} = weigh(w_{name}, y)")
            results += [f"o_{name}: float{query}", f"w_{name}: float{shown}"]
    inputs = (
        f"x: float{query}, y: float{key}, keep: keep[batch, {KINDS[kind][1]}], noise: float{shown}"
    )
    inputs += f", at: int[batch, {rows}], center: float[batch, {rows}]"
    if kind == "self":
        inputs = inputs.replace(f"y: float{key}, ", "")
        lines.insert(0, "  y = x")
    names = ", ".join(r.split(":")[0] for r in results)
    body = "\n".join(lines)
    shared = "weights { share a }\n" if score.startswith(LEARNED) else ""
    return model(
        f"graph f({inputs})\n  -> ({', '.join(results)}) {{\n{body}\n  return {names}\n}}\n{shared}"
    )


def model(graph: str) -> str:
    return f"specc 1\nmodel product\ndims batch, n, m\n{graph}"


def drawn(kind: str, heads: int) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    head = (heads,) if heads > 1 else ()
    n, m = Q, Q if kind == "self" else K
    x = (B, D) if kind == "alone" else (B, *head, n, D)
    rows = 1 if kind == "alone" else n
    made = {
        "x": rng.standard_normal(x),
        "y": rng.standard_normal((B, *head, m, D)),
        "noise": -np.log(-np.log(rng.random((*x[:-1], m)))),
        "center": rng.random((B, rows)) * (m - 1),
    }
    made = {k: v.astype(np.float32) for k, v in made.items() if k != "y" or kind != "self"}
    keep = np.arange(m) < np.array([[m], [2], [3]])
    return {**made, "keep": keep, "at": rng.integers(0, m, (B, rows))}


def built(
    directory: Path, score: str, kind: str, heads: int
) -> tuple[ElaboratedSpec, dict[str, Array]]:
    path = directory / "product.specc"
    path.write_text(make_spec(score, kind, heads))
    found = elaborate_with_config(str(path))
    return found, sample_spec_weights(found)


WAYS = [("self", 1), ("cross", 2), ("alone", 1), ("self", 2), ("cross", 1)]


@pytest.mark.parametrize(
    ("score", "way"),
    sample_sweep(
        cover_axes(lambda score, way: (way - score) % len(WAYS) < 2, SCORES, WAYS), stride=2
    ),
)
def test_onnx_runtime_agrees_with_the_reference_for_every_combination(
    score: str, way: tuple[str, int], tmp_path: Path
) -> None:
    """Two kinds of query with each score function by default, all under `slow`."""
    kind, heads = way
    found, weights = built(tmp_path, score, kind, heads)
    given = drawn(kind, heads)
    wanted = run_reference(found, weights, given)
    got = OrtModel(found, weights).run(given)
    for name, value in wanted.items():
        assert_arrays_close(got[name], value, f"{score} {kind} {heads} {name}")


Seen = Callable[[Mapping[str, Array], int, int, int], bool]
SEEN: dict[str, Seen] = {
    "global": lambda g, b, i, j: True,
    "causal": lambda g, b, i, j: j <= i,
    "local_m": lambda g, b, i, j: i - 2 < j <= i + 1,
    "around": lambda g, b, i, j: abs(j - g["at"][b, i]) <= 1,
    "monotonic": lambda g, b, i, j: g["at"][b, i] - 2 < j <= g["at"][b, i],
    "local_p": lambda g, b, i, j: g["center"][b, i] - REACH <= j <= g["center"][b, i] + REACH,
}


def compute_attention(how: str, scores: Array, seen: Array, noise: Array) -> Array:
    """Return the weights of one sample, from the definitions."""
    if how == "queries":
        return compute_attention("softmax", scores.T, seen.T, noise.T).T
    weights = np.zeros(scores.shape)
    for i, row in enumerate(scores):
        keys = np.flatnonzero(seen[i])
        if not keys.size:
            continue
        if how == "softmax":
            weights[i, keys] = np.exp(row[keys]) / np.exp(row[keys]).sum()
        elif how == "hard":
            weights[i, keys[row[keys].argmax()]] = 1
        elif how == "sampled":
            weights[i, keys[(row + noise[i])[keys].argmax()]] = 1
        elif how == "uniform":
            weights[i, keys] = 1 / keys.size
        elif (total := sum(max(s, 0) for s in row[keys])) > 0:
            weights[i, keys] = np.maximum(row[keys], 0) / total
    return weights


def formula(score: str, weights: Mapping[str, Array]) -> Callable[[Array, Array], float]:
    if score == "dot":
        return lambda q, k: q @ k
    w, u, v = (weights[f"a.{n}.weight"].astype(float) for n in "WUv")
    return lambda q, k: (v @ np.tanh(w @ q + u @ k)).item()


@pytest.mark.parametrize("score", ["dot", "additive(7)"])
def test_the_reference_agrees_with_the_definitions(score: str, tmp_path: Path) -> None:
    found, weights = built(tmp_path, score, "cross", 1)
    given = drawn("cross", 1)
    result = run_reference(found, weights, given)
    one = formula(score, weights)
    for b in range(B):
        x, y = given["x"][b].astype(float), given["y"][b].astype(float)
        scores = np.array([[one(q, k) for k in y] for q in x])
        for span, sees in SEEN.items():
            seen = np.array(
                [[given["keep"][b, j] and sees(given, b, i, j) for j in range(K)] for i in range(Q)]
            )
            for how in NORMALIZERS:
                wanted = compute_attention(how, scores, seen, given["noise"][b])
                if span == "local_p":
                    away = np.arange(K) - given["center"][b][:, None].astype(float)
                    wanted = wanted * np.exp(-(away**2) / (2 * (REACH / 2) ** 2))
                assert_arrays_close(
                    result[f"w_{how}_{span}"][b], wanted, f"weights {how} {span}", 1e-9
                )
                assert_arrays_close(
                    result[f"o_{how}_{span}"][b], wanted @ y, f"result {how} {span}", 1e-9
                )


def test_local_p_is_a_window_with_gaussian_weights(tmp_path: Path) -> None:
    """The standard library's block (arXiv:1508.04025, eq. 10) equals the combination above."""
    inputs = (
        "x: float[batch, n, 6], y: float[batch, m, 6], keep: keep[batch, m], "
        "center: float[batch, n]"
    )
    graph = f"graph f({inputs}) -> (out: float[batch, n, 6], weights: float[batch, n, m]) {{\n"
    graph += "  out, weights = local_p(general, x, y, y, center, 1.5, mask=visible(keep)) @ a\n"
    (tmp_path / "try.specc").write_text(model(graph + "  return out, weights\n}\n"))
    block = elaborate_with_config(str(tmp_path / "try.specc"))
    given = {k: v for k, v in drawn("cross", 1).items() if k in ("x", "y", "keep", "center")}
    found, weights = built(tmp_path, "general", "cross", 1)
    wanted = run_reference(found, weights, drawn("cross", 1))
    result = run_reference(block, weights, given)
    assert_arrays_close(result["out"], wanted["o_softmax_local_p"], "out", 1e-12)
    assert_arrays_close(result["weights"], wanted["w_softmax_local_p"], "weights", 1e-12)


@pytest.mark.parametrize("wanted", [0.2, 0.7])
def test_gumbel_samples_have_softmax_frequencies(wanted: float, tmp_path: Path) -> None:
    """Gumbel noise from `gumbel` and uniform values (arXiv:1611.01144): 20 000 samples between two
    keys.
    """
    inputs = "x: float[batch, n, 1], y: float[batch, 2, 1], u: float[batch, n, 2]"
    graph = f"graph f({inputs}) -> (w: float[batch, n, 2]) {{\n"
    graph += (
        "  _, w = attend_by(dot, x, y, y, mask=all, normalize=sampled, "
        "noise=gumbel_noise(u))\n  return w\n}\n"
    )
    (tmp_path / "try.specc").write_text(model(graph))
    logit = np.log(wanted / (1 - wanted))
    given = {"x": np.ones((1, 20_000, 1)), "y": np.array([[[logit], [0.0]]])}
    given["u"] = np.random.default_rng(0).random((1, 20_000, 2))
    result = run_reference(elaborate_with_config(str(tmp_path / "try.specc")), {}, given)["w"]
    assert set(np.unique(result)) == {0.0, 1.0}
    assert abs(result[0, :, 0].mean() - wanted) < 0.015
