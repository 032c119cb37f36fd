"""`gru_lm` matches `torch.nn.GRU` between `nn.Embedding` and `nn.Linear`."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
)
from support.torch_layers import make_language_model

pytestmark = pytest.mark.parity

GIVEN = make_samples({"ids": TokenIds("seq", 31), "keep": PaddingMask("seq")}, {"seq": (7, 1, 4)})


@pytest.mark.parametrize("layers", [1, 3])
def test_gru_lm(layers: int, tmp_path: Path) -> None:
    theirs = make_language_model(torch.nn.GRU, vocab=31, width=9, hidden=12, layers=layers)
    ours = build_weighted_spec(
        "gru_lm", list_module_weights(theirs), tmp_path, vocab=31, width=9, hidden=12, layers=layers
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["ids"], x["keep"])}

    assert_matches_published(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
