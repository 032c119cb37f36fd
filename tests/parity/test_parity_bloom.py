"""`bloom` matches transformers' BloomForCausalLM, also with the checkpoint of the base model."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Ids, Keep, samples
from support.published import assert_published, loaded, one_by_one, randomized
from transformers import BloomConfig, BloomForCausalLM

pytestmark = pytest.mark.parity

GIVEN = samples({"input_ids": Ids("seq", 31), "attention_mask": Keep("seq")}, {"seq": (7, 1, 4)})


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
    theirs = randomized(BloomForCausalLM(config))
    (theirs.transformer if bare else theirs).save_pretrained(tmp_path)
    # as in the first files: names of the bare model, under the class that writes
    theirs.config.architectures = ["BloomForCausalLM"]
    theirs.config.save_pretrained(tmp_path)
    ours = loaded("bloom", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": one_by_one(x, lambda ids: theirs(input_ids=ids).logits)}

    assert_published(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
