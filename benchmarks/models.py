"""The models that are compared: published architectures with random weights, as one
would have them from a hub.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


@dataclass(frozen=True)
class Published:
    """A model of transformers, its config, the spec that is the same, and the inputs it
    is timed on.
    """

    spec: str
    model: Any
    config: Any
    shapes: tuple[tuple[int, ...], ...]
    output: str

    def inputs(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Inputs under the spec's names."""
        rng = np.random.default_rng(0)
        if self.spec == "vit":
            return {"pixel_values": rng.normal(size=(shape[0], 3, 224, 224)).astype(np.float32)}
        ids = rng.integers(5, 1000, shape)
        given = {"input_ids": ids, "attention_mask": np.ones(shape, bool)}
        return given | (
            {"token_type_ids": np.zeros(shape, np.int64)} if self.spec == "bert" else {}
        )


MODELS = {
    "bert": Published(
        "bert",
        transformers.BertForPreTraining,
        transformers.BertConfig(),
        ((1, 128), (8, 128)),
        "prediction_logits",
    ),
    "vit": Published(
        "vit",
        transformers.ViTForImageClassification,
        transformers.ViTConfig(num_labels=1000),
        ((1,), (8,)),
        "logits",
    ),
    "gpt2": Published(
        "gpt2",
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(use_cache=False),
        ((1, 128),),
        "logits",
    ),
}
"""BERT-base with its pre-training heads, ViT-base of 224 × 224 pixels, GPT-2 small."""


def save(name: str, directory: Path) -> None:
    """A checkpoint folder, as published ones are."""
    torch.manual_seed(0)
    made = MODELS[name].model(MODELS[name].config)
    made.eval().save_pretrained(directory, safe_serialization=True)


def published(name: str, directory: Path) -> Any:
    """The model of a checkpoint folder, with PyTorch's own fused attention, as an
    exporter takes it.
    """
    found = MODELS[name].model.from_pretrained(directory, attn_implementation="sdpa")
    return Only(name, found).eval()


class Only(torch.nn.Module):
    """A model whose forward takes tensors and gives one: what an exporter can trace."""

    def __init__(self, name: str, model: Any) -> None:
        super().__init__()
        self.name, self.model = name, model

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """The logits that are compared."""
        if self.name == "vit":
            return self.model(pixel_values=given[0]).logits
        if self.name == "gpt2":
            return self.model(input_ids=given[0], attention_mask=given[1]).logits
        found = self.model(input_ids=given[0], attention_mask=given[1], token_type_ids=given[2])
        return found.prediction_logits


def tensors(name: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The same inputs for PyTorch."""
    given = MODELS[name].inputs(shape)
    return tuple(
        torch.from_numpy(v.astype(np.int64) if v.dtype == bool else v) for v in given.values()
    )
