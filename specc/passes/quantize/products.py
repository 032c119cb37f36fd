"""Products by a matrix: what multiplies every row of one operand by another that is the
same for all rows, whichever op says so.

    linear(x, w, b)                        w lies as [out, in]
    matmul(x, w)                           as [in, out]
    einsum("b n i, i o -> b n o", x, w)    as its letters say
"""

from typing import NamedTuple

from specc.ir import ops
from specc.ir.graph import Node


class Product(NamedTuple):
    """The places of the rows and of the matrix among a node's operands, and whether the
    matrix lies as `[in, out]`.
    """

    rows: int
    matrix: int
    turned: bool


LINEAR = Product(rows=0, matrix=1, turned=False)


def product_of(node: Node) -> Product | None:
    """The product that a node is; None where it is another thing."""
    match node.op:
        case ops.Linear():
            return LINEAR
        case ops.MatMul():
            right = node.args[1]
            # of more axes it is another matrix for each of these
            flat = right is not None and right.type.rank == 2
            return Product(rows=0, matrix=1, turned=True) if flat else None
        case ops.Einsum(equation=equation):
            return _of_letters(equation)
    return None


def _of_letters(equation: str) -> Product | None:
    """The product that an einsum of two operands is: over the last axis of the rows,
    whose other axes stand in front of the matrix's other one in the result.
    """
    left, right = equation.split("->")
    terms = [term.split() for term in left.split(",")]
    for rows, matrix in ((0, 1), (1, 0)) if len(terms) == 2 else ():
        if len(terms[matrix]) != 2 or not terms[rows]:
            continue
        *lead, summed = terms[rows]
        first, second = terms[matrix]
        turned = first == summed
        other = second if turned else first
        fits = summed in (first, second) and other not in terms[rows]
        if fits and right.split() == [*lead, other]:
            return Product(rows, matrix, turned)
    return None
