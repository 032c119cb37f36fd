"""What is asked of classes that see, for `support.keep_answers`: the smallest checkpoint of
each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from support.families import VOCAB, Case
from support.kept_texts import Asked
from support.padded import Each, Ids, Keep, Numbers, Samples, samples

SEEN: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "image_size": 8,
    "patch_size": 4, "num_labels": 3,
}  # fmt: skip
STAGES: dict[str, Any] = {
    "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 12], "sr_ratios": [2, 1], "patch_sizes": [7, 3],
    "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 10, "num_labels": 3,
}  # fmt: skip
NECK: dict[str, Any] = {
    "reassemble_factors": [2, 1],
    "neck_hidden_sizes": [4, 6],
    "fusion_hidden_size": 4,
}
RESNET: dict[str, Any] = {
    "embedding_size": 4,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "num_labels": 3,
}


def coarse(given: Samples) -> Samples:
    """Round pixels to multiples of 0.5, which compress well, and mark every pixel as valid."""
    for row in given.rows:
        row["pixel_values"] = np.round(2 * row["pixel_values"]) / np.float32(2)
        if "pixel_mask" in row:
            row["pixel_mask"] = np.ones(row["pixel_mask"].shape, bool)
    return given


def seeing(
    family: str,
    head: str = "ForImageClassification",
    *,
    size: int = 8,
    boxes: bool = False,
    results: str = "logits",
    frames: int = 0,
    channels: int = 3,
    **more: Any,
) -> Asked:
    """Return the case of a class whose input is an image, or a video of `frames` frames."""
    pixels = (frames, channels, size, size) if frames else (channels, size, size)
    case = Case(
        config=f"{family}Config",
        model=f"{family}{head}",
        tiny=more,
        results={"logits": "", "pred_boxes": ""} if boxes else {results: ""},
        given=coarse(samples({"pixel_values": Numbers(pixels)}, {})),
    )
    return Asked(case=case)


def with_point_labels(given: Samples) -> Samples:
    """Prompts of two points, one on the object and one off it."""
    for row in given.rows:
        row["input_labels"] = np.array([[1, 0]])
    return coarse(given)


SIDE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "text_config": {**SIDE, "vocab_size": VOCAB, "max_position_embeddings": 12, "eos_token_id": 30, "bos_token_id": 0,
                    "pad_token_id": 1},
    "vision_config": {**SIDE, "image_size": 8, "patch_size": 4},
    "projection_dim": 12,
}  # fmt: skip


def with_ends(given: Samples, end: int) -> Samples:
    """Texts that end in `end`, which stands nowhere else in them."""
    for row in given.rows:
        row["input_ids"][-1] = end
    return given


PICTURED = with_ends(
    samples(
        {
            "input_ids": Ids("seq", 30),
            "attention_mask": Keep("seq"),
            "pixel_values": Numbers((3, 8, 8)),
        },
        {"seq": (7, 2, 4)},
    ),
    30,
)


class Spread(Case):
    """A class that is given the pictures of all texts one after the other."""

    def published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(
            input_ids=x["input_ids"],
            attention_mask=x["attention_mask"].long(),
            pixel_values=x["pixel_values"][x["image_mask"]],
            **self.more(x),
        )
        return {name: made[name] for name in self.results}

    def more(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Further inputs of the class."""
        return {}


class Typed(Spread):
    """A class that is told which tokens are those of images."""

    def more(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"token_type_ids": (x["input_ids"] == 30).long()}


def among_words(at: Sequence[Sequence[int]], picture: int) -> Samples:
    """Texts with rows of pictures, four of each, at these places."""
    made = samples(
        {
            "input_ids": Ids("seq", picture),
            "attention_mask": Keep("seq"),
            "pixel_values": Each("images", (3, 8, 8)),
            "image_mask": Keep("images"),
        },
        {"seq": (11, 6, 7), "images": tuple(len(row) // 4 for row in at)},
    )
    for row, places in zip(made.rows, at, strict=True):
        row["input_ids"][[*places]] = picture
    return made


class AnySize(Case):
    """A class that is given the patches of all images one after the other."""

    def published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        given = {name: x[name].flatten(0, 1) for name in ("pixel_values", "image_grid_thw")}
        text = {name: x[name].long() for name in ("input_ids", "attention_mask")}
        kinds = (x["input_ids"] == IMAGE_TOKEN).int()
        made = theirs(**text, **given, mm_token_type_ids=kinds)
        return {name: made[name] for name in self.results}


IMAGE_TOKEN = 30
THREE_AXES: dict[str, Any] = {
    **SIDE, "vocab_size": VOCAB, "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                                                              "mrope_section": [2, 1, 1]},
}  # fmt: skip
PATCHES: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 1, "in_channels": 1}


def any_size(family: str, text: Mapping[str, Any] = {}, **vision: Any) -> Asked:
    """Three sequences, each with two images of 12 patches in all."""
    made = samples(
        {
            "input_ids": Ids("seq", 26),
            "attention_mask": Keep("seq"),
            "pixel_values": Numbers((12, 2)),
            "image_grid_thw": Numbers((2, 3)),
        },
        {"seq": (9, 6, 7)},
    )
    for row, sides in zip(made.rows, ((2, 4, 2, 2), (4, 2, 2, 2), (2, 2, 2, 4)), strict=True):
        row["image_grid_thw"] = np.insert(np.reshape(sides, (2, 2)), 0, 1, axis=1)
        first = sides[0] * sides[1] // 4
        row["input_ids"][1 : 1 + first] = IMAGE_TOKEN
        row["input_ids"][2 + first : 5] = IMAGE_TOKEN
    case = AnySize(
        config=f"{family}Config", model=f"{family}ForConditionalGeneration", sides=("left", "right"),
        tiny={
            "text_config": {**THREE_AXES, **text}, "vision_config": {**PATCHES, **vision},
            "image_token_id": IMAGE_TOKEN, "video_token_id": 29, "vision_start_token_id": 28, "vision_end_token_id": 27,
        },
        given=coarse(made),
    )  # fmt: skip
    return Asked(case=case)


PAINTED: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 8, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 12, "decoder_ffn_dim": 10, "num_queries": 2, "use_timm_backbone": False,
    "use_pretrained_backbone": False, "backbone": None, "id2label": {0: "a", 1: "b"},
    "backbone_config": {"model_type": "resnet", "depths": [1, 1, 1, 1], "hidden_sizes": [8, 12, 12, 16],
                        "embedding_size": 6, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
}  # fmt: skip
FRAMED = coarse(
    samples({"pixel_values": Numbers((3, 32, 32)), "pixel_mask": Numbers((32, 32))}, {})
)
PAGE: dict[str, Any] = {
    "encoder": {"model_type": "donut-swin", "image_size": [8, 12], "patch_size": 2, "embed_dim": 8, "depths": [2, 1],
                "num_heads": [2, 4], "window_size": 2},
    "decoder": {"model_type": "mbart", "vocab_size": VOCAB, "d_model": 16, "decoder_layers": 2,
                "decoder_attention_heads": 2, "decoder_ffn_dim": 20, "max_position_embeddings": 20,
                "is_decoder": True, "add_cross_attention": True, "is_encoder_decoder": False},
    "decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "vit": seeing("ViT", **SEEN),
    "deit": seeing("DeiT", **SEEN),
    "beit": seeing("Beit", use_relative_position_bias=True, **SEEN),
    "dinov2": seeing("Dinov2", **SEEN, mlp_ratio=2),
    "yolos": seeing(
        "Yolos", "ForObjectDetection", boxes=True, **{**SEEN, "image_size": [8, 8], "num_detection_tokens": 2}
    ),
    "segformer": replace(
        seeing("Segformer", "ForSemanticSegmentation", size=32, **STAGES), sets={"image": 32}
    ),
    "swinv2": seeing(
        "Swinv2", size=16, image_size=16, patch_size=2, embed_dim=4, depths=[1, 1], num_heads=[1, 1],
        window_size=4, num_labels=3,
    ),
    "swin": seeing(
        "Swin", size=16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4],
        window_size=4, num_labels=3,
    ),
    "convnext": seeing(
        "ConvNext", size=16, image_size=16, patch_size=2, hidden_sizes=[6, 8], depths=[1, 1],
        num_stages=2, num_labels=3,
    ),
    "convnextv2": seeing(
        "ConvNextV2", size=16, image_size=16, patch_size=2, hidden_sizes=[6, 8], depths=[1, 1],
        num_stages=2, num_labels=3,
    ),
    "vit_msn": seeing("ViTMSN", "Model", results="last_hidden_state", **SEEN),
    "data2vec-vision": seeing("Data2VecVision", **SEEN),
    "dinov3_convnext": seeing(
        "DINOv3ConvNext", "Model", results="pooler_output", size=16, image_size=16, hidden_sizes=[4, 6], depths=[1, 1]
    ),
    "pvt_v2": seeing(
        "PvtV2", size=24, channels=1, num_channels=1, image_size=[24, 24], num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[4, 6],
        num_attention_heads=[1, 2], sr_ratios=[2, 1], mlp_ratios=[2, 2], patch_sizes=[7, 3], strides=[4, 2], num_labels=3,
    ),
    "timesformer": seeing("Timesformer", "ForVideoClassification", frames=2, **SEEN, num_frames=2),
    "mobilenet_v2": seeing(
        "MobileNetV2", size=32, channels=1, num_channels=1, image_size=32, depth_multiplier=0.1, depth_divisible_by=2, min_depth=2,
        expand_ratio=2.0, num_labels=3,
    ),
    "resnet": replace(seeing("ResNet", size=24, **RESNET), sets={"image": 24}),
    "regnet": replace(seeing("RegNet", size=16, **RESNET, groups_width=4), sets={"image": 16}),
    "poolformer": replace(
        seeing("PoolFormer", size=16, hidden_sizes=[6, 8], depths=[1, 1], num_encoder_blocks=2, num_labels=3),
        sets={"image": 16},
    ),
    "ijepa": seeing("IJepa", **SEEN),
    "vitpose": seeing(
        "VitPose", "ForPoseEstimation", results="heatmaps", size=16, num_labels=2,
        backbone_config={"model_type": "vitpose_backbone", **SEEN, "image_size": [16, 16], "patch_size": [8, 8],
                         "out_indices": [2]},
    ),
    "videomae": seeing("VideoMAE", "ForVideoClassification", frames=2, **SEEN, num_frames=2),
    "dpt": seeing("DPT", "ForDepthEstimation", results="predicted_depth", **SEEN, **NECK, backbone_out_indices=[0, 1]),
    "depth_anything": seeing(
        "DepthAnything", "ForDepthEstimation", results="predicted_depth", **NECK, patch_size=4, head_hidden_size=4, reassemble_hidden_size=16,
        backbone_config={"model_type": "dinov2", **SEEN, "mlp_ratio": 2, "out_indices": [1, 2],
                         "reshape_hidden_states": False},
    ),
    "beit, places": seeing(
        "Beit", "ForSemanticSegmentation", size=16, use_relative_position_bias=True, out_indices=[1, 2, 3, 4],
        pool_scales=[1, 2], **SEEN | {"image_size": 16, "num_hidden_layers": 4},
    ),
    "detr, masks": Asked(
        case=Case(
            config="DetrConfig", model="DetrForSegmentation", tiny=PAINTED,
            given=FRAMED,
            results={"logits": "", "pred_boxes": "", "pred_masks": ""},
        ),
        sets={"image": [32, 32]},
    ),
    "dinov3_vit": Asked(
        case=Case(
            config="DINOv3ViTConfig", model="DINOv3ViTModel", tiny={**SEEN, "num_attention_heads": 4, "hidden_size": 32},
            given=samples({"pixel_values": Numbers((3, 8, 8))}, {}),
            results={"last_hidden_state": "", "pooler_output": ""},
        )
    ),
    "siglip, pictures": Asked(
        case=Case(
            config="SiglipVisionConfig", model="SiglipVisionModel", tiny={**SIDE, "image_size": 8, "patch_size": 4},
            given=samples({"pixel_values": Numbers((3, 8, 8))}, {}),
            results={"last_hidden_state": "", "pooler_output": ""},
        )
    ),
    "clip": Asked(
        case=Case(
            config="CLIPConfig",
            model="CLIPModel",
            tiny=CLIP,
            given=PICTURED,
            results={"text_embeds": "", "image_embeds": ""},
        )
    ),
    "rt_detr": replace(
        seeing("RTDetr", "ForObjectDetection", size=32, boxes=True, d_model=8, encoder_hidden_dim=8, encoder_ffn_dim=10,
               encoder_in_channels=[6, 6, 8], decoder_in_channels=[8, 8, 8], encoder_attention_heads=2, decoder_layers=1,
               decoder_attention_heads=2, decoder_ffn_dim=10, num_queries=3, decoder_n_points=1, hidden_expansion=0.5,
               num_labels=2, backbone_config={"model_type": "rt_detr_resnet", "depths": [1, 1, 1, 1], "embedding_size": 4,
                                              "hidden_sizes": [4, 6, 6, 8], "layer_type": "basic", "out_indices": [2, 3, 4]}),
        sets={"image": 32},
    ),
    "mask2former": seeing(
        "Mask2Former", "ForUniversalSegmentation", results="class_queries_logits", size=40, channels=1, feature_size=32, mask_feature_size=4,
        hidden_dim=8, encoder_feedforward_dim=8, encoder_layers=1, decoder_layers=4, num_attention_heads=2, dim_feedforward=8,
        num_queries=2, num_labels=2,
        backbone_config={"model_type": "swin", "image_size": 40, "num_channels": 1, "embed_dim": 4, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1],
                         "window_size": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
    ),
    "sam": Asked(
        case=Case(
            config="SamConfig", model="SamModel",
            tiny={
                "vision_config": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
                                  "patch_size": 4, "mlp_dim": 12, "window_size": 2, "global_attn_indexes": [1],
                                  "output_channels": 8, "num_pos_feats": 4},
                "prompt_encoder_config": {"hidden_size": 8, "image_size": 8, "patch_size": 4},
                "mask_decoder_config": {"hidden_size": 8, "mlp_dim": 10, "num_attention_heads": 2, "iou_head_hidden_dim": 6,
                                        "num_hidden_layers": 1},
            },
            given=with_point_labels(
                samples({"pixel_values": Numbers((3, 8, 8)), "input_points": Numbers((1, 2, 2)), "input_labels": Numbers((1, 2))}, {})
            ),
            results={"iou_scores": "", "pred_masks": ""},
        )
    ),
    "deformable_detr": Asked(
        case=Case(
            config="DeformableDetrConfig", model="DeformableDetrForObjectDetection",
            tiny=PAINTED | {"d_model": 32, "decoder_layers": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
                            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_n_points": 1, "decoder_n_points": 1,
                            "num_feature_levels": 1, "num_channels": 1,
                            "backbone_config": {**PAINTED["backbone_config"], "num_channels": 1, "out_features": ["stage4"]}},
            given=coarse(samples({"pixel_values": Numbers((1, 40, 40)), "pixel_mask": Numbers((40, 40))}, {})),
            results={"logits": "", "pred_boxes": ""},
        ),
        sets={"image": [40, 40]},
    ),
    "owlvit": Asked(
        case=Case(
            config="OwlViTConfig", model="OwlViTForObjectDetection", tiny={**CLIP, "projection_dim": 16}, given=PICTURED,
            results={"pred_boxes": "", "class_embeds": "", "text_embeds": ""},
        )
    ),
    "table-transformer": Asked(
        case=Case(
            config="TableTransformerConfig", model="TableTransformerForObjectDetection", tiny=PAINTED | {"d_model": 16},
            given=FRAMED, results={"logits": "", "pred_boxes": ""},
        ),
        sets={"image": [32, 32]},
    ),
    "conditional_detr": Asked(
        case=Case(
            config="ConditionalDetrConfig", model="ConditionalDetrForObjectDetection", tiny=PAINTED | {"d_model": 16},
            given=FRAMED, results={"logits": "", "pred_boxes": ""},
        ),
        sets={"image": [32, 32]},
    ),
    "llava": Asked(
        case=Spread(
            config="LlavaConfig", model="LlavaForConditionalGeneration", sides=("left", "right"),
            tiny={
                "text_config": {**SIDE, "model_type": "llama", "num_key_value_heads": 1, "vocab_size": VOCAB},
                "vision_config": {**SIDE, "model_type": "clip_vision_model", "image_size": 8, "patch_size": 4},
                "image_token_index": 30,
            },
            given=among_words([[1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 3, 4], [0, 2, 3, 6]], 30),
            results={"logits": "seq"},
        )
    ),
    "qwen2_vl": any_size("Qwen2VL", embed_dim=16, hidden_size=16, mlp_ratio=2),
    "qwen2_5_vl": any_size(
        "Qwen2_5_VL", hidden_size=16, intermediate_size=20, out_hidden_size=16, window_size=2, fullatt_block_indexes=[1],
    ),
    "gemma3": Asked(
        case=Typed(
            config="Gemma3Config", model="Gemma3ForConditionalGeneration", sides=("left", "right"),
            tiny={
                "text_config": {**SIDE, "model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 1,
                                "vocab_size": VOCAB, "sliding_window": 5,
                                "layer_types": ["sliding_attention", "full_attention"]},
                "vision_config": {**SIDE, "model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4,
                                  "vision_use_head": False},
                "image_token_index": 30, "mm_tokens_per_image": 4,
            },
            given=among_words([[1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 3, 4], [0, 1, 2, 3]], 30),
            results={"logits": "seq"},
        )
    ),
    "donut": Asked(
        case=Case(
            config="VisionEncoderDecoderConfig", model="VisionEncoderDecoderModel", tiny=PAGE,
            given=samples(
                {"pixel_values": Numbers((3, 8, 12)), "target": Ids("tgt", VOCAB), "target_keep": Keep("tgt")},
                {"tgt": (5, 1, 3)},
            ),
            renamed={"target": "decoder_input_ids", "target_keep": "decoder_attention_mask"},
            results={"logits": "tgt"},
        ),
        computed="relative_position_index",
    ),
}  # fmt: skip
