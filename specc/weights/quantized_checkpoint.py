"""Read checkpoints with quantized weights, and dequantize the weights to float32."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import prod
from typing import NoReturn

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.ops.quantized import MAX_GROUP_SIZE, MIN_GROUP_SIZE, PackedWeightFormat
from specc.weights.checkpoint_files import ALL_ROWS, Checkpoint
from specc.weights.checkpoint_weight_streaming import CheckpointWeights
from specc.weights.formats.fp8_and_compressed_tensors import COMPRESSED_TENSORS_FORMATS, FP8_FORMATS
from specc.weights.formats.gguf_header_and_blocks import GGUF_FORMATS
from specc.weights.formats.gptq_awq_and_bitsandbytes import (
    BITSANDBYTES_FORMATS,
    GPTQ_AND_AWQ_FORMATS,
)
from specc.weights.formats.quantized_layout import (
    Codes,
    Lengths,
    QuantizationSettings,
    QuantizedLayout,
    QuantizedLayoutError,
    QuantizedWeightFormat,
    StoredTensors,
    check_tensor_pattern,
)
from specc.weights.formats.safetensors_header import TensorEntry
from specc.weights.parameter_sources import ParameterSource
from specc.weights.weight_expressions import (
    CastExpr,
    ChunkExpr,
    ConcatExpr,
    Expr,
    PermuteRopeExpr,
    SliceExpr,
    StackExpr,
    TensorExpr,
)

WEIGHT_FORMATS = (
    *FP8_FORMATS,
    *GPTQ_AND_AWQ_FORMATS,
    *COMPRESSED_TENSORS_FORMATS,
    *BITSANDBYTES_FORMATS,
    *GGUF_FORMATS,
)
"""All storage formats of quantized weights. Formats with the same marker suffix have different
quantization methods."""
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
    """A quantized weight: name, format, layout, and the names of its tensors, keyed by suffix."""

    name: str
    format: QuantizedWeightFormat
    tensors: Mapping[str, str]
    layout: QuantizedLayout


class DequantizedCheckpoint(Checkpoint):
    """A checkpoint whose quantized weights are dequantized to float32 tensors, under the tensor
    names of the unquantized checkpoint. Only the requested rows of a weight are decoded.
    """

    def __init__(self, base: Checkpoint, method: str, settings: QuantizationSettings) -> None:
        super().__init__(base.path, base.files)
        self.weights = {w.name: w for w in _find_weights(base, method, settings)}
        self.decoded_tensors = frozenset(self.weights).union(
            *(file.transformed_tensors for file in base.files)
        )
        quantized_tensors = {tensor for w in self.weights.values() for tensor in w.tensors.values()}
        other_tensors = _map_unquantized_tensors(base, quantized_tensors)
        _check_weights_complete(base, method, other_tensors)
        self.optional_tensors = _find_zero_biases(base, self.weights)
        self.tensors = other_tensors
        for name, weight in self.weights.items():
            self._file_by_tensor[name] = self._file_by_tensor[
                weight.tensors[weight.format.marker_suffix]
            ]
            shape = weight.layout.shape
            self.tensors[name] = TensorEntry(name, "f32", shape, 0, 4 * prod(shape))

    def read_tensor(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return a copy of a tensor, or of its rows `rows`, dequantized to float32 if needed."""
        if name not in self.weights:
            return super().read_tensor(name, rows)
        codes, scales = self.read_codes(name, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(codes.astype(np.float32) * scales.astype(np.float32))

    def read_codes(self, name: str, rows: slice) -> Codes:
        """Return the codes and scales of the rows `rows` of a quantized weight."""
        weight = self.weights[name]
        return weight.layout.decode(_view_tensors(self, weight.tensors), rows)


def _map_unquantized_tensors(
    base: Checkpoint, quantized_tensors: Set[str]
) -> dict[str, TensorEntry]:
    """Return the tensors that are neither in `quantized_tensors` nor activation scales."""
    return {
        n: e
        for n, e in base.tensors.items()
        if n not in quantized_tensors and n.rpartition(".")[2] not in ACTIVATION_TENSORS
    }


def _find_zero_biases(base: Checkpoint, weight_names: Iterable[str]) -> frozenset[str]:
    """Return the names of the zero biases that GPTQ stores for layers without a bias."""
    biases = (name.removesuffix(".weight") + ".bias" for name in weight_names)
    return frozenset(b for b in biases if b in base.tensors and not base.read_tensor(b).any())


def _view_tensors(checkpoint: Checkpoint, tensors: Mapping[str, str]) -> StoredTensors:
    """Return a quantized weight's tensors as views of their files."""
    return {
        suffix: checkpoint.get_file(tensor).get_array(tensor) for suffix, tensor in tensors.items()
    }


def _find_weights(
    base: Checkpoint, method: str, settings: QuantizationSettings
) -> Iterator[QuantizedWeight]:
    """Yield the weights in a quantization method's formats. Raise E0532 if a weight is invalid."""
    used_names: set[str] = set()
    for format in WEIGHT_FORMATS:
        if method not in format.methods:
            continue
        for marker in [
            n for n in base.tensors if n.endswith(format.marker_suffix) and n not in used_names
        ]:
            stem = marker.removesuffix(format.marker_suffix)
            weight = _match_weight(base, stem, format, settings)
            used_names.update(weight.tensors.values())
            yield weight


def _match_weight(
    base: Checkpoint, stem: str, format: QuantizedWeightFormat, settings: QuantizationSettings
) -> QuantizedWeight:
    """Return the weight whose tensor names begin with `stem`. Raise E0532 for an invalid weight."""
    name = stem + format.weight_suffix
    missing_names = [
        stem + suffix for suffix in format.required_tensors if stem + suffix not in base.tensors
    ]
    if missing_names:
        _raise_undecodable(base, name, f"`{escape_text(missing_names[0])}` is missing")
    patterns = {**format.required_tensors, **format.optional_tensors}
    tensors = {s: stem + s for s in patterns if stem + s in base.tensors}
    lengths: Lengths = {}
    try:
        stored = _view_tensors(base, tensors)
        for suffix, array in stored.items():
            check_tensor_pattern(tensors[suffix], array, patterns[suffix], lengths)
        layout = format.infer_layout(stored, lengths, settings)
    except QuantizedLayoutError as error:
        _raise_undecodable(base, name, escape_text(error))
    return QuantizedWeight(name, format, tensors, layout)


def _check_weights_complete(
    base: Checkpoint, method: str, unquantized: Mapping[str, TensorEntry]
) -> None:
    """Raise E0532 if a tensor in `unquantized` is part of an incomplete quantized weight."""
    formats = [format for format in WEIGHT_FORMATS if method in format.methods]
    for name, entry in unquantized.items():
        for format in formats:
            # the tensor has the suffix of a quantized weight, but the marker tensor is missing
            for suffix in format.required_tensors:
                if suffix not in ("", format.weight_suffix) and name.endswith(suffix):
                    marker = name.removesuffix(suffix) + format.marker_suffix
                    _raise_undecodable(base, name, f"`{escape_text(marker)}` is missing")
        if name.endswith("weight") and entry.dtype.startswith(("f8", "i8", "u8", "i32")):
            markers = {name.removesuffix(f.weight_suffix) + f.marker_suffix for f in formats}
            missing = " or ".join(f"`{escape_text(marker)}`" for marker in sorted(markers))
            _raise_undecodable(base, name, f"it is {entry}, and {missing} is missing")


def _raise_undecodable(base: Checkpoint, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0532",
        f"the quantized weight `{escape_text(name)}` in `{escape_text(base.path)}` "
        "cannot be decoded",
        notes=[reason],
        helps=["download the whole checkpoint again, or use one with 16- or 32-bit weights"],
    )


STORED_BITS = 4
"""The number of bits per code of weights that can be copied without dequantization. With float32
activations, ONNX Runtime is ten times slower for 8-bit weights than for float32 weights."""


class _ScaleView(DequantizedCheckpoint):
    """A checkpoint view in which the value of each weight element is its quantization scale."""

    @classmethod
    def from_checkpoint(cls, checkpoint: DequantizedCheckpoint) -> "_ScaleView":
        """Return a view of `checkpoint` whose tensor values are quantization scales."""
        view = copy.copy(checkpoint)
        view.__class__ = cls
        assert isinstance(view, _ScaleView)
        return view

    def read_tensor(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return the scales of the weight rows `rows`, broadcast to the shape of the rows."""
        codes, scales = self.read_codes(name, rows)
        return np.broadcast_to(scales, np.broadcast_shapes(codes.shape, scales.shape))


def find_copyable_quantized_weights(weights: ParameterSource) -> Mapping[str, PackedWeightFormat]:
    """Map parameters to the packed format of their stored codes. Omit parameters whose codes cannot
    be copied unchanged into the compiled model, because they are not 4-bit integers in groups along
    the last axis.
    """
    if not isinstance(weights, CheckpointWeights):
        return {}
    formats: dict[str, PackedWeightFormat] = {}
    for name in weights.bound_parameters:
        source = weights.get_untied_parameter(name)
        format = source.expr and _find_stored_codes(source.expr, weights.checkpoint)
        if format:
            formats[name] = format
    return formats


def get_stored_weight_scales(weights: ParameterSource) -> ParameterSource:
    """Return a source of the scales of dequantized parameters, one scale per element."""
    assert isinstance(weights, CheckpointWeights)
    assert isinstance(weights.checkpoint, DequantizedCheckpoint)
    return replace(weights, checkpoint=_ScaleView.from_checkpoint(weights.checkpoint))


def _find_stored_codes(expr: Expr, checkpoint: Checkpoint) -> PackedWeightFormat | None:
    """Return the packed storage format of the weight that `expr` computes. Return None if `expr`
    does more than select, join or permute rows, or combines weights with different group sizes.
    """
    if not isinstance(checkpoint, DequantizedCheckpoint):
        return None
    match expr:
        case TensorExpr(name):
            weight = checkpoint.weights.get(name)
            return _describe_kernel_codes(weight.layout) if weight is not None else None
        case ConcatExpr(parts=parts, axis=0) | StackExpr(parts=parts):
            formats = [_find_stored_codes(part, checkpoint) for part in parts]
            present = [codes for codes in formats if codes is not None]
            if len(present) < len(formats) or len({codes.group_size for codes in present}) != 1:
                return None
            return PackedWeightFormat(
                present[0].group_size, any(codes.has_zero_points for codes in present)
            )
        case (
            SliceExpr(x=x, axis=0)
            | ChunkExpr(x=x, axis=0)
            | PermuteRopeExpr(x=x)
            | CastExpr(x=x, dtype="f32")
        ):
            return _find_stored_codes(x, checkpoint)
        case _:
            return None


def _describe_kernel_codes(layout: QuantizedLayout) -> PackedWeightFormat | None:
    """Return the packed format of a weight's codes. The group size of the format is the largest
    supported group size that divides the group size of the weight. Return None if no group size
    fits.
    """
    is_supported = layout.is_uniform and layout.bits == STORED_BITS and layout.axis == -1
    size = MAX_GROUP_SIZE if is_supported else 0
    while size and layout.group_size % size:
        size = size // 2 if size > MIN_GROUP_SIZE else 0
    return PackedWeightFormat(size, has_zero_points=not layout.is_symmetric) if size else None
