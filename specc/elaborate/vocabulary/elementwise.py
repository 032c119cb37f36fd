"""Words for functions of single numbers, of pairs, and reductions."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.elaborate import nodes, numbers
from specc.elaborate.arithmetic import as_tensor, pair
from specc.elaborate.kinds import ANYTHING, Anything
from specc.elaborate.numbers import is_whole, known
from specc.elaborate.values import Known, Number, Tensor, Unknown, describe
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
    "expm1": "exp(x) - 1, accurate near 0",
    "floor": "rounded down",
    "gelu": "x · Φ(x), exact (arXiv:1606.08415, sec. 2)",
    "gelu_tanh": "gelu by its tanh approximation, as GPT-2 and BERT's original code "
    "have it (arXiv:1606.08415, sec. 2)",
    "log": "natural logarithm",
    "log1p": "log(1 + x), accurate near 0",
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


def _pointwise(fn: str) -> Callable[[Site, Known], Tensor | Number]:
    def make(site: Site, x: Known) -> Tensor | Number:
        if isinstance(x, Number):
            return _of_number(site, fn, x)
        if not isinstance(x, Tensor):
            site.fail(
                "E0203", f"`{fn}` takes a tensor or a number, not {describe(x)}", "x"
            )
        return site.one(ops.Pointwise(fn), x)

    return make


def _of_number(site: Site, fn: str, x: Number) -> Number:
    if fn not in ON_NUMBERS:
        site.fail("E0203", f"`{fn}` takes a tensor", "x")
    try:
        return numbers.function(site.context, fn, x, site.span)
    except (ValueError, OverflowError, ZeroDivisionError):
        site.fail("E0310", f"{fn}({x}) has no value", "x")


for _fn in POINTWISE:
    WORDS[_fn] = Word(
        _fn,
        (Slot("x", (ANYTHING,), MISSING, positional=True),),
        _pointwise(_fn),
        False,
        DOCS[_fn],
    )


@word()
def identity(site: Site, x: Tensor) -> Tensor:
    """The operand as it is."""
    return x


@word(name="min")
def min_(
    site: Site, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """The smallest of several, elementwise; with `axis`, the smallest along it. Of a
    list of numbers, its least.
    """
    return _extreme(site, "min", x, others, axis)


@word(name="max")
def max_(
    site: Site, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """The greatest of several, elementwise; with `axis`, the greatest along it. Of a
    list of numbers, its greatest.
    """
    return _extreme(site, "max", x, others, axis)


def _extreme(
    site: Site,
    fn: Literal["min", "max"],
    x: Known,
    others: tuple[Known, ...],
    axis: Dim | None,
) -> Tensor | Number:
    if axis is not None:
        return reduce(site, fn, x, axis)
    # `max(sizes)` of a list, or `max(a, b)`
    items = list(x) if isinstance(x, tuple) and not others else [x, *others]
    if not items:
        site.fail("E0203", f"`{fn}` of an empty list has no value")
    operands: list[Operand] = []
    for item in items:
        if not isinstance(item, Operand):
            title = f"`{fn}` compares numbers; this is {describe(item)}"
            site.fail("E0203", title, "x" if item is x else "")
        operands.append(item)
    return _folded(site, fn, operands)


Operand: TypeAlias = Tensor | Dim | float | Unknown
"""What functions of several numbers take, mixed as one likes."""

WHOLE: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": operator.add,
    "min": smallest,
    "max": largest,
}
"""The functions of two that keep lengths lengths."""


def _folded(site: Site, fn: str, operands: Sequence[Operand]) -> Operand:
    """One function of two, from the left over all operands."""
    result = operands[0]
    for operand in operands[1:]:
        if isinstance(result, Tensor) or isinstance(operand, Tensor):
            both = pair(site.context, result, operand, site.span)
            result = site.one(ops.Arith(fn), *both)
        elif isinstance(result, Dim) and isinstance(operand, Dim):
            result = WHOLE[fn](result, operand)
        else:
            result = numbers.arithmetic(site.context, fn, result, operand, site.span)
    return result


def reduce(site: Site, fn: str, x: Known, axis: Dim) -> Tensor:
    """One reduction along one axis."""
    if not isinstance(x, Tensor):
        site.fail(
            "E0203", f"`{fn}` along an axis takes a tensor, not {describe(x)}", "x"
        )
    return site.one(ops.Reduce(fn, site.axis(x, axis)), x)


@word(name="sum")
def sum_(site: Site, x: Anything, *, axis: Dim = Dim.of(-1)) -> Tensor | Number:
    """The sum along an axis; of a list of numbers or tensors, their sum."""
    if not isinstance(x, tuple):
        return reduce(site, "sum", x, axis)
    if not x:
        return Dim.of(0)
    operands: list[Operand] = []
    for item in x:
        if not isinstance(item, Operand):
            site.fail("E0203", f"`sum` adds numbers; this is {describe(item)}", "x")
        operands.append(item)
    return _folded(site, "add", operands)


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
def cumsum(site: Site, x: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """Running sum along an axis, the row itself included. True counts as 1."""
    if x.type.dtype == "bool":
        x = site.one(ops.Cast("i64"), x)
    return site.one(ops.CumSum(site.axis(x, axis)), x)


@word()
def where(site: Site, condition: Tensor, then: Anything, otherwise: Anything) -> Tensor:
    """`then` where the condition is true, else `otherwise`."""
    # two numbers: one of them says of which type the result is
    if not isinstance(then, Tensor) and not isinstance(otherwise, Tensor):
        dtype = "i64" if is_whole(then) and is_whole(otherwise) else "f32"
        if isinstance(then, bool):
            dtype = "bool"
        then = as_tensor(site.context, then, dtype, site.span)
    a, b = pair(site.context, then, otherwise, site.span)
    return site.one(ops.Where(), condition, a, b)


@word()
def clip(
    site: Site, x: Tensor, *, low: Anything = None, high: Anything = None
) -> Tensor:
    """No less than `low` and no more than `high`."""
    least, most = (known(b) if isinstance(b, Number) else None for b in (low, high))
    if least is not None and most is not None and least > most:
        site.fail("E0417", f"`clip` from {least:g} to {most:g} leaves nothing", "low")
    for bound, fn in ((low, "max"), (high, "min")):
        if bound is not None:
            x = site.one(ops.Arith(fn), *pair(site.context, x, bound, site.span))
    return x


@word()
def cast(site: Site, x: Tensor, *, to: Literal["float", "int", "bool"]) -> Tensor:
    """The same values as another kind. True is 1; fractions are cut towards zero; what
    is not 0 is true.
    """
    if to == "bool":
        if x.type.dtype == "bool":
            return x
        zero = nodes.constant(site.context, 0, x.type.dtype, site.span)
        return site.one(ops.Compare("ne"), x, zero)
    return site.one(ops.Cast({"float": "f32", "int": "i64"}[to]), x)
