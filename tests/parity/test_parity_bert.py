"""`bert` matches all of transformers' Bert classes, loaded from `save_pretrained`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase, check_model_outputs
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_published, open_weighted_spec, randomize_weights
from transformers import BertConfig, BertForPreTraining

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {
        "input_ids": TokenIds("seq", 31),
        "attention_mask": PaddingMask("seq"),
        "token_type_ids": TokenIds("seq", 2),
    },
    {"seq": (7, 1, 4)},
)
RESULTS = {"prediction_logits": "seq", "seq_relationship_logits": ""}


def model(act: str) -> BertForPreTraining:
    config = BertConfig(
        vocab_size=31,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=12,
        hidden_act=act,
        layer_norm_eps=1e-6,
    )
    return randomize_weights(BertForPreTraining(config))


TINY: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 12,
}  # fmt: skip
HEADS = [
    ("BertForMaskedLM", {"logits": "seq"}, {}),
    ("BertForNextSentencePrediction", {"logits": ""}, {}),
    ("BertForSequenceClassification", {"logits": ""}, {"num_labels": 5}),
    ("BertForTokenClassification", {"logits": "seq"}, {"num_labels": 3}),
    ("BertForQuestionAnswering", {"start_logits": "seq", "end_logits": "seq"}, {}),
    ("BertModel", {"last_hidden_state": "seq", "pooler_output": ""}, {}),
    ("BertLMHeadModel", {"logits": "seq"}, {"is_decoder": True}),
]


@pytest.mark.parametrize(("name", "results", "more"), HEADS, ids=[h[0] for h in HEADS])
def test_heads(
    name: str, results: Mapping[str, str], more: Mapping[str, object], tmp_path: Path
) -> None:
    """The directory alone is enough: its architecture selects the graph."""
    case = ModelCase(
        config="BertConfig", model=name, tiny={**TINY, **more}, results=results, samples=GIVEN
    )
    check_model_outputs(case, tmp_path)


def test_multiple_choice(tmp_path: Path) -> None:
    """Four choices per question, of different lengths."""
    case = ModelCase(config="BertConfig", model="BertForMultipleChoice", tiny=TINY)
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    keep = np.arange(7) < rng.integers(1, 8, (3, 4, 1))
    given = {
        "input_ids": rng.integers(0, 31, (3, 4, 7)),
        "attention_mask": keep,
        "token_type_ids": rng.integers(0, 2, (3, 4, 7)),
    }
    wanted = theirs(**{n: torch.tensor(v) for n, v in given.items()}).logits
    made = ours.compiled.run(**given)["logits"]
    assert_arrays_close(made, wanted.detach().numpy(), "logits", 1e-5)


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_bert(act: str, tmp_path: Path) -> None:
    theirs = model(act)
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("bert", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(**x)
        return {name: made[name] for name in RESULTS}

    assert_matches_published(ours, GIVEN, published, RESULTS)


def attend_with_relative_keys(attention: Any, table: torch.Tensor, with_query: bool) -> Any:
    """Return the forward of self-attention in transformers 4 with relative positions
    (arXiv:1803.02155, eq. 4, and arXiv:2009.13658, sec. 3.3, method 4).
    """

    def forward(
        x: torch.Tensor, attention_mask: torch.Tensor | None = None, *_: Any, **__: Any
    ) -> Any:
        heads = attention.num_attention_heads
        q, k, v = (
            layer(x).unflatten(2, (heads, -1)).transpose(1, 2)
            for layer in (attention.query, attention.key, attention.value)
        )
        index = torch.arange(x.shape[1])
        distance = table[index[:, None] - index + len(table) // 2]
        scores = q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, distance)
        if with_query:
            scores = scores + torch.einsum("bhrd,lrd->bhlr", k, distance)
        scores = scores / q.shape[-1] ** 0.5
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), None

    return forward


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions(kind: str, tmp_path: Path) -> None:
    """Checkpoints of transformers 4; the current class has absolute positions only."""
    case = ModelCase(
        config="BertConfig",
        model="BertForMaskedLM",
        tiny=TINY,
        results={"logits": "seq"},
        samples=GIVEN,
    )
    theirs = case.save_checkpoint(tmp_path).double()
    torch.nn.init.zeros_(theirs.bert.embeddings.position_embeddings.weight)
    tensors = load_file(tmp_path / "model.safetensors")
    source = torch.Generator().manual_seed(3)
    for n, layer in enumerate(theirs.bert.encoder.layer):
        table = torch.randn((2 * TINY["max_position_embeddings"] - 1, 6), generator=source)
        tensors[f"bert.encoder.layer.{n}.attention.self.distance_embedding.weight"] = table
        attention = layer.attention.self
        attention.forward = attend_with_relative_keys(
            attention, table.double(), kind == "relative_key_query"
        )
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"position_embedding_type": kind}))
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    assert_matches_published(ours, GIVEN, lambda x: case.run_published(theirs, x), case.results)


def test_checkpoints_with_gamma_and_beta(tmp_path: Path) -> None:
    model("gelu").save_pretrained(tmp_path)
    weights = open_weighted_spec("bert", tmp_path).weights
    file = tmp_path / "model.safetensors"
    (tmp_path / "old").mkdir()
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in load_file(file).items()
    }
    save_file(old, tmp_path / "old" / "model.safetensors")
    (tmp_path / "config.json").rename(tmp_path / "old" / "config.json")
    again = open_weighted_spec("bert", tmp_path / "old").weights
    assert all((again[name] == value).all() for name, value in weights.items())
