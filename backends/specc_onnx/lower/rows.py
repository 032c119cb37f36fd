"""Lowering of the operations that pick, turn and resample rows (`specc.ir.ops.rows`)."""

from specc.ir import ops
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.table import lower


@lower(ops.Sort)
def sort(op: ops.Sort, g: Emitter, x: Tensor) -> tuple[str, ...]:
    """`TopK` of all; ONNX puts the lower of equals first."""
    count = g.shape([x.type.shape[op.axis]])
    largest = int(op.descending)
    return g.nodes("TopK", 2, x.name, count, axis=op.axis, largest=largest, sorted=1)


@lower(ops.TopK)
def top_k(op: ops.TopK, g: Emitter, x: Tensor) -> tuple[str, ...]:
    """One operator; ONNX puts the lower of equals first."""
    rest = x.type.shape[op.axis] - op.k
    count = g.lengths.demand(g, g.shape([op.k]), op.k, rest)
    return g.nodes("TopK", 2, x.name, count, axis=op.axis, largest=op.largest, sorted=1)


@lower(ops.Stride)
def stride(op: ops.Stride, g: Emitter, x: Tensor) -> str:
    """One operator."""
    length = x.type.shape[op.axis]
    start = g.lengths.demand(g, g.shape([op.start]), op.start, op.stop - op.start)
    stop = g.lengths.demand(g, g.shape([op.stop]), length - op.stop, op.step - 1)
    return g.node("Slice", x.name, start, stop, g.vector(op.axis), g.shape([op.step]))
