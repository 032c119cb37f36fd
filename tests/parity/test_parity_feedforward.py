"""`feedforward` matches torch's `nn.Sequential` of linear layers and activations."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Numbers, samples
from support.published import assert_matches, from_module, randomized, with_weights
from torch import nn

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("act", "layer"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("gelu", nn.GELU)]
)
def test_feedforward(act: str, layer: type[nn.Module], tmp_path: Path) -> None:
    theirs = randomized(
        nn.Sequential(nn.Linear(5, 9), layer(), nn.Linear(9, 7), layer(), nn.Linear(7, 3))
    )
    names = {"0": "layers.0", "2": "layers.1", "4": "output"}
    weights = {f"{names[k[0]]}{k[1:]}": v for k, v in from_module(theirs).items()}
    ours = with_weights(
        "feedforward", weights, tmp_path, inputs=5, hidden="[9, 7]", outputs=3, act=act
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"y": theirs(x["x"])}

    assert_matches(ours, samples({"x": Numbers((5,))}, {}), published, {"y": ""})
