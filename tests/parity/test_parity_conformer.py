"""`conformer`, `wav2vec2_bert` and `parakeet_ctc` match transformers' Wav2Vec2Conformer,
Wav2Vec2Bert and Parakeet classes, one audio file at a time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.hf_cases import ModelCase
from support.padded_batches import PaddingMask, Signal, make_samples
from support.published_models import (
    assert_matches_float32,
    open_weighted_spec,
    randomize_statistics,
)

pytestmark = pytest.mark.parity

TINY = {
    "vocab_size": 13,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "swish",
    "conv_depthwise_kernel_size": 5,
    "feat_extract_norm": "layer",
    "conv_dim": [6, 7, 8],
    "conv_kernel": [5, 3, 2],
    "conv_stride": [3, 2, 2],
    "conv_bias": True,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "layer_norm_eps": 1e-3,
}
LENGTHS = (151, 101, 120)


def frames(samples: int) -> int:
    """Return the number of frames of an audio file."""
    for kernel, stride in zip(TINY["conv_kernel"], TINY["conv_stride"], strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


GIVEN = make_samples(
    {"input_values": Signal("samples"), "attention_mask": PaddingMask("samples")},
    {"samples": LENGTHS, "frames": tuple(map(frames, LENGTHS))},
)
HEADED = {"num_labels": 3, "classifier_proj_size": 10}
SPEAKER = {
    "tdnn_dim": [9, 7], "tdnn_kernel": [3, 2], "tdnn_dilation": [1, 2], "xvector_output_dim": 5,
    "use_weighted_layer_sum": True,
}  # fmt: skip
SUMMED = {**HEADED, "use_weighted_layer_sum": True}
WORDS = {"logits": "frames"}
CASES = [
    ("ForCTC", WORDS, {}),
    ("ForCTC", WORDS, {"position_embeddings_type": "rotary"}),
    ("ForCTC", WORDS, {"position_embeddings_type": None}),
    ("Model", {"last_hidden_state": "frames"}, {"conv_bias": False}),
    ("Model", {"last_hidden_state": "frames"}, {"feat_extract_norm": "group"}),
    ("ForSequenceClassification", {"logits": ""}, HEADED),
    ("ForSequenceClassification", {"logits": ""}, SUMMED),
    ("ForAudioFrameClassification", WORDS, HEADED),
    ("ForXVector", {"logits": "", "embeddings": ""}, SPEAKER),
]


def one_by_one(
    theirs: Any, x: Mapping[str, torch.Tensor], results: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return the results of the published model for each audio file alone, padded with zeros."""
    made = [
        theirs(sound[there][None])
        for sound, there in zip(next(iter(x.values())), x["attention_mask"], strict=True)
    ]
    return {
        name: torch.nn.utils.rnn.pad_sequence([one[name][0] for one in made], batch_first=True)
        for name in results
    }


@pytest.mark.parametrize(("head", "results", "more"), CASES)
def test_conformer(
    head: str, results: Mapping[str, str], more: Mapping[str, object], tmp_path: Path
) -> None:
    case = ModelCase(
        config="Wav2Vec2ConformerConfig", model=f"Wav2Vec2Conformer{head}", tiny={**TINY, **more}
    )
    theirs = case.save_checkpoint(tmp_path)
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return one_by_one(theirs, x, results)

    assert_matches_float32(ours, GIVEN, published, results)


def test_frequencies_of_the_checkpoint(tmp_path: Path) -> None:
    """Rounded in a 16-bit file, from which transformers reads them too."""
    case = ModelCase(
        config="Wav2Vec2ConformerConfig",
        model="Wav2Vec2ConformerForCTC",
        tiny={**TINY, "position_embeddings_type": "rotary"},
    )
    case.save_checkpoint(tmp_path).half().save_pretrained(tmp_path)
    kind = transformers.Wav2Vec2ConformerForCTC
    theirs = kind.from_pretrained(tmp_path, dtype=torch.float32).eval().double()

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return one_by_one(theirs, x, WORDS)

    assert_matches_float32(open_weighted_spec(str(tmp_path), tmp_path), GIVEN, published, WORDS)


BERT: dict[str, Any] = {
    "vocab_size": 13, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "feature_projection_input_dim": 6, "conv_depthwise_kernel_size": 5, "left_max_position_embeddings": 4,
    "right_max_position_embeddings": 2, "layer_norm_eps": 1e-3, "classifier_proj_size": 10, "num_labels": 3,
}  # fmt: skip
ADAPTER = {"add_adapter": True, "use_intermediate_ffn_before_adapter": True}
FRAMES = (23, 9, 14)


def half(length: int) -> int:
    """Return the frames after a convolution with kernel 3, stride 2 and padding 1."""
    return (length - 1) // 2 + 1


BANKS = make_samples(
    {"input_features": Signal("frames", 6), "attention_mask": PaddingMask("frames")},
    {"frames": FRAMES, "fewer": tuple(map(half, FRAMES))},
)
BERT_CASES = [
    ("Wav2Vec2BertForCTC", {"logits": "frames"}, {}),
    ("Wav2Vec2BertForCTC", {"logits": "fewer"}, ADAPTER),
    (
        "Wav2Vec2BertModel",
        {"last_hidden_state": "frames"},
        {"position_embeddings_type": "relative"},
    ),
    ("Wav2Vec2BertModel", {"last_hidden_state": "frames"}, {"position_embeddings_type": "rotary"}),
    ("Wav2Vec2BertModel", {"last_hidden_state": "fewer"}, ADAPTER | {"output_hidden_size": 18}),
    ("Wav2Vec2BertForSequenceClassification", {"logits": ""}, {"position_embeddings_type": None}),
    ("Wav2Vec2BertModel", {"last_hidden_state": "frames"}, {"num_attention_heads": 8}),
    ("Wav2Vec2BertForSequenceClassification", {"logits": ""}, {"use_weighted_layer_sum": True}),
    ("Wav2Vec2BertForAudioFrameClassification", {"logits": "frames"}, {"hidden_act": "relu"}),
    ("Wav2Vec2BertForXVector", {"logits": "", "embeddings": ""}, SPEAKER),
]


@pytest.mark.parametrize(("model", "results", "more"), BERT_CASES)
def test_wav2vec2_bert(
    model: str, results: Mapping[str, str], more: Mapping[str, object], tmp_path: Path
) -> None:
    case = ModelCase(config="Wav2Vec2BertConfig", model=model, tiny={**BERT, **more})
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    assert_matches_float32(ours, BANKS, lambda x: one_by_one(theirs, x, results), results)


FAST: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20, "num_mel_bins": 8,
    "subsampling_conv_channels": 4, "conv_kernel_size": 5,
}  # fmt: skip
MELS = make_samples(
    {"input_features": Signal("frames", 8), "attention_mask": PaddingMask("frames")},
    {"frames": (61, 9, 30), "eighth": (8, 2, 4), "fourth": (16, 3, 8)},
)


@pytest.mark.parametrize(
    ("config", "model", "results", "tiny"),
    [
        (
            "ParakeetCTCConfig",
            "ParakeetForCTC",
            {"logits": "eighth"},
            {"vocab_size": 13, "pad_token_id": 12, "encoder_config": FAST},
        ),
        ("ParakeetEncoderConfig", "ParakeetEncoder", {"last_hidden_state": "eighth"}, FAST),
        (
            "ParakeetEncoderConfig",
            "ParakeetEncoder",
            {"last_hidden_state": "fourth"},
            FAST
            | {
                "subsampling_factor": 4,
                "scale_input": False,
                "attention_bias": False,
                "convolution_bias": False,
            },
        ),
    ],
)
def test_parakeet(
    config: str, model: str, results: Mapping[str, str], tiny: Mapping[str, object], tmp_path: Path
) -> None:
    theirs = ModelCase(config=config, model=model, tiny=tiny).save_checkpoint(tmp_path)
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()
    assert_matches_float32(ours, MELS, lambda x: one_by_one(theirs, x, results), results)
