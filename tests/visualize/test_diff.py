"""Differences between two architectures as text."""

from pathlib import Path

import pytest

import specc
from specc.cli.main import main
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.visualize.architecture_diff import (
    Architecture,
    ArchitectureChange,
    ArchitectureDiff,
    diff_architectures,
)

SPEC = """specc 1
model m
config { d: int = 8  heads: int = 2  layers: int = 3 }
dims batch, n

graph g(ids: int[batch, n], keep: keep[batch, n] = ids != 0) -> (y: float[batch, n, d]) {
  x = embedding(ids, size=11, dim=d) @ table
  repeat i in layers under "h.{i}" {
    x = x + (attention(layer_norm(x, eps=1e-5) @ norm, heads=heads, mask=causal & visible(keep)) @ attn)
    x = x + (mlp(x, hidden=16, act=gelu) @ mlp)
  }
  return x
}
"""


def make_side(text: str, directory: Path, *sets: str) -> Architecture:
    path = directory / "m.specc"
    path.write_text(text)
    model = elaborate_spec(open_spec(str(path), config_settings=sets))
    return Architecture(name="m", graph=model.graph, config=model.config)


def diff_after_replacement(directory: Path, old: str, new: str) -> ArchitectureDiff:
    assert SPEC.count(old) == 1
    return diff_architectures(
        make_side(SPEC, directory), make_side(SPEC.replace(old, new), directory)
    )


def test_equal_specs_have_no_difference(tmp_path: Path) -> None:
    assert diff_architectures(make_side(SPEC, tmp_path), make_side(SPEC, tmp_path)).is_empty
    # comments are ignored
    assert diff_after_replacement(tmp_path, "  return x", "  # the end\n  return x").is_empty


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("act=gelu", "act=relu", ArchitectureChange(kind="block", path="h.0 … 2.mlp", change="activation gelu → relu")),
        ("eps=1e-5", "eps=1e-6", ArchitectureChange(kind="block", path="h.0 … 2.norm", change="layer norm eps 1e-05 → 1e-06")),
        ("causal &", "causal & window(4) &", ArchitectureChange(kind="block", path="h.0 … 2.attn", change="attends to itself and all positions before → itself and 3 positions before")),
        ("causal & visible(keep)", "visible(keep)", ArchitectureChange(kind="block", path="h.0 … 2.attn", change="attends to itself and all positions before → all positions visible in a mask")),
        ("(mlp(x, hidden=16, act=gelu) @ mlp)", "x", ArchitectureChange(kind="removed", path="h.0 … 2.mlp", change="")),
        ("return x", "return layer_norm(x, eps=1e-5) @ last", ArchitectureChange(kind="added", path="last", change="")),
        ("size=11", "size=12", ArchitectureChange(kind="block", path="table", change="weight [11 × 8] → [12 × 8]")),
        ("ids: int[batch, n],", "ids: int[batch, n], more: float[batch, n],", ArchitectureChange(kind="input", path="more", change="– → f32[batch, n]")),
    ],
)  # fmt: skip
def test_each_change_is_reported_once(
    tmp_path: Path, old: str, new: str, said: ArchitectureChange
) -> None:
    found = diff_after_replacement(tmp_path, old, new)
    assert said in found.changes
    assert len(found.changes) == len(set(found.changes))


def test_config_changes_and_their_effects(tmp_path: Path) -> None:
    found = diff_architectures(
        make_side(SPEC, tmp_path), make_side(SPEC, tmp_path, "heads=4", "layers=5")
    )
    told = [(c.kind, c.path, c.change) for c in found.changes]
    assert told[:2] == [("config", "heads", "2 → 4"), ("config", "layers", "3 → 5")]
    assert ("added", "h.3 … 4", "") in told
    assert ("block", "h.0 … 2.attn", "heads 2 → 4") in told
    # 4 d² + 4 d of the projections, 2 d of the norm, 2 · 16 d + 16 + d of the network
    layer = 4 * 64 + 32 + 16 + 256 + 24
    assert ("total", "weights", f"{88 + 3 * layer:,} → {88 + 5 * layer:,}".replace(",", " ")) in told  # fmt: skip


def test_wiring_alone_is_a_difference(tmp_path: Path) -> None:
    """The same blocks, one of which reads something else."""
    found = diff_after_replacement(tmp_path, "(mlp(x, hidden", "(mlp(2.0 * x, hidden")
    assert not found.is_empty
    assert found.changes


def test_unlike_models_are_called_so() -> None:
    a, b = (
        Architecture(name=n, graph=elaborate_spec(open_spec(n)).graph) for n in ("rnnsearch", "vit")
    )
    found = diff_architectures(a, b)
    assert found.reason.startswith("unrelated models")
    assert {c.kind for c in found.changes} == {"input", "result", "total"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "m.onnx")
    specc.compile("digits", model)
    assert main(["diff", "digits", model]) == 0
    assert capsys.readouterr().out == "digits and m.onnx are the same architecture\n"
    assert main(["diff", "gpt2", "gpt2", "--set", "layers=6"]) == 4
    out = capsys.readouterr().out
    assert "config   layers" in out
    assert "removed  h.6 … 11" in out
    assert main(["diff", "gpt2", str(tmp_path / "none.specc")]) in (1, 3)


def test_equal_differences_are_told_in_the_same_order(tmp_path: Path) -> None:
    told = [
        diff_architectures(make_side(SPEC, tmp_path), make_side(SPEC, tmp_path, "heads=4", "d=16"))
        for _ in range(2)
    ]
    assert told[0] == told[1]
