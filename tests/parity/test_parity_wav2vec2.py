"""`wav2vec2` matches transformers' Wav2Vec2, Hubert, WavLM, UniSpeech and UniSpeechSat classes with every head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.hf_cases import ModelCase
from support.padded_batches import PaddingMask, Signal, make_samples
from support.published_models import (
    assert_matches_float32,
    open_weighted_spec,
    randomize_statistics,
)

from specc.diagnostics.diagnostic import SpeccError

pytestmark = pytest.mark.parity

TINY: dict[str, Any] = {
    "vocab_size": 13, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "conv_dim": [6, 7, 8], "conv_kernel": [5, 3, 2], "conv_stride": [3, 2, 2], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "layer_norm_eps": 1e-3, "classifier_proj_size": 10, "num_labels": 3,
}  # fmt: skip
LAYER = {"feat_extract_norm": "layer", "conv_bias": True}
STABLE = {**LAYER, "do_stable_layer_norm": True, "num_conv_pos_embeddings": 5}
STACKED = {"num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 5}
SHORT = {"add_adapter": True, "num_adapter_layers": 1}
SPEAKER = {
    "tdnn_dim": [9, 7], "tdnn_kernel": [3, 2], "tdnn_dilation": [1, 2], "xvector_output_dim": 5,
    "use_weighted_layer_sum": True,
}  # fmt: skip
CODES = {
    "num_codevectors_per_group": 6, "codevector_dim": 8, "proj_codevector_dim": 10, "num_codevector_groups": 2,
}  # fmt: skip
SUMMED = {"use_weighted_layer_sum": True}
BUCKETS = {"num_buckets": 8, "max_bucket_distance": 9}
"""Recordings are longer than the farthest distance that has a bucket of its own."""
LENGTHS = (171, 111, 140)
FEATURES = {"last_hidden_state": "frames"}


def frames(samples: int) -> int:
    """Return the number of frames of an audio file."""
    for kernel, stride in zip(TINY["conv_kernel"], TINY["conv_stride"], strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


ROWS = tuple(map(frames, LENGTHS))
GIVEN = make_samples(
    {"input_values": Signal("samples"), "attention_mask": PaddingMask("samples")},
    {"samples": LENGTHS, "frames": ROWS, "fewer": tuple((rows - 1) // 2 + 1 for rows in ROWS)},
)
HEARD = [
    ("Wav2Vec2ForCTC", {"logits": "frames"}, {}),
    ("Wav2Vec2ForCTC", {"logits": "frames"}, LAYER),
    ("Wav2Vec2ForCTC", {"logits": "frames"}, {**STABLE, "adapter_attn_dim": 6}),
    ("Wav2Vec2Model", FEATURES, STABLE),
    ("Wav2Vec2Model", {"last_hidden_state": "fewer"}, SHORT),
    ("Wav2Vec2ForSequenceClassification", {"logits": ""}, LAYER),
    ("Wav2Vec2ForAudioFrameClassification", {"logits": "frames"}, LAYER),
    ("Wav2Vec2ForXVector", {"logits": "", "embeddings": ""}, SPEAKER),
    (
        "Wav2Vec2ForPreTraining",
        {"projected_states": "frames", "projected_quantized_states": "frames"},
        {**LAYER, **CODES},
    ),
    ("HubertModel", FEATURES, {}),
    ("HubertForCTC", {"logits": "frames"}, {"conv_pos_batch_norm": True}),
    ("HubertForSequenceClassification", {"logits": ""}, STABLE),
    ("WavLMForCTC", {"logits": "frames"}, {**LAYER, **BUCKETS}),
    ("WavLMModel", FEATURES, {**STABLE, **BUCKETS}),
    ("WavLMForSequenceClassification", {"logits": ""}, {**STABLE, **SUMMED, **BUCKETS}),
    ("WavLMForAudioFrameClassification", {"logits": "frames"}, LAYER),
    ("WavLMForXVector", {"logits": "", "embeddings": ""}, {**SPEAKER, **BUCKETS}),
    ("Data2VecAudioModel", FEATURES, STACKED),
    (
        "Data2VecAudioForCTC",
        {"logits": "frames"},
        {**STACKED, "conv_pos_kernel_size": 6, "conv_bias": True},
    ),
    ("Data2VecAudioForSequenceClassification", {"logits": ""}, {**STACKED, **SUMMED}),
    ("Data2VecAudioForAudioFrameClassification", {"logits": "frames"}, STACKED),
    ("Data2VecAudioForXVector", {"logits": "", "embeddings": ""}, {**SPEAKER, **STACKED}),
    ("UniSpeechModel", FEATURES, LAYER),
    ("UniSpeechForCTC", {"logits": "frames"}, STABLE),
    ("UniSpeechForSequenceClassification", {"logits": ""}, LAYER),
    ("UniSpeechSatModel", FEATURES, LAYER),
    ("UniSpeechSatForCTC", {"logits": "frames"}, STABLE),
    ("UniSpeechSatForSequenceClassification", {"logits": ""}, LAYER),
    ("UniSpeechSatForAudioFrameClassification", {"logits": "frames"}, STABLE),
    ("UniSpeechSatForXVector", {"logits": "", "embeddings": ""}, SPEAKER),
]
MORE_HEARD = [
    ("Wav2Vec2Model", {"last_hidden_state": "fewer"}, {**SHORT, "output_hidden_size": 14}),
    ("Wav2Vec2ForSequenceClassification", {"logits": ""}, {**STABLE, **SUMMED}),
    ("Wav2Vec2ForAudioFrameClassification", {"logits": "frames"}, SUMMED),
    ("HubertForCTC", {"logits": "frames"}, {**STABLE, "feat_proj_layer_norm": False}),
    ("HubertForSequenceClassification", {"logits": ""}, {**LAYER, **SUMMED}),
]  # fmt: skip
CASES = [*HEARD, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_HEARD)]


def together(more: Mapping[str, Any]) -> bool:
    """Return True if batch elements are independent in the published class."""
    return more.get("feat_extract_norm") == "layer" and "tdnn_dim" not in more


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # of WavLM
@pytest.mark.parametrize(("name", "results", "more"), CASES)
def test_outputs(
    name: str, results: Mapping[str, str], more: Mapping[str, Any], tmp_path: Path
) -> None:
    """A batch is compared with the published batch if padding does not affect results there either,
    else with each audio file alone.
    """
    kind = name.partition("For")[0].removesuffix("Model") + "Config"
    case = ModelCase(config=kind, model=name, tiny={**TINY, **more}, results=results)
    theirs = case.save_checkpoint(tmp_path)
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if together(more):
            return theirs(x["input_values"], attention_mask=x["attention_mask"].long())
        return alone(theirs, x, results)

    assert_matches_float32(ours, GIVEN, published, results)


def alone(
    theirs: Any, x: Mapping[str, torch.Tensor], results: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return the results of the published model for each audio file alone, padded with zeros."""
    made = [
        theirs(sound[there][None])
        for sound, there in zip(x["input_values"], x["attention_mask"], strict=True)
    ]
    return {
        name: torch.nn.utils.rnn.pad_sequence([one[name][0] for one in made], batch_first=True)
        for name in results
    }


def test_speaker_embeddings_with_an_adapter_are_rejected(tmp_path: Path) -> None:
    case = ModelCase(
        config="Wav2Vec2Config", model="Wav2Vec2ForXVector", tiny={**TINY, **SPEAKER, **SHORT}
    )
    case.save_checkpoint(tmp_path)
    with pytest.raises(SpeccError, match=r"E0404.*add_adapter"):
        open_weighted_spec(str(tmp_path), tmp_path)


def test_both_names_of_weight_normalization(tmp_path: Path) -> None:
    """Files from before 2023 name weight normalization `weight_g` and `weight_v`."""
    case = ModelCase(config="Wav2Vec2Config", model="Wav2Vec2ForCTC", tiny=TINY)
    case.save_checkpoint(tmp_path)
    weights = open_weighted_spec(str(tmp_path), tmp_path).weights
    file = tmp_path / "model.safetensors"
    old = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): value
        for name, value in load_file(file).items()
    }
    assert any("weight_g" in name for name in old)
    save_file(old, file)
    again = open_weighted_spec(str(tmp_path), tmp_path).weights
    assert all((again[name] == value).all() for name, value in weights.items())
