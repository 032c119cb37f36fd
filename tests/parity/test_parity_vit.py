"""`vit` matches transformers' ViTForImageClassification, at several patch sizes."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import assert_matches_published, open_weighted_spec, randomize_weights
from transformers import ViTConfig, ViTForImageClassification

from specc.preprocessing.preprocessing_records import ClassificationOutput

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("patch", "channels", "qkv_bias"), [(4, 3, True), (6, 1, False), (2, 3, True)]
)
def test_vit(patch: int, channels: int, qkv_bias: bool, tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=12,
        patch_size=patch,
        num_channels=channels,
        num_labels=5,
        qkv_bias=qkv_bias,
        layer_norm_eps=1e-6,
    )
    theirs = randomize_weights(ViTForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("vit", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["pixel_values"]).logits}

    given = make_samples({"pixel_values": FixedValues((channels, 12, 12))}, {})
    assert_matches_published(ours, given, published, {"logits": ""})
    shown = dict(ours.compiled.manifest.preprocessing.outputs)["logits"]
    assert isinstance(shown, ClassificationOutput)
    assert shown.labels == tuple(config.id2label.values()), "the file's own labels are shown"
