"""Lowering of recurrent layers to ONNX's `LSTM`, `GRU` and `RNN`, or to a loop where
those cannot say it.

Those operators want time in front, gates in an order of their own
(`specc_onnx.lower.cells`), and padding on the right (`specc_onnx.lower.steps`). So axes
are turned about around them, and rows that exist are moved together where the input
does not promise that padding stands on the right.
"""

from dataclasses import dataclass

from specc.ir import ops
from specc.ir.graph import Builder, Input
from specc.ir.recurrence import Recurrent, as_scan
from specc_onnx.lower.arrange import unsqueeze
from specc_onnx.lower.cells import Cell, in_order, weights_in_order
from specc_onnx.lower.emitter import CONTRIB, Emitter, Tensor
from specc_onnx.lower.steps import Steps
from specc_onnx.lower.table import lower, lower_nodes

FUSED = ("f32", "f16")
"""The element types for which ONNX Runtime has these operators."""

IOFC, ZRH, IOF = (0, 3, 1, 2), (1, 0, 2), (0, 2, 1)
"""Where each of ONNX's gates stands in our order: input, forget, cell, output; reset,
update, new; of peepholes.
"""

Args = tuple[Tensor | None, ...]


@lower(ops.Rnn)
def rnn(op: ops.Rnn, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`RNN`."""
    layer = _Layer.of(g, op, args, Cell((0,)))
    # Not every runtime has the operator with another function than its default.
    beyond = "" if op.activation == "tanh" else "activation"
    if not layer.serves(beyond):
        return _as_loop(layer)
    return _fused(layer, "RNN", activations=[op.activation.capitalize()])


@lower(ops.Gru)
def gru(op: ops.Gru, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`GRU`, whose open update gate keeps the old state: for the other kind its weights
    change their sign.
    """
    # sigmoid(-x) = 1 - sigmoid(x): the gate turned around without another operator
    layer = _Layer.of(g, op, args, Cell(ZRH, negated=1 if op.update == "new" else None))
    beyond = "" if op.reset == "after" else "reset before"
    if not layer.serves(beyond):
        return _as_loop(layer)
    return _fused(layer, "GRU", linear_before_reset=int(not beyond))


@lower(ops.Lstm)
def lstm(op: ops.Lstm, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`LSTM`, which knows no projection."""
    layer = _Layer.of(g, op, args, Cell(IOFC))
    if not layer.serves("peepholes" if layer.peepholes else ""):
        return _as_loop(layer)
    return _fused(layer, "LSTM")


@lower(ops.LstmQ)
def lstm_q(
    op: ops.LstmQ,
    g: Emitter,
    rows: Tensor,
    weights: Tensor,
    state_weights: Tensor,
    scales: Tensor,
    state_scales: Tensor,
    bias: Tensor | None = None,
    state_bias: Tensor | None = None,
    keep: Tensor | None = None,
    start: Tensor | None = None,
    first_cell: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[str, ...]:
    """ONNX Runtime's `DynamicQuantizeLSTM`. It takes the rows up to the end of the longest
    text as one tensor: those that do not exist hold zeros, which move no scale.
    """
    batch, length = rows.type.shape[:2]
    layer = _Layer(
        g=g,
        op=op,
        args=(),
        cell=Cell(IOFC),
        steps=Steps(g, keep, batch, length),
        x=rows,
        w_ih=weights,
        w_hh=state_weights,
        b_ih=bias,
        b_hh=state_bias,
        starts=(start, first_cell),
        peepholes=peepholes,
        projection=None,
        scales=(scales, state_scales),
    )
    return _fused(layer, "DynamicQuantizeLSTM")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The operands of one layer by name, and what ONNX calls its gates. `scales` are
    those of weights that are whole numbers, and then `[in, gates]`.
    """

    g: Emitter
    op: Recurrent | ops.LstmQ
    args: Args
    cell: Cell
    steps: Steps
    x: Tensor
    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None
    starts: Args
    peepholes: Tensor | None
    projection: Tensor | None
    scales: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, g: Emitter, op: Recurrent, args: Args, cell: Cell) -> "_Layer":
        # An LSTM has the most operands; the others have the first of them.
        absent = len(ops.Lstm.signature.operands) - len(args)
        operands: list[Tensor | None] = [*args, *[None] * absent]
        x, w_ih, w_hh, b_ih, b_hh, keep, *more = operands
        first, first_cell, peepholes, projection = more
        assert x is not None
        assert w_ih is not None
        assert w_hh is not None
        batch, length = x.type.shape[:2]
        return cls(
            g=g,
            op=op,
            args=args,
            cell=cell,
            steps=Steps(g, keep, batch, length),
            x=x,
            w_ih=w_ih,
            w_hh=w_hh,
            b_ih=b_ih,
            b_hh=b_hh,
            starts=(first, first_cell),
            peepholes=peepholes,
            projection=projection,
        )

    def serves(self, beyond: str) -> bool:
        """Whether ONNX's operator says all of it. `beyond` is what not every target's
        can do, if it is needed.
        """
        if self.projection or self.x.type.dtype not in FUSED:
            return False
        lengths = "lengths" if self.steps.keep else ""
        return all(
            not need or need in self.g.target.cells for need in (beyond, lengths)
        )


def _fused(
    layer: _Layer,
    kind: str,
    *,
    activations: list[str] | None = None,
    linear_before_reset: int | None = None,
) -> tuple[str, ...]:
    """All rows, then the final states, by the operator `kind`."""
    g, steps = layer.g, layer.steps
    lengths = steps.lengths()
    counts = steps.counts(lengths) if lengths else None
    # ONNX has an axis for directions in front of every state, here of length 1: two
    # directions are two layers.
    starts = [
        unsqueeze(g, steps.filled(s.name, s.type.shape), 0) if s else None
        for s in layer.starts
    ]
    rows = steps.in_front(layer.x, cleared=layer.scales is not None)
    matrices, biases = (layer.w_ih, layer.w_hh), (layer.b_ih, layer.b_hh)
    axis = 1 if layer.scales else 0
    weights = weights_in_order(g, layer.cell, matrices, biases, axis)
    inputs = [rows, *weights, counts, *starts, _peepholes(layer), *_scales(layer)]
    finals = 2 if isinstance(layer.op, ops.Lstm | ops.LstmQ) else 1
    every, *ends = g.nodes(
        kind,
        1 + finals,
        *inputs,
        domain=CONTRIB if layer.scales else "",
        hidden_size=layer.w_hh.type.shape[1 - axis].number,
        direction="reverse" if layer.op.reverse else "forward",
        activations=activations,
        linear_before_reset=linear_before_reset,
    )
    stacked = g.node("Squeeze", every, g.vector(1))
    out = steps.back(g.node("Transpose", stacked, perm=[1, 0, 2]))
    # The next layer takes the rows as they are, with time in front: two transposes and
    # two moves between layers would undo each other.
    g.rows[out] = steps.kept, stacked
    cut = [steps.cut(g.node("Squeeze", e, g.vector(0)), (steps.batch,)) for e in ends]
    finished = (
        steps.end(end, start, lengths, layer.x.type.dtype)
        for end, start in zip(cut, layer.starts, strict=False)
    )
    return (out, *finished)


def _peepholes(layer: _Layer) -> str | None:
    """One number a feature and gate; there is none of the cell's own gate."""
    if layer.peepholes is None:
        return None
    cell = Cell(IOF, layer.cell.negated)
    return unsqueeze(layer.g, in_order(layer.g, layer.peepholes, cell), 0)


def _scales(layer: _Layer) -> list[str]:
    """The scales of both weights, one a gate, each with the middle of its numbers."""
    g = layer.g
    found: list[str] = []
    for scales in layer.scales or ():
        # numbers with a sign have their middle at zero
        own = unsqueeze(g, in_order(g, scales, layer.cell), 0)
        found += own, g.constant([0], "i8")
    return found


def _as_loop(layer: _Layer) -> tuple[str, ...]:
    """The layer as the loop it stands for."""
    g, b = layer.g, Builder()
    assert not isinstance(layer.op, ops.LstmQ), "a target that lacks it plans none"
    inner = [
        b.input(f"x{n}", Input(a.type)) if a else None for n, a in enumerate(layer.args)
    ]
    results = as_scan(b, layer.op, inner, g.site.scope)
    # A graph of its own is lowered into the open one: its inputs are the operands.
    g.tensors.update((v, t) for v, t in zip(inner, layer.args, strict=True) if v and t)
    lower_nodes(g, b.finish("layer", {f"y{n}": v for n, v in enumerate(results)}))
    return tuple(g.tensors[v].name for v in results)
