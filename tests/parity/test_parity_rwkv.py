"""`rwkv` matches transformers' RwkvForCausalLM, one sequence at a time."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    assert_matches_float32,
    open_weighted_spec,
    randomize_weights,
    run_one_by_one,
)
from transformers import RwkvConfig, RwkvForCausalLM, RwkvModel

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)


@pytest.mark.parametrize("inner", [24, 32])
def test_rwkv(inner: int, tmp_path: Path) -> None:
    """The published model knows no padding: rows of a batch are run through it one by one."""
    config = RwkvConfig(
        vocab_size=31, hidden_size=24, attention_hidden_size=inner, num_hidden_layers=3, intermediate_size=40,
        rescale_every=0, use_cache=False,
    )  # fmt: skip
    theirs = randomize_weights(RwkvForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {
            "logits": run_one_by_one(x, lambda ids: theirs(input_ids=ids, use_cache=False).logits)
        }

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))


@pytest.mark.parametrize("every", [0, 1])
def test_base(every: int, tmp_path: Path) -> None:
    """The class without a head, from its folder alone; each text by itself."""
    config = RwkvConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=3, rescale_every=every, use_cache=False
    )
    theirs = randomize_weights(RwkvModel(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = run_one_by_one(x, lambda ids: theirs(ids).last_hidden_state)
        return {"last_hidden_state": made}

    sides = ("left", "right")
    assert_matches_float32(ours, GIVEN, published, {"last_hidden_state": "seq"}, sides)
