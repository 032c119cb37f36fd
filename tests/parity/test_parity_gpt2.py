"""`gpt2` matches transformers' GPT2LMHeadModel, also with the checkpoint of the base model."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_published, open_weighted_spec, randomize_weights
from transformers import GPT2Config, GPT2LMHeadModel

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)


@pytest.mark.parametrize("bare", [False, True], ids=["with a head", "bare"])
def test_gpt2(bare: bool, tmp_path: Path) -> None:
    """Padding on either side; published, positions of left-padded rows are for the
    caller to give.
    """
    config = GPT2Config(
        vocab_size=31,
        n_positions=12,
        n_embd=24,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = randomize_weights(GPT2LMHeadModel(config))
    (theirs.transformer if bare else theirs).save_pretrained(tmp_path)
    # as in the first files: names of the bare model, under the class that writes
    theirs.config.architectures = ["GPT2LMHeadModel"]
    theirs.config.save_pretrained(tmp_path)
    ours = open_weighted_spec("gpt2", tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        ids = (x["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return {"logits": theirs(**x, position_ids=ids).logits}

    assert_matches_published(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
