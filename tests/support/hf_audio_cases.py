"""Smallest configurations of transformers' audio models, for `support.hf_output_recorder`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.hf_cases import VOCAB, ModelCase
from support.hf_text_cases import RecordedCase
from support.hf_vision_cases import TOWER_SIZES
from support.padded_batches import (
    CodebookIds,
    FixedValues,
    PaddingMask,
    Samples,
    Signal,
    TokenIds,
    make_samples,
)

WAV2VEC2_SIZES: dict[str, Any] = {
    "vocab_size": 13, **TOWER_SIZES, "conv_dim": [6, 7], "conv_kernel": [5, 3], "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "conv_bias": True,
}  # fmt: skip
AUDIO_LENGTHS = (61, 41, 50)


def count_frames(length: int) -> int:
    """Return the number of frames of a waveform."""
    for kernel, stride in zip(
        WAV2VEC2_SIZES["conv_kernel"], WAV2VEC2_SIZES["conv_stride"], strict=True
    ):
        length = (length - kernel) // stride + 1
    return length


AUDIO_SAMPLES = make_samples(
    {"input_values": Signal("samples"), "attention_mask": PaddingMask("samples")},
    {"samples": AUDIO_LENGTHS, "frames": tuple(map(count_frames, AUDIO_LENGTHS))},
)
WHISPER_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_mel_bins": 6,
    "max_source_positions": 8, "max_target_positions": 20, "pad_token_id": 30, "bos_token_id": 30, "eos_token_id": 30,
    "decoder_start_token_id": 29,
}  # fmt: skip
WHISPER_SAMPLES = make_samples(
    {
        "input_features": FixedValues((6, 16)),
        "decoder_input_ids": TokenIds("tgt", 30),
        "decoder_attention_mask": PaddingMask("tgt"),
    },
    {"tgt": (5, 1, 3)},
)
SPEECH2TEXT_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB + 1, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 12, "conv_channels": 12,
    "input_feat_per_channel": 6, "max_source_positions": 40, "max_target_positions": 40, "pad_token_id": VOCAB,
}  # fmt: skip
FILTERBANK_SAMPLES = make_samples(
    {
        "input_features": Signal("frames", 6),
        "attention_mask": PaddingMask("frames"),
        "decoder_input_ids": TokenIds("tgt", 31),
        "decoder_attention_mask": PaddingMask("tgt"),
    },
    {"frames": (17, 6, 11), "tgt": (5, 5, 2)},
)


def mark_longer(samples: Samples) -> Samples:
    """Mark all spectrograms except the second as longer than the model's input."""
    for n, row in enumerate(samples.rows):
        row["is_longer"] = np.array([n != 1])
    return samples


SPEECHT5_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 12, "encoder_max_relative_position": 3,
    **{name: WAV2VEC2_SIZES[name] for name in WAV2VEC2_SIZES if "conv" in name}, "feat_extract_norm": "layer",
}  # fmt: skip
SPEECH_SAMPLES = make_samples(
    {
        "input_values": Signal("samples"),
        "attention_mask": PaddingMask("samples"),
        "decoder_input_ids": TokenIds("tgt", VOCAB),
        "decoder_attention_mask": PaddingMask("tgt"),
    },
    {"samples": AUDIO_LENGTHS, "tgt": (5, 5, 2)},
)


@dataclass(frozen=True, kw_only=True)
class VocoderCase(ModelCase):
    """A vocoder without a padding mask, applied to one spectrogram after another."""

    def save_checkpoint(self, directory: Path) -> Any:
        """Also set the mean and scale of the mel bins to random values."""
        hf_model = super().save_checkpoint(directory)
        source = torch.Generator().manual_seed(1)
        hf_model.mean.normal_(generator=source)
        hf_model.scale.uniform_(0.5, 2.0, generator=source)
        hf_model.save_pretrained(directory)
        return hf_model

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the waveforms of the transformers model, padded with zeros."""
        pairs = zip(x["spectrogram"], x["spectrogram_mask"].bool(), strict=True)
        waveforms = [hf_model(spectrogram[mask]) for spectrogram, mask in pairs]
        return {"waveform": torch.nn.utils.rnn.pad_sequence(waveforms, batch_first=True)}


HIFIGAN_SIZES: dict[str, Any] = {
    "model_in_dim": 6, "upsample_initial_channel": 12, "upsample_rates": [3, 2], "upsample_kernel_sizes": [7, 4],
    "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 2]],
}  # fmt: skip
HIFIGAN = VocoderCase(
    config="SpeechT5HifiGanConfig",
    model="SpeechT5HifiGan",
    tiny=HIFIGAN_SIZES,
    samples=make_samples(
        {"spectrogram": Signal("frames", 6), "spectrogram_mask": PaddingMask("frames")},
        {"frames": (9, 4, 7), "samples": (54, 24, 42)},
    ),
    results={"waveform": "samples"},
)
CLAP_SIZES: dict[str, Any] = {
    "text_config": {**TOWER_SIZES, "vocab_size": VOCAB, "max_position_embeddings": 12, "num_hidden_layers": 1}, "projection_dim": 4,
    "audio_config": {"num_mel_bins": 4, "spec_size": 8, "patch_size": 2, "patch_stride": 2, "window_size": 2, "depths": [2, 1],
                     "num_attention_heads": [1, 2], "patch_embeds_hidden_size": 4, "hidden_size": 8, "enable_fusion": True, "qkv_bias": False},
}  # fmt: skip
CLAP_SAMPLES = mark_longer(
    make_samples(
        {
            "input_ids": TokenIds("seq", VOCAB),
            "attention_mask": PaddingMask("seq"),
            "input_features": FixedValues((4, 3, 4)),
            "is_longer": FixedValues((1,)),
        },
        {"seq": (3, 1, 2)},
    )
)


@dataclass(frozen=True, kw_only=True)
class CodebookCase(ModelCase):
    """A model with `codebooks` tokens per time step. The input `ids` and the logits have the shape
    [batch, time, codebook, …]; the transformers class flattens batch and codebook.
    """

    ids: str
    codebooks: int = 3

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the outputs of the transformers model for our inputs."""
        flat = x[self.ids].transpose(1, 2).flatten(0, 1)
        outputs = super().run_published(hf_model, {**x, self.ids: flat})
        if "logits" in outputs:
            logits = outputs["logits"].unflatten(0, (-1, self.codebooks))
            outputs["logits"] = logits.transpose(1, 2)
        return outputs


MUSICGEN_SIZES: dict[str, Any] = {
    "vocab_size": 16, "num_hidden_layers": 2, "ffn_dim": 12, "num_attention_heads": 2, "hidden_size": 8,
    "num_codebooks": 3, "pad_token_id": 16, "bos_token_id": 16,
}  # fmt: skip
MUSICGEN_DECODER = CodebookCase(
    config="MusicgenDecoderConfig",
    model="MusicgenForCausalLM",
    ids="input_ids",
    tiny=MUSICGEN_SIZES,
    samples=make_samples(
        {"input_ids": CodebookIds("seq", 17, 3), "attention_mask": PaddingMask("seq")},
        {"seq": (7, 1, 4)},
    ),
)
MUSICGEN = CodebookCase(
    config="MusicgenConfig",
    model="MusicgenForConditionalGeneration",
    ids="decoder_input_ids",
    tiny={
        "text_encoder": {"model_type": "t5", "vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 20,
                         "num_layers": 1, "num_heads": 2, "relative_attention_num_buckets": 8,
                         "relative_attention_max_distance": 6, "pad_token_id": 30},
        "audio_encoder": {"model_type": "encodec", "num_filters": 2, "hidden_size": 4, "codebook_dim": 4,
                          "codebook_size": 16, "upsampling_ratios": [2], "num_lstm_layers": 1,
                          "sampling_rate": 64, "target_bandwidths": [0.96]},
        "decoder": MUSICGEN_SIZES,
    },
    results={"logits": "tgt"},
    samples=make_samples(
        {
            "input_ids": TokenIds("src", 29),
            "attention_mask": PaddingMask("src"),
            "decoder_input_ids": CodebookIds("tgt", 17, 3),
            "decoder_attention_mask": PaddingMask("tgt"),
        },
        {"src": (7, 1, 4), "tgt": (6, 2, 3)},
    ),
    suffix_scales={"Attention.q.weight": 6**-0.5},
)  # fmt: skip
AUDIO = {
    "musicgen_decoder": RecordedCase(case=MUSICGEN_DECODER),
    "musicgen": RecordedCase(case=MUSICGEN),
    "clap": RecordedCase(
        case=ModelCase(
            config="ClapConfig",
            model="ClapModel",
            tiny=CLAP_SIZES,
            samples=CLAP_SAMPLES,
            results={"text_embeds": "", "audio_embeds": ""},
        ),
        computed="relative_position_index position_ids token_type_ids",
    ),
    "wav2vec2": RecordedCase(
        case=ModelCase(
            config="Wav2Vec2Config",
            model="Wav2Vec2ForCTC",
            tiny=WAV2VEC2_SIZES,
            samples=AUDIO_SAMPLES,
            results={"logits": "frames"},
        )
    ),
    "hubert": RecordedCase(
        case=ModelCase(
            config="HubertConfig",
            model="HubertModel",
            tiny=WAV2VEC2_SIZES,
            samples=AUDIO_SAMPLES,
            results={"last_hidden_state": "frames"},
        )
    ),
    "wavlm": RecordedCase(
        case=ModelCase(
            config="WavLMConfig",
            model="WavLMForCTC",
            tiny={**WAV2VEC2_SIZES, "num_buckets": 8, "max_bucket_distance": 6},
            samples=AUDIO_SAMPLES,
            results={"logits": "frames"},
        )
    ),
    "wav2vec2_bert": RecordedCase(
        case=ModelCase(
            config="Wav2Vec2BertConfig",
            model="Wav2Vec2BertForCTC",
            tiny={
                "vocab_size": 13,
                **TOWER_SIZES,
                "feature_projection_input_dim": 6,
                "conv_depthwise_kernel_size": 5,
                "left_max_position_embeddings": 4,
                "right_max_position_embeddings": 2,
            },
            samples=make_samples(
                {"input_features": Signal("frames", 6), "attention_mask": PaddingMask("frames")},
                {"frames": (13, 4, 9)},
            ),
            results={"logits": "frames"},
        )
    ),
    "parakeet_ctc": RecordedCase(
        case=ModelCase(
            config="ParakeetCTCConfig",
            model="ParakeetForCTC",
            tiny={
                "vocab_size": 13,
                "pad_token_id": 12,
                "encoder_config": {
                    **TOWER_SIZES,
                    "num_mel_bins": 8,
                    "subsampling_conv_channels": 3,
                    "conv_kernel_size": 3,
                    "subsampling_factor": 4,
                },
            },
            samples=make_samples(
                {"input_features": Signal("frames", 8), "attention_mask": PaddingMask("frames")},
                {"frames": (17, 9, 12), "fourth": (5, 3, 3)},
            ),
            results={"logits": "fourth"},
        )
    ),
    "whisper": RecordedCase(
        case=ModelCase(
            config="WhisperConfig",
            model="WhisperForConditionalGeneration",
            tiny=WHISPER_SIZES,
            samples=WHISPER_SAMPLES,
            results={"logits": "tgt"},
        )
    ),
    "ast": RecordedCase(
        case=ModelCase(
            config="ASTConfig",
            model="ASTForAudioClassification",
            tiny={
                **TOWER_SIZES,
                "patch_size": 4,
                "frequency_stride": 3,
                "time_stride": 2,
                "max_length": 9,
                "num_mel_bins": 7,
            },
            samples=make_samples({"input_values": FixedValues((9, 7))}, {}),
            results={"logits": ""},
        )
    ),
    "wav2vec2-conformer": RecordedCase(
        case=ModelCase(
            config="Wav2Vec2ConformerConfig",
            model="Wav2Vec2ConformerForCTC",
            tiny={**WAV2VEC2_SIZES, "hidden_act": "swish", "conv_depthwise_kernel_size": 5},
            samples=AUDIO_SAMPLES,
            results={"logits": "frames"},
        )
    ),
    "speech_to_text": RecordedCase(
        case=ModelCase(
            config="Speech2TextConfig",
            model="Speech2TextForConditionalGeneration",
            tiny=SPEECH2TEXT_SIZES,
            samples=FILTERBANK_SAMPLES,
            results={"logits": "tgt"},
        ),
        computed="embed_positions",
    ),
    "speecht5": RecordedCase(
        case=ModelCase(
            config="SpeechT5Config",
            model="SpeechT5ForSpeechToText",
            tiny=SPEECHT5_SIZES,
            samples=SPEECH_SAMPLES,
            results={"logits": "tgt"},
        )
    ),
    "speecht5_hifigan": RecordedCase(case=HIFIGAN),
}
