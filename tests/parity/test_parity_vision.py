"""ViT, DeiT, BEiT, DINOv2, Swin, ConvNeXt, YOLOS, DETR and SegFormer with their heads, from
directories saved by transformers: for one image and a batch of three.
"""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from support.elaborated_specs import assert_arrays_close
from support.padded_batches import FixedValues, Samples, make_samples
from support.published_models import (
    assert_matches_float32,
    open_weighted_spec,
    randomize_statistics,
    randomize_weights,
)

import specc

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
    "id2label": {0: "a", 1: "b", 2: "c"},
}
STAGES: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 2],
    "hidden_sizes": [8, 12],
    "sr_ratios": [2, 1],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 3],
    "decoder_hidden_size": 10,
    "id2label": {0: "a", 1: "b", 2: "c"},
}
WINDOWS: dict[str, Any] = {
    "image_size": 12,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 3,
    "id2label": {0: "a", 1: "b", 2: "c"},
}
CONVNEXT: dict[str, Any] = {
    "image_size": 16,
    "hidden_sizes": [8, 12, 12, 16],
    "depths": [1, 2, 1, 1],
    "patch_size": 2,
    "id2label": {0: "a", 1: "b", 2: "c"},
}

CLASSES: dict[str, Any] = {"id2label": {0: "a", 1: "b", 2: "c"}}
RESNET: dict[str, Any] = {
    "depths": [1, 2, 1, 1],
    "hidden_sizes": [8, 12, 12, 16],
    "embedding_size": 6,
}
REGNET: dict[str, Any] = {
    "embedding_size": 6,
    "hidden_sizes": [8, 20, 16],
    "depths": [2, 1, 2],
    "groups_width": 4,
}
POOLED: dict[str, Any] = {"depths": [1, 2, 1, 1], "hidden_sizes": [8, 12, 12, 16], "mlp_ratio": 2.0}

POSE: dict[str, Any] = {
    "backbone_config": {
        "model_type": "vitpose_backbone",
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "mlp_ratio": 2,
        "image_size": [32, 24],
        "patch_size": [8, 8],
        "out_indices": [2],
    },
    "id2label": {0: "a", 1: "b", 2: "c"},
}
VIDEO: dict[str, Any] = {
    "num_frames": 4,
    "decoder_hidden_size": 12,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 3,
    "decoder_intermediate_size": 20,
}
MOBILE: dict[str, Any] = {
    "depth_multiplier": 0.2,
    "depth_divisible_by": 4,
    "min_depth": 4,
    "expand_ratio": 2.0,
}
PYRAMID: dict[str, Any] = {
    "hidden_sizes": [8, 8, 12, 16],
    "depths": [1, 2, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
    "mlp_ratios": [2, 2, 3, 1],
}
EFFICIENT: dict[str, Any] = {
    "width_coefficient": 0.05,
    "depth_coefficient": 1.3,
    "depth_divisor": 4,
    "in_channels": [32, 80, 120],
    "out_channels": [80, 120, 200],
    "kernel_sizes": [3, 5, 3],
    "strides": [1, 2, 2],
    "num_block_repeats": [1, 2, 1],
    "expand_ratios": [1, 3, 2],
    "depthwise_padding": [2],
    "hidden_dim": 64,
}
BIT: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [16, 32, 40, 32],
    "depths": [1, 2, 1, 1],
    "num_groups": 4,
}
CVT: dict[str, Any] = {"embed_dim": [8, 12, 16], "num_heads": [1, 3, 2], "depth": [1, 2, 3]}
FOCAL: dict[str, Any] = {
    "embed_dim": 8,
    "depths": [1, 2],
    "focal_levels": [2, 3],
    "focal_windows": [3, 5],
}
HIERA: dict[str, Any] = {
    "embed_dim": 8,
    "depths": [1, 2, 1],
    "num_heads": [1, 2, 4],
    "masked_unit_size": [4, 4],
    "masked_unit_attention": [True, False, False],
    "num_query_pool": 2,
}
TUBES: dict[str, Any] = {"num_frames": 4, "tubelet_size": [2, 4, 4]}
LEVIT: dict[str, Any] = {
    "image_size": 64,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 3, 2],
    "depths": [1, 2, 1],
    "key_dim": [8, 8, 8],
}
MOBILE_VIT: dict[str, Any] = {
    "hidden_sizes": [8, 12, 16],
    "neck_hidden_sizes": [4, 4, 6, 8, 8, 12, 10],
    "num_attention_heads": 2,
    "expand_ratio": 1.5,
}
DEPTH = ("predicted_depth",)
DENSE: dict[str, Any] = {
    "image_size": 16,
    "num_hidden_layers": 5,
    "backbone_out_indices": [0, 1, 3],
    "reassemble_factors": [2, 1, 0.5],
    "neck_hidden_sizes": [6, 8, 10],
    "fusion_hidden_size": 8,
}
DEPTHS: dict[str, Any] = {
    "backbone_config": {
        "model_type": "dinov2",
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "mlp_ratio": 2,
        "image_size": 16,
        "patch_size": 4,
        "out_indices": [1, 2, 3],
        "reshape_hidden_states": False,
    },
    "patch_size": 4,
    "reassemble_hidden_size": 16,
    "reassemble_factors": [2, 1, 0.5],
    "neck_hidden_sizes": [6, 8, 10],
    "fusion_hidden_size": 8,
    "head_hidden_size": 6,
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A class, its config, and the size of its images."""

    config: str
    model: str
    settings: Mapping[str, Any]
    size: tuple[int, int] = (12, 12)
    results: tuple[str, ...] = ("logits",)
    given: Mapping[str, object] = field(default_factory=dict)
    squares: int = 0
    masked: int | None = None
    frames: int = 0

    @property
    def samples(self) -> Samples:
        pixels = (self.frames, 3, *self.size) if self.frames else (3, *self.size)
        fields = {"pixel_values": FixedValues(pixels)}
        if self.squares:
            fields["bool_masked_pos"] = FixedValues((self.squares,), uniform=True)
        made = make_samples(fields, {})
        for row in made.rows if self.squares else ():
            noise = row["bool_masked_pos"]
            row["bool_masked_pos"] = (
                noise > 0.5 if self.masked is None else np.argsort(np.argsort(noise)) < self.masked
            )
        return made


BASE = ("last_hidden_state", "pooler_output")
OBLONG = {"image_size": [8, 12]}
CUT = {"image_size": [14, 11]}
"""Patches of 4 by 4 pixels leave two rows and three columns over, which no patch has."""
SEEN: dict[str, Any] = {"num_hidden_layers": 5, "out_indices": [1, 2, 3, 5]}
"""Of segmentation: 1 is what the first layer is given."""
PAINT = {"encoder_stride": 4}
NOTHING: dict[str, Any] = {}
BOTH = {"use_relative_position_bias": True}


def vit(config: str, model: str, **more: Any) -> Seen:
    return Seen(
        **{"config": config, "model": model, **more, "settings": SMALL | more.get("settings", {})}
    )


CASES = {
    "vit": vit("ViTConfig", "ViTForImageClassification"),
    "vit base": vit("ViTConfig", "ViTModel", results=BASE,
                    settings={"pooler_output_size": 10, "pooler_act": "relu"}),
    "vit paints": vit("ViTConfig", "ViTForMaskedImageModeling", settings=PAINT, squares=9,
                      results=("reconstruction",)),
    "deit": vit("DeiTConfig", "DeiTForImageClassification"),
    "deit oblong": vit("DeiTConfig", "DeiTForImageClassification", settings=OBLONG, size=(8, 12)),
    "deit, teacher": vit("DeiTConfig", "DeiTForImageClassificationWithTeacher",
                         results=("logits", "cls_logits", "distillation_logits")),
    "deit paints": vit("DeiTConfig", "DeiTForMaskedImageModeling", settings=PAINT, squares=9,
                       results=("reconstruction",)),
    "deit base": vit("DeiTConfig", "DeiTModel", results=BASE),
    "beit": vit("BeitConfig", "BeitForImageClassification", settings=BOTH),
    "beit, shared": vit("BeitConfig", "BeitForImageClassification", settings={
        "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True,
        "use_mean_pooling": False, "layer_scale_init_value": 0.0}),
    "beit, all": vit("BeitConfig", "BeitForImageClassification", settings=BOTH | {
        "use_shared_relative_position_bias": True}),
    "beit, pairs of sizes": vit("BeitConfig", "BeitForImageClassification", settings={
        "image_size": [12, 12], "patch_size": [4, 4], "use_absolute_position_embeddings": True}),
    "beit guesses": vit("BeitConfig", "BeitForMaskedImageModeling", squares=9, settings=BOTH | {
        "vocab_size": 13, "use_mask_token": True}),
    "beit guesses, two norms": vit("BeitConfig", "BeitForMaskedImageModeling", squares=9, settings={
        "vocab_size": 13, "use_mask_token": True, "use_mean_pooling": False}),
    "beit, places": vit("BeitConfig", "BeitForSemanticSegmentation", size=(24, 24), settings=SEEN | BOTH | {
        "image_size": 24}),
    "beit, places of the first": vit("BeitConfig", "BeitForSemanticSegmentation", size=(20, 20), settings=SEEN | {
        "image_size": 20, "out_indices": [2, 3, 4, 5], "pool_scales": [1, 4], "use_auxiliary_head": False,
        "use_mean_pooling": False,
        "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True}),
    "beit base": vit("BeitConfig", "BeitModel", results=BASE),
    "dinov2": vit("Dinov2Config", "Dinov2ForImageClassification", settings={"mlp_ratio": 2}),
    "dinov2, gated": vit("Dinov2Config", "Dinov2ForImageClassification",
                         settings={"use_swiglu_ffn": True}),
    "dinov2, stretched": vit("Dinov2Config", "Dinov2ForImageClassification", size=(20, 16),
                             given={"image": [20, 16]}),
    "dinov2 base": vit("Dinov2Config", "Dinov2Model", results=BASE),
    "dinov2, registers": vit("Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification",
                             settings={"num_register_tokens": 3}),
    "dinov2, registers, base": vit("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel",
                                   results=BASE),
    "yolos": vit("YolosConfig", "YolosForObjectDetection", size=(8, 12),
                 results=("logits", "pred_boxes"), settings=OBLONG | {"num_detection_tokens": 3}),
    "yolos, plain": vit("YolosConfig", "YolosForObjectDetection",
                        results=("logits", "pred_boxes"),
                        settings={"image_size": [12, 12], "num_detection_tokens": 2,
                                  "use_mid_position_embeddings": False}),
    "yolos base": vit("YolosConfig", "YolosModel", results=BASE,
                      settings={"image_size": [12, 12], "num_detection_tokens": 2}),
    "swin base": Seen(config="SwinConfig", model="SwinModel", settings=WINDOWS, size=(12, 12), results=BASE),
    "swin, oblong": Seen(config="SwinConfig", model="SwinForImageClassification", size=(12, 20),
                         settings=WINDOWS | {"image_size": [12, 20]}),
    "swin paints": Seen(config="SwinConfig", model="SwinForMaskedImageModeling", settings=WINDOWS | PAINT, squares=36,
                        results=("reconstruction",)),
    "donut-swin": Seen(config="DonutSwinConfig", model="DonutSwinForImageClassification", size=(20, 12),
                       settings=WINDOWS | {"image_size": [20, 12]}),
    "swinv2": Seen(config="Swinv2Config", model="Swinv2ForImageClassification", size=(28, 28), settings=WINDOWS | {
        "image_size": 28, "window_size": 4, "depths": [2, 2, 1], "num_heads": [2, 4, 2], "pretrained_window_sizes": [0, 3, 5]}),
    "swinv2 base, oblong": Seen(config="Swinv2Config", model="Swinv2Model", size=(12, 20), results=BASE,
                                settings=WINDOWS | {"image_size": [12, 20], "window_size": 5, "qkv_bias": False}),
    "swinv2 paints": Seen(config="Swinv2Config", model="Swinv2ForMaskedImageModeling", settings=WINDOWS | PAINT, squares=36,
                          results=("reconstruction",)),
    "donut-swin base": Seen(config="DonutSwinConfig", model="DonutSwinModel", settings=WINDOWS, results=BASE),
    "convnext": Seen(config="ConvNextConfig", model="ConvNextForImageClassification", settings=CONVNEXT, size=(16, 16)),
    "convnext, a pair of sizes": Seen(
        config="ConvNextConfig", model="ConvNextForImageClassification", size=(16, 16),
        settings=CONVNEXT | {"image_size": [16, 16]}),
    "convnext base": Seen(config="ConvNextConfig", model="ConvNextModel", settings=CONVNEXT, size=(16, 16), results=BASE),
    "convnextv2": Seen(config="ConvNextV2Config", model="ConvNextV2ForImageClassification", settings=CONVNEXT, size=(16, 16)),
    "convnextv2 base": Seen(config="ConvNextV2Config", model="ConvNextV2Model", settings=CONVNEXT | {"hidden_act": "relu"},
                            size=(16, 16), results=BASE),
    "resnet": Seen(config="ResNetConfig", model="ResNetForImageClassification", settings=RESNET | CLASSES, size=(40, 40),
                   given={"image": 40}),
    "resnet, strided by 1x1 convolutions": Seen(
        config="ResNetConfig", model="ResNetModel", size=(48, 40), given={"image": [48, 40]}, results=BASE,
        settings=RESNET | {"downsample_in_bottleneck": True, "downsample_in_first_stage": True, "hidden_act": "gelu"}),
    "resnet, basic layers": Seen(
        config="ResNetConfig", model="ResNetForImageClassification", size=(32, 32), given={"image": 32},
        settings={**CLASSES, "layer_type": "basic", "depths": [2, 1], "hidden_sizes": [6, 10], "embedding_size": 6}),
    "regnet": Seen(config="RegNetConfig", model="RegNetForImageClassification", size=(33, 40), given={"image": [33, 40]},
                   settings={**CLASSES, **REGNET}),
    "regnet, x": Seen(config="RegNetConfig", model="RegNetModel", size=(32, 32), given={"image": 32}, results=BASE,
                      settings={**REGNET, "layer_type": "x", "downsample_in_first_stage": False}),
    "poolformer": Seen(config="PoolFormerConfig", model="PoolFormerForImageClassification", size=(36, 40),
                       given={"image": [36, 40]}, settings={**CLASSES, **POOLED}),
    "poolformer base": Seen(config="PoolFormerConfig", model="PoolFormerModel", size=(32, 32), given={"image": 32},
                            settings={**POOLED, "use_layer_scale": False, "pool_size": 5}, results=("last_hidden_state",)),
    "ijepa": vit("IJepaConfig", "IJepaForImageClassification", settings=OBLONG, size=(8, 12)),
    "ijepa base": vit("IJepaConfig", "IJepaModel", settings={"qkv_bias": False}, results=("last_hidden_state",)),
    "vit_msn": vit("ViTMSNConfig", "ViTMSNForImageClassification"),
    "vit_msn base": vit("ViTMSNConfig", "ViTMSNModel", results=("last_hidden_state",)),
    "data2vec": vit("Data2VecVisionConfig", "Data2VecVisionForImageClassification", settings=BOTH),
    "data2vec base": vit(
        "Data2VecVisionConfig", "Data2VecVisionModel", results=("last_hidden_state",), settings={"use_mean_pooling": False},
    ),
    "data2vec base, as by default": vit("Data2VecVisionConfig", "Data2VecVisionModel", results=("last_hidden_state",)),
    "dinov3_convnext": Seen(config="DINOv3ConvNextConfig", model="DINOv3ConvNextModel", size=(40, 64), results=BASE,
                            settings={"hidden_sizes": [6, 8, 8, 12], "depths": [1, 2, 1, 1], "image_size": [40, 64]}),
    "mobilenet_v2": Seen(config="MobileNetV2Config", model="MobileNetV2ForImageClassification", size=(37, 40),
                         settings={**CLASSES, **MOBILE, "image_size": [37, 40]}),
    "mobilenet_v2, places": Seen(
        config="MobileNetV2Config", model="MobileNetV2ForSemanticSegmentation", size=(48, 40),
        settings={**CLASSES, **MOBILE, "image_size": [48, 40], "output_stride": 8, "first_layer_is_expansion": False}),
    "mobilenet_v2 base": Seen(config="MobileNetV2Config", model="MobileNetV2Model", size=(33, 40), results=BASE, settings={
        **MOBILE, "image_size": [33, 40], "tf_padding": False, "expand_ratio": 1.7, "finegrained_output": False}),
    "pvt_v2": Seen(config="PvtV2Config", model="PvtV2ForImageClassification", size=(64, 72),
                   settings={**CLASSES, **PYRAMID, "image_size": [64, 72]}),
    "pvt_v2 base, linear": Seen(config="PvtV2Config", model="PvtV2Model", size=(64, 64), results=("last_hidden_state",),
                                settings={**PYRAMID, "image_size": [64, 64], "linear_attention": True, "qkv_bias": False}),
    "timesformer": vit("TimesformerConfig", "TimesformerForVideoClassification", frames=3, settings={"num_frames": 3}),
    "timesformer base, joint": vit("TimesformerConfig", "TimesformerModel", frames=2, results=("last_hidden_state",),
                                   settings={"num_frames": 2, "attention_type": "joint_space_time", "qkv_bias": False}),
    "mobilenet_v1": Seen(config="MobileNetV1Config", model="MobileNetV1ForImageClassification", size=(37, 40),
                         settings={**CLASSES, "depth_multiplier": 0.13, "min_depth": 5, "image_size": [37, 40]}),
    "mobilenet_v1 base": Seen(config="MobileNetV1Config", model="MobileNetV1Model", size=(40, 33), results=BASE, settings={
        "depth_multiplier": 0.1, "image_size": [40, 33], "tf_padding": False, "hidden_act": "relu"}),
    "efficientnet": Seen(config="EfficientNetConfig", model="EfficientNetForImageClassification", size=(37, 48),
                         settings={**CLASSES, **EFFICIENT, "image_size": [37, 48]}),
    "efficientnet base": Seen(
        config="EfficientNetConfig", model="EfficientNetModel", size=(40, 40), results=BASE,
        settings={**EFFICIENT, "image_size": 40, "pooling_type": "max", "hidden_act": "relu", "depth_coefficient": 1.0, "depthwise_padding": [],
                  "width_coefficient": 0.07, "hidden_dim": 88, "squeeze_expansion_ratio": 0.5}),
    "bit": Seen(config="BitConfig", model="BitForImageClassification", size=(45, 40), given={"image": [45, 40]}, settings={**CLASSES, **BIT}),
    "bit base, SAME padding": Seen(
        config="BitConfig", model="BitModel", size=(47, 50), given={"image": [47, 50]}, results=BASE,
        settings=BIT | {"global_padding": "SAME", "embedding_dynamic_padding": True, "hidden_act": "gelu", "output_stride": 16}),
    "bit, bottleneck layers": Seen(
        config="BitConfig", model="BitForImageClassification", size=(48, 40), given={"image": [48, 40]},
        settings={**CLASSES, **BIT, "layer_type": "bottleneck", "output_stride": 4, "depths": [1, 2, 2, 2]}),
    "bit, bottleneck layers, SAME padding": Seen(
        config="BitConfig", model="BitModel", size=(41, 50), given={"image": [41, 50]}, results=BASE,
        settings=BIT | {"layer_type": "bottleneck", "global_padding": "SAME", "output_stride": 8, "num_groups": 2}),
    "cvt": Seen(config="CvtConfig", model="CvtForImageClassification", size=(45, 40), given={"image": [45, 40]}, settings={**CLASSES, **CVT}),
    "cvt base": Seen(config="CvtConfig", model="CvtModel", size=(48, 64), given={"image": [48, 64]}, settings=CVT | {"stride_kv": [1, 2, 1]},
                     results=("last_hidden_state", "cls_token_value")),
    "cvt, other sizes": Seen(
        config="CvtConfig", model="CvtForImageClassification", size=(48, 40), given={"image": [48, 40]},
        settings={**CLASSES, **CVT, "qkv_bias": [False, True, False], "mlp_ratio": [2.5, 1.0, 3.0],
                  "kernel_qkv": [3, 5, 3], "padding_q": [1, 2, 1], "padding_kv": [1, 2, 0]}),
    "cvt, [CLS] in two stages": Seen(
        config="CvtConfig", model="CvtForImageClassification", size=(40, 40), given={"image": 40},
        settings={**CLASSES, **CVT, "embed_dim": [8, 16, 16], "num_heads": [1, 4, 2], "cls_token": [False, True, True], "patch_sizes": [5, 3, 2]}),
    "focalnet": Seen(config="FocalNetConfig", model="FocalNetForImageClassification", size=(33, 40), settings={**CLASSES, **FOCAL, "image_size": [33, 40]}),
    "focalnet base, post-norm": Seen(
        config="FocalNetConfig", model="FocalNetModel", size=(45, 64), results=BASE,
        settings=FOCAL | {"image_size": [45, 64], "use_post_layernorm": True, "use_post_layernorm_in_modulation": True, "normalize_modulator": True,
                          "use_layerscale": True, "use_conv_embed": True, "hidden_act": "relu", "mlp_ratio": 1.5}),
    "focalnet, modulation norm": Seen(
        config="FocalNetConfig", model="FocalNetForImageClassification", size=(32, 48),
        settings={**CLASSES, **FOCAL, "image_size": [32, 48], "use_post_layernorm_in_modulation": True, "use_layerscale": True, "patch_size": 3}),
    "focalnet paints": Seen(config="FocalNetConfig", model="FocalNetForMaskedImageModeling", size=(32, 32), squares=64, results=("reconstruction",),
                            settings=FOCAL | {"image_size": 32, "encoder_stride": 8}),
    "hiera": Seen(config="HieraConfig", model="HieraForImageClassification", size=(32, 64), settings={**CLASSES, **HIERA, "image_size": [32, 64]}),
    "hiera base": Seen(
        config="HieraConfig", model="HieraModel", size=(64, 64), results=BASE,
        settings=HIERA | {"image_size": [64, 64], "hidden_act": "relu", "mlp_ratio": 1.5, "masked_unit_attention": [True, True, True], "num_query_pool": 1,
                          "patch_size": [5, 3], "patch_padding": [2, 1]}),
    "hiera, global attention": Seen(
        config="HieraConfig", model="HieraForImageClassification", size=(64, 32),
        settings={**CLASSES, **HIERA, "image_size": [64, 32], "masked_unit_attention": [False, True, False], "embed_dim_multiplier": 1.5,
                  "num_heads": [2, 3, 2], "masked_unit_size": [4, 8]}),
    "vivit": vit("VivitConfig", "VivitForVideoClassification", frames=4, settings=TUBES),
    "vivit base": vit("VivitConfig", "VivitModel", frames=6, size=(8, 12), results=BASE,
                      settings=OBLONG | TUBES | {"num_frames": 6, "tubelet_size": [3, 2, 4], "qkv_bias": False, "pooler_output_size": 10,
                                                 "pooler_act": "relu", "hidden_act": "gelu"}),
    "levit": Seen(config="LevitConfig", model="LevitForImageClassification", size=(64, 64), settings={**CLASSES, **LEVIT}),
    "levit, teacher": Seen(
        config="LevitConfig", model="LevitForImageClassificationWithTeacher", size=(80, 80),
        results=("logits", "cls_logits", "distillation_logits"),
        settings={**CLASSES, **LEVIT, "image_size": 80, "key_dim": [8, 4, 6], "mlp_ratio": [2, 3, 1], "attention_ratio": [1, 2, 3]}),
    "levit base": Seen(config="LevitConfig", model="LevitModel", size=(48, 48), results=BASE,
                       settings=LEVIT | {"image_size": 48, "patch_size": 16, "kernel_size": 5, "padding": 2, "depths": [1, 2, 1], "mlp_ratio": [0, 2, 2]}),
    "upernet, swin": Seen(
        config="UperNetConfig", model="UperNetForSemanticSegmentation", size=(32, 40), given={"image": [32, 40], "backbone__image": [32, 40]},
        settings={**CLASSES, "hidden_size": 6, "backbone_config": {
            "model_type": "swin", **WINDOWS, "image_size": [32, 40], "depths": [2, 1, 2, 1], "num_heads": [1, 2, 2, 4],
            "out_features": ["stage1", "stage2", "stage3", "stage4"]}}),
    "upernet, convnext": Seen(
        config="UperNetConfig", model="UperNetForSemanticSegmentation", size=(40, 48), given={"image": [40, 48]},
        settings={**CLASSES, "hidden_size": 8, "pool_scales": [1, 2], "auxiliary_num_convs": 2, "backbone_config": {
            "model_type": "convnext", **CONVNEXT, "out_features": ["stage1", "stage2", "stage3", "stage4"]}}),
    "upernet, convnextv2, without an auxiliary head": Seen(
        config="UperNetConfig", model="UperNetForSemanticSegmentation", size=(32, 32), given={"image": 32},
        settings={**CLASSES, "hidden_size": 8, "use_auxiliary_head": False, "backbone_config": {
            "model_type": "convnextv2", **CONVNEXT, "out_features": ["stage1", "stage2", "stage3", "stage4"]}}),
    "mobilevit": Seen(config="MobileViTConfig", model="MobileViTForImageClassification", size=(44, 64),
                      settings={**CLASSES, **MOBILE_VIT, "image_size": [44, 64]}),
    "mobilevit, stride 16": Seen(
        config="MobileViTConfig", model="MobileViTForImageClassification", size=(48, 40),
        settings={**CLASSES, **MOBILE_VIT, "image_size": [48, 40], "output_stride": 16, "patch_size": 3, "qkv_bias": False,
                  "conv_kernel_size": 5, "expand_ratio": 2.5}),
    "mobilevit, places": Seen(
        config="MobileViTConfig", model="MobileViTForSemanticSegmentation", size=(40, 64),
        settings={**CLASSES, **MOBILE_VIT, "image_size": [40, 64], "output_stride": 8, "aspp_out_channels": 6, "atrous_rates": [1, 2, 3]}),
    "mobilevit base": Seen(config="MobileViTConfig", model="MobileViTModel", size=(64, 64), results=BASE,
                           settings={**MOBILE_VIT, "image_size": 64, "mlp_ratio": 1.5, "hidden_act": "relu"}),
    "glpn": Seen(config="GLPNConfig", model="GLPNForDepthEstimation", size=(32, 64), given={"image": [32, 64]}, results=DEPTH,
                 settings=PYRAMID | {"decoder_hidden_size": 12, "max_depth": 7, "sr_ratios": [4, 2, 1, 1]}),
    "glpn, two stages": Seen(config="GLPNConfig", model="GLPNForDepthEstimation", size=(16, 24), given={"image": [16, 24]},
                             results=DEPTH, settings=STAGES | {"head_in_index": 1, "hidden_act": "relu"}),
    "glpn base": Seen(config="GLPNConfig", model="GLPNModel", size=(32, 36), given={"image": [32, 36]},
                      results=("last_hidden_state",), settings=STAGES),
    "dpt": vit("DPTConfig", "DPTForDepthEstimation", settings=DENSE, size=(16, 16), results=DEPTH),
    "dpt, other size": vit("DPTConfig", "DPTForDepthEstimation", size=(32, 32), given={"image": 32}, results=DEPTH,
                           settings=DENSE | {"readout_type": "add", "use_batch_norm_in_fusion_residual": True}),
    "dpt, places": vit("DPTConfig", "DPTForSemanticSegmentation", size=(16, 16),
                       settings=DENSE | {"readout_type": "ignore", "use_batch_norm_in_fusion_residual": True,
                                         "use_bias_in_fusion_residual": True}),
    "dpt base": vit("DPTConfig", "DPTModel", results=BASE, settings={"pooler_output_size": 10, "pooler_act": "relu"}),
    "depth_anything": Seen(config="DepthAnythingConfig", model="DepthAnythingForDepthEstimation", settings=DEPTHS,
                           size=(16, 16), results=DEPTH),
    # a small image: float32 of transformers is up to 1.5e-5 off for larger ones
    "depth_anything, metric": Seen(
        config="DepthAnythingConfig", model="DepthAnythingForDepthEstimation", size=(12, 16), results=DEPTH,
        settings=DEPTHS | {"depth_estimation_type": "metric", "max_depth": 20}, given={"backbone__image": [12, 16]}),
    "vitpose": Seen(config="VitPoseConfig", model="VitPoseForPoseEstimation", settings=POSE, size=(32, 24),
                    results=("heatmaps",)),
    "vitpose, classic": Seen(config="VitPoseConfig", model="VitPoseForPoseEstimation", size=(32, 24), results=("heatmaps",),
                             settings=POSE | {"use_simple_decoder": False}),
    "vitpose, an index from the end": Seen(
        config="VitPoseConfig", model="VitPoseForPoseEstimation", size=(32, 24), results=("heatmaps",),
        settings=POSE | {"backbone_config": POSE["backbone_config"] | {"out_indices": [-1]}}),
    "upernet, swin with absolute positions": Seen(
        config="UperNetConfig", model="UperNetForSemanticSegmentation", size=(32, 40), given={"image": [32, 40]},
        settings={**CLASSES, "hidden_size": 6, "backbone_config": {
            "model_type": "swin", **WINDOWS, "image_size": [32, 40], "depths": [2, 1, 2, 1], "num_heads": [1, 2, 2, 4],
            "use_absolute_embeddings": True, "out_features": ["stage1", "stage2", "stage3", "stage4"]}}),
    "videomae": vit("VideoMAEConfig", "VideoMAEForVideoClassification", settings=VIDEO, frames=4),
    "videomae, first token": vit("VideoMAEConfig", "VideoMAEForVideoClassification", frames=4, size=(8, 12),
                                 settings=VIDEO | OBLONG | {"use_mean_pooling": False, "qv_bias": False}),
    "videomae base": vit("VideoMAEConfig", "VideoMAEModel", settings=VIDEO, frames=4, results=("last_hidden_state",)),
    "videomae paints": vit("VideoMAEConfig", "VideoMAEForPreTraining", settings=VIDEO, frames=4, squares=18, masked=5,
                           given={"num_masked": 5}),
    "vit, incomplete patches": vit("ViTConfig", "ViTForImageClassification", settings=CUT, size=(14, 11)),
    "deit, incomplete patches": vit("DeiTConfig", "DeiTForImageClassification", settings=CUT, size=(14, 11)),
    "dinov2, incomplete patches, stretched": vit("Dinov2Config", "Dinov2ForImageClassification", size=(21, 18),
                                                 settings={"image_size": 13}, given={"image": [21, 18]}),
    "dinov3_vit, incomplete patches": vit("DINOv3ViTConfig", "DINOv3ViTModel", size=(14, 11), results=BASE,
                                          settings=CUT | {"hidden_size": 32}),
    "ijepa, incomplete patches": vit("IJepaConfig", "IJepaForImageClassification", settings=CUT, size=(14, 11)),
    "videomae, incomplete tubes": vit("VideoMAEConfig", "VideoMAEForVideoClassification", frames=5, size=(14, 11),
                                      settings=VIDEO | CUT | {"num_frames": 5}),
    "vivit, incomplete tubes": vit("VivitConfig", "VivitForVideoClassification", frames=5, size=(14, 11),
                                   settings=CUT | TUBES | {"num_frames": 5}),
    "dpt, incomplete patches": vit("DPTConfig", "DPTForDepthEstimation", size=(34, 35), given={"image": [34, 35]}, results=DEPTH,
                                   settings=DENSE | {"image_size": 18}),
    "depth_anything, incomplete patches": Seen(
        config="DepthAnythingConfig", model="DepthAnythingForDepthEstimation", settings=DEPTHS, size=(14, 19), results=DEPTH,
        given={"backbone__image": [14, 19]}),
    "swin, patches of two sizes, padded": Seen(
        config="SwinConfig", model="SwinForImageClassification", size=(13, 20),
        settings=WINDOWS | {"image_size": [13, 20], "patch_size": [2, 3]}),
    "swinv2, padded": Seen(config="Swinv2Config", model="Swinv2Model", size=(23, 27), results=BASE,
                           settings=WINDOWS | {"image_size": [23, 27], "window_size": 4}),
    "convnext, oblong image and patches": Seen(
        config="ConvNextConfig", model="ConvNextForImageClassification", size=(17, 30),
        settings=CONVNEXT | {"image_size": [17, 30], "patch_size": [2, 3]}),
    "focalnet, patches of two sizes": Seen(
        config="FocalNetConfig", model="FocalNetForImageClassification", size=(33, 40),
        settings={**CLASSES, **FOCAL, "image_size": [33, 40], "patch_size": [2, 3]}),
    "upernet, patches of two sizes": Seen(
        config="UperNetConfig", model="UperNetForSemanticSegmentation", size=(33, 50), given={"image": [33, 50], "backbone__image": [33, 50]},
        settings={**CLASSES, "hidden_size": 6, "backbone_config": {
            "model_type": "swin", **WINDOWS, "image_size": [33, 50], "patch_size": [2, 4], "depths": [2, 1, 2, 1], "num_heads": [1, 2, 2, 4],
            "out_features": ["stage1", "stage2", "stage3", "stage4"]}}),
    "segformer": Seen(config="SegformerConfig", model="SegformerForSemanticSegmentation",
                      settings=STAGES, size=(32, 48), given={"image": [32, 48]}),
    "segformer, odd": Seen(config="SegformerConfig", model="SegformerForSemanticSegmentation",
                           settings=STAGES | {"hidden_act": "relu"}, size=(68, 72),
                           given={"image": [68, 72]}),
    "segformer, smaller than its usual squares": Seen(
        config="SegformerConfig", model="SegformerModel", settings=STAGES, size=(16, 20),
        given={"image": [16, 20]}, results=("last_hidden_state",)),
    "segformer, classes": Seen(config="SegformerConfig", model="SegformerForImageClassification",
                               settings=STAGES, size=(32, 32), given={"image": 32}),
    "segformer base": Seen(config="SegformerConfig", model="SegformerModel", settings=STAGES,
                           size=(32, 32), given={"image": 32}, results=("last_hidden_state",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_scores(case: Seen, tmp_path: Path) -> None:
    config = getattr(transformers, case.config)(**case.settings)
    theirs = randomize_weights(getattr(transformers, case.model)(config)).eval()
    source = torch.Generator().manual_seed(0)
    for module in theirs.modules():
        if isinstance(
            module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d
        ):  # statistics of a fresh model say nothing
            module.running_mean.normal_(generator=source)
            module.running_var.uniform_(0.5, 2.0, generator=source)
    theirs.save_pretrained(tmp_path)
    ours = [open_weighted_spec(str(tmp_path), tmp_path, **case.given)]
    if case.model == "ViTMSNForImageClassification":
        add_vit_prefix(tmp_path)
        ours.append(open_weighted_spec(str(tmp_path), tmp_path, **case.given))
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(**x)
        return {name: made[name] for name in case.results}

    named = dict.fromkeys(case.results, "")
    for spec in ours:
        assert_matches_float32(spec, case.samples, published, named)


def add_vit_prefix(folder: Path) -> None:
    """Name the encoder layers as published files of ViT-MSN do: transformers 5.24 saves them
    without `vit.`, next to other tensors with it.
    """
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    renamed = {re.sub(r"^encoder\.", "vit.encoder.", name): x for name, x in tensors.items()}
    safetensors.torch.save_file(renamed, folder / "model.safetensors")


DETR: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "num_queries": 5,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "id2label": {0: "a", 1: "b", 2: "c"},
}
WIDER = {"d_model": 64, "encoder_attention_heads": 8, "num_queries": 3}
"""The head that paints masks shares out its channels by eight, and has a sixteenth of
them in the end."""
TIMM = [
    (r"embedder\.embedder\.convolution", "conv1"),
    (r"embedder\.embedder\.normalization", "bn1"),
    (r"encoder\.stages\.(\d)\.layers\.(\d)\.", lambda m: f"layer{int(m[1]) + 1}.{m[2]}."),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"(?<=\d\.)layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}"),
    (r"(?<=\d\.)layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}"),
]
"""The names of the same tensors in timm's ResNets, which older files have."""


def as_timm(directory: Path, backbone: str = "resnet50") -> None:
    """Rename the tensors of a model as if its ResNet were timm's."""
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    renamed = {}
    for name, value in tensors.items():
        head, prefix, inner = name.partition("conv_encoder.model.")
        for old, new in TIMM if prefix else ():
            inner = re.sub(old, new, inner)
        renamed[head + prefix + inner] = value
    safetensors.torch.save_file(renamed, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config |= {"backbone": backbone, "use_timm_backbone": True, "backbone_config": None}
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("model", "form", "stem"),
    [
        *itertools.product(
            ["DetrForObjectDetection", "DetrForSegmentation", "DetrModel"], ["resnet", "timm"], [6]
        ),
        # as wide as the first stage, which has no map beside its first layer then
        ("DetrModel", "resnet", 8),
        ("DetrModel", "timm", 8),
    ],
)
def test_detr(model: str, form: str, stem: int, tmp_path: Path) -> None:
    stages = range(1, 5) if model == "DetrForSegmentation" else (4,)
    backbone = transformers.ResNetConfig(
        **RESNET | {"embedding_size": stem}, out_features=[f"stage{n}" for n in stages]
    )
    wide = WIDER if model == "DetrForSegmentation" else {}
    config = transformers.DetrConfig(**DETR | wide, backbone_config=backbone)
    theirs = randomize_weights(getattr(transformers, model)(config)).eval()
    source = torch.Generator().manual_seed(0)
    for name, numbers in theirs.named_buffers():
        if name.endswith("running_mean"):
            numbers.normal_(generator=source)
        elif name.endswith("running_var"):
            numbers.uniform_(0.5, 2.0, generator=source)
    theirs.save_pretrained(tmp_path)
    given: dict[str, object] = {"image": [64, 96]}
    if form == "timm":
        as_timm(tmp_path)
        sizes = {"depths": [1, 2, 1, 1], "widths": [8, 12, 12, 16], "stem_width": stem}
        given |= {f"backbone.{name}": size for name, size in sizes.items()}
    ours = open_weighted_spec(str(tmp_path), tmp_path, **given)
    theirs.double()
    names = {
        "DetrModel": ("last_hidden_state", "encoder_last_hidden_state"),
        "DetrForSegmentation": ("logits", "pred_boxes", "pred_masks"),
    }
    results = names.get(model, ("logits", "pred_boxes"))

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(x["pixel_values"], pixel_mask=x["pixel_mask"].long())
        return {name: made[name] for name in results}

    sizes = {"pixel_values": FixedValues((3, 64, 96)), "pixel_mask": FixedValues((64, 96))}
    pictures = make_samples(sizes, {})
    # what lies around a picture is random: only the mask tells
    for row, (high, wide) in zip(pictures.rows, ((40, 96), (64, 96), (64, 50)), strict=True):
        row["pixel_mask"] = np.zeros((64, 96), bool)
        row["pixel_mask"][:high, :wide] = True
    assert_matches_float32(ours, pictures, published, dict.fromkeys(results, ""))


def test_table_transformer_with_resnet18_of_timm(tmp_path: Path) -> None:
    """The config.json of published files has nothing of the backbone but its name."""
    backbone = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", out_features=["stage4"]
    )  # fmt: skip
    config = transformers.TableTransformerConfig(**DETR, backbone_config=backbone)
    theirs = randomize_weights(transformers.TableTransformerForObjectDetection(config)).eval()
    randomize_statistics(theirs)
    theirs.save_pretrained(tmp_path)
    as_timm(tmp_path, "resnet18")
    ours = open_weighted_spec(str(tmp_path), tmp_path, image=[64, 96])
    theirs.double()
    sizes = {"pixel_values": FixedValues((3, 64, 96)), "pixel_mask": FixedValues((64, 96))}
    pictures = make_samples(sizes, {})
    for row in pictures.rows:
        row["pixel_mask"] = np.ones((64, 96), bool)

    def published(x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(x["pixel_values"], pixel_mask=x["pixel_mask"].long())
        return {"logits": made.logits, "pred_boxes": made.pred_boxes}

    assert_matches_float32(ours, pictures, published, {"logits": "", "pred_boxes": ""})


SIZES = [(48, 90), (64, 64), (70, 50)]
"""Of pictures: wide, square, and one that is taller than wide."""


@pytest.mark.parametrize("family", ["Detr", "Yolos"])
def test_images_of_several_sizes_in_a_batch(family: str, tmp_path: Path) -> None:
    """Preprocessed by the processor next to the weights, in a frame that holds all of them."""
    from PIL import Image

    if family == "Detr":
        backbone = transformers.ResNetConfig(**RESNET, out_features=["stage4"])
        config = transformers.DetrConfig(**DETR, backbone_config=backbone)
    else:
        config = transformers.YolosConfig(
            **SMALL | {"image_size": [96, 96], "patch_size": 16, "num_detection_tokens": 3}
        )
    kind = getattr(transformers, f"{family}ForObjectDetection")
    theirs = randomize_weights(kind(config)).eval()
    theirs.save_pretrained(tmp_path)
    processor = getattr(transformers, f"{family}ImageProcessorPil")(
        size={"shortest_edge": 64, "longest_edge": 96}
    )
    processor.save_pretrained(tmp_path)
    drawn = np.random.default_rng(0)
    pictures = [Image.fromarray(drawn.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
    given = processor(pictures, return_tensors="pt", pad_size={"height": 96, "width": 96})
    specc.compile(str(tmp_path), tmp_path / "m.onnx", set={"image": [96, 96]})
    ours = specc.load(tmp_path / "m.onnx").run(pixel_values=pictures)
    told = {"pixel_values": given["pixel_values"].double()}
    if family == "Detr":  # the other one looks at what is around a picture, too
        told["pixel_mask"] = given["pixel_mask"]
    with torch.no_grad():
        wanted = theirs.double()(**told)
    for name in ("logits", "pred_boxes"):
        assert_arrays_close(ours[name], wanted[name].numpy(), name, 2e-5)


def test_image_classification(tmp_path: Path) -> None:
    """From a directory with a `preprocessor_config.json`, with the preprocessing of the command
    line.
    """
    config = transformers.DeiTConfig(**SMALL)
    model = randomize_weights(transformers.DeiTForImageClassification(config)).eval()
    model.save_pretrained(tmp_path)
    processor = transformers.DeiTImageProcessorPil(
        size={"height": 14, "width": 14}, crop_size={"height": 12, "width": 12}
    )
    processor.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "m.onnx")
    picture = np.random.default_rng(0).integers(0, 256, (30, 20, 3), np.uint8)
    from PIL import Image

    Image.fromarray(picture).save(tmp_path / "p.png")
    ours = specc.load(tmp_path / "m.onnx").run(pixel_values=Image.open(tmp_path / "p.png"))
    given = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        wanted = model.double()(given.double()).logits.numpy()
    np.testing.assert_allclose(ours["logits"], wanted, rtol=2e-5, atol=2e-5)
