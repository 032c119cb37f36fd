"""Sums of products `XᵀX` of what weights meet, over all samples, and the weights that are
rounded by them.

No more than `ROOM` bytes of sums are in memory at a time, or those of one weight: where
there are more, the samples are run again for the next ones. A weight is rounded as soon
as its sums are whole, and lies on the disk as it will be stored: of the sums nothing is
kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.backend import Computing
from specc.calibrate.readers import Readers
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.graph import Value
from specc.text.diagnostic import fail
from specc.weights.gptq import factor_of
from specc.weights.quantized import Ready

ROOM = 512 << 20
Sample: TypeAlias = Mapping[str, Array]
Samples: TypeAlias = Callable[[], Iterable[Sample]]
"""Begins the samples anew."""
Spot: TypeAlias = tuple[Value, ...]
Rounding: TypeAlias = Callable[[str, Array, Path], Ready]
"""Rounds a weight by the factor of its sums, into files under a name."""


def rounded_by(
    session: Computing,
    readers: Readers,
    samples: Samples,
    folder: Path,
    round_one: Rounding,
) -> dict[str, Ready]:
    """The weights of `readers` by name, rounded by what meets them on the samples, in files
    in `folder`. `session` gives each value that they meet. E0859 where one is not finite,
    E0810 to E0815 where files cannot be written.
    """
    places = {value: f"x{n}" for n, value in enumerate(readers.values)}
    made: dict[str, Ready] = {}
    for turn in _turns(list(readers.spots)):
        sums = {spot: np.zeros(2 * (_wide(spot),)) for spot in turn}
        for sample in samples():
            results = session.run(sample)
            for spot, total in sums.items():
                for value in spot:
                    total += _products(results[places[value]], readers.spots[spot][0])
        while sums:
            spot, total = sums.popitem()
            factor = factor_of(total)
            for name in readers.spots[spot]:
                made[name] = round_one(name, factor, folder / f"{len(made)}")
    return made


def _turns(spots: list[Spot]) -> Iterator[list[Spot]]:
    """Values whose sums fit into memory together."""
    here: list[Spot] = []
    taken = 0
    for spot in spots:
        size = 8 * _wide(spot) ** 2
        if here and taken + size > ROOM:
            yield here
            here, taken = [], 0
        here.append(spot)
        taken += size
    if here:
        yield here


def _wide(spot: Spot) -> int:
    return spot[0].type.shape[-1].number or 0


def _products(x: Array, name: str) -> Array:
    """`XᵀX` of the rows of a value. E0859."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    if not np.isfinite(rows).all():
        fail(
            "E0859",
            f"what `{shown(name)}` is multiplied by is not finite on the samples",
            notes=["weights are rounded by what they do to these"],
            helps=["give other inputs: `--calibrate FILE`", "or none: `--samples 0`"],
        )
    made: Array = rows.T @ rows
    return made
