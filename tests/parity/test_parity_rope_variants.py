"""Families with their own RoPE variants, with all heads, from directories saved by transformers:
CodeGen, RoFormer and DINOv3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.hf_cases import ModelCase, check_generation, check_model_outputs
from support.padded_batches import FixedValues, PaddingMask, TokenIds, make_samples
from support.published_models import assert_matches_float32, open_weighted_spec

pytestmark = pytest.mark.parity

CODEGEN = ModelCase(
    config="CodeGenConfig", model="CodeGenForCausalLM", sides=("left", "right"), position_ids=True,
    tiny={"vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
          "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2},
)  # fmt: skip
TYPED = make_samples(
    {
        "input_ids": TokenIds("seq", 31),
        "attention_mask": PaddingMask("seq"),
        "token_type_ids": TokenIds("seq", 2),
    },
    {"seq": (7, 1, 4)},
)
ROFORMER = ModelCase(
    config="RoFormerConfig", model="RoFormerForMaskedLM", samples=TYPED,
    tiny={"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 37, "max_position_embeddings": 40, "num_labels": 3},
)  # fmt: skip
NARROW = ROFORMER.tiny | {"embedding_size": 24, "rotary_value": True}
CLASSES = replace(ROFORMER, tiny=NARROW, results={"logits": ""})


@dataclass(frozen=True, kw_only=True)
class Seen(ModelCase):
    """A case of images, which have no padding."""

    def run_published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(pixel_values=x["pixel_values"])
        return {name: made[name] for name in self.results}


def pictures(high: int, wide: int) -> Any:
    """Return three images of one size."""
    return make_samples({"pixel_values": FixedValues((3, high, wide))}, {"picture": (1, 1, 1)})


DINOV3 = Seen(
    config="DINOv3ViTConfig", model="DINOv3ViTModel", samples=pictures(16, 16),
    results={"last_hidden_state": "", "pooler_output": ""},
    tiny={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
          "image_size": 16, "patch_size": 4},
)  # fmt: skip
CASES = {
    "codegen": CODEGEN,
    "codegen tied": replace(
        CODEGEN, tiny=CODEGEN.tiny | {"tie_word_embeddings": True, "n_inner": 40, "rotary_dim": 8},
    ),
    "codegen body": replace(CODEGEN, model="CodeGenModel", results={"last_hidden_state": "seq"}),
    "roformer": ROFORMER,
    "roformer narrow": replace(ROFORMER, tiny=NARROW),
    "roformer writes": replace(
        ROFORMER, model="RoFormerForCausalLM", tiny=NARROW | {"is_decoder": True, "hidden_act": "relu"},
    ),
    "roformer untied": replace(ROFORMER, tiny=NARROW | {"tie_word_embeddings": False}),
    "roformer classes": replace(CLASSES, model="RoFormerForSequenceClassification"),
    "roformer tokens": replace(ROFORMER, model="RoFormerForTokenClassification"),
    "roformer answers": replace(
        ROFORMER, model="RoFormerForQuestionAnswering", tiny=ROFORMER.tiny | {"num_labels": 2},
        results={"start_logits": "seq", "end_logits": "seq"},
    ),
    "roformer body": replace(ROFORMER, model="RoFormerModel", results={"last_hidden_state": "seq"}),
    "dinov3": DINOV3,
    "dinov3 registers": replace(
        DINOV3, samples=pictures(16, 24),
        tiny=DINOV3.tiny | {"num_register_tokens": 3, "use_gated_mlp": True, "image_size": (16, 24),
                            "key_bias": True, "hidden_act": "silu"},
    ),
    "dinov3 without biases": replace(
        DINOV3, tiny=DINOV3.tiny | {"patch_size": (4, 8), "query_bias": False, "mlp_bias": False,
                                    "proj_bias": False, "value_bias": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    check_model_outputs(CASES[name], tmp_path)


def test_generation(tmp_path: Path) -> None:
    check_generation(replace(CODEGEN, weight_scale=3.0), tmp_path)


@pytest.mark.parametrize("turned", [False, True])
def test_sinusoids_of_the_checkpoint(*, turned: bool, tmp_path: Path) -> None:
    """Rounded in a 16-bit file, from which transformers reads them too."""
    case = replace(ROFORMER, tiny=ROFORMER.tiny | {"rotary_value": turned})
    case.save_checkpoint(tmp_path).bfloat16().save_pretrained(tmp_path)
    kind = transformers.RoFormerForMaskedLM
    theirs = kind.from_pretrained(tmp_path, dtype=torch.float32).eval().double()
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    assert_matches_float32(
        ours, case.samples, lambda x: case.run_published(theirs, x), case.results
    )
