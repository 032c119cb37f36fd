"""Words for functions of single numbers, of pairs, and reductions."""

from collections.abc import Callable
from typing import Any, Literal

from specc.elaborate import nodes, numbers
from specc.elaborate.arithmetic import as_tensor, pair
from specc.elaborate.numbers import is_number, is_whole
from specc.elaborate.values import Tensor, describe
from specc.elaborate.vocabulary.registry import MISSING, WORDS, Site, Slot, Word, word
from specc.ir import ops
from specc.ir.dim import Dim, largest, smallest
from specc.ir.ops.tensor import POINTWISE

DOCS = {
    "abs": "the size of a number without its sign",
    "ceil": "rounded up",
    "cos": "cosine",
    "erf": "the error function",
    "exp": "e to the power of x",
    "floor": "rounded down",
    "gelu": "x · Φ(x), exact (arXiv:1606.08415, sec. 2)",
    "gelu_tanh": "gelu by its tanh approximation, as GPT-2 and BERT's original code have it (arXiv:1606.08415, sec. 2)",
    "log": "natural logarithm",
    "neg": "the negative",
    "quick_gelu": "x · sigmoid(1.702 x) (arXiv:1606.08415, sec. 2)",
    "reciprocal": "1 / x",
    "relu": "max(0, x)",
    "relu2": "max(0, x)² (arXiv:2109.08668)",
    "round": "to the nearest whole number, halves to even",
    "sigmoid": "1 / (1 + exp(-x))",
    "sign": "-1, 0 or 1",
    "silu": "x · sigmoid(x) (arXiv:1702.03118)",
    "sin": "sine",
    "softplus": "log(1 + exp(x))",
    "sqrt": "square root",
    "tanh": "hyperbolic tangent",
}
"""One line for each function of one number."""

ON_NUMBERS = numbers.FUNCTIONS.keys() - {"neg"}
"""Those that take a static number too."""


def _pointwise(fn: str) -> Callable[..., Any]:
    def make(site: Site, x: Any) -> Any:
        if is_number(x):
            return _of_number(site, fn, x)
        if not isinstance(x, Tensor):
            site.fail("E0203", f"`{fn}` takes a tensor or a number, not {describe(x)}", "x")
        return site.one(ops.Pointwise(fn), x)

    return make


def _of_number(site: Site, fn: str, x: Any) -> Any:
    if fn not in ON_NUMBERS:
        site.fail("E0203", f"`{fn}` takes a tensor", "x")
    try:
        return numbers.function(site.context, fn, x, site.span)
    except (ValueError, OverflowError, ZeroDivisionError):
        site.fail("E0310", f"{fn}({x}) has no value", "x")


for _fn in POINTWISE:
    WORDS[_fn] = Word(_fn, (Slot("x", Any, MISSING, positional=True),), _pointwise(_fn), False, DOCS[_fn])


@word()
def identity(site: Site, x: Tensor) -> Tensor:
    """The operand as it is."""
    return x


@word(name="min")
def min_(site: Site, x: Any, *others: Any, axis: Dim | None = None) -> Any:
    """The smallest of several, elementwise; with `axis`, the smallest along it. Of a list of numbers, its least."""
    return _extreme(site, "min", smallest, x, others, axis)


@word(name="max")
def max_(site: Site, x: Any, *others: Any, axis: Dim | None = None) -> Any:
    """The greatest of several, elementwise; with `axis`, the greatest along it. Of a list of numbers, its greatest."""
    return _extreme(site, "max", largest, x, others, axis)


def _extreme(site: Site, fn: str, whole: Callable[..., Dim], x: Any, others: tuple[Any, ...], axis: Any) -> Any:
    if axis is not None:
        return reduce(site, fn, x, axis)
    items = list(x) if isinstance(x, tuple) and not others else [x, *others]
    if not items:
        site.fail("E0203", f"`{fn}` of an empty list has no value")
    for item in items:
        if not isinstance(item, Tensor) and not is_number(item):
            site.fail("E0203", f"`{fn}` compares numbers; this is {describe(item)}", "x" if item is x else "")
    result = items[0]
    for item in items[1:]:
        if isinstance(result, Tensor) or isinstance(item, Tensor):
            result = site.one(ops.Arith(fn), *pair(site.context, result, item, site.span))
        elif isinstance(result, Dim) and isinstance(item, Dim):
            result = whole(result, item)
        else:
            result = numbers.arithmetic(site.context, fn, result, item, site.span)
    return result


def reduce(site: Site, fn: str, x: Any, axis: Dim) -> Tensor:
    """One reduction along one axis."""
    if not isinstance(x, Tensor):
        site.fail("E0203", f"`{fn}` along an axis takes a tensor, not {describe(x)}", "x")
    return site.one(ops.Reduce(fn, site.axis(x, axis)), x)


@word(name="sum")
def sum_(site: Site, x: Any, *, axis: Dim = Dim.of(-1)) -> Any:
    """The sum along an axis; of a list of numbers or tensors, their sum."""
    if not isinstance(x, tuple):
        return reduce(site, "sum", x, axis)
    if not x:
        return Dim.of(0)
    for item in x:
        if not isinstance(item, Tensor) and not is_number(item):
            site.fail("E0203", f"`sum` adds numbers; this is {describe(item)}", "x")
    result = x[0]
    for item in x[1:]:
        if isinstance(result, Tensor) or isinstance(item, Tensor):
            result = site.one(ops.Arith("add"), *pair(site.context, result, item, site.span))
        elif isinstance(result, Dim) and isinstance(item, Dim):
            result = result + item
        else:
            result = numbers.arithmetic(site.context, "add", result, item, site.span)
    return result


@word()
def mean(site: Site, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """The mean along an axis. Over a padded axis use `masked_mean`."""
    return reduce(site, "mean", x, axis)


@word(name="any")
def any_(site: Site, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Whether any row along an axis is true."""
    return reduce(site, "any", x, axis)


@word()
def every(site: Site, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Whether all rows along an axis are true."""
    return reduce(site, "all", x, axis)


@word()
def argmax(site: Site, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """The number of the greatest row along an axis; the first of equals."""
    return site.one(ops.ArgMax(site.axis(x, axis)), x)


@word()
def argsort(site: Site, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Row numbers in ascending order of the values along an axis; of equals the lower number first."""
    return site.one(ops.ArgSort(site.axis(x, axis)), x)


@word()
def cumsum(site: Site, x: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """Running sum along an axis, the row itself included. True counts as 1."""
    if x.type.dtype == "bool":
        x = site.one(ops.Cast("i64"), x)
    return site.one(ops.CumSum(site.axis(x, axis)), x)


@word()
def where(site: Site, condition: Tensor, then: Any, otherwise: Any) -> Tensor:
    """`then` where the condition is true, else `otherwise`."""
    if not isinstance(then, Tensor) and not isinstance(otherwise, Tensor):
        dtype = "i64" if is_whole(then) and is_whole(otherwise) else "f32"
        if isinstance(then, bool):
            dtype = "bool"
        then = as_tensor(site.context, then, dtype, site.span)
    a, b = pair(site.context, then, otherwise, site.span)
    return site.one(ops.Where(), condition, a, b)


@word()
def clip(site: Site, x: Tensor, *, low: Any = None, high: Any = None) -> Tensor:
    """No less than `low` and no more than `high`."""
    for bound, fn in ((low, "max"), (high, "min")):
        if bound is not None:
            x = site.one(ops.Arith(fn), *pair(site.context, x, bound, site.span))
    return x


@word()
def cast(site: Site, x: Tensor, *, to: Literal["float", "int", "bool"]) -> Tensor:
    """The same values as another kind. True is 1; fractions are cut towards zero; what is not 0 is true."""
    if to == "bool":
        if x.type.dtype == "bool":
            return x
        zero = nodes.constant(site.context, 0, x.type.dtype, site.span)
        return site.one(ops.Compare("ne"), x, zero)
    return site.one(ops.Cast({"float": "f32", "int": "i64"}[to]), x)
