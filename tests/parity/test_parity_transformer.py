"""`transformer` is torch's Transformer layers between the paper's embeddings and its
shared output.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Ids, Keep, samples
from support.published import Arrays, assert_matches, with_weights
from support.torch_layers import Stacks, all_layers, stacks
from torch import nn

pytestmark = pytest.mark.parity

GIVEN = samples(
    {
        "source": Ids("src", 31),
        "source_keep": Keep("src"),
        "target": Ids("tgt", 31),
        "target_keep": Keep("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (3, 5, 4)},
)


def weights_of(module: Stacks) -> Arrays:
    table = module.embed.weight.detach().numpy().copy()
    return all_layers(module) | {
        "shared.weight": table,
        "output_projection.weight": table,
    }


@pytest.mark.parametrize(
    "bias", [True, False], ids=["biases as torch has", "none as the paper has"]
)
def test_transformer(bias: bool, tmp_path: Path) -> None:
    theirs = stacks(
        vocab=31, width=24, heads=4, hidden=40, layers=2, act="relu", pre=False
    )
    for module in theirs.modules():
        if isinstance(module, nn.MultiheadAttention) and not bias:
            nn.init.zeros_(module.in_proj_bias)
            nn.init.zeros_(module.out_proj.bias)
    sets = {
        "vocab": 31,
        "d": 24,
        "heads": 4,
        "hidden": 40,
        "layers": 2,
        "pad": 0,
        "bos": 1,
        "eos": 2,
    }
    used = {
        k: v
        for k, v in weights_of(theirs).items()
        if bias or "attn." not in k or not k.endswith("bias")
    }
    ours = with_weights("transformer", used, tmp_path, attention_bias=bias, **sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x)}

    assert_matches(ours, GIVEN, published, {"logits": "tgt"}, ("left", "right"))
