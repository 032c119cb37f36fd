"""`bert` matches all of transformers' Bert classes, loaded from `save_pretrained`."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import Case, check_scores
from support.padded import Ids, Keep, samples
from support.published import assert_matches, loaded, randomized
from support.spec_models import assert_agrees
from transformers import BertConfig, BertForPreTraining

pytestmark = pytest.mark.parity

GIVEN = samples(
    {"input_ids": Ids("seq", 31), "attention_mask": Keep("seq"), "token_type_ids": Ids("seq", 2)},
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
    return randomized(BertForPreTraining(config))


TINY = {
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
    """Each from its folder alone: its architecture chooses the graph."""
    case = Case(
        config="BertConfig", model=name, tiny={**TINY, **more}, results=results, given=GIVEN
    )
    check_scores(case, tmp_path)


def test_multiple_choice(tmp_path: Path) -> None:
    """Four answers to each question, of different lengths."""
    case = Case(config="BertConfig", model="BertForMultipleChoice", tiny=TINY)
    theirs = case.saved(tmp_path)
    ours = loaded(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    keep = np.arange(7) < rng.integers(1, 8, (3, 4, 1))
    given = {
        "input_ids": rng.integers(0, 31, (3, 4, 7)),
        "attention_mask": keep,
        "token_type_ids": rng.integers(0, 2, (3, 4, 7)),
    }
    wanted = theirs(**{n: torch.tensor(v) for n, v in given.items()}).logits
    made = ours.compiled.run(**given)["logits"]
    assert_agrees(made, wanted.detach().numpy(), "logits", 1e-5)


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_bert(act: str, tmp_path: Path) -> None:
    theirs = model(act)
    theirs.save_pretrained(tmp_path)
    ours = loaded("bert", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = theirs(**x)
        return {name: made[name] for name in RESULTS}

    assert_matches(ours, GIVEN, published, RESULTS)


def test_files_of_2018_call_scale_and_shift_of_norms_gamma_and_beta(tmp_path: Path) -> None:
    model("gelu").save_pretrained(tmp_path)
    weights = loaded("bert", tmp_path).weights
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
    again = loaded("bert", tmp_path / "old").weights
    assert all((again[name] == value).all() for name, value in weights.items())
