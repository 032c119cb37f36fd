"""Accumulate the quantization error of a weight that is quantized in chunks of rows."""

from dataclasses import dataclass

import numpy as np

from specc.ir.array import Array

MIN_ACCURATE_SUM = 1e-30
"""A sum of squares above this bound is accurate in float32, whose smallest subnormal is 1e-45."""


@dataclass
class QuantizationErrorStats:
    """The quantization error of a weight: sums of squares over its elements, and the maximum
    error.
    """

    squared_norm: float = 0.0
    squared_error: float = 0.0
    max_error: float = 0.0

    def add_rows(self, exact: Array, quantized: Array) -> None:
        """Add the quantization error of some rows of a weight. `exact` and `quantized` are the rows
        before and after quantization; `quantized` is overwritten.
        """
        errors = np.subtract(exact, quantized, out=quantized)
        self.squared_norm += _sum_squares(exact.reshape(-1))
        self.squared_error += _sum_squares(errors.reshape(-1))
        bounds = errors.max(initial=0.0), -errors.min(initial=0.0)
        self.max_error = max(self.max_error, *map(float, bounds))

    def add_stats(self, other: "QuantizationErrorStats") -> None:
        """Add the error statistics of other rows of the same weight."""
        self.squared_norm += other.squared_norm
        self.squared_error += other.squared_error
        self.max_error = max(self.max_error, other.max_error)

    @property
    def relative_error(self) -> float:
        """Return the error norm relative to the weight's norm."""
        return (self.squared_error / self.squared_norm) ** 0.5 if self.squared_norm else 0.0


def _sum_squares(flat: Array) -> float:
    """Return the sum of squares of float32 values, in float64 if it exceeds the range of
    float32.
    """
    with np.errstate(over="ignore", under="ignore"):
        total = float(np.dot(flat, flat))
    # for smaller sums the squares may have underflowed
    if MIN_ACCURATE_SUM < total < np.inf:
        return total
    flat64 = flat.astype(np.float64)
    return float(np.dot(flat64, flat64))
