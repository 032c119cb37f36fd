"""Fold norm weights into the following linear layers, and check the range of weights."""

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
FOLDED_NORM_HELP = (
    "norm weights are folded into these weights, so they cannot be linked to a checkpoint: "
    "remove --fold-norms, or `fold_norms` in the spec"
)
"""The help for an out-of-range value of a folded parameter."""


@dataclass(frozen=True)
class NormFoldedWeights(ParameterOverrides):
    """Parameters in which the norm weights of `folds` are folded into the next linear layers."""

    folds: Sequence[NormFold]
    factor_cache: dict[str, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def fold_by_parameter(self) -> Mapping[str, NormFold]:
        """The fold that changes each norm weight, norm bias or linear weight, by name."""
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
        """Yield the values of a parameter in `dtype`, multiplied (linear weights) or divided (norm
        weights) by the powers of two of its fold.
        """
        fold = self.fold_by_parameter[name]
        factors, position = self._compute_factors(fold), 0
        is_transposed = dict(fold.linear_weights).get(name)
        # linear weights are multiplied by the factors that the norm weight is divided by
        factors = 1 / factors if is_transposed is None else factors
        out_features = self.parameters[name].shape[-1]
        location = f"`{escape_text(name)}`, with the gain of a norm"
        for chunk in self.base.iterate_chunks(name, "f32"):
            block = np.frombuffer(chunk, np.float32)
            indices = np.arange(position, position + block.size)
            inputs = indices // out_features if is_transposed else indices % len(factors)
            # float64, so that an error message can contain a value that is out of the range of
            # float32
            folded = np.multiply(block, factors[inputs], dtype=np.float64)
            yield convert_dtype(folded, dtype, location, FOLDED_NORM_HELP).view(np.uint8).data
            position += block.size

    def _compute_factors(self, fold: NormFold) -> Array:
        """Return a power of two per channel, near the magnitude of the norm output: normalized
        values have magnitude 1 before the norm weight scales them.
        """
        if fold.weight not in self.factor_cache:
            magnitude = np.abs(read_parameter(self.base, fold.weight, "f32")).astype(np.float64)
            if fold.bias:
                magnitude = np.hypot(magnitude, read_parameter(self.base, fold.bias, "f32"))
            exponents = np.rint(np.log2(np.where(magnitude > 0, magnitude, 1)))
            factors = np.exp2(np.clip(exponents, -MAX_EXPONENT, MAX_EXPONENT)).astype(np.float32)
            self.factor_cache[fold.weight] = factors
        return self.factor_cache[fold.weight]


CHECKED_SCALES = "scales checked, with values up to"
"""The description of the checked values in error messages, for scales of a quantized weight."""


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
        """Return the byte range of the values in a file, or None if they need a conversion. Raise
        E0517 if a value is out of the range of the compute dtype: linked values are not checked
        elsewhere.
        """
        byte_range = self.base.find_byte_range(name)
        if byte_range is not None and name in self.compute_dtype_limits:
            for _ in self.iterate_chunks(name, "f32"):
                pass
        return byte_range

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the bytes of a weight in `dtype`. Raise E0517 if a value is out of the range of the
        compute dtype, or an error of the underlying weights.
        """
        limit = self.compute_dtype_limits.get(name)
        for chunk in self.base.iterate_chunks(name, dtype):
            # values stored in this dtype have already been checked
            if limit is not None and dtype == "f32":
                block = np.frombuffer(chunk, np.float32) * np.float32(limit.max_code)
                location = f"`{escape_text(limit.weight)}`"
                fixes = (FOLDED_NORM_HELP,) if limit.weight in self.folded_names else ()
                description = CHECKED_VALUES if name == limit.weight else CHECKED_SCALES
                convert_dtype(block, limit.dtype, location, *fixes, description=description)
            yield chunk
