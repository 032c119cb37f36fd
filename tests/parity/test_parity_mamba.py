"""`mamba` matches transformers' MambaForCausalLM, for padded batches and for single sequences."""

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
from transformers import MambaConfig, MambaForCausalLM, MambaModel

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (9, 1, 4)}
)
OTHERS = {
    "conv_kernel": 3,
    "use_bias": True,
    "use_conv_bias": False,
    "hidden_act": "gelu",
    "expand": 3,
    "time_step_rank": 5,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("settings", [{}, OTHERS], ids=["usual", "others"])
def test_mamba(settings: dict[str, object], tmp_path: Path) -> None:
    """With a bias of in_proj the published model's padding is no zeros for its
    convolution: rows of a batch are run through it one by one.
    """
    config = MambaConfig(
        vocab_size=31, hidden_size=20, state_size=5, num_hidden_layers=3, layer_norm_epsilon=1e-6, use_cache=False,
        **settings,
    )  # fmt: skip
    theirs = randomize_weights(MambaForCausalLM(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if not settings:
            given = {**x, "attention_mask": x["attention_mask"].long()}
            return {"logits": theirs(**given, use_cache=False).logits}
        return {
            "logits": run_one_by_one(
                x, lambda ids: theirs(input_ids=ids, use_cache=False).logits.double()
            )
        }

    assert_matches_float32(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))


def test_base(tmp_path: Path) -> None:
    """The class without a head, from its folder alone; each text by itself."""
    config = MambaConfig(
        vocab_size=31, hidden_size=20, state_size=5, num_hidden_layers=2, use_cache=False
    )
    theirs = randomize_weights(MambaModel(config))
    theirs.save_pretrained(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = run_one_by_one(
            x, lambda ids: theirs(ids, use_cache=False).last_hidden_state.double()
        )
        return {"last_hidden_state": made}

    sides = ("left", "right")
    assert_matches_float32(ours, GIVEN, published, {"last_hidden_state": "seq"}, sides)
