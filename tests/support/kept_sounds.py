"""What is asked of classes that hear, for `support.keep_answers`: the smallest checkpoint of
each.
"""

from typing import Any

import numpy as np

from support.families import VOCAB, Case
from support.kept_pictures import SIDE
from support.kept_texts import Asked
from support.padded import Ids, Keep, Numbers, Samples, Sound, samples

HEARD: dict[str, Any] = {
    "vocab_size": 13, **SIDE, "conv_dim": [6, 7], "conv_kernel": [5, 3], "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "conv_bias": True,
}  # fmt: skip
SOUNDS = (61, 41, 50)


def frames(length: int) -> int:
    """How many rows come of a recording."""
    for kernel, stride in zip(HEARD["conv_kernel"], HEARD["conv_stride"], strict=True):
        length = (length - kernel) // stride + 1
    return length


RECORDINGS = samples(
    {"input_values": Sound("samples"), "attention_mask": Keep("samples")},
    {"samples": SOUNDS, "frames": tuple(map(frames, SOUNDS))},
)
WHISPER: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_mel_bins": 6,
    "max_source_positions": 8, "max_target_positions": 20, "pad_token_id": 30, "bos_token_id": 30, "eos_token_id": 30,
    "decoder_start_token_id": 29,
}  # fmt: skip
DICTATED = samples(
    {
        "input_features": Numbers((6, 16)),
        "decoder_input_ids": Ids("tgt", 30),
        "decoder_attention_mask": Keep("tgt"),
    },
    {"tgt": (5, 1, 3)},
)
SPOKEN: dict[str, Any] = {
    "vocab_size": VOCAB + 1, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 12, "conv_channels": 12,
    "input_feat_per_channel": 6, "max_source_positions": 40, "max_target_positions": 40, "pad_token_id": VOCAB,
}  # fmt: skip
FILTERED = samples(
    {
        "input_features": Sound("frames", 6),
        "attention_mask": Keep("frames"),
        "decoder_input_ids": Ids("tgt", 31),
        "decoder_attention_mask": Keep("tgt"),
    },
    {"frames": (17, 6, 11), "tgt": (5, 5, 2)},
)


def marked_longer(given: Samples) -> Samples:
    """Spectrograms of which only the second is of audio that fits into the model."""
    for n, row in enumerate(given.rows):
        row["is_longer"] = np.array([n != 1])
    return given


CLAP: dict[str, Any] = {
    "text_config": {**SIDE, "vocab_size": VOCAB, "max_position_embeddings": 12, "num_hidden_layers": 1}, "projection_dim": 4,
    "audio_config": {"num_mel_bins": 4, "spec_size": 8, "patch_size": 2, "patch_stride": 2, "window_size": 2, "depths": [2, 1],
                     "num_attention_heads": [1, 2], "patch_embeds_hidden_size": 4, "hidden_size": 8, "enable_fusion": True, "qkv_bias": False},
}  # fmt: skip
DESCRIBED = marked_longer(
    samples(
        {
            "input_ids": Ids("seq", VOCAB),
            "attention_mask": Keep("seq"),
            "input_features": Numbers((4, 3, 4)),
            "is_longer": Numbers((1,)),
        },
        {"seq": (3, 1, 2)},
    )
)
SOUND = {
    "clap": Asked(
        case=Case(
            config="ClapConfig",
            model="ClapModel",
            tiny=CLAP,
            given=DESCRIBED,
            results={"text_embeds": "", "audio_embeds": ""},
        ),
        computed="relative_position_index position_ids token_type_ids",
    ),
    "wav2vec2": Asked(
        case=Case(
            config="Wav2Vec2Config",
            model="Wav2Vec2ForCTC",
            tiny=HEARD,
            given=RECORDINGS,
            results={"logits": "frames"},
        )
    ),
    "hubert": Asked(
        case=Case(
            config="HubertConfig",
            model="HubertModel",
            tiny=HEARD,
            given=RECORDINGS,
            results={"last_hidden_state": "frames"},
        )
    ),
    "wavlm": Asked(
        case=Case(
            config="WavLMConfig",
            model="WavLMForCTC",
            tiny={**HEARD, "num_buckets": 8, "max_bucket_distance": 6},
            given=RECORDINGS,
            results={"logits": "frames"},
        )
    ),
    "wav2vec2_bert": Asked(
        case=Case(
            config="Wav2Vec2BertConfig",
            model="Wav2Vec2BertForCTC",
            tiny={
                "vocab_size": 13,
                **SIDE,
                "feature_projection_input_dim": 6,
                "conv_depthwise_kernel_size": 5,
                "left_max_position_embeddings": 4,
                "right_max_position_embeddings": 2,
            },
            given=samples(
                {"input_features": Sound("frames", 6), "attention_mask": Keep("frames")},
                {"frames": (13, 4, 9)},
            ),
            results={"logits": "frames"},
        )
    ),
    "parakeet_ctc": Asked(
        case=Case(
            config="ParakeetCTCConfig",
            model="ParakeetForCTC",
            tiny={
                "vocab_size": 13,
                "pad_token_id": 12,
                "encoder_config": {
                    **SIDE,
                    "num_mel_bins": 8,
                    "subsampling_conv_channels": 3,
                    "conv_kernel_size": 3,
                    "subsampling_factor": 4,
                },
            },
            given=samples(
                {"input_features": Sound("frames", 8), "attention_mask": Keep("frames")},
                {"frames": (17, 9, 12), "fourth": (5, 3, 3)},
            ),
            results={"logits": "fourth"},
        )
    ),
    "whisper": Asked(
        case=Case(
            config="WhisperConfig",
            model="WhisperForConditionalGeneration",
            tiny=WHISPER,
            given=DICTATED,
            results={"logits": "tgt"},
        )
    ),
    "ast": Asked(
        case=Case(
            config="ASTConfig",
            model="ASTForAudioClassification",
            tiny={
                **SIDE,
                "patch_size": 4,
                "frequency_stride": 3,
                "time_stride": 2,
                "max_length": 9,
                "num_mel_bins": 7,
            },
            given=samples({"input_values": Numbers((9, 7))}, {}),
            results={"logits": ""},
        )
    ),
    "wav2vec2-conformer": Asked(
        case=Case(
            config="Wav2Vec2ConformerConfig",
            model="Wav2Vec2ConformerForCTC",
            tiny={**HEARD, "hidden_act": "swish", "conv_depthwise_kernel_size": 5},
            given=RECORDINGS,
            results={"logits": "frames"},
        )
    ),
    "speech_to_text": Asked(
        case=Case(
            config="Speech2TextConfig",
            model="Speech2TextForConditionalGeneration",
            tiny=SPOKEN,
            given=FILTERED,
            results={"logits": "tgt"},
        ),
        computed="embed_positions",
    ),
}
