"""What operations are called elsewhere, and what is written here instead."""

from collections.abc import Collection
from typing import NamedTuple

from specc.text.suggest import folded


class Mend(NamedTuple):
    """What to write, and the words and blocks that it needs."""

    text: str
    needs: tuple[str, ...]


RESHAPE = Mend(
    "there is no general reshape: neighboring axes are parted by "
    "`split(x, into=[a, b], axis=1)`, joined by `merge(x, axis=1)`, and "
    '`rearrange(x, "b n (h d) -> b h n d", sizes=[h])` does both',
    ("split", "merge", "rearrange"),
)
INSERT = Mend("a new axis of length 1 is `insert(x, axis=1)`", ("insert",))
CONCAT = Mend("tensors one after the other are `concat([a, b], axis=1)`", ("concat",))
PRODUCT = Mend("a product of matrices is `matmul(a, b)`", ("matmul",))
LINEAR = Mend("a map with weights is `linear(x, out=8) @ name`", ("linear",))
ROWS = Mend(
    "write `conv`: `padding=causal` or `padding=same` keeps the length of rows "
    "[batch, time, channels]",
    ("conv",),
)
CONV = Mend(
    "write `conv`: of a picture [batch, channels, high, wide] it is the one over both "
    "axes",
    ("conv",),
)
POOL = Mend("the greatest of each window is `max_pool`", ("max_pool",))
AVERAGE = Mend("the mean of each window is `average_pool`", ("average_pool",))
RESIZE = Mend("a picture of another size is `resize`", ("resize",))
ORDER = Mend(
    "axes in another order are `transpose(x, order=[0, 2, 1])`", ("transpose",)
)
HEADS = Mend(
    "attention with its projections is `attention(x, heads=2, mask=all) @ name`",
    ("attention",),
)
ATTEND = Mend("attention without weights is `attend(q, k, v, mask=all)`", ("attend",))
SHAPE = Mend("how long an axis is, is `length(x, axis=1)`", ("length",))
COUNT = Mend(
    "the numbers below n are `range(n)`, the row numbers of a tensor `positions(x)`",
    ("range", "positions"),
)
HIDE = Mend("a choice at each place is `where(seen, x, 0.0)`", ("where",))
MASK = Mend(
    "who sees whom is a mask: `mask=causal`, or one of your own, "
    "`mask near(n: int) = i - j < n`",
    ("causal",),
)
NOTHING = Mend("a spec says what a trained model computes: leave it out", ())
POWER = Mend("a power is `x ** 2.0`", ())
SIGN = Mend("arithmetic is written with `+ - * / // %`", ())
SPREAD = Mend("the spread is `sqrt(mean((x - m) ** 2.0, axis=-1))`", ("mean", "sqrt"))
LOGARITHM = Mend("that is `log(softmax(x))`", ("log", "softmax"))
ROOT = Mend("a vector's length is `sqrt(sum(x * x, axis=-1))`", ("sqrt", "sum"))
GREATEST = Mend("the greatest and their numbers are `topk(x, 3)`", ("topk",))

MENDS = {
    **dict.fromkeys(("reshape", "view", "flatten", "unflatten", "ravel"), RESHAPE),
    **dict.fromkeys(("unsqueeze", "expanddims", "newaxis"), INSERT),
    **dict.fromkeys(("cat", "concatenate", "hstack", "vstack"), CONCAT),
    **dict.fromkeys(("mm", "bmm", "gemm"), PRODUCT),
    **dict.fromkeys(("dense", "fc", "fullyconnected"), LINEAR),
    "conv1d": ROWS,
    **dict.fromkeys(("conv2d", "convolution", "convolve"), CONV),
    **dict.fromkeys(("maxpool", "maxpool1d", "maxpool2d", "maxpooling"), POOL),
    **dict.fromkeys(("avgpool", "avgpool1d", "avgpool2d", "meanpool"), AVERAGE),
    **dict.fromkeys(("interpolate", "upsample"), RESIZE),
    **dict.fromkeys(("permute", "swapaxes", "moveaxis"), ORDER),
    **dict.fromkeys(("mha", "multiheadattention", "selfattention"), HEADS),
    **dict.fromkeys(("sdpa", "scaleddotproductattention"), ATTEND),
    **dict.fromkeys(("shape", "dim", "ndim"), SHAPE),
    **dict.fromkeys(("arange", "iota", "enumerate"), COUNT),
    **dict.fromkeys(("maskedfill", "select", "cond"), HIDE),
    **dict.fromkeys(("tril", "triu", "causalmask"), MASK),
    **dict.fromkeys(("dropout", "detach", "stopgradient"), NOTHING),
    **dict.fromkeys(("pow", "power", "square"), POWER),
    **dict.fromkeys(("add", "sub", "mul", "multiply", "div", "mod"), SIGN),
    **dict.fromkeys(("std", "var", "variance"), SPREAD),
    "logsoftmax": LOGARITHM,
    **dict.fromkeys(("norm", "l2norm"), ROOT),
    **dict.fromkeys(("sort", "kthvalue", "topkvalues"), GREATEST),
}
"""By name, without case and separators."""


def elsewhere(name: str, known: Collection[str]) -> str:
    """What is written here for an operation of another language; empty for none."""
    mend = MENDS.get(folded(name))
    return mend.text if mend and all(need in known for need in mend.needs) else ""
