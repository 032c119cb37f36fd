"""A causal mask hides padding on the right in self-attention, but not in cross-attention, where the
keys may be shorter."""

from pathlib import Path

import numpy as np
import pytest
from support.elaborated_specs import elaborate_with_config, run_reference

from specc.analysis.padding_check import check_padding
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

SPEC = """\
specc 1
model m
dims batch, n, m

graph g(x: float[batch, n, 4], x_keep: keep[batch, n] right,
        z: float[batch, m, 4], z_keep: keep[batch, m] right) -> (y: float[batch, n, 4]) {
  y, _ = MADE
  return y
}
"""


def has_padding_warning(path: Path, made: str) -> bool:
    path.write_text(SPEC.replace("MADE", made), encoding="utf-8")
    return bool(check_padding(elaborate_spec(open_spec(str(path))).graph))


@pytest.mark.parametrize(
    "made", ["attend(x, z, z, mask=causal)", "attend_by(dot, x, z, z, mask=causal)"]
)
def test_causal_cross_attention(made: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    assert has_padding_warning(path, made)
    found = elaborate_with_config(str(path))
    rng = np.random.default_rng(0)
    given = {
        "x": rng.standard_normal((1, 4, 4)),
        "x_keep": np.ones((1, 4), bool),
        "z": rng.standard_normal((1, 4, 4)),
        "z_keep": np.arange(4)[None] < 2,
    }
    one = run_reference(found, {}, given)["y"]
    given["z"] = np.where(given["z_keep"][..., None], given["z"], 9.0)
    assert not np.allclose(one, run_reference(found, {}, given)["y"])


def test_causal_self_attention(tmp_path: Path) -> None:
    made = "attend(x, x, x, mask=causal)"
    assert not has_padding_warning(tmp_path / "m.specc", made)


def test_padding_mask_of_the_keys(tmp_path: Path) -> None:
    made = "attend(x, z, z, mask=causal & visible(z_keep))"
    assert not has_padding_warning(tmp_path / "m.specc", made)


UNIT_AXIS = """\
specc 1
model m
dims batch, n >= 1
graph g(x: float[batch, n, 4], keep: keep[batch, n]) -> (y: float[batch, n]) {
  b = softmax(where(keep, max(x, axis=2), FILL), axis=1)
  return VALUE
}
"""


@pytest.mark.parametrize("fill", ["-inf", "0.0"])
@pytest.mark.parametrize(
    "value",
    [
        "merge(linear(insert(b, axis=2), out=1) @ w, axis=1)",
        "merge(insert(b, axis=1), axis=1)",
        "merge(split(b, axis=1, into=[length(b, axis=1), 1]), axis=1)",
        "max(split(b, axis=1, into=[1, length(b, axis=1)]), axis=1)",
    ],
)
def test_merge_with_an_axis_of_length_one(value: str, fill: str, tmp_path: Path) -> None:
    """The merged axis has the positions of the padded axis."""
    path = tmp_path / "m.specc"
    path.write_text(UNIT_AXIS.replace("VALUE", value).replace("FILL", fill), encoding="utf-8")
    found = [str(d) for d in check_padding(elaborate_spec(open_spec(str(path))).graph)]
    assert bool(found) == (fill == "0.0"), found
    assert not any("`pad` or `concat`" in text for text in found)


PICKED = """\
specc 1
model m
dims batch, n, m >= 1

graph g(ids: int[batch, n], keep: keep[batch, n], table: float[batch, m, 4]) -> (y: float[batch, n, 4]) {
  which = gather(argsort(MADE, axis=1), clip(ids, low=0, high=0), axis=1)
  return gather(table, which, axis=1)
}
"""


@pytest.mark.parametrize(
    ("made", "bad"), [("table[:, :, 0]", False), ("where(keep, ids, 0)", True)]
)
def test_positions_along_an_axis_without_padding(made: str, bad: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(PICKED.replace("MADE", made), encoding="utf-8")
    assert bool(check_padding(elaborate_spec(open_spec(str(path))).graph)) is bad
