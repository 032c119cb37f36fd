"""Regression tests of small user specs: their results or their error messages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc_numpy
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import open_spec

Array = NDArray[Any]
RNG = np.random.default_rng(0)


def written(directory: Path, text: str, name: str = "spec.specc") -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def check_invalid(directory: Path, text: str, *sets: str) -> Diagnostic:
    """Return the first error of a spec."""
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(written(directory, text), config_settings=sets))
    return failed.value.diagnostics[0]


# --- derived config fields --------------------------------------------------------------

PATCHED = """\
specc 1
model patched
config {{
  image: int = 12
  patch: int = 2
  side: int = {side}
  window: int = 3
}}
{require}
dims batch
graph g(pixels: float[batch, 3, image, image]) -> (y: float[batch, {rows}, 8]) {{
  x = patches(pixels, size=patch, out=8) @ embed
  x = split(x, into=[side, side], axis=1)
  return {result}
}}
"""


@pytest.mark.parametrize(
    ("require", "result", "rows"),
    [
        ("", "merge(x, axis=1)", "side * side"),
        ("require image % patch == 0", "merge(x, axis=1)", "side * side"),
        ("", "merge(x, axis=1)", "(image / patch) ** 2"),
        (
            "require side % window == 0",
            'rearrange(x, "b (r p) (c q) d -> b (r c p q) d", '
            "sizes=[side / window, side / window])",
            "side ** 2",
        ),
    ],
)
def test_derived_field_is_computed(require: str, result: str, rows: str, tmp_path: Path) -> None:
    text = PATCHED.format(side="image / patch", require=require, result=result, rows=rows)
    spec = open_spec(written(tmp_path, text))
    trials = check_spec(spec).trials
    assert trials[0].trial_values["side"] == "image / patch"
    assert str(elaborate_spec(spec).graph.outputs["y"].type) == "f32[batch, 36, 8]"


def test_wrong_derived_field_is_reported_for_all_sizes(tmp_path: Path) -> None:
    """With 12 and 2 both values are 6, so that a numeric check misses the error."""
    text = PATCHED.format(side="image / 2", require="", result="merge(x, axis=1)", rows="side ** 2")
    assert check_invalid(tmp_path, text).code == "E0301"


@pytest.mark.parametrize("sets", [("side=6",), ("image=8", "side=4")])
def test_override_equal_to_derived_value_is_allowed(sets: tuple[str, ...], tmp_path: Path) -> None:
    text = PATCHED.format(
        side="image / patch", require="", result="merge(x, axis=1)", rows="side ** 2"
    )
    spec = open_spec(written(tmp_path, text), config_settings=sets)
    assert check_spec(spec).trials[0].trial_values["side"] == "image / patch"
    rows = int(sets[-1].partition("=")[2]) ** 2
    assert str(elaborate_spec(spec).graph.outputs["y"].type) == f"f32[batch, {rows}, 8]"


def test_requirement_on_a_quotient_shows_its_operands(tmp_path: Path) -> None:
    """`image` is a multiple of `patch * window`, so that windows have `window` positions."""
    text = PATCHED.format(
        side="image / patch",
        require="require side % window == 0",
        result='rearrange(x, "b (r p) (c q) d -> b (r c) (p q) d", '
        "sizes=[side / window, side / window])",
        rows="_, window * window",
    )
    spec = open_spec(written(tmp_path, text))
    check_spec(spec)
    assert str(elaborate_spec(spec).graph.outputs["y"].type) == "f32[batch, 4, 9, 8]"


INSTANCE = """specc 1
model small
extends "patched.specc"
config {{ image = {image} }}
mask few(n: int) = j < n
require image / patch % 2 == 0, "as many squares on either side of the middle"
require patch < image
"""


def test_instance_adds_a_requirement(tmp_path: Path) -> None:
    text = PATCHED.format(
        side="image / patch", require="", result="merge(x, axis=1)", rows="side ** 2"
    )
    written(tmp_path, text, "patched.specc")
    check_spec(open_spec(written(tmp_path, INSTANCE.format(image=16))))
    said = check_invalid(tmp_path, INSTANCE.format(image=18))
    assert said.code == "E0404"
    assert said.title == "as many squares on either side of the middle"


def test_conflicting_override_is_shown_at_its_span(tmp_path: Path) -> None:
    text = PATCHED.format(
        side="image / patch", require="", result="merge(x, axis=1)", rows="side ** 2"
    )
    said = check_invalid(tmp_path, text, "side=5")
    assert said.primary is not None
    assert said.primary.span.source.name == "--set side"
    assert "by default, `side` is image / patch" in said.primary.text
    assert "`side` does not match the fields it is computed from" in said.title


FREE = """\
specc 1
model free
config {{ width: int = 8  heads: int = 2  kv: int = {kv}  hidden: int = 4 * width }}
require width % heads == 0
dims batch, n
graph g(x: float[batch, n, width]) -> (y: float[batch, n, width]) {{
  h = linear(x, out=hidden) @ up
  return (linear(h, out=width) @ down) + linear(linear(x, out=kv) @ a, out=heads) @ b
}}
"""


def test_field_that_defaults_to_another_stays_free(tmp_path: Path) -> None:
    """`kv = heads` is only a default: a spec that is valid only with it has an error."""
    wrong = FREE.replace("heads) @ b", "kv) @ b").format(kv="width")
    assert check_invalid(tmp_path, wrong).code == "E0302"


# --- scores that read tensors at grid indices -------------------------------------------

SCORED = """\
specc 1
model scored
dims batch, q, k
score s(c) = {score}
graph g(x: float[batch, {heads}q, 4], y: float[batch, {heads}k, 4], c: float[{c}]) -> (w: float[batch, {heads}q, k]) {{
  _, w = attend_by(s(c), x, y, y, mask=all)
  return w
}}
"""
X, Y = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 5, 4))


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize(
    ("c", "at", "index"),
    [
        ("batch, k", "c[j]", np.s_[:, None, None, :]),
        ("batch, q", "c[i]", np.s_[:, None, :, None]),
        ("batch, q, k", "c[i, j]", np.s_[:, None, :, :]),
        ("k", "c[j]", np.s_[None, None, None, :]),
        ("q, k", "c[i, j]", np.s_[None, None, :, :]),
    ],
)
def test_score_reads_tensors_at_grid_indices(
    c: str, at: str, index: Any, heads: int, tmp_path: Path
) -> None:
    """With and without a heads axis, one number for each query and key."""
    sizes = {"batch": 2, "q": 3, "k": 5}
    added = RNG.normal(size=[sizes[n] for n in c.split(", ")])
    text = SCORED.format(score=f"dot(q, k) + 2.0 * {at}", c=c, heads=f"{heads}, " if heads else "")
    graph = elaborate_spec(open_spec(written(tmp_path, text))).graph
    x, y = (np.stack([a, a + 1], axis=1)[:, : heads or 1] for a in (X, Y))
    grid = np.einsum("bhqd,bhkd->bhqk", x, y) + 2 * added[index]
    wanted = np.exp(grid - grid.max(-1, keepdims=True))
    wanted /= wanted.sum(-1, keepdims=True)
    if not heads:
        x, y, wanted = x[:, 0], y[:, 0], wanted[:, 0]
    found = specc_numpy.evaluate_graph(graph, {"x": x, "y": y, "c": added}, {})["w"]
    assert np.allclose(found, wanted, rtol=1e-12, atol=0)


def test_head_index_without_heads_axis_is_rejected(tmp_path: Path) -> None:
    text = SCORED.format(score="dot(q, k) * c[h]", c="2", heads="")
    said = check_invalid(tmp_path, text)
    assert (said.code, "there is no heads axis here" in said.title) == ("E0603", True)


# --- padded positions -------------------------------------------------------------------


def test_positions_count_unmasked_positions(tmp_path: Path) -> None:
    """A masked position has the position id of the last unmasked one before it."""
    text = """\
specc 1
model pos
dims batch, n
graph g(keep: keep[batch, n]) -> (y: int[batch, n]) { return positions(keep) }
"""
    graph = elaborate_spec(open_spec(written(tmp_path, text))).graph
    keep = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], bool)
    found = specc_numpy.evaluate_graph(graph, {"keep": keep}, {})["y"]
    assert found.tolist() == [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]


# --- shapes of masks --------------------------------------------------------------------

MASKED = """\
specc 1
model masked
dims batch, q, k
{definition}
graph g(x: float[batch, {heads}q, 4], y: float[batch, {heads}k, 4], m: {type}) -> (w: float[batch, {heads}q, k]) {{
  _, w = {call}
  return w
}}
"""
CALLS = [
    "attend(x, y, y, mask={})",
    "attend_by(dot, x, y, y, mask={})",
    "attend_by(dot, x, y, y, mask=all, add=where({}, 0.0, -inf))",
]


def weights_of(text: str, directory: Path, heads: int, m: Array) -> Array:
    graph = elaborate_spec(open_spec(written(directory, text))).graph
    x, y = (np.stack([a, a + 1], axis=1)[:, : heads or 1] for a in (X, Y))
    if not heads:
        x, y = x[:, 0], y[:, 0]
    found = specc_numpy.evaluate_graph(graph, {"x": x, "y": y, "m": m}, {})["w"]
    return found if heads else found[:, None]


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize(
    ("type", "definition", "seen"),
    [
        ("int[batch]", "j < m[b]", lambda m: np.arange(5) < m[:, None, None, None]),
        ("bool[batch, k]", "m[j]", lambda m: m[:, None, None, :]),
        ("bool[batch, q]", "m[i]", lambda m: m[:, None, :, None]),
        ("bool[batch, q, k]", "m[i, j]", lambda m: m[:, None, :, :]),
        ("bool[batch, q, k]", "m[b, i, j]", lambda m: m[:, None, :, :]),
        ("bool[q, k]", "m[i, j]", lambda m: m[None, None]),
        ("bool[batch, q, k]", "", lambda m: m[:, None, :, :]),
        ("bool[q, k]", "", lambda m: m[None, None]),
        ("bool[batch, 1, q, k]", "", lambda m: m),
    ],
)
def test_masks_of_all_ranks(
    type: str, definition: str, seen: Any, heads: int, tmp_path: Path
) -> None:
    """Masks read by a definition or passed as tensors; for scores without heads [b, q, k] has a batch
    axis, not a heads axis.
    """
    if heads and not definition and type == "bool[batch, q, k]":
        return  # beside heads, three axes are [h, q, k]
    sizes = {"batch": 2, "q": 3, "k": 5, "1": 1}
    shape = [sizes[n] for n in type[type.index("[") + 1 : -1].split(", ")]
    m = RNG.integers(1, 5, shape) if type.startswith("int") else RNG.random(shape) < 0.6
    if m.dtype == bool:
        m[..., 0] = True  # a row that sees nothing is another test's
    for call in CALLS:
        if not call.endswith("mask={})") and (definition or heads):
            continue
        text = MASKED.format(
            definition=f"mask s(m) = {definition}" if definition else "",
            heads=f"{heads}, " if heads else "",
            type=type,
            call=call.format("s(m)" if definition else "m"),
        )
        found = weights_of(text, tmp_path, heads, m)
        shown = np.broadcast_to(seen(m), found.shape)
        assert ((found > 0) == shown).all(), call


def test_head_index_reads_values_per_head(tmp_path: Path) -> None:
    text = MASKED.format(
        definition="mask s(m) = m[h, i, j]",
        heads="2, ",
        type="bool[2, q, k]",
        call=CALLS[0].format("s(m)"),
    )
    m = RNG.random((2, 3, 5)) < 0.6
    found = weights_of(text, tmp_path, 2, m)
    assert ((found > 0) == m[None]).all()


def test_error_for_grid_without_heads_shows_its_shape(tmp_path: Path) -> None:
    """Scores [b, q, k] with a mask of the same rank, which once required a heads axis."""
    text = """\
specc 1
model m
dims batch, seq
graph g(x: float[batch, seq, 4], sees: bool[batch, seq, seq]) -> (w: float[batch, seq, seq]) {
  return masked_softmax(einsum("b q d, b k d -> b q k", x, x), sees)
}
"""
    graph = elaborate_spec(open_spec(written(tmp_path, text))).graph
    sees = RNG.random((2, 3, 3)) < 0.6
    found = specc_numpy.evaluate_graph(graph, {"x": X, "sees": sees}, {})["w"]
    assert ((found > 0) == sees).all()


# --- pairs ------------------------------------------------------------------------------

PAIRS = """\
specc 1
model pictures
config {
  image: pair[int] from "image_size" = 24
  patch: pair[int] from "patch_size" = [4, 8]
}
require image[0] % patch[0] == 0
require image[1] % patch[1] == 0
dims batch
graph g(pixels: float[batch, 1, image[0], image[1]]) -> (y: float[batch, image[0] / patch[0], image[1] / patch[1], 2]) {
  x = patches(pixels, size=patch, out=2, bias=false) @ p
  return split(x, into=[image[0] / patch[0], image[1] / patch[1]], axis=1)
}
"""


@pytest.mark.parametrize(
    ("sets", "published", "image", "patch"),
    [
        ((), "", (24, 24), (4, 8)),
        (("image=32", "patch=4"), "", (32, 32), (4, 4)),
        (("image=[8, 24]", "patch=[2, 3]"), "", (8, 24), (2, 3)),
        ((), '{"image_size": 16, "patch_size": [4, 2]}', (16, 16), (4, 2)),
        (("patch=2",), '{"image_size": [4, 8], "patch_size": 4}', (4, 8), (2, 2)),
    ],
)
def test_single_number_sets_both_values_of_a_pair(
    sets: tuple[str, ...],
    published: str,
    image: tuple[int, int],
    patch: tuple[int, int],
    tmp_path: Path,
) -> None:
    config = written(tmp_path, published, "config.json") if published else ""
    path = written(tmp_path, PAIRS)
    graph = elaborate_spec(open_spec(path, config=config, config_settings=sets)).graph
    weight = RNG.normal(size=(2, 1, *patch))
    x = RNG.normal(size=(1, 1, *image))
    found = specc_numpy.evaluate_graph(graph, {"pixels": x}, {"p.weight": weight})["y"]
    rows, columns = image[0] // patch[0], image[1] // patch[1]
    cut = x[0, 0].reshape(rows, patch[0], columns, patch[1])
    wanted = np.einsum("rpcq,dpq->rcd", cut, weight[:, 0])
    assert np.allclose(found[0], wanted, rtol=1e-12, atol=1e-12)


LISTED_PAIRS = """\
specc 1
model sizes
config { p: list[pair[int]] from "sizes" = [[1, 2]] }
dims n
graph g(x: int[n]) -> (y: int[n]) {
  return x * sum([p[k][0] * p[k][1] for k in len(p)])
}
"""


def test_config_with_lists_of_pairs(tmp_path: Path) -> None:
    config = written(tmp_path, '{"sizes": [[2, 3], 4]}', "config.json")
    graph = elaborate_spec(open_spec(written(tmp_path, LISTED_PAIRS), config=config)).graph
    made = specc_numpy.evaluate_graph(graph, {"x": np.array([1, 2])}, {})
    assert made["y"].tolist() == [22, 44]


@pytest.mark.parametrize(
    ("sets", "published", "code"),
    [
        (("image=[8, 8, 8]",), "", "E0203"),
        (("image=[8.5, 8]",), "", "E0203"),
        (("image=wide",), "", "E0202"),
        (("image=[8, 12]",), "", "E0404"),
        ((), '{"image_size": [8, 8, 8]}', "E0403"),
        ((), '{"image_size": "8"}', "E0403"),
    ],
)
def test_invalid_pairs_are_rejected(
    sets: tuple[str, ...], published: str, code: str, tmp_path: Path
) -> None:
    config = written(tmp_path, published, "config.json") if published else ""
    with pytest.raises(SpeccError, match=code):
        check_spec(open_spec(written(tmp_path, PAIRS), config=config, config_settings=sets))


def test_pair_that_determines_structure_is_tried(tmp_path: Path) -> None:
    text = """\
specc 1
model turns
config { depths: pair[int] = [2, 3] }
dims n
graph g(x: float[n]) -> (y: float[n]) {
  repeat i in depths[1] { x = x + 1.0 }
  return x
}
"""
    spec = open_spec(written(tmp_path, text))
    assert check_spec(spec).trials[0].trial_values
    graph = elaborate_spec(spec).graph
    assert specc_numpy.evaluate_graph(graph, {"x": np.zeros(2)}, {})["y"].tolist() == [3, 3]
