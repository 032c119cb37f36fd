"""Quantize weights while they stream from checkpoint to file; scales of KV caches."""

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
from specc.ir.ops.quantized import QuantizationFormat, QuantizationPlan
from specc.weights import int_quantization
from specc.weights.parameter_values import ParameterValues, ValuesOverlay
from specc.weights.transposed_weights import row_chunks, transposed_row_chunks
from specc.weights.weight_rules import RequiredParameter


@dataclass(frozen=True)
class ValuesWithScales(ValuesOverlay):
    """Model values plus further f32 arrays (scales) by name. Implements `ParameterValues`."""

    scales: Mapping[str, Array]

    @cached_property
    def wanted(self) -> Mapping[str, RequiredParameter]:
        """Every parameter by name."""
        more = {n: RequiredParameter(name=n, shape=array.shape) for n, array in self.scales.items()}
        return {**self.base.wanted, **more}

    def tied_to(self, name: str) -> str | None:
        """Return the parameter that this one is tied to, or None."""
        return None if name in self.scales else self.base.tied_to(name)

    def stored_dtype(self, name: str) -> str:
        """Return the stored dtype."""
        return "f32" if name in self.scales else self.base.stored_dtype(name)

    def replaces(self, name: str) -> bool:
        """Return True for scales."""
        return name in self.scales

    def replaced_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the scales as bytes."""
        yield _bytes(self.scales[name].astype(np.float32, copy=False))


CHUNK_VALUES = 1 << 20
"""Approximate number of values quantized at a time."""
CACHED_VALUES = 1 << 16
"""Number of values processed together by all steps, so that they stay in the CPU cache."""
GPTQ_CHUNK_ELEMENTS = 1 << 22
"""The same for column-by-column quantization (GPTQ)."""
MIN_ACCURATE_SUM = 1e-30
"""Sums of squares above this are accurate in float32, whose smallest subnormal is 1e-45."""
MAX_THREADS = 2
"""Number of chunks quantized in parallel; more would only wait for I/O."""


GetFactor: TypeAlias = Callable[[int], Array]
"""Returns the GPTQ factor of the n-th matrix of a stack; of a single matrix for any n."""
RowsAndFactor: TypeAlias = tuple[Array, Array | None]
"""Rows of a matrix, and its GPTQ factor or the rows' scales."""


@dataclass
class WeightQuantizationError:
    """Quantization error of a weight: sums over its values, and the maximum error."""

    squares: float = 0.0
    lost: float = 0.0
    worst: float = 0.0

    def see(self, before: Array, after: Array) -> None:
        """Add the errors of some rows, before and after; `after` is overwritten."""
        gone = np.subtract(before, after, out=after)
        self.squares += _sum_squares(before.reshape(-1))
        self.lost += _sum_squares(gone.reshape(-1))
        ends = gone.max(initial=0.0), -gone.min(initial=0.0)
        self.worst = max(self.worst, *map(float, ends))

    def add(self, other: "WeightQuantizationError") -> None:
        """Add the errors of other rows of the same weight."""
        self.squares += other.squares
        self.lost += other.lost
        self.worst = max(self.worst, other.worst)

    @property
    def relative(self) -> float:
        """The error norm relative to the weight's norm."""
        return (self.lost / self.squares) ** 0.5 if self.squares else 0.0


def _sum_squares(flat: Array) -> float:
    """Return the sum of squares, also beyond the range of float32."""
    with np.errstate(over="ignore", under="ignore"):
        total = float(np.dot(flat, flat))
    # for smaller sums the squares may have underflowed
    if MIN_ACCURATE_SUM < total < np.inf:
        return total
    wide = flat.astype(np.float64)
    return float(np.dot(wide, wide))


@dataclass
class QuantizedStream:
    """A weight being quantized, or a stack of them: scales are known after all rows."""

    form: QuantizationFormat
    shape: tuple[int, ...]
    loss: WeightQuantizationError = field(default_factory=WeightQuantizationError)
    scales: Array | None = None
    recipe: str = "nearest"

    @property
    def out(self) -> int:
        """The number of output channels."""
        return self.shape[-1] if self.form.is_transposed else self.shape[-2]

    @property
    def wide(self) -> int:
        """The number of input channels."""
        return self.shape[-2] if self.form.is_transposed else self.shape[-1]

    @property
    def stack(self) -> tuple[int, ...]:
        """The leading axes of a stack of matrices."""
        return self.shape[:-2]


@dataclass(frozen=True)
class PrequantizedWeight:
    """A pre-quantized weight: files of its integers and scales in storage form, and its
    quantization error.
    """

    numbers: Path
    scales: Path
    loss: WeightQuantizationError


def quantize_to_files(
    base: ParameterValues, name: str, form: QuantizationFormat, factor: GetFactor, stem: Path
) -> PrequantizedWeight:
    """Quantize a weight by GPTQ into files named after `stem`. E0810 to E0815 if they cannot be
    written.
    """
    one = QuantizedValues(base, {name: form}, factor=factor)
    parts = form.format_codes_name(name), form.format_scales_name(name)
    paths = stem.with_suffix(".numbers"), stem.with_suffix(".scales")
    for part, path in zip(parts, paths, strict=True):
        try:
            with path.open("wb") as file:
                file.writelines(one.chunks(part, one.wanted[part].dtype))
        except OSError as error:
            raise_os_error(error, path)
    return PrequantizedWeight(*paths, one.made[name].loss)


@dataclass(frozen=True)
class QuantizedValues(ValuesOverlay):
    """Model values with quantized weights. Implements `ParameterValues`.

    `ready` ones are read from files. `factor` returns the GPTQ factor of the others, or of each
    matrix of a stack; None: round to nearest. `stored` are the scales of pre-quantized values, one
    per value.
    """

    plan: QuantizationPlan
    ready: Mapping[str, PrequantizedWeight] = field(default_factory=dict)
    factor: GetFactor | None = None
    stored: ParameterValues | None = None
    made: dict[str, QuantizedStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, form in self.plan.items():
            self.made[name] = QuantizedStream(form, self.base.wanted[name].shape)

    @cached_property
    def parts(self) -> Mapping[str, tuple[str, bool]]:
        """The weight that each new name is a part of, and whether it is the scales."""
        found: dict[str, tuple[str, bool]] = {}
        for name, form in self.plan.items():
            found[form.format_codes_name(name)] = name, False
            found[form.format_scales_name(name)] = name, True
        return found

    @cached_property
    def wanted(self) -> Mapping[str, RequiredParameter]:
        """Every parameter by name, quantized ones in two parts."""
        found = {n: w for n, w in self.base.wanted.items() if n not in self.plan}
        for part, (name, is_scales) in self.parts.items():
            form, one = self.plan[name], self.made[name]
            shape = form.compute_shapes(one.shape)[1 if is_scales else 0]
            dtype = "f32" if is_scales else form.dtype
            found[part] = replace(self.base.wanted[name], name=part, shape=shape, dtype=dtype)
        return found

    def tied_to(self, name: str) -> str | None:
        """Return the parameter that this one is tied to, or None."""
        if name not in self.parts:
            return self.base.tied_to(name)
        weight, is_scales = self.parts[name]
        root = self.base.tied_to(weight)
        if root is None:
            return None
        form = self.plan[weight]
        return form.format_scales_name(root) if is_scales else form.format_codes_name(root)

    def stored_dtype(self, name: str) -> str:
        """Return the stored dtype."""
        return self.wanted[name].dtype if name in self.parts else self.base.stored_dtype(name)

    def replaces(self, name: str) -> bool:
        """Return True for the two parts of a quantized weight."""
        return name in self.parts

    def replaced_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of a part as bytes."""
        weight, is_scales = self.parts[name]
        if weight in self.ready:
            yield from self._read_stored(weight, is_scales=is_scales)
            return
        if not is_scales:
            yield from self._read_numbers(weight)
            return
        scales = self.made[weight].scales
        if scales is None:
            # the codes were not requested before
            for _ in self._read_numbers(weight):
                pass
            scales = self.made[weight].scales
        assert scales is not None
        self.made[weight].scales = None
        yield _bytes(scales)

    def _read_stored(self, name: str, *, is_scales: bool) -> Iterator[memoryview]:
        """Read a part of a pre-quantized weight."""
        ready, one = self.ready[name], self.made[name]
        one.loss, one.recipe = ready.loss, "gptq"
        with (ready.scales if is_scales else ready.numbers).open("rb") as file:
            while chunk := file.read(CHUNK_VALUES):
                yield memoryview(chunk)

    def _read_numbers(self, name: str) -> Iterator[memoryview]:
        """Yield the integers of a weight and keep its scales."""
        one, form = self.made[name], self.plan[name]
        one.loss, scales = WeightQuantizationError(), []
        factor = self.factor
        one.recipe = "nearest" if factor is None else "gptq"
        if self.stored is not None:
            one.recipe = "stored"
        whole = None
        if form.layout == "columns":
            whole = np.empty((prod(one.stack), one.wide, one.out), np.int8)
        at = 0
        pieces = self._rows(name)
        if factor is not None:
            pieces = _merge_rows(pieces, one)
        given = _with_factors(pieces, one.out, factor)
        if self.stored is not None:
            given = zip(pieces, self._rows(name, self.stored), strict=True)
        for piece in _in_order(partial(_quantize_piece, one=one), given):
            one.loss.add(piece.loss)
            scales.append(piece.scales if form.group_size else piece.scales[:, 0])
            if whole is None:
                yield _bytes(piece.stored)
            else:
                # chunks end with a matrix, so that each is of one
                which, start = divmod(at, one.out)
                whole[which, :, start : start + len(piece.stored)] = piece.stored.T
            at += len(piece.stored)
        joined = np.concatenate(scales) if scales else np.empty(0, np.float32)
        joined = joined.reshape(*one.stack, one.out, *joined.shape[1:])
        by_column = form.layout == "columns" and form.group_size
        one.scales = np.swapaxes(joined, -1, -2) if by_column else joined
        if whole is not None:
            yield _bytes(_in_half(whole) if form.bits == 4 else whole)

    def _rows(self, name: str, values: ParameterValues | None = None) -> Iterator[Array]:
        """Yield the rows `[some, in]` of a weight in order, f32, one per output channel; or those
        of other values for it.
        """
        one = self.made[name]
        many = max(1, CHUNK_VALUES // max(one.wide, 1))
        lying = transposed_row_chunks if one.form.is_transposed else row_chunks
        yield from lying(values or self.base, name, one.out, many)


@dataclass(frozen=True)
class _Piece:
    """Quantized rows in storage form, their scales, and their quantization error."""

    stored: Array
    scales: Array
    loss: WeightQuantizationError


def _with_factors(
    pieces: Iterator[Array], out: int, factor: GetFactor | None
) -> Iterator[RowsAndFactor]:
    """Yield rows of one matrix after the other, with its GPTQ factor."""
    at, here = 0, None
    for rows in pieces:
        if factor is not None and at % out == 0:
            here = factor(at // out)
        at += len(rows)
        yield rows, here


def _quantize_piece(given: RowsAndFactor, one: QuantizedStream) -> _Piece:
    """Quantize some rows of a weight."""
    rows, known = given
    parts, units, loss = [], [], WeightQuantizationError()
    # column by column costs the same for few rows as for many
    many = len(rows) if one.recipe == "gptq" else CACHED_VALUES // max(one.wide, 1)
    for start in range(0, len(rows), max(1, many)):
        part = slice(start, start + max(1, many))
        some = rows[part]
        blocks = int_quantization.split_groups(some, one.form.group_size)
        if one.recipe == "gptq":
            assert known is not None, "GPTQ without the factor of the matrix"
            numbers, unit = int_quantization.quantize_gptq(some, known, one.form.group_size)
            whole = numbers.astype(np.float32)
        elif one.recipe == "stored":
            assert known is not None, "stored codes without their scales"
            unit = int_quantization.split_groups(known[part], one.form.group_size)[..., 0]
            whole = int_quantization.round_to_grid(blocks, unit, one.form.bits)
        else:
            unit = int_quantization.group_scales(blocks, one.form.bits)
            whole = int_quantization.round_to_grid(blocks, unit, one.form.bits)
        parts.append(int_quantization.pack_quantized(whole.astype(np.int8), one.wide, one.form))
        units.append(unit)
        whole *= unit[..., None]
        loss.see(blocks, whole)
    return _Piece(np.concatenate(parts), np.concatenate(units), loss)


def _in_order(
    work: Callable[[RowsAndFactor], _Piece], pieces: Iterator[RowsAndFactor]
) -> Iterator[_Piece]:
    """Yield results of `work` in order while the next pieces are read; NumPy releases the GIL. At
    most one piece per thread waits.
    """
    waiting: deque[Future[_Piece]] = deque()
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > MAX_THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _merge_rows(pieces: Iterator[Array], one: QuantizedStream) -> Iterator[Array]:
    """Merge rows into larger chunks: GPTQ costs the same for few rows."""
    many = max(1, GPTQ_CHUNK_ELEMENTS // max(one.wide, 1))
    waiting: list[Array] = []
    at = 0
    for rows in pieces:
        waiting.append(rows)
        at += len(rows)
        if at % one.out == 0 or sum(map(len, waiting)) >= many:
            yield np.concatenate(waiting)
            waiting = []


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1).data


def _in_half(whole: Array) -> Array:
    """Pack 4-bit integers two per byte over a whole tensor, the first in the low nibble."""
    flat = whole.reshape(-1).view(np.uint8) & 15
    return int_quantization.pack_nibbles(np.append(flat, np.uint8(0)) if flat.size % 2 else flat)
