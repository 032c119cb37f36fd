"""Stacks of torch.nn.TransformerEncoderLayer and DecoderLayer, and their weights under
the names of our specs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from support.published import Arrays, from_module, randomized


class Stacks(nn.Module):
    """Embeddings in, layers of torch, logits out, as the paper puts them together
    (arXiv:1706.03762, fig. 1).
    """

    def __init__(
        self,
        *,
        vocab: int,
        width: int,
        heads: int,
        hidden: int,
        layers: int,
        act: str,
        pre: bool,
        positions: int = 0,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "d_model": width,
            "nhead": heads,
            "dim_feedforward": hidden,
            "dropout": 0.0,
            "activation": act,
            "batch_first": True,
            "norm_first": pre,
        }
        self.heads = heads
        self.embed = nn.Embedding(vocab, width)
        self.places = nn.ModuleDict(
            {
                k: nn.Embedding(positions, width)
                for k in ("encoder", "decoder")
                if positions
            }
        )
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(**options) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(**options) for _ in range(layers)
        )
        self.norms = nn.ModuleDict(
            {k: nn.LayerNorm(width) for k in ("encoder", "decoder") if pre}
        )

    def forward(
        self,
        x: Mapping[str, torch.Tensor],
        hidden: torch.Tensor | None = None,
        source_hidden: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits; `hidden` and `source_hidden` are pairs of rows hidden besides those
        of causality and padding.
        """
        n = x["target"].shape[1]
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
        target_mask = self.mask(
            x["target_keep"], ahead if hidden is None else ahead | hidden
        )
        source_mask = self.mask(x["source_keep"], source_hidden)
        memory = self.placed(x["source"], x["source_keep"], "encoder")
        for layer in self.encoder:
            memory = layer(memory, src_mask=source_mask)
        memory = self.norms["encoder"](memory) if "encoder" in self.norms else memory
        y = self.placed(x["target"], x["target_keep"], "decoder")
        for layer in self.decoder:
            y = layer(
                y,
                memory,
                tgt_mask=target_mask,
                memory_key_padding_mask=~x["source_keep"],
            )
        y = self.norms["decoder"](y) if "decoder" in self.norms else y
        return y @ self.embed.weight.T

    def mask(self, keep: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
        """What is hidden, for each row and head: [batch * heads, n, n].

        Every row sees itself, also one of padding: torch gives NaN to a row that sees
        nothing, and from it to others.
        """
        n = keep.shape[1]
        made = (~keep)[:, None, :].expand(-1, n, -1)
        made = made if hidden is None else made | hidden
        return (made & ~torch.eye(n, dtype=torch.bool)).repeat_interleave(
            self.heads, dim=0
        )

    def placed(self, ids: torch.Tensor, keep: torch.Tensor, stack: str) -> torch.Tensor:
        """Embeddings times the root of the width, and positions: learned ones, or sines
        and cosines in turn.
        """
        at, width = (keep.long().cumsum(1) - 1).clamp(min=0), self.embed.embedding_dim
        words = self.embed(ids) * width**0.5
        if stack in self.places:
            return words + self.places[stack](at)
        angles = at[..., None] / 10000 ** (
            torch.arange(0, width, 2, dtype=torch.float64) / width
        )
        return words + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(2)


def stacks(seed: int = 0, **options: Any) -> Stacks:
    """Random ones."""
    made: Stacks = randomized(Stacks(**options), seed)
    return made


INNER = {
    "self_attn": "self_attn",
    "multihead_attn": "encoder_attn",
    "linear1": "fc1",
    "linear2": "fc2",
}
ENCODER_NORMS = {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"}
DECODER_NORMS = {
    "norm1": "self_attn_layer_norm",
    "norm2": "encoder_attn_layer_norm",
    "norm3": "final_layer_norm",
}


def layer_weights(module: nn.Module, stack: str) -> Arrays:
    """One of torch's layers under our names: the fused projection apart, modules by
    what they do.
    """
    names = INNER | (ENCODER_NORMS if stack == "encoder" else DECODER_NORMS)
    made: Arrays = {}
    for name, value in from_module(module).items():
        head, _, rest = name.partition(".")
        if rest.startswith("in_proj_"):
            for letter, part in zip("qkv", np.split(value, 3), strict=True):
                made[f"{names[head]}.{letter}_proj.{rest.removeprefix('in_proj_')}"] = (
                    part
                )
        else:
            made[f"{names[head]}.{rest}"] = value
    return made


def all_layers(module: Stacks) -> Arrays:
    """Every layer of both stacks under our names."""
    return {
        f"{stack}.layers.{n}.{name}": value
        for stack, layers in (("encoder", module.encoder), ("decoder", module.decoder))
        for n, layer in enumerate(layers)
        for name, value in layer_weights(layer, stack).items()
    }
