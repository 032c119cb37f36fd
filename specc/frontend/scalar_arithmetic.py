"""Arithmetic on numbers that depend on lengths: static where lengths are known, computed in
the graph (`RuntimeNumber`) otherwise.
"""

import math
import operator
from collections.abc import Callable, Mapping

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.frontend import node_builder
from specc.frontend.context import Context
from specc.frontend.spec_values import Number, RuntimeNumber, SpecValue, Tensor
from specc.ir import ops
from specc.ir.dim import Dim, DimFunction
from specc.ir.op import Op

UNARY_FUNCTIONS: Mapping[str, Callable[..., float]] = {
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

BINARY_OPERATORS: Mapping[str, tuple[str, Callable[[float, float], float]]] = {
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

ROUNDING_FUNCTIONS = ("ceil", "floor", "round", "int")
INTEGER_PRESERVING = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "neg")
"""Functions whose result is whole; those whose result is where the operands are."""

MAX_FORMULA_LENGTH = 60
"""Characters of a number's text; what is longer is told by its lengths."""


def get_known_float(value: Number) -> float | None:
    """A static number as a float, where it is known."""
    if isinstance(value, Dim):
        return None if value.number is None else float(value.number)
    return None if isinstance(value, RuntimeNumber) else float(value)


def get_number_symbols(value: Number) -> frozenset[str]:
    """The lengths that a number hangs on."""
    if isinstance(value, RuntimeNumber):
        return value.symbols
    return value.symbols() if isinstance(value, Dim) else frozenset()


def convert_to_float(context: Context, value: Number, span: Span | None) -> float | RuntimeNumber:
    """A static number as one with a fraction."""
    number = get_known_float(value)
    if number is not None:
        return number
    if isinstance(value, Dim):
        made = _convert_dim_to_f64(context, value, span)
        return RuntimeNumber(made.value, value.symbols(), str(value))
    return value


def apply_unary_function(context: Context, fn: str, x: Number, span: Span | None) -> Number:
    """`fn(x)` of a static number. ValueError, OverflowError or ZeroDivisionError where
    it has no value.
    """
    number = get_known_float(x)
    if number is not None:
        result = UNARY_FUNCTIONS[fn](number)
        return Dim.of(int(result)) if fn in ROUNDING_FUNCTIONS else float(result)
    return _add_computed_number(context, ops.Pointwise(fn), fn, [x], span)


def truncate_to_integer(context: Context, x: RuntimeNumber, span: Span | None) -> Number:
    """`int(x)`: cut towards zero."""
    if x.whole:
        return x
    value = node_builder.add_node_with_one_result(
        context, ops.Cast("i64"), Tensor(x.value), span=span
    )
    whole = node_builder.add_node_with_one_result(context, ops.Cast("f64"), value, span=span)
    return _make_symbol(
        context, RuntimeNumber(whole.value, x.symbols, _format_formula("int", [x]), True)
    )


def compute_arithmetic(
    context: Context, fn: str, left: Number, right: Number, span: Span | None
) -> Number:
    """`left fn right` of static numbers of which at least one has a fraction or is
    unknown.

    ZeroDivisionError, OverflowError or ValueError where it has no value.
    """
    a, b = get_known_float(left), get_known_float(right)
    if a is not None and b is not None:
        result = BINARY_OPERATORS[fn][1](a, b)
        # Python gives (-8) ** 0.5 as a complex number, no error
        if isinstance(result, complex):  # the root of a negative number
            raise ValueError
        return float(result)
    return _add_computed_number(context, ops.Arith(fn), fn, [left, right], span)


def require_attribute_number(
    context: Context, value: Number, what: str, span: Span | None
) -> float | RuntimeNumber:
    """A number that an operation is made with: a float; of a config value that is still
    a symbol, Unknown.

    E0315 where only an input tells it.
    """
    if context.late(get_number_symbols(value)):
        names = ", ".join(f"`{s}`" for s in sorted(get_number_symbols(value)))
        shown = value.text if isinstance(value, RuntimeNumber) else str(value)
        title = f"`{shown}` is known only when the model runs; {what} must be a number"
        helps = ["make it a config value, or compute with it outside: `x * scale`, `x + shift`"]
        raise_error("E0315", title, span, f"hangs on the length {names}", helps=helps)
    return convert_to_float(context, value, span)


def cast_to_attribute(number: float | RuntimeNumber) -> float:
    """A number as an op has it. In a reading with symbols ops are made with `RuntimeNumber`
    where a number hangs on config values: they keep and compare it, no more, for such a
    graph is never run. Everywhere else this is a float.
    """
    return number  # type: ignore[return-value]  # a graph of symbols is never run


def convert_to_scalar_tensor(
    context: Context, value: Number, dtype: str, span: Span | None
) -> Tensor:
    """A static number in the graph, of an element type with fractions."""
    number = get_known_float(value)
    if number is not None:
        return node_builder.add_constant(context, number, dtype, span)
    if isinstance(value, Dim) and not _has_quotient(value):
        # straight from the whole number: no step over f64 where none is needed
        size = node_builder.add_node_with_one_result(context, ops.Size(value), span=span)
        return node_builder.add_node_with_one_result(context, ops.Cast(dtype), size, span=span)
    if isinstance(value, Dim):
        exact = _convert_dim_to_f64(context, value, span)
    else:
        assert isinstance(value, RuntimeNumber)  # a float is known
        exact = Tensor(value.value)
    if dtype == "f64":
        return exact
    return node_builder.add_node_with_one_result(context, ops.Cast(dtype), exact, span=span)


def _add_computed_number(
    context: Context, op: Op, fn: str, args: list[Number], span: Span | None
) -> Number:
    """A number that the graph computes, as f64, from others."""
    values = [convert_to_scalar_tensor(context, a, "f64", span) for a in args]
    result = node_builder.add_node_with_one_result(context, op, *values, span=span)
    hangs = frozenset[str]().union(*map(get_number_symbols, args))
    whole = fn in ROUNDING_FUNCTIONS or (
        fn in INTEGER_PRESERVING and all(map(is_integer_number, args))
    )
    if fn == "pow" and context.symbols.symbolic and not context.late(hangs):
        # a power of whole config values; a negative exponent shows with numbers
        whole = all(map(is_integer_number, args))
    return _make_symbol(
        context, RuntimeNumber(result.value, hangs, _format_formula(fn, args), whole)
    )


def is_integer_number(value: SpecValue) -> bool:
    """A static number that surely is whole."""
    return isinstance(value, Dim) or (isinstance(value, RuntimeNumber) and value.whole)


def _make_symbol(context: Context, made: RuntimeNumber) -> Number:
    """A whole number that config values decide is a length of its own while they are symbols."""
    if not made.whole or context.late(made.symbols):
        return made
    names = context.symbols.opaque
    if made.value not in names:
        # two numbers may look alike where a text was cut: then they are counted
        clash = "…" in made.text or made.text in names.values()
        names[made.value] = f"{made.text} {len(names)}" if clash else made.text
    return Dim.symbol(names[made.value])


def _convert_dim_to_f64(context: Context, dim: Dim, span: Span | None) -> Tensor:
    """A length as f64[], in which `a / b` is the quotient of two numbers, whole or not."""
    if dim.number is not None:
        return node_builder.add_constant(context, float(dim.number), "f64", span)
    if not _has_quotient(dim):
        return node_builder.add_node_with_one_result(
            context,
            ops.Cast("f64"),
            node_builder.add_node_with_one_result(context, ops.Size(dim), span=span),
            span=span,
        )
    total: Tensor | None = None
    for monomial, c in dim.terms:
        term = node_builder.add_constant(context, float(c), "f64", span)
        for atom, power in monomial:
            # as a number a quotient may have a fraction: whether one
            # remains, only the input tells
            if isinstance(atom, DimFunction) and atom.fn == "/":
                above, below = (_convert_dim_to_f64(context, d, span) for d in atom.args)
                factor = node_builder.add_node_with_one_result(
                    context, ops.Arith("div"), above, below, span=span
                )
            else:
                factor = _convert_dim_to_f64(context, Dim({((atom, 1),): 1}), span)
            # powers as products: exact where `pow` of floats may not be
            for _ in range(power):
                term = node_builder.add_node_with_one_result(
                    context, ops.Arith("mul"), term, factor, span=span
                )
        total = (
            term
            if total is None
            else node_builder.add_node_with_one_result(
                context, ops.Arith("add"), total, term, span=span
            )
        )
    assert total is not None, "a length without terms is 0, which is known"
    return total


def _has_quotient(dim: Dim) -> bool:
    """Whether a term of the length has a factor `a / b`."""
    return any(
        isinstance(atom, DimFunction) and atom.fn == "/"
        for monomial, _ in dim.terms
        for atom, _ in monomial
    )


def _format_formula(fn: str, args: list[Number]) -> str:
    """How a number was come by, for messages and as the name of its symbol."""
    shown = [_format_operand(arg, alone=len(args) == 1) for arg in args]
    sign = BINARY_OPERATORS[fn][0] if fn in BINARY_OPERATORS else ""
    text = f"({shown[0]} {sign} {shown[1]})" if sign else f"{fn}({', '.join(shown)})"
    if len(text) <= MAX_FORMULA_LENGTH:
        return text
    lengths = sorted(frozenset[str]().union(*map(get_number_symbols, args)))
    return f"{fn}(… {' '.join(lengths)})"


def _format_operand(value: Number, *, alone: bool) -> str:
    """One operand: a sum of lengths stands in parentheses beside another."""
    if isinstance(value, RuntimeNumber):
        return value.text
    text = str(value)
    return f"({text})" if " " in text and not alone else text
