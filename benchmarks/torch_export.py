"""Export a checkpoint with `torch.onnx.export(dynamo=True)`, as users of PyTorch do.

`torch_export.py logits NAME DIR OUT` exports a model of `published.MODELS`, `torch_export.py family
NAME DIR OUT` exports a model of `published.FAMILIES`, and `torch_export.py past DIR OUT OPSET`
exports a decoder with KV caches as inputs and outputs. Exported encoder-decoder models have no KV
caches, so every step computes all tokens.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from published import FAMILIES, load_published_model, make_family_inputs, make_tensors

OPSETS = {"GPT-2": "23"}
"""The exporter's opset by model: 23 has `Attention`, but `RotaryEmbedding` fails for batches."""


class DecoderWithPast(torch.nn.Module):
    """A decoder as a function of tokens, an attention mask and a flat list of KV caches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: list[torch.Tensor]
    ) -> Any:
        """Return the logits of the last position, as in `generate`, and the KV caches."""
        cache = transformers.DynamicCache()
        for n in range(len(past) // 2):
            cache.update(past[2 * n], past[2 * n + 1], n)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        layers = outputs.past_key_values.layers
        return outputs.logits, [t for layer in layers for t in (layer.keys, layer.values)]


class FirstOutput(torch.nn.Module):
    """A model with positional inputs in the order of `names` and a single output."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the first output of the model: logits, or the last hidden states."""
        named = dict(zip(self.names, inputs, strict=True))
        return self.model(**named, return_dict=True)[0]


def export_logits(name: str, directory: str, out: str) -> None:
    """Export a model with dynamic batch size and sequence length."""
    shape = (2,) if name == "vit" else (2, 16)
    inputs = make_tensors(name, shape)
    axes = dict.fromkeys(range(len(shape)), torch.export.Dim.DYNAMIC)
    torch.onnx.export(
        load_published_model(name, Path(directory)), inputs, out, dynamo=True, opset_version=23,
        dynamic_shapes=((axes,) * len(inputs),), verbose=False,
    )  # fmt: skip


def export_past(directory: str, out: str, opset: str) -> None:
    """Export a decoder with dynamic batch size, new length and past length."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="sdpa"
    ).eval()
    config = model.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    shape = (2, heads, 3, config.hidden_size // config.num_attention_heads)
    past = [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]
    inputs = (torch.ones((2, 4), dtype=torch.int64), torch.ones((2, 7), dtype=torch.int64), past)
    free = torch.export.Dim.DYNAMIC
    axes = ({0: free, 1: free}, {0: free, 1: free}, [{0: free, 2: free} for _ in past])
    torch.onnx.export(
        DecoderWithPast(model), inputs, out, dynamo=True, opset_version=int(opset), dynamic_shapes=axes,
        verbose=False,
    )  # fmt: skip


def export_family(name: str, directory: str, out: str) -> None:
    """Export a model family with dynamic batch size and lengths, decoders with KV caches."""
    family = FAMILIES[name]
    if family.kind == "decoder":
        export_past(directory, out, OPSETS.get(name, "20"))
        return
    inputs = {n: torch.from_numpy(v) for n, v in make_family_inputs(name, 16, 2).items()}
    is_seq2seq = family.kind == "seq2seq"
    if is_seq2seq:
        inputs["decoder_input_ids"] = torch.ones((2, 4), dtype=torch.int64)
    free = torch.export.Dim.DYNAMIC
    # images and spectrograms have fixed sizes
    axes = tuple({0: free, 1: free} if v.dim() == 2 else {0: free} for v in inputs.values())
    # the exporter (2.13) fails for T5 with fused attention, because of a view of a non-tensor value
    model = family.model.from_pretrained(
        Path(directory), attn_implementation="eager" if is_seq2seq else "sdpa"
    )
    # the growing KV cache of an encoder-decoder model cannot be exported
    model.config.use_cache = False
    torch.onnx.export(
        FirstOutput(model.eval(), tuple(inputs)), tuple(inputs.values()), out, dynamo=True,
        opset_version=20, dynamic_shapes=(axes,), input_names=list(inputs), verbose=False,
    )  # fmt: skip


EXPORTS = {"logits": export_logits, "family": export_family, "past": export_past}

if __name__ == "__main__":
    EXPORTS[sys.argv[1]](*sys.argv[2:])
