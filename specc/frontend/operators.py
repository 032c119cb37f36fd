"""Arithmetic, logical and comparison operators on compile-time values, tensors and masks."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.diagnostics.diagnostic import Span, raise_error
from specc.frontend import runtime_scalars
from specc.frontend.elaboration_context import ElaborationContext
from specc.frontend.node_builder import NodeBuilder, try_fuse_log_sigmoid
from specc.frontend.runtime_scalars import get_free_symbols, get_static_float
from specc.frontend.spec_values import (
    AttentionFunction,
    BlockFunction,
    BuiltinFunction,
    MaskExpression,
    MaskLike,
    Number,
    RuntimeScalar,
    SpecValue,
    StringChoice,
    Tensor,
    UnresolvedValueError,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import (
    Dim,
    DimError,
    DimLimitError,
    divide_dims_exactly,
    floor_divide_dims,
    mod_dims,
)
from specc.ir.op import Op
from specc.ir.types import KIND_BY_DTYPE
from specc.syntax import ast

INTEGER_OPERATORS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divide_dims_exactly,
    "//": floor_divide_dims,
    "%": mod_dims,
}

TENSOR_OPERATORS = {sign: name for name, (sign, _) in runtime_scalars.BINARY_OPERATORS.items()}
"""The IR op for each arithmetic operator, keyed by operator sign."""
COMPARISONS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "==": ("eq", operator.eq),
    "!=": ("ne", operator.ne),
    "<": ("lt", operator.lt),
    "<=": ("le", operator.le),
    ">": ("gt", operator.gt),
    ">=": ("ge", operator.ge),
}
"""The IR op and the Python function (for compile-time numbers) of each comparison operator."""


def apply_arithmetic(
    builder: NodeBuilder, left: SpecValue, right: SpecValue, expr: ast.BinaryOp
) -> SpecValue:
    """Apply `+ - * / // % **` to numbers and tensors, and `+` to lists. Raise E0206 for any other
    operand.
    """
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _combine_tensors(builder, left, right, expr)
    if isinstance(left, Number) and isinstance(right, Number):
        return _compute_numbers(builder, left, right, expr)
    if isinstance(left, tuple) and isinstance(right, tuple) and expr.op == "+":
        return builder.context.check_item_limit(left + right, builder.span)
    title = f"`{expr.op}` is not defined for {describe_value(left)} and {describe_value(right)}"
    raise_error("E0206", title, builder.span)


def _compute_numbers(nodes: NodeBuilder, left: Number, right: Number, expr: ast.BinaryOp) -> Number:
    """Apply an operator to two numbers. Raise E0309 or E0310 for an invalid result."""
    op = expr.op
    try:
        if isinstance(left, Dim) and isinstance(right, Dim):
            # the result is an integer, unless a power has a negative, large or symbolic exponent
            result = _compute_integers(op, left, right)
            if result is not None:
                return result
        return runtime_scalars.apply_binary_function(nodes, TENSOR_OPERATORS[op], left, right)
    except DimLimitError as error:
        raise_error("E0309", str(error), expr.span, _describe_operands(expr, left, right))
    except DimError as error:
        raise_error(
            "E0310",
            str(error),
            expr.span,
            _describe_operands(expr, left, right),
            notes=_describe_origins(expr, left, right),
            helps=_suggest_divisors(nodes.context, op, left, right),
        )
    except (ZeroDivisionError, OverflowError, ValueError):
        title = f"{describe_value(left)} {op} {describe_value(right)} is undefined"
        raise_error("E0310", title, expr.span)


def _compute_integers(op: str, left: Dim, right: Dim) -> Dim | None:
    """Apply an operator to two integers. Return None for a negative, large or symbolic exponent."""
    if op == "**" and right.number is not None and 0 <= right.number <= 64:
        return left**right.number
    if op in INTEGER_OPERATORS:
        return INTEGER_OPERATORS[op](left, right)
    return None


def _describe_origins(expr: ast.BinaryOp, left: Number, right: Number) -> list[str]:
    """Return notes on the origins of the operands: "the value of `d` is from config.json:9:18"."""
    notes = []
    for side, value in ((expr.left, left), (expr.right, right)):
        origin = value.origin if isinstance(value, Dim) else None
        span, source = side.span, origin and origin.span
        # add no note for a literal, because its origin is the expression itself
        if span and source and (span.source is not source.source or span.start != source.start):
            notes.append(f"the value of `{span.text}` is from {source}")
    return notes


def _suggest_divisors(
    context: ElaborationContext, op: str, left: Number, right: Number
) -> list[str]:
    """Return help messages that suggest nearby divisors if a division leaves a remainder."""
    if op != "/" or not isinstance(left, Dim) or not isinstance(right, Dim):
        return []
    dividend, divisor = left.number, right.number
    if not dividend or not divisor:
        return []
    nearest = _find_nearest_divisors(dividend, divisor)
    helps = [f"divisors of {dividend} near {divisor}: {', '.join(map(str, nearest))}"]
    # suggest no change to the standard library, which users cannot edit
    return helps if context.errors.user_call else [*helps, "for integer division, write `//`"]


def _find_nearest_divisors(dividend: int, divisor: int) -> list[int]:
    """Return the divisors of `dividend` (at most two) nearest to `divisor`, in ascending order."""
    divisors = [n for n in range(1, min(abs(dividend), 4096) + 1) if dividend % n == 0]
    return sorted(sorted(divisors, key=lambda n: abs(n - divisor))[:2])


def _describe_operands(expr: ast.BinaryOp, left: Number, right: Number) -> str:
    """Describe the values of the operands that are not literals, such as "`d` is 500"."""
    sides = ((expr.left, left), (expr.right, right))
    return ", ".join(
        f"`{side.span.text}` is {value}"
        for side, value in sides
        if side.span and side.span.text.strip() != str(value)
    )


def _combine_tensors(
    nodes: NodeBuilder, left: SpecValue, right: SpecValue, expr: ast.BinaryOp
) -> Tensor:
    """Apply an arithmetic operator to two operands, of which at least one is a tensor."""
    op = expr.op
    a, b = convert_operands(nodes, left, right)
    is_integer = KIND_BY_DTYPE[a.type.dtype] == "i"
    if op == "**" and is_integer:
        _check_power(nodes, right)
    if op == "/" and is_integer:
        title = "integers are divided with `//`, which rounds down"
        raise_error("E0206", title, expr.span)
    log_sigmoid = try_fuse_log_sigmoid(nodes, a) if op == "**" else None
    if log_sigmoid is not None:
        # sigmoid(x) ** y is exp(y * log(sigmoid(x)))
        a, op = log_sigmoid, "*"
    (result,) = nodes.add_node(ops.Arith(TENSOR_OPERATORS[op]), [a, b], op, expr.op_span)
    return result if log_sigmoid is None else nodes.add_op(ops.Pointwise("exp"), result)


def _check_power(nodes: NodeBuilder, exponent: SpecValue) -> None:
    """Raise E0206 if an integer has an exponent that is negative or known only at run time."""
    helps = ["convert to float, which supports every exponent: `cast(x, to=float)`"]
    is_runtime = isinstance(exponent, Tensor)
    if isinstance(exponent, Number):
        number = get_static_float(exponent)
        if number is not None and number < 0:
            title = f"an integer to the power of {number:g} is not an integer"
            raise_error("E0206", title, nodes.span, helps=helps)
        is_runtime = nodes.context.has_dynamic_symbol(get_free_symbols(exponent))
    if is_runtime:
        title = "the exponent of an integer must be known at compile time"
        raise_error("E0206", title, nodes.span, helps=helps)


def convert_operands(
    builder: NodeBuilder, left: SpecValue, right: SpecValue
) -> tuple[Tensor, Tensor]:
    """Convert two operands to tensors. A number takes the element type of the other operand."""
    if not isinstance(left, Tensor):
        assert isinstance(right, Tensor)  # callers guarantee that at least one operand is a tensor
        return convert_to_tensor(builder, left, right.type.dtype), right
    if not isinstance(right, Tensor):
        return left, convert_to_tensor(builder, right, left.type.dtype)
    left_kind, right_kind = KIND_BY_DTYPE[left.type.dtype], KIND_BY_DTYPE[right.type.dtype]
    if left_kind != right_kind:
        non_float = left if left_kind != "f" else right
        name = (
            non_float.source_span.text
            if non_float.source_span and non_float.source_span.text.isidentifier()
            else "x"
        )
        helps = [
            f"`cast({name}, to=float)` converts integers to float, and true and false to 1 and 0"
        ]
        raise_error(
            "E0206",
            f"{describe_value(left)} and {describe_value(right)} have different element types",
            builder.span,
            helps=helps,
        )
    return left, right


def convert_to_tensor(builder: NodeBuilder, value: SpecValue, dtype: str) -> Tensor:
    """Convert a number to a constant tensor of type `dtype`. Return a tensor unchanged."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool) and dtype == "bool":
        return builder.add_constant(value, dtype)
    if not isinstance(value, Number) or dtype == "bool":
        raise_error(
            "E0206", f"{describe_value(value)} cannot be used with a tensor here", builder.span
        )
    if KIND_BY_DTYPE[dtype] == "i":
        return _convert_integer(builder, value, dtype)
    return runtime_scalars.convert_to_scalar_tensor(builder, value, dtype)


def _convert_integer(nodes: NodeBuilder, value: Number, dtype: str) -> Tensor:
    """Convert a number to an integer tensor. Raise E0206 if the number is not an integer."""
    if isinstance(value, RuntimeScalar):
        if not value.is_integer:
            title = f"`{value.text}` may not be an integer, but the tensor has an integer type"
            raise_error("E0206", title, nodes.span)
        return nodes.add_op(ops.Cast(dtype), Tensor(value.value))
    if not isinstance(value, Dim):
        title = f"{value:g} is not an integer, but the tensor has an integer type"
        raise_error("E0206", title, nodes.span)
    if value.number is None:
        return nodes.add_op(ops.Size(value))
    return nodes.add_constant(value.number, dtype)


def apply_negation(builder: NodeBuilder, value: SpecValue) -> SpecValue:
    """Negate a number or tensor. Raise E0206 for other values."""
    match value:
        case Tensor():
            return builder.add_op(ops.Pointwise("neg"), value)
        case RuntimeScalar():
            return runtime_scalars.apply_unary_function(builder, "neg", value)
        case Dim() | float():
            return -value
    raise_error("E0206", f"{describe_value(value)} cannot be negated", builder.span)


LogicalOperator: TypeAlias = Literal["&", "|", "not"]

LOGICAL_OPS: Mapping[LogicalOperator, type[Op]] = {"&": ops.And, "|": ops.Or, "not": ops.Not}


def apply_logical_operator(
    builder: NodeBuilder, op: LogicalOperator, values: Sequence[SpecValue]
) -> SpecValue:
    """Apply `&`, `|` or `not` to bools, boolean tensors or masks."""
    non_bool = next((v for v in values if not isinstance(v, bool)), None)
    if non_bool is None:
        return _combine_bools(op, values)
    if any(map(_is_deferred_mask, values)):
        return _combine_masks(builder, op, values)
    if all(isinstance(v, bool) or _is_boolean(v) for v in values):
        operands = [convert_to_tensor(builder, v, "bool") for v in values]
        return builder.add_node(LOGICAL_OPS[op](), operands, op)[0]
    raise_error("E0206", f"`{op}`: expected booleans, got {describe_value(non_bool)}", builder.span)


def _combine_bools(op: LogicalOperator, values: Sequence[SpecValue]) -> bool:
    if op == "not":
        return not values[0]
    return all(values) if op == "&" else any(values)


def _is_deferred_mask(value: SpecValue) -> bool:
    """Return True if a value is a mask that has not been expanded to a tensor yet."""
    is_mask = isinstance(value, AttentionFunction) and value.kind == "mask"
    return is_mask or isinstance(value, MaskExpression)


def _is_boolean(value: SpecValue) -> bool:
    return isinstance(value, Tensor) and value.type.dtype == "bool"


def _combine_masks(
    nodes: NodeBuilder, op: LogicalOperator, values: Sequence[SpecValue]
) -> MaskExpression:
    """Combine masks that have not been expanded to tensors yet. `(a & b) & c` becomes a single
    `MaskExpression` with three masks, so that long chains are not deeply nested.
    """
    masks: list[MaskLike] = []
    for value in values:
        # other functions also pass this check, and cause an error when the mask is expanded
        if not isinstance(value, MaskLike):
            raise_error("E0601", f"{describe_value(value)} is not a mask", nodes.span)
        masks.append(value)
    head = masks[0]
    if isinstance(head, MaskExpression) and head.op == op != "not":
        return MaskExpression(op, (*head.operands, *masks[1:]))
    return MaskExpression(op, tuple(masks))


def apply_comparison(builder: NodeBuilder, op: str, left: SpecValue, right: SpecValue) -> SpecValue:
    """Apply a comparison operator or the membership operator `in`."""
    if op == "in":
        return _evaluate_membership(builder, left, right)
    is_equality = op in ("==", "!=")
    # `x == none` is allowed for any `x`
    if is_equality and (left is None or right is None):
        return (left is right) == (op == "==")
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _compare_tensors(builder, op, left, right)
    if isinstance(left, Number) and isinstance(right, Number):
        return _compare_numbers(builder.span, op, left, right)
    # other values can be compared only for equality
    if not is_equality:
        title = f"`{op}` is not defined for {describe_value(left)} and {describe_value(right)}"
        raise_error("E0206", title, builder.span)
    return (_make_comparable(left) == _make_comparable(right)) == (op == "==")


def _evaluate_membership(nodes: NodeBuilder, left: SpecValue, right: SpecValue) -> SpecValue:
    """Return True if a list contains a value, or if a string contains a substring. The list's items
    may be of different kinds. Raise E0206 for other operands.
    """
    if isinstance(left, str) and isinstance(right, str):
        return left in right
    if not isinstance(right, tuple):
        title = f"`in`: expected a list, or two strings, got {describe_value(right)}"
        raise_error("E0206", title, nodes.span)
    return any(apply_comparison(nodes, "==", left, item) for item in right)


def _compare_tensors(nodes: NodeBuilder, op: str, left: SpecValue, right: SpecValue) -> Tensor:
    """Compare a tensor elementwise with a tensor or number. Raise E0206 for booleans."""
    a, b = convert_operands(nodes, left, right)
    if a.type.dtype == "bool":
        title = "booleans are combined with `&`, `|` and `not`, not compared"
        raise_error("E0206", title, nodes.span)
    return nodes.add_node(ops.Compare(COMPARISONS[op][0]), [a, b], op)[0]


def _compare_numbers(span: Span | None, op: str, left: Number, right: Number) -> bool:
    """Compare two numbers. Raise UnresolvedValueError if the result depends on symbols."""
    if isinstance(left, Dim) and isinstance(right, Dim):
        # compare the difference with 0, to decide `n + 1 > n` for a symbol `n`
        left, right = left - right, Dim.from_value(0)
    a, b = get_static_float(left), get_static_float(right)
    if a is None or b is None:
        raise UnresolvedValueError(get_free_symbols(left) | get_free_symbols(right), span)
    return COMPARISONS[op][1](a, b)


def _make_comparable(value: SpecValue) -> object:
    """Return the comparison key of a value. Functions are compared by name and bound options."""
    match value:
        case BlockFunction():
            return value.kind, value.name, tuple(sorted(value.bound_arguments.items()))
        case AttentionFunction() | BuiltinFunction():
            arguments = {name: _make_comparable(v) for name, v in value.bound_arguments.items()}
            return value.kind, value.name, tuple(sorted(arguments.items()))
        case StringChoice(word):
            return word
    return value
