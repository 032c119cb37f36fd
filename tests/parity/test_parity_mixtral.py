"""`mixtral` matches transformers' MixtralForCausalLM, with fewer experts than tokens."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec, randomize_weights
from transformers import MixtralConfig, MixtralForCausalLM

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (9, 1, 4)}
)


@pytest.mark.parametrize(("window", "experts", "chosen"), [(None, 4, 2), (3, 5, 1), (None, 3, 3)])
def test_mixtral(window: int | None, experts: int, chosen: int, tmp_path: Path) -> None:
    config = MixtralConfig(
        vocab_size=31, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=window, num_local_experts=experts,
        num_experts_per_tok=chosen, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    theirs = randomize_weights(MixtralForCausalLM(config))
    for weight in theirs.parameters():
        if weight.dim() == 3:  # all experts in one: as large as each alone would be
            weight.data *= weight.shape[1] ** 0.5
    theirs.save_pretrained(tmp_path)
    # each expert is a tensor of its own in the file
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        name = f"model.layers.2.block_sparse_moe.experts.{experts - 1}.w2.weight"
        assert name in set(file.keys())
    ours = open_weighted_spec("mixtral", tmp_path)
    theirs.set_experts_implementation("eager")  # the other way has no float64
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
