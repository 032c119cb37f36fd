"""`whisper` matches transformers' Whisper classes with every head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase
from support.padded_batches import FixedValues, PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec

pytestmark = pytest.mark.parity

WHISPER = {
    "vocab_size": 31, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "num_mel_bins": 8, "max_source_positions": 12,
    "max_target_positions": 40, "pad_token_id": 30, "bos_token_id": 30, "eos_token_id": 30, "decoder_start_token_id": 29,
    "suppress_tokens": None, "begin_suppress_tokens": None,
    "classifier_proj_size": 10, "num_labels": 3,
}  # fmt: skip
DICTATED = make_samples(
    {
        "input_features": FixedValues((8, 24)),
        "decoder_input_ids": TokenIds("tgt", 31),
        "decoder_attention_mask": PaddingMask("tgt"),
    },
    {"tgt": (7, 1, 4)},
)


@pytest.mark.parametrize(
    ("name", "results", "more"),
    [
        ("WhisperForConditionalGeneration", {"logits": "tgt"}, {}),
        (
            "WhisperModel",
            {"last_hidden_state": "tgt", "encoder_last_hidden_state": ""},
            {"activation_function": "relu"},
        ),
    ],
)
def test_whisper(
    name: str, results: Mapping[str, str], more: Mapping[str, Any], tmp_path: Path
) -> None:
    case = ModelCase(config="WhisperConfig", model=name, tiny={**WHISPER, **more})
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        keep = x["decoder_attention_mask"].long()
        return theirs(
            input_features=x["input_features"],
            decoder_input_ids=x["decoder_input_ids"],
            decoder_attention_mask=keep,
            decoder_position_ids=(keep.cumsum(1) - 1).clamp(min=0),
        )

    assert_matches_float32(ours, DICTATED, published, results, ("right", "left"))


@pytest.mark.parametrize("summed", [False, True])
def test_whisper_as_a_classifier(summed: bool, tmp_path: Path) -> None:
    """`use_weighted_layer_sum` takes the last layer behind its norm."""
    case = ModelCase(
        config="WhisperConfig",
        model="WhisperForAudioClassification",
        tiny={**WHISPER, "use_weighted_layer_sum": summed},
    )
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    given = make_samples({"input_features": FixedValues((8, 24))}, {})
    assert_matches_float32(ours, given, lambda x: theirs(x["input_features"]), {"logits": ""})


def test_the_decoder_of_whisper_alone(tmp_path: Path) -> None:
    """What another Whisper heard goes in, as for speculative decoding."""
    case = ModelCase(config="WhisperConfig", model="WhisperForCausalLM", tiny=WHISPER)
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    heard = rng.standard_normal((3, 5, 24)).astype(np.float32)
    ids, keep = rng.integers(0, 31, (3, 7)), np.arange(7) < [[7], [3], [5]]
    with torch.no_grad():
        wanted = theirs.double()(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(keep).long(),
            encoder_outputs=(torch.tensor(heard).double(),),
        ).logits.numpy()
    made = ours.compiled.run(input_ids=ids, attention_mask=keep, encoder_outputs=heard)
    for row in range(3):
        there = keep[row]
        assert_arrays_close(made["logits"][row][there], wanted[row][there], f"{row}", 1e-5)
