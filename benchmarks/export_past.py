"""What a user would run to have caches: `torch.onnx.export` of a decoder with past.
`export_past.py DIR OUT OPSET`.
"""

import sys
from typing import Any

import torch
import transformers


class WithPast(torch.nn.Module):
    """Tokens, a mask and the caches, flat, to logits and the caches with the new rows."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: list[torch.Tensor]
    ) -> Any:
        """The last row's logits, as `generate` asks for them, and the caches in order."""
        cache = transformers.DynamicCache()
        for n in range(len(past) // 2):
            cache.update(past[2 * n], past[2 * n + 1], n)
        made = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        layers = made.past_key_values.layers
        return made.logits, [t for layer in layers for t in (layer.keys, layer.values)]


def main(directory: str, out: str, opset: str) -> None:
    """Export with dynamic batch, new and past lengths."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="sdpa"
    ).eval()
    config = model.config
    shape = (
        2,
        getattr(config, "num_key_value_heads", config.num_attention_heads),
        3,
        config.hidden_size // config.num_attention_heads,
    )
    past = [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]
    given = (torch.ones((2, 4), dtype=torch.int64), torch.ones((2, 7), dtype=torch.int64), past)
    batch, new, before, both = (torch.export.Dim.DYNAMIC for _ in range(4))
    axes = ({0: batch, 1: new}, {0: batch, 1: both}, [{0: batch, 2: before} for _ in past])
    torch.onnx.export(
        WithPast(model),
        given,
        out,
        dynamo=True,
        opset_version=int(opset),
        dynamic_shapes=axes,
        verbose=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
