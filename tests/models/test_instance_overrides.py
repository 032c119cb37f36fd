"""Instances that override parts: a mask, a score function, a norm, an activation, from the same
file or from a used file, in both syntaxes, compared with NumPy and with the same spec with these
parts inlined.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.elaborated_specs import (
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from support.paper_equations import Array, Arrays, assert_matches_equations, layer_norm, linear

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.syntax.dsl.dsl_printer import format_dsl as write_dsl
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml

CAUCHY = """\
specc 1
model nearness
extends kernel_regression

score cauchy(width: float) = 1.0 / (1.0 + sum((q - k) ** 2.0, axis=-1) / width)

config {
  inputs = 2
  outputs = 3
  kernel = cauchy(width=0.5)
}
"""


def write_spec(directory: Path, text: str, syntax: str) -> str:
    """Write a spec in one of the syntaxes."""
    tree = parse_spec(Source("spec.specc", text))
    path = directory / f"own.{syntax}"
    made = write_dsl(tree) if syntax == "specc" else format_yaml(tree)
    path.write_text(made, encoding="utf-8")
    return str(path)


def near(w: Arrays, x: Array, known: Array, values: Array) -> Arrays:
    k = np.array([[1 / (1 + ((a - b) ** 2).sum() / 0.5) for b in known] for a in x])
    weights = k / k.sum(1, keepdims=True)
    return {"y": weights @ values, "weights": weights}


@pytest.mark.parametrize("syntax", ["specc", "yaml"])
def test_an_instance_overrides_the_score_function(syntax: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "x": rng.standard_normal((4, 2)).astype(np.float32),
            "known": rng.standard_normal((6, 2)).astype(np.float32),
            "values": rng.standard_normal((6, 3)).astype(np.float32),
        }
        for _ in range(3)
    ]
    assert_matches_equations(write_spec(tmp_path, CAUCHY, syntax), near, rows, {})


BASE = """\
specc 1
model base
config {
  width: int = 8
  heads: int = 2
  mask: mask = causal
  norm: norm = layer_norm(eps=1e-5)
  act: activation = relu
}
require width % heads == 0
dims batch, seq
graph f(x: float[batch, seq, width]) -> (y: float[batch, seq, width], seen: bool[1, seq, seq]) {
  x = apply(norm, x) @ norm
  seen = grid(mask, x, x)[:, 0]
  return act(linear(x, out=width) @ map), seen
}
"""
OWN = """\
specc 1
model own
extends "base"
use "other" as o

mask strided(n: int) = (i - j) % (n * heads) == 0
block twice_normed(x: float[..., width]) -> float[..., width] {
  return 2.0 * (layer_norm(x, eps=1e-5) @ inner)
}

config {
  mask = strided(1) & o.near(3) | o.same_row
  norm = twice_normed
  act = o.cubed
}
"""
OTHER = """\
specc 1
model other
mask near(n: int) = i - j < n
mask same_row = i == j
block cubed(x: float[...]) -> float[...] { return x ** power }
config { power: float = 3.0 }
"""


def own(w: Arrays, seen: Array, x: Array) -> Arrays:
    h = 2 * layer_norm(w, "norm.inner", x)
    return {"y": linear(w, "map", h) ** 3, "seen": seen}


@pytest.mark.parametrize("syntax", ["specc", "yaml"])
def test_an_instance_overrides_masks_norms_and_activations(syntax: str, tmp_path: Path) -> None:
    """They read the config of the extended spec; those of a used file read their own."""
    (tmp_path / "base.specc").write_text(BASE, encoding="utf-8")
    (tmp_path / "other.specc").write_text(OTHER, encoding="utf-8")
    apart = np.arange(7)[:, None] - np.arange(7)
    seen = ((apart % 2 == 0) & (apart < 3)) | (apart == 0)
    rng = np.random.default_rng(1)
    rows = [{"x": rng.standard_normal((7, 8)).astype(np.float32)}]
    equations = partial(own, seen=seen)
    assert_matches_equations(write_spec(tmp_path, OWN, syntax), equations, rows, {})


CHOOSER = """\
specc 1
model chooser
config { normalize: normalizer = sparsemax  added: bias? = none }
dims batch, n
graph f(x: float[batch, n, 4]) -> (w: float[batch, n, n]) {
  _, w = attend_by(dot, x, x, x, mask=causal, add=added, normalize=normalize)
  return w
}
"""
SHARP = """\
specc 1
model sharp
extends "chooser"

normalizer sharp(s, by: float) = softmax(by * s, axis=-1)
bias nearer(by: float) = -by * abs(float(i - j))

config {
  normalize = sharp(2.0)
  added = nearer(0.5)
}
"""


@pytest.mark.parametrize("syntax", ["specc", "yaml"])
def test_an_instance_overrides_normalizer_and_bias(syntax: str, tmp_path: Path) -> None:
    (tmp_path / "chooser.specc").write_text(CHOOSER, encoding="utf-8")
    spec = elaborate_with_config(write_spec(tmp_path, SHARP, syntax))
    x = np.random.default_rng(3).standard_normal((2, 5, 4))
    apart = np.arange(5)[:, None] - np.arange(5)
    scores = 2 * (np.einsum("bid,bjd->bij", x, x) - 0.5 * abs(apart))
    powers = np.exp(scores - scores.max()) * (apart >= 0)
    found = run_reference(spec, {}, {"x": x})["w"]
    wanted = powers / powers.sum(-1, keepdims=True)
    assert_arrays_close(found, wanted, "weights", 1e-12)


def test_a_name_on_the_command_line_refers_to_the_instance(tmp_path: Path) -> None:
    (tmp_path / "base.specc").write_text(BASE, encoding="utf-8")
    (tmp_path / "other.specc").write_text(OTHER, encoding="utf-8")
    path = write_spec(tmp_path, OWN, "specc")
    x = np.random.default_rng(0).standard_normal((1, 5, 8))
    spec = elaborate_with_config(path, mask="strided(2)")
    seen = run_reference(spec, sample_spec_weights(spec), {"x": x})["seen"][0]
    assert (seen == ((np.arange(5)[:, None] - np.arange(5)) % 4 == 0)).all()


def test_an_instance_of_an_instance_inherits_parts(tmp_path: Path) -> None:
    (tmp_path / "base.specc").write_text(BASE, encoding="utf-8")
    (tmp_path / "other.specc").write_text(OTHER, encoding="utf-8")
    (tmp_path / "middle.specc").write_text(OWN, encoding="utf-8")
    last = """\
specc 1
model last
extends "middle"
mask first = j == 0
config { mask = strided(3) | first | o.same_row }
"""
    spec = elaborate_with_config(write_spec(tmp_path, last, "yaml"))
    x = np.random.default_rng(0).standard_normal((1, 8, 8))
    seen = run_reference(spec, sample_spec_weights(spec), {"x": x})["seen"][0]
    apart = np.arange(8)[:, None] - np.arange(8)
    assert (seen == ((apart % 6 == 0) | (np.arange(8) == 0))).all()


MINE = {
    "luong": (
        "score mine = dot(q, linear(k, out=length(q, axis=-1), bias=false) @ W)",
        {"score": "mine"},
        {"score": "general"},
    ),
    "encoder_decoder": (
        "mask mine(n: int) = 0 <= i - j & i - j < n",
        {"decoder.attention.mask": "mine(2)"},
        {"decoder.attention.mask": "window(2)"},
    ),
}
SIZES = {
    "luong": {"source_vocab": 11, "vocab": 11, "embed_dim": 5, "hidden": 6},
    "encoder_decoder": {"vocab": 11, "width": 8, "heads": 2, "encoder.layers": 1},
}


@pytest.mark.parametrize("spec", MINE)
def test_overriding_with_equal_std_parts_changes_nothing(spec: str, tmp_path: Path) -> None:
    """Equal weight names and bit-identical results."""
    item, mine, known = MINE[spec]
    text = f"specc 1\nmodel own\nextends {spec}\n{item}\n"
    path = tmp_path / "own.specc"
    path.write_text(text, encoding="utf-8")
    sizes = SIZES[spec]
    one, other = (
        elaborate_with_config(str(path), **sizes, **mine),
        elaborate_with_config(spec, **sizes, **known),
    )
    weights = sample_spec_weights(other)
    assert one.model.graph.parameters.keys() == other.model.graph.parameters.keys()
    ids = np.random.default_rng(2).integers(3, 11, (2, 6))
    keep = np.ones((2, 6), bool)
    given = {k: keep if "keep" in k else ids for k in other.model.graph.inputs}
    found, wanted = (run_reference(s, weights, given) for s in (one, other))
    assert_arrays_close(found["logits"], wanted["logits"], "logits", 0.0)


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ("graph g(x: float[batch]) -> (y: float[batch]) { return x }", "E0209"),
        ("dims other", "E0209"),
        ("mask heads = j <= i", "E0225"),
        ("mask seq = j <= i", "E0225"),
        ("mask near = j <= i\nmask near = j < i", "E0217"),
        ('use "missing" as m', None),
        ("config { mask = missing }", "E0202"),
        ("mask m = wider > 0\nconfig { mask = m }", "E0202"),
    ],
)
def test_invalid_overrides_are_refused(item: str, code: str | None, tmp_path: Path) -> None:
    """A file that is not used is not opened, as in any spec."""
    (tmp_path / "base.specc").write_text(BASE, encoding="utf-8")
    path = tmp_path / "own.specc"
    path.write_text(f'specc 1\nmodel own\nextends "base"\n{item}\n', encoding="utf-8")
    if code is None:
        elaborate_with_config(str(path))
        return
    with pytest.raises(SpeccError, match=code):
        elaborate_with_config(str(path))


def test_parts_of_an_instance_do_not_change_the_extended_spec(tmp_path: Path) -> None:
    """`causal` of the instance is local to the instance."""
    (tmp_path / "base.specc").write_text(BASE, encoding="utf-8")
    path = tmp_path / "own.specc"
    text = 'specc 1\nmodel own\nextends "base"\nmask causal = j >= i\n'
    path.write_text(text, encoding="utf-8")
    x = np.random.default_rng(0).standard_normal((1, 5, 8))
    for given, wanted in ({}, np.tri(5)), ({"mask": "causal"}, np.tri(5).T):
        spec = elaborate_with_config(str(path), **given)
        seen = run_reference(spec, sample_spec_weights(spec), {"x": x})["seen"][0]
        assert (seen == wanted.astype(bool)).all()
