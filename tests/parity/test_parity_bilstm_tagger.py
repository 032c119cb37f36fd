"""`bilstm_tagger` matches torch's bidirectional `nn.LSTM` over packed sequences, with
`nn.Embedding` and `nn.Linear`.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
    randomize_weights,
)
from support.torch_layers import run_unpadded_layer
from torch import nn

pytestmark = pytest.mark.parity

GIVEN = make_samples({"ids": TokenIds("seq", 31), "keep": PaddingMask("seq")}, {"seq": (7, 1, 4)})


class Tagger(nn.Module):
    """Token ids to tags."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=layers, bidirectional=True, batch_first=True)
        self.output = nn.Linear(10, 7)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.output(run_unpadded_layer(self.lstm, self.embed(ids), keep)[0])


@pytest.mark.parametrize("layers", [1, 2])
def test_bilstm_tagger(layers: int, tmp_path: Path) -> None:
    theirs = randomize_weights(Tagger(layers))
    ours = build_weighted_spec(
        "bilstm_tagger",
        list_module_weights(theirs),
        tmp_path,
        vocab=31,
        tags=7,
        width=6,
        hidden=5,
        layers=layers,
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        logits = theirs(x["ids"], x["keep"])
        return {"logits": logits, "best": logits.argmax(-1)}

    assert_matches_published(
        ours, GIVEN, published, {"logits": "seq", "best": "seq"}, ("left", "right")
    )
