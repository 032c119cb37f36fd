"""ImageGPT with all heads, from directories saved by transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hf_cases import ModelCase, check_generation, check_model_outputs
from support.padded_batches import TokenIds, make_samples

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 29,
    "eos_token_id": 2,
}  # fmt: skip
CASE = ModelCase(
    config="ImageGPTConfig",
    model="ImageGPTForCausalImageModeling",
    sides=("left", "right"),
    position_ids=True,
    tiny=SMALL,
)
SCALED = {
    "n_inner": 40, "activation_function": "gelu", "scale_attn_by_inverse_layer_idx": True,
    "scale_attn_weights": False, "layer_norm_epsilon": 1e-3,
}  # fmt: skip
CASES = {
    "lm": CASE,
    "lm, scaled by layer": replace(CASE, tiny={**SMALL, **SCALED}),
    "body": replace(CASE, model="ImageGPTModel", results={"last_hidden_state": "seq"}),
}


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    check_model_outputs(CASES[name], tmp_path)


def test_generation(tmp_path: Path) -> None:
    check_generation(replace(CASE, weight_scale=3.0), tmp_path)


def test_image_classification(tmp_path: Path) -> None:
    """Images of one size, which have no padding."""
    size = {"seq": (16, 16, 16)}
    case = replace(
        CASE,
        model="ImageGPTForImageClassification",
        results={"logits": ""},
        samples=make_samples({"input_ids": TokenIds("seq", 31)}, size),
        sides=("right",),
        position_ids=False,
    )
    check_model_outputs(case, tmp_path)
