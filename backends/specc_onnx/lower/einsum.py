"""Lower `Einsum` to transposes and matrix products.

ONNX's `Einsum` is used only for a repeated axis in one term: with an empty axis it crashes
ONNX Runtime 1.31.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_matmul,
    emit_reduce,
    emit_reshape,
    make_typed_tensor,
)


@dataclass(frozen=True, slots=True)
class EinsumTerm:
    """An operand with its axes by name."""

    tensor: Tensor
    axes: tuple[str, ...]

    def dims(self, names: Sequence[str]) -> list[Dim]:
        """Return the lengths of the named axes."""
        return [self.tensor.type.shape[self.axes.index(n)] for n in names]


@lower(ops.Einsum)
def einsum(op: ops.Einsum, g: Emitter, *args: Tensor) -> str:
    """Lower an einsum by contracting the operands from left to right."""
    left, right = op.equation.split("->")
    names = [tuple(term.split()) for term in left.split(",")]
    out = tuple(right.split())
    # `i i -> i` is not a matrix product.
    if any(len(set(n)) < len(n) for n in names):
        return _emit_einsum_operator(g, args, names, out)
    terms = [EinsumTerm(a, n) for a, n in zip(args, names, strict=True)]
    joined = terms[0]
    for n, term in enumerate(terms[1:], start=1):
        # An axis is summed as soon as neither a later operand nor the result has it.
        later = {*out, *(name for t in terms[n + 1 :] for name in t.axes)}
        joined = _multiply_terms(g, joined, term, later)
    joined = _sum_unshared_axes(g, joined, set(out))
    return _transpose_term(g, joined, out).name


def _multiply_terms(g: Emitter, a: EinsumTerm, b: EinsumTerm, later: set[str]) -> EinsumTerm:
    """Emit the product of two terms, summed over the shared axes that are not used later."""
    a, b = (
        _sum_unshared_axes(g, a, later | {*b.axes}),
        _sum_unshared_axes(g, b, later | {*a.axes}),
    )
    # `b h q d, b h k d`: `b` and `h` are batch axes, `d` is summed, `q` and `k` are rows and
    # columns.
    both = [n for n in a.axes if n in b.axes]
    batch = [n for n in both if n in later]
    inner = [n for n in both if n not in later]
    rows = [n for n in a.axes if n not in b.axes]
    columns = [n for n in b.axes if n not in a.axes]
    left = _to_matrix(g, a, batch, rows, inner)
    right = _to_matrix(g, b, batch, inner, columns)
    made = emit_matmul(g, left, right)
    flat = (*left.type.shape[:-1], right.type.shape[-1])
    axes = (*batch, *rows, *columns)
    shape = (*a.dims(batch), *a.dims(rows), *b.dims(columns))
    dtype = a.tensor.type.dtype
    return EinsumTerm(make_typed_tensor(emit_reshape(g, made, flat, shape), dtype, shape), axes)


def _to_matrix(
    g: Emitter, term: EinsumTerm, batch: list[str], rows: list[str], columns: list[str]
) -> Tensor:
    """Emit a term as `[batch…, rows, columns]` with each group of axes merged."""
    is_transposed = _transpose_term(g, term, (*batch, *rows, *columns))
    row_count, column_count = multiply_dims(term.dims(rows)), multiply_dims(term.dims(columns))
    shape = (*term.dims(batch), row_count, column_count)
    name = emit_reshape(g, is_transposed.name, is_transposed.type.shape, shape)
    return make_typed_tensor(name, is_transposed.type.dtype, shape)


def _sum_unshared_axes(g: Emitter, term: EinsumTerm, kept: set[str]) -> EinsumTerm:
    """Sum a term over the axes that are not in `kept`."""
    # From the last axis on, so that indices of earlier axes stay valid.
    for axis in reversed(range(len(term.axes))):
        if term.axes[axis] not in kept:
            name = emit_reduce(g, "ReduceSum", term.tensor.name, axis)
            axes = term.axes[:axis] + term.axes[axis + 1 :]
            made = make_typed_tensor(name, term.tensor.type.dtype, term.dims(axes))
            term = EinsumTerm(made, axes)
    return term


def _transpose_term(g: Emitter, term: EinsumTerm, axes: Sequence[str]) -> Tensor:
    if tuple(axes) == term.axes:
        return term.tensor
    order = [term.axes.index(n) for n in axes]
    name = g.node("Transpose", term.tensor, perm=order)
    return make_typed_tensor(name, term.tensor.type.dtype, term.dims(axes))


def _emit_einsum_operator(
    g: Emitter, args: Sequence[Tensor], names: Sequence[Sequence[str]], out: Sequence[str]
) -> str:
    """Emit `Einsum`; the only operator that handles a repeated axis in one term (a diagonal)."""
    every = dict.fromkeys(n for term in names for n in term)
    letter = dict(zip(every, string.ascii_letters, strict=False))
    *given, made = ["".join(letter[n] for n in term) for term in (*names, out)]
    equation = f"{','.join(given)}->{made}"
    return g.node("Einsum", *(a.name for a in args), equation=equation)
