"""Pack sequences for ONNX recurrent operators: time first, valid positions first."""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
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
    """The two axes that a layer runs over, and what says which rows exist, `[b, t]`."""

    g: Emitter
    keep: Tensor | None
    batch: Dim
    length: Dim

    @property
    def together(self) -> bool:
        """Whether the rows that exist stand at the front already."""
        if self.keep is None:
            return True
        value = self.keep.value
        return value is not None and self.g.facts.padding_sides.get(value) == "right"

    @property
    def kept(self) -> str:
        """What says which rows exist; a dot where all do."""
        return self.keep.name if self.keep else "."

    def in_front(self, x: Tensor, *, cleared: bool = False) -> str:
        """Return `[b, t, d]` as packed `[t, b, d]`, with zeros at padding if `cleared`."""
        if known := _find_packed_operand(self, x):
            return known
        name = self._cleared(x) if cleared and self.keep else x.name
        moved = (
            name if self.together else _emit_reordered(self.g, name, _emit_source_positions(self))
        )
        filled = self.filled(moved, x.type.shape)
        return self.g.node("Transpose", filled, perm=[1, 0, 2])

    def _cleared(self, x: Tensor) -> str:
        """`x` with zeros where no row is."""
        g = self.g
        assert self.keep is not None
        there = emit_unsqueeze(g, self.keep.name, 2)
        return emit_where(g, x.type.dtype, there, x.name, g.constant(0.0, x.type.dtype))

    def back(self, out: str) -> str:
        """Return results at their original positions, zeros at padding."""
        out = self.cut(out, (self.batch, self.length))
        return out if self.together else _emit_reordered(self.g, out, _emit_target_positions(self))

    def filled(self, x: str, shape: Sequence[Dim]) -> str:
        """Pad empty batch or time axes of `x` with one position: ONNX Runtime 1.31 crashes."""
        g = self.g
        # A width is never filled, though it may be as long as the batch by its name.
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

    def cut(self, x: str, shape: Sequence[Dim]) -> str:
        """`x` without what `filled` added; `shape` are its first axes."""
        g = self.g
        if all(g.lengths.positive(d) for d in shape):
            return x
        axes = range(len(shape))
        return g.node("Slice", x, g.vector(*[0 for _ in axes]), g.shape(shape), g.vector(*axes))

    def lengths(self) -> str | None:
        """How many rows exist, i32[b], which is what ONNX wants; None where all do."""
        if self.keep is None:
            return None
        kept = emit_cast(self.g, self.keep.name, "bool", "i32")
        return emit_reduce(self.g, "ReduceSum", kept, 1)

    def counts(self, lengths: str) -> str:
        """Return `lengths` with the padding of `filled`; CUDA has no `Pad` for i32."""
        g = self.g
        if g.lengths.positive(self.batch):
            return lengths
        none = g.node("Expand", g.constant(0, "i32"), _emit_placeholder_count(g, self.batch))
        return g.node("Concat", lengths, none, axis=0)

    def end(self, end: str, start: Tensor | None, lengths: str | None, dtype: str) -> str:
        """A final state: the first one where there was no row at all."""
        g = self.g
        # Where `filled` added a row the operator has run over it, and ONNX leaves open
        # what comes of a text whose count is 0.
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
        # Rows that were moved by another mask stand in other places.
        return known if kept == steps.kept else None
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
    if any(kept != steps.kept or not known for kept, known in sides):
        return None
    return g.node("Concat", *(known for _, known in sides), axis=2)


def _emit_placeholder_count(g: Emitter, length: Dim) -> str:
    """[1] where a length is 0, otherwise [0]."""
    return g.node("Max", g.node("Sub", g.vector(1), g.shape([length])), g.vector(0))


def _emit_target_positions(steps: PackedSequence) -> str:
    """Where each row goes: those that exist to the front, in order, the others behind
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
    """Which row comes to each place, the inverse of `_emit_target_positions`."""
    g, shape = steps.g, (steps.batch, steps.length)
    numbers = emit_expand(
        g, make_typed_tensor(emit_arange(g, steps.length), "i64", shape[1:]), shape
    )
    # Every place is written exactly once, so the zeros below are never seen.
    zeros = emit_full(g, 0, "i64", shape)
    return g.node("ScatterElements", zeros, _emit_target_positions(steps), numbers, axis=1)


def _emit_reordered(g: Emitter, x: str, places: str) -> str:
    return g.node("GatherND", x, emit_unsqueeze(g, places, 2), batch_dims=1)
