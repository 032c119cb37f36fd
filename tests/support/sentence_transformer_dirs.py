"""Sentence-transformers directories with random weights, and their modules as float64 equations."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from support.text_checkpoints import FAMILIES, TextCheckpoint

LEGACY_PACKAGE = "sentence_transformers.models"
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": torch.nn.Tanh(),
    "torch.nn.modules.linear.Identity": torch.nn.Identity(),
    "torch.nn.modules.activation.GELU": torch.nn.GELU(),
    "torch.nn.modules.activation.ReLU": torch.nn.ReLU(),
    "torch.nn.modules.activation.SiLU": torch.nn.SiLU(),
    "torch.nn.modules.activation.Sigmoid": torch.nn.Sigmoid(),
}
LEGACY_POOLING = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
WIDTH = 24


@dataclass(frozen=True, kw_only=True)
class SentenceTransformerDir:
    """A directory: its encoder, pooling, Dense layers as (width, activation), and preprocessing
    settings. `apart`: the encoder is in a subdirectory, as in old versions.
    """

    family: TextCheckpoint = FAMILIES[0]
    modes: Sequence[str] = ("mean",)
    dense: Sequence[tuple[int, str]] = ()
    residual: bool = False
    normalize: bool = True
    layer_norm: bool = False
    legacy: bool = False
    separate_encoder: bool = False
    include_prompt: bool = True
    prompts: tuple[tuple[str, str], ...] = ()
    default: str | None = None
    max_length: int | None = None
    lower: bool = False

    def save(self, root: Path) -> None:
        """Write the directory."""
        encoder = root / "0_Transformer" if self.separate_encoder else root
        self.family.save("Model", encoder)
        about: dict[str, Any] = {"do_lower_case": self.lower}
        if self.max_length is not None:
            about["max_seq_length"] = self.max_length
        _write(encoder / "sentence_bert_config.json", about)
        modules = [("Transformer", "0_Transformer" if self.separate_encoder else "")]
        modules.append(self._pooling(root))
        width = WIDTH * len(self.modes)
        for out, activation in self.dense:
            modules.append(self._dense(root, len(modules), width, out, activation))
            width = out
        if self.layer_norm:
            name = f"{len(modules)}_LayerNorm"
            _write(root / name / "config.json", {"dimension": width})
            _weights(root / name, {"norm.weight": (width,), "norm.bias": (width,)})
            modules.append(("LayerNorm", name))
        if self.normalize:
            modules.append(("Normalize", f"{len(modules)}_Normalize"))
            (root / modules[-1][1]).mkdir()
        _write(
            root / "modules.json",
            [
                {"idx": i, "name": str(i), "path": path, "type": f"{LEGACY_PACKAGE}.{kind}"}
                for i, (kind, path) in enumerate(modules)
            ],
        )
        prompts = {"prompts": dict(self.prompts), "default_prompt_name": self.default}
        more = {"similarity_fn_name": "cosine", "__version__": {}}
        _write(root / "config_sentence_transformers.json", {**prompts, **more})

    def _pooling(self, root: Path) -> tuple[str, str]:
        told: dict[str, Any] = {"include_prompt": self.include_prompt}
        if self.legacy:
            told["word_embedding_dimension"] = WIDTH
            told |= {key: mode in self.modes for mode, key in LEGACY_POOLING.items()}
        else:
            told["embedding_dimension"] = WIDTH
            told["pooling_mode"] = list(self.modes) if len(self.modes) > 1 else self.modes[0]
        _write(root / "1_Pooling" / "config.json", told)
        return "Pooling", "1_Pooling"

    def _dense(
        self, root: Path, number: int, width: int, out: int, activation: str
    ) -> tuple[str, str]:
        name = f"{number}_Dense"
        told = {"in_features": width, "out_features": out, "bias": True}
        more: dict[str, Any] = {"use_residual": True} if self.residual else {}
        named = {"activation_function": activation}
        _write(root / name / "config.json", {**told, **named, **more})
        shapes: dict[str, Sequence[int]] = {"linear.weight": (out, width), "linear.bias": (out,)}
        if self.residual and out != width:
            shapes["residual.weight"] = (out, width)
        _weights(root / name, shapes)
        return "Dense", name

    def encode(self, root: Path, texts: Sequence[str], prompt: str = "") -> Any:
        """Return the embeddings of each text alone, from the equations in float64."""
        import transformers

        encoder = root / "0_Transformer" if self.separate_encoder else root
        model = transformers.AutoModel.from_pretrained(encoder).double().eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
        fold = str.lower if self.lower else str
        before = 0
        if prompt and not self.include_prompt:
            ids = tokenizer(fold(prompt))["input_ids"]
            before = len(ids) - (ids[-1] in tokenizer.all_special_ids)
        rows = []
        for text in texts:
            given = tokenizer(
                fold(prompt + text),
                return_tensors="pt",
                truncation=self.max_length is not None,
                max_length=self.max_length,
            )
            with torch.no_grad():
                x = model(**given).last_hidden_state[0]
                rows.append(self._modules(root, x, before).numpy())
        return np.stack(rows)

    def _modules(self, root: Path, x: torch.Tensor, before: int) -> torch.Tensor:
        """Apply pooling and the later modules to the hidden states of one text."""
        weights = torch.arange(1, len(x) + 1, dtype=x.dtype)[before:, None]
        x = x[before:]
        pooled = {
            "cls": x[0],
            "max": x.max(0).values,
            "mean": x.mean(0),
            "mean_sqrt_len_tokens": x.sum(0) / len(x) ** 0.5,
            "weightedmean": (x * weights).sum(0) / weights.sum(),
            "lasttoken": x[-1],
        }
        # the library concatenates the pooling modes of old files in a fixed order
        modes = [m for m in LEGACY_POOLING if m in self.modes] if self.legacy else self.modes
        v = torch.cat([pooled[mode] for mode in modes])
        for number, (out, activation) in enumerate(self.dense, start=2):
            w = _read(root / f"{number}_Dense")
            made = ACTIVATIONS[activation](w["linear.weight"] @ v + w["linear.bias"])
            if self.residual:
                made = made + (v if out == len(v) else w["residual.weight"] @ v)
            v = made
        if self.layer_norm:
            w = _read(root / f"{2 + len(self.dense)}_LayerNorm")
            args = (w["norm.weight"], w["norm.bias"], 1e-5)
            v = torch.nn.functional.layer_norm(v, v.shape, *args)
        return v / v.norm().clamp(min=1e-12) if self.normalize else v


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _weights(directory: Path, shapes: dict[str, Sequence[int]]) -> None:
    source = torch.Generator().manual_seed(len(directory.name))
    made = {n: torch.randn(*s, generator=source) / 3 for n, s in shapes.items()}
    save_file(made, directory / "model.safetensors")


def _read(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found = load_file(directory / "model.safetensors")
    return {name: tensor.double() for name, tensor in found.items()}
