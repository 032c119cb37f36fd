"""`bloom` matches transformers' BloomForCausalLM, also with the checkpoint of the base model."""

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
from transformers import BloomConfig, BloomForCausalLM

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)


@pytest.mark.parametrize(
    ("heads", "normed", "bare"),
    [(4, False, False), (6, False, True), (3, True, False)],
    ids=["a power of two", "six heads, bare", "three heads, residual behind the norm"],
)
def test_bloom(heads: int, normed: bool, bare: bool, tmp_path: Path) -> None:
    """The published model gives no numbers for text padded on the left in float64: each
    row is run by itself.
    """
    config = BloomConfig(
        vocab_size=31,
        hidden_size=24,
        n_layer=3,
        n_head=heads,
        apply_residual_connection_post_layernorm=normed,
    )
    theirs = randomize_weights(BloomForCausalLM(config))
    (theirs.transformer if bare else theirs).save_pretrained(tmp_path)
    # as in the first files: names of the bare model, under the class that writes
    theirs.config.architectures = ["BloomForCausalLM"]
    theirs.config.save_pretrained(tmp_path)
    ours = open_weighted_spec("bloom", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": run_one_by_one(x, lambda ids: theirs(input_ids=ids).logits)}

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
