"""Smallest configurations of transformers' vision and multimodal models, for
`support.hf_output_recorder`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from support.hf_cases import VOCAB, ModelCase
from support.hf_text_cases import RecordedCase
from support.padded_batches import (
    FixedValues,
    PaddingMask,
    PositionValues,
    Samples,
    TokenIds,
    make_samples,
)

VISION_SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "image_size": 8,
    "patch_size": 4, "num_labels": 3,
}  # fmt: skip
SEGFORMER_SIZES: dict[str, Any] = {
    "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 12], "sr_ratios": [2, 1], "patch_sizes": [7, 3],
    "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 10, "num_labels": 3,
}  # fmt: skip
NECK_SIZES: dict[str, Any] = {
    "reassemble_factors": [2, 1],
    "neck_hidden_sizes": [4, 6],
    "fusion_hidden_size": 4,
}
RESNET_SIZES: dict[str, Any] = {
    "embedding_size": 4,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "num_labels": 3,
}


def round_pixels(samples: Samples) -> Samples:
    """Round pixels to multiples of 0.5, which compress well, and mark every pixel as valid."""
    for row in samples.rows:
        row["pixel_values"] = np.round(2 * row["pixel_values"]) / np.float32(2)
        if "pixel_mask" in row:
            row["pixel_mask"] = np.ones(row["pixel_mask"].shape, bool)
    return samples


def make_vision_case(
    family: str,
    head: str = "ForImageClassification",
    *,
    size: int = 8,
    boxes: bool = False,
    results: str = "logits",
    frames: int = 0,
    channels: int = 3,
    **more: Any,
) -> RecordedCase:
    """Return the case of a class whose input is an image, or a video of `frames` frames."""
    pixels = (frames, channels, size, size) if frames else (channels, size, size)
    case = ModelCase(
        config=f"{family}Config",
        model=f"{family}{head}",
        tiny=more,
        results={"logits": "", "pred_boxes": ""} if boxes else {results: ""},
        samples=round_pixels(make_samples({"pixel_values": FixedValues(pixels)}, {})),
    )
    return RecordedCase(case=case)


def make_timm_case(architecture: str, size: int, **model_args: Any) -> RecordedCase:
    """Return the case of a network of timm; only recording it needs timm."""
    return make_vision_case(
        "TimmWrapper", size=size, architecture=architecture, model_args=model_args, num_labels=3,
        pretrained_cfg={"input_size": [3, size, size]},
    )  # fmt: skip


def add_point_labels(samples: Samples) -> Samples:
    """Set the labels of two points: one on the object and one off it."""
    for row in samples.rows:
        row["input_labels"] = np.array([[1, 0]])
    return round_pixels(samples)


def set_phrase_ends(samples: Samples) -> Samples:
    """Make each text a phrase that ends with a period, between [CLS] and [SEP]."""
    for row in samples.rows:
        row["input_ids"][0], row["input_ids"][-2:] = 101, (1012, 102)
    return round_pixels(samples)


TOWER_SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
CLIP_SIZES: dict[str, Any] = {
    "text_config": {**TOWER_SIZES, "vocab_size": VOCAB, "max_position_embeddings": 12, "eos_token_id": 30, "bos_token_id": 0,
                    "pad_token_id": 1},
    "vision_config": {**TOWER_SIZES, "image_size": 8, "patch_size": 4},
    "projection_dim": 12,
}  # fmt: skip


def set_end_token(samples: Samples, end: int) -> Samples:
    """Replace the last token by `end`, which occurs nowhere else."""
    for row in samples.rows:
        row["input_ids"][-1] = end
    return samples


IMAGE_TEXT_SAMPLES = set_end_token(
    make_samples(
        {
            "input_ids": TokenIds("seq", 30),
            "attention_mask": PaddingMask("seq"),
            "pixel_values": FixedValues((3, 8, 8)),
        },
        {"seq": (7, 2, 4)},
    ),
    30,
)


class FlatImagesCase(ModelCase):
    """A class that gets the images of all sequences concatenated."""

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        outputs = hf_model(
            input_ids=x["input_ids"],
            attention_mask=x["attention_mask"].long(),
            pixel_values=x["pixel_values"][x["image_mask"]],
            **self.extra_inputs(x),
        )
        return {name: outputs[name] for name in self.results}

    def extra_inputs(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return further inputs of the class."""
        return {}


class TokenTypesCase(FlatImagesCase):
    """A class that gets the image tokens as token types."""

    def extra_inputs(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"token_type_ids": (x["input_ids"] == 30).long()}


def insert_image_tokens(positions: Sequence[Sequence[int]], image_token: int) -> Samples:
    """Return sequences with image tokens, four per image, at these positions."""
    samples = make_samples(
        {
            "input_ids": TokenIds("seq", image_token),
            "attention_mask": PaddingMask("seq"),
            "pixel_values": PositionValues("images", (3, 8, 8)),
            "image_mask": PaddingMask("images"),
        },
        {"seq": (11, 6, 7), "images": tuple(len(row) // 4 for row in positions)},
    )
    for row, places in zip(samples.rows, positions, strict=True):
        row["input_ids"][[*places]] = image_token
    return samples


class AnyResolutionCase(ModelCase):
    """A class that gets the patches of all images concatenated."""

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        inputs = {name: x[name].flatten(0, 1) for name in ("pixel_values", "image_grid_thw")}
        text = {name: x[name].long() for name in ("input_ids", "attention_mask")}
        kinds = (x["input_ids"] == IMAGE_TOKEN).int()
        outputs = hf_model(**text, **inputs, mm_token_type_ids=kinds)
        return {name: outputs[name] for name in self.results}


IMAGE_TOKEN = 30
MROPE_SIZES: dict[str, Any] = {
    **TOWER_SIZES, "vocab_size": VOCAB, "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                                                              "mrope_section": [2, 1, 1]},
}  # fmt: skip
PATCH_SIZES: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 1, "in_channels": 1}


def make_any_resolution_case(
    family: str, text: Mapping[str, Any] = {}, **vision: Any
) -> RecordedCase:
    """Return the case of three sequences with two images each, 12 patches in total."""
    samples = make_samples(
        {
            "input_ids": TokenIds("seq", 26),
            "attention_mask": PaddingMask("seq"),
            "pixel_values": FixedValues((12, 2)),
            "image_grid_thw": FixedValues((2, 3)),
        },
        {"seq": (9, 6, 7)},
    )
    for row, sides in zip(samples.rows, ((2, 4, 2, 2), (4, 2, 2, 2), (2, 2, 2, 4)), strict=True):
        row["image_grid_thw"] = np.insert(np.reshape(sides, (2, 2)), 0, 1, axis=1)
        first = sides[0] * sides[1] // 4
        row["input_ids"][1 : 1 + first] = IMAGE_TOKEN
        row["input_ids"][2 + first : 5] = IMAGE_TOKEN
    case = AnyResolutionCase(
        config=f"{family}Config", model=f"{family}ForConditionalGeneration", sides=("left", "right"),
        tiny={
            "text_config": {**MROPE_SIZES, **text}, "vision_config": {**PATCH_SIZES, **vision},
            "image_token_id": IMAGE_TOKEN, "video_token_id": 29, "vision_start_token_id": 28, "vision_end_token_id": 27,
        },
        samples=round_pixels(samples),
    )  # fmt: skip
    return RecordedCase(case=case)


DETR_SIZES: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 8, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 12, "decoder_ffn_dim": 10, "num_queries": 2, "use_timm_backbone": False,
    "use_pretrained_backbone": False, "backbone": None, "id2label": {0: "a", 1: "b"},
    "backbone_config": {"model_type": "resnet", "depths": [1, 1, 1, 1], "hidden_sizes": [8, 12, 12, 16],
                        "embedding_size": 6, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
}  # fmt: skip
DETR_SAMPLES = round_pixels(
    make_samples(
        {"pixel_values": FixedValues((3, 32, 32)), "pixel_mask": FixedValues((32, 32))}, {}
    )
)
PHRASE_SAMPLES = set_phrase_ends(
    make_samples(
        {
            "input_ids": TokenIds("seq", 100),
            "token_type_ids": TokenIds("seq", 2),
            "attention_mask": PaddingMask("seq"),
            "pixel_values": FixedValues((1, 40, 40)),
            "pixel_mask": FixedValues((40, 40)),
        },
        {"seq": (7, 3, 5)},
    )
)
GROUNDING_SIZES: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "num_queries": 3, "encoder_n_points": 1, "decoder_n_points": 1,
    "num_feature_levels": 1, "max_text_len": 8,
    "backbone_config": {"model_type": "swin", "image_size": 32, "num_channels": 1, "embed_dim": 4, "depths": [1, 1, 1, 1],
                        "num_heads": [1, 1, 1, 1], "window_size": 2, "out_indices": [4]},
    "text_config": {**TOWER_SIZES, "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 1030, "max_position_embeddings": 8},
}  # fmt: skip
DONUT_SIZES: dict[str, Any] = {
    "encoder": {"model_type": "donut-swin", "image_size": [8, 12], "patch_size": 2, "embed_dim": 8, "depths": [2, 1],
                "num_heads": [2, 4], "window_size": 2},
    "decoder": {"model_type": "mbart", "vocab_size": VOCAB, "d_model": 16, "decoder_layers": 2,
                "decoder_attention_heads": 2, "decoder_ffn_dim": 20, "max_position_embeddings": 20,
                "is_decoder": True, "add_cross_attention": True, "is_encoder_decoder": False},
    "decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "timm_vit": make_timm_case(
        "deit_tiny_distilled_patch16_224", 32, embed_dim=8, depth=1, num_heads=2, img_size=32
    ),
    "timm_resnet": make_timm_case("resnet18", 32, layers=[1, 1, 1, 1], channels=[4, 4, 6, 8]),
    "timm_convnext": make_timm_case("convnext_tiny", 32, depths=[1, 1, 1, 1], dims=[4, 4, 6, 8]),
    "vit": make_vision_case("ViT", **VISION_SIZES),
    "deit": make_vision_case("DeiT", **VISION_SIZES),
    "beit": make_vision_case("Beit", use_relative_position_bias=True, **VISION_SIZES),
    "dinov2": make_vision_case("Dinov2", **VISION_SIZES, mlp_ratio=2),
    "yolos": make_vision_case(
        "Yolos", "ForObjectDetection", boxes=True, **{**VISION_SIZES, "image_size": [8, 8], "num_detection_tokens": 2}
    ),
    "segformer": replace(
        make_vision_case("Segformer", "ForSemanticSegmentation", size=32, **SEGFORMER_SIZES), sets={"image": 32}
    ),
    "swinv2": make_vision_case(
        "Swinv2", size=16, image_size=16, patch_size=2, embed_dim=4, depths=[1, 1], num_heads=[1, 1],
        window_size=4, num_labels=3,
    ),
    "swin": make_vision_case(
        "Swin", size=16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4],
        window_size=4, num_labels=3,
    ),
    "convnext": make_vision_case(
        "ConvNext", size=16, image_size=16, patch_size=2, hidden_sizes=[6, 8], depths=[1, 1],
        num_stages=2, num_labels=3,
    ),
    "convnextv2": make_vision_case(
        "ConvNextV2", size=16, image_size=16, patch_size=2, hidden_sizes=[6, 8], depths=[1, 1],
        num_stages=2, num_labels=3,
    ),
    "vit_msn": make_vision_case("ViTMSN", "Model", results="last_hidden_state", **VISION_SIZES),
    "data2vec-vision": make_vision_case("Data2VecVision", **VISION_SIZES),
    "dinov3_convnext": make_vision_case(
        "DINOv3ConvNext", "Model", results="pooler_output", size=16, image_size=16, hidden_sizes=[4, 6], depths=[1, 1]
    ),
    "pvt_v2": make_vision_case(
        "PvtV2", size=24, channels=1, num_channels=1, image_size=[24, 24], num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[4, 6],
        num_attention_heads=[1, 2], sr_ratios=[2, 1], mlp_ratios=[2, 2], patch_sizes=[7, 3], strides=[4, 2], num_labels=3,
    ),
    "timesformer": make_vision_case("Timesformer", "ForVideoClassification", frames=2, **VISION_SIZES, num_frames=2),
    "bit": replace(
        make_vision_case("Bit", size=16, channels=1, num_channels=1, embedding_size=4, hidden_sizes=[8, 8], depths=[1, 1], num_groups=2, num_labels=3),
        sets={"image": 16},
    ),
    "cvt": replace(
        make_vision_case(
            "Cvt", size=16, channels=1, num_channels=1, embed_dim=[4, 6], num_heads=[1, 2], depth=[1, 2], cls_token=[False, True], num_labels=3,
        ),
        sets={"image": 16},
    ),
    "focalnet": make_vision_case(
        "FocalNet", size=8, channels=1, num_channels=1, image_size=8, patch_size=2, embed_dim=4, depths=[1, 1], focal_levels=[1, 2],
        focal_windows=[3, 3], num_labels=3,
    ),
    "hiera": make_vision_case(
        "Hiera", size=16, channels=1, num_channels=1, image_size=[16, 16], patch_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], embed_dim=4,
        depths=[1, 2], num_heads=[1, 2], masked_unit_size=[4, 4], masked_unit_attention=[True, False], num_query_pool=1, num_labels=3,
    ),
    "vivit": make_vision_case(
        "Vivit", "ForVideoClassification", frames=2, **VISION_SIZES | {"hidden_size": 8, "intermediate_size": 10}, num_frames=2, tubelet_size=[2, 4, 4],
    ),
    "levit": make_vision_case(
        "Levit", size=32, channels=1, num_channels=1, image_size=32, hidden_sizes=[8, 8, 12], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
        key_dim=[4, 4, 4], num_labels=3,
    ),
    "mobilenet_v1": make_vision_case(
        "MobileNetV1", size=32, channels=1, num_channels=1, image_size=32, depth_multiplier=0.02, min_depth=2, num_labels=3,
    ),
    "mobilevit": make_vision_case(
        "MobileViT", size=32, channels=1, num_channels=1, image_size=32, hidden_sizes=[2, 4, 4], neck_hidden_sizes=[2, 2, 2, 2, 2, 2, 4],
        num_attention_heads=2, expand_ratio=1.0, num_labels=3,
    ),
    "efficientnet": make_vision_case(
        "EfficientNet", size=32, channels=1, num_channels=1, image_size=32, width_coefficient=0.02, depth_coefficient=1.0, depth_divisor=2,
        kernel_sizes=[3, 5], in_channels=[32, 80], out_channels=[80, 120], strides=[1, 2], num_block_repeats=[1, 2], expand_ratios=[1, 2],
        hidden_dim=26, num_labels=3,
    ),
    "glpn": replace(
        make_vision_case(
            "GLPN", "ForDepthEstimation", size=16, results="predicted_depth",
            **{key: value for key, value in SEGFORMER_SIZES.items() if key not in ("decoder_hidden_size", "num_labels")}, decoder_hidden_size=8,
        ),
        sets={"image": 16},
    ),
    "mobilenet_v2": make_vision_case(
        "MobileNetV2", size=32, channels=1, num_channels=1, image_size=32, depth_multiplier=0.1, depth_divisible_by=2, min_depth=2,
        expand_ratio=2.0, num_labels=3,
    ),
    "resnet": replace(make_vision_case("ResNet", size=24, **RESNET_SIZES), sets={"image": 24}),
    "regnet": replace(make_vision_case("RegNet", size=16, **RESNET_SIZES, groups_width=4), sets={"image": 16}),
    "poolformer": replace(
        make_vision_case("PoolFormer", size=16, hidden_sizes=[6, 8], depths=[1, 1], num_encoder_blocks=2, num_labels=3),
        sets={"image": 16},
    ),
    "ijepa": make_vision_case("IJepa", **VISION_SIZES),
    "vitpose": make_vision_case(
        "VitPose", "ForPoseEstimation", results="heatmaps", size=16, num_labels=2,
        backbone_config={"model_type": "vitpose_backbone", **VISION_SIZES, "image_size": [16, 16], "patch_size": [8, 8],
                         "out_indices": [2]},
    ),
    "videomae": make_vision_case("VideoMAE", "ForVideoClassification", frames=2, **VISION_SIZES, num_frames=2),
    "dpt": make_vision_case("DPT", "ForDepthEstimation", results="predicted_depth", **VISION_SIZES, **NECK_SIZES, backbone_out_indices=[0, 1]),
    "depth_anything": make_vision_case(
        "DepthAnything", "ForDepthEstimation", results="predicted_depth", **NECK_SIZES, patch_size=4, head_hidden_size=4, reassemble_hidden_size=16,
        backbone_config={"model_type": "dinov2", **VISION_SIZES, "mlp_ratio": 2, "out_indices": [1, 2],
                         "reshape_hidden_states": False},
    ),
    "beit, places": make_vision_case(
        "Beit", "ForSemanticSegmentation", size=16, use_relative_position_bias=True, out_indices=[1, 2, 3, 4],
        pool_scales=[1, 2], **VISION_SIZES | {"image_size": 16, "num_hidden_layers": 4},
    ),
    "detr, masks": RecordedCase(
        case=ModelCase(
            config="DetrConfig", model="DetrForSegmentation", tiny=DETR_SIZES,
            samples=DETR_SAMPLES,
            results={"logits": "", "pred_boxes": "", "pred_masks": ""},
        ),
        sets={"image": [32, 32]},
    ),
    "dinov3_vit": RecordedCase(
        case=ModelCase(
            config="DINOv3ViTConfig", model="DINOv3ViTModel", tiny={**VISION_SIZES, "num_attention_heads": 4, "hidden_size": 32},
            samples=make_samples({"pixel_values": FixedValues((3, 8, 8))}, {}),
            results={"last_hidden_state": "", "pooler_output": ""},
        )
    ),
    "siglip, pictures": RecordedCase(
        case=ModelCase(
            config="SiglipVisionConfig", model="SiglipVisionModel", tiny={**TOWER_SIZES, "image_size": 8, "patch_size": 4},
            samples=make_samples({"pixel_values": FixedValues((3, 8, 8))}, {}),
            results={"last_hidden_state": "", "pooler_output": ""},
        )
    ),
    "clip": RecordedCase(
        case=ModelCase(
            config="CLIPConfig",
            model="CLIPModel",
            tiny=CLIP_SIZES,
            samples=IMAGE_TEXT_SAMPLES,
            results={"text_embeds": "", "image_embeds": ""},
        )
    ),
    "rt_detr": replace(
        make_vision_case("RTDetr", "ForObjectDetection", size=32, boxes=True, d_model=8, encoder_hidden_dim=8, encoder_ffn_dim=10,
               encoder_in_channels=[6, 6, 8], decoder_in_channels=[8, 8, 8], encoder_attention_heads=2, decoder_layers=1,
               decoder_attention_heads=2, decoder_ffn_dim=10, num_queries=3, decoder_n_points=1, hidden_expansion=0.5,
               num_labels=2, backbone_config={"model_type": "rt_detr_resnet", "depths": [1, 1, 1, 1], "embedding_size": 4,
                                              "hidden_sizes": [4, 6, 6, 8], "layer_type": "basic", "out_indices": [2, 3, 4]}),
        sets={"image": 32},
    ),
    "mask2former": make_vision_case(
        "Mask2Former", "ForUniversalSegmentation", results="class_queries_logits", size=40, channels=1, feature_size=32, mask_feature_size=4,
        hidden_dim=8, encoder_feedforward_dim=8, encoder_layers=1, decoder_layers=4, num_attention_heads=2, dim_feedforward=8,
        num_queries=2, num_labels=2,
        backbone_config={"model_type": "swin", "image_size": 40, "num_channels": 1, "embed_dim": 4, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1],
                         "window_size": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
    ),
    "sam": RecordedCase(
        case=ModelCase(
            config="SamConfig", model="SamModel",
            tiny={
                "vision_config": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
                                  "patch_size": 4, "mlp_dim": 12, "window_size": 2, "global_attn_indexes": [1],
                                  "output_channels": 8, "num_pos_feats": 4},
                "prompt_encoder_config": {"hidden_size": 8, "image_size": 8, "patch_size": 4},
                "mask_decoder_config": {"hidden_size": 8, "mlp_dim": 10, "num_attention_heads": 2, "iou_head_hidden_dim": 6,
                                        "num_hidden_layers": 1},
            },
            samples=add_point_labels(
                make_samples({"pixel_values": FixedValues((3, 8, 8)), "input_points": FixedValues((1, 2, 2)), "input_labels": FixedValues((1, 2))}, {})
            ),
            results={"iou_scores": "", "pred_masks": ""},
        )
    ),
    "deformable_detr": RecordedCase(
        case=ModelCase(
            config="DeformableDetrConfig", model="DeformableDetrForObjectDetection",
            tiny=DETR_SIZES | {"d_model": 32, "decoder_layers": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
                            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_n_points": 1, "decoder_n_points": 1,
                            "num_feature_levels": 1, "num_channels": 1,
                            "backbone_config": {**DETR_SIZES["backbone_config"], "num_channels": 1, "out_features": ["stage4"]}},
            samples=round_pixels(make_samples({"pixel_values": FixedValues((1, 40, 40)), "pixel_mask": FixedValues((40, 40))}, {})),
            results={"logits": "", "pred_boxes": ""},
        ),
        sets={"image": [40, 40]},
    ),
    **{
        model_type: RecordedCase(
            case=ModelCase(
                config=f"{family}Config", model=f"{family}ForObjectDetection", tiny=GROUNDING_SIZES, samples=PHRASE_SAMPLES,
                results={"pred_boxes": ""},
            ),
            sets={"image": [40, 40]},
        )
        for model_type, family in (("grounding-dino", "GroundingDino"), ("mm-grounding-dino", "MMGroundingDino"))
    },
    "owlvit": RecordedCase(
        case=ModelCase(
            config="OwlViTConfig", model="OwlViTForObjectDetection", tiny={**CLIP_SIZES, "projection_dim": 16}, samples=IMAGE_TEXT_SAMPLES,
            results={"pred_boxes": "", "class_embeds": "", "text_embeds": ""},
        )
    ),
    "table-transformer": RecordedCase(
        case=ModelCase(
            config="TableTransformerConfig", model="TableTransformerForObjectDetection", tiny=DETR_SIZES | {"d_model": 16},
            samples=DETR_SAMPLES, results={"logits": "", "pred_boxes": ""},
        ),
        sets={"image": [32, 32]},
    ),
    "conditional_detr": RecordedCase(
        case=ModelCase(
            config="ConditionalDetrConfig", model="ConditionalDetrForObjectDetection", tiny=DETR_SIZES | {"d_model": 16},
            samples=DETR_SAMPLES, results={"logits": "", "pred_boxes": ""},
        ),
        sets={"image": [32, 32]},
    ),
    "llava": RecordedCase(
        case=FlatImagesCase(
            config="LlavaConfig", model="LlavaForConditionalGeneration", sides=("left", "right"),
            tiny={
                "text_config": {**TOWER_SIZES, "model_type": "llama", "num_key_value_heads": 1, "vocab_size": VOCAB},
                "vision_config": {**TOWER_SIZES, "model_type": "clip_vision_model", "image_size": 8, "patch_size": 4},
                "image_token_index": 30,
            },
            samples=insert_image_tokens([[1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 3, 4], [0, 2, 3, 6]], 30),
            results={"logits": "seq"},
        )
    ),
    "qwen2_vl": make_any_resolution_case("Qwen2VL", embed_dim=16, hidden_size=16, mlp_ratio=2),
    "qwen2_5_vl": make_any_resolution_case(
        "Qwen2_5_VL", hidden_size=16, intermediate_size=20, out_hidden_size=16, window_size=2, fullatt_block_indexes=[1],
    ),
    "gemma3": RecordedCase(
        case=TokenTypesCase(
            config="Gemma3Config", model="Gemma3ForConditionalGeneration", sides=("left", "right"),
            tiny={
                "text_config": {**TOWER_SIZES, "model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 1,
                                "vocab_size": VOCAB, "sliding_window": 5,
                                "layer_types": ["sliding_attention", "full_attention"]},
                "vision_config": {**TOWER_SIZES, "model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4,
                                  "vision_use_head": False},
                "image_token_index": 30, "mm_tokens_per_image": 4,
            },
            samples=insert_image_tokens([[1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 3, 4], [0, 1, 2, 3]], 30),
            results={"logits": "seq"},
        )
    ),
    "donut": RecordedCase(
        case=ModelCase(
            config="VisionEncoderDecoderConfig", model="VisionEncoderDecoderModel", tiny=DONUT_SIZES,
            samples=make_samples(
                {"pixel_values": FixedValues((3, 8, 12)), "target": TokenIds("tgt", VOCAB), "target_keep": PaddingMask("tgt")},
                {"tgt": (5, 1, 3)},
            ),
            renamed={"target": "decoder_input_ids", "target_keep": "decoder_attention_mask"},
            results={"logits": "tgt"},
        ),
        computed="relative_position_index",
    ),
}  # fmt: skip
