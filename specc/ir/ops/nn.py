"""Linear layers, embeddings, norms, softmax and attention."""

from specc.ir.dim import Dim, divide_dims_exactly, mod_dims
from specc.ir.op import Op
from specc.ir.operands import Operand, OptionalOperand
from specc.ir.signature import AxisBindings
from specc.ir.types import ShapeError

__all__ = [
    "Attend",
    "Dropout",
    "Embedding",
    "Hard",
    "LayerNorm",
    "Linear",
    "MaskedSoftmax",
    "Patches",
    "RMSNorm",
    "Share",
    "Softmax",
    "Weigh",
]


class Linear(Op, sig="f[*s i], f[o i], f[o]? -> f[*s o]", heavy=True):
    """Affine map of the last axis: `x @ w.T + b`."""

    bias = OptionalOperand(2)


class Embedding(Op, sig="i[*s], f[v d] -> f[*s d]"):
    """Row lookup in a table of `v` vectors."""

    ids, table = Operand(0), Operand(1)


class LayerNorm(Op, sig="f[*s d~], f[d]?, f[d]? -> f[*s d]"):
    """`(x - mean) / sqrt(var + eps) * g + b` over the last axis (arXiv:1607.06450, eq. 4)."""

    eps: float


class RMSNorm(Op, sig="f[*s d~], f[d]? -> f[*s d]"):
    """`x / sqrt(mean(x²) + eps) * g` over the last axis (arXiv:1910.07467, eq. 4)."""

    eps: float


class Dropout(Op, sig="f[*s] -> f[*s]"):
    """The identity at inference. In training, elements are set to zero with probability `p`
    and the others divided by `1 - p` (arXiv:1207.0580). `call` tells calls on one tensor apart:
    each samples a mask of its own.
    """

    p: float
    call: int


class Softmax(Op, sig="f[*a t~ *b] -> f[*a t *b]"):
    """Exponentials along axis `axis`, scaled to sum to one. Of minus infinity alone it is
    no number.
    """

    axis: int


class MaskedSoftmax(Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """Softmax over the last axis among the keys the mask shows; a row that sees none, or
    none but scores of minus infinity, is all zeros.
    """

    scores, mask = Operand(0), Operand(1)


class Hard(Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """One at the greatest visible score of each row (the first of equals), zero
    elsewhere; none visible, or none but scores of minus infinity, all zeros.
    """

    scores, mask = Operand(0), Operand(1)


class Share(Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """The visible scores divided by their sum, as a kernel's average weighs (Nadaraya
    1964).

    Scores below zero count as zero. A sum of zero gives zeros.
    """

    scores, mask = Operand(0), Operand(1)


class Weigh(Op, sig="f[#*s q k|q], f[#*s k|q e] -> f[*s q e]", heavy=True):
    """Sum of values by weights, `w @ v`, read through the mask that made the weights."""

    weights, values = Operand(0), Operand(1)


class Attend(
    Op,
    sig="f[b h q d], f[b g k|q d], f[b g k|q e], b[#b #h #q #k|q]?, f[#b #h #q "
    "#k|q]?, f[h]? -> f[b h q e], f[b h q k]",
    heavy=True,
):
    """Scaled dot-product attention: query, key, value, mask, added scores, sinks to
    result and weights.

    `weights = softmax(cap(scale · q kᵀ) + add, where mask)`, `result = weights v`
    (arXiv:1706.03762, eq. 1). Each of the `g` key heads serves `h / g` neighboring
    query heads (arXiv:2305.13245). With `cap > 0` a score s becomes
    `cap · tanh(s / cap)` before anything is added (arXiv:2408.00118). A sink is one
    more score per head that takes weight and gives nothing. Without a mask every key is
    seen. A query that sees none gives zeros.
    """

    scale: float
    cap: float = 0.0

    query, key, values = Operand(0), Operand(1), Operand(2)
    mask, added, sinks = OptionalOperand(3), OptionalOperand(4), OptionalOperand(5)
    weights_result = 1

    def solve(self, axes: AxisBindings) -> None:
        h, g = axes.one("h"), axes.one("g")
        rest = mod_dims(h, g).number
        if rest:
            raise ShapeError(
                f"{g} key heads cannot serve {h} query heads equally", (0, 1), (h, g), "h"
            )


class Patches(Op, sig="f[b c y x], f[d c p r], f[d]? -> f[b n d]", heavy=True):
    """An image cut into `p × r` patches, each mapped to a vector; patches in reading
    order.

    Equals a convolution with stride = kernel size (arXiv:2010.11929, sec. 3.1).
    """

    def solve(self, axes: AxisBindings) -> None:
        rows = divide_image_size(axes.one("y"), axes.one("p"), "high")
        axes["n"] = (rows * divide_image_size(axes.one("x"), axes.one("r"), "wide"),)


def divide_image_size(length: Dim, size: Dim, word: str) -> Dim:
    """`length / size`, or a ShapeError that says the picture cannot be cut so."""
    if mod_dims(length, size).number:
        raise ShapeError(
            f"a picture {length} {word} does not hold a whole number of patches of {size}", (0, 1)
        )
    return divide_dims_exactly(length, size)
