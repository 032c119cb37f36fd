"""Accumulate Gram matrices of activations and quantize the weights that read them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.backend import Computation
from specc.calibration.activation_taps import (
    WeightInputs,
    WeightMatrix,
    WeightReaders,
    find_padding_mask,
    input_width,
)
from specc.calibration.calibration_stages import CalibrationStage, split_stages
from specc.diagnostics.diagnostic import raise_error
from specc.io.output_paths import raise_os_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.runtime.open_model import open_compiled
from specc.runtime.steppers import KVCacheStepper
from specc.weights.gptq import cholesky_factor
from specc.weights.quantized_values import GetFactor, PrequantizedWeight


class GramFactors:
    """The factors of all weights of `spots`, as they come."""

    def __init__(
        self, spots: Mapping[WeightInputs, tuple[WeightMatrix, ...]], folder: Path
    ) -> None:
        every = [(matrix, spot) for spot, names in spots.items() for matrix in names]
        self.spots = spots
        self.folder = folder
        self.spot_of = dict(every)
        self.count = Counter(matrix.name for matrix, _ in every)
        self.there: Counter[str] = Counter()
        self.places: dict[WeightInputs, Path] = {}
        self.waiting = {spot: {m.name for m in names} for spot, names in spots.items()}

    def add(self, spot: WeightInputs, factor: Array) -> Iterator[tuple[str, GetFactor]]:
        """The weights that can be rounded with this factor, with theirs. E0810 to E0815."""
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
        path = self.places[self.spot_of[WeightMatrix(name, expert)]]
        found: Array = np.load(path, allow_pickle=False)
        return found

    def _keep(self, spot: WeightInputs, factor: Array) -> None:
        path = self.places[spot] = self.folder / f"factor {len(self.places)}.npy"
        try:
            np.save(path, factor, allow_pickle=False)
        except OSError as error:
            raise_os_error(error, path)

    def _forget(self, name: str) -> None:
        """Take away the files that no other weight waits for."""
        for spot, names in self.waiting.items():
            if name in names:
                names.remove(name)
                if not names:
                    self.places[spot].unlink()


Sample: TypeAlias = Mapping[str, Array]
RestartSamples: TypeAlias = Callable[[], Iterable[Sample]]
"""Restarts the iteration over samples."""
OpenSession: TypeAlias = Callable[[Graph], AbstractContextManager[Computation]]
"""Opens a session of a graph with its weights; everything is released afterwards."""
QuantizeWeight: TypeAlias = Callable[[str, GetFactor, Path], PrequantizedWeight]
"""Quantizes a weight with the Cholesky factor of its Gram matrix (one per stacked matrix) into
named files."""


def quantize_calibrated(
    open_part: OpenSession,
    readers: WeightReaders,
    samples: RestartSamples,
    folder: Path,
    round_one: QuantizeWeight,
) -> dict[str, PrequantizedWeight]:
    """The weights of `readers` by name, quantized with the activations of the samples, in files
    in `folder`. E0859 where one is not finite, E0810 to E0815 where files cannot be
    written.
    """
    made: dict[str, PrequantizedWeight] = {}
    sums, factors = _Sums(readers), GramFactors(readers.spots, folder)
    for stage in split_stages(readers):
        _run(stage, open_part, samples(), folder, sums)
        for spot, total in sums.whole(stage.met.values()):
            factor = cholesky_factor(total)
            # as large as the factor, and of no use while weights are rounded
            del total
            for name, whole in factors.add(spot, factor):
                made[name] = round_one(name, whole, folder / f"{len(made)}")
    return made


def _run(
    stage: CalibrationStage,
    open_part: OpenSession,
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

    readers: WeightReaders

    def __post_init__(self) -> None:
        self.totals: dict[WeightInputs, Array] = {}
        self.left = {spot: set(spot) for spot in self.readers.spots}

    def add(self, met: Mapping[Value, Array], sample: Sample) -> None:
        """What a sample gives of some values. What stands in padding does not count."""
        for spot, names in self.readers.spots.items():
            for value in spot:
                if value not in met:
                    continue
                if spot not in self.totals:
                    self.totals[spot] = np.zeros(2 * (input_width(spot),))
                keep = find_padding_mask(self.readers.graph, value)
                rows = met[value][sample[keep]] if keep else met[value]
                self.totals[spot] += _products(rows, names[0].name)

    def whole(self, met: Iterable[Value]) -> Iterator[tuple[WeightInputs, Array]]:
        """The sums to which nothing will be added any more, once all samples have given
        these values; they are forgotten here.
        """
        seen = set(met)
        for spot, left in self.left.items():
            left -= seen
            if not left and spot in self.totals:
                yield spot, self.totals.pop(spot)


def _taken(folder: Path, stage: CalibrationStage, number: int) -> dict[str, Array]:
    """What earlier stages kept of a sample; the last that reads it takes it away."""
    found = {}
    for name in stage.takes:
        path = _place(folder, name, number)
        found[name] = np.load(path, allow_pickle=False)
        if name in stage.over:
            path.unlink()
    return found


def _keep(folder: Path, stage: CalibrationStage, number: int, results: Mapping[str, Array]) -> None:
    """Write what later stages read of a sample. E0810 to E0815."""
    for name in stage.gives:
        path = _place(folder, name, number)
        try:
            np.save(path, results[name], allow_pickle=False)
        except OSError as error:
            raise_os_error(error, path)


def _place(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name} {number}.npy"


def _products(x: Array, name: str) -> Array:
    """`XᵀX` of the rows of a value. E0859."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    if not np.isfinite(rows).all():
        raise_error(
            "E0859",
            f"what `{escape_text(name)}` is multiplied by is not finite on the samples",
            notes=["weights are rounded by what they do to these"],
            helps=[
                "give other inputs: `--calibration-data FILE`",
                "or none: `--calibration-samples 0`",
            ],
        )
    made: Array = rows.T @ rows
    return made


RANGE_MARGIN = 1.25
"""Factor between the largest observed value and the largest representable one; larger values
saturate."""
MAX_CODE = 127
MIN_SCALE = np.finfo(np.float32).tiny
"""Minimum scale, used if all values are zero."""


def measure_cache_scales(package: Path, samples: Iterable[Sample]) -> dict[str, Array]:
    """The scales f32[heads 1 width] of each state of a package that is a buffer, by its
    name; none where none is. E0859 where one is not finite on the samples.
    """
    greatest: dict[str, Array] = {}
    writer = open_compiled(str(package)).writer
    assert writer is not None, "only a package that writes is given"
    for sample in samples:
        stepper = writer.stepper(sample)
        assert isinstance(stepper, KVCacheStepper), "the package has a step"
        stepper.step(sample[writer.entrance.growing])
        for state in stepper.buffers:
            rows = stepper.states[state.name].numpy()[:, :, : stepper.past]
            here = np.abs(rows).max((0, 2), initial=0.0)
            _check_finite(here, state.name)
            greatest[state.name] = np.maximum(greatest.get(state.name, 0.0), here)
    return {name: _scales(most) for name, most in greatest.items()}


def _scales(most: Array) -> Array:
    made = np.maximum(most * np.float32(RANGE_MARGIN / MAX_CODE), MIN_SCALE)
    return made.astype(np.float32)[:, None, :]


def _check_finite(most: Array, name: str) -> None:
    if not np.isfinite(most).all():
        raise_error(
            "E0859",
            f"the state `{escape_text(name)}` is not finite on the samples",
            notes=["it is to be kept in 8 bits, by scales of what it holds there"],
            helps=["give other inputs: `--calibration-data FILE`", "or leave out `--kv-cache`"],
        )
