"""`seq2seq` matches two `torch.nn.LSTM`s, the first over the reversed source, with the final state
passed to the second; or a single one.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    Arrays,
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
    randomize_weights,
)
from support.torch_layers import run_unpadded_layer
from torch import nn

pytestmark = pytest.mark.parity

GIVEN = make_samples(
    {
        "source": TokenIds("src", 31),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", 31),
        "target_keep": PaddingMask("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (3, 6, 4)},
)
SIZES = {"vocab": 31, "target_vocab": 31, "width": 6, "hidden": 5}


class Translator(nn.Module):
    """Source and target tokens to logits; with `shared` one LSTM and one embedding for both, not
    reversed.
    """

    def __init__(self, layers: int, shared: bool) -> None:
        super().__init__()
        sides = ["encoder"] if shared else ["encoder", "decoder"]
        lstm = {s: nn.LSTM(6, 5, num_layers=layers, batch_first=True) for s in sides}
        self.sides = nn.ModuleDict(
            {s: nn.ModuleDict({"embed": nn.Embedding(31, 6), "lstm": lstm[s]}) for s in sides}
        )
        self.output = nn.Linear(5, 31)
        self.shared = shared

    def forward(self, x: Mapping[str, torch.Tensor]) -> torch.Tensor:
        first, second = (self.sides["encoder"], self.sides["encoder" if self.shared else "decoder"])
        words, keep = (x[n] if self.shared else x[n].flip(1) for n in ("source", "source_keep"))
        _, states = run_unpadded_layer(first["lstm"], first["embed"](words), keep)
        return self.output(
            run_unpadded_layer(
                second["lstm"], second["embed"](x["target"]), x["target_keep"], states
            )[0]
        )


def weights_of(module: Translator, as_torch: bool) -> Arrays:
    """Return weights under the spec's names, with a reversed layer; or as an nn.LSTM has them that
    gets reversed sequences.
    """
    made = {
        name.removeprefix("sides."): value for name, value in list_module_weights(module).items()
    }
    if module.shared or as_torch:
        return made
    return {f"{n}_reverse" if n.startswith("encoder.lstm") else n: v for n, v in made.items()}


@pytest.mark.parametrize(
    ("layers", "shared", "as_torch"),
    [(1, False, False), (3, False, False), (2, False, True), (2, True, False)],
)
def test_seq2seq(layers: int, shared: bool, as_torch: bool, tmp_path: Path) -> None:
    theirs = randomize_weights(Translator(layers, shared))
    sets = {**SIZES, "layers": layers, **({"shared": True, "order": "forward"} if shared else {})}
    ours = build_weighted_spec("seq2seq", weights_of(theirs, as_torch), tmp_path, **sets)
    theirs.double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": theirs(x)}

    assert_matches_published(ours, GIVEN, published, {"logits": "tgt"}, ("left", "right"))
