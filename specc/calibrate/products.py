"""Sums of products `XᵀX` of what weights meet, over all samples, and their factors on disk.

No more than `ROOM` bytes of sums are in memory at a time: where there are more, the
samples are run again for the next ones. A factor is read when its weight is rounded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.backend import Computing
from specc.calibrate.readers import Readers
from specc.files.place import explain
from specc.files.read import shown
from specc.files.write import need_space
from specc.ir.array import Array
from specc.ir.graph import Value
from specc.text.diagnostic import fail
from specc.weights.gptq import factor_of

ROOM = 512 << 20
Sample: TypeAlias = Mapping[str, Array]
Samples: TypeAlias = Callable[[], Iterable[Sample]]
"""Begins the samples anew."""
Spot: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True)
class Factors:
    """Where the factor of each weight lies, by the name of the weight."""

    files: Mapping[str, Path]

    def of(self, name: str) -> Array | None:
        """The factor of a weight; None for one that is rounded by itself."""
        path = self.files.get(name)
        return None if path is None else np.load(path)


def factors_of(
    session: Computing, readers: Readers, samples: Samples, folder: Path
) -> Factors:
    """The factors of all weights, in files in `folder`. `session` gives each value that
    they meet. E0859 where one is not finite, E0810 to E0815 where they cannot be written.
    """
    places = {value: f"x{n}" for n, value in enumerate(readers.values)}
    files: dict[str, Path] = {}
    need_space(folder, sum(8 * _wide(spot) ** 2 for spot in readers.spots))
    for turn in _turns(list(readers.spots)):
        sums = {spot: np.zeros(2 * (_wide(spot),)) for spot in turn}
        for sample in samples():
            results = session.run(sample)
            for spot, total in sums.items():
                for value in spot:
                    total += _products(results[places[value]], readers.spots[spot][0])
        while sums:
            spot, total = sums.popitem()
            path = folder / f"{len(files)}.npy"
            _keep(path, factor_of(total))
            files |= dict.fromkeys(readers.spots[spot], path)
    return Factors(files)


def _keep(path: Path, factor: Array) -> None:
    """A factor as a file. E0810 to E0815."""
    try:
        np.save(path, factor)
    except OSError as error:
        explain(error, path)


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
