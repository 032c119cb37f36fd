"""Graphs of one quantized linear layer, with weights, for a target."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter
from specc.ir.ops.quantized import QuantizationFormat
from specc.ir.types import Type
from specc.weights import int_quantization
from specc_onnx import build_model, get_target

Array = NDArray[Any]


@dataclass(frozen=True)
class QuantizedLinear:
    """A quantized linear layer: its graph, weights and quantization format."""

    graph: Graph
    weights: dict[str, Array]
    format: QuantizationFormat

    def build_model(self, target_name: str, opset: int = 23) -> onnx.ModelProto:
        """Return the ONNX model with its weights inside."""
        built = build_model(self.graph, get_target(target_name), opset)
        for name, tensor in built.weights.items():
            value = self.weights[name]
            packed = name == "w:int4" and self.format.dtype == "i4"
            tensor.raw_data = pack_int4(value) if packed else value.tobytes()
        return built.model


def pack_int4(values: Array) -> bytes:
    """Pack two int4 values per byte, the first one in the low nibble."""
    flat = [int(n) & 15 for n in values.reshape(-1)]
    flat += [0] * (len(flat) % 2)
    return bytes(a | b << 4 for a, b in zip(flat[::2], flat[1::2], strict=True))


def quantize_matrix(weight: Array, form: QuantizationFormat) -> tuple[Array, Array]:
    """Return the codes and scales of a weight `[out, in]`, transposed if the format stores columns."""
    blocks = int_quantization.split_weight_groups(weight.astype(np.float32), form.group_size)
    scales = int_quantization.compute_group_scales(blocks, form.bits)
    codes = int_quantization.pack_weight_codes(
        int_quantization.round_to_integers(blocks, scales, form.bits).astype(np.int8),
        weight.shape[1],
        form,
    )
    scales = scales if form.group_size else scales[:, 0]
    if form.layout == "columns":
        return np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T)
    return codes, scales


def build_quantized_linear(
    weight: Array,
    form: QuantizationFormat,
    leading_axes: tuple[str | int, ...] = ("b",),
    bias: Array | None = None,
) -> QuantizedLinear:
    """Build `quantized_linear` of an input with these leading axes."""
    in_features = weight.shape[1]
    codes, scales = quantize_matrix(weight, form)
    b = GraphBuilder()
    axes = [Dim.symbol(a) if isinstance(a, str) else Dim.from_value(a) for a in leading_axes]
    x = b.add_input("x", Input(Type("f32", (*axes, Dim.from_value(in_features)))))
    weights = {
        form.format_tensor_name("w", "codes"): codes,
        form.format_tensor_name("w", "scales"): scales,
    }
    types = {
        form.format_tensor_name("w", "codes"): form.dtype,
        form.format_tensor_name("w", "scales"): "f32",
    }
    if bias is not None:
        weights["bias"], types["bias"] = bias.astype(np.float32), "f32"
    operands = [
        b.add_parameter(Parameter(name=n, type=Type.of(types[n], *w.shape), initializer="zeros"))
        for n, w in weights.items()
    ]
    op = ops.QuantizedLinear(form.bits, form.group_size, form.layout, form.rounding)
    y = b.add_op(op, x, *operands, *([] if bias is not None else [None]))
    return QuantizedLinear(b.build_graph("map", {"y": y}), weights, form)
