"""Sums of products `XᵀX` of what weights meet, over all samples, and the weights that are
rounded by them.

The model is run stage by stage (`specc.calibrate.stages`), all samples through one before
the next is opened: its weights and the sums that it begins are in memory, and what later
stages read of each sample lies on the disk. A weight is rounded as soon as its sums are
whole, and lies on the disk as it will be stored: of the sums nothing is kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.backend import Computing
from specc.calibrate.factors import Factors
from specc.calibrate.readers import Readers, Spot, keep_of, wide_of
from specc.calibrate.stages import Stage, stages_of
from specc.files.place import explain
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.text.diagnostic import fail
from specc.weights.gptq import factor_of
from specc.weights.quantized import FactorOf, Ready

Sample: TypeAlias = Mapping[str, Array]
Samples: TypeAlias = Callable[[], Iterable[Sample]]
"""Begins the samples anew."""
Open: TypeAlias = Callable[[Graph], AbstractContextManager[Computing]]
"""Opens a graph with its weights; nothing of it is left behind."""
Rounding: TypeAlias = Callable[[str, FactorOf, Path], Ready]
"""Rounds a weight by the factor of its sums, or of each of its matrices', into files under
a name.
"""


def rounded_by(
    open_part: Open,
    readers: Readers,
    samples: Samples,
    folder: Path,
    round_one: Rounding,
) -> dict[str, Ready]:
    """The weights of `readers` by name, rounded by what meets them on the samples, in files
    in `folder`. E0859 where one is not finite, E0810 to E0815 where files cannot be
    written.
    """
    made: dict[str, Ready] = {}
    sums, factors = _Sums(readers), Factors(readers.spots, folder)
    for stage in stages_of(readers):
        _run(stage, open_part, samples(), folder, sums)
        for spot, total in sums.whole(stage.met.values()):
            factor = factor_of(total)
            # as large as the factor, and of no use while weights are rounded
            del total
            for name, whole in factors.add(spot, factor):
                made[name] = round_one(name, whole, folder / f"{len(made)}")
    return made


def _run(
    stage: Stage,
    open_part: Open,
    samples: Iterable[Sample],
    folder: Path,
    sums: "_Sums",
) -> None:
    """All samples through a stage, whose weights nobody holds on to afterwards."""
    with open_part(stage.graph) as session:
        for number, sample in enumerate(samples):
            results = session.run({**sample, **_taken(folder, stage, number)})
            sums.add({v: results[name] for name, v in stage.met.items()}, sample)
            _keep(folder, stage, number, results)


@dataclass
class _Sums:
    """The sums of each weight that is met, from the first value of it to the last."""

    readers: Readers

    def __post_init__(self) -> None:
        self.totals: dict[Spot, Array] = {}
        self.left = {spot: set(spot) for spot in self.readers.spots}

    def add(self, met: Mapping[Value, Array], sample: Sample) -> None:
        """What a sample gives of some values. What stands in padding does not count."""
        for spot, names in self.readers.spots.items():
            for value in spot:
                if value not in met:
                    continue
                if spot not in self.totals:
                    self.totals[spot] = np.zeros(2 * (wide_of(spot),))
                keep = keep_of(self.readers.graph, value)
                rows = met[value][sample[keep]] if keep else met[value]
                self.totals[spot] += _products(rows, names[0].name)

    def whole(self, met: Iterable[Value]) -> Iterator[tuple[Spot, Array]]:
        """The sums to which nothing will be added any more, once all samples have given
        these values; they are forgotten here.
        """
        seen = set(met)
        for spot, left in self.left.items():
            left -= seen
            if not left and spot in self.totals:
                yield spot, self.totals.pop(spot)


def _taken(folder: Path, stage: Stage, number: int) -> dict[str, Array]:
    """What earlier stages kept of a sample; the last that reads it takes it away."""
    found = {}
    for name in stage.takes:
        path = _place(folder, name, number)
        found[name] = np.load(path, allow_pickle=False)
        if name in stage.over:
            path.unlink()
    return found


def _keep(
    folder: Path, stage: Stage, number: int, results: Mapping[str, Array]
) -> None:
    """Write what later stages read of a sample. E0810 to E0815."""
    for name in stage.gives:
        path = _place(folder, name, number)
        try:
            np.save(path, results[name], allow_pickle=False)
        except OSError as error:
            explain(error, path)


def _place(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name} {number}.npy"


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
