"""`feedforward` matches torch's `nn.Sequential` of linear layers and activations."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
    randomize_weights,
)
from torch import nn

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("act", "layer"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("gelu", nn.GELU)]
)
def test_feedforward(act: str, layer: type[nn.Module], tmp_path: Path) -> None:
    theirs = randomize_weights(
        nn.Sequential(nn.Linear(5, 9), layer(), nn.Linear(9, 7), layer(), nn.Linear(7, 3))
    )
    names = {"0": "layers.0", "2": "layers.1", "4": "output"}
    weights = {f"{names[k[0]]}{k[1:]}": v for k, v in list_module_weights(theirs).items()}
    ours = build_weighted_spec(
        "feedforward", weights, tmp_path, inputs=5, hidden="[9, 7]", outputs=3, act=act
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"y": theirs(x["x"])}

    assert_matches_published(ours, make_samples({"x": FixedValues((5,))}, {}), published, {"y": ""})
