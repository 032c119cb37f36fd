"""`gru_lm` matches `torch.nn.GRU` between `nn.Embedding` and `nn.Linear`."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Ids, Keep, samples
from support.published import assert_matches, from_module, with_weights
from support.torch_recurrent import language_model

pytestmark = pytest.mark.parity

GIVEN = samples({"ids": Ids("seq", 31), "keep": Keep("seq")}, {"seq": (7, 1, 4)})


@pytest.mark.parametrize("layers", [1, 3])
def test_gru_lm(layers: int, tmp_path: Path) -> None:
    theirs = language_model(torch.nn.GRU, vocab=31, width=9, hidden=12, layers=layers)
    ours = with_weights(
        "gru_lm", from_module(theirs), tmp_path, vocab=31, width=9, hidden=12, layers=layers
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["ids"], x["keep"])}

    assert_matches(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
