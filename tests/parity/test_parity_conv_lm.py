"""`conv_lm` matches stacks of `torch.nn.Conv1d` and `F.glu`, with and without bottleneck and
dilation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
    randomize_weights,
    run_one_by_one,
)
from torch import Tensor, nn
from torch.nn import functional

pytestmark = pytest.mark.parity

GIVEN = make_samples({"ids": TokenIds("seq", 31), "keep": PaddingMask("seq")}, {"seq": (9, 1, 4)})


class Layer(nn.Module):
    """A residual block over [batch, channels, time]."""

    def __init__(self, d: int, inside: int, kernel: int, dilation: int) -> None:
        super().__init__()
        narrow = inside or d
        if inside:
            self.down, self.up = (nn.Conv1d(d, 2 * narrow, 1), nn.Conv1d(narrow, 2 * d, 1))
        self.conv = nn.Conv1d(narrow, 2 * narrow, kernel, dilation=dilation)
        self.before = (kernel - 1) * dilation
        self.narrows = bool(inside)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.glu(self.down(x), 1) if self.narrows else x
        h = functional.glu(self.conv(functional.pad(h, (self.before, 0))), 1)
        return x + (functional.glu(self.up(h), 1) if self.narrows else h)


class Model(nn.Module):
    def __init__(self, d: int, inside: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(31, 10), nn.Linear(10, d)
        self.layers = nn.ModuleList(Layer(d, inside, kernel, n) for n in dilations)
        self.output = nn.Linear(d, 31)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.project(self.embed(ids)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        made: Tensor = self.output(x.transpose(1, 2))
        return made


@pytest.mark.parametrize(
    ("kernel", "inside", "dilations"),
    [(4, 0, (1, 1)), (3, 5, (1, 1, 1)), (2, 0, (1, 2, 4)), (1, 0, (1,))],
)
def test_conv_lm(kernel: int, inside: int, dilations: tuple[int, ...], tmp_path: Path) -> None:
    """A text begins where its padding ends: nothing stands before it."""
    theirs = randomize_weights(Model(12, inside, kernel, dilations))
    sets = {
        "vocab": 31,
        "width": 10,
        "d": 12,
        "kernel": kernel,
        "bottleneck": inside,
        "dilations": list(dilations),
    }
    ours = build_weighted_spec("conv_lm", list_module_weights(theirs), tmp_path, **sets)
    theirs.double()

    def published(x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"logits": run_one_by_one(x, theirs)}

    assert_matches_published(ours, GIVEN, published, {"logits": "seq"}, ("left", "right"))
