"""Fold norm weights into the linear layers that read them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.quantization_format import NormFold
from specc.weights.parameter_values import ByteRange, convert_dtype, read_parameter
from specc.weights.value_overlay import ValuesOverlay

MOST = 40
"""The largest power of two: of gains beyond it the rest stays where it is."""
MOVED = (
    "gains of norms were moved, and are in these numbers as in no checkpoint: leave out "
    "--fold-norms, or `fold` of the spec"
)
"""What helps where a number of a changed parameter is too large."""


@dataclass(frozen=True)
class FoldedValues(ValuesOverlay):
    """The numbers of a model with the gains of `folds` in the maps behind them.
    Implements `Values`.
    """

    folds: Sequence[NormFold]
    known: dict[str, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def changed(self) -> Mapping[str, NormFold]:
        """The fold that each parameter has a part in."""
        return {
            name: fold
            for fold in self.folds
            for name in (fold.gain, fold.bias, *(weight for weight, _ in fold.maps))
            if name
        }

    def run(self, name: str) -> ByteRange | None:
        """Where the numbers lie in a file; those that are changed lie in none."""
        return None if name in self.changed else self.base.run(name)

    def chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """The numbers as bytes. Fails as those of the checkpoint do."""
        fold = self.changed.get(name)
        if fold is None:
            yield from self.base.chunks(name, dtype)
            return
        factors, at = self._factors(fold), 0
        turned = dict(fold.maps).get(name)
        # weights are multiplied by what the norm is divided by
        factors = 1 / factors if turned is None else factors
        results = self.wanted[name].shape[-1]
        place = f"`{escape_text(name)}`, with the gain of a norm"
        for chunk in self.base.chunks(name, "f32"):
            block = np.frombuffer(chunk, np.float32)
            places = np.arange(at, at + block.size)
            inputs = places // results if turned else places % len(factors)
            # what f32 cannot hold is told by its own number
            made = np.multiply(block, factors[inputs], dtype=np.float64)
            yield convert_dtype(made, dtype, place, MOVED).view(np.uint8).data
            at += block.size

    def _factors(self, fold: NormFold) -> Array:
        """A power of two for each number of a row, near the size that it has behind the
        norm: what is normed has the size 1.
        """
        if fold.gain not in self.known:
            size = np.abs(read_parameter(self.base, fold.gain, "f32")).astype(np.float64)
            if fold.bias:
                size = np.hypot(size, read_parameter(self.base, fold.bias, "f32"))
            power = np.rint(np.log2(np.where(size > 0, size, 1)))
            factors = np.exp2(np.clip(power, -MOST, MOST)).astype(np.float32)
            self.known[fold.gain] = factors
        return self.known[fold.gain]
