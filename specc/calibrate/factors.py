"""Factors of sums that weights wait for: a stack of matrices is rounded when every expert's
is there, and until then they lie on the disk.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from specc.calibrate.loops import Matrix
from specc.calibrate.readers import Spot
from specc.files.place import explain
from specc.ir.array import Array
from specc.weights.quantized import FactorOf


class Factors:
    """The factors of all weights of `spots`, as they come."""

    def __init__(self, spots: Mapping[Spot, tuple[Matrix, ...]], folder: Path) -> None:
        every = [(matrix, spot) for spot, names in spots.items() for matrix in names]
        self.spots = spots
        self.folder = folder
        self.spot_of = dict(every)
        self.count = Counter(matrix.name for matrix, _ in every)
        self.there: Counter[str] = Counter()
        self.places: dict[Spot, Path] = {}
        self.waiting = {spot: {m.name for m in names} for spot, names in spots.items()}

    def add(self, spot: Spot, factor: Array) -> Iterator[tuple[str, FactorOf]]:
        """The weights that can be rounded with this factor, and all of theirs. E0810 to
        E0815 where it cannot be kept.
        """
        names = dict.fromkeys(matrix.name for matrix in self.spots[spot])
        for name in names:
            self.there[name] += sum(m.name == name for m in self.spots[spot])
        if any(self.count[name] > 1 for name in names):
            self._keep(spot, factor)
        for name in names:
            if self.count[name] == 1:
                yield name, lambda _: factor
            elif self.there[name] == self.count[name]:
                yield name, partial(self._kept, name)
                self._forget(name)

    def _kept(self, name: str, expert: int) -> Array:
        """What was kept for one expert."""
        path = self.places[self.spot_of[Matrix(name, expert)]]
        found: Array = np.load(path, allow_pickle=False)
        return found

    def _keep(self, spot: Spot, factor: Array) -> None:
        path = self.places[spot] = self.folder / f"factor {len(self.places)}.npy"
        try:
            np.save(path, factor, allow_pickle=False)
        except OSError as error:
            explain(error, path)

    def _forget(self, name: str) -> None:
        """Take away the files that no other weight waits for."""
        for spot, names in self.waiting.items():
            if name in names:
                names.remove(name)
                if not names:
                    self.places[spot].unlink()
