"""CLIP, SigLIP and CLAP: each encoder by itself, and images or audio compared with texts, from the
directories that transformers saves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.padded_batches import (
    Field,
    FixedValues,
    PaddingMask,
    Samples,
    Signal,
    TokenIds,
    make_samples,
)
from support.published_models import (
    assert_matches_float32,
    open_weighted_spec,
    randomize_statistics,
    randomize_weights,
)

pytestmark = pytest.mark.parity

WORDS, END = 31, 30
SIDE: dict[str, Any] = {"num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = SIDE | {
    "hidden_size": 24,
    "intermediate_size": 40,
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": END,
}
NO_PADDING = TEXT | {"pad_token_id": END}
"""A padding token that no text has: its embedding is set to zero when these classes are loaded."""
VISION = SIDE | {"hidden_size": 32, "intermediate_size": 20, "image_size": 12, "patch_size": 4}
FLEXIBLE = SIDE | {"hidden_size": 32, "intermediate_size": 20, "patch_size": 2, "num_patches": 9}
PIXELS = FixedValues((3, 12, 12))


def texts(*, end: bool, pixels: FixedValues | None = None, token_types: bool = False) -> Samples:
    """Three texts; with `end` each has its last row at the end, and padding has none."""
    fields = {"input_ids": TokenIds("seq", END), "attention_mask": PaddingMask("seq")}
    more: dict[str, Field] = {"pixel_values": pixels} if pixels else {}
    more |= {"token_type_ids": TokenIds("seq", 2)} if token_types else {}
    made = make_samples(fields | more, {"seq": (7, 2, 4)})
    for row in made.rows if end else ():
        row["input_ids"][-1] = END
    return made


def pictures(size: int = 12) -> Samples:
    return make_samples({"pixel_values": FixedValues((3, size, size))}, {})


def unpadded(count: int = 3) -> Samples:
    """Texts of one length, which have no mask."""
    rng = np.random.default_rng(0)
    made = make_samples({"pixel_values": PIXELS, "input_ids": FixedValues((5,))}, {})
    for row in made.rows:
        row["input_ids"] = rng.integers(0, WORDS, 5)
    return made


GRIDS = [(3, 4), (2, 1), (1, 6)]
"""Rows and columns of patches of three images."""


def patches() -> Samples:
    """Texts of one length, and the patches of images of these grids."""
    fields = {"pixel_values": Signal("patches", 12), "pixel_attention_mask": PaddingMask("patches")}
    more = {"spatial_shapes": FixedValues((2,)), "input_ids": FixedValues((5,))}
    made = make_samples(fields | more, {"patches": tuple(h * w for h, w in GRIDS)})
    for row, ids, grid in zip(made.rows, unpadded().rows, GRIDS, strict=True):
        row["input_ids"], row["spatial_shapes"] = ids["input_ids"], np.array(grid)
    return made


SEGMENTER: dict[str, Any] = {
    "projection_dim": 12, "extract_layers": [0, 1, 2], "reduce_dim": 8, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 10,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "num_mel_bins": 8, "spec_size": 32, "patch_size": 4, "patch_stride": 2, "patch_embeds_hidden_size": 6, "depths": [2, 1],
    "num_attention_heads": [2, 3], "window_size": 4, "mlp_ratio": 1.5, "hidden_size": 12, "qkv_bias": False,
}  # fmt: skip
FUSED = AUDIO | {"enable_fusion": True, "aff_block_r": 2, "patch_size": 2, "qkv_bias": True}


def spectrograms(frames: int, *, fused: bool = False, text: bool = False) -> Samples:
    """Spectrograms and texts; of fused ones the first and the last are longer than the model takes."""
    fields = (
        {"input_ids": TokenIds("seq", END), "attention_mask": PaddingMask("seq")} if text else {}
    )
    more = {"is_longer": FixedValues((1,))} if fused else {}
    sound: dict[str, Field] = {"input_features": FixedValues((4 if fused else 1, frames, 8))}
    made = make_samples(fields | sound | more, {"seq": (7, 2, 4)})
    for n, row in enumerate(made.rows if fused else ()):
        row["is_longer"] = np.array([n != 1])
    return made


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A class, its config, what it is given, and which results are compared."""

    model: str
    config: str
    settings: Mapping[str, Any]
    given: Samples
    results: Mapping[str, str]
    gone: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    sets: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0


BOTH: dict[str, Any] = {"text_config": TEXT, "vision_config": VISION}
PAIR = {"logits_per_image": "", "logits_per_text": "", "text_embeds": "", "image_embeds": ""}
HEARD = {"logits_per_audio": "", "logits_per_text": "", "text_embeds": "", "audio_embeds": ""}
POOLED = {"last_hidden_state": "", "pooler_output": ""}
CASES = {
    "clip": Tower(
        model="CLIPModel",
        config="CLIPConfig",
        settings=BOTH | {"projection_dim": 12},
        given=texts(end=True, pixels=PIXELS),
        results=PAIR,
    ),
    "clip, ends of old": Tower(
        model="CLIPModel",
        config="CLIPConfig",
        settings={
            "text_config": TEXT | {"eos_token_id": 2, "hidden_act": "gelu"},
            "vision_config": VISION | {"hidden_act": "gelu"},
        },
        given=texts(end=True, pixels=PIXELS),
        results=PAIR,
    ),
    "clip text": Tower(
        model="CLIPTextModel",
        config="CLIPTextConfig",
        settings=TEXT,
        given=texts(end=True),
        results={"last_hidden_state": "seq", "pooler_output": ""},
    ),
    "clip text, projected": Tower(
        model="CLIPTextModelWithProjection",
        config="CLIPTextConfig",
        settings=TEXT | {"projection_dim": 12},
        given=texts(end=True),
        results={"last_hidden_state": "seq", "text_embeds": ""},
    ),
    "clip vision": Tower(
        model="CLIPVisionModel",
        config="CLIPVisionConfig",
        settings=VISION,
        given=pictures(),
        results=POOLED,
    ),
    "clip vision, projected": Tower(
        model="CLIPVisionModelWithProjection",
        config="CLIPVisionConfig",
        # What is left over at the right and below is not seen.
        settings=VISION | {"projection_dim": 12, "image_size": 14},
        given=pictures(14),
        results={"last_hidden_state": "", "image_embeds": ""},
    ),
    "clip classes": Tower(
        model="CLIPForImageClassification",
        config="CLIPConfig",
        settings=BOTH | {"num_labels": 5},
        given=pictures(),
        results={"logits": ""},
    ),
    "metaclip_2": Tower(
        model="MetaClip2Model",
        config="MetaClip2Config",
        settings={
            "text_config": TEXT,
            "vision_config": VISION | {"hidden_act": "gelu"},
            "projection_dim": 12,
        },
        given=texts(end=True, pixels=PIXELS),
        results=PAIR,
    ),
    "metaclip_2 text, end token 2": Tower(
        model="MetaClip2TextModel",
        config="MetaClip2TextConfig",
        settings=TEXT | {"eos_token_id": 2, "hidden_act": "gelu"},
        given=texts(end=False),
        results={"last_hidden_state": "seq"},
    ),
    "metaclip_2 text, projected": Tower(
        model="MetaClip2TextModelWithProjection",
        config="MetaClip2TextConfig",
        settings=TEXT | {"projection_dim": 12},
        given=texts(end=True),
        results={"last_hidden_state": "seq", "text_embeds": ""},
    ),
    "metaclip_2 vision": Tower(
        model="MetaClip2VisionModel",
        config="MetaClip2VisionConfig",
        settings=VISION | {"image_size": 14},
        given=pictures(14),
        results=POOLED,
    ),
    "metaclip_2 vision, projected": Tower(
        model="MetaClip2VisionModelWithProjection",
        config="MetaClip2VisionConfig",
        settings=VISION | {"projection_dim": 12},
        given=pictures(),
        results={"last_hidden_state": "", "image_embeds": ""},
    ),
    "metaclip_2 classes": Tower(
        model="MetaClip2ForImageClassification",
        config="MetaClip2Config",
        settings=BOTH | {"num_labels": 5},
        given=pictures(),
        results={"logits": ""},
    ),
    "chinese_clip": Tower(
        model="ChineseCLIPModel",
        config="ChineseCLIPConfig",
        settings={"text_config": NO_PADDING, "vision_config": VISION, "projection_dim": 12},
        given=texts(end=False, pixels=PIXELS, token_types=True),
        results=PAIR,
    ),
    "chinese_clip, other activations": Tower(
        model="ChineseCLIPModel",
        config="ChineseCLIPConfig",
        settings={
            "text_config": TEXT
            | {
                "hidden_act": "relu",
                "layer_norm_eps": 1e-3,
                "type_vocab_size": 3,
                "pad_token_id": 0,
            },
            "vision_config": VISION | {"hidden_act": "gelu", "image_size": 14, "num_channels": 1},
        },
        given=texts(end=False, pixels=FixedValues((1, 14, 14)), token_types=True),
        results=PAIR,
    ),
    "chinese_clip text": Tower(
        model="ChineseCLIPTextModel",
        config="ChineseCLIPTextConfig",
        settings=NO_PADDING,
        given=texts(end=False, token_types=True),
        results={"last_hidden_state": "seq", "pooler_output": ""},
    ),
    "chinese_clip vision": Tower(
        model="ChineseCLIPVisionModel",
        config="ChineseCLIPVisionConfig",
        settings=VISION,
        given=pictures(),
        results=POOLED,
    ),
    "altclip": Tower(
        model="AltCLIPModel",
        config="AltCLIPConfig",
        settings={
            "text_config": NO_PADDING
            | {"project_dim": 18, "max_position_embeddings": 40, "type_vocab_size": 2},
            "vision_config": VISION,
            "projection_dim": 12,
        },
        given=texts(end=False, pixels=PIXELS, token_types=True),
        results=PAIR,
    ),
    "altclip text": Tower(
        model="AltCLIPTextModel",
        config="AltCLIPTextConfig",
        settings=NO_PADDING
        | {"project_dim": 18, "max_position_embeddings": 40, "type_vocab_size": 2},
        given=texts(end=False, token_types=True),
        results={"last_hidden_state": "seq", "pooler_output": ""},
    ),
    "altclip vision": Tower(
        model="AltCLIPVisionModel",
        config="AltCLIPVisionConfig",
        settings=VISION | {"hidden_act": "gelu"},
        given=pictures(),
        results=POOLED,
    ),
    "clipseg, resized positions": Tower(
        model="CLIPSegForImageSegmentation",
        config="CLIPSegConfig",
        settings=BOTH | SEGMENTER,
        given=texts(end=True, pixels=FixedValues((3, 20, 20))),
        results={"logits": "", "conditional_embeddings": ""},
        sets={"image": 20},
        seed=5,
    ),
    "clipseg, image prompt": Tower(
        model="CLIPSegForImageSegmentation",
        config="CLIPSegConfig",
        settings=BOTH | SEGMENTER,
        given=make_samples(
            {"conditional_pixel_values": PIXELS, "pixel_values": FixedValues((3, 12, 12))}, {}
        ),
        results={"logits": "", "conditional_embeddings": ""},
        sets={"image": 12, "graph": "segment_like"},
    ),
    "clipseg, complex upsampling, middle layer": Tower(
        model="CLIPSegForImageSegmentation",
        config="CLIPSegConfig",
        settings={
            "text_config": TEXT | {"eos_token_id": 2},
            "vision_config": VISION | {"image_size": 16, "patch_size": 8},
        }
        | SEGMENTER
        | {
            "conditional_layer": 1,
            "extract_layers": [1, 2],
            "use_complex_transposed_convolution": True,
        },
        given=texts(end=True, pixels=FixedValues((3, 16, 16))),
        results={"logits": "", "conditional_embeddings": ""},
        sets={"image": 16},
    ),
    "clipseg base": Tower(
        model="CLIPSegModel",
        config="CLIPSegConfig",
        settings=BOTH | SEGMENTER,
        given=texts(end=True, pixels=PIXELS),
        results=PAIR,
        sets={"image": 12},
    ),
    "clipseg text": Tower(
        model="CLIPSegTextModel",
        config="CLIPSegTextConfig",
        settings=TEXT | {"eos_token_id": 2},
        given=texts(end=True),
        results={"last_hidden_state": "seq", "pooler_output": ""},
    ),
    "clipseg vision": Tower(
        model="CLIPSegVisionModel",
        config="CLIPSegVisionConfig",
        settings=VISION,
        given=pictures(),
        results=POOLED,
    ),
    "siglip": Tower(
        model="SiglipModel",
        config="SiglipConfig",
        settings={"text_config": TEXT | {"projection_size": 32}, "vision_config": VISION},
        given=unpadded(),
        results=PAIR,
    ),
    "siglip text": Tower(
        model="SiglipTextModel",
        config="SiglipTextConfig",
        settings=TEXT,
        given=unpadded(),
        results=POOLED,
        gone=("pixel_values",),
    ),
    "siglip vision": Tower(
        model="SiglipVisionModel",
        config="SiglipVisionConfig",
        settings=VISION | {"image_size": 14},
        given=pictures(14),
        results=POOLED,
    ),
    "siglip classes": Tower(
        model="SiglipForImageClassification",
        config="SiglipConfig",
        settings=BOTH | {"num_labels": 5},
        given=pictures(),
        results={"logits": ""},
    ),
    "clap": Tower(
        model="ClapModel",
        config="ClapConfig",
        settings={"text_config": TEXT, "audio_config": FUSED, "projection_dim": 10},
        given=spectrograms(101, fused=True, text=True),
        results=HEARD,
    ),
    "clap text": Tower(
        model="ClapTextModel",
        config="ClapTextConfig",
        settings=TEXT | {"type_vocab_size": 2},
        given=texts(end=False, token_types=True),
        results={"last_hidden_state": "seq", "pooler_output": ""},
    ),
    "clap text, projected": Tower(
        model="ClapTextModelWithProjection",
        config="ClapTextConfig",
        settings=TEXT | {"projection_dim": 10, "projection_hidden_act": "gelu"},
        given=texts(end=False),
        results={"last_hidden_state": "seq", "text_embeds": ""},
    ),
    "clap audio": Tower(
        model="ClapAudioModel",
        config="ClapAudioConfig",
        settings=AUDIO,
        given=spectrograms(128),
        results=POOLED,
    ),
    "clap audio, projected": Tower(
        model="ClapAudioModelWithProjection",
        config="ClapAudioConfig",
        settings=AUDIO | {"projection_dim": 10, "enable_patch_layer_norm": False},
        given=spectrograms(37),
        results={"last_hidden_state": "", "audio_embeds": ""},
    ),
    "siglip2": Tower(
        model="Siglip2Model",
        config="Siglip2Config",
        settings={"text_config": TEXT | {"projection_size": 32}, "vision_config": FLEXIBLE},
        given=patches(),
        results=PAIR,
    ),
    "siglip2 vision": Tower(
        model="Siglip2VisionModel",
        config="Siglip2VisionConfig",
        settings=FLEXIBLE | {"num_patches": 25},
        given=patches(),
        results={"last_hidden_state": "patches", "pooler_output": ""},
        gone=("input_ids",),
    ),
    "siglip2 classes": Tower(
        model="Siglip2ForImageClassification",
        config="Siglip2Config",
        settings={"text_config": TEXT, "vision_config": FLEXIBLE, "num_labels": 5},
        given=patches(),
        results={"logits": ""},
        gone=("input_ids",),
    ),
}


def without(given: Samples, names: tuple[str, ...]) -> Samples:
    """Samples without some of their fields."""
    fields = {n: f for n, f in given.fields.items() if n not in names}
    rows = tuple({n: row[n] for n in row if n not in names} for row in given.rows)
    return Samples(fields, rows, given.lengths, given.seed)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_published_class(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    config = getattr(transformers, case.config)(**case.settings)
    kind = getattr(transformers, case.model)
    theirs = randomize_weights(kind(config), seed=case.seed or len(name))
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    theirs = kind.from_pretrained(tmp_path).eval()
    ours = open_weighted_spec(str(tmp_path), tmp_path, **case.sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        whole = {
            "input_ids",
            "attention_mask",
            "pixel_attention_mask",
            "spatial_shapes",
            "token_type_ids",
        }
        made = theirs(**{k: v.long() if k in whole else v for k, v in x.items()})
        return {result: made[result] for result in case.results}

    assert_matches_float32(ours, without(case.given, case.gone), published, case.results)
