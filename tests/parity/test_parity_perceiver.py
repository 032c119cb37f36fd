"""`perceiver` matches transformers' PerceiverForMaskedLM and
PerceiverForSequenceClassification.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import transformers
from support.hf_cases import ModelCase, check_model_outputs
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import randomize_weights
from transformers import PreTrainedModel

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {"inputs": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)
TINY = {
    "vocab_size": 31, "d_model": 24, "num_latents": 5, "d_latents": 16, "num_self_attends_per_block": 2,
    "num_self_attention_heads": 4, "num_cross_attention_heads": 2, "max_position_embeddings": 9,
    "self_attention_widening_factor": 2, "cross_attention_widening_factor": 3,
}  # fmt: skip


class Unfused(ModelCase):
    """The published class has no fused attention to be read back with."""

    def save_checkpoint(self, directory: Path) -> PreTrainedModel:
        config = transformers.PerceiverConfig(**self.tiny)
        theirs = randomize_weights(getattr(transformers, self.model)(config), self.seed)
        theirs.save_pretrained(directory)
        return theirs


CASES: Mapping[str, tuple[str, dict[str, object]]] = {
    "masked lm": ("PerceiverForMaskedLM", {}),
    "blocks": ("PerceiverForMaskedLM", {"num_blocks": 3}),
    "queries": (
        "PerceiverForMaskedLM",
        {"cross_attention_shape_for_attention": "q", "use_query_residual": False},
    ),
    "classes": ("PerceiverForSequenceClassification", {"num_labels": 5}),
    "widths": (
        "PerceiverForSequenceClassification",
        {"qk_channels": 8, "v_channels": 16, "num_blocks": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_perceiver(case: str, tmp_path: Path) -> None:
    model, more = CASES[case]
    config = {**TINY, **more}
    check_model_outputs(
        Unfused(
            config="PerceiverConfig",
            model=model,
            tiny=config,
            results={"logits": ""},
            samples=GIVEN,
        ),
        tmp_path,
    )
