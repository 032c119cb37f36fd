"""Rewrite weights: find transposed matrices in a checkpoint, iterate over rows of weights, fold
norm weights into the following linear layers, and check the range of weights.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.ops.quantized import FoldedNorm
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.parameter_sources import (
    BoundParameter,
    ByteRange,
    CheckpointBinding,
    ParameterOverrides,
    ParameterSource,
    read_parameter,
)
from specc.weights.weight_expressions import Expr, TransposeExpr
from specc.weights.weight_value_checks import CHECKED_VALUES, convert_dtype


def find_transposed_parameters(binding: CheckpointBinding) -> frozenset[str]:
    """Return the names of the parameters that a file stores transposed, except sources of ties."""
    # tied parameters read their source in the spec's layout
    tie_sources = {b.tied_to for b in binding.bound_parameters.values() if b.tied_to is not None}
    return frozenset(
        name
        for name, bound in binding.bound_parameters.items()
        if name not in tie_sources and _find_transposed_operand(binding, bound) is not None
    )


def _find_transposed_operand(binding: CheckpointBinding, bound: BoundParameter) -> Expr | None:
    """Return the operand of a transpose if it is stored in a file, or else None."""
    expr = bound.expr
    if not isinstance(expr, TransposeExpr) or len(bound.parameter.shape) != 2:
        return None
    # an identity transpose, or a transpose of a single row or column, does not change the stored
    # bytes
    if expr.axes == (0, 1) or binding.find_tensor_byte_range(expr) is not None:
        return None
    return expr.x if binding.find_tensor_byte_range(expr.x) is not None else None


def remove_weight_transposes(
    binding: CheckpointBinding, names: Collection[str]
) -> CheckpointBinding:
    """Return `binding` with the parameters `names` in the file's layout, `[in, out]`."""
    bound = dict(binding.bound_parameters)
    for name in names:
        source = bound[name]
        stored = replace(source.parameter, shape=source.parameter.shape[::-1])
        operand = _find_transposed_operand(binding, source)
        bound[name] = replace(source, parameter=stored, expr=operand)
    return replace(binding, bound_parameters=bound)


HALF_PRECISION_TYPES = ("f16", "bf16")
"""Dtypes whose values float32 represents exactly."""


def iterate_transposed_rows(
    values: ParameterSource, name: str, out_channels: int, chunk_rows: int
) -> Iterator[Array]:
    """Yield float32 rows `[chunk, in]` of a weight that is stored as `[in, out]`, `chunk_rows` at a
    time. The whole weight is read into memory.
    """
    transposed = read_parameter(values, name, "f32")
    for matrix in transposed.reshape(-1, transposed.shape[-2], out_channels):
        for start in range(0, out_channels, chunk_rows):
            yield np.ascontiguousarray(matrix[:, start : start + chunk_rows].T)


def iterate_weight_rows(
    values: ParameterSource, name: str, out_channels: int, chunk_rows: int
) -> Iterator[Array]:
    """Yield the rows `[chunk, in]` of a weight stored as `[out, in]`, `chunk_rows` at a time. Each
    chunk is a copy, because file buffers are reused.
    """
    *stack, _, in_channels = values.parameters[name].shape
    total = prod(stack) * out_channels * in_channels
    stored = values.get_stored_dtype(name)
    # convert narrower dtypes in the copy, because every chunk is a copy
    dtype = stored if stored in HALF_PRECISION_TYPES else "f32"
    buffer, filled, total_read = np.empty(0, np.float32), 0, 0
    for chunk in values.iterate_chunks(name, dtype):
        elements = np.frombuffer(chunk, NUMPY_DTYPES[dtype])
        # a chunk may end within a row and may contain several pieces of the buffer
        while elements.size:
            if filled == buffer.size:
                remaining_rows = out_channels - total_read // in_channels % out_channels
                size = min(chunk_rows, remaining_rows) * in_channels
                buffer, filled = np.empty(size, np.float32), 0
            part = elements[: buffer.size - filled]
            buffer[filled : filled + part.size] = part
            filled, total_read = filled + part.size, total_read + part.size
            elements = elements[part.size :]
            if filled == buffer.size:
                yield buffer.reshape(-1, in_channels)
    assert total_read == total, f"{name} ends within a row"


MAX_EXPONENT = 40
"""Maximum exponent of a power of two that is folded. The norm weight keeps the remaining factor."""
FOLDED_NORM_HELP = (
    "norm weights are folded into these weights, so they cannot be linked to a checkpoint: "
    "remove --fold-norms, or `fold_norms` in the spec"
)
"""Help text for an out-of-range value of a parameter with a folded norm weight."""


@dataclass(frozen=True)
class NormFoldedWeights(ParameterOverrides):
    """Parameters with the norm weights of `folds` folded into the following linear layers."""

    folds: Sequence[FoldedNorm]
    factor_cache: dict[str, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def fold_by_parameter(self) -> Mapping[str, FoldedNorm]:
        """The fold that changes a norm weight, norm bias or linear weight, by parameter name."""
        return {
            name: fold
            for fold in self.folds
            for name in (fold.weight, fold.bias, *(weight for weight, _ in fold.linear_weights))
            if name
        }

    def is_overridden(self, name: str) -> bool:
        """Return True if a fold changes the values of a parameter."""
        return name in self.fold_by_parameter

    def iterate_replacement_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of a parameter in `dtype`. Linear weights are multiplied, and norm
        weights are divided, by the powers of two of their fold.
        """
        fold = self.fold_by_parameter[name]
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
            # use float64, so that an error message can contain a value outside the range of float32
            folded = np.multiply(block, factors[inputs], dtype=np.float64)
            yield convert_dtype(folded, dtype, location, FOLDED_NORM_HELP).view(np.uint8).data
            position += block.size

    def _compute_factors(self, fold: FoldedNorm) -> Array:
        """Return a power of two per channel that is near the norm output's magnitude. Normalized
        values have magnitude 1 before they are multiplied by the norm weight.
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
        """Return a parameter's byte range in a file, or None if it needs a conversion. Linked
        values are not checked elsewhere, so raise E0517 if a value is out of the compute dtype's
        range.
        """
        byte_range = self.base.find_byte_range(name)
        if byte_range is not None and name in self.range_checks:
            for _ in self.iterate_chunks(name, "f32"):
                pass
        return byte_range

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the bytes of a parameter in `dtype`. Raise E0517 if a value is out of the compute
        dtype's range, or an error of the underlying parameters.
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
