"""Lower RNN, GRU and LSTM to ONNX operators, or to a loop.

The operators want time first, gates in an order of their own, and padding on the right
(`specc_onnx.lower.recurrent`). Weights are reordered by nodes of constants only, which
a runtime folds when it loads the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly
from specc.ir.graph import Builder, Input
from specc.ir.recurrent_as_loop import RecurrentOp, expand_to_scan
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower, lower_nodes
from specc_onnx.lower.tensor_helpers import (
    emit_arange,
    emit_cast,
    emit_expand,
    emit_full,
    emit_reduce,
    emit_unsqueeze,
    emit_where,
    make_typed_tensor,
)


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """The two axes of a layer, and its padding mask, `[b, t]`."""

    g: Emitter
    keep: Tensor | None
    batch: Dim
    length: Dim

    @property
    def is_front_packed(self) -> bool:
        """Return whether valid positions are at the front already."""
        if self.keep is None:
            return True
        value = self.keep.value
        return value is not None and self.g.facts.padding_sides.get(value) == "right"

    @property
    def padding_mask(self) -> str:
        """Return the padding mask; "" if there is no padding."""
        return self.keep.name if self.keep else "."

    def in_front(self, x: Tensor, *, cleared: bool = False) -> str:
        """Return `[b, t, d]` as packed `[t, b, d]`, with zeros at padding if `cleared`."""
        if known := _find_packed_operand(self, x):
            return known
        name = self._clear_padding(x) if cleared and self.keep else x.name
        moved = (
            name
            if self.is_front_packed
            else _emit_reordered(self.g, name, _emit_source_positions(self))
        )
        filled = self.pad(moved, x.type.shape)
        return self.g.node("Transpose", filled, perm=[1, 0, 2])

    def _clear_padding(self, x: Tensor) -> str:
        """`x` with zeros where no row is."""
        g = self.g
        assert self.keep is not None
        there = emit_unsqueeze(g, self.keep.name, 2)
        return emit_where(g, x.type.dtype, there, x.name, g.constant(0.0, x.type.dtype))

    def restore(self, out: str) -> str:
        """Return results at their original positions, zeros at padding."""
        out = self.unpad(out, (self.batch, self.length))
        return (
            out
            if self.is_front_packed
            else _emit_reordered(self.g, out, _emit_target_positions(self))
        )

    def pad(self, x: str, shape: Sequence[Dim]) -> str:
        """Pad empty batch or time axes of `x` with one position: ONNX Runtime 1.31 crashes."""
        g = self.g
        # A feature axis is never padded, even if its symbol is that of the batch.
        doubtful = [
            n < 2 and length in (self.batch, self.length) and not g.lengths.positive(length)
            for n, length in enumerate(shape)
        ]
        if not any(doubtful):
            return x
        zero = g.vector(0)
        behind = [
            _emit_placeholder_count(g, d) if doubt else zero
            for d, doubt in zip(shape, doubtful, strict=True)
        ]
        return g.node("Pad", x, g.node("Concat", *[zero] * len(shape), *behind, axis=0))

    def unpad(self, x: str, shape: Sequence[Dim]) -> str:
        """`x` without what `pad` added; `shape` are its first axes."""
        g = self.g
        if all(g.lengths.positive(d) for d in shape):
            return x
        axes = range(len(shape))
        return g.node("Slice", x, g.vector(*[0 for _ in axes]), g.shape(shape), g.vector(*axes))

    def lengths(self) -> str | None:
        """Emit the number of valid positions, i32[b]; None if all are valid."""
        if self.keep is None:
            return None
        kept = emit_cast(self.g, self.keep.name, "bool", "i32")
        return emit_reduce(self.g, "ReduceSum", kept, 1)

    def counts(self, lengths: str) -> str:
        """Return `lengths` with the padding of `pad`; CUDA has no `Pad` for i32."""
        g = self.g
        if g.lengths.positive(self.batch):
            return lengths
        none = g.node("Expand", g.constant(0, "i32"), _emit_placeholder_count(g, self.batch))
        return g.node("Concat", lengths, none, axis=0)

    def end(self, end: str, start: Tensor | None, lengths: str | None, dtype: str) -> str:
        """A final state: the first one where there was no row at all."""
        g = self.g
        # The operator ran over the position that `pad` added, and ONNX leaves the result
        # undefined for a sequence of length 0.
        if lengths is not None:
            some = g.node("Greater", emit_unsqueeze(g, lengths, 1), g.constant(0, "i32"))
        elif not g.lengths.positive(self.length):
            some = g.node("Greater", g.dim(self.length), g.constant(0, "i64"))
        else:
            return end
        before = start.name if start else g.constant(0.0, dtype)
        return emit_where(g, dtype, some, end, before)


def _find_packed_operand(steps: PackedSequence, x: Tensor) -> str | None:
    """Return the packed output of the layer below, or of both its directions."""
    g = steps.g
    kept, known = g.layouts.recurrent.get(x.name, ("", ""))
    if known:
        # Positions moved by another mask are elsewhere.
        return known if kept == steps.padding_mask else None
    node = x.value.node if x.value else None
    if node is None or node.op != ops.Concat(2):
        return None
    sides = [
        g.layouts.recurrent.get(g.values.tensors[a].name, ("", ""))
        for a in node.args
        if a in g.values.tensors
    ]
    if len(sides) < len(node.args):
        return None
    if any(kept != steps.padding_mask or not known for kept, known in sides):
        return None
    return g.node("Concat", *(known for _, known in sides), axis=2)


def _emit_placeholder_count(g: Emitter, length: Dim) -> str:
    """[1] where a length is 0, otherwise [0]."""
    return g.node("Max", g.node("Sub", g.vector(1), g.shape([length])), g.vector(0))


def _emit_target_positions(steps: PackedSequence) -> str:
    """Emit the target of each position: valid ones to the front, in order, the others after
    them, in order. With rows `x . y` (the second is padding) that is 0 2 1.
    """
    g, keep = steps.g, steps.keep
    assert keep is not None
    axis, one = g.constant(1, "i64"), g.constant(1, "i64")
    here = emit_cast(g, keep.name, "bool", "i64")
    there = emit_cast(g, g.node("Not", keep.name), "bool", "i64")
    before = g.node("Sub", g.node("CumSum", here, axis), one)
    count = g.node("ReduceSum", here, g.vector(1), keepdims=True)
    behind = g.node("Add", g.node("Sub", g.node("CumSum", there, axis), one), count)
    return g.node("Where", keep.name, before, behind)


def _emit_source_positions(steps: PackedSequence) -> str:
    """Emit the source of each position, the inverse of `_emit_target_positions`."""
    g, shape = steps.g, (steps.batch, steps.length)
    numbers = emit_expand(
        g, make_typed_tensor(emit_arange(g, steps.length), "i64", shape[1:]), shape
    )
    # Every position is written exactly once, so the initial zeros do not matter.
    zeros = emit_full(g, 0, "i64", shape)
    return g.node("ScatterElements", zeros, _emit_target_positions(steps), numbers, axis=1)


def _emit_reordered(g: Emitter, x: str, places: str) -> str:
    return g.node("GatherND", x, emit_unsqueeze(g, places, 2), batch_dims=1)


@dataclass(frozen=True, slots=True)
class GateOrder:
    """The order of gates in ONNX, and which of them are negated."""

    order: Sequence[int]
    negated: int | None = None


def emit_ordered_weights(
    g: Emitter,
    cell: GateOrder,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    axis: int = 0,
) -> list[str | None]:
    """Emit `W`, `U` and both biases with ONNX's gate order, outside of any loop."""
    own = {t.name for t in g.values.parameters.values()}
    # Weights computed inside a loop body are not visible outside.
    if all(w.name in own for w in (*weights, *biases) if w):
        with g.outside(g.site.scope, level=0):
            return _emit_ordered_matrices(g, cell, weights, biases, axis)
    return _emit_ordered_matrices(g, cell, weights, biases, axis)


def _emit_ordered_matrices(
    g: Emitter,
    cell: GateOrder,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    axis: int,
) -> list[str | None]:
    bias = None
    if any(biases):
        # ONNX has both in one operand: zeros replace a missing one.
        size = weights[0].type.shape[axis].number or 0
        dtype = next(b.type.dtype for b in biases if b)
        zeros = g.constant([0.0] * size, dtype)
        both = [emit_gates_in_order(g, b, cell) if b else zeros for b in biases]
        bias = emit_unsqueeze(g, g.node("Concat", *both, axis=0), 0)
    return [*(emit_unsqueeze(g, emit_gates_in_order(g, w, cell, axis), 0) for w in weights), bias]


def emit_gates_in_order(g: Emitter, weights: Tensor, cell: GateOrder, axis: int = 0) -> str:
    """Reorder the gates, concatenated along `axis` of a weight, to ONNX's order."""
    count = len(cell.order)
    if count == 1:
        return weights.name
    size = divide_dims_exactly(weights.type.shape[axis], count)
    sizes = g.shape([size] * count)
    parts = list(g.nodes("Split", count, weights.name, sizes, axis=axis))
    if cell.negated is not None:
        parts[cell.negated] = g.node("Neg", parts[cell.negated])
    return g.node("Concat", *(parts[n] for n in cell.order), axis=axis)


FUSED_LAYER_DTYPES = ("f32", "f16")
"""The element types for which ONNX Runtime implements these operators."""

LSTM_GATE_ORDER, GRU_GATE_ORDER, PEEPHOLE_ORDER = (0, 3, 1, 2), (1, 0, 2), (0, 2, 1)
"""Index of each of ONNX's gates in specc's order: input, forget, cell, output; reset, update, new;
peepholes."""

LayerOperands = tuple[Tensor | None, ...]


@lower(ops.Rnn)
def rnn(op: ops.Rnn, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`RNN`."""
    layer = _LoweredLayer.of(g, op, args, GateOrder((0,)))
    # Not every runtime supports non-default activations.
    beyond = "" if op.activation == "tanh" else "activation"
    if not layer.is_fusible(beyond):
        return _lower_as_loop(layer)
    return _emit_fused_layer(layer, "RNN", activations=[op.activation.capitalize()])


@lower(ops.Gru)
def gru(op: ops.Gru, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """Lower to `GRU`; an update gate for the new state negates its weights."""
    # sigmoid(-x) = 1 - sigmoid(x): the gate is inverted without another operator
    layer = _LoweredLayer.of(
        g, op, args, GateOrder(GRU_GATE_ORDER, negated=1 if op.update == "new" else None)
    )
    beyond = "" if op.reset == "after" else "reset before"
    if not layer.is_fusible(beyond):
        return _lower_as_loop(layer)
    return _emit_fused_layer(layer, "GRU", linear_before_reset=int(not beyond))


@lower(ops.Lstm)
def lstm(op: ops.Lstm, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """Lower to `LSTM`, which has no projection."""
    layer = _LoweredLayer.of(g, op, args, GateOrder(LSTM_GATE_ORDER))
    if not layer.is_fusible("peepholes" if layer.given.peepholes else ""):
        return _lower_as_loop(layer)
    return _emit_fused_layer(layer, "LSTM")


@lower(ops.LstmQ)
def lstm_q(op: ops.LstmQ, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """Lower to ONNX Runtime's `DynamicQuantizeLSTM`. It quantizes all time steps as one tensor;
    padded ones are zeros, which do not change the scale.
    """
    layer = _LoweredLayer.of(g, op, args, GateOrder(LSTM_GATE_ORDER))
    return _emit_fused_layer(layer, "DynamicQuantizeLSTM")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoweredLayer:
    """One layer with its operands; quantized weights are `[in, gates]`."""

    g: Emitter
    op: RecurrentOp | ops.LstmQ
    args: LayerOperands
    cell: GateOrder
    given: ops.RecurrentOperands[Tensor]
    steps: PackedSequence

    @classmethod
    def of(
        cls, g: Emitter, op: RecurrentOp | ops.LstmQ, args: LayerOperands, cell: GateOrder
    ) -> "_LoweredLayer":
        given = ops.RecurrentOperands.of(args, quantized=isinstance(op, ops.LstmQ))
        steps = PackedSequence(g, given.keep, *given.rows.type.shape[:2])
        return cls(g=g, op=op, args=args, cell=cell, given=given, steps=steps)

    def is_fusible(self, beyond: str) -> bool:
        """Return True if ONNX's operator can compute the layer; `beyond` is an optional feature."""
        if self.given.projection or self.given.rows.type.dtype not in FUSED_LAYER_DTYPES:
            return False
        lengths = "lengths" if self.steps.keep else ""
        return all(not need or need in self.g.target.cells for need in (beyond, lengths))


def _emit_fused_layer(
    layer: _LoweredLayer,
    kind: str,
    *,
    activations: list[str] | None = None,
    linear_before_reset: int | None = None,
) -> tuple[str, ...]:
    """Emit the operator `kind`; return all hidden states, then the final states."""
    g, steps, given = layer.g, layer.steps, layer.given
    firsts = given.start, given.first_cell
    lengths = steps.lengths()
    counts = steps.counts(lengths) if lengths else None
    # ONNX has a directions axis before every state, here of length 1: two directions are two
    # layers.
    starts = [emit_unsqueeze(g, steps.pad(s.name, s.type.shape), 0) if s else None for s in firsts]
    rows = steps.in_front(given.rows, cleared=given.scales is not None)
    matrices, biases = (given.weights, given.state_weights), (given.bias, given.state_bias)
    axis = 1 if given.scales else 0
    weights = emit_ordered_weights(g, layer.cell, matrices, biases, axis)
    inputs = [rows, *weights, counts, *starts, _emit_peepholes(layer), *_emit_scales(layer)]
    finals = 2 if isinstance(layer.op, ops.Lstm | ops.LstmQ) else 1
    every, *ends = g.nodes(
        kind,
        1 + finals,
        *inputs,
        domain=CONTRIB_DOMAIN if given.scales else "",
        hidden_size=given.state_weights.type.shape[1 - axis].number,
        direction="reverse" if layer.op.reverse else "forward",
        activations=activations,
        linear_before_reset=linear_before_reset,
    )
    stacked = g.node("Squeeze", every, g.vector(1))
    out = steps.restore(g.node("Transpose", stacked, perm=[1, 0, 2]))
    # The next layer takes the time-major layout as it is: two transposes between layers would
    # cancel out.
    g.layouts.recurrent[out] = steps.padding_mask, stacked
    cut = [steps.unpad(g.node("Squeeze", e, g.vector(0)), (steps.batch,)) for e in ends]
    finished = (
        steps.end(end, start, lengths, given.rows.type.dtype)
        for end, start in zip(cut, firsts, strict=False)
    )
    return (out, *finished)


def _emit_peepholes(layer: _LoweredLayer) -> str | None:
    """One number a feature and gate; there is none of the cell's own gate."""
    if layer.given.peepholes is None:
        return None
    cell = GateOrder(PEEPHOLE_ORDER, layer.cell.negated)
    return emit_unsqueeze(layer.g, emit_gates_in_order(layer.g, layer.given.peepholes, cell), 0)


def _emit_scales(layer: _LoweredLayer) -> list[str]:
    """The scales of both weights, one a gate, each with the middle of its numbers."""
    g = layer.g
    found: list[str] = []
    for scales in layer.given.scales or ():
        # signed codes have zero point 0
        own = emit_unsqueeze(g, emit_gates_in_order(g, scales, layer.cell), 0)
        found += own, g.constant([0], "i8")
    return found


def _lower_as_loop(layer: _LoweredLayer) -> tuple[str, ...]:
    """Lower the layer as an equivalent loop."""
    g, b = layer.g, Builder()
    assert not isinstance(layer.op, ops.LstmQ), "targets without it plan none"
    inner = [b.input(f"x{n}", Input(a.type)) if a else None for n, a in enumerate(layer.args)]
    results = expand_to_scan(b, layer.op, inner, g.site.scope)
    # A separate graph is lowered into the current one: its inputs are the operands.
    g.values.tensors.update((v, t) for v, t in zip(inner, layer.args, strict=True) if v and t)
    lower_nodes(g, b.finish("layer", {f"y{n}": v for n, v in enumerate(results)}))
    return tuple(g.values.tensors[v].name for v in results)
