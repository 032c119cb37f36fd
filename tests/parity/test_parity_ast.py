"""`ast` matches transformers' AST classes, loaded from `save_pretrained`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.hf_cases import ModelCase
from support.padded_batches import FixedValues, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec

pytestmark = pytest.mark.parity

SPECTROGRAM = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "patch_size": 4,
    "frequency_stride": 3, "time_stride": 2, "max_length": 15, "num_mel_bins": 11, "num_labels": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "results", "more"),
    [
        ("ASTForAudioClassification", ["logits"], {}),
        ("ASTModel", ["last_hidden_state", "pooler_output"], {"qkv_bias": False}),
    ],
)
def test_ast(name: str, results: list[str], more: Mapping[str, Any], tmp_path: Path) -> None:
    case = ModelCase(config="ASTConfig", model=name, tiny={**SPECTROGRAM, **more})
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    given = make_samples({"input_values": FixedValues((15, 11))}, {})
    assert_matches_float32(
        ours, given, lambda x: theirs(x["input_values"]), dict.fromkeys(results, "")
    )
