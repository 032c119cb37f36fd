"""`encoder_decoder` matches stacks of torch layers in its variants: pre-norm and post-norm,
masks, positions.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import Arrays, assert_matches_published, build_weighted_spec
from support.torch_layers import TransformerStacks, make_random_stacks, rename_stack_weights

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {
        "source": TokenIds("src", 31),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", 31),
        "target_keep": PaddingMask("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (3, 6, 4)},
)
SIZES = {
    "vocab": 31,
    "width": 24,
    "heads": 4,
    "hidden": 40,
    "encoder__layers": 2,
    "decoder__layers": 2,
}
TORCH = {"vocab": 31, "width": 24, "heads": 4, "hidden": 40, "layers": 2}


def weights_of(module: TransformerStacks) -> Arrays:
    table = module.embed.weight.detach().numpy().copy()
    made = {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table,
        "output_projection.weight": table,
    }
    for stack in ("encoder", "decoder"):
        if stack in module.places:
            made[f"{stack}.embed_positions.weight"] = (
                module.places[stack].weight.detach().numpy().copy()
            )
        if stack in module.norms:
            made[f"{stack}.layer_norm.weight"] = module.norms[stack].weight.detach().numpy().copy()
            made[f"{stack}.layer_norm.bias"] = module.norms[stack].bias.detach().numpy().copy()
    return rename_stack_weights(module) | made


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("positions", ["sinusoid(layout=interleaved)", "learned(size=9)"])
def test_norm_placement_activation_and_positions(
    norm: str, act: str, positions: str, tmp_path: Path
) -> None:
    theirs = make_random_stacks(
        **TORCH, act=act, pre=norm == "pre", positions=9 if "learned" in positions else 0
    )
    sets = {**SIZES, "norm": norm, "act": act, "positions": positions}
    ours = build_weighted_spec("encoder_decoder", weights_of(theirs), tmp_path, **sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x)}

    assert_matches_published(ours, GIVEN, published, {"logits": "tgt"}, ("left", "right"))


def test_window_masks(tmp_path: Path) -> None:
    """A word sees itself and one word back; in the source also one ahead."""
    theirs = make_random_stacks(**TORCH, act="relu", pre=True)
    ours = build_weighted_spec(
        "encoder_decoder",
        weights_of(theirs),
        tmp_path,
        **SIZES,
        norm="pre",
        decoder__attention__mask="causal & window(2)",
        encoder__attention__mask="window(2, ahead=1)",
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        back = _apart(x["target"].shape[1]) >= 2
        far = _apart(x["source"].shape[1]).abs() >= 2
        return {"logits": theirs(x, back, far)}

    assert_matches_published(ours, GIVEN, published, {"logits": "tgt"}, ("left", "right"))


def _apart(n: int) -> torch.Tensor:
    rows = torch.arange(n)
    return rows[:, None] - rows[None, :]
