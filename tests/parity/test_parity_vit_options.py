"""All config options of `vit` match torch's encoder layers over patches: norm placement and kind;
position embeddings of table 8 of the paper, and RoPE; classification from the class token or the
mean.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import (
    Arrays,
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
    randomize_weights,
)
from support.torch_layers import RotaryAttention, rename_layer_weights, replace_layer_norms
from torch import Tensor, nn

pytestmark = pytest.mark.parity

WIDTH, HEADS, HIDDEN, LAYERS, CLASSES = 16, 2, 24, 2, 3
ROWS, COLUMNS, PATCH = 3, 2, 4
SQUARES = ROWS * COLUMNS
NAMES = {
    "self_attn.q_proj": "attention.attention.query",
    "self_attn.k_proj": "attention.attention.key",
    "self_attn.v_proj": "attention.attention.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "layernorm_before",
    "final_layer_norm": "layernorm_after",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
}


def make_sinusoids(places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return sines and cosines [n, width / 2] (arXiv:1706.03762, sec. 3.5)."""
    rates = 10000 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = places[:, None] * rates
    return angles.sin(), angles.cos()


def added(positions: str, table: Tensor) -> Tensor:
    """Return the position embeddings; the first token is no patch."""
    if positions == "learned":
        return table
    if positions == "sinusoidal":
        both = make_sinusoids(torch.arange(SQUARES + 1), WIDTH)
        return torch.stack(both, dim=-1).flatten(1)
    made = torch.zeros(SQUARES + 1, WIDTH, dtype=torch.float64)
    if positions == "sinusoidal_2d":  # of the column, then of the row (arXiv:2111.06377)
        number = torch.arange(SQUARES)
        halves = [number % COLUMNS, number // COLUMNS]
        parts = [torch.cat(make_sinusoids(half, WIDTH // 2), dim=1) for half in halves]
        made[1:] = torch.cat(parts, dim=1)
    return made


class Pictures(nn.Module):
    """Patches, a class token, torch's encoder layers, and a linear classifier."""

    def __init__(self, pre: bool, rms: bool, turned: str) -> None:
        super().__init__()
        self.squares = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.table = nn.Parameter(torch.zeros(SQUARES + 1, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, norm_first=pre
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH) if pre else nn.Identity()
        self.classes = nn.Linear(WIDTH, CLASSES)
        if turned:
            for layer in self.layers:
                layer.self_attn = RotaryAttention(WIDTH, HEADS, turned)
        if rms:
            replace_layer_norms(self, WIDTH)

    def forward(self, pixels: Tensor, positions: str, told: str) -> Tensor:
        """Logits [batch, classes]."""
        x = self.squares(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1)
        x = x + added(positions, self.table)
        everything = torch.zeros(len(x) * HEADS, *[SQUARES + 1] * 2, dtype=torch.bool)
        for layer in self.layers:
            layer.self_attn.at = torch.arange(SQUARES + 1).expand(len(x), -1)
            x = layer(x, src_mask=everything)
        x = self.norm(x)
        return self.classes(x[:, 0] if told == "cls" else x[:, 1:].mean(1))


def weights_of(module: Pictures, positions: str) -> Arrays:
    """Return the weights under the names of published files."""
    place = "vit.embeddings"
    made = list_module_weights(module.squares, f"{place}.patch_embeddings.projection.")
    made |= list_module_weights(module.classes, "classifier.")
    made |= list_module_weights(module.norm, "vit.layernorm.")
    made[f"{place}.cls_token"] = module.first.detach().numpy()
    if positions == "learned":
        table = module.table.detach().numpy()
        made[f"{place}.position_embeddings"] = np.ascontiguousarray(table[None])
    for n, layer in enumerate(module.layers):
        for name, value in rename_layer_weights(layer, "encoder").items():
            head, _, last = name.rpartition(".")
            made[f"vit.encoder.layer.{n}.{NAMES[head]}.{last}"] = value
    return made


@pytest.mark.parametrize(
    ("place", "rms", "positions", "told", "turned"),
    [
        ("post", False, "learned", "cls", ""),
        ("pre", True, "sinusoidal", "mean", ""),
        ("pre", False, "sinusoidal_2d", "cls", ""),
        ("post", True, "none", "mean", ""),
        ("pre", False, "none", "cls", "half"),
        ("pre", False, "learned", "mean", "interleaved"),
    ],
)
def test_config_options(
    place: str, rms: bool, positions: str, told: str, turned: str, tmp_path: Path
) -> None:
    module = randomize_weights(Pictures(place == "pre", rms, turned))
    rope = {"rope": "rope(theta=100.0)", "pairs": turned} if turned else {}
    ours = build_weighted_spec(
        "vit",
        weights_of(module, positions),
        tmp_path,
        d=WIDTH,
        heads=HEADS,
        hidden=HIDDEN,
        layers=LAYERS,
        classes=CLASSES,
        image=[ROWS * PATCH, COLUMNS * PATCH],
        patch=PATCH,
        norm="rms_norm(eps=1e-5)" if rms else "layer_norm(eps=1e-5)",
        norm_placement=place,
        positions=positions,
        classifier_pooling=told,
        **rope,
    )
    exact = module.double().train()  # torch's fast path knows no norm but its own

    def published(x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"logits": exact(x["pixel_values"], positions, told)}

    given = make_samples({"pixel_values": FixedValues((3, ROWS * PATCH, COLUMNS * PATCH))}, {})
    assert_matches_published(ours, given, published, {"logits": ""})
