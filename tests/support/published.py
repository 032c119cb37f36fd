"""What the parity tests share: published models made small and random, saved as people find them, and compared.

Every weight is drawn anew, those of norms and biases too: what a fresh model has there (ones and zeros)
hides a norm in the wrong place and a bias that is left out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from padded import Samples, Side
from spec_models import InOnnx, Opened, assert_agrees, by_reference

from specc import loading
from specc.driver import elaborated, open_spec
from specc.elaborate.context import Env
from specc.elaborate.model import context_of, requirements
from specc.weights.values import array_of

Arrays = dict[str, NDArray[Any]]
Run = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""A published model: inputs by the spec's names to results by the spec's names."""


def randomized(model: torch.nn.Module, seed: int = 0) -> Any:
    """The model with random weights (numbers that f32 holds), ready to run in float64."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            drawn = torch.randn(p.shape, generator=source)
            if p.dim() > 1:
                p.copy_(drawn * 1.5 / p[0].numel() ** 0.5)
            else:
                p.copy_(0.3 * drawn + float(name.endswith("weight")))
    return model.eval()


def loaded(spec: str, folder: Path, **sets: object) -> tuple[Opened, Arrays]:
    """A spec with the config.json and the weights that a published model was saved with."""
    given = [f"{name.replace('__', '.')}={value}" for name, value in sets.items()]
    found = open_spec(spec, config=str(folder), sets=given)
    model = elaborated(found)
    context = context_of(found.library)
    config = requirements(context, found.program, found.reader)
    rules = loading.rules_of(context, found.program, Env(found.program.module, config))
    values = loading.bound(loading.wanted_of(model.graph), rules, str(folder))
    weights = {name: array_of(values, values.tied_to(name) or name) for name in values.wanted}
    return Opened(model, rules), weights


def from_module(module: torch.nn.Module, prefix: str = "") -> Arrays:
    """A module's weights by name, behind a prefix."""
    return {f"{prefix}{name}": p.detach().numpy().copy() for name, p in module.state_dict().items()}


def assert_matches(
    spec: Opened,
    weights: Arrays,
    given: Samples,
    published: Run,
    results: Mapping[str, str],
    sides: tuple[Side, ...] = ("right",),
) -> None:
    """The spec gives what the published model gives in float64: alone, and in a padded batch of 3 (R17).

    `results` says along which padded axis each result runs, if along any; only valid rows are compared.
    """
    model = InOnnx(spec, weights)
    batches: list[tuple[Arrays, Side | None]] = [(given.alone(0), None)]
    batches += [(given.together(side), side) for side in sides]
    for inputs, side in batches:
        with torch.no_grad():
            wanted = published({k: _tensor(v) for k, v in inputs.items()})
        for found, how in (
            (by_reference(spec, weights, inputs), "reference"),
            (model.run(inputs), "ONNX Runtime"),
        ):
            for name, dim in results.items():
                for row in range(len(given.rows) if side else 1):
                    mine, theirs = found[name][row], wanted[name][row].numpy()
                    if dim and side:
                        valid = given.kept(row, dim, mine.shape[0], side)
                        mine, theirs = mine[valid], theirs[valid]
                    within = 1e-9 if how == "reference" else 1e-5
                    assert_agrees(mine, theirs, f"{name} of sample {row}, {side or 'alone'}, {how}", within)


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    made = torch.from_numpy(array.copy())
    return made.double() if made.is_floating_point() else made
