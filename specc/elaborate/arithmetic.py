"""Operators: on static values now, on tensors as nodes, on masks as combinations for later."""

import operator
from collections.abc import Callable
from typing import Any

from specc.elaborate import nodes, numbers
from specc.elaborate.context import Context
from specc.elaborate.needs import NeedsValue
from specc.elaborate.numbers import is_number
from specc.elaborate.values import Function, Joined, Picked, Tensor, Unknown, describe
from specc.ir import ops
from specc.ir.dim import Dim, DimError, DimLimit, exact, floor, remainder
from specc.ir.signature import letter
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

TENSORS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow"}
COMPARED = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
STATIC = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def arithmetic(context: Context, op: str, left: Any, right: Any, expr: Any) -> Any:
    """`left op right` for `+ - * / // % **`."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _of_tensors(context, op, left, right, expr)
    if is_number(left) and is_number(right):
        return _of_numbers(context, op, left, right, expr)
    if isinstance(left, tuple) and isinstance(right, tuple) and op == "+":
        return context.counted(left + right, expr.span)
    title = f"`{op}` has no meaning between {describe(left)} and {describe(right)}"
    fail("E0206", title, expr.span)


def _of_numbers(context: Context, op: str, left: Any, right: Any, expr: Any) -> Any:
    try:
        if isinstance(left, Dim) and isinstance(right, Dim):
            if op == "**" and right.number is not None and 0 <= right.number <= 64:
                return left**right.number
            if op in WHOLE:
                return WHOLE[op](left, right)
        return numbers.arithmetic(context, TENSORS[op], left, right, expr.span)
    except DimLimit as error:
        fail("E0309", str(error), expr.span, _shown(expr, left, right))
    except DimError as error:
        fail("E0310", str(error), expr.span, _shown(expr, left, right), notes=_origins(expr, left, right),
             helps=_mends(op, left, right))  # fmt: skip
    except (ZeroDivisionError, OverflowError, ValueError):
        fail("E0310", f"{describe(left)} {op} {describe(right)} has no value", expr.span)


def _origins(expr: Any, left: Dim, right: Dim) -> list[str]:
    """`d` is 500, from `config.json:9:18`: where each side's number was given."""
    sides = ((expr.left, left), (expr.right, right))
    known = [(e, v.origin) for e, v in sides if e.span and v.origin and v.origin.span]
    return [f"`{e.span.text}` is given in {o.span}" for e, o in known if not _same(e.span, o.span)]


def _same(a: Span, b: Span | None) -> bool:
    return b is not None and a.source is b.source and a.start == b.start


def _mends(op: str, left: Dim, right: Dim) -> list[str]:
    """What divides, for a quotient that leaves a remainder."""
    whole, part = left.number, right.number
    if op != "/" or not whole or not part:
        return []
    near = sorted((n for n in range(1, min(abs(whole), 4096) + 1) if whole % n == 0), key=lambda n: abs(n - part))[:2]
    return [f"near {part}, these divide {whole}: {', '.join(map(str, sorted(near)))}", "to round down write `//`"]


def _shown(expr: Any, left: Dim, right: Dim) -> str:
    """`d is 500, heads is 12`, where the names do not already say so."""
    sides = ((expr.left, left), (expr.right, right))
    known = [f"`{e.span.text}` is {v}" for e, v in sides if e.span and e.span.text.strip() != str(v)]
    return ", ".join(known)


def _of_tensors(context: Context, op: str, left: Any, right: Any, expr: Any) -> Tensor:
    left, right = pair(context, left, right, expr.span)
    if op == "/" and letter(left.type.dtype) == "i":
        fail("E0206", "whole numbers are divided with `//`, which rounds down", expr.span)
    return nodes.add(context, ops.Arith(TENSORS[op]), [left, right], expr.span, word=op, at=expr.op_span)[0]


def pair(context: Context, left: Any, right: Any, span: Span | None) -> tuple[Tensor, Tensor]:
    """Two operands as tensors of one element type; a static number takes the type of the other."""
    if not isinstance(left, Tensor):
        return as_tensor(context, left, right.type.dtype, span), right
    if not isinstance(right, Tensor):
        return left, as_tensor(context, right, left.type.dtype, span)
    a, b = letter(left.type.dtype), letter(right.type.dtype)
    if a != b:
        helps = ["cast(x, to=float) makes numbers with a fraction of whole numbers, and of true and false 1 and 0"]
        fail("E0206", f"{describe(left)} and {describe(right)} hold different kinds of values", span, helps=helps)
    return left, right


def as_tensor(context: Context, value: Any, dtype: str, span: Span | None) -> Tensor:
    """A static number as a tensor of that element type; a tensor as it is."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool) and dtype == "bool":
        return nodes.constant(context, value, dtype, span)
    if not is_number(value) or dtype == "bool":
        fail("E0206", f"{describe(value)} cannot be used with a tensor here", span)
    if letter(dtype) == "i":
        if isinstance(value, float):
            fail("E0206", f"{value:g} has a fraction, the tensor holds whole numbers", span)
        if isinstance(value, Unknown):
            if not value.whole:
                fail("E0206", f"`{value.text}` may have a fraction, the tensor holds whole numbers", span)
            return nodes.one(context, ops.Cast(dtype), Tensor(value.value), span=span)
        if value.number is None:
            return nodes.one(context, ops.Size(value), span=span)
        return nodes.constant(context, value.number, dtype, span)
    return numbers.as_scalar(context, value, dtype, span)


def negate(context: Context, value: Any, expr: Any) -> Any:
    """`-value`."""
    if isinstance(value, Tensor):
        return nodes.one(context, ops.Pointwise("neg"), value, span=expr.span)
    if isinstance(value, Unknown):
        return numbers.function(context, "neg", value, expr.span)
    if is_number(value):
        return -value
    fail("E0206", f"{describe(value)} has no negative", expr.span)


def logic(context: Context, op: str, values: list[Any], expr: Any) -> Any:
    """`&`, `|`, `not`, of static truths, of tensors, of masks."""
    if all(isinstance(v, bool) for v in values):
        return not values[0] if op == "not" else (all(values) if op == "&" else any(values))
    if any(isinstance(v, Joined) or (isinstance(v, Function) and v.kind == "mask") for v in values):
        for value in values:
            if not (isinstance(value, Joined | bool | Tensor | Function)):
                fail("E0601", f"{describe(value)} is no mask", expr.span)
        head = values[0].parts if isinstance(values[0], Joined) and values[0].op == op != "not" else (values[0],)
        return Joined(op, (*head, *values[1:]))
    if all(isinstance(v, bool) or (isinstance(v, Tensor) and v.type.dtype == "bool") for v in values):
        made = {"&": ops.And(), "|": ops.Or(), "not": ops.Not()}[op]
        operands = [as_tensor(context, v, "bool", expr.span) for v in values]
        return nodes.add(context, made, operands, expr.span, word=op)[0]
    wrong = next(v for v in values if not isinstance(v, bool))
    fail("E0206", f"`{op}` joins true and false; this is {describe(wrong)}", expr.span)


def compare(context: Context, op: str, left: Any, right: Any, expr: Any) -> Any:
    """One comparison, or membership in a list."""
    if op == "in":
        if not isinstance(right, tuple):
            fail("E0206", f"`in` looks into a list, not into {describe(right)}", expr.span)
        return any(compare(context, "==", left, item, expr) for item in right)
    if (left is None or right is None) and op in ("==", "!="):
        return (left is right) == (op == "==")
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        a, b = pair(context, left, right, expr.span)
        if a.type.dtype == "bool":
            fail("E0206", "true and false are joined with `&`, `|` and `not`, not compared", expr.span)
        return nodes.add(context, ops.Compare(COMPARED[op]), [a, b], expr.span, word=op)[0]
    if isinstance(left, Dim) and isinstance(right, Dim):
        return _of_dims(op, left, right, expr)
    if is_number(left) and is_number(right):
        return _of_fractions(op, left, right, expr)
    if op not in ("==", "!="):
        fail("E0206", f"`{op}` has no meaning between {describe(left)} and {describe(right)}", expr.span)
    return (_plain(left) == _plain(right)) == (op == "==")


def _of_fractions(op: str, left: Any, right: Any, expr: Any) -> bool:
    a, b = numbers.known(left), numbers.known(right)
    if a is None or b is None:
        raise NeedsValue(numbers.symbols(left) | numbers.symbols(right), expr.span)
    return bool(STATIC[op](a, b))


def _plain(value: Any) -> Any:
    """What two values are compared by: functions by name and options, wherever they were written."""
    if isinstance(value, Function):
        given = tuple(sorted((name, _plain(v)) for name, v in value.given.items()))
        return value.kind, value.name, tuple(map(_plain, value.args)), given
    return value.word if isinstance(value, Picked) else value


def _of_dims(op: str, left: Dim, right: Dim, expr: Any) -> bool:
    difference = left - right
    if difference.number is None:
        raise NeedsValue(difference.symbols(), expr.span)
    return bool(STATIC[op](difference.number, 0))
