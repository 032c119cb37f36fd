"""Weights whose 4-bit codes in the checkpoint are stored as they are in the compiled model."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from specc.ir.array import Array
from specc.ir.quantization_format import MAX_GROUP_SIZE, MIN_GROUP_SIZE
from specc.weights.checkpoint import ALL_ROWS, Checkpoint
from specc.weights.dequantized_checkpoint import DequantizedCheckpoint
from specc.weights.formats.quantized_decoders import QuantizedLayout
from specc.weights.parameter_values import CheckpointBinding, ParameterValues
from specc.weights.weight_expressions import (
    CastExpr,
    ConcatExpr,
    Expr,
    PartExpr,
    PermutePairsExpr,
    SliceExpr,
    StackExpr,
    TensorExpr,
)

STORED_BITS = 4
"""ONNX Runtime multiplies 8-bit codes by float32 activations ten times slower than float32."""


class _ScalesOf(DequantizedCheckpoint):
    """A checkpoint view in which each value is replaced by its scale."""

    @classmethod
    def of(cls, checkpoint: DequantizedCheckpoint) -> "_ScalesOf":
        """Return the scales of a checkpoint."""
        made = copy.copy(checkpoint)
        made.__class__ = cls
        assert isinstance(made, _ScalesOf)
        return made

    def read(self, name: str, rows: slice = ALL_ROWS) -> Array:
        """Return the scales of some rows, broadcast to the shape of the values."""
        codes, scales = self.codes(name, rows)
        return np.broadcast_to(scales, np.broadcast_shapes(codes.shape, scales.shape))


def find_stored_codes(values: ParameterValues) -> Mapping[str, int]:
    """Return the group size of each parameter whose codes can be stored as they are:
    symmetric 4-bit integers of groups along the last axis.
    """
    if not isinstance(values, CheckpointBinding):
        return {}
    checkpoint = values.checkpoint
    sizes = {
        name: _group_size(bound.expr, checkpoint)
        for name, bound in values.bound.items()
        if bound.expr is not None
    }
    tied = {n: sizes.get(b.tied_to, 0) for n, b in values.bound.items() if b.tied_to is not None}
    return {name: size for name, size in {**sizes, **tied}.items() if size}


def read_stored_scales(values: ParameterValues) -> ParameterValues:
    """Return the scales of decoded parameters, one for each value."""
    assert isinstance(values, CheckpointBinding)
    assert isinstance(values.checkpoint, DequantizedCheckpoint)
    return replace(values, checkpoint=_ScalesOf.of(values.checkpoint))


def _group_size(expr: Expr, checkpoint: Checkpoint) -> int:
    """Return the group size of an expression that only moves whole rows, else 0."""
    if not isinstance(checkpoint, DequantizedCheckpoint):
        return 0
    match expr:
        case TensorExpr(name):
            weight = checkpoint.weights.get(name)
            return _kernel_group_size(weight.layout) if weight is not None else 0
        case ConcatExpr(parts=parts, axis=0) | StackExpr(parts=parts):
            sizes = {_group_size(part, checkpoint) for part in parts}
            return sizes.pop() if len(sizes) == 1 else 0
        case SliceExpr(x=x, axis=0) | PartExpr(x=x, axis=0) | PermutePairsExpr(x=x):
            return _group_size(x, checkpoint)
        case CastExpr(x=x, dtype="f32"):
            return _group_size(x, checkpoint)
        case _:
            return 0


def _kernel_group_size(layout: QuantizedLayout) -> int:
    """Return the largest group size of the kernels that divides that of a weight, or 0."""
    fits = layout.kept and layout.centered and layout.bits == STORED_BITS and layout.axis == -1
    size = MAX_GROUP_SIZE if fits else 0
    while size and layout.group % size:
        size = size // 2 if size > MIN_GROUP_SIZE else 0
    return size
