"""Built-in layers: linear, embedding, norms, softmax, matrix products."""

import math
from dataclasses import replace

from specc.frontend.builtins.registry import CallSite, register_builtin
from specc.frontend.operators import convert_to_tensor
from specc.frontend.spec_values import Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly

FAN_IN_INIT = "fan_in(1.0)"
ZEROS_INIT, ONES_INIT, NORMAL_INIT = "zeros", "ones", "normal(0.02)"


@register_builtin(weights=True)
def linear(
    site: CallSite, x: Tensor, *, out: Dim, bias: bool = True, init: str = FAN_IN_INIT
) -> Tensor:
    """An affine map of the last axis, `x @ weight.T + bias`. Weights: `weight` [out,
    in], `bias` [out].
    """
    _check_float_tensor(site, x)
    weight = site.parameter("weight", [out, x.shape[-1]], init, ["out"])
    offset = site.parameter("bias", [out], ZEROS_INIT, ["out"]) if bias else None
    return site.one(ops.Linear(), x, weight, offset)


@register_builtin()
def affine(site: CallSite, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` with tensors that are given: weights [out, in] of another
    name, or shared ones.
    """
    _check_float_tensor(site, x)
    return site.one(ops.Linear(), x, weight, bias)


@register_builtin(weights=True)
def embedding(
    site: CallSite, ids: Tensor, *, size: Dim, dim: Dim, init: str = NORMAL_INIT
) -> Tensor:
    """A row of a table for each number. Weight: `weight` [size, dim]."""
    if ids.type.dtype != "i64":
        site.fail("E0301", f"an embedding looks up whole numbers, not {describe_value(ids)}", "ids")
    _record_index_bound(site, ids, size)
    return site.one(
        ops.Embedding(), ids, site.parameter("weight", [size, dim], init, ["size", "dim"])
    )


def _record_index_bound(site: CallSite, ids: Tensor, size: Dim) -> None:
    """Note that numbers the caller gives index a table of `size` rows."""
    builder = site.context.builder
    for name, value in builder.inputs.items():
        # only an input itself: numbers that are computed first are not the caller's
        if value is ids.value:
            facts = builder.input_facts[name]
            builder.input_facts[name] = replace(facts, below=facts.below or size)


@register_builtin(weights=True)
def layer_norm(
    site: CallSite,
    x: Tensor,
    *,
    eps: float,
    bias: bool = True,
    scale: bool = True,
    offset: float = 0.0,
) -> Tensor:
    """Layer normalization of the last axis (arXiv:1607.06450). Weights: `weight`,
    `bias` [d].

    With `offset=1.0` the weight is stored as its difference from one.
    """
    _check_float_tensor(site, x)
    site.within(eps, "eps", 0.0)
    weight = _make_norm_weight(site, x, offset) if scale else None
    shift = site.parameter("bias", [x.shape[-1]], ZEROS_INIT) if bias else None
    return site.one(ops.LayerNorm(eps), x, weight, shift)


@register_builtin(weights=True)
def rms_norm(
    site: CallSite, x: Tensor, *, eps: float, scale: bool = True, offset: float = 0.0
) -> Tensor:
    """Root-mean-square normalization of the last axis (arXiv:1910.07467). Weight:
    `weight` [d].

    With `offset=1.0` the weight is stored as its difference from one, as in Gemma.
    """
    _check_float_tensor(site, x)
    site.within(eps, "eps", 0.0)
    return site.one(ops.RMSNorm(eps), x, _make_norm_weight(site, x, offset) if scale else None)


def _make_norm_weight(site: CallSite, x: Tensor, offset: float) -> Tensor:
    site.within(offset, "offset", -math.inf)
    # one weight as it is, or as its difference from one: the file decides which
    if offset == 0:
        return site.parameter("weight", [x.shape[-1]], ONES_INIT)
    stored = site.parameter("weight", [x.shape[-1]], ZEROS_INIT)
    return site.one(
        ops.Arith("add"), stored, convert_to_tensor(site.context, offset, "f32", site.span)
    )


@register_builtin(weights=True)
def parameter(site: CallSite, *, shape: tuple[Dim, ...], init: str = NORMAL_INIT) -> Tensor:
    """A weight that is used as it is. Its name is the `@` path itself."""
    return site.parameter("", shape, init, ["shape"] * len(shape))


@register_builtin(weights=True)
def patches(
    site: CallSite,
    x: Tensor,
    *,
    size: Dim | tuple[Dim, ...],
    out: Dim,
    bias: bool = True,
    init: str = FAN_IN_INIT,
) -> Tensor:
    """An image [batch, channels, height, width] cut into squares of `size`, each mapped
    to `out` numbers.

    `size` may be a pair, high and wide. The result is [batch, (height / size) · (width
    / size), out], in reading order (arXiv:2010.11929, sec. 3.1). Weights: `weight`
    [out, channels, size, size], `bias` [out].
    """
    sizes = size if isinstance(size, tuple) else (size, size)
    if len(sizes) != 2:
        site.fail("E0301", "a patch is so many rows high and so many wide", "size")
    if len(x.shape) != 4:
        site.fail(
            "E0301",
            "an image has the axes batch, channels, height, width",
            "x",
            f"this is {describe_value(x)}",
        )
    weight = site.parameter("weight", [out, x.shape[1], *sizes], init, ["out", "", "size", "size"])
    offset = site.parameter("bias", [out], ZEROS_INIT, ["out"]) if bias else None
    return site.one(ops.Patches(), x, weight, offset)


@register_builtin()
def maxout(site: CallSite, x: Tensor, pieces: Dim) -> Tensor:
    """The greatest of each `pieces` neighboring features (arXiv:1302.4389, sec. 2)."""
    last = len(x.shape) - 1
    split = site.one(ops.Split(last, (divide_dims_exactly(x.shape[-1], pieces), pieces)), x)
    return site.one(ops.Reduce("max", last + 1), split)


@register_builtin()
def matmul(site: CallSite, a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of the last two axes."""
    return site.one(ops.MatMul(), a, b)


@register_builtin()
def einsum(site: CallSite, equation: str, *operands: Tensor) -> Tensor:
    """Products summed over the names missing on the right:
    `einsum("b i d, b j d -> b i j", x, y)`.
    """
    # einsum's own rules for the names come with the op; this is about the arrow and the
    # commas
    if equation.count("->") != 1 or equation.count(",") != len(operands) - 1:
        site.fail("E0306", f"the equation does not fit {len(operands)} operands", "equation")
    return site.one(ops.Einsum(equation), *operands)


@register_builtin()
def softmax(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Exponentials along an axis, scaled to sum to one. Over keys use `attend` or
    `masked_softmax`.
    """
    return site.one(ops.Softmax(site.axis(x, axis)), x)


@register_builtin()
def logsumexp(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """log(sum(exp(x))) along an axis, of which the maximum is subtracted first so that
    nothing overflows.
    """
    at = site.axis(x, axis)
    shifted, most = _subtract_max(site, x, at)
    total = _compute_log_sum(site, shifted, at)
    return site.one(ops.Arith("add"), total, site.one(ops.Squeeze(at), most))


@register_builtin()
def log_softmax(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """log(softmax(x)) along an axis, without the logarithm of a softmax that is 0."""
    at = site.axis(x, axis)
    shifted, _ = _subtract_max(site, x, at)
    total = site.one(ops.Insert(at), _compute_log_sum(site, shifted, at))
    return site.one(ops.Arith("sub"), shifted, total)


def _subtract_max(site: CallSite, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """`x` less its maximum along an axis, and that maximum. An infinite one counts as
    0: infinity less infinity is NaN.
    """
    most = site.one(ops.Insert(axis), site.one(ops.Reduce("max", axis), x))
    finite = site.one(
        ops.Compare("lt"),
        site.one(ops.Pointwise("abs"), most),
        site.constant(math.inf, x.type.dtype),
    )
    most = site.one(ops.Where(), finite, most, site.constant(0.0, x.type.dtype))
    return site.one(ops.Arith("sub"), x, most), most


def _compute_log_sum(site: CallSite, x: Tensor, axis: int) -> Tensor:
    total = site.one(ops.Reduce("sum", axis), site.one(ops.Pointwise("exp"), x))
    return site.one(ops.Pointwise("log"), total)


@register_builtin()
def dot(site: CallSite, a: Tensor, b: Tensor) -> Tensor:
    """The sum of products along the last axis.

    Where `a` has one row for every query and `b` one for every key, as in a score, this
    is one matrix product.
    """
    one = Dim.of(1)
    if min(len(a.shape), len(b.shape)) >= 3 and a.shape[-2] == one and b.shape[-3] == one:
        # [… q, 1, d] · [… 1, k, d]: all pairs at once, without a grid of products
        queries = site.one(ops.Squeeze(len(a.shape) - 2), a)
        keys = site.one(ops.Squeeze(len(b.shape) - 3), b)
        last = len(keys.shape) - 1
        turned = site.one(ops.Transpose((*range(last - 1), last, last - 1)), keys)
        return site.one(ops.MatMul(), queries, turned)
    products = site.one(ops.Arith("mul"), a, b)
    return site.one(ops.Reduce("sum", len(products.shape) - 1), products)


def _check_float_tensor(site: CallSite, x: Tensor) -> None:
    if x.type.dtype not in ("f32", "f64", "f16", "bf16") or not x.shape:
        helps = ["embedding(ids, size=…, dim=…) turns numbers of things into vectors"]
        site.fail(
            "E0301",
            f"`{site.call.function.path}` takes vectors of numbers",
            "x",
            f"this is {describe_value(x)}",
            helps=helps,
        )
