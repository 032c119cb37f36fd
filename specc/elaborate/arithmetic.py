"""Operators: on static values now, on tensors as nodes, on masks as combinations for later."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.elaborate import nodes, numbers
from specc.elaborate.context import Context
from specc.elaborate.needs import NeedsValue
from specc.elaborate.values import (
    BlockFunction,
    DefinitionFunction,
    Joined,
    Known,
    MaskLike,
    Number,
    Picked,
    Tensor,
    Unknown,
    WordFunction,
    describe,
)
from specc.ir import ops
from specc.ir.dim import Dim, DimError, DimLimit, exact, floor, remainder
from specc.ir.op import Op
from specc.ir.signature import letter
from specc.lang import tree
from specc.text.diagnostic import fail
from specc.text.source import Span

WHOLE: dict[str, Callable[[Dim, Dim], Dim]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": exact,
    "//": floor,
    "%": remainder,
}

TENSORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
}
COMPARED = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
STATIC = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


Operation: TypeAlias = tree.Binary | tree.Unary | tree.Compare
"""The text of an operator and its sides."""


def arithmetic(
    context: Context, op: str, left: Known, right: Known, expr: tree.Binary
) -> Known:
    """`left op right` for `+ - * / // % **`."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _of_tensors(context, op, left, right, expr)
    if isinstance(left, Number) and isinstance(right, Number):
        return _of_numbers(context, op, left, right, expr)
    if isinstance(left, tuple) and isinstance(right, tuple) and op == "+":
        return context.counted(left + right, expr.span)
    title = f"`{op}` has no meaning between {describe(left)} and {describe(right)}"
    fail("E0206", title, expr.span)


def _of_numbers(
    context: Context, op: str, left: Number, right: Number, expr: tree.Binary
) -> Number:
    try:
        if isinstance(left, Dim) and isinstance(right, Dim):
            # whole numbers stay whole, symbols too, as far as the operation lets them
            if op == "**" and right.number is not None and 0 <= right.number <= 64:
                return left**right.number
            if op in WHOLE:
                return WHOLE[op](left, right)
        return numbers.arithmetic(context, TENSORS[op], left, right, expr.span)
    except DimLimit as error:
        fail("E0309", str(error), expr.span, _shown(expr, left, right))
    except DimError as error:
        fail(
            "E0310",
            str(error),
            expr.span,
            _shown(expr, left, right),
            notes=_origins(expr, left, right),
            helps=_mends(context, op, left, right),
        )
    except (ZeroDivisionError, OverflowError, ValueError):
        title = f"{describe(left)} {op} {describe(right)} has no value"
        fail("E0310", title, expr.span)


def _origins(expr: tree.Binary, left: Number, right: Number) -> list[str]:
    """`d` is 500, from `config.json:9:18`: where each side's number was given."""
    notes = []
    for side, value in ((expr.left, left), (expr.right, right)):
        origin = value.origin if isinstance(value, Dim) else None
        # a number that stands in the expression itself came from nowhere else
        if side.span and origin and origin.span and not _same(side.span, origin.span):
            notes.append(f"`{side.span.text}` is given in {origin.span}")
    return notes


def _same(a: Span, b: Span | None) -> bool:
    return b is not None and a.source is b.source and a.start == b.start


def _mends(context: Context, op: str, left: Number, right: Number) -> list[str]:
    """What divides, for a quotient that leaves a remainder."""
    if op != "/" or not isinstance(left, Dim) or not isinstance(right, Dim):
        return []
    whole, part = left.number, right.number
    if not whole or not part:
        return []
    divisors = [n for n in range(1, min(abs(whole), 4096) + 1) if whole % n == 0]
    near = sorted(divisors, key=lambda n: abs(n - part))[:2]
    helps = [f"near {part}, these divide {whole}: {', '.join(map(str, sorted(near)))}"]
    # what the library writes is not the user's to change
    return helps if context.caller else [*helps, "to round down write `//`"]


def _shown(expr: tree.Binary, left: Number, right: Number) -> str:
    """`d is 500, heads is 12`, where the names do not already say so."""
    sides = ((expr.left, left), (expr.right, right))
    return ", ".join(
        f"`{side.span.text}` is {value}"
        for side, value in sides
        if side.span and side.span.text.strip() != str(value)
    )


def _of_tensors(
    context: Context, op: str, left: Known, right: Known, expr: tree.Binary
) -> Tensor:
    a, b = pair(context, left, right, expr.span)
    whole = letter(a.type.dtype) == "i"
    if op == "**" and whole:
        _check_power(context, right, expr)
    if op == "/" and whole:
        title = "whole numbers are divided with `//`, which rounds down"
        fail("E0206", title, expr.span)
    arith = ops.Arith(TENSORS[op])
    at = expr.op_span
    return nodes.add(context, arith, [a, b], expr.span, word=op, at=at)[0]


def _check_power(context: Context, exponent: Known, expr: tree.Binary) -> None:
    """E0206 for a whole number to a power that is known too late, or is below 0."""
    helps = ["`cast(x, to=float)` makes numbers with a fraction, which any power has"]
    late = isinstance(exponent, Tensor)
    if isinstance(exponent, Number):
        number = numbers.known(exponent)
        if number is not None and number < 0:
            title = f"a whole number to the power of {number:g} is no whole number"
            fail("E0206", title, expr.span, helps=helps)
        late = context.late(numbers.symbols(exponent))
    if late:
        title = "a whole number is raised to a power that only an input tells"
        fail("E0206", title, expr.span, helps=helps)


def pair(
    context: Context, left: Known, right: Known, span: Span | None
) -> tuple[Tensor, Tensor]:
    """Two operands as tensors of one element type; a static number takes the type of the other."""
    if not isinstance(left, Tensor):
        assert isinstance(right, Tensor)  # callers have seen that one of them is
        return as_tensor(context, left, right.type.dtype, span), right
    if not isinstance(right, Tensor):
        return left, as_tensor(context, right, left.type.dtype, span)
    a, b = letter(left.type.dtype), letter(right.type.dtype)
    if a != b:
        helps = [
            "`cast(x, to=float)` makes numbers with a fraction of whole numbers, and of "
            "true and false 1 and 0"
        ]
        fail(
            "E0206",
            f"{describe(left)} and {describe(right)} hold different kinds of values",
            span,
            helps=helps,
        )
    return left, right


def as_tensor(context: Context, value: Known, dtype: str, span: Span | None) -> Tensor:
    """A static number as a tensor of that element type; a tensor as it is."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool) and dtype == "bool":
        return nodes.constant(context, value, dtype, span)
    if not isinstance(value, Number) or dtype == "bool":
        fail("E0206", f"{describe(value)} cannot be used with a tensor here", span)
    if letter(dtype) == "i":
        return _as_whole(context, value, dtype, span)
    return numbers.as_scalar(context, value, dtype, span)


def _as_whole(context: Context, value: Number, dtype: str, span: Span | None) -> Tensor:
    """A static number beside whole ones: it surely is whole, or E0206."""
    if isinstance(value, Unknown):
        if not value.whole:
            title = (
                f"`{value.text}` may have a fraction, the tensor holds whole numbers"
            )
            fail("E0206", title, span)
        return nodes.one(context, ops.Cast(dtype), Tensor(value.value), span=span)
    if not isinstance(value, Dim):
        title = f"{value:g} has a fraction, the tensor holds whole numbers"
        fail("E0206", title, span)
    if value.number is None:
        return nodes.one(context, ops.Size(value), span=span)
    return nodes.constant(context, value.number, dtype, span)


def negate(context: Context, value: Known, expr: tree.Unary) -> Known:
    """`-value`."""
    match value:
        case Tensor():
            return nodes.one(context, ops.Pointwise("neg"), value, span=expr.span)
        case Unknown():
            return numbers.function(context, "neg", value, expr.span)
        case Dim():
            return -value
        case float():
            return -value
    fail("E0206", f"{describe(value)} has no negative", expr.span)


Logical: TypeAlias = Literal["&", "|", "not"]

LOGICAL: Mapping[Logical, type[Op]] = {"&": ops.And, "|": ops.Or, "not": ops.Not}


def logic(
    context: Context, op: Logical, values: Sequence[Known], expr: Operation
) -> Known:
    """`&`, `|`, `not`, of static truths, of tensors, of masks."""
    truths = [v for v in values if isinstance(v, bool)]
    if len(truths) == len(values):
        if op == "not":
            return not truths[0]
        return all(truths) if op == "&" else any(truths)
    if any(map(_is_held_mask, values)):
        return _joined(op, values, expr)
    grids = [v for v in values if isinstance(v, bool) or _is_truths(v)]
    if len(grids) == len(values):
        operands = [as_tensor(context, v, "bool", expr.span) for v in grids]
        return nodes.add(context, LOGICAL[op](), operands, expr.span, word=op)[0]
    wrong = next(v for v in values if not isinstance(v, bool))
    fail("E0206", f"`{op}` joins true and false; this is {describe(wrong)}", expr.span)


def _is_held_mask(value: Known) -> bool:
    """A mask before anyone knows the rows it is about."""
    if isinstance(value, DefinitionFunction):
        return value.kind == "mask"
    return isinstance(value, Joined)


def _is_truths(value: Known) -> bool:
    return isinstance(value, Tensor) and value.type.dtype == "bool"


def _joined(op: Logical, values: Sequence[Known], expr: Operation) -> Joined:
    """Masks to be joined when their rows are known. `a & b` joined with `c` is one of
    three: a chain of thousands is not nested thousands deep.
    """
    masks: list[MaskLike] = []
    for value in values:
        # any function may pass: what is no mask is told where it is expanded
        if not isinstance(value, MaskLike):
            fail("E0601", f"{describe(value)} is no mask", expr.span)
        masks.append(value)
    head = masks[0]
    if isinstance(head, Joined) and head.op == op != "not":
        return Joined(op, (*head.parts, *masks[1:]))
    return Joined(op, tuple(masks))


def compare(
    context: Context, op: str, left: Known, right: Known, expr: tree.Compare
) -> Known:
    """One comparison, or membership in a list."""
    if op == "in":
        if not isinstance(right, tuple):
            title = f"`in` looks into a list, not into {describe(right)}"
            fail("E0206", title, expr.span)
        # item by item, so that each may be another kind of value
        return any(compare(context, "==", left, item, expr) for item in right)
    alike = op in ("==", "!=")
    # `x == none` is never an error, whatever `x` is
    if alike and (left is None or right is None):
        return (left is right) == (op == "==")
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _compare_tensors(context, op, left, right, expr)
    if isinstance(left, Dim) and isinstance(right, Dim):
        return _of_dims(op, left, right, expr)
    if isinstance(left, Number) and isinstance(right, Number):
        return _of_fractions(op, left, right, expr)
    # Anything else is equal or not, and has no order.
    if not alike:
        title = f"`{op}` has no meaning between {describe(left)} and {describe(right)}"
        fail("E0206", title, expr.span)
    return (_plain(left) == _plain(right)) == (op == "==")


def _compare_tensors(
    context: Context, op: str, left: Known, right: Known, expr: tree.Compare
) -> Tensor:
    a, b = pair(context, left, right, expr.span)
    if a.type.dtype == "bool":
        title = "true and false are joined with `&`, `|` and `not`, not compared"
        fail("E0206", title, expr.span)
    compared = ops.Compare(COMPARED[op])
    return nodes.add(context, compared, [a, b], expr.span, word=op)[0]


def _of_fractions(op: str, left: Number, right: Number, expr: Operation) -> bool:
    a, b = numbers.known(left), numbers.known(right)
    if a is None or b is None:
        raise NeedsValue(numbers.symbols(left) | numbers.symbols(right), expr.span)
    return bool(STATIC[op](a, b))


def _plain(value: Known) -> object:
    """What two values are compared by: functions by name and options, wherever they
    were written.
    """
    match value:
        case BlockFunction():
            return value.kind, value.name, _by_name(value.given)
        case DefinitionFunction() | WordFunction():
            given = {name: _plain(v) for name, v in value.given.items()}
            return value.kind, value.name, _by_name(given)
        case Picked(word):
            return word
    return value


def _by_name(options: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple((name, options[name]) for name in sorted(options))


def _of_dims(op: str, left: Dim, right: Dim, expr: Operation) -> bool:
    # `n + 1 > n` is decided for every `n`, by what is left of the difference
    difference = left - right
    if difference.number is None:
        raise NeedsValue(difference.symbols(), expr.span)
    return bool(STATIC[op](difference.number, 0))
