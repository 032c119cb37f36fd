"""Keys of a config.json that a spec reads by paths: what stands beside them is reported (W0418)."""

import json
from pathlib import Path

import pytest

from specc.driver.spec_loader import check_spec, open_spec

SPEC = """specc 1
model m
config {
  expect "model_type" in (m)
  d: int from "text_config.hidden_size" = 8
  eps: float from "text_config.norm.eps" | "eps" = 1e-6
  width: int from "layers.*.width" = 8
  rope: rope from rope_config(section="rotary") = rope(theta=100.0)
  ignore "vision_config", "audio_config.rate"
}
dims batch
graph g(x: float[batch, d]) -> (y: float[batch, d]) { return x }
"""
CONFIG = {
    "model_type": "m",
    "text_config": {"hidden_size": 8, "norm": {"eps": 1e-6}, "model_type": "t", "dropout": 0.1},
    "layers": {"0": {"width": 8}, "1": {"width": 8}},
    "rotary": {"rope_theta": 100.0},
    "vision_config": {"anything": {"deep": 1}},
    "audio_config": {"rate": 16000},
}


def warned(tmp_path: Path, path: str) -> list[str]:
    """Return the unread keys that are reported for a config with one more key."""
    config = json.loads(json.dumps(CONFIG))
    *parents, key = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[key] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "m.specc").write_text(SPEC)
    spec = open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json"))
    return [w.title for w in check_spec(spec).warnings if w.code == "W0418"]


@pytest.mark.parametrize(
    "path",
    [
        "odd",
        "text_config.odd",
        "text_config.norm.odd",
        "layers.1.odd",
        "rotary.odd",
        "audio_config.odd",
    ],
)
def test_a_key_that_no_path_names_is_reported(path: str, tmp_path: Path) -> None:
    assert warned(tmp_path, path) == [f"the spec does not read `{path}`"]


@pytest.mark.parametrize(
    "path",
    [
        "vision_config.odd",
        "vision_config.anything.odd",
        "text_config.pad_token_id",
        "rotary.rope_theta",
    ],
)
def test_a_key_that_is_read_or_ignored_is_not(path: str, tmp_path: Path) -> None:
    assert warned(tmp_path, path) == []
