"""NLLB-MoE, from directories saved by transformers.

The experts of transformers 5 take the one-hot mask of the first choice for expert ids, so that only
experts 0 and 1 run. The tests repair the experts of the reference, and compare with the class as it is
where all experts have equal weights.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.hf_cases import ModelCase, check_model_outputs, check_translation
from support.hf_encoder_decoder_cases import TRANSLATION_SAMPLES, make_translation_case
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeExperts

import specc
from specc.diagnostics.diagnostic import SpeccError

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 31, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 29, "num_experts": 5,
    "encoder_sparse_step": 2, "decoder_sparse_step": 2,
}  # fmt: skip
# seeds with which no padding token is generated: its position embedding is zero in the class
VARIANTS: dict[str, dict[str, Any]] = {
    "all layers sparse": {"encoder_sparse_step": 1, "decoder_sparse_step": 1, "num_experts": 2, "seed": 3},
    "no layer sparse": {"encoder_sparse_step": 0, "decoder_sparse_step": 4},
    "router with bias": {"router_bias": True, "moe_token_dropout": 0.0, "scale_embedding": False},
    "untied": {"tie_word_embeddings": False, "activation_function": "gelu"},
    "order of dropping": {
        "batch_prioritized_routing": True, "normalize_router_prob_before_dropping": True,
        "router_ignore_padding_tokens": True, "moe_eval_capacity_token_fraction": 1.5,
    },
}  # fmt: skip


def case(model: str = "ForConditionalGeneration", seed: int = 1, **more: Any) -> ModelCase:
    made = make_translation_case("NllbMoe", model, **{**SMALL, **more}).case
    return replace(made, samples=TRANSLATION_SAMPLES, seed=seed, weight_scale=1.5)


CASES = {"nllb_moe": case(), **{name: case(**more) for name, more in VARIANTS.items()}}


def run_experts(
    experts: Any, hidden: torch.Tensor, mask: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """Return the sum of all expert outputs, weighted by `gates` (0 if not selected)."""
    scale = 1 - experts.moe_token_dropout
    return scale * sum(
        experts[f"expert_{n}"](hidden) * gates[:, n, None] for n in range(experts.num_experts)
    )


@pytest.fixture
def repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NllbMoeExperts, "forward", run_experts)


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    check_model_outputs(CASES[name], tmp_path)


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("name", CASES)
def test_generation(name: str, tmp_path: Path) -> None:
    check_translation(CASES[name], tmp_path)


@pytest.mark.usefixtures("repaired")
def test_base_model(tmp_path: Path) -> None:
    """The model without a head, whose files have no prefix."""
    results = {"last_hidden_state": "tgt", "encoder_last_hidden_state": "src"}
    check_model_outputs(replace(case("Model"), results=results), tmp_path)


class EqualExperts(ModelCase):
    """All experts have the weights of expert 0, so that the routing mask does not matter."""

    def save_checkpoint(self, directory: Path) -> Any:
        model = super().save_checkpoint(directory)
        for module in model.modules():
            if isinstance(module, NllbMoeExperts):
                for n in range(1, module.num_experts):
                    module[f"expert_{n}"].load_state_dict(module["expert_0"].state_dict())
        model.save_pretrained(directory)
        return model


def test_equal_experts(tmp_path: Path) -> None:
    """The class of transformers without a change."""
    made = case()
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    check_model_outputs(EqualExperts(**fields), tmp_path)


@pytest.mark.parametrize(
    "setting",
    [
        {"second_expert_policy": "random"},
        {"router_dtype": "bfloat16"},
        {"moe_eval_capacity_token_fraction": 0.5},
    ],
)
def test_refused_settings(setting: dict[str, Any], tmp_path: Path) -> None:
    transformers.NllbMoeForConditionalGeneration(
        transformers.NllbMoeConfig(**{**SMALL, **setting})
    ).save_pretrained(tmp_path)
    with pytest.raises(SpeccError, match=next(iter(setting))):
        specc.compile(str(tmp_path), tmp_path / "m.onnx")
