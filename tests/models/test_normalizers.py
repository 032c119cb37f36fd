"""Normalizers of std agree with the equations of their papers, solved by bisection in float64
without sorting; normalizers defined in a spec agree with their definition.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.elaborated_specs import (
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
)

from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import SpeccError

Array = NDArray[np.float64]
SPEC = """specc 1
model m
config { normalize: normalizer = softmax }
dims batch, q, k
OWN
graph g(z: float[AXES], seen: bool[batch, q, k], v: float[VALUES]) -> (out: float[OUT], weights: float[AXES]) {
  w = weights_by(normalize, z, mask=SEEN)
  return weigh(w, v), w
}
"""
HEADS = {"AXES": "batch, 2, q, k", "VALUES": "batch, 2, k, 3", "OUT": "batch, 2, q, 3"}
ALONE = {"AXES": "batch, q, k", "VALUES": "batch, k, 3", "OUT": "batch, q, 3"}


def spec(tmp_path: Path, own: str = "", heads: bool = True) -> str:
    text = SPEC.replace("OWN", own)
    for name, axes in (HEADS if heads else ALONE).items():
        text = text.replace(name, axes)
    path = tmp_path / "m.specc"
    path.write_text(text.replace("SEEN", "insert(seen, axis=1)" if heads else "seen"))
    return str(path)


def find_root(f: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a decreasing function."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return low


def sparsemax(z: Array) -> Array:
    """arXiv:1602.02068, eq. 2: [z - tau]+ with tau such that they sum to one."""
    tau = find_root(lambda t: float(np.maximum(z - t, 0).sum()) - 1, z.max() - 1, z.max())
    made: Array = np.maximum(z - tau, 0)
    return made


def entmax15(z: Array) -> Array:
    """arXiv:1905.05702, eq. 4 with alpha = 1.5: [z / 2 - tau]+ squared."""
    half = z / 2
    tau = find_root(
        lambda t: float((np.maximum(half - t, 0) ** 2).sum()) - 1, half.max() - 1, half.max()
    )
    made: Array = np.maximum(half - tau, 0) ** 2
    return made


def topk_softmax(z: Array, k: int = 2) -> Array:
    """arXiv:1912.11637, eq. 4 and 5."""
    bar = np.sort(z)[::-1][min(k, len(z)) - 1]
    share = np.where(z >= bar, np.exp(z - z.max()), 0)
    made: Array = share / share.sum()
    return made


PAPERS: dict[str, Callable[[Array], Array]] = {
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "topk(2)": topk_softmax,
    "topk(99)": lambda z: topk_softmax(z, 99),
}


def sample_scores(heads: bool, batch: int) -> dict[str, NDArray[np.generic]]:
    """Return scores of three magnitudes, with a tie, a fully masked row, and a row with one visible
    key.
    """
    rng = np.random.default_rng(3)
    lead = (batch, 2) if heads else (batch,)
    z = rng.normal(size=(*lead, 5, 7)) * np.array([0.1, 1, 3, 30, 1])[:, None]
    z[..., 1, 2] = z[..., 1, 5] = 1.5
    seen = rng.random((batch, 5, 7)) < 0.7
    seen[:, 0], seen[:, 4] = False, np.arange(7) == 3
    made = {"z": z, "seen": seen, "v": rng.normal(size=(*lead, 7, 3))}
    return {n: v.astype(np.float32) if n != "seen" else v for n, v in made.items()}


def normalize_rows(
    normalizer: Callable[[Array], Array], inputs: dict[str, NDArray[np.generic]]
) -> Array:
    """Apply a normalizer to each row, over its visible keys."""
    z = inputs["z"].astype(np.float64)
    shown = np.broadcast_to(inputs["seen"] if z.ndim == 3 else inputs["seen"][:, None], z.shape)
    weights = np.zeros(z.shape)
    for row in np.ndindex(z.shape[:-1]):
        if shown[row].any():
            weights[row][shown[row]] = normalizer(z[row][shown[row]])
    return weights


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [True, False], ids=["heads", "no heads"])
@pytest.mark.parametrize("name", PAPERS)
def test_std_normalizers_agree_with_the_papers(
    tmp_path: Path, name: str, heads: bool, batch: int
) -> None:
    model = elaborate_with_config(spec(tmp_path, heads=heads), normalize=name)
    inputs = sample_scores(heads, batch)
    weights = normalize_rows(PAPERS[name], inputs)
    found = run_reference(model, {}, inputs)
    assert_arrays_close(found["weights"], weights, name, tolerance=1e-9)
    assert_arrays_close(found["out"], weights @ inputs["v"], name, tolerance=1e-9)
    assert (found["weights"][weights == 0] == 0).all()
    made = OrtModel(model, {}).run(inputs)
    assert_arrays_close(made["weights"], weights, name)
    assert_arrays_close(made["out"], weights @ inputs["v"], name)


@pytest.mark.parametrize("name", PAPERS)
def test_sorted_scores_ignore_padding(name: str) -> None:
    """Sorts include padded keys, whose ranks must not count."""
    assert (
        check_padding(elaborate_with_config("sparsemax_lm", layers=1, normalize=name).model.graph)
        == []
    )


def test_a_defined_normalizer_agrees_with_its_definition(tmp_path: Path) -> None:
    """With an option, a local name, and helpers."""
    own = """
block total(x: float[..., k]) -> float[..., 1] { return insert(sum(x, axis=-1), axis=-1) }
normalizer powers(s, base: float = 2.0) = base ** s / total(base ** s)
"""
    own = own.replace("base ** s", "exp(s * log_of)").replace(
        "base: float = 2.0", "log_of: float = 0.5"
    )
    inputs = sample_scores(True, 3)
    for name, at in (("powers", 0.5), ("powers(2.0)", 2.0), ("powers(log_of=1.5)", 1.5)):
        model = elaborate_with_config(spec(tmp_path, own), normalize=name)

        def powers(z: Array, at: float = at) -> Array:
            made: Array = np.exp(z * at) / np.exp(z * at).sum()
            return made

        found = run_reference(model, {}, inputs)["weights"]
        assert_arrays_close(found, normalize_rows(powers, inputs), name, tolerance=1e-9)


def test_a_normalizer_may_use_another_one(tmp_path: Path) -> None:
    own = "normalizer mine(s) = 0.5 * weights_by(sparsemax, s, mask=s > -inf) + 0.5 * softmax(s, axis=-1)\n"
    inputs = sample_scores(False, 3)

    def mine(z: Array) -> Array:
        share = np.exp(z - z.max())
        made: Array = 0.5 * sparsemax(z) + 0.5 * share / share.sum()
        return made

    model = elaborate_with_config(spec(tmp_path, own, heads=False), normalize="mine")
    found = run_reference(model, {}, inputs)["weights"]
    assert_arrays_close(found, normalize_rows(mine, inputs), "mine", tolerance=1e-9)
    with pytest.raises(SpeccError, match="E0211") as caught:
        elaborate_with_config(
            spec(tmp_path, "normalizer mine(s) = sparsemax(s)\n"), normalize="mine"
        )
    (help_,) = caught.value.diagnostics[0].helps
    assert help_ == "to normalize scores: `weights_by(sparsemax, s, mask=s > -inf)`"


def test_parameters_of_a_normalizer_are_weights(tmp_path: Path) -> None:
    own = 'normalizer warm(s) = softmax(s * (parameter(shape=[1], init="ones") @ heat), axis=-1)\n'
    model = elaborate_with_config(spec(tmp_path, own), normalize="warm() @ temper")
    assert list(model.model.graph.parameters) == ["temper.heat"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("sparsmax", "E0202"), ("dot", "E0203"), ("sampled", "E0606"), ("topk", "E0211")],
)
def test_invalid_normalizers_are_refused(tmp_path: Path, name: str, code: str) -> None:
    with pytest.raises(SpeccError, match=code):
        elaborate_with_config(spec(tmp_path), normalize=name)


def test_the_function_and_the_normalizer_topk_coexist(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text("""specc 1
model m
dims batch, n
graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4], best: float[batch, n, 2]) {
  y, _ = attend_by(dot, x, x, x, mask=all, normalize=topk(2))
  best, _ = topk(x, 2)
  return y, best
}
""")
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    found = run_reference(elaborate_with_config(str(path)), {}, {"x": x})
    assert_arrays_close(found["best"], np.sort(x, axis=-1)[..., :-3:-1].astype(float), "best", 1e-9)
