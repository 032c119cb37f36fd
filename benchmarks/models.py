"""The models that are compared: published architectures with random weights, as one would have them from a hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


@dataclass(frozen=True)
class Published:
    """A model of transformers, the spec that is the same, and the inputs it is timed on."""

    spec: str
    make: Any
    shapes: tuple[tuple[int, ...], ...]
    output: str

    def inputs(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Inputs under the spec's names."""
        rng = np.random.default_rng(0)
        if self.spec == "vit":
            return {"pixels": rng.normal(size=(shape[0], 3, 224, 224)).astype(np.float32)}
        ids = rng.integers(5, 1000, shape)
        given = {"input_ids": ids, "attention_mask": np.ones(shape, bool)}
        return given | ({"token_type_ids": np.zeros(shape, np.int64)} if self.spec == "bert" else {})


def bert() -> Any:
    """BERT-base."""
    return transformers.BertForPreTraining(transformers.BertConfig(attn_implementation="sdpa"))


def vit() -> Any:
    """ViT-base, 224 × 224."""
    config = transformers.ViTConfig(attn_implementation="sdpa", num_labels=1000)
    return transformers.ViTForImageClassification(config)


def gpt2() -> Any:
    """GPT-2 small."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="sdpa", use_cache=False))


MODELS = {
    "bert": Published("bert", bert, ((1, 128), (8, 128)), "prediction_logits"),
    "vit": Published("vit", vit, ((1,), (8,)), "logits"),
    "gpt2": Published("gpt2", gpt2, ((1, 128),), "logits"),
}


def save(name: str, folder: Path) -> None:
    """A checkpoint folder, as published ones are."""
    torch.manual_seed(0)
    MODELS[name].make().eval().save_pretrained(folder, safe_serialization=True)


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
    return tuple(torch.from_numpy(v.astype(np.int64) if v.dtype == bool else v) for v in given.values())
