"""`llama` matches transformers' LlamaForCausalLM, with grouped-query attention, biases, tied
embeddings and three RoPE scalings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase, check_generation, check_model_outputs
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("rope", "more"),
    [
        (PLAIN, {"num_key_value_heads": 4}),
        (PLAIN, {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
        (LLAMA3, {"num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True}),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, {}),
        (YARN, {}),
    ],
    ids=["one head for each", "one key head, biases", "llama3, wide heads, tied", "linear", "yarn"],
)
def test_llama(rope: dict[str, Any], more: dict[str, Any], tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, eos_token_id=[1, 2], rope_parameters=rope, **more,
    )  # fmt: skip
    theirs = randomize_weights(LlamaForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("llama", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))


TINY = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 30,
}  # fmt: skip


def test_hidden_states(tmp_path: Path) -> None:
    case = ModelCase(
        config="LlamaConfig",
        model="LlamaModel",
        tiny=TINY,
        results={"last_hidden_state": "seq"},
        sides=("left", "right"),
        position_ids=True,
    )
    check_model_outputs(case, tmp_path)


def test_sequence_classification(tmp_path: Path) -> None:
    """The published class looks for its padding token, so the padding has that id."""
    case = ModelCase(
        config="LlamaConfig",
        model="LlamaForSequenceClassification",
        tiny={**TINY, "num_labels": 4},
        results={"logits": ""},
    )
    theirs = case.save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    keep = np.arange(7) < np.array([[7], [1], [4]])
    ids = np.where(keep, rng.integers(0, 30, (3, 7)), 30)
    x = {"input_ids": ids, "attention_mask": keep}
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v).long() for n, v in x.items()}).logits
    assert_arrays_close(ours.compiled.run(**x)["logits"], wanted.numpy(), "logits", 1e-5)


def test_generation(tmp_path: Path) -> None:
    case = ModelCase(
        config="LlamaConfig", model="LlamaForCausalLM", tiny=TINY, weight_scale=2.5, seed=2
    )
    check_generation(case, tmp_path)
