"""Arithmetic on scalars that may depend on dimensions. A scalar is computed at compile time if the
dimensions are static, and otherwise by the graph (`RuntimeScalar`).
"""

import math
import operator
from collections.abc import Callable, Mapping

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.elaboration_context import ElaborationContext
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import Number, RuntimeScalar, SpecValue, Tensor
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
"""Unary functions of compile-time numbers, keyed by name."""

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
"""The functions that always return integers, and those that map integers to integers."""

MAX_FORMULA_LENGTH = 60
"""The maximum length of a formula in messages. For a longer formula, only symbols are shown."""


def get_static_float(value: Number) -> float | None:
    """Return a number as a float, or None for a number that is not known at compile time."""
    if isinstance(value, Dim):
        return None if value.number is None else float(value.number)
    return None if isinstance(value, RuntimeScalar) else float(value)


def get_free_symbols(value: Number) -> frozenset[str]:
    """Return the symbols on which a number depends."""
    if isinstance(value, RuntimeScalar):
        return value.symbols
    return value.symbols() if isinstance(value, Dim) else frozenset()


def convert_to_float(builder: NodeBuilder, value: Number) -> float | RuntimeScalar:
    """Convert a number to a float, or to a RuntimeScalar if it depends on symbols."""
    number = get_static_float(value)
    if number is not None:
        return number
    if isinstance(value, Dim):
        converted = _convert_dim_to_f64(builder, value)
        return RuntimeScalar(converted.value, value.symbols(), str(value))
    return value


def apply_unary_function(builder: NodeBuilder, fn: str, x: Number) -> Number:
    """Apply a unary function to a number. Raise ArithmeticError or ValueError if the result is
    undefined.
    """
    number = get_static_float(x)
    if number is not None:
        result = UNARY_FUNCTIONS[fn](number)
        return Dim.from_value(int(result)) if fn in ROUNDING_FUNCTIONS else float(result)
    return _add_computed_number(builder, ops.Pointwise(fn), fn, [x])


def truncate_to_integer(builder: NodeBuilder, x: RuntimeScalar) -> Number:
    """Truncate the run-time scalar `x` towards zero, by adding nodes to the graph."""
    if x.is_integer:
        return x
    value = builder.add_op(ops.Cast("i64"), Tensor(x.value))
    truncated = builder.add_op(ops.Cast("f64"), value)
    return _make_symbol(
        builder.context,
        RuntimeScalar(truncated.value, x.symbols, _format_formula("int", [x]), True),
    )


def apply_binary_function(builder: NodeBuilder, fn: str, left: Number, right: Number) -> Number:
    """Apply an operator to two numbers, of which at least one is not an integer known at compile
    time. Raise ValueError, OverflowError or ZeroDivisionError if the result is undefined.
    """
    a, b = get_static_float(left), get_static_float(right)
    if a is not None and b is not None:
        result = BINARY_OPERATORS[fn][1](a, b)
        # Python returns a complex number for (-8) ** 0.5
        if isinstance(result, complex):
            raise ValueError
        return float(result)
    return _add_computed_number(builder, ops.Arith(fn), fn, [left, right])


def convert_to_op_attribute(
    builder: NodeBuilder, value: Number, description: str
) -> float | RuntimeScalar:
    """Convert a number to the value of an op attribute. Raise E0315 if the number depends on an
    input. The result is a float, or a RuntimeScalar if the number depends on symbolic config
    values.
    """
    if builder.context.has_dynamic_symbol(get_free_symbols(value)):
        names = ", ".join(f"`{s}`" for s in sorted(get_free_symbols(value)))
        text = value.text if isinstance(value, RuntimeScalar) else str(value)
        title = f"`{text}` is known only at run time, but {description} must be a constant"
        helps = ["use a config value, or compute with a tensor: `x * scale`, `x + shift`"]
        raise_error("E0315", title, builder.span, f"depends on the length {names}", helps=helps)
    return convert_to_float(builder, value)


def cast_to_float_attribute(number: float | RuntimeScalar) -> float:
    """Cast a number to the static type of a float attribute, without converting a RuntimeScalar."""
    return number  # type: ignore[return-value]  # a symbolic graph is never run


def convert_to_scalar_tensor(builder: NodeBuilder, value: Number, dtype: str) -> Tensor:
    """Convert a number to a scalar tensor of a float type."""
    number = get_static_float(value)
    if number is not None:
        return builder.add_constant(number, dtype)
    if isinstance(value, Dim) and not _has_quotient(value):
        # convert an integer without quotients directly, because only quotients require f64
        size = builder.add_op(ops.Size(value))
        return builder.add_op(ops.Cast(dtype), size)
    if isinstance(value, Dim):
        f64_value = _convert_dim_to_f64(builder, value)
    else:
        assert isinstance(value, RuntimeScalar)  # a float is always known at compile time
        f64_value = Tensor(value.value)
    if dtype == "f64":
        return f64_value
    return builder.add_op(ops.Cast(dtype), f64_value)


def _add_computed_number(nodes: NodeBuilder, op: Op, fn: str, args: list[Number]) -> Number:
    """Add nodes that compute a number in f64."""
    values = [convert_to_scalar_tensor(nodes, a, "f64") for a in args]
    result = nodes.add_op(op, *values)
    symbols = frozenset[str]().union(*map(get_free_symbols, args))
    is_integer = fn in ROUNDING_FUNCTIONS or (
        fn in INTEGER_PRESERVING and all(map(is_integral, args))
    )
    if (
        fn == "pow"
        and nodes.context.symbols.is_symbolic
        and not nodes.context.has_dynamic_symbol(symbols)
    ):
        # assume that the exponent is non-negative: once config values are concrete, a negative
        # exponent is an error
        is_integer = all(map(is_integral, args))
    return _make_symbol(
        nodes.context, RuntimeScalar(result.value, symbols, _format_formula(fn, args), is_integer)
    )


def is_integral(value: SpecValue) -> bool:
    """Return True if a number is always an integer."""
    return isinstance(value, Dim) or (isinstance(value, RuntimeScalar) and value.is_integer)


def _make_symbol(context: ElaborationContext, number: RuntimeScalar) -> Number:
    """Return a new symbol for an integer that depends on symbols, or any other value unchanged."""
    if not number.is_integer or context.has_dynamic_symbol(number.symbols):
        return number
    names = context.symbols.computed_names
    if number.value not in names:
        # a counter keeps names unique, because two formulas may be equal after truncation
        is_ambiguous = "…" in number.text or number.text in names.values()
        names[number.value] = f"{number.text} {len(names)}" if is_ambiguous else number.text
    return Dim.symbol(names[number.value])


def _convert_dim_to_f64(nodes: NodeBuilder, dim: Dim) -> Tensor:
    """Convert a dimension to a tensor f64[], in which `a / b` is a floating-point quotient."""
    if dim.number is not None:
        return nodes.add_constant(float(dim.number), "f64")
    if not _has_quotient(dim):
        return nodes.add_op(ops.Cast("f64"), nodes.add_op(ops.Size(dim)))
    total: Tensor | None = None
    for monomial, c in dim.terms:
        term = _multiply_atoms(nodes, float(c), monomial)
        total = term if total is None else nodes.add_op(ops.Arith("add"), total, term)
    assert total is not None, "a length without terms is the constant 0"
    return total


def _multiply_atoms(nodes: NodeBuilder, coefficient: float, monomial: Monomial) -> Tensor:
    """Convert a term `coefficient · monomial` of a dimension to a tensor f64[]."""
    term = nodes.add_constant(coefficient, "f64")
    for atom, power in monomial:
        factor = _convert_atom_to_f64(nodes, atom)
        # compute a power as a product, because floating-point `pow` may be inexact
        for _ in range(power):
            term = nodes.add_op(ops.Arith("mul"), term, factor)
    return term


def _convert_atom_to_f64(nodes: NodeBuilder, atom: str | DimFunction) -> Tensor:
    """Convert one factor of a dimension to a scalar tensor of type f64[]."""
    # unlike the dimension `a / b`, the floating-point quotient is not required to be an integer
    if isinstance(atom, DimFunction) and atom.fn == "/":
        dividend, divisor = (_convert_dim_to_f64(nodes, d) for d in atom.args)
        return nodes.add_op(ops.Arith("div"), dividend, divisor)
    return _convert_dim_to_f64(nodes, Dim({((atom, 1),): 1}))


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
    lengths = sorted(frozenset[str]().union(*map(get_free_symbols, args)))
    return f"{fn}(… {' '.join(lengths)})"


def _format_operand(value: Number, *, is_single: bool) -> str:
    """Format the formula of an operand. A sum is parenthesized unless it is the only operand."""
    if isinstance(value, RuntimeScalar):
        return value.text
    text = str(value)
    return f"({text})" if " " in text and not is_single else text
