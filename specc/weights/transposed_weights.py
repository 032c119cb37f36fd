"""Find matrices that a checkpoint stores transposed, and iterate over weight rows."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.parameter_sources import (
    BoundParameter,
    CheckpointBinding,
    ParameterSource,
    read_parameter,
)
from specc.weights.weight_expressions import Expr, TransposeExpr


def find_transposed_parameters(binding: CheckpointBinding) -> frozenset[str]:
    """Return parameters that a file stores transposed, except those that others are tied to."""
    # a tied parameter reads its source in the layout of the spec
    tie_sources = {b.tied_to for b in binding.bound_parameters.values() if b.tied_to is not None}
    return frozenset(
        name
        for name, bound in binding.bound_parameters.items()
        if name not in tie_sources and _find_transposed_operand(binding, bound) is not None
    )


def _find_transposed_operand(binding: CheckpointBinding, bound: BoundParameter) -> Expr | None:
    """Return the operand of a transpose whose bytes are stored in a file, or None."""
    expr = bound.expr
    if not isinstance(expr, TransposeExpr) or len(bound.parameter.shape) != 2:
        return None
    # an identity transpose, or a transpose of a single row or column, does not change the stored
    # bytes
    if expr.axes == (0, 1) or binding.find_stored_bytes(expr) is not None:
        return None
    return expr.x if binding.find_stored_bytes(expr.x) is not None else None


def keep_transposed(binding: CheckpointBinding, names: Collection[str]) -> CheckpointBinding:
    """Return `binding` with the parameters `names` in the layout of the file, `[in, out]`."""
    bound = dict(binding.bound_parameters)
    for name in names:
        source = bound[name]
        stored = replace(source.parameter, shape=source.parameter.shape[::-1])
        operand = _find_transposed_operand(binding, source)
        bound[name] = replace(source, parameter=stored, expr=operand)
    return replace(binding, bound_parameters=bound)


HALF_PRECISION_TYPES = ("f16", "bf16")
"""Types whose values float32 represents exactly."""


def iterate_transposed_rows(
    values: ParameterSource, name: str, out_channels: int, chunk_rows: int
) -> Iterator[Array]:
    """Yield the float32 rows `[chunk, in]` of a weight stored as `[in, out]`, `chunk_rows` at a
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
    # narrower types are converted here, because the values are copied anyway
    dtype = stored if stored in HALF_PRECISION_TYPES else "f32"
    buffer, filled, total_read = np.empty(0, np.float32), 0, 0
    for chunk in values.iterate_chunks(name, dtype):
        elements = np.frombuffer(chunk, NUMPY_DTYPES[dtype])
        # a chunk may end within a row, and may contain several pieces
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
