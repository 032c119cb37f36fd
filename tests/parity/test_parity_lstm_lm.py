"""`lstm_lm` matches `torch.nn.LSTM` between `nn.Embedding` and `nn.Linear`."""

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
from support.torch_layers import RecurrentLanguageModel, make_language_model

pytestmark = pytest.mark.parity

GIVEN = make_samples({"ids": TokenIds("seq", 31), "keep": PaddingMask("seq")}, {"seq": (7, 1, 4)})


@pytest.mark.parametrize(("layers", "tied"), [(1, False), (3, True)])
def test_lstm_lm(layers: int, tied: bool, tmp_path: Path) -> None:
    width = 12 if tied else 9
    theirs: RecurrentLanguageModel = make_language_model(
        torch.nn.LSTM, vocab=31, width=width, hidden=12, layers=layers, tied=tied
    )
    weights = list_module_weights(theirs)
    if tied:
        del weights["decoder.weight"]
    sets = {"vocab": 31, "width": width, "hidden": 12, "layers": layers, "tied": tied}
    ours = build_weighted_spec("lstm_lm", weights, tmp_path, **sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["ids"], x["keep"])}

    assert_matches_published(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
