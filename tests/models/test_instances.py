"""Instances in YAML: a built-in spec with a few config values."""

from pathlib import Path

import numpy as np
import pytest
from support.elaborated_specs import (
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)

from specc.diagnostics.diagnostic import SpeccError

INSTANCE = """\
specc: 1
model: mine
extends: encoder_decoder
config:
  vocab: 17
  width: 16
  heads: 4
  hidden: 24
  positions: learned(size=9)
  norm: pre
  encoder: {layers: 1, attention: {mask: all}}
  decoder: {layers: 2, attention: {mask: causal & window(2)}}
"""


def test_small_translator_has_its_config_values() -> None:
    spec = elaborate_with_config("small_translator")
    parameters = spec.model.graph.parameters
    assert "encoder.layers.3.self_attn.q_proj.weight" in parameters
    assert "encoder.layers.4.self_attn.q_proj.weight" not in parameters
    assert str(parameters["encoder.embed_positions.weight"].type) == "f32[512, 256]"
    assert "decoder.layer_norm.weight" in parameters, "pre-norm puts a norm behind the last layer"


def test_yaml_values_equal_command_line_values(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(INSTANCE)
    mine = elaborate_with_config(str(tmp_path / "mine.yaml"))
    set_ = elaborate_with_config(
        "encoder_decoder",
        vocab=17,
        width=16,
        heads=4,
        hidden=24,
        positions="learned(size=9)",
        norm="pre",
        encoder__layers=1,
        decoder__layers=2,
        decoder__attention__mask="causal & window(2)",
    )
    assert mine.model.graph.parameters.keys() == set_.model.graph.parameters.keys()
    weights = sample_spec_weights(mine)
    keep = np.ones((2, 5), bool)
    ids = np.random.default_rng(0).integers(0, 17, (2, 5))
    given = {"source": ids, "source_keep": keep, "target": ids[:, ::-1], "target_keep": keep}
    one, other = run_reference(mine, weights, given), run_reference(set_, weights, given)
    assert_arrays_close(one["logits"], other["logits"], "logits", 0.0)


@pytest.mark.parametrize(
    ("line", "wrong", "code"),
    [
        ("heads: 4", "heads: 5", "E0404"),
        ("vocab: 17", "vocab: 17\n  target_vocab: 18", "E0404"),
        ("norm: pre", "norm: before", "E0203"),
        ("width: 16", "widht: 16", "E0201"),
        ("norm: pre", "norm: pre\n  rope: rope(theta=10000.0)", "E0404"),
    ],
)
def test_invalid_instances_are_refused(line: str, wrong: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(INSTANCE.replace(line, wrong))
    with pytest.raises(SpeccError) as refused:
        elaborate_with_config(str(tmp_path / "mine.yaml"))
    assert code in {d.code for d in refused.value.diagnostics}, [
        str(d.code) + d.title for d in refused.value.diagnostics
    ]
