"""`vit_segmenter` matches transformers' ViTModel, a linear layer on its patch tokens, and
torch's bilinear resize.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.padded_batches import FixedValues, make_samples
from support.published_models import (
    assert_matches_published,
    list_module_weights,
    open_weighted_spec,
    randomize_weights,
)
from transformers import ViTConfig, ViTModel

pytestmark = pytest.mark.parity


def test_vit_segmenter(tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=12,
        patch_size=3,
        num_labels=5,
        layer_norm_eps=1e-6,
    )
    vit, head = (
        randomize_weights(ViTModel(config)),
        randomize_weights(torch.nn.Linear(24, 5), seed=1),
    )
    vit.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    linear = {k: torch.from_numpy(v) for k, v in list_module_weights(head, "head.").items()}
    save_file({f"vit.{k}": v for k, v in load_file(file).items()} | linear, file)
    ours = open_weighted_spec("vit_segmenter", tmp_path, classes=5)
    vit.double()
    head.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        tokens = vit(x["pixel_values"]).last_hidden_state[:, 1:]
        logits = head(tokens).reshape(-1, 4, 4, 5).permute(0, 3, 1, 2)
        wide = torch.nn.functional.interpolate(
            logits, scale_factor=3, mode="bilinear", align_corners=False
        )
        return {"logits": logits, "class_map": wide.argmax(1)}

    given = make_samples({"pixel_values": FixedValues((3, 12, 12))}, {})
    assert_matches_published(ours, given, published, {"logits": "", "class_map": ""})
