"""Linear layers, embeddings, norms, softmax and attention."""

from specc.ir.dim import Dim, divide_dims_exactly, mod_dims
from specc.ir.op import Op, Operand, OptionalOperand
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
    "MaskedWeights",
    "Patches",
    "RMSNorm",
    "Share",
    "Softmax",
    "Weigh",
]


class Linear(Op, sig="f[*s i], f[o i], f[o]? -> f[*s o]", heavy=True):
    """Linear layer over the last axis: `x @ w.T + b`."""

    bias = OptionalOperand(2)


class Embedding(Op, sig="i[*s], f[v d] -> f[*s d]"):
    """Embedding lookup in a table of `v` vectors."""

    ids, table = Operand(0), Operand(1)


class LayerNorm(Op, sig="f[*s d~], f[d]?, f[d]? -> f[*s d]"):
    """`(x - mean) / sqrt(var + eps) * g + b` over the last axis (arXiv:1607.06450, eq. 4)."""

    eps: float


class RMSNorm(Op, sig="f[*s d~], f[d]? -> f[*s d]"):
    """`x / sqrt(mean(x²) + eps) * g` over the last axis (arXiv:1910.07467, eq. 4)."""

    eps: float


class Dropout(Op, sig="f[*s] -> f[*s]"):
    """The identity at inference. In training, elements are set to zero with probability `p`
    and the others divided by `1 - p` (arXiv:1207.0580). `call` distinguishes calls on one tensor:
    each samples its own mask.
    """

    p: float
    call: int


class Softmax(Op, sig="f[*a t~ *b] -> f[*a t *b]"):
    """Softmax along axis `axis`; NaN for a slice of only minus infinity."""

    axis: int


class MaskedWeights:
    """Common part of masked score normalizers, whose results are weights in [0, 1]."""

    scores, mask = Operand(0), Operand(1)


class MaskedSoftmax(MaskedWeights, Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """Softmax over the visible keys on the last axis; zeros for a query without visible keys or
    with only minus infinity.
    """


class Hard(MaskedWeights, Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """One-hot of the largest visible score of each query (the first of equals).

    Zeros if no key is visible, or all visible scores are minus infinity.
    """


class Share(MaskedWeights, Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """Visible scores divided by their sum, as in kernel regression (Nadaraya 1964). Negative
    scores count as zero. A sum of zero gives zeros.
    """


class Weigh(Op, sig="f[#*s q k|q], f[#*s k|q e] -> f[*s q e]", heavy=True):
    """Weighted sum of values, `w @ v`, with the dependence of the mask that produced the
    weights.
    """

    weights, values = Operand(0), Operand(1)


class Attend(
    Op,
    sig="f[b h q d], f[b g k|q d], f[b g k|q e], b[#b #h #q #k|q]?, f[#b #h #q "
    "#k|q]?, f[h]? -> f[b h q e], f[b h q k]",
    heavy=True,
):
    """Scaled dot-product attention.

    Operands: query, key, value, mask, bias, sinks. Results: output and weights. `weights =
    softmax(cap(scale · q kᵀ) + bias, where mask)`, `output = weights v` (arXiv:1706.03762, eq.
    1). Each of the `g` key heads serves `h / g` adjacent query heads (grouped-query attention,
    arXiv:2305.13245). `cap > 0` is logit soft-capping: a score s becomes `cap · tanh(s / cap)`
    before the bias (arXiv:2408.00118). An attention sink is one more score per head without a
    value. Without a mask every key is visible. A query without visible keys gives zeros.
    """

    scale: float
    cap: float = 0.0

    query, key, values = Operand(0), Operand(1), Operand(2)
    mask, added, sinks = OptionalOperand(3), OptionalOperand(4), OptionalOperand(5)
    weights_result = 1

    def bind_result_axes(self, axes: AxisBindings) -> None:
        h, g = axes["h"], axes["g"]
        rest = mod_dims(h, g).number
        if rest:
            raise ShapeError(
                f"{g} key heads cannot serve {h} query heads equally", (0, 1), (h, g), "h"
            )


class Patches(Op, sig="f[b c y x], f[d c p r], f[d]? -> f[b n d]", heavy=True):
    """Patch embedding: an image split into `p × r` patches, each projected to a vector, in
    row-major order.

    Equals a convolution with stride = kernel size (arXiv:2010.11929, sec. 3.1).
    """

    def bind_result_axes(self, axes: AxisBindings) -> None:
        rows = divide_image_size(axes["y"], axes["p"], "high")
        axes["n"] = rows * divide_image_size(axes["x"], axes["r"], "wide")


def divide_image_size(length: Dim, size: Dim, word: str) -> Dim:
    """Return `length / size`, or raise ShapeError if the image size is not divisible."""
    if mod_dims(length, size).number:
        raise ShapeError(
            f"an image {length} {word} is not divisible into patches of {size}", (0, 1)
        )
    return divide_dims_exactly(length, size)
