"""Lower RNN, GRU and LSTM to ONNX operators, or to a loop.

ONNX's recurrent operators require time-major input, right padding, and a gate order that differs
from that of the IR. The nodes that reorder weights have only constant inputs, so a runtime
constant-folds them when it loads the model.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly
from specc.ir.recurrent_as_loop import RecurrentOp, expand_recurrent_to_scan
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower, lower_by_expansion
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_arange,
    emit_count_nonzero,
    emit_expand,
    emit_full,
)


def _find_time_major_operand(layer: "_RecurrentLayer", x: Tensor) -> OnnxValue | None:
    """Return `x` as `[t, b, d]` if it is the output of a recurrent layer with the same padding
    mask, or if it is the concatenation of the outputs of such a layer in both directions.
    Otherwise, return None.
    """
    g, operands = layer.g, [x]
    node = x.value.node if x.value else None
    if x.name not in g.cache.time_major_outputs and node is not None and node.op == ops.Concat(2):
        operands = [g.values.tensors[a] for a in node.args if a in g.values.tensors]
        if len(operands) < len(node.args):
            return None
    outputs = []
    for operand in operands:
        mask, output = g.cache.time_major_outputs.get(operand.name, ("", operand))
        # A layer with a different padding mask reorders positions in a different way.
        if mask != layer.padding_mask:
            return None
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else g.emit_node("Concat", *outputs, axis=2)


def _emit_placeholder_count(g: Emitter, length: Dim) -> OnnxValue:
    """Emit the number of placeholder positions, i64[1], which is 1 if a dimension is 0, else 0."""
    return ([1] - g.emit_shape([length])).maximum([0])


def _emit_target_positions(layer: "_RecurrentLayer") -> OnnxValue:
    """Emit the target index of each position: valid positions first, then padded positions, both in
    their original order. For example, if the second of three positions is padding, the indices are
    0, 2, 1.
    """
    keep = layer.keep
    assert keep is not None
    valid_flags = keep.cast("i64")
    padding_flags = (~keep).cast("i64")
    valid_index = valid_flags.apply_op("CumSum", 1) - 1
    count = valid_flags.apply_op("ReduceSum", [1], keepdims=True)
    padded_index = padding_flags.apply_op("CumSum", 1) - 1 + count
    return keep.where(valid_index, padded_index)


def _emit_source_positions(layer: "_RecurrentLayer") -> OnnxValue:
    """Emit the source index of each position, which is the inverse of `_emit_target_positions`."""
    g, shape = layer.g, layer.batch_and_length
    indices = emit_arange(g, shape[1]).with_shape(shape[1:])
    positions = emit_expand(indices, shape)
    # Each position is written exactly once, so none of the initial zeros remain.
    zeros = emit_full(g, 0, "i64", shape)
    return zeros.apply_op("ScatterElements", _emit_target_positions(layer), positions, axis=1)


def _emit_gathered_positions(x: OnnxValue, positions: OnnxValue) -> OnnxValue:
    return x.apply_op("GatherND", positions.unsqueeze(2), batch_dims=1)


@dataclass(frozen=True, slots=True)
class GateOrder:
    """The order of the gates in ONNX, and the index of the gate with negated weights, if any."""

    order: Sequence[int]
    negated_index: int | None = None


def emit_reordered_weights(
    g: Emitter,
    gate_order: GateOrder,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    axis: int = 0,
) -> list[OnnxValue | None]:
    """Emit input weights, recurrent weights and the concatenated biases (None if there are none) in
    ONNX's gate order. Parameters are reordered outside loops.
    """
    parameter_names = {t.name for t in g.values.parameters.values()}
    is_static = all(w.name in parameter_names for w in (*weights, *biases) if w)
    # Weights that are computed in a loop body are not visible outside the body.
    with g.hoist_nodes(g.context.scope, level=0) if is_static else nullcontext():
        bias = _emit_joined_bias(g, gate_order, biases, weights[0].shape[axis].number or 0)
        ordered_weights = (emit_reordered_gates(g, w, gate_order, axis) for w in weights)
        return [*(w.unsqueeze(0) for w in ordered_weights), bias]


def _emit_joined_bias(
    g: Emitter, gate_order: GateOrder, biases: tuple[Tensor | None, Tensor | None], length: int
) -> OnnxValue | None:
    """Concatenate the input bias and the recurrent bias, as ONNX requires. Zeros replace a missing
    bias.
    """
    if not any(biases):
        return None
    zeros = g.emit_constant([0.0] * length, next(b.dtype for b in biases if b))
    parts = [emit_reordered_gates(g, b, gate_order) if b else zeros for b in biases]
    return g.emit_node("Concat", *parts, axis=0).unsqueeze(0)


def emit_reordered_gates(
    g: Emitter, weights: Tensor, gate_order: GateOrder, axis: int = 0
) -> OnnxValue:
    """Reorder the gates of `weights`, concatenated along `axis`, to ONNX's gate order."""
    count = len(gate_order.order)
    if count == 1:
        return weights
    size = divide_dims_exactly(weights.shape[axis], count)
    sizes = g.emit_shape([size] * count)
    parts = list(g.emit_multi_output_node("Split", count, weights, sizes, axis=axis))
    if gate_order.negated_index is not None:
        parts[gate_order.negated_index] = parts[gate_order.negated_index].apply_op("Neg")
    return g.emit_node("Concat", *(parts[n] for n in gate_order.order), axis=axis)


FUSED_LAYER_DTYPES = ("f32", "f16")
"""The element types for which ONNX Runtime implements the recurrent operators."""

LSTM_GATE_ORDER, GRU_GATE_ORDER, PEEPHOLE_ORDER = (0, 3, 1, 2), (1, 0, 2), (0, 2, 1)
"""The IR's index of each gate, in ONNX's gate order. `PEEPHOLE_ORDER` contains the indices of
peephole weights. The order in specc is input, forget, cell, output for LSTM, and reset, update, new
for GRU.
"""


@lower
def rnn(op: ops.Rnn, g: Emitter, *args: Tensor | None) -> tuple[OnnxValue, ...]:
    """Emit `RNN`, or a loop if the target does not support the activation or the padding."""
    layer = _RecurrentLayer(g, op, args, GateOrder((0,)))
    # Some runtimes support only the activation tanh.
    feature = "" if op.activation == "tanh" else "activation"
    return _emit_layer(layer, "RNN", feature, activations=[op.activation.capitalize()])


@lower
def gru(op: ops.Gru, g: Emitter, *args: Tensor | None) -> tuple[OnnxValue, ...]:
    """Emit `GRU`. Negate the update gate's weights if an update gate of 1 selects the new state."""
    # sigmoid(-x) = 1 - sigmoid(x), so negated weights invert the gate without an additional
    # operator
    gates = GateOrder(GRU_GATE_ORDER, negated_index=1 if op.update == "new" else None)
    feature = "" if op.reset == "after" else "reset before"
    layer = _RecurrentLayer(g, op, args, gates)
    return _emit_layer(layer, "GRU", feature, linear_before_reset=int(not feature))


@lower
def lstm(op: ops.Lstm, g: Emitter, *args: Tensor | None) -> tuple[OnnxValue, ...]:
    """Emit `LSTM`, or a loop if the layer has a projection, which `LSTM` does not support."""
    layer = _RecurrentLayer(g, op, args, GateOrder(LSTM_GATE_ORDER))
    return _emit_layer(layer, "LSTM", "peepholes" if layer.operands.peepholes else "")


@lower
def quantized_lstm(
    op: ops.QuantizedLstm, g: Emitter, *args: Tensor | None
) -> tuple[OnnxValue, ...]:
    """Lower a quantized LSTM to ONNX Runtime's `DynamicQuantizeLSTM`. `DynamicQuantizeLSTM`
    quantizes the inputs of all time steps with one scale. Padded time steps are zeros, which do not
    affect the scale.
    """
    layer = _RecurrentLayer(g, op, args, GateOrder(LSTM_GATE_ORDER))
    return _emit_fused_layer(layer, "DynamicQuantizeLSTM")


@dataclass(frozen=True)
class _RecurrentLayer:
    """A helper that lowers one recurrent layer. Quantized weights have the shape `[in, gates]`."""

    g: Emitter
    op: RecurrentOp | ops.QuantizedLstm
    tensors: tuple[Tensor | None, ...]
    gate_order: GateOrder

    @cached_property
    def operands(self) -> ops.RecurrentOperands[Tensor]:
        """Return the operands of the op by role."""
        is_quantized = isinstance(self.op, ops.QuantizedLstm)
        return ops.RecurrentOperands.from_operands(self.tensors, is_quantized=is_quantized)

    @property
    def keep(self) -> Tensor | None:
        """Return the padding mask, bool[b, t]."""
        return self.operands.keep

    @property
    def batch_and_length(self) -> tuple[Dim, Dim]:
        """Return the batch size and the number of time steps."""
        batch, length, _ = self.operands.sequence.shape
        return batch, length

    @property
    def is_right_padded(self) -> bool:
        """Return True if all padding is on the right, as the ONNX operators require."""
        if self.keep is None:
            return True
        value = self.keep.value
        return value is not None and self.g.analysis.padding_sides.get(value) == "right"

    @property
    def padding_mask(self) -> str:
        """Return the name of the padding mask, or "." if there is no padding."""
        return self.keep.name if self.keep else "."

    def convert_to_time_major(self, x: Tensor, *, zero_padding: bool = False) -> OnnxValue:
        """Convert `x` `[b, t, d]` to right-padded, time-major `[t, b, d]`. If `zero_padding` is
        True, padded positions are set to 0.
        """
        if (time_major := _find_time_major_operand(self, x)) is not None:
            return time_major
        sequence: OnnxValue = x
        if zero_padding and self.keep:
            sequence = self.keep.unsqueeze(2).where(x, 0.0)
        if not self.is_right_padded:
            sequence = _emit_gathered_positions(sequence, _emit_source_positions(self))
        padded = self.pad_empty_axes(sequence, x.shape)
        return padded.transpose([1, 0, 2])

    def convert_from_time_major(self, output: OnnxValue) -> OnnxValue:
        """Emit the results of an operator for right-padded sequences as `[b, t, h]`, with each
        result at its original position. Results at padded positions are zeros.
        """
        output = self.remove_placeholder(output, self.batch_and_length)
        if self.is_right_padded:
            return output
        return _emit_gathered_positions(output, _emit_target_positions(self))

    def pad_empty_axes(self, x: OnnxValue, shape: Sequence[Dim]) -> OnnxValue:
        """Pad an empty batch or time axis of `x`, which has the shape `shape`, to one position,
        because ONNX Runtime 1.31 crashes on empty axes.
        """
        g = self.g
        # A feature axis is never padded, even if its size is the symbolic batch size.
        is_padded = [
            n < 2 and length in self.batch_and_length and not g.lengths.is_positive(length)
            for n, length in enumerate(shape)
        ]
        if not any(is_padded):
            return x
        ends = [
            _emit_placeholder_count(g, d) if is_padded_axis else [0]
            for d, is_padded_axis in zip(shape, is_padded, strict=True)
        ]
        return x.apply_op("Pad", g.emit_node("Concat", *[[0]] * len(shape), *ends, axis=0))

    def remove_placeholder(self, x: OnnxValue, shape: Sequence[Dim]) -> OnnxValue:
        """Remove the positions that `pad_empty_axes` added to `x`, whose shape was `shape`."""
        g = self.g
        if all(g.lengths.is_positive(d) for d in shape):
            return x
        axes = range(len(shape))
        return x.apply_op("Slice", [*[0 for _ in axes]], g.emit_shape(shape), [*axes])

    def pad_lengths(self, lengths: OnnxValue) -> OnnxValue:
        """Emit lengths i32[b]. If the batch is empty, append a 0, because CUDA cannot pad i32."""
        g = self.g
        if g.lengths.is_positive(self.batch_and_length[0]):
            return lengths
        placeholder = g.emit_constant(0, "i32").apply_op(
            "Expand", _emit_placeholder_count(g, self.batch_and_length[0])
        )
        return lengths.apply_op("Concat", placeholder, axis=0)

    def select_final_state(
        self, final_state: OnnxValue, initial_state: Tensor | None, lengths: OnnxValue | None
    ) -> OnnxValue:
        """Emit the final state `[b, h]`, which is `final_state`, or `initial_state` (None: zeros)
        for sequences of length 0. `lengths` is None if there is no padding.
        """
        g = self.g
        # The recurrent operator has processed the placeholder position of `pad_empty_axes`, and
        # ONNX does not define the final state after 0 positions.
        if lengths is not None:
            has_positions = lengths.unsqueeze(1) > 0
        elif not g.lengths.is_positive(self.batch_and_length[1]):
            has_positions = g.emit_length(self.batch_and_length[1]) > 0
        else:
            return final_state
        return has_positions.where(final_state, initial_state or 0.0)

    def is_fusible(self, feature: str) -> bool:
        """Return True if ONNX's operator supports the layer and `feature` ("" for no feature)."""
        if self.operands.projection or self.operands.sequence.dtype not in FUSED_LAYER_DTYPES:
            return False
        lengths = "lengths" if self.keep else ""
        return {feature, lengths} - {""} <= self.g.target.recurrent_features


def _emit_layer(
    layer: _RecurrentLayer, op_type: str, feature: str, **attributes: object
) -> tuple[OnnxValue, ...]:
    """Emit the operator `op_type`, or a loop if the target lacks the operator or its `feature`."""
    if layer.is_fusible(feature):
        return _emit_fused_layer(layer, op_type, **attributes)
    op, scope = layer.op, layer.g.context.scope
    assert not isinstance(op, ops.QuantizedLstm), (
        "quantization plans check that the target has `QuantizedLstm`"
    )
    return lower_by_expansion(
        layer.g, layer.tensors, lambda b, x: expand_recurrent_to_scan(b, op, x, scope)
    )


def _emit_fused_layer(
    layer: _RecurrentLayer, op_type: str, **attributes: object
) -> tuple[OnnxValue, ...]:
    """Emit the operator `op_type`. Return all hidden states, then the final states."""
    g, x = layer.g, layer.operands
    # the number of valid positions per sequence, i32[b], or None if all positions are valid
    lengths = emit_count_nonzero(x.keep, 1, dtype="i32") if x.keep else None
    padded_lengths = lengths and layer.pad_lengths(lengths)
    initial_states = x.initial_state, x.initial_cell
    # ONNX states have a num_directions axis. Its size is 1, because each direction is a separate
    # layer.
    states = [s and layer.pad_empty_axes(s, s.shape).unsqueeze(0) for s in initial_states]
    time_major_input = layer.convert_to_time_major(x.sequence, zero_padding=x.scales is not None)
    axis = 1 if x.scales else 0
    weights = emit_reordered_weights(
        g,
        layer.gate_order,
        (x.input_weights, x.recurrent_weights),
        (x.input_bias, x.recurrent_bias),
        axis,
    )
    # the weights are [1, 3·h], because the cell gate has no peephole
    order = GateOrder(PEEPHOLE_ORDER)
    peepholes = x.peepholes and emit_reordered_gates(g, x.peepholes, order).unsqueeze(0)
    hidden_states, *final_states = g.emit_multi_output_node(
        op_type,
        3 if isinstance(layer.op, ops.Lstm | ops.QuantizedLstm) else 2,
        *(time_major_input, *weights, padded_lengths, *states, peepholes, *_emit_scales(layer)),
        domain=CONTRIB_DOMAIN if x.scales else "",
        hidden_size=x.recurrent_weights.shape[1 - axis].number,
        direction="reverse" if layer.op.reverse else "forward",
        **attributes,
    )
    time_major_output = hidden_states.squeeze(1)
    output = layer.convert_from_time_major(time_major_output.transpose([1, 0, 2]))
    # If the next layer is recurrent, it uses the time-major output, without transposes.
    g.cache.time_major_outputs[output.name] = layer.padding_mask, time_major_output
    results = [output]
    for final_state, initial_state in zip(final_states, initial_states, strict=False):
        state = layer.remove_placeholder(final_state.squeeze(0), layer.batch_and_length[:1])
        results.append(layer.select_final_state(state, initial_state, lengths))
    return tuple(results)


def _emit_scales(layer: _RecurrentLayer) -> list[OnnxValue]:
    """Emit per-channel scales and zero points of both weight matrices."""
    g = layer.g
    results: list[OnnxValue] = []
    for scales in layer.operands.scales or ():
        # the zero point of int8 weights is 0
        reordered = emit_reordered_gates(g, scales, layer.gate_order).unsqueeze(0)
        results += reordered, g.emit_constant([0], "i8")
    return results
