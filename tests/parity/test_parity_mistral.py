"""`mistral` matches transformers' MistralForCausalLM, with a window shorter than the sequence."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from transformers import MistralConfig, MistralForCausalLM

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (9, 1, 4)}
)


@pytest.mark.parametrize("window", [1, 3, None])
def test_mistral(window: int | None, tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=31, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=window,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    theirs = randomize_weights(MistralForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec("mistral", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
