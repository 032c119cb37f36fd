"""`elman` matches `torch.nn.RNN` and `nn.Linear`; with logistic units it matches the paper's
equations in NumPy.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import FixedValues, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
    randomize_weights,
)
from torch import nn

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("act", ["tanh", "relu"])
def test_elman(act: str, tmp_path: Path) -> None:
    theirs = randomize_weights(
        nn.ModuleDict(
            {"rnn": nn.RNN(4, 6, nonlinearity=act, batch_first=True), "output": nn.Linear(6, 3)}
        )
    )
    ours = build_weighted_spec(
        "elman", list_module_weights(theirs), tmp_path, inputs=4, hidden=6, outputs=3, act=act
    )
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        out, last = theirs["rnn"](x["x"])
        return {"y": theirs["output"](out), "last": last.transpose(0, 1)}

    assert_matches_published(
        ours, make_samples({"x": FixedValues((5, 4))}, {}), published, {"y": "", "last": ""}
    )
