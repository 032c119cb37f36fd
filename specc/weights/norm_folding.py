"""Fold norm weights into the next linear layers, and check that weights fit a narrower dtype."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.ops.quantized import NormFold
from specc.weights.parameter_sources import ByteRange, ParameterOverrides, read_parameter
from specc.weights.weight_value_checks import CHECKED_VALUES, convert_dtype

MAX_EXPONENT = 40
"""Maximum exponent of the power of two that is folded; the remaining factor stays in the norm
weight.
"""
MOVED_GAINS_HELP = (
    "norm weights are folded into these weights, so they cannot be linked to a checkpoint: "
    "remove --fold-norms, or `fold_norms` in the spec"
)
"""The help for an out-of-range value of a folded parameter."""


@dataclass(frozen=True)
class NormFoldedWeights(ParameterOverrides):
    """Parameter values in which the norm weights of `folds` are folded into the following linear
    layers.
    """

    folds: Sequence[NormFold]
    factor_cache: dict[str, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def fold_by_parameter(self) -> Mapping[str, NormFold]:
        """Return the fold that changes each parameter, by name."""
        return {
            name: fold
            for fold in self.folds
            for name in (fold.weight, fold.bias, *(weight for weight, _ in fold.linear_weights))
            if name
        }

    def is_overridden(self, name: str) -> bool:
        """Return True if a fold changes a parameter."""
        return name in self.fold_by_parameter

    def iterate_overridden_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of a parameter, multiplied or divided by the powers of two of its
        fold.
        """
        fold = self.fold_by_parameter[name]
        factors, at = self._compute_factors(fold), 0
        is_transposed = dict(fold.linear_weights).get(name)
        # linear weights are multiplied by the factors that the norm weight is divided by
        factors = 1 / factors if is_transposed is None else factors
        results = self.parameters[name].shape[-1]
        place = f"`{escape_text(name)}`, with the gain of a norm"
        for chunk in self.base.iterate_chunks(name, "f32"):
            block = np.frombuffer(chunk, np.float32)
            places = np.arange(at, at + block.size)
            inputs = places // results if is_transposed else places % len(factors)
            # float64, so that an error message can contain a value that is out of the range of
            # float32
            made = np.multiply(block, factors[inputs], dtype=np.float64)
            yield convert_dtype(made, dtype, place, MOVED_GAINS_HELP).view(np.uint8).data
            at += block.size

    def _compute_factors(self, fold: NormFold) -> Array:
        """Return a power of two per channel, near the magnitude of the norm weight. Normalized
        values have magnitude 1 before they are scaled by the weight.
        """
        if fold.weight not in self.factor_cache:
            size = np.abs(read_parameter(self.base, fold.weight, "f32")).astype(np.float64)
            if fold.bias:
                size = np.hypot(size, read_parameter(self.base, fold.bias, "f32"))
            power = np.rint(np.log2(np.where(size > 0, size, 1)))
            factors = np.exp2(np.clip(power, -MAX_EXPONENT, MAX_EXPONENT)).astype(np.float32)
            self.factor_cache[fold.weight] = factors
        return self.factor_cache[fold.weight]


CHECKED_SCALES = "scales checked, with values up to"
"""Description of the scales of a quantized weight, for messages."""


@dataclass(frozen=True)
class ComputeDtypeLimit:
    """The compute dtype of a parameter, which limits its range. If the parameter contains the
    scales of `weight`, dequantized values are up to `max_code` times as large.
    """

    dtype: str
    weight: str
    max_code: float = 1.0


@dataclass(frozen=True)
class RangeCheckedWeights(ParameterOverrides):
    """Parameter values that are range-checked if the parameter is in `compute_dtype_limits`. Norm
    weights are folded into the parameters in `folded_names`. Implements `ParameterSource`.
    """

    compute_dtype_limits: Mapping[str, ComputeDtypeLimit]
    folded_names: Container[str] = ()

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return the byte range of the values in a file. Raise E0517 if a value is out of the range
        of the compute dtype, because linked external data is not checked elsewhere.
        """
        found = self.base.find_byte_range(name)
        if found is not None and name in self.compute_dtype_limits:
            for _ in self.iterate_chunks(name, "f32"):
                pass
        return found

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the bytes of a weight. Raise E0517 if a value is out of the range of the compute
        dtype, or an error of the underlying weights.
        """
        narrow = self.compute_dtype_limits.get(name)
        for chunk in self.base.iterate_chunks(name, dtype):
            # values stored in this dtype have already been checked
            if narrow is not None and dtype == "f32":
                block = np.frombuffer(chunk, np.float32) * np.float32(narrow.max_code)
                place = f"`{escape_text(narrow.weight)}`"
                fixes = (MOVED_GAINS_HELP,) if narrow.weight in self.folded_names else ()
                counted = CHECKED_VALUES if name == narrow.weight else CHECKED_SCALES
                convert_dtype(block, narrow.dtype, place, *fixes, description=counted)
            yield chunk
