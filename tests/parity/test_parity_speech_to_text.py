"""S2T, Moonshine and SpeechT5 from directories saved by transformers, one audio file at a time: in a batch
the published convolutions read the padding after the end of an audio file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hf_cases import ModelCase, check_model_outputs
from support.padded_batches import PaddingMask, Signal, TokenIds, make_samples

import specc

pytestmark = pytest.mark.parity


def heard(width: int) -> Any:
    """Return three audio files and their transcripts, of different lengths."""
    return make_samples(
        {
            "input_features": Signal("frames", width),
            "attention_mask": PaddingMask("frames"),
            "decoder_input_ids": TokenIds("tgt", 31),
            "decoder_attention_mask": PaddingMask("tgt"),
        },
        {"frames": (17, 6, 11), "tgt": (5, 5, 2)},
    )


@dataclass(frozen=True, kw_only=True)
class Alone(ModelCase):
    """The published model, applied to one audio file after another."""

    def run_published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        frames, said = x["attention_mask"].bool(), x["decoder_attention_mask"].bool()
        kept = {"tgt": said, "frames": frames}
        rows: dict[str, list[torch.Tensor]] = {name: [] for name in self.results}
        audio, _, target, _ = self.samples.fields
        for n in range(len(said)):
            sound, ids = x[audio][n, frames[n]][None], x[target][n, said[n]][None]
            made = theirs(**{audio: sound, target: ids})
            for name, dim in self.results.items():
                whole = made[name].new_zeros(kept[dim].shape[1], made[name].shape[2])
                whole[kept[dim][n]] = made[name][0]
                rows[name].append(whole)
        return {name: torch.stack(found) for name, found in rows.items()}


WRITES = Alone(
    config="Speech2TextConfig", model="Speech2TextForConditionalGeneration", samples=heard(10),
    results={"logits": "tgt"},
    # what is padding says the mask here, the id there: none of the ids is that
    tiny={"vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 37, "decoder_ffn_dim": 41, "conv_channels": 24,
          "input_feat_per_channel": 10, "max_source_positions": 60, "max_target_positions": 40, "pad_token_id": 39},
)  # fmt: skip
MOONSHINE = Alone(
    config="MoonshineConfig", model="MoonshineForConditionalGeneration", results={"logits": "tgt"},
    samples=make_samples(
        {
            "input_values": Signal("samples"),
            "attention_mask": PaddingMask("samples"),
            "decoder_input_ids": TokenIds("tgt", 31),
            "decoder_attention_mask": PaddingMask("tgt"),
        },
        {"samples": (2100, 895, 1500), "tgt": (5, 5, 2)},
    ),
    tiny={"vocab_size": 40, "hidden_size": 36, "intermediate_size": 28, "encoder_num_hidden_layers": 2,
          "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 3, "decoder_num_attention_heads": 3,
          "partial_rotary_factor": 0.7},
    weight_scale=1.5,
)  # fmt: skip
SPEECHT5 = Alone(
    config="SpeechT5Config", model="SpeechT5ForSpeechToText", results={"logits": "tgt"},
    samples=make_samples(
        {
            "input_values": Signal("samples"),
            "attention_mask": PaddingMask("samples"),
            "decoder_input_ids": TokenIds("tgt", 31),
            "decoder_attention_mask": PaddingMask("tgt"),
        },
        {"samples": (231, 111, 140), "tgt": (5, 5, 2)},
    ),
    # none of the ids is the padding id: published position ids count by ids, ours by the mask
    tiny={"vocab_size": 40, "hidden_size": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 37, "decoder_ffn_dim": 41, "conv_dim": [6, 7, 8],
          "conv_kernel": [5, 3, 2], "conv_stride": [3, 2, 2], "num_conv_pos_embeddings": 4,
          "num_conv_pos_embedding_groups": 2, "encoder_max_relative_position": 5, "layer_norm_eps": 1e-3,
          "pad_token_id": 39},
)  # fmt: skip
STATES = make_samples(
    {
        "input_values": Signal("frames", 24),
        "attention_mask": PaddingMask("frames"),
        "decoder_input_values": Signal("tgt", 24),
        "decoder_attention_mask": PaddingMask("tgt"),
    },
    {"frames": (17, 6, 11), "tgt": (5, 5, 2)},
)
CASES = {
    "speecht5": SPEECHT5,
    "speecht5, body": replace(
        SPEECHT5, model="SpeechT5Model", samples=STATES,
        results={"last_hidden_state": "tgt", "encoder_last_hidden_state": "frames"},
        tiny=SPEECHT5.tiny | {"hidden_act": "relu", "encoder_max_relative_position": 30},
    ),
    "speecht5, layer norm": replace(
        SPEECHT5, tiny=SPEECHT5.tiny | {"feat_extract_norm": "layer", "conv_bias": True, "scale_embedding": True,
                                        "num_conv_pos_embeddings": 5, "feat_extract_activation": "relu",
                                        "tie_word_embeddings": False},
    ),
    "speecht5, frames without sinusoidal positions": replace(
        SPEECHT5, tiny=SPEECHT5.tiny | {"pad_token_id": 0},
        samples=make_samples(
            {**SPEECHT5.samples.fields, "decoder_input_ids": TokenIds("tgt", 31)},
            {"samples": (120, 111, 140), "tgt": (1, 1, 1)},
        ),
    ),
    "moonshine": MOONSHINE,
    "moonshine, body": replace(
        MOONSHINE, model="MoonshineModel", results={"last_hidden_state": "tgt"},
        tiny=MOONSHINE.tiny | {"attention_bias": True, "encoder_hidden_act": "relu"},
    ),
    "moonshine, untied": replace(MOONSHINE, tiny=MOONSHINE.tiny | {"tie_word_embeddings": False}),
    "writes": WRITES,
    "body": replace(
        WRITES, model="Speech2TextModel", results={"last_hidden_state": "tgt"}
    ),
    "three convolutions": replace(
        WRITES, samples=heard(20),
        tiny=WRITES.tiny | {"scale_embedding": False, "num_conv_layers": 3, "conv_kernel_sizes": (3, 5, 3),
                            "input_channels": 2, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    check_model_outputs(CASES[name], tmp_path)


GENERATES = replace(
    SPEECHT5, tiny=SPEECHT5.tiny | {"tie_word_embeddings": False},
    # else one token is generated forever
    suffix_scales={"embed_tokens.weight": 4.0, "final_layer_norm.bias": 0.2},
)  # fmt: skip


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("case", [MOONSHINE, GENERATES], ids=["moonshine", "speecht5"])
def test_generates_as_for_each_recording_alone(case: Alone, beams: int, tmp_path: Path) -> None:
    theirs = case.save_checkpoint(tmp_path).double()
    specc.compile(tmp_path, tmp_path / "package", graphs="step")
    model = specc.load(tmp_path / "package", threads=1)
    given = case.samples.make_batch()
    how: dict[str, Any] = {"max_tokens": 12}
    if beams > 1:
        how |= {"strategy": "beam", "num_beams": beams, "early_stopping": False}
    audio = {name: given[name] for name in ("input_values", "attention_mask")}
    for n, made in enumerate(model.generate(**audio, **how).results()):
        sound = torch.tensor(given["input_values"][n, given["attention_mask"][n]]).double()
        wanted = theirs.generate(
            sound[None], do_sample=False, num_beams=beams, max_new_tokens=12, early_stopping=False
        )[0, 1:].tolist()
        text = list(made[0].tokens)
        assert text == wanted[: len(text)], f"recording {n}"
        assert len(text) == len(wanted), f"recording {n}"
