"""Numbers that lengths decide: static where the lengths are known, `Unknown` where they
are not.

A length that only an input tells, used as a number, is computed when the model runs:
its size, as f64, and arithmetic on that. A config value that is still a symbol gives
the same, so that the reading with symbols never takes one number for another. Nothing
here makes up a number.
"""

import math
import operator
from collections.abc import Callable, Mapping

from specc.elaborate import nodes
from specc.elaborate.context import Context
from specc.elaborate.values import Known, Number, Tensor, Unknown
from specc.ir import ops
from specc.ir.dim import Dim, Part
from specc.ir.op import Op
from specc.text.diagnostic import fail
from specc.text.source import Span

FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "expm1": math.expm1,
    "floor": math.floor,
    "log": math.log,
    "log1p": math.log1p,
    "neg": operator.neg,
    "reciprocal": lambda x: 1 / x,
    "round": round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
}
"""Functions of one static number."""

INFIX: Mapping[str, tuple[str, Callable[[float, float], float]]] = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "div": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "mod": ("%", operator.mod),
    "pow": ("**", operator.pow),
    "min": ("", min),
    "max": ("", max),
}
"""Operations on two static numbers, by the name of the op that does the same when the
model runs.
"""

ROUNDED = ("ceil", "floor", "round", "int")
KEPT_WHOLE = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "neg")
"""Functions whose result is whole; those whose result is where the operands are."""

LONGEST = 60
"""Characters of a number's text; what is longer is told by its lengths."""


def known(value: Number) -> float | None:
    """A static number as a float, where it is known."""
    if isinstance(value, Dim):
        return None if value.number is None else float(value.number)
    return None if isinstance(value, Unknown) else float(value)


def symbols(value: Number) -> frozenset[str]:
    """The lengths that a number hangs on."""
    if isinstance(value, Unknown):
        return value.symbols
    return value.symbols() if isinstance(value, Dim) else frozenset()


def as_float(context: Context, value: Number, span: Span | None) -> float | Unknown:
    """A static number as one with a fraction."""
    number = known(value)
    if number is not None:
        return number
    if isinstance(value, Dim):
        made = _of_dim(context, value, span)
        return Unknown(made.value, value.symbols(), str(value))
    return value


def function(context: Context, fn: str, x: Number, span: Span | None) -> Number:
    """`fn(x)` of a static number. ValueError, OverflowError or ZeroDivisionError where
    it has no value.
    """
    number = known(x)
    if number is not None:
        result = FUNCTIONS[fn](number)
        return Dim.of(int(result)) if fn in ROUNDED else float(result)
    return _computed(context, ops.Pointwise(fn), fn, [x], span)


def whole_part(context: Context, x: Unknown, span: Span | None) -> Number:
    """`int(x)`: cut towards zero."""
    if x.whole:
        return x
    value = nodes.one(context, ops.Cast("i64"), Tensor(x.value), span=span)
    whole = nodes.one(context, ops.Cast("f64"), value, span=span)
    return _symbol(context, Unknown(whole.value, x.symbols, _text("int", [x]), True))


def arithmetic(
    context: Context, fn: str, left: Number, right: Number, span: Span | None
) -> Number:
    """`left fn right` of static numbers of which at least one has a fraction or is
    unknown.

    ZeroDivisionError, OverflowError or ValueError where it has no value.
    """
    a, b = known(left), known(right)
    if a is not None and b is not None:
        result = INFIX[fn][1](a, b)
        # Python gives (-8) ** 0.5 as a complex number, no error
        if isinstance(result, complex):  # the root of a negative number
            raise ValueError
        return float(result)
    return _computed(context, ops.Arith(fn), fn, [left, right], span)


def attribute(
    context: Context, value: Number, what: str, span: Span | None
) -> float | Unknown:
    """A number that an operation is made with: a float; of a config value that is still
    a symbol, Unknown.

    E0315 where only an input tells it.
    """
    if context.late(symbols(value)):
        names = ", ".join(f"`{s}`" for s in sorted(symbols(value)))
        shown = value.text if isinstance(value, Unknown) else str(value)
        title = f"`{shown}` is known only when the model runs; {what} must be a number"
        helps = [
            "make it a config value, or compute with it outside: `x * scale`, `x + shift`"
        ]
        fail("E0315", title, span, f"hangs on the length {names}", helps=helps)
    return as_float(context, value, span)


def as_attribute(number: float | Unknown) -> float:
    """A number as an op has it. In a reading with symbols ops are made with `Unknown`
    where a number hangs on config values: they keep and compare it, no more, for such a
    graph is never run. Everywhere else this is a float.
    """
    return number  # type: ignore[return-value]  # a graph of symbols is never run


def as_scalar(context: Context, value: Number, dtype: str, span: Span | None) -> Tensor:
    """A static number in the graph, of an element type with fractions."""
    number = known(value)
    if number is not None:
        return nodes.constant(context, number, dtype, span)
    if isinstance(value, Dim) and not _quotients(value):
        # straight from the whole number: no step over f64 where none is needed
        size = nodes.one(context, ops.Size(value), span=span)
        return nodes.one(context, ops.Cast(dtype), size, span=span)
    if isinstance(value, Dim):
        exact = _of_dim(context, value, span)
    else:
        assert isinstance(value, Unknown)  # a float is known
        exact = Tensor(value.value)
    if dtype == "f64":
        return exact
    return nodes.one(context, ops.Cast(dtype), exact, span=span)


def _computed(
    context: Context, op: Op, fn: str, args: list[Number], span: Span | None
) -> Number:
    """A number that the graph computes, as f64, from others."""
    values = [as_scalar(context, a, "f64", span) for a in args]
    result = nodes.one(context, op, *values, span=span)
    hangs = frozenset[str]().union(*map(symbols, args))
    whole = fn in ROUNDED or (fn in KEPT_WHOLE and all(map(is_whole, args)))
    if fn == "pow" and context.symbolic and not context.late(hangs):
        # a power of whole config values; a negative exponent shows with numbers
        whole = all(map(is_whole, args))
    return _symbol(context, Unknown(result.value, hangs, _text(fn, args), whole))


def is_whole(value: Known) -> bool:
    """A static number that surely is whole."""
    return isinstance(value, Dim) or (isinstance(value, Unknown) and value.whole)


def _symbol(context: Context, made: Unknown) -> Number:
    """A whole number that config values decide is a length of its own while they are symbols."""
    if not made.whole or context.late(made.symbols):
        return made
    names = context.opaque
    if made.value not in names:
        # two numbers may look alike where a text was cut: then they are counted
        clash = "…" in made.text or made.text in names.values()
        names[made.value] = f"{made.text} {len(names)}" if clash else made.text
    return Dim.symbol(names[made.value])


def _of_dim(context: Context, dim: Dim, span: Span | None) -> Tensor:
    """A length as f64[], in which `a / b` is the quotient of two numbers, whole or not."""
    if dim.number is not None:
        return nodes.constant(context, float(dim.number), "f64", span)
    if not _quotients(dim):
        return nodes.one(
            context,
            ops.Cast("f64"),
            nodes.one(context, ops.Size(dim), span=span),
            span=span,
        )
    total: Tensor | None = None
    for monomial, c in dim.terms:
        term = nodes.constant(context, float(c), "f64", span)
        for atom, power in monomial:
            # as a number a quotient may have a fraction: whether one
            # remains, only the input tells
            if isinstance(atom, Part) and atom.fn == "/":
                above, below = (_of_dim(context, d, span) for d in atom.args)
                factor = nodes.one(context, ops.Arith("div"), above, below, span=span)
            else:
                factor = _of_dim(context, Dim({((atom, 1),): 1}), span)
            # powers as products: exact where `pow` of floats may not be
            for _ in range(power):
                term = nodes.one(context, ops.Arith("mul"), term, factor, span=span)
        total = (
            term
            if total is None
            else nodes.one(context, ops.Arith("add"), total, term, span=span)
        )
    assert total is not None, "a length without terms is 0, which is known"
    return total


def _quotients(dim: Dim) -> bool:
    """Whether a term of the length has a factor `a / b`."""
    return any(
        isinstance(atom, Part) and atom.fn == "/"
        for monomial, _ in dim.terms
        for atom, _ in monomial
    )


def _text(fn: str, args: list[Number]) -> str:
    """How a number was come by, for messages and as the name of its symbol."""
    shown = [_side(arg, alone=len(args) == 1) for arg in args]
    sign = INFIX[fn][0] if fn in INFIX else ""
    text = f"({shown[0]} {sign} {shown[1]})" if sign else f"{fn}({', '.join(shown)})"
    if len(text) <= LONGEST:
        return text
    lengths = sorted(frozenset[str]().union(*map(symbols, args)))
    return f"{fn}(… {' '.join(lengths)})"


def _side(value: Number, *, alone: bool) -> str:
    """One operand: a sum of lengths stands in parentheses beside another."""
    if isinstance(value, Unknown):
        return value.text
    text = str(value)
    return f"({text})" if " " in text and not alone else text
