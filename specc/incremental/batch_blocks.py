"""Axes that hold several rows per batch element, split where values leave a graph.

Rows of an attention over heads or windows that were merged with the batch are
`batch * k` long: row r is of example `r // k`. Inside a graph that is how they are
worked on. What goes from step to step, or from `encoder_graph` to the steps, goes as
`[batch, k]`: whoever picks rows of the batch, as a beam search does, needs an axis
that is the batch's alone.
"""

from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly
from specc.ir.graph import Builder, Value
from specc.ir.types import Type


@dataclass(frozen=True, slots=True)
class BatchBlocks:
    """Axis `axis` holds `batch` examples, `size` rows each."""

    axis: int
    batch: Dim
    size: Dim

    def outward(self, type: Type) -> Type:
        """Return the type with separate axes for the batch and its blocks."""
        before, behind = type.shape[: self.axis], type.shape[self.axis + 1 :]
        return Type(type.dtype, (*before, self.batch, self.size, *behind))

    def place(self, axis: int) -> int:
        """Return the index of another axis in that type."""
        return axis + (axis > self.axis)

    def apart(self, b: Builder, value: Value) -> Value:
        """Split the batch axis of a value that leaves the graph."""
        return b.one(ops.Split(self.axis, (self.batch, self.size)), value)

    def together(self, b: Builder, value: Value) -> Value:
        """Merge the batch axes of a value that enters the graph."""
        return b.one(ops.Merge(self.axis, 2), value)


def find_batch_blocks(type: Type, batch: Dim | None) -> BatchBlocks | None:
    """Return the axis of a type that holds several elements per batch element, or None."""
    if batch is None or batch.name is None:
        return None
    for axis, length in enumerate(type.shape):
        if length != batch and batch.name in length.symbols():
            try:
                size = divide_dims_exactly(length, batch)
            except DimError:
                return None
            # Rows that are not so many an example, the proof of the batch names.
            return BatchBlocks(axis, batch, size) if batch.name not in size.symbols() else None
    return None


def split_batch(b: Builder, value: Value, batch: Dim | None) -> Value:
    """Return a value in the form in which it leaves the graph."""
    blocks = find_batch_blocks(value.type, batch)
    return blocks.apart(b, value) if blocks else value
