"""`glimpses` matches a PyTorch module: crops of a padded image, averaged by `avg_pool2d`,
between linear layers.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded import Numbers, samples
from support.published import assert_matches, from_module, randomized, with_weights
from torch import Tensor, nn
from torch.nn import functional

pytestmark = pytest.mark.parity

HIGH, WIDE, CHANNELS = 12, 10, 3
SEEN, HIDDEN, CLASSES, GLIMPSES, SPREAD = 5, 6, 3, 4, 0.3


class Glimpses(nn.Module):
    """The model of arXiv:1406.6247, sec. 4, without its baseline."""

    def __init__(self, patch: int, scales: int, wider: int) -> None:
        super().__init__()
        self.patch, self.factors = patch, [wider**s for s in range(scales)]
        self.glimpse = nn.ModuleDict(
            {
                "what": nn.Linear(scales * CHANNELS * patch**2, SEEN),
                "where": nn.Linear(2, SEEN),
                "from_what": nn.Linear(SEEN, HIDDEN),
                "from_where": nn.Linear(SEEN, HIDDEN),
            }
        )
        self.core = nn.ModuleDict(
            {"state": nn.Linear(HIDDEN, HIDDEN), "input": nn.Linear(HIDDEN, HIDDEN)}
        )
        self.location = nn.Linear(HIDDEN, 2)
        self.action = nn.Linear(HIDDEN, CLASSES)

    def retina(self, picture: Tensor, place: Tensor) -> Tensor:
        """Windows of one picture [channels, high, wide] as one row."""
        windows = []
        for factor in self.factors:
            side = self.patch * factor
            room = side + max(HIGH, WIDE)
            padded = functional.pad(picture, (room,) * 4)
            x, y = (
                int(torch.floor(0.5 * (at + 1) * size)) - side // 2 + room
                for at, size in zip(place, (WIDE, HIGH), strict=True)
            )
            window = padded[None, :, y : y + side, x : x + side]
            windows.append(functional.avg_pool2d(window, factor).flatten())
        return torch.cat(windows)

    def forward(self, pixels: Tensor, place: Tensor, noise: Tensor | None) -> dict[str, Tensor]:
        """Logits, and the places that were looked at."""
        h, places = torch.zeros(len(pixels), HIDDEN, dtype=pixels.dtype), []
        for turn in range(GLIMPSES):
            places.append(place)
            cut = [self.retina(*one) for one in zip(pixels, place, strict=True)]
            what = self.glimpse["what"](torch.stack(cut)).relu()
            spot = self.glimpse["where"](place).relu()
            g = self.glimpse["from_what"](what) + self.glimpse["from_where"](spot)
            h = (self.core["state"](h) + self.core["input"](g.relu())).relu()
            place = self.location(h).clamp(-1, 1)
            if noise is not None:
                place = (place + SPREAD * noise[:, turn]).clamp(-1, 1)
        return {"logits": self.action(h), "locations": torch.stack(places, 1)}


@pytest.mark.parametrize("drawn", [False, True], ids=["pointed", "drawn"])
@pytest.mark.parametrize(("patch", "scales", "wider"), [(4, 1, 2), (3, 3, 2), (2, 2, 3)])
def test_glimpses(patch: int, scales: int, wider: int, drawn: bool, tmp_path: Path) -> None:
    theirs = randomized(Glimpses(patch, scales, wider))
    with torch.no_grad():  # places that lie apart, and not all at the edge
        theirs.location.weight.mul_(0.3)
    ours = with_weights(
        "glimpses",
        from_module(theirs),
        tmp_path,
        "sampled" if drawn else "",
        image=[HIGH, WIDE],
        channels=CHANNELS,
        patch=patch,
        scales=scales,
        scale_factor=wider,
        glimpses=GLIMPSES,
        glimpse_dim=SEEN,
        hidden=HIDDEN,
        classes=CLASSES,
        location_std=SPREAD,
    )
    fields = {"pixel_values": Numbers((CHANNELS, HIGH, WIDE)), "start": Numbers((2,))}
    if drawn:
        fields["noise"] = Numbers((GLIMPSES, 2))
    given = samples(fields, {})
    exact = theirs.double()

    def published(x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return exact(x["pixel_values"], x["start"], x.get("noise"))

    assert_matches(ours, given, published, {"logits": "", "locations": ""})
