"""Fold norm weights into the following linear layers (`--fold-norms`), and check that the compute
dtype can represent all weights.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.ops.quantized import FoldedNorm
from specc.weights.parameter_sources import ByteRange, ParameterOverrides, read_parameter
from specc.weights.weight_value_checks import CHECKED_VALUES, convert_dtype

MAX_EXPONENT = 40
"""Maximum exponent of a folded power of two. A larger factor partly stays in the norm weight."""


@dataclass(frozen=True)
class NormFoldedWeights(ParameterOverrides):
    """Parameters with the norm weights of `folds` folded into the following linear layers."""

    folds: Sequence[FoldedNorm]
    factor_cache: dict[str, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def parameter_folds(self) -> Mapping[str, FoldedNorm]:
        """The fold of each changed norm weight, norm bias and linear weight, keyed by its name."""
        return {
            name: fold
            for fold in self.folds
            for name in (fold.weight, fold.bias, *(weight for weight, _ in fold.linear_weights))
            if name
        }

    def is_overridden(self, name: str) -> bool:
        """Return True if a fold changes the values of a parameter."""
        return name in self.parameter_folds

    def iterate_replacement_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of a parameter, converted to `dtype`. Linear weights are multiplied, and
        norm weights are divided, by the powers of two of their fold.
        """
        fold = self.parameter_folds[name]
        factors, position = self._compute_factors(fold), 0
        is_transposed = dict(fold.linear_weights).get(name)
        # linear weights are multiplied by the factors by which the norm weight is divided
        factors = 1 / factors if is_transposed is None else factors
        out_features = self.parameters[name].shape[-1]
        location = f"`{escape_text(name)}`, with a norm weight folded in"
        for chunk in self.base.iterate_chunks(name, "f32"):
            block = np.frombuffer(chunk, np.float32)
            indices = np.arange(position, position + block.size)
            inputs = indices // out_features if is_transposed else indices % len(factors)
            # use float64, because an error message may contain a value outside the range of float32
            folded = np.multiply(block, factors[inputs], dtype=np.float64)
            yield convert_dtype(folded, dtype, location, FOLDED_NORM_HELP).view(np.uint8).data
            position += block.size

    def _compute_factors(self, fold: FoldedNorm) -> Array:
        """Return a power of two per channel that approximates the magnitude of the norm output.
        Normalized values have a magnitude of about 1 before they are multiplied by the norm weight.
        """
        if fold.weight not in self.factor_cache:
            magnitude = np.abs(read_parameter(self.base, fold.weight, "f32")).astype(np.float64)
            if fold.bias:
                magnitude = np.hypot(magnitude, read_parameter(self.base, fold.bias, "f32"))
            exponents = np.rint(np.log2(np.where(magnitude > 0, magnitude, 1)))
            factors = np.exp2(np.clip(exponents, -MAX_EXPONENT, MAX_EXPONENT)).astype(np.float32)
            self.factor_cache[fold.weight] = factors
        return self.factor_cache[fold.weight]


FOLDED_NORM_HELP = (
    "norm weights are folded into these weights, so they cannot be linked to a checkpoint: "
    "remove --fold-norms, or `fold_norms` in the spec"
)
"""Help text for an out-of-range value of a parameter with a folded norm weight."""


CHECKED_SCALES = "scales checked, with values up to"
"""Description of the checked values in error messages about a quantized weight's scales."""


@dataclass(frozen=True)
class WeightRangeCheck:
    """The check that the compute dtype `dtype` can represent all values of a parameter. If the
    parameter contains the scales of `weight`, dequantized values are up to `max_code` times as
    large as a scale.
    """

    dtype: str
    weight: str
    max_code: float = 1.0


@dataclass(frozen=True)
class RangeCheckedWeights(ParameterOverrides):
    """Parameters whose values are checked against `range_checks`. Norm weights are folded into the
    parameters in `folded_names`. The class implements `ParameterSource`.
    """

    range_checks: Mapping[str, WeightRangeCheck]
    folded_names: Container[str] = ()

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in a file, or None if its values must be converted.
        Linked values are not checked elsewhere, so raise E0517 if a value is out of the compute
        dtype's range.
        """
        byte_range = self.base.find_byte_range(name)
        if byte_range is not None and name in self.range_checks:
            for _ in self.iterate_chunks(name, "f32"):
                pass
        return byte_range

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the bytes of a parameter, converted to `dtype`. Raise E0517 if a value is out of
        the compute dtype's range. Errors of the underlying parameters are not caught.
        """
        limit = self.range_checks.get(name)
        for chunk in self.base.iterate_chunks(name, dtype):
            # values that are stored in another dtype were checked during the conversion
            if limit is not None and dtype == "f32":
                block = np.frombuffer(chunk, np.float32) * np.float32(limit.max_code)
                location = f"`{escape_text(limit.weight)}`"
                fixes = (FOLDED_NORM_HELP,) if limit.weight in self.folded_names else ()
                description = CHECKED_VALUES if name == limit.weight else CHECKED_SCALES
                convert_dtype(block, limit.dtype, location, *fixes, description=description)
            yield chunk
