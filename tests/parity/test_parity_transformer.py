"""`transformer` matches torch's Transformer layers with the paper's embeddings and tied output
projection, for all config options.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    Arrays,
    WeightedSpec,
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
)
from support.torch_layers import TransformerStacks, make_random_stacks, rename_stack_weights
from torch import nn

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {
        "source": TokenIds("src", 31),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", 31),
        "target_keep": PaddingMask("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (3, 5, 4)},
)


SIZES = {"vocab": 31, "d": 24, "heads": 4, "hidden": 40, "layers": 2}
TORCH = {"vocab": 31, "width": 24, "heads": 4, "hidden": 40, "layers": 2}


def weights_of(module: TransformerStacks) -> Arrays:
    table = module.embed.weight.detach().numpy().copy()
    made = {"shared.weight": table, "output_projection.weight": table}
    for stack, places in module.places.items():
        made[f"{stack}.embed_positions.weight"] = places.weight.detach().numpy().copy()
    for stack, norm in module.norms.items():
        made |= list_module_weights(norm, f"{stack}.layer_norm.")
    return rename_stack_weights(module) | made


@pytest.mark.parametrize(
    "bias", [True, False], ids=["biases as torch has", "none as the paper has"]
)
def test_transformer(bias: bool, tmp_path: Path) -> None:
    theirs = make_random_stacks(**TORCH, act="relu", pre=False)
    for module in theirs.modules():
        if isinstance(module, nn.MultiheadAttention) and not bias:
            nn.init.zeros_(module.in_proj_bias)
            nn.init.zeros_(module.out_proj.bias)
    sets = {**SIZES, "pad": 0, "bos": 1, "eos": 2}
    used = {
        k: v
        for k, v in weights_of(theirs).items()
        if bias or "attn." not in k or not k.endswith("bias")
    }
    ours = build_weighted_spec("transformer", used, tmp_path, attention_bias=bias, **sets)
    check(ours, theirs)


def check(ours: WeightedSpec, theirs: TransformerStacks) -> None:
    """Check equal logits, alone and padded on either side."""
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x)}

    assert_matches_published(ours, GIVEN, published, {"logits": "tgt"}, ("left", "right"))


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize(
    ("norm", "act", "places"),
    [("pre", "relu", "learned"), ("post", "gelu", "none"), ("pre", "gelu", "sines")],
)
def test_config_options(norm: str, act: str, places: str, rms: bool, tmp_path: Path) -> None:
    theirs = make_random_stacks(
        **TORCH,
        act=act,
        pre=norm == "pre",
        positions=9 if places == "learned" else 0,
        sines=places == "sines",
        rms=rms,
    ).train()  # torch's fast path knows no norm but its own; there is no dropout
    positions = {"learned": "learned(size=9)", "none": "none"}
    sets = {
        "norm": norm,
        "act": act,
        "positions": positions.get(places, "sinusoid(layout=interleaved)"),
        "normalize": "rms_norm(eps=1e-5)" if rms else "layer_norm(eps=1e-5)",
        "attention_bias": True,
    }
    check(build_weighted_spec("transformer", weights_of(theirs), tmp_path, **SIZES, **sets), theirs)


@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_rotary_positions(pairs: str, tmp_path: Path) -> None:
    """Queries and keys of self-attention in torch's layers, rotated as in arXiv:2104.09864, eq. 34."""
    theirs = make_random_stacks(**TORCH, act="relu", pre=True, sines=False, turned=pairs).train()
    sets = {
        "norm": "pre",
        "positions": "none",
        "rope": "rope(theta=100.0)",
        "pairs": pairs,
        "attention_bias": True,
    }
    check(build_weighted_spec("transformer", weights_of(theirs), tmp_path, **SIZES, **sets), theirs)
