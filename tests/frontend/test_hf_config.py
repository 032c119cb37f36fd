"""Hugging Face configs: keys that a spec does not read (W0418), and RoPE settings."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.json_parser_with_spans import decode_config_source, parse_config_json
from specc.frontend.rope_frequencies import compute_rope_frequencies
from specc.frontend.spec_modules import build_module, build_program
from specc.frontend.spec_to_graph import create_context, evaluate_and_check_config
from specc.frontend.spec_values import Rope
from specc.ir.dim import Dim
from specc.library.spec_file_lookup import SpecLibrary
from specc.syntax.parse import decode_spec, parse_spec

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


def warned(tmp_path: Path, path: str, value: object = 3) -> list[str]:
    """Return the unused keys that are reported for a config with one more key."""
    config = json.loads(json.dumps(CONFIG))
    *parents, key = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[key] = value
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
def test_unused_key_is_reported(path: str, tmp_path: Path) -> None:
    assert warned(tmp_path, path) == [f"keys of config.json that the spec does not read: `{path}`"]


@pytest.mark.parametrize(
    "path",
    [
        "vision_config.odd",
        "vision_config.anything.odd",
        "text_config.pad_token_id",
        "rotary.rope_theta",
    ],
)
def test_read_or_ignored_key_is_not_reported(path: str, tmp_path: Path) -> None:
    assert warned(tmp_path, path) == []


def test_quantization_of_the_weights_is_not_reported(tmp_path: Path) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False}
    assert warned(tmp_path, "quantization_config", settings) == []


ROPE_SPEC = """specc 1
model m
config {
  rope: rope from rope_config(theta=10000.0)
}
dims n
graph g(x: float[n]) -> (y: float[n]) {
  return x
}
"""
LIBRARY = SpecLibrary()


def settings(config: dict[str, Any], spec: str = ROPE_SPEC) -> Rope:
    program = build_program(
        build_module(parse_spec(decode_spec(spec.encode(), "m.specc")), "m.specc"), LIBRARY
    )
    raw = parse_config_json(decode_config_source(json.dumps(config).encode(), "config.json"))
    found = evaluate_and_check_config(
        create_context(program), program, ConfigReadOptions(config_file=raw)
    )["rope"]
    assert isinstance(found, Rope)
    return found


def test_rope_parameters_and_rope_scaling_agree() -> None:
    new = settings({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4}})
    old = settings({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert new == old == Rope(5e5, "linear", (("factor", 4.0),))
    assert (
        settings({"model_type": "x"})
        == settings({"rope_theta": None, "rope_scaling": None})
        == Rope(10000.0)
    )


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": "10000"},
        {"rope_theta": True},
        {"rope_theta": 0},
        {"rope_theta": -1.0, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_scaling": "linear"},
        {"rope_scaling": [2]},
        {"rope_scaling": {"type": "linear", "factor": "8"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": {"a": 1}, "factor": 2}},
        {"rope_scaling": {"type": "none-such", "factor": 2}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 1,
            }
        },
        {
            "rope_theta": 1.0,
            "max_position_embeddings": 64,
            "rope_scaling": {"type": "yarn", "factor": 8},
        },
        {"rope_scaling": {"type": "yarn", "factor": 8}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": None}},
        {
            "max_position_embeddings": 64,
            "rope_scaling": {"type": "yarn", "factor": 8, "truncate": 0},
        },
        {
            "max_position_embeddings": 64,
            "rope_scaling": {"type": "yarn", "factor": 8, "mscale": "1"},
        },
        {
            "rope_parameters": {"rope_type": "default"},
            "rope_scaling": {"type": "linear", "factor": 2},
        },
    ],
    ids=json.dumps,
)
def test_invalid_rope_settings_are_rejected(config: dict[str, Any]) -> None:
    with pytest.raises(SpeccError, match="E0403"):
        settings(config)


YARN = {"rope_type": "yarn", "factor": 4.0}


def yarn(**more: Any) -> dict[str, Any]:
    found = settings({"max_position_embeddings": 64, "rope_scaling": {**YARN, **more}})
    return dict(found.parameters)


def test_original_length_defaults_to_max_length() -> None:
    """As in transformers: the top level, then the table, then the maximum length."""
    assert yarn()["original"] == 64
    assert yarn(original_max_position_embeddings=16)["original"] == 16
    outside = {"original_max_position_embeddings": 32, "max_position_embeddings": 64}
    found = settings({**outside, "rope_scaling": {**YARN, "original_max_position_embeddings": 16}})
    assert dict(found.parameters)["original"] == 32
    assert yarn(factor=None, original_max_position_embeddings=16)["factor"] == 4.0


def test_yarn_mscale_needs_both_scales() -> None:
    both = (0.1 * 0.7 * math.log(4.0) + 1) / (0.1 * 0.4 * math.log(4.0) + 1)
    assert yarn(mscale=0.7, mscale_all_dim=0.4)["attention_factor"] == pytest.approx(
        both, rel=1e-15
    )
    assert (
        yarn(mscale=0.7)["attention_factor"] is yarn(mscale_all_dim=0.4)["attention_factor"] is None
    )
    assert yarn(mscale=0.7, mscale_all_dim=0.4, attention_factor=1.3)["attention_factor"] == 1.3


def test_yarn_ramp_without_truncation() -> None:
    """arXiv:2309.00071, eq. 18 to 23: expected frequencies computed here, bounds not rounded."""
    rope = settings({"max_position_embeddings": 64, "rope_scaling": {**YARN, "truncate": False}})
    found, _ = compute_rope_frequencies(rope, Dim.from_value(8))
    first, last = (
        8 * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(1e4)) for turns in (32, 1)
    )
    for n, frequency in enumerate(found):
        passed = min(max((n - max(first, 0)) / (last - max(first, 0)), 0), 1)
        plain = 1e4 ** (-2 * n / 8)
        assert frequency == pytest.approx(plain / 4 * passed + plain * (1 - passed), rel=1e-12)


STRETCHED = ROPE_SPEC.replace(
    "rope_config(theta=10000.0)",
    "rope_config(theta=1e5) = rope(theta=1e5, kind=yarn, factor=8.0, original=64)",
)


def test_missing_scaling_kind_uses_the_default() -> None:
    usual = settings({}, STRETCHED)
    assert usual.theta == 1e5
    assert usual.kind == "yarn"
    assert settings({"rope_theta": 7.0}, STRETCHED) == Rope(7.0, "yarn", usual.parameters)
    shorter = settings({"original_max_position_embeddings": 16}, STRETCHED)
    assert dict(shorter.parameters) == {**dict(usual.parameters), "original": 16.0}
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    assert settings(plain, STRETCHED) == Rope(7.0)


NULL_SPEC = """specc 1
model m
config {
  bias: bool from "bias" | "use_bias" = true
  size: int from "size" = 8
  limit: int? from "limit" = 8
}
dims batch
graph g(x: float[batch, size]) -> (y: float[batch, size]) { return x }
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({}, {"bias": True, "size": Dim.from_value(8), "limit": Dim.from_value(8)}),
        (
            {"bias": None, "size": None, "limit": None},
            {"bias": False, "size": Dim.from_value(8), "limit": None},
        ),
        ({"bias": None, "use_bias": True}, {"bias": True}),
    ],
)
def test_null_is_none_or_false_or_absent(
    file: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(file))
    (tmp_path / "m.specc").write_text(NULL_SPEC)
    spec = open_spec(str(tmp_path / "m.specc"), config=str(tmp_path / "config.json"))
    found = evaluate_and_check_config(
        create_context(spec.program), spec.program, spec.config_options
    )
    assert {name: found[name] for name in expected} == expected
