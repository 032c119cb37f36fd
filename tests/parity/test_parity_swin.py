"""`swin` matches transformers' SwinForImageClassification, with and without padding of the last
windows.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import assert_matches_published, open_weighted_spec, randomize_weights
from transformers import SwinConfig, SwinForImageClassification

pytestmark = pytest.mark.parity

SETTINGS = {
    "windows of four shifted by two, then one window": (16, 2, 4, False, True),
    "the last windows are padded": (20, 2, 4, True, True),
    "odd sides when halved": (28, 4, 3, False, False),
    "three stages": (24, 2, 3, True, True),
}
"""Image, patch, window, learned positions, biases of the projections."""


@pytest.mark.parametrize("case", SETTINGS)
def test_swin(case: str, tmp_path: Path) -> None:
    image, patch, window, absolute, bias = SETTINGS[case]
    stages = 3 if case == "three stages" else 2
    config = SwinConfig(
        image_size=image,
        patch_size=patch,
        num_channels=2,
        embed_dim=12,
        depths=[2, 3, 2][:stages],
        num_heads=[2, 4, 3][:stages],
        window_size=window,
        mlp_ratio=1.5,
        use_absolute_embeddings=absolute,
        qkv_bias=bias,
        layer_norm_eps=1e-6,
        num_labels=5,
    )
    theirs = randomize_weights(SwinForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("swin", tmp_path)
    # softmax is taken in single precision there, whatever the model is in
    theirs.set_attn_implementation("sdpa")
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["pixel_values"]).logits}

    given = make_samples({"pixel_values": FixedValues((2, image, image))}, {})
    assert_matches_published(ours, given, published, {"logits": ""})
