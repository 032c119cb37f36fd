"""`vit_mae` matches transformers' ViTMAEForPreTraining, given the same noise."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.padded_batches import FixedValues, make_samples
from support.published_models import assert_matches_published, open_weighted_spec, randomize_weights
from transformers import ViTMAEConfig, ViTMAEForPreTraining

pytestmark = pytest.mark.parity


def model(mask_ratio: float) -> ViTMAEForPreTraining:
    config = ViTMAEConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        decoder_hidden_size=20,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=36,
        image_size=12,
        patch_size=3,
        num_channels=2,
        mask_ratio=mask_ratio,
        layer_norm_eps=1e-6,
    )
    return randomize_weights(ViTMAEForPreTraining(config))


@pytest.mark.parametrize(("mask_ratio", "sides"), [(0.75, 12), (0.4, 12), (0.75, [12, 12])])
def test_vit_mae(mask_ratio: float, sides: int | list[int], tmp_path: Path) -> None:
    theirs = model(mask_ratio)
    theirs.config.image_size = sides
    theirs.save_pretrained(tmp_path)
    theirs.config.image_size = 12  # from which it makes the picture
    ours = open_weighted_spec("vit_mae", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(x["pixel_values"], noise=x["noise"])
        return {
            "patches": made.logits,
            "reconstruction": theirs.unpatchify(made.logits),
            "masked": made.mask.bool(),
        }

    given = make_samples(
        {"pixel_values": FixedValues((2, 12, 12)), "noise": FixedValues((16,), uniform=True)}, {}
    )
    assert_matches_published(
        ours, given, published, {"patches": "", "reconstruction": "", "masked": ""}
    )


@pytest.mark.parametrize("whole", [True, False])
def test_its_encoder_alone(whole: bool, tmp_path: Path) -> None:
    """From a file of its own, and from one that can reconstruct."""
    theirs = model(0.4)
    (theirs if whole else theirs.vit).save_pretrained(tmp_path)
    ours = open_weighted_spec("vit_mae", tmp_path, graph="features")
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs.vit(x["pixel_values"], noise=x["noise"])
        return {
            "last_hidden_state": made.last_hidden_state,
            "mask": made.mask.bool(),
            "ids_restore": made.ids_restore,
        }

    given = make_samples(
        {"pixel_values": FixedValues((2, 12, 12)), "noise": FixedValues((16,), uniform=True)}, {}
    )
    assert_matches_published(
        ours, given, published, dict.fromkeys(("last_hidden_state", "mask", "ids_restore"), "")
    )


def test_the_decoder_goes_by_two_names(tmp_path: Path) -> None:
    """Files on the Hub say `decoder_layers`, what transformers 5 saves `decoder_encoder.layer`."""
    model(0.75).save_pretrained(tmp_path)
    weights = open_weighted_spec("vit_mae", tmp_path).weights
    file = tmp_path / "model.safetensors"
    (tmp_path / "hub").mkdir()
    old = {
        k.replace("decoder_encoder.layer.", "decoder_layers."): v
        for k, v in load_file(file).items()
    }
    assert old.keys() != load_file(file).keys()
    save_file(old, tmp_path / "hub" / "model.safetensors")
    (tmp_path / "config.json").rename(tmp_path / "hub" / "config.json")
    again = open_weighted_spec("vit_mae", tmp_path / "hub").weights
    assert all(np.array_equal(again[name], value) for name, value in weights.items())
