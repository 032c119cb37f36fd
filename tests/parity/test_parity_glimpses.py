"""`glimpses` matches a PyTorch module: crops of a padded image, averaged by `avg_pool2d`,
between linear layers.
"""

from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
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
from torch import Tensor, nn
from torch.nn import functional

import specc_torch

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
            h, place = self.step(pixels, place, h)
            if noise is not None:
                place = (place + SPREAD * noise[:, turn]).clamp(-1, 1)
        return {"logits": self.action(h), "locations": torch.stack(places, 1)}

    def step(self, pixels: Tensor, place: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The state after one glimpse at a location, and the mean of the next location."""
        cut = [self.retina(*one) for one in zip(pixels, place, strict=True)]
        what = self.glimpse["what"](torch.stack(cut)).relu()
        spot = self.glimpse["where"](place).relu()
        g = self.glimpse["from_what"](what) + self.glimpse["from_where"](spot)
        h = (self.core["state"](h) + self.core["input"](g.relu())).relu()
        return h, self.location(h).clamp(-1, 1)

    def policy(self, pixels: Tensor, locations: Tensor) -> dict[str, Tensor]:
        """Logits and the means of the policy for given locations [batch, glimpses, 2]."""
        h, means = torch.zeros(len(pixels), HIDDEN, dtype=pixels.dtype), []
        for place in locations.unbind(1):
            h, mean = self.step(pixels, place, h)
            means.append(mean)
        return {"logits": self.action(h), "means": torch.stack(means, 1)}


def settings(patch: int, scales: int, wider: int) -> dict[str, object]:
    """The config of the spec for `Glimpses(patch, scales, wider)`."""
    return {
        "image": [HIGH, WIDE],
        "channels": CHANNELS,
        "patch": patch,
        "scales": scales,
        "scale_factor": wider,
        "glimpses": GLIMPSES,
        "glimpse_dim": SEEN,
        "hidden": HIDDEN,
        "classes": CLASSES,
        "location_std": SPREAD,
    }


@pytest.mark.parametrize("graph", ["", "sampled", "policy"])
@pytest.mark.parametrize(("patch", "scales", "wider"), [(4, 1, 2), (3, 3, 2), (2, 2, 3)])
def test_glimpses(patch: int, scales: int, wider: int, graph: str, tmp_path: Path) -> None:
    theirs = randomize_weights(Glimpses(patch, scales, wider))
    with torch.no_grad():  # places that lie apart, and not all at the edge
        theirs.location.weight.mul_(0.3)
    weights = list_module_weights(theirs)
    ours = build_weighted_spec(
        "glimpses", weights, tmp_path, graph, **settings(patch, scales, wider)
    )
    fields = {"pixel_values": FixedValues((CHANNELS, HIGH, WIDE))}
    if graph == "policy":
        fields["locations"] = FixedValues((GLIMPSES, 2))
    else:
        fields["start"] = FixedValues((2,))
    if graph == "sampled":
        fields["noise"] = FixedValues((GLIMPSES, 2))
    given = make_samples(fields, {})
    exact = theirs.double()

    def published(x: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if graph == "policy":
            return exact.policy(x["pixel_values"], x["locations"])
        return exact(x["pixel_values"], x["start"], x.get("noise"))

    named = "means" if graph == "policy" else "locations"
    assert_matches_published(ours, given, published, {"logits": "", named: ""})


def test_reinforce_gradient_of_the_demo() -> None:
    """The loss of docs/demos/glimpses/train.py has the gradient of Williams' estimator, computed
    with `torch.distributions` on a module of our own.
    """
    path = Path(__file__).parents[2] / "docs" / "demos" / "glimpses" / "train.py"
    spec = spec_from_file_location("train_glimpses", path)
    assert spec is not None
    assert spec.loader is not None
    demo = module_from_spec(spec)
    spec.loader.exec_module(demo)
    demo.STD = SPREAD
    theirs = randomize_weights(Glimpses(3, 2, 2))
    config = settings(3, 2, 2)
    ours = specc_torch.module("glimpses", graph="policy", set=config, init=0)
    ours.load_state_dict(theirs.state_dict())
    generator = torch.Generator().manual_seed(3)
    count = 6 * demo.SAMPLES
    pixels = torch.randn(count, CHANNELS, HIGH, WIDE, generator=generator)
    target = torch.randint(CLASSES, (count,), generator=generator)
    sampled = specc_torch.module("glimpses", graph="sampled", set=config, init=0)
    noise = torch.randn(count, GLIMPSES, 2, generator=generator)
    locations = demo.sample_locations(sampled, ours, pixels, noise)
    demo.compute_loss(ours, pixels, locations, target).backward()

    outputs = theirs.policy(pixels, locations)
    reward = (outputs["logits"].argmax(-1) == target).float().reshape(-1, demo.SAMPLES)
    assert 0 < reward.mean() < 1
    others = [
        reward[:, [k for k in range(demo.SAMPLES) if k != n]].mean(1) for n in range(demo.SAMPLES)
    ]
    advantage = (reward - torch.stack(others, 1)).reshape(-1)
    policy = torch.distributions.Normal(outputs["means"][:, :-1], SPREAD)
    score = policy.log_prob(locations[:, 1:]).sum((1, 2))
    entropy = functional.cross_entropy(outputs["logits"], target)
    (entropy - demo.POLICY_WEIGHT * (advantage * score).mean()).backward()
    wanted = dict(theirs.named_parameters())
    for name, ours_parameter in ours.named_parameters():
        torch.testing.assert_close(ours_parameter.grad, wanted[name].grad)
