"""`lstm_lm` matches `torch.nn.LSTM` between `nn.Embedding` and `nn.Linear`."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Ids, Keep, samples
from support.published import assert_matches, from_module, with_weights
from support.torch_recurrent import LanguageModel, language_model

pytestmark = pytest.mark.parity

GIVEN = samples({"ids": Ids("seq", 31), "keep": Keep("seq")}, {"seq": (7, 1, 4)})


@pytest.mark.parametrize(("layers", "tied"), [(1, False), (3, True)])
def test_lstm_lm(layers: int, tied: bool, tmp_path: Path) -> None:
    width = 12 if tied else 9
    theirs: LanguageModel = language_model(
        torch.nn.LSTM, vocab=31, width=width, hidden=12, layers=layers, tied=tied
    )
    weights = from_module(theirs)
    if tied:
        del weights["decoder.weight"]
    sets = {"vocab": 31, "width": width, "hidden": 12, "layers": layers, "tied": tied}
    ours = with_weights("lstm_lm", weights, tmp_path, **sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x["ids"], x["keep"])}

    assert_matches(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
