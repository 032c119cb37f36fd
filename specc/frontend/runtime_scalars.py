"""Arithmetic on scalars that may depend on dimensions. A scalar is computed at compile time if the
dimensions are static, and otherwise by the graph (`RuntimeNumber`).
"""

import math
import operator
from collections.abc import Callable, Mapping

from specc.diagnostics.diagnostic import Span, raise_error
from specc.frontend.elaboration_context import ElaborationContext
from specc.frontend.node_builder import add_constant, add_op
from specc.frontend.spec_values import Number, RuntimeNumber, SpecValue, Tensor
from specc.ir import ops
from specc.ir.dim import Dim, DimFunction, Monomial
from specc.ir.op import Op

UNARY_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "erf": math.erf,
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
"""The unary functions of compile-time numbers, by name."""

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
"""The sign and Python function of each binary operator on compile-time numbers, by IR op name."""

ROUNDING_FUNCTIONS = ("ceil", "floor", "round", "int")
INTEGER_PRESERVING = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "neg")
"""`ROUNDING_FUNCTIONS` always return an integer. `INTEGER_PRESERVING` functions map integers to
integers.
"""

MAX_FORMULA_LENGTH = 60
"""Maximum length of a formula in messages. For a longer formula, messages show only the symbols."""


def get_static_float(value: Number) -> float | None:
    """Return a number as a float, or None if it is not known at compile time."""
    if isinstance(value, Dim):
        return None if value.number is None else float(value.number)
    return None if isinstance(value, RuntimeNumber) else float(value)


def get_number_symbols(value: Number) -> frozenset[str]:
    """Return the symbols that a number depends on."""
    if isinstance(value, RuntimeNumber):
        return value.symbols
    return value.symbols() if isinstance(value, Dim) else frozenset()


def convert_to_float(
    context: ElaborationContext, value: Number, span: Span | None
) -> float | RuntimeNumber:
    """Convert a number to a float, or to a RuntimeNumber if it depends on symbols."""
    number = get_static_float(value)
    if number is not None:
        return number
    if isinstance(value, Dim):
        converted = _convert_dim_to_f64(context, value, span)
        return RuntimeNumber(converted.value, value.symbols(), str(value))
    return value


def apply_unary_function(
    context: ElaborationContext, fn: str, x: Number, span: Span | None
) -> Number:
    """Apply a unary function to a number. Raise ArithmeticError or ValueError if the result is
    undefined.
    """
    number = get_static_float(x)
    if number is not None:
        result = UNARY_FUNCTIONS[fn](number)
        return Dim.from_value(int(result)) if fn in ROUNDING_FUNCTIONS else float(result)
    return _add_computed_number(context, ops.Pointwise(fn), fn, [x], span)


def truncate_to_integer(context: ElaborationContext, x: RuntimeNumber, span: Span | None) -> Number:
    """Truncate the run-time number `x` towards zero, by adding nodes to the graph."""
    if x.is_integer:
        return x
    value = add_op(context, ops.Cast("i64"), Tensor(x.value), span=span)
    truncated = add_op(context, ops.Cast("f64"), value, span=span)
    return _make_symbol(
        context, RuntimeNumber(truncated.value, x.symbols, _format_formula("int", [x]), True)
    )


def compute_arithmetic(
    context: ElaborationContext, fn: str, left: Number, right: Number, span: Span | None
) -> Number:
    """Apply an operator to two numbers that are not both known integers. Raise ValueError,
    OverflowError or ZeroDivisionError if the result is undefined.
    """
    a, b = get_static_float(left), get_static_float(right)
    if a is not None and b is not None:
        result = BINARY_OPERATORS[fn][1](a, b)
        # Python returns a complex number for (-8) ** 0.5
        if isinstance(result, complex):
            raise ValueError
        return float(result)
    return _add_computed_number(context, ops.Arith(fn), fn, [left, right], span)


def require_op_attribute(
    context: ElaborationContext, value: Number, description: str, span: Span | None
) -> float | RuntimeNumber:
    """Return a number for use as an op attribute, i.e. a float, or a RuntimeNumber if the number
    depends on symbolic config values. Raise E0315 if the number depends on an input.
    """
    if context.has_dynamic_symbol(get_number_symbols(value)):
        names = ", ".join(f"`{s}`" for s in sorted(get_number_symbols(value)))
        text = value.text if isinstance(value, RuntimeNumber) else str(value)
        title = f"`{text}` is known only at run time, but {description} must be a constant"
        helps = ["use a config value, or compute with a tensor: `x * scale`, `x + shift`"]
        raise_error("E0315", title, span, f"depends on the length {names}", helps=helps)
    return convert_to_float(context, value, span)


def cast_to_float_attribute(number: float | RuntimeNumber) -> float:
    """Cast a number to the type of a float attribute, without converting a RuntimeNumber."""
    return number  # type: ignore[return-value]  # a symbolic graph is never run


def convert_to_scalar_tensor(
    context: ElaborationContext, value: Number, dtype: str, span: Span | None
) -> Tensor:
    """Convert a number to a scalar tensor of a float type."""
    number = get_static_float(value)
    if number is not None:
        return add_constant(context, number, dtype, span)
    if isinstance(value, Dim) and not _has_quotient(value):
        # convert the integer directly, because no quotient needs f64
        size = add_op(context, ops.Size(value), span=span)
        return add_op(context, ops.Cast(dtype), size, span=span)
    if isinstance(value, Dim):
        f64_value = _convert_dim_to_f64(context, value, span)
    else:
        assert isinstance(value, RuntimeNumber)  # all floats are known at compile time
        f64_value = Tensor(value.value)
    if dtype == "f64":
        return f64_value
    return add_op(context, ops.Cast(dtype), f64_value, span=span)


def _add_computed_number(
    context: ElaborationContext, op: Op, fn: str, args: list[Number], span: Span | None
) -> Number:
    """Add nodes that compute a number in f64."""
    values = [convert_to_scalar_tensor(context, a, "f64", span) for a in args]
    result = add_op(context, op, *values, span=span)
    symbols = frozenset[str]().union(*map(get_number_symbols, args))
    is_integer = fn in ROUNDING_FUNCTIONS or (
        fn in INTEGER_PRESERVING and all(map(is_integer_number, args))
    )
    if fn == "pow" and context.symbols.is_symbolic and not context.has_dynamic_symbol(symbols):
        # a power of integer config values; a negative exponent is reported when the numbers are
        # known
        is_integer = all(map(is_integer_number, args))
    return _make_symbol(
        context, RuntimeNumber(result.value, symbols, _format_formula(fn, args), is_integer)
    )


def is_integer_number(value: SpecValue) -> bool:
    """Return True if a number is guaranteed to be an integer."""
    return isinstance(value, Dim) or (isinstance(value, RuntimeNumber) and value.is_integer)


def _make_symbol(context: ElaborationContext, number: RuntimeNumber) -> Number:
    """Return a new symbol for an integer that depends on symbols, or other numbers unchanged."""
    if not number.is_integer or context.has_dynamic_symbol(number.symbols):
        return number
    names = context.symbols.computed_names
    if number.value not in names:
        # the formulas of two symbols may be equal after truncation, so a counter is added
        is_ambiguous = "…" in number.text or number.text in names.values()
        names[number.value] = f"{number.text} {len(names)}" if is_ambiguous else number.text
    return Dim.symbol(names[number.value])


def _convert_dim_to_f64(context: ElaborationContext, dim: Dim, span: Span | None) -> Tensor:
    """Convert a dimension to a tensor f64[], in which `a / b` is a floating-point quotient."""
    if dim.number is not None:
        return add_constant(context, float(dim.number), "f64", span)
    if not _has_quotient(dim):
        return add_op(
            context, ops.Cast("f64"), add_op(context, ops.Size(dim), span=span), span=span
        )
    total: Tensor | None = None
    for monomial, c in dim.terms:
        term = _multiply_atoms(context, float(c), monomial, span)
        total = term if total is None else add_op(context, ops.Arith("add"), total, term, span=span)
    assert total is not None, "a length without terms is the known number 0"
    return total


def _multiply_atoms(
    context: ElaborationContext, coefficient: float, monomial: Monomial, span: Span | None
) -> Tensor:
    """Convert a term `coefficient · monomial` of a dimension to a tensor f64[]."""
    term = add_constant(context, coefficient, "f64", span)
    for atom, power in monomial:
        factor = _convert_atom_to_f64(context, atom, span)
        # powers are computed as products, which are exact, while floating-point `pow` may be
        # inexact
        for _ in range(power):
            term = add_op(context, ops.Arith("mul"), term, factor, span=span)
    return term


def _convert_atom_to_f64(
    context: ElaborationContext, atom: str | DimFunction, span: Span | None
) -> Tensor:
    """Convert one factor of a dimension to a tensor f64[]."""
    # unlike the dimension `a / b`, the floating-point quotient is not required to be an integer
    if isinstance(atom, DimFunction) and atom.fn == "/":
        dividend, divisor = (_convert_dim_to_f64(context, d, span) for d in atom.args)
        return add_op(context, ops.Arith("div"), dividend, divisor, span=span)
    return _convert_dim_to_f64(context, Dim({((atom, 1),): 1}), span)


def _has_quotient(dim: Dim) -> bool:
    """Return True if a term of the dimension has a factor `a / b`."""
    return any(part.fn == "/" for part in dim.iterate_opaque_functions())


def _format_formula(fn: str, args: list[Number]) -> str:
    """Format the formula of a number, for messages and as the name of the number's symbol."""
    operands = [_format_operand(arg, is_single=len(args) == 1) for arg in args]
    sign = BINARY_OPERATORS[fn][0] if fn in BINARY_OPERATORS else ""
    text = f"({operands[0]} {sign} {operands[1]})" if sign else f"{fn}({', '.join(operands)})"
    if len(text) <= MAX_FORMULA_LENGTH:
        return text
    lengths = sorted(frozenset[str]().union(*map(get_number_symbols, args)))
    return f"{fn}(… {' '.join(lengths)})"


def _format_operand(value: Number, *, is_single: bool) -> str:
    """Format the formula of an operand. A sum is in parentheses unless it is the only operand."""
    if isinstance(value, RuntimeNumber):
        return value.text
    text = str(value)
    return f"({text})" if " " in text and not is_single else text
