"""Quantize weights while they are streamed to a file, and add scales of quantized KV caches."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.io.output_paths import raise_os_error
from specc.ir.array import Array
from specc.ir.ops.quantized import QuantizationFormat, QuantizationPlan, TensorRole
from specc.weights import int_quantization
from specc.weights.int_quantization import QuantizationErrorStats
from specc.weights.parameter_sources import (
    ParameterOverrides,
    ParameterSource,
    iterate_transposed_rows,
    iterate_weight_row_chunks,
)
from specc.weights.weight_expressions import Shape
from specc.weights.weight_rules_and_initializers import ModelParameter, ParameterMap
from specc.weights.weight_value_checks import check_quantized_weight_range


@dataclass(frozen=True)
class KVCacheScaleOverrides(ParameterOverrides):
    """The parameters of a model, plus the scales of quantized KV caches. The class implements
    `ParameterSource`.
    """

    scales: Mapping[str, Array]

    @cached_property
    def parameters(self) -> ParameterMap:
        """All parameters, keyed by name, including the KV cache scales."""
        shapes = {n: array.shape for n, array in self.scales.items()}
        added = {n: ModelParameter(name=n, shape=shape) for n, shape in shapes.items()}
        return {**self.base.parameters, **added}

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied source of a tied parameter, or None for an untied parameter."""
        return None if name in self.scales else self.base.get_tied_source(name)

    def get_stored_dtype(self, name: str) -> str:
        """Return the stored dtype of a parameter."""
        return "f32" if name in self.scales else self.base.get_stored_dtype(name)

    def is_overridden(self, name: str) -> bool:
        """Return True if a parameter is a KV cache scale."""
        return name in self.scales

    def iterate_replacement_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the KV cache scales as bytes."""
        yield _view_bytes(self.scales[name].astype(np.float32, copy=False))


CHUNK_VALUES = 1 << 20
"""Approximate number of weight elements that are quantized at a time."""
CACHED_VALUES = 1 << 16
"""Number of weight elements that fit in the CPU cache during all steps of the quantization."""
GPTQ_CHUNK_ELEMENTS = 1 << 22
"""Number of weight elements that GPTQ processes at a time (GPTQ quantizes column by column)."""
NO_ZERO_POINTS: Array = np.empty(0, np.uint8)
"""The empty array of zero points for weights without zero points."""
MAX_THREADS = 2
"""Number of chunks that are quantized in parallel. Additional threads would only wait for I/O."""

GetFactor: TypeAlias = Callable[[int], Array]
"""A function that maps the index of a matrix in a stacked weight to the matrix's GPTQ factor."""
RowsAndFactor: TypeAlias = tuple[Array, Array | None]
"""Rows of a matrix, with either the GPTQ factor of the matrix, the stored scales of the rows, or
None."""


@dataclass(kw_only=True)
class WeightQuantizationState:
    """The state while a weight or a stack of weights is quantized row by row. `finished_tensors`
    are the scales and zero points. These tensors are set after the last row, and released when they
    are first read. `recipe` is "nearest", "gptq" or "stored".
    """

    format: QuantizationFormat
    shape: Shape
    error: QuantizationErrorStats = field(default_factory=QuantizationErrorStats)
    finished_tensors: dict[TensorRole, Array] = field(default_factory=dict)
    recipe: str = "nearest"

    @property
    def out_channels(self) -> int:
        """The number of output channels."""
        return self.shape[-1] if self.format.is_transposed else self.shape[-2]

    @property
    def in_channels(self) -> int:
        """The number of input channels."""
        return self.shape[-2] if self.format.is_transposed else self.shape[-1]

    @property
    def batch_shape(self) -> Shape:
        """The sizes of the leading axes of a stacked weight."""
        return self.shape[:-2]


@dataclass(frozen=True)
class QuantizedWeightFiles:
    """A quantized weight: the files with its codes and scales, and its quantization error."""

    codes: Path
    scales: Path
    error: QuantizationErrorStats


def quantize_weight_to_files(
    weights: ParameterSource,
    name: str,
    format: QuantizationFormat,
    get_inverse_cholesky_factor: GetFactor,
    stem: Path,
) -> QuantizedWeightFiles:
    """Quantize a weight with GPTQ, and write its codes and scales to the files `stem` plus a
    suffix. Raise E0810 to E0815 on failure.
    """
    quantized = QuantizedWeights(
        weights, {name: format}, get_inverse_cholesky_factor=get_inverse_cholesky_factor
    )
    tensors = [format.format_tensor_name(name, role) for role in ("codes", "scales")]
    paths = stem.with_suffix(".numbers"), stem.with_suffix(".scales")
    for tensor, path in zip(tensors, paths, strict=True):
        try:
            with path.open("wb") as file:
                file.writelines(
                    quantized.iterate_chunks(tensor, quantized.parameters[tensor].dtype)
                )
        except OSError as error:
            raise_os_error(error, path)
    return QuantizedWeightFiles(*paths, quantized.states[name].error)


@dataclass(frozen=True)
class QuantizedWeights(ParameterOverrides):
    """Parameters whose weights in `plan` are quantized. The class implements `ParameterSource`.

    `prequantized` weights are read from files. `get_inverse_cholesky_factor` returns the GPTQ
    factor of a weight, or of each matrix of a stacked weight. If the factor is None, the weight is
    rounded to nearest. `stored_scales` are the scales of weights that the checkpoint stores in
    quantized form, one scale per element.
    """

    plan: QuantizationPlan
    prequantized: Mapping[str, QuantizedWeightFiles] = field(default_factory=dict)
    get_inverse_cholesky_factor: GetFactor | None = None
    stored_scales: ParameterSource | None = None
    states: dict[str, WeightQuantizationState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, format in self.plan.items():
            self.states[name] = WeightQuantizationState(
                format=format, shape=self.base.parameters[name].shape
            )

    @cached_property
    def tensor_roles(self) -> Mapping[str, tuple[str, TensorRole]]:
        """The weight and the role (codes, scales or zero points) of each stored tensor, keyed by
        tensor name.
        """
        return {
            format.format_tensor_name(name, role): (name, role)
            for name, format in self.plan.items()
            for role in format.tensor_roles
        }

    @cached_property
    def parameters(self) -> ParameterMap:
        """All parameters, keyed by name. Codes, scales and zero points are separate parameters."""
        parameters = {n: w for n, w in self.base.parameters.items() if n not in self.plan}
        for tensor, (name, role) in self.tensor_roles.items():
            format, parameter = self.plan[name], self.base.parameters[name]
            shape = format.compute_tensor_shape(parameter.shape, role)
            dtype = format.get_dtype(role)
            parameters[tensor] = replace(parameter, name=tensor, shape=shape, dtype=dtype)
        return parameters

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied source of a tied parameter, or None for an untied parameter."""
        if name not in self.tensor_roles:
            return self.base.get_tied_source(name)
        weight, role = self.tensor_roles[name]
        root = self.base.get_tied_source(weight)
        return None if root is None else self.plan[weight].format_tensor_name(root, role)

    def get_stored_dtype(self, name: str) -> str:
        """Return the stored dtype of a parameter."""
        return (
            self.parameters[name].dtype
            if name in self.tensor_roles
            else self.base.get_stored_dtype(name)
        )

    def is_overridden(self, name: str) -> bool:
        """Return True for codes, scales and zero points of a quantized weight."""
        return name in self.tensor_roles

    def iterate_replacement_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the codes, scales or zero points of a weight as bytes."""
        weight, role = self.tensor_roles[name]
        if weight in self.prequantized:
            yield from self._iterate_stored(weight, is_scales=role == "scales")
        elif role == "codes":
            yield from self._iterate_codes(weight)
        else:
            finished_tensors = self.states[weight].finished_tensors
            if role not in finished_tensors:
                # scales and zero points are complete only after all codes have been computed
                for _ in self._iterate_codes(weight):
                    pass
            yield _view_bytes(finished_tensors.pop(role))

    def _iterate_stored(self, name: str, *, is_scales: bool) -> Iterator[memoryview]:
        """Yield the codes or the scales of a pre-quantized weight from its file."""
        weight, state = self.prequantized[name], self.states[name]
        state.error, state.recipe = weight.error, "gptq"
        with (weight.scales if is_scales else weight.codes).open("rb") as file:
            while chunk := file.read(CHUNK_VALUES):
                yield memoryview(chunk)

    def _iterate_codes(self, name: str) -> Iterator[memoryview]:
        """Quantize a weight and yield its codes. The scales and zero points are kept in the
        `WeightQuantizationState` of the weight.
        """
        state, format = self.states[name], self.plan[name]
        state.error, scales, zero_points = QuantizationErrorStats(), [], [NO_ZERO_POINTS]
        get_inverse_cholesky_factor = self.get_inverse_cholesky_factor
        state.recipe = "nearest" if get_inverse_cholesky_factor is None else "gptq"
        state.recipe = state.recipe if self.stored_scales is None else "stored"
        columns = None
        if format.layout == "columns":
            columns = np.empty(
                (prod(state.batch_shape), state.in_channels, state.out_channels), np.int8
            )
        position = 0
        row_chunks = self._iterate_rows(name)
        rows_and_factors = _pair_with_factors(
            row_chunks, state.out_channels, get_inverse_cholesky_factor
        )
        if self.stored_scales is not None:
            rows_and_factors = zip(
                row_chunks, self._iterate_rows(name, self.stored_scales), strict=True
            )
        for quantized in _map_in_order(partial(_quantize_rows, state=state), rows_and_factors):
            state.error.merge(quantized.error)
            scales.append(quantized.scales if format.group_size else quantized.scales[:, 0])
            zero_points.append(quantized.zero_points)
            if columns is None:
                yield _view_bytes(quantized.stored)
            else:
                # a chunk contains rows of only one matrix
                matrix_index, start = divmod(position, state.out_channels)
                columns[matrix_index, :, start : start + len(quantized.stored)] = quantized.stored.T
            position += len(quantized.stored)
        joined = np.concatenate(scales) if scales else np.empty(0, np.float32)
        joined = joined.reshape(*state.batch_shape, state.out_channels, *joined.shape[1:])
        is_column_major = format.layout == "columns" and format.group_size
        state.finished_tensors["scales"] = (
            np.swapaxes(joined, -1, -2) if is_column_major else joined
        )
        state.finished_tensors["zero_points"] = np.concatenate(zero_points)
        check_quantized_weight_range(
            name, state.error.relative_error, format, state.in_channels, joined
        )
        if columns is not None:
            yield _view_bytes(_pack_int4_tensor(columns) if format.bits == 4 else columns)

    def _iterate_rows(self, name: str, values: ParameterSource | None = None) -> Iterator[Array]:
        """Yield float32 rows `[chunk, in]`, one per output channel, from `values` or `base`."""
        state = self.states[name]
        chunk_rows, gptq_chunk_rows = (
            max(1, elements // max(state.in_channels, 1))
            for elements in (CHUNK_VALUES, GPTQ_CHUNK_ELEMENTS)
        )
        if self.get_inverse_cholesky_factor is not None:
            # the run time of GPTQ hardly depends on the number of rows
            chunk_rows *= -(-gptq_chunk_rows // chunk_rows)
        iterate = (
            iterate_transposed_rows if state.format.is_transposed else iterate_weight_row_chunks
        )
        yield from iterate(values or self.base, name, state.out_channels, chunk_rows)


@dataclass(frozen=True)
class _QuantizedRows:
    """Quantized rows of a weight: stored codes and zero points, scales, and quantization error."""

    stored: Array
    scales: Array
    error: QuantizationErrorStats
    zero_points: Array


def _pair_with_factors(
    row_chunks: Iterator[Array], out_channels: int, get_inverse_cholesky_factor: GetFactor | None
) -> Iterator[RowsAndFactor]:
    """Yield the rows of each matrix in order, with the GPTQ factor of the matrix."""
    position, factor = 0, None
    for rows in row_chunks:
        if get_inverse_cholesky_factor is not None and position % out_channels == 0:
            factor = get_inverse_cholesky_factor(position // out_channels)
        position += len(rows)
        yield rows, factor


def _quantize_rows(
    rows_and_factor: RowsAndFactor, state: WeightQuantizationState
) -> _QuantizedRows:
    """Quantize rows of a weight, with the GPTQ factor or the stored scales in `rows_and_factor`."""
    (rows, factor), group_size = rows_and_factor, state.format.group_size
    parts, scales, error = [], [], QuantizationErrorStats()
    zero_points = [NO_ZERO_POINTS]
    # GPTQ works column by column, so its run time hardly depends on the number of rows
    chunk_rows = len(rows) if state.recipe == "gptq" else CACHED_VALUES // max(state.in_channels, 1)
    for start in range(0, len(rows), max(1, chunk_rows)):
        part = slice(start, start + max(1, chunk_rows))
        chunk = rows[part]
        blocks = int_quantization.split_weight_groups(chunk, group_size)
        if state.recipe == "gptq":
            assert factor is not None, "GPTQ without the factor of the matrix"
            codes, chunk_scales = int_quantization.quantize_weight_gptq(chunk, factor, group_size)
            codes = codes.astype(np.float32)
        else:
            if state.recipe == "stored":
                assert factor is not None, "stored codes without their scales"
                chunk_scales = int_quantization.split_weight_groups(factor[part], group_size)[
                    ..., 0
                ]
            else:
                chunk_scales = int_quantization.compute_group_scales(blocks, state.format.bits)
            # with zero points, codes are in [-15, 15] before the zero point is added
            bits = 8 if state.format.has_zero_points else state.format.bits
            codes = int_quantization.round_to_integers(blocks, chunk_scales, bits)
        stored = codes.astype(np.int8)
        if state.format.has_zero_points:
            zeros = int_quantization.choose_zero_points(stored, state.format.bits)
            stored += zeros[..., None].view(np.int8)
            packed = int_quantization.pack_zero_points(zeros, state.format.bits)
            zero_points.append(packed.reshape(-1))
        parts.append(int_quantization.pack_weight_codes(stored, state.in_channels, state.format))
        scales.append(chunk_scales)
        codes *= chunk_scales[..., None]
        error.add_rows(blocks, codes)
    return _QuantizedRows(
        np.concatenate(parts), np.concatenate(scales), error, np.concatenate(zero_points)
    )


def _map_in_order(
    function: Callable[[RowsAndFactor], _QuantizedRows], row_chunks: Iterator[RowsAndFactor]
) -> Iterator[_QuantizedRows]:
    """Yield the results of `function` in order, while the next rows are read in parallel (NumPy
    releases the GIL). At most one chunk per thread is queued.
    """
    pending: deque[Future[_QuantizedRows]] = deque()
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        for rows in row_chunks:
            pending.append(pool.submit(function, rows))
            if len(pending) > MAX_THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _view_bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1).data


def _pack_int4_tensor(codes: Array) -> Array:
    """Pack the 4-bit codes of a tensor, two per byte, with the first in the low nibble."""
    flat = codes.reshape(-1).view(np.uint8) & 15
    return int_quantization.pack_nibbles(np.append(flat, np.uint8(0)) if flat.size % 2 else flat)
