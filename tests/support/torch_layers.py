"""torch.nn layers (Transformer, RNN) as reference models, and their weights under the parameter names of our specs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from support.published_models import Arrays, list_module_weights, randomize_weights


def count_positions(keep: torch.Tensor) -> torch.Tensor:
    """Return position ids that count unpadded positions."""
    return (keep.long().cumsum(1) - 1).clamp(min=0)


class RotaryAttention(nn.MultiheadAttention):
    """Self-attention with interleaved RoPE (arXiv:2104.09864, eq. 34), frequencies 100^(-2n/d)."""

    at: torch.Tensor

    def __init__(self, width: int, heads: int, pairs: str) -> None:
        super().__init__(width, heads, batch_first=True)
        self.pairs = pairs

    def forward(self, x: torch.Tensor, *_: Any, attn_mask: Any, **__: Any) -> Any:
        """Return the attention output, without weights."""
        batch, rows, width = x.shape
        parts = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (
            p.view(batch, rows, self.num_heads, -1).transpose(1, 2)
            for p in parts.split(width, dim=-1)
        )
        scores = self.rotate(q) @ self.rotate(k).transpose(2, 3) / self.head_dim**0.5
        # torch's encoder layers convert a mask to floats, with -inf at masked positions
        hidden = attn_mask if attn_mask.dtype == torch.bool else attn_mask < 0
        mixed = scores.masked_fill(hidden.view(scores.shape), -torch.inf).softmax(-1) @ v
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape)), None

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs as complex numbers: multiply by e^(i · position · frequency)."""
        half = self.head_dim // 2
        pair = (
            x.unflatten(-1, (half, 2)).movedim(-1, 0)
            if self.pairs == "interleaved"
            else x.unflatten(-1, (2, half)).movedim(-2, 0)
        )
        frequencies = 100.0 ** -(torch.arange(half, dtype=x.dtype) / half)
        angles = self.at[:, None, :, None] * frequencies
        outputs = torch.complex(*pair) * torch.polar(torch.ones_like(angles), angles)
        axis = -1 if self.pairs == "interleaved" else -2
        return torch.stack([outputs.real, outputs.imag], dim=axis).flatten(-2)


def replace_layer_norms(module: nn.Module, width: int) -> None:
    """Replace every LayerNorm of a module by an RMSNorm."""
    for inner in list(module.modules()):
        for name, norm in list(inner.named_children()):
            if isinstance(norm, nn.LayerNorm):
                setattr(inner, name, nn.RMSNorm(width, eps=1e-5))


class TransformerStacks(nn.Module):
    """Embeddings, layers of torch, logits, in the order of the paper (arXiv:1706.03762, fig. 1)."""

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
        sines: bool = True,
        rms: bool = False,
        turned: str = "",
    ) -> None:
        super().__init__()
        self.sines = sines
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
            {k: nn.Embedding(positions, width) for k in ("encoder", "decoder") if positions}
        )
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**options) for _ in range(layers))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**options) for _ in range(layers))
        self.norms = nn.ModuleDict({k: nn.LayerNorm(width) for k in ("encoder", "decoder") if pre})
        if turned:
            for layer in (*self.encoder, *self.decoder):
                layer.self_attn = RotaryAttention(width, heads, turned)
        if rms:
            replace_layer_norms(self, width)

    def forward(
        self,
        x: Mapping[str, torch.Tensor],
        hidden: torch.Tensor | None = None,
        source_hidden: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits; `hidden` and `source_hidden` are additional masked pairs of positions."""
        n = x["target"].shape[1]
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
        target_mask = self.mask(x["target_keep"], ahead if hidden is None else ahead | hidden)
        source_mask = self.mask(x["source_keep"], source_hidden)
        memory = self.embed_positions(x["source"], x["source_keep"], "encoder")
        for layer in self.encoder:
            layer.self_attn.at = count_positions(x["source_keep"])
            memory = layer(memory, src_mask=source_mask)
        memory = self.norms["encoder"](memory) if "encoder" in self.norms else memory
        y = self.embed_positions(x["target"], x["target_keep"], "decoder")
        for layer in self.decoder:
            layer.self_attn.at = count_positions(x["target_keep"])
            y = layer(y, memory, tgt_mask=target_mask, memory_key_padding_mask=~x["source_keep"])
        y = self.norms["decoder"](y) if "decoder" in self.norms else y
        return y @ self.embed.weight.T

    def mask(self, keep: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
        """Return the masked positions for each batch element and head: [batch * heads, n, n].

        Every position attends to itself, also in padding: torch returns NaN for a fully masked row,
        which spreads to others.
        """
        n = keep.shape[1]
        masked = (~keep)[:, None, :].expand(-1, n, -1)
        masked = masked if hidden is None else masked | hidden
        return (masked & ~torch.eye(n, dtype=torch.bool)).repeat_interleave(self.heads, dim=0)

    def embed_positions(self, ids: torch.Tensor, keep: torch.Tensor, stack: str) -> torch.Tensor:
        """Return embeddings scaled by the square root of the width, with learned, sinusoidal or no
        positions.
        """
        at, width = count_positions(keep), self.embed.embedding_dim
        words = self.embed(ids) * width**0.5
        if stack in self.places:
            return words + self.places[stack](at)
        if not self.sines:
            return words
        angles = at[..., None] / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        return words + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(2)


def make_random_stacks(seed: int = 0, **options: Any) -> TransformerStacks:
    """Return stacks with random weights."""
    model: TransformerStacks = randomize_weights(TransformerStacks(**options), seed)
    return model


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


def rename_layer_weights(module: nn.Module, stack: str) -> Arrays:
    """Return the weights of a torch layer under our names: the fused projection split, modules by
    function.
    """
    names = INNER | (ENCODER_NORMS if stack == "encoder" else DECODER_NORMS)
    weights: Arrays = {}
    for name, value in list_module_weights(module).items():
        head, _, rest = name.partition(".")
        if rest.startswith("in_proj_"):
            for letter, part in zip("qkv", np.split(value, 3), strict=True):
                weights[f"{names[head]}.{letter}_proj.{rest.removeprefix('in_proj_')}"] = part
        else:
            weights[f"{names[head]}.{rest}"] = value
    return weights


def rename_stack_weights(module: TransformerStacks) -> Arrays:
    """Return the weights of all layers of both stacks under our names."""
    return {
        f"{stack}.layers.{n}.{name}": value
        for stack, layers in (("encoder", module.encoder), ("decoder", module.decoder))
        for n, layer in enumerate(layers)
        for name, value in rename_layer_weights(layer, stack).items()
    }


def run_unpadded_layer(
    layer: nn.Module, rows: torch.Tensor, keep: torch.Tensor, start: Any = None
) -> tuple[torch.Tensor, Any]:
    """Run a layer over the unpadded positions of each sample alone, packed; the result is 0 at
    padded positions.
    """
    counts = keep.sum(1)
    order = (~keep).long().argsort(dim=1, stable=True)[..., None]
    together = rows.gather(1, order.expand_as(rows))
    found, states = layer(pack_padded_sequence(together, counts, True, enforce_sorted=False), start)
    out, _ = pad_packed_sequence(found, True, total_length=rows.shape[1])
    return torch.zeros_like(out).scatter(1, order.expand(-1, -1, out.shape[2]), out), states


class RecurrentLanguageModel(nn.Module):
    """Tokens to logits of the next token, as in PyTorch's word language model example."""

    def __init__(
        self,
        kind: type[nn.RNNBase],
        *,
        vocab: int,
        width: int,
        hidden: int,
        layers: int,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocab, width)
        self.rnn = kind(width, hidden, num_layers=layers, batch_first=True)  # type: ignore[call-arg]
        self.decoder = nn.Linear(hidden, vocab)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.decoder(
            run_unpadded_layer(self.rnn, self.encoder(ids), keep)[0]
        )
        return outputs


def make_language_model(kind: type[nn.RNNBase], **sizes: Any) -> RecurrentLanguageModel:
    """Return a language model with random weights."""
    model: RecurrentLanguageModel = randomize_weights(RecurrentLanguageModel(kind, **sizes))
    return model
