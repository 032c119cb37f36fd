"""Numbers that lengths decide: static where the lengths are known, `Unknown` where they are not.

A length that only an input tells, used as a number, is computed when the model runs: its size, as f64, and
arithmetic on that. A config value that is still a symbol gives the same, so that the reading with symbols
never takes one number for another. Nothing here makes up a number.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from specc.elaborate import nodes
from specc.elaborate.context import Context
from specc.elaborate.values import Tensor, Unknown
from specc.ir import ops
from specc.ir.dim import Dim, Part
from specc.text.diagnostic import fail
from specc.text.source import Span

Number: TypeAlias = "Dim | float | Unknown"

FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "abs": abs, "ceil": math.ceil, "cos": math.cos, "exp": math.exp, "floor": math.floor, "log": math.log,
    "neg": operator.neg, "reciprocal": lambda x: 1 / x, "round": round, "sin": math.sin, "sqrt": math.sqrt,
    "tanh": math.tanh,
}  # fmt: skip
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
"""Operations on two static numbers, by the name of the op that does the same when the model runs."""

ROUNDED = ("ceil", "floor", "round", "int")
KEPT_WHOLE = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "neg")
"""Functions whose result is whole; those whose result is where the operands are."""

LONGEST = 60
"""Characters of a number's text; what is longer is told by its lengths."""


def is_number(value: Any) -> bool:
    """A static number: whole, with a fraction, or unknown yet."""
    return isinstance(value, Dim | float | Unknown)


def known(value: Any) -> float | None:
    """A static number as a float, where it is known."""
    if isinstance(value, Dim):
        return None if value.number is None else float(value.number)
    return None if isinstance(value, Unknown) else float(value)


def symbols(value: Any) -> frozenset[str]:
    """The lengths that a number hangs on."""
    if isinstance(value, Unknown):
        return value.symbols
    return value.symbols() if isinstance(value, Dim) else frozenset()


def as_float(context: Context, value: Any, span: Span | None) -> float | Unknown:
    """A static number as one with a fraction."""
    found = known(value)
    if found is not None:
        return found
    if isinstance(value, Unknown):
        return value
    return Unknown(_of_dim(context, value, span).value, value.symbols(), str(value))


def function(context: Context, fn: str, x: Any, span: Span | None) -> Any:
    """`fn(x)` of a static number. ValueError, OverflowError or ZeroDivisionError where it has no value."""
    number = known(x)
    if number is not None:
        found = FUNCTIONS[fn](number)
        return Dim.of(int(found)) if fn in ROUNDED else float(found)
    return _made(context, ops.Pointwise(fn), fn, [x], span)


def whole_part(context: Context, x: Unknown, span: Span | None) -> Any:
    """`int(x)`: cut towards zero."""
    if x.whole:
        return x
    value = nodes.one(context, ops.Cast("i64"), Tensor(x.value), span=span)
    made = Unknown(nodes.one(context, ops.Cast("f64"), value, span=span).value, x.symbols, _text("int", [x]), True)
    return _symbol(context, made)


def arithmetic(context: Context, fn: str, left: Any, right: Any, span: Span | None) -> Any:
    """`left fn right` of static numbers of which at least one has a fraction or is unknown.

    ZeroDivisionError, OverflowError or ValueError where it has no value.
    """
    a, b = known(left), known(right)
    if a is not None and b is not None:
        found = INFIX[fn][1](a, b)
        if isinstance(found, complex):  # the root of a negative number
            raise ValueError
        return float(found)
    return _made(context, ops.Arith(fn), fn, [left, right], span)


def attribute(context: Context, value: Any, what: str, span: Span | None) -> Any:
    """A number that an operation is made with: a float; of a config value that is still a symbol, Unknown.

    E0315 where only an input tells it.
    """
    if context.late(symbols(value)):
        names = ", ".join(f"`{s}`" for s in sorted(symbols(value)))
        shown = value.text if isinstance(value, Unknown) else str(value)
        title = f"`{shown}` is known only when the model runs; {what} must be a number"
        helps = ["make it a config value, or compute with it outside: `x * scale`, `x + shift`"]
        fail("E0315", title, span, f"hangs on the length {names}", helps=helps)
    return as_float(context, value, span)


def as_scalar(context: Context, value: Any, dtype: str, span: Span | None) -> Tensor:
    """A static number in the graph, of an element type with fractions."""
    number = known(value)
    if number is not None:
        return nodes.constant(context, number, dtype, span)
    if isinstance(value, Dim) and not _quotients(value):
        return nodes.one(context, ops.Cast(dtype), nodes.one(context, ops.Size(value), span=span), span=span)
    made = Tensor(value.value) if isinstance(value, Unknown) else _of_dim(context, value, span)
    return made if dtype == "f64" else nodes.one(context, ops.Cast(dtype), made, span=span)


def _made(context: Context, op: Any, fn: str, args: list[Any], span: Span | None) -> Any:
    values = [as_scalar(context, a, "f64", span) for a in args]
    made = nodes.one(context, op, *values, span=span)
    hangs = frozenset[str]().union(*map(symbols, args))
    whole = fn in ROUNDED or (fn in KEPT_WHOLE and all(map(is_whole, args)))
    if fn == "pow" and context.symbolic and not context.late(hangs):
        whole = all(map(is_whole, args))  # a power of whole config values; a negative exponent shows with numbers
    return _symbol(context, Unknown(made.value, hangs, _text(fn, args), whole))


def is_whole(value: Any) -> bool:
    """A static number that surely is whole."""
    return isinstance(value, Dim) or (isinstance(value, Unknown) and value.whole)


def _symbol(context: Context, made: Unknown) -> Any:
    """A whole number that config values decide is a length of its own while they are symbols."""
    if not made.whole or context.late(made.symbols):
        return made
    if made.value not in context.opaque:
        clash = "…" in made.text or made.text in context.opaque.values()
        context.opaque[made.value] = f"{made.text} {len(context.opaque)}" if clash else made.text
    return Dim.symbol(context.opaque[made.value])


def _of_dim(context: Context, dim: Dim, span: Span | None) -> Tensor:
    """A length as f64[], in which `a / b` is the quotient of two numbers, whole or not."""
    if dim.number is not None:
        return nodes.constant(context, float(dim.number), "f64", span)
    if not _quotients(dim):
        return nodes.one(context, ops.Cast("f64"), nodes.one(context, ops.Size(dim), span=span), span=span)
    total: Tensor | None = None
    for monomial, c in dim.terms:
        term = nodes.constant(context, float(c), "f64", span)
        for atom, power in monomial:
            if isinstance(atom, Part) and atom.fn == "/":
                above, below = (_of_dim(context, d, span) for d in atom.args)
                factor = nodes.one(context, ops.Arith("div"), above, below, span=span)
            else:
                factor = _of_dim(context, Dim({((atom, 1),): 1}), span)
            for _ in range(power):
                term = nodes.one(context, ops.Arith("mul"), term, factor, span=span)
        total = term if total is None else nodes.one(context, ops.Arith("add"), total, term, span=span)
    assert total is not None, "a length without terms is 0, which is known"
    return total


def _quotients(dim: Dim) -> bool:
    """Whether a term of the length has a factor `a / b`."""
    return any(isinstance(atom, Part) and atom.fn == "/" for monomial, _ in dim.terms for atom, _ in monomial)


def _text(fn: str, args: list[Any]) -> str:
    shown = [
        a.text if isinstance(a, Unknown) else f"({a})" if " " in str(a) and len(args) > 1 else str(a) for a in args
    ]
    sign = INFIX[fn][0] if fn in INFIX else ""
    text = f"({shown[0]} {sign} {shown[1]})" if sign else f"{fn}({', '.join(shown)})"
    if len(text) <= LONGEST:
        return text
    return f"{fn}(… {' '.join(sorted(frozenset[str]().union(*map(symbols, args))))})"
