"""What a user would run who has PyTorch alone: `torch.onnx.export(dynamo=True)` of any
of the models of `published.py`. `export_family.py NAME FOLDER OUT`.

Decoders are exported with past (`export_past.py`); what translates has no caches, each
token is computed with all before it.
"""

import sys
from pathlib import Path
from typing import Any

import export_past
import torch
from published import FAMILIES, inputs

OPSETS = {"GPT-2": "23"}
"""With 23 there is `Attention`, but the exporter's `RotaryEmbedding` fails in batches."""


class Named(torch.nn.Module):
    """A model called with tensors in the order of `names`; gives its first result."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """What the model gives first: logits, or the last hidden rows."""
        named = dict(zip(self.names, given, strict=True))
        return self.model(**named, return_dict=True)[0]


def main(name: str, directory: str, out: str) -> None:
    """Load the checkpoint and export it with dynamic batch and lengths."""
    family = FAMILIES[name]
    if family.kind == "writes":
        export_past.main(directory, out, OPSETS.get(name, "20"))
        return
    given = {n: torch.from_numpy(v) for n, v in inputs(name, 16, 2).items()}
    if family.kind == "translates":
        given["decoder_input_ids"] = torch.ones((2, 4), dtype=torch.int64)
    free = torch.export.Dim.DYNAMIC
    # texts have any length; pictures and sounds have theirs
    axes = tuple({0: free, 1: free} if v.dim() == 2 else {0: free} for v in given.values())  # fmt: skip
    # T5 with PyTorch's fused attention fails in the exporter (2.13): a view of what is no array
    kind = "eager" if family.kind == "translates" else "sdpa"
    model = family.model.from_pretrained(Path(directory), attn_implementation=kind)
    # a cache that grows is nothing that can be exported here
    model.config.use_cache = False
    torch.onnx.export(
        Named(model.eval(), tuple(given)), tuple(given.values()), out, dynamo=True, opset_version=20,
        dynamic_shapes=(axes,), input_names=list(given), verbose=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
