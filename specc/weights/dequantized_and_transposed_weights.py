"""Read quantized weights of checkpoints as float32; find matrices that a checkpoint stores
transposed, and iterate over weight rows.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import prod
from typing import NoReturn

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.ops.quantized import MAX_GROUP_SIZE, MIN_GROUP_SIZE, StoredCodes
from specc.weights.checkpoint import ALL_ROWS, Checkpoint
from specc.weights.formats.quantized_decoders import (
    Codes,
    LayoutError,
    Lengths,
    Parts,
    QuantizationSettings,
    QuantizedLayout,
    match_tensor,
)
from specc.weights.formats.quantized_formats import WEIGHT_FORMATS, WeightFormat
from specc.weights.formats.safetensors import TensorEntry
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.parameter_sources import (
    BoundParameter,
    CheckpointBinding,
    ParameterSource,
    read_parameter,
)
from specc.weights.weight_expressions import (
    CastExpr,
    ConcatExpr,
    Expr,
    PermuteRopeExpr,
    SliceExpr,
    SplitPartExpr,
    StackExpr,
    TensorExpr,
    TransposeExpr,
)

ACTIVATION_TENSORS = (
    "activation_scale",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "k_scale",
    "q_scale",
    "v_scale",
    "weight_format",
)
"""Name suffixes of ignored tensors: activation scales, and redundant descriptions of the format."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """The name and format of a quantized weight, and its tensor names by suffix."""

    name: str
    format: WeightFormat
    tensors: Mapping[str, str]
    layout: QuantizedLayout


class DequantizedCheckpoint(Checkpoint):
    """A checkpoint that dequantizes weights to float32 tensors with the names of the unquantized
    checkpoint. Only the requested rows are decoded.
    """

    def __init__(self, base: Checkpoint, method: str, settings: QuantizationSettings) -> None:
        super().__init__(base.path, base.files)
        self.weights = {w.name: w for w in _find_weights(base, method, settings)}
        self.decoded_tensors = frozenset(self.weights).union(
            *(file.transformed_tensors for file in base.files)
        )
        inner = {tensor for w in self.weights.values() for tensor in w.tensors.values()}
        left = _map_unquantized_tensors(base, inner)
        _check_all_parts_present(base, method, left)
        self.optional_tensors = _find_zero_biases(base, self.weights)
        self.tensors = left
        for name, weight in self.weights.items():
            self._file_by_tensor[name] = self._file_by_tensor[
                weight.tensors[weight.format.marker_suffix]
            ]
            shape = weight.layout.shape
            self.tensors[name] = TensorEntry(name, "f32", shape, 0, 4 * prod(shape))

    def get_array(self, name: str) -> Array:
        """Return the tensor, dequantized or as a view of its file."""
        return self.read_tensor(name) if name in self.weights else super().get_array(name)

    def read_tensor(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return a copy of the tensor, or of some rows."""
        if name not in self.weights:
            return super().read_tensor(name, rows)
        codes, scales = self.read_codes(name, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(codes.astype(np.float32) * scales.astype(np.float32))

    def read_codes(self, name: str, rows: slice) -> Codes:
        """Return the quantized values and scales of some rows of a quantized weight."""
        weight = self.weights[name]
        return weight.format.decode(_view_parts(self, weight.tensors), weight.layout, rows)


def _map_unquantized_tensors(base: Checkpoint, quantized_parts: Set[str]) -> dict[str, TensorEntry]:
    """Return the tensors that belong neither to a quantized weight (`quantized_parts`) nor to
    activation quantization.
    """
    return {
        n: e
        for n, e in base.tensors.items()
        if n not in quantized_parts and n.rpartition(".")[2] not in ACTIVATION_TENSORS
    }


def _find_zero_biases(base: Checkpoint, weight_names: Iterable[str]) -> frozenset[str]:
    """Return the zero biases that GPTQ stores for layers without a bias."""
    biases = (name.removesuffix(".weight") + ".bias" for name in weight_names)
    return frozenset(b for b in biases if b in base.tensors and not base.get_array(b).any())


def _view_parts(checkpoint: Checkpoint, tensors: Mapping[str, str]) -> Parts:
    """Return the tensors of a quantized weight as views of their files."""
    return {
        suffix: checkpoint.get_file(tensor).get_array(tensor) for suffix, tensor in tensors.items()
    }


def _find_weights(
    base: Checkpoint, method: str, settings: QuantizationSettings
) -> Iterator[QuantizedWeight]:
    """Yield every quantized weight. Raise E0532 if one cannot be dequantized."""
    taken: set[str] = set()
    for format in WEIGHT_FORMATS:
        if method not in format.methods:
            continue
        for mark in [
            n for n in base.tensors if n.endswith(format.marker_suffix) and n not in taken
        ]:
            stem = mark.removesuffix(format.marker_suffix)
            weight = _match_weight(base, stem, format, settings)
            taken.update(weight.tensors.values())
            yield weight


def _match_weight(
    base: Checkpoint, stem: str, format: WeightFormat, settings: QuantizationSettings
) -> QuantizedWeight:
    """Return the weight whose tensor names begin with `stem`. Raise E0532 if its tensors are
    invalid.
    """
    name = stem + format.weight_suffix
    lacking = [stem + suffix for suffix in format.parts if stem + suffix not in base.tensors]
    if lacking:
        _fail_undecodable(base, name, f"`{escape_text(lacking[0])}` is missing")
    patterns = {**format.parts, **format.optional_parts}
    tensors = {s: stem + s for s in patterns if stem + s in base.tensors}
    lengths: Lengths = {}
    try:
        parts = _view_parts(base, tensors)
        for suffix, array in parts.items():
            match_tensor(tensors[suffix], array, patterns[suffix], lengths)
        layout = format.infer_layout(parts, lengths, settings)
    except LayoutError as misfit:
        _fail_undecodable(base, name, escape_text(misfit))
    return QuantizedWeight(name, format, tensors, layout)


def _check_all_parts_present(
    base: Checkpoint, method: str, unquantized: Mapping[str, TensorEntry]
) -> None:
    """Raise E0532 if a quantized weight lacks a required tensor."""
    formats = [format for format in WEIGHT_FORMATS if method in format.methods]
    for name, entry in unquantized.items():
        for format in formats:
            _check_part_has_marker(base, name, format)
        if name.endswith("weight") and entry.dtype.startswith(("f8", "i8", "u8", "i32")):
            marks = {name.removesuffix(f.weight_suffix) + f.marker_suffix for f in formats}
            missing = " or ".join(f"`{escape_text(mark)}`" for mark in sorted(marks))
            _fail_undecodable(base, name, f"it is {entry}, and {missing} is missing")


def _check_part_has_marker(base: Checkpoint, name: str, format: WeightFormat) -> None:
    """Raise E0532 if a tensor belongs to a quantized weight whose marker tensor is missing."""
    for suffix in format.parts:
        if suffix not in ("", format.weight_suffix) and name.endswith(suffix):
            mark = name.removesuffix(suffix) + format.marker_suffix
            _fail_undecodable(base, name, f"`{escape_text(mark)}` is missing")


def _fail_undecodable(base: Checkpoint, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0532",
        f"the quantized weight `{escape_text(name)}` in `{escape_text(base.path)}` "
        "cannot be decoded",
        notes=[reason],
        helps=["download the whole checkpoint again, or use one with 16- or 32-bit weights"],
    )


STORED_BITS = 4
"""Only 4-bit weights are stored unchanged: with float32 activations, ONNX Runtime is ten times
slower for 8-bit weights than for float32 weights."""


class _ScaleView(DequantizedCheckpoint):
    """A checkpoint in which each value is replaced by its quantization scale."""

    @classmethod
    def from_checkpoint(cls, checkpoint: DequantizedCheckpoint) -> "_ScaleView":
        """Create the scales of a checkpoint."""
        made = copy.copy(checkpoint)
        made.__class__ = cls
        assert isinstance(made, _ScaleView)
        return made

    def read_tensor(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return the scales of some rows, broadcast to the shape of the values."""
        codes, scales = self.read_codes(name, rows)
        return np.broadcast_to(scales, np.broadcast_shapes(codes.shape, scales.shape))


def find_reusable_codes(values: ParameterSource) -> Mapping[str, StoredCodes]:
    """Return each parameter whose codes can be stored unchanged: 4-bit integers in groups along the
    last axis.
    """
    if not isinstance(values, CheckpointBinding):
        return {}
    checkpoint = values.checkpoint
    stored = {
        name: _find_stored_codes(bound.expr, checkpoint)
        for name, bound in values.bound_parameters.items()
        if bound.expr is not None
    }
    tied = {
        n: stored.get(b.tied_to)
        for n, b in values.bound_parameters.items()
        if b.tied_to is not None
    }
    return {name: codes for name, codes in {**stored, **tied}.items() if codes is not None}


def expose_stored_scales(values: ParameterSource) -> ParameterSource:
    """Return the scales of dequantized parameters, one scale per value."""
    assert isinstance(values, CheckpointBinding)
    assert isinstance(values.checkpoint, DequantizedCheckpoint)
    return replace(values, checkpoint=_ScaleView.from_checkpoint(values.checkpoint))


def _find_stored_codes(expr: Expr, checkpoint: Checkpoint) -> StoredCodes | None:
    """Return the codes of the weight, or None unless an expression only moves complete rows."""
    if not isinstance(checkpoint, DequantizedCheckpoint):
        return None
    match expr:
        case TensorExpr(name):
            weight = checkpoint.weights.get(name)
            return _describe_kernel_codes(weight.layout) if weight is not None else None
        case ConcatExpr(parts=parts, axis=0) | StackExpr(parts=parts):
            each = [_find_stored_codes(part, checkpoint) for part in parts]
            found = [codes for codes in each if codes is not None]
            if len(found) < len(each) or len({codes.group_size for codes in found}) != 1:
                return None
            return StoredCodes(found[0].group_size, any(codes.has_zero_points for codes in found))
        case (
            SliceExpr(x=x, axis=0)
            | SplitPartExpr(x=x, axis=0)
            | PermuteRopeExpr(x=x)
            | CastExpr(x=x, dtype="f32")
        ):
            return _find_stored_codes(x, checkpoint)
        case _:
            return None


def _describe_kernel_codes(layout: QuantizedLayout) -> StoredCodes | None:
    """Return the codes with the largest group size supported by kernels that divides the group size
    of a weight, or None.
    """
    fits = layout.is_uniform and layout.bits == STORED_BITS and layout.axis == -1
    size = MAX_GROUP_SIZE if fits else 0
    while size and layout.group_size % size:
        size = size // 2 if size > MIN_GROUP_SIZE else 0
    return StoredCodes(size, has_zero_points=not layout.is_symmetric) if size else None


def find_transposed_parameters(binding: CheckpointBinding) -> frozenset[str]:
    """Return the parameters that a file stores as transposed matrices, except the sources of tied
    weights.
    """
    # a tied parameter reads its source in the layout of the spec
    shared = {b.tied_to for b in binding.bound_parameters.values() if b.tied_to is not None}
    return frozenset(
        name
        for name, bound in binding.bound_parameters.items()
        if name not in shared and _find_transposed_operand(binding, bound) is not None
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
    """Return the binding with these parameters (from `find_transposed_parameters`) with the layout
    of the file.
    """
    bound = dict(binding.bound_parameters)
    for name in names:
        one = bound[name]
        stored = replace(one.parameter, shape=one.parameter.shape[::-1])
        bound[name] = replace(one, parameter=stored, expr=_find_transposed_operand(binding, one))
    return replace(binding, bound_parameters=bound)


HALF_PRECISION_TYPES = ("f16", "bf16")
"""Types whose values float32 represents exactly."""


def iterate_transposed_rows(
    values: ParameterSource, name: str, out_channels: int, chunk_rows: int
) -> Iterator[Array]:
    """Yield the rows `[chunk, in]` of a weight stored as `[in, out]`; this reads the whole
    weight.
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
    kind = stored if stored in HALF_PRECISION_TYPES else "f32"
    rows, at, done = np.empty(0, np.float32), 0, 0
    for chunk in values.iterate_chunks(name, kind):
        numbers = np.frombuffer(chunk, NUMPY_DTYPES[kind])
        # a chunk may end within a row, and may contain several pieces
        while numbers.size:
            if at == rows.size:
                left = out_channels - done // in_channels % out_channels
                rows, at = np.empty(min(chunk_rows, left) * in_channels, np.float32), 0
            here = numbers[: rows.size - at]
            rows[at : at + here.size] = here
            at, done = at + here.size, done + here.size
            numbers = numbers[here.size :]
            if at == rows.size:
                yield rows.reshape(-1, in_channels)
    assert done == total, f"{name} ends within a row"
