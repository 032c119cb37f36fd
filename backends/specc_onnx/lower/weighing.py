"""Lowering of weights made of scores, and of the sums that they weigh."""

from specc.ir import ops
from specc_onnx.lower.arrange import cast, matmul, reduce
from specc_onnx.lower.centered import center_of, sum_near, weights_near
from specc_onnx.lower.emitter import Emitter, Tensor, note
from specc_onnx.lower.nn import softmax_where
from specc_onnx.lower.table import lower
from specc_onnx.lower.weighed import sum_in_blocks


@lower(ops.MaskedSoftmax)
def masked_softmax(
    op: ops.MaskedSoftmax, g: Emitter, scores: Tensor, mask: Tensor
) -> str:
    """Softmax of the visible."""
    if center := center_of(g, mask):
        return weights_near(g, center, (scores, mask), _softmax_of)
    return _softmax_of(g, scores, mask)


def _softmax_of(g: Emitter, scores: Tensor, mask: Tensor) -> str:
    return softmax_where(g, scores.name, scores.type.dtype, mask)


@lower(ops.Hard)
def hard(op: ops.Hard, g: Emitter, scores: Tensor, mask: Tensor) -> str:
    """Of the visible those equal to the greatest, then the first of them."""
    dtype, axis = scores.type.dtype, scores.type.rank - 1
    lowest = g.constant(float("-inf"), dtype)
    seen = g.node("Where", mask.name, scores.name, lowest)
    # What is hidden is minus infinity by now, and so is a score that hides itself.
    best = g.node(
        "And",
        g.node("Equal", seen, reduce(g, "ReduceMax", seen, axis, keep=True)),
        g.node("Greater", seen, lowest),
    )
    # Of equals the first: the one at which the count of equals is 1.
    rank = g.node("CumSum", cast(g, best, "bool", "i32"), g.constant(axis, "i64"))
    first = g.node("And", best, g.node("Equal", rank, g.constant(1, "i32")))
    return cast(g, first, "bool", dtype)


@lower(ops.Share)
def share(op: ops.Share, g: Emitter, scores: Tensor, mask: Tensor) -> str:
    """The visible over their sum, or over one where that is zero."""
    dtype, axis = scores.type.dtype, scores.type.rank - 1
    seen = g.node("Where", mask.name, g.node("Relu", scores.name), g.constant(0, dtype))
    # Nothing that is left is below 0, so the sum is 0 only where all are.
    total = reduce(g, "ReduceSum", seen, axis, keep=True)
    empty = g.node("Equal", total, g.constant(0, dtype))
    return g.node("Div", seen, g.node("Where", empty, g.constant(1, dtype), total))


@lower(ops.Weigh)
def weigh(op: ops.Weigh, g: Emitter, weights: Tensor, values: Tensor) -> str:
    """A matrix product."""
    if weights.value and weights.value.node:
        note(g, weights.type.dtype, {"weights": weights.name})
    made = sum_near(g, weights, values) or sum_in_blocks(g, weights, values)
    return matmul(g, weights, values) if made is None else made
