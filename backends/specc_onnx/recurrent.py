"""Lowering of recurrent layers to ONNX's `LSTM`, `GRU` and `RNN`, or to a loop where those cannot say it.

Those operators want time in front, gates in an order of their own, and padding on the right. So axes are turned
about around them, the weights' gates are put in order (a runtime does that once, when it loads the model), and rows
that exist are moved together where the input does not promise that padding stands on the right.
"""

from collections.abc import Sequence
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim, exact
from specc.ir.graph import Builder, Input
from specc.ir.recurrence import Recurrent, as_scan
from specc_onnx.arrange import cast, expand, full, reduce, rows, typed, unsqueeze, where
from specc_onnx.emit import Emitter, Tensor
from specc_onnx.table import lower, lower_nodes

FUSED = ("f32", "f16")
"""The element types for which ONNX Runtime has these operators."""

IOFC, ZRH, IOF = (0, 3, 1, 2), (1, 0, 2), (0, 2, 1)
"""Where each of ONNX's gates stands in our order: input, forget, cell, output; reset, update, new; of peepholes."""

Args = tuple[Tensor | None, ...]


@lower(ops.Rnn)
def rnn(op: ops.Rnn, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`RNN`."""
    beyond = "" if op.activation == "tanh" else "activation"
    return _Layer(g, op, args, (0,)).results("RNN", beyond, activations=[op.activation.capitalize()])


@lower(ops.Gru)
def gru(op: ops.Gru, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`GRU`, whose open update gate keeps the old state: for the other kind its weights change their sign."""
    negated = 1 if op.update == "new" else -1
    beyond = "" if op.reset == "after" else "reset before"
    return _Layer(g, op, args, ZRH, negated).results("GRU", beyond, linear_before_reset=int(not beyond))


@lower(ops.Lstm)
def lstm(op: ops.Lstm, g: Emitter, *args: Tensor | None) -> tuple[str, ...]:
    """`LSTM`, which knows no projection."""
    layer = _Layer(g, op, args, IOFC)
    return layer.results("LSTM", "peepholes" if layer.more[2] else "")


class _Layer:
    """One layer on its way."""

    def __init__(self, g: Emitter, op: Recurrent, args: Args, order: Sequence[int], negated: int = -1) -> None:
        self.g, self.op, self.order, self.negated = g, op, order, negated
        given = (*args, *[None] * (ops.recurrent.PROJECTION + 1 - len(args)))
        x, w_ih, w_hh, self.b_ih, self.b_hh, self.keep, *self.more = given
        assert x is not None
        assert w_ih is not None
        assert w_hh is not None
        self.x, self.w_ih, self.w_hh = x, w_ih, w_hh
        self.given = args
        self.batch, self.length = x.type.shape[:2]

    def results(self, kind: str, beyond: str, **attributes: Any) -> tuple[str, ...]:
        """All rows, then the final states. `beyond` is what not every target's `kind` can do, if it is needed."""
        g, (start, cell, peepholes, projection) = self.g, self.more
        if projection or self.x.type.dtype not in FUSED or (beyond and beyond not in g.target.cells):
            return self._loop()
        size = self.w_hh.type.shape[1].number
        lengths = self._lengths()
        counts = self._counts(lengths) if lengths else None
        starts = [unsqueeze(g, self._filled(s.name, s.type.shape), 0) if s else None for s in (start, cell)]
        inputs = [self._rows(), *self._weights(), counts, *starts]
        inputs += [unsqueeze(g, self._ordered(peepholes, IOF), 0)] if peepholes else []
        finals = 2 if kind == "LSTM" else 1
        direction = "reverse" if self.op.reverse else "forward"
        made = g.nodes(kind, 1 + finals, *inputs, hidden_size=size, direction=direction, **attributes)
        steps = g.node("Squeeze", made[0], g.vector(1))
        out = self._placed(g.node("Transpose", steps, perm=[1, 0, 2]))
        g.rows[out] = self._kept(), steps
        ends = [self._cut(g.node("Squeeze", end, g.vector(0)), (self.batch,)) for end in made[1:]]
        return (out, *(self._end(e, s, lengths) for e, s in zip(ends, (start, cell), strict=False)))

    def _loop(self) -> tuple[str, ...]:
        """The layer as the loop it stands for."""
        g, b = self.g, Builder()
        inner = [b.input(f"x{n}", Input(a.type)) if a else None for n, a in enumerate(self.given)]
        made = as_scan(b, self.op, inner, g.site.scope)
        g.tensors.update((v, t) for v, t in zip(inner, self.given, strict=True) if v and t)
        lower_nodes(g, b.finish("layer", {f"y{n}": v for n, v in enumerate(made)}))
        return tuple(g.tensors[v].name for v in made)

    # Weights: gates in ONNX's order, one direction.

    def _weights(self) -> list[str | None]:
        """`W`, `U` and both biases in a row. Put in order outside of any loop, so that it is done but once."""
        g, own = self.g, {t.name for t in self.g.parameters.values()}
        if all(w.name in own for w in (self.w_ih, self.w_hh, self.b_ih, self.b_hh) if w):
            with g.outside(g.site.scope, level=0):
                return self._in_order()
        return self._in_order()

    def _in_order(self) -> list[str | None]:
        g = self.g
        bias = None
        if self.b_ih or self.b_hh:
            none = g.constant([0.0] * (self.w_ih.type.shape[0].number or 0), self.x.type.dtype)
            both = [self._ordered(b, self.order) if b else none for b in (self.b_ih, self.b_hh)]
            bias = unsqueeze(g, g.node("Concat", *both, axis=0), 0)
        return [*(unsqueeze(g, self._ordered(w, self.order), 0) for w in (self.w_ih, self.w_hh)), bias]

    def _ordered(self, weights: Tensor, order: Sequence[int]) -> str:
        if len(order) == 1:
            return weights.name
        g, size = self.g, exact(weights.type.shape[0], len(order))
        parts = list(g.nodes("Split", len(order), weights.name, g.shape([size] * len(order)), axis=0))
        if self.negated >= 0:
            parts[self.negated] = g.node("Neg", parts[self.negated])
        return g.node("Concat", *(parts[n] for n in order), axis=0)

    # Rows: time in front, those that exist first, at least one.

    def _together(self) -> bool:
        """Whether the rows that exist stand at the front already."""
        return self.keep is None or (self.keep.value is not None and self.g.padded.get(self.keep.value) == "right")

    def _rows(self) -> str:
        g, x = self.g, self.x
        if known := self._known(x):
            return known
        moved = x.name if self._together() else self._moved(x.name, self._from())
        return g.node("Transpose", self._filled(moved, x.type.shape), perm=[1, 0, 2])

    def _known(self, x: Tensor) -> str | None:
        """The rows of a layer below, or of its two directions side by side, before they were put in their places."""
        kept, steps = self.g.rows.get(x.name, ("", ""))
        if steps:
            return steps if kept == self._kept() else None
        node = x.value.node if x.value else None
        if node is None or node.op != ops.Concat(2):
            return None
        sides = [self.g.rows.get(self.g.tensors[a].name, ("", "")) for a in node.args if a in self.g.tensors]
        if len(sides) < len(node.args) or any(kept != self._kept() or not steps for kept, steps in sides):
            return None
        return self.g.node("Concat", *(steps for _, steps in sides), axis=2)

    def _kept(self) -> str:
        """What says which rows exist; a dot where all do."""
        return self.keep.name if self.keep else "."

    def _filled(self, x: str, shape: Sequence[Dim]) -> str:
        """`x` with a row of zeros where batch or time, its first axes, turn out to be empty.

        ONNX Runtime 1.31 ends the process there, other runtimes may as well.
        """
        g = self.g
        doubtful = [
            n < 2 and length in (self.batch, self.length) and not g.lengths.positive(length)
            for n, length in enumerate(shape)
        ]
        if not any(doubtful):
            return x
        zero = g.vector(0)
        behind = [self._missing(d) if doubt else zero for d, doubt in zip(shape, doubtful, strict=True)]
        return g.node("Pad", x, g.node("Concat", *[zero] * len(shape), *behind, axis=0))

    def _missing(self, length: Dim) -> str:
        """[1] where a length is 0, otherwise [0]."""
        return self.g.node("Max", self.g.node("Sub", self.g.vector(1), self.g.shape([length])), self.g.vector(0))

    def _cut(self, x: str, shape: Sequence[Dim]) -> str:
        """`x` without what `_filled` added; `shape` are its first axes."""
        g = self.g
        if all(g.lengths.positive(d) for d in shape):
            return x
        axes = range(len(shape))
        return g.node("Slice", x, g.vector(*[0 for _ in axes]), g.shape(shape), g.vector(*axes))

    def _lengths(self) -> str | None:
        """How many rows exist, i32[b]; None where all do."""
        if self.keep is None:
            return None
        return reduce(self.g, "ReduceSum", cast(self.g, self.keep.name, "bool", "i32"), 1)

    def _counts(self, lengths: str) -> str:
        """`lengths` for the rows of `_filled`. Not by `Pad`, which has no kernel for i32 on a card."""
        g = self.g
        if g.lengths.positive(self.batch):
            return lengths
        return g.node("Concat", lengths, g.node("Expand", g.constant(0, "i32"), self._missing(self.batch)), axis=0)

    def _to(self) -> str:
        """Where each row goes: those that exist to the front, in order, the others behind them, in order."""
        g, keep = self.g, self.keep
        assert keep is not None
        axis, one = g.constant(1, "i64"), g.constant(1, "i64")
        here = cast(g, keep.name, "bool", "i64")
        there = cast(g, g.node("Not", keep.name), "bool", "i64")
        before = g.node("Sub", g.node("CumSum", here, axis), one)
        count = g.node("ReduceSum", here, g.vector(1), keepdims=True)
        behind = g.node("Add", g.node("Sub", g.node("CumSum", there, axis), one), count)
        return g.node("Where", keep.name, before, behind)

    def _from(self) -> str:
        """Which row comes to each place, the inverse of `_to`."""
        g, shape = self.g, (self.batch, self.length)
        numbers = expand(g, typed(rows(g, self.length), "i64", shape[1:]), shape)
        return g.node("ScatterElements", full(g, 0, "i64", shape), self._to(), numbers, axis=1)

    def _moved(self, x: str, places: str) -> str:
        return self.g.node("GatherND", x, unsqueeze(self.g, places, 2), batch_dims=1)

    def _placed(self, out: str) -> str:
        """The results where their rows were; what lies behind the rows that exist is zero."""
        out = self._cut(out, (self.batch, self.length))
        return out if self._together() else self._moved(out, self._to())

    def _end(self, end: str, start: Tensor | None, lengths: str | None) -> str:
        """A final state: the first one where there was no row at all."""
        g, dtype = self.g, self.x.type.dtype
        if lengths is not None:
            some = g.node("Greater", unsqueeze(g, lengths, 1), g.constant(0, "i32"))
        elif not g.lengths.positive(self.length):
            some = g.node("Greater", g.dim(self.length), g.constant(0, "i64"))
        else:
            return end
        return where(g, dtype, some, end, start.name if start else g.constant(0.0, dtype))
