"""S2T, from the folders that transformers saves, each recording by itself: in a batch the
published convolutions read what stands behind a recording's end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import Case, check_scores
from support.padded import Ids, Keep, Sound, samples

pytestmark = pytest.mark.parity


def heard(width: int) -> Any:
    """Three recordings and what is said in them, of unequal lengths."""
    return samples(
        {
            "input_features": Sound("frames", width),
            "attention_mask": Keep("frames"),
            "decoder_input_ids": Ids("tgt", 31),
            "decoder_attention_mask": Keep("tgt"),
        },
        {"frames": (17, 6, 11), "tgt": (5, 5, 2)},
    )


@dataclass(frozen=True, kw_only=True)
class Alone(Case):
    """The published model, given one recording after another."""

    def published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids, said = x["decoder_input_ids"], x["decoder_attention_mask"].bool()
        frames = x["attention_mask"].bool()
        rows: dict[str, list[torch.Tensor]] = {name: [] for name in self.results}
        for n in range(len(ids)):
            sound = x["input_features"][n, frames[n]][None]
            made = theirs(input_features=sound, decoder_input_ids=ids[n, said[n]][None])
            for name in self.results:
                whole = made[name].new_zeros(ids.shape[1], made[name].shape[2])
                whole[said[n]] = made[name][0]
                rows[name].append(whole)
        return {name: torch.stack(found) for name, found in rows.items()}


WRITES = Alone(
    config="Speech2TextConfig", model="Speech2TextForConditionalGeneration", given=heard(10),
    results={"logits": "tgt"},
    # what is padding says the mask here, the id there: none of the ids is that
    tiny={"vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 37, "decoder_ffn_dim": 41, "conv_channels": 24,
          "input_feat_per_channel": 10, "max_source_positions": 60, "max_target_positions": 40, "pad_token_id": 39},
)  # fmt: skip
CASES = {
    "writes": WRITES,
    "body": replace(
        WRITES, model="Speech2TextModel", results={"last_hidden_state": "tgt"}
    ),
    "three convolutions": replace(
        WRITES, given=heard(20),
        tiny=WRITES.tiny | {"scale_embedding": False, "num_conv_layers": 3, "conv_kernel_sizes": (3, 5, 3),
                            "input_channels": 2, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, tmp_path: Path) -> None:
    check_scores(CASES[name], tmp_path)
