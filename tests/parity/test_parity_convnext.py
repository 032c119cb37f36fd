"""`convnext` matches transformers' ConvNextForImageClassification, with and without LayerScale."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import assert_matches_published, open_weighted_spec, randomize_weights
from transformers import ConvNextConfig, ConvNextForImageClassification

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(("image", "patch", "factor"), [(16, 2, 1e-6), (22, 4, 1e-6), (24, 2, 0.0)])
def test_convnext(image: int, patch: int, factor: float, tmp_path: Path) -> None:
    """Of 22 pixels 2 fill no patch, and of 5 patches one has no neighbor: both are left out."""
    config = ConvNextConfig(
        image_size=image,
        patch_size=patch,
        num_channels=2,
        hidden_sizes=[6, 10, 8],
        depths=[1, 2, 1],
        num_stages=3,
        layer_scale_init_value=factor,
        layer_norm_eps=1e-6,
        hidden_act="gelu",
        num_labels=5,
    )
    theirs = randomize_weights(ConvNextForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("convnext", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["pixel_values"]).logits}

    given = make_samples({"pixel_values": FixedValues((2, image, image))}, {})
    assert_matches_published(ours, given, published, {"logits": ""})
