"""`llama` is transformers' LlamaForCausalLM, with grouped heads, biases, tied words and
three rotary scalings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.padded import Ids, Keep, samples
from support.published import assert_published, loaded, randomized
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.parity

GIVEN = samples(
    {"input_ids": Ids("seq", 31), "attention_mask": Keep("seq")}, {"seq": (7, 1, 4)}
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
        (
            LLAMA3,
            {"num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True},
        ),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, {}),
        (YARN, {}),
    ],
    ids=[
        "one head for each",
        "one key head, biases",
        "llama3, wide heads, tied",
        "linear",
        "yarn",
    ],
)
def test_llama(rope: dict[str, Any], more: dict[str, Any], tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, eos_token_id=[1, 2], rope_parameters=rope, **more,
    )  # fmt: skip
    theirs = randomized(LlamaForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    ours = loaded("llama", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_published(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
