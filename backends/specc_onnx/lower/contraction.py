"""Lowering of `Einsum` to transposes and one matrix product per further operand.

ONNX's own `Einsum` is not used where it can be helped: in ONNX Runtime 1.31 an empty
axis ends the process.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, product
from specc_onnx.lower.arrange import matmul, reduce, reshape, typed
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.table import lower


@dataclass(frozen=True, slots=True)
class Term:
    """An operand with its axes by name."""

    tensor: Tensor
    axes: tuple[str, ...]

    def dims(self, names: Sequence[str]) -> list[Dim]:
        """The lengths of some axes."""
        return [self.tensor.type.shape[self.axes.index(n)] for n in names]


@lower(ops.Einsum)
def einsum(op: ops.Einsum, g: Emitter, *args: Tensor) -> str:
    """The operands joined from left to right."""
    left, right = op.equation.split("->")
    names = [tuple(term.split()) for term in left.split(",")]
    out = tuple(right.split())
    # `i i -> i` is no product of matrices.
    if any(len(set(n)) < len(n) for n in names):
        return _diagonal(g, args, names, out)
    terms = [Term(a, n) for a, n in zip(args, names, strict=True)]
    joined = terms[0]
    for n, term in enumerate(terms[1:], start=1):
        # An axis may be summed away as soon as no later operand and no result has it:
        # what is kept in between is as small as can be.
        later = {*out, *(name for t in terms[n + 1 :] for name in t.axes)}
        joined = _join(g, joined, term, later)
    joined = _summed(g, joined, set(out))
    return _ordered(g, joined, out).name


def _join(g: Emitter, a: Term, b: Term, later: set[str]) -> Term:
    """The product of two, summed over the axes that only they have."""
    a, b = _summed(g, a, later | {*b.axes}), _summed(g, b, later | {*a.axes})
    # `b h q d, b h k d`: `b` and `h` are batch, `d` is summed, `q` and `k` are rows and
    # columns.
    both = [n for n in a.axes if n in b.axes]
    batch = [n for n in both if n in later]
    inner = [n for n in both if n not in later]
    rows = [n for n in a.axes if n not in b.axes]
    columns = [n for n in b.axes if n not in a.axes]
    left = _matrix(g, a, batch, rows, inner)
    right = _matrix(g, b, batch, inner, columns)
    made = matmul(g, left, right)
    flat = (*left.type.shape[:-1], right.type.shape[-1])
    axes = (*batch, *rows, *columns)
    shape = (*a.dims(batch), *a.dims(rows), *b.dims(columns))
    dtype = a.tensor.type.dtype
    return Term(typed(reshape(g, made, flat, shape), dtype, shape), axes)


def _matrix(
    g: Emitter, term: Term, batch: list[str], rows: list[str], columns: list[str]
) -> Tensor:
    """A term as `[batch…, rows, columns]`, its groups of axes merged."""
    turned = _ordered(g, term, (*batch, *rows, *columns))
    high, wide = product(term.dims(rows)), product(term.dims(columns))
    shape = (*term.dims(batch), high, wide)
    name = reshape(g, turned.name, turned.type.shape, shape)
    return typed(name, turned.type.dtype, shape)


def _summed(g: Emitter, term: Term, kept: set[str]) -> Term:
    """A term without the axes that nothing else has."""
    # From the back, so that the numbers of the axes in front stay true.
    for axis in reversed(range(len(term.axes))):
        if term.axes[axis] not in kept:
            name = reduce(g, "ReduceSum", term.tensor.name, axis)
            axes = term.axes[:axis] + term.axes[axis + 1 :]
            made = typed(name, term.tensor.type.dtype, term.dims(axes))
            term = Term(made, axes)
    return term


def _ordered(g: Emitter, term: Term, axes: Sequence[str]) -> Tensor:
    if tuple(axes) == term.axes:
        return term.tensor
    order = [term.axes.index(n) for n in axes]
    name = g.node("Transpose", term.tensor.name, perm=order)
    return typed(name, term.tensor.type.dtype, term.dims(axes))


def _diagonal(
    g: Emitter,
    args: Sequence[Tensor],
    names: Sequence[Sequence[str]],
    out: Sequence[str],
) -> str:
    """A name twice in one term takes a diagonal, which only the operator itself does well."""
    # ONNX has a letter for an axis, where ours have names.
    every = dict.fromkeys(n for term in names for n in term)
    letter = dict(zip(every, string.ascii_letters, strict=False))
    *given, made = ["".join(letter[n] for n in term) for term in (*names, out)]
    equation = f"{','.join(given)}->{made}"
    return g.node("Einsum", *(a.name for a in args), equation=equation)
