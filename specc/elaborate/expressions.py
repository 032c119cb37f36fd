"""What an expression stands for: static where everything in it is, nodes of the graph
where a tensor is.

`evaluate` never guesses types: the kind of the left and right side decides which
operation is meant.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from specc.elaborate import nodes
from specc.elaborate.arithmetic import arithmetic, compare, logic, negate
from specc.elaborate.budget import OPERATING
from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.dynamic_index import gather_position
from specc.elaborate.lookup import lookup
from specc.elaborate.names import filled
from specc.elaborate.needs import NeedsValue
from specc.elaborate.noted import note
from specc.elaborate.rows import read_rows, reads_rows
from specc.elaborate.values import (
    POISON,
    Evaluated,
    Known,
    Picked,
    Record,
    Tensor,
    Unknown,
    describe,
    first,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.lang import tree
from specc.lang.walk import chain
from specc.text.diagnostic import fail
from specc.text.source import Span

NAMES_A_STEP = 64
"""Names in sight that are copied in the time of one step."""


def evaluate(context: Context, expr: tree.Expr, env: Env) -> Evaluated:
    """The value of an expression. Raises Failed with what is wrong, or Poisoned when
    that was said before.
    """
    context.work(expr.span)
    # the parser makes no other classes, so that a missing rule is a fault of ours
    value = RULES[type(expr)](context, expr, env)
    if value is POISON:
        raise Poisoned
    # a tensor is called by the text it was last read from: in `y = x; f(y)` a
    # message about the operand shows `y`, not what first made it
    if isinstance(value, Tensor) and expr.span:
        return Tensor(value.value, expr.span)
    return value


def plain(context: Context, expr: tree.Expr, env: Env) -> Known:
    """As `evaluate`, and of several results the first."""
    return first(evaluate(context, expr, env))


def number_of(value: Known, what: str, span: Span | None) -> int:
    """A whole number that decides structure. NeedsValue while it is a symbol."""
    if isinstance(value, Unknown):
        raise NeedsValue(value.symbols, span)
    if not isinstance(value, Dim):
        fail("E0203", f"{what} is a whole number, not {describe(value)}", span)
    if value.number is None:
        raise NeedsValue(value.symbols(), span)
    return value.number


def truth(context: Context, expr: tree.Expr, env: Env, what: str) -> bool:
    """A static condition."""
    value = plain(context, expr, env)
    if isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        fail(
            "E0207",
            f"{what} is decided while compiling, this one depends on the input",
            expr.span,
            f"this is {describe(value)}",
            helps=[
                "to choose between two tensors at run time write `where(condition, a, b)`"
            ],
        )
    fail("E0203", f"{what} is true or false, not {describe(value)}", expr.span)


def _num(context: Context, expr: tree.Num, env: Env) -> Dim | float:
    # `1e3` is a float, though whole: only digits alone are a length
    if any(c in expr.text for c in ".eE"):
        return float(expr.text)
    return whole_number(expr.text)


@lru_cache(maxsize=1024)
def whole_number(text: str) -> Dim:
    """A number as it is written."""
    return Dim.of(int(text))


def _text(context: Context, expr: tree.Text, env: Env) -> str:
    return filled(context, expr.value, env, expr.span)


def _name(context: Context, expr: tree.Name, env: Env) -> Evaluated:
    value = lookup(context, expr, env)
    note(expr.span, value)
    return value


def _call(context: Context, expr: tree.Call, env: Env) -> Evaluated:
    value = context.evaluator.call(context, expr, env)
    note(expr.function.span, value)
    return value


def _unary(context: Context, expr: tree.Unary, env: Env) -> Known:
    value = plain(context, expr.operand, env)
    context.scope = env.scope
    if expr.op == "-":
        return negate(context, value, expr)
    return logic(context, "not", [value], expr)


def _binary(context: Context, expr: tree.Binary, env: Env) -> Known:
    """A loop along the left operands: a sum of thousands of terms is no deeper than one of two."""
    leftmost, operations = chain(expr)
    try:
        value = plain(context, leftmost, env)
    except Poisoned:  # said before; what is wrong on the right is still to be said
        for operation in operations:
            plain(context, operation.right, env)
        raise
    for operation in operations:
        context.work(operation.span, OPERATING)
        value = _operated(
            context, operation, value, plain(context, operation.right, env), env
        )
    return value


def _operated(
    context: Context, expr: tree.Binary, left: Known, right: Known, env: Env
) -> Known:
    context.scope = env.scope
    if expr.op == "&":
        return logic(context, "&", [left, right], expr)
    if expr.op == "|":
        return logic(context, "|", [left, right], expr)
    result = arithmetic(context, expr.op, left, right, expr)
    if isinstance(result, Tensor) and expr.span:
        return Tensor(result.value, expr.span)
    return result


def _compare(context: Context, expr: tree.Compare, env: Env) -> Known:
    values = [_operand(context, o, expr.operands, env) for o in expr.operands]
    context.scope = env.scope
    result: Known = None
    # `0 <= i - j < n` is two comparisons joined
    for n, op in enumerate(expr.ops):
        holds = compare(context, op, values[n], values[n + 1], expr)
        result = holds if n == 0 else logic(context, "&", [result, holds], expr)
    return result


def _operand(
    context: Context, expr: tree.Expr, others: tuple[tree.Expr, ...], env: Env
) -> Known:
    """One side of a comparison. A bare word beside a choice is one of its words."""
    # `kind == gru` and `kind in [gru, lstm]`, where `kind: choice(gru | lstm)`
    if isinstance(expr, tree.Name | tree.ListOf):
        for other in others:
            if isinstance(other, tree.Name) and other is not expr:
                known = lookup(context, other, env, quiet=True)
                if isinstance(known, Picked):
                    return _words(expr, known, context, env)
    return plain(context, expr, env)


def _words(expr: tree.Expr, choice: Picked, context: Context, env: Env) -> Known:
    if isinstance(expr, tree.ListOf):
        return tuple(_words(item, choice, context, env) for item in expr.items)
    if isinstance(expr, tree.Name) and expr.path in choice.words:
        return Picked(expr.path, choice.words)
    if isinstance(expr, tree.Name) and lookup(context, expr, env, quiet=True) is POISON:
        fail("E0203", f"`{expr.path}` is none of {', '.join(choice.words)}", expr.span)
    return plain(context, expr, env)


def _choice(context: Context, expr: tree.Choice, env: Env) -> Evaluated:
    return evaluate(context, decided(context, expr, env), env)


def decided(context: Context, expr: tree.Expr, env: Env) -> tree.Expr:
    """The side of `a if c else b` that counts, unevaluated; any other expression itself."""
    while isinstance(expr, tree.Choice):
        taken = truth(context, expr.condition, env, "the condition of `if`")
        expr = expr.then if taken else expr.otherwise
    return expr


def _list(context: Context, expr: tree.ListOf, env: Env) -> Known:
    return context.counted(
        tuple(plain(context, item, env) for item in expr.items), expr.span
    )


def _list_for(context: Context, expr: tree.ListFor, env: Env) -> Known:
    over = plain(context, expr.over, env)
    items: Iterable[Known]
    if isinstance(over, tuple):
        items, count = over, len(over)
    else:
        turns = range(number_of(over, "what `for` runs over", expr.over.span))
        items, count = map(Dim.of, turns), len(turns)
    made: list[Known] = []
    context.making(count, expr.over.span)  # before they take memory
    for item in items:
        # each turn copies the names in sight, which a long block has many of
        context.work(expr.span, 1 + len(env.names) // NAMES_A_STEP)
        inner = replace(env, names={**env.names, expr.variable: item})
        with context.sharing.step(expr):
            made.append(plain(context, expr.item, inner))
    return context.counted(tuple(made), expr.span, count)


def _record(context: Context, expr: tree.RecordOf, env: Env) -> Known:
    return context.counted(
        Record({f.name: plain(context, f.value, env) for f in expr.fields}), expr.span
    )


def _index(context: Context, expr: tree.Index, env: Env) -> Known:
    base = plain(context, expr.base, env)
    if isinstance(base, tuple):
        return _item(context, base, expr, env)
    if not isinstance(base, Tensor):
        fail("E0203", f"{describe(base)} cannot be indexed", expr.span)
    # inside a definition `keep[j]` reads a grid; outside it `j` is a name like others
    if reads_rows(expr, env):
        return read_rows(context, base, expr, env)
    return _rows(context, base, expr, env)


def _item(
    context: Context, base: tuple[Known, ...], expr: tree.Index, env: Env
) -> Known:
    item = expr.items[0]
    if len(expr.items) != 1 or isinstance(item, tree.Slice | tree.Rest):
        fail("E0203", "a list takes one index", expr.span)
    n = number_of(plain(context, item, env), "an index", item.span)
    if not -len(base) <= n < len(base):
        fail("E0208", f"there is no item {n} in a list of {len(base)}", item.span)
    return base[n]


def _rows(context: Context, base: Tensor, expr: tree.Index, env: Env) -> Tensor:
    """`x[:, 0]`, `x[..., a:b]`: each item takes one axis from the left, `...` the ones between."""
    items = list(expr.items)
    rest = [n for n, i in enumerate(items) if isinstance(i, tree.Rest)]
    if len(rest) > 1:
        fail("E0208", "`...` stands once in an index", expr.span)
    new = sum(_is_none(item) for item in items)
    count, rank = len(items) - len(rest) - new, len(base.shape)
    if count > rank:
        title = f"{count} indices for {describe(base)}, which has {rank} axes"
        fail("E0208", title, expr.span)
    if rest:  # so many whole axes as are left
        items[rest[0] : rest[0] + 1] = [tree.Slice()] * (rank - count)
    value, axis = base, 0
    for item in items:
        if isinstance(item, tree.Slice):
            value = _slice(context, value, axis, item, env, expr.span)
            axis += 1  # a row takes its axis away, a slice leaves it
        elif _is_none(item):
            op = ops.Insert(axis)
            value = nodes.one(context, op, value, span=expr.span, scope=env.scope)
            axis += 1
        elif not isinstance(item, tree.Rest):
            value = _row(context, value, axis, item, env, expr.span)
    return value


def _is_none(item: tree.Expr | tree.Slice | tree.Rest) -> bool:
    """Whether an index is `none` as it is written: a new axis of length 1. A config value
    that is none is no index.
    """
    return isinstance(item, tree.Name) and item.path == "none"


def _row(
    context: Context,
    value: Tensor,
    axis: int,
    item: tree.Expr,
    env: Env,
    span: Span | None,
) -> Tensor:
    at = plain(context, item, env)
    if isinstance(at, Tensor):
        return gather_position(
            context, value, axis, at, env=env, index=item.span, span=span
        )
    if not isinstance(at, Dim):
        fail("E0208", f"an index is a whole number, not {describe(at)}", item.span)
    length = value.shape[axis]
    if at.number is not None and at.number < 0:
        # the last row of an axis that still grows has an op of its own: how long the
        # axis is need not be known to find it
        if at.number == -1:
            return nodes.one(context, ops.Last(axis), value, span=span, scope=env.scope)
        at = length + at
    return nodes.one(context, ops.Index(axis, at), value, span=span, scope=env.scope)


def _end(context: Context, end: tree.Expr, length: Dim, env: Env) -> Dim:
    """Where a slice of an axis begins or ends."""
    at = plain(context, end, env)
    if not isinstance(at, Dim):
        title = f"a slice runs between whole numbers, not {describe(at)}"
        fail("E0208", title, end.span)
    # From the end, as Python counts; a length may be a symbol, so this is algebra. What
    # of `-n` is below 0 nobody knows while `n` is a symbol, so what is written counts.
    written = isinstance(end, tree.Unary) and (at.number or 0) == 0
    below = at.number is not None and at.number < 0
    return length + at if written or below else at


def _slice(
    context: Context,
    value: Tensor,
    axis: int,
    item: tree.Slice,
    env: Env,
    span: Span | None,
) -> Tensor:
    step = _step(context, item, env)
    # `x[:, 0]`: the whole axis is no node
    if item.start is None and item.stop is None and step == 1:
        return value
    length = value.shape[axis]
    start = Dim.of(0) if item.start is None else _end(context, item.start, length, env)
    stop = length if item.stop is None else _end(context, item.stop, length, env)
    op: Op = ops.Slice(axis, start, stop)
    if step != 1:
        op = ops.Stride(axis, start, stop, step)
    return nodes.one(context, op, value, span=span, scope=env.scope)


def _step(context: Context, item: tree.Slice, env: Env) -> Dim:
    """The `s` of `a:b:s`. E0327 for one that does not go forward."""
    if item.step is None:
        return Dim.of(1)
    step = plain(context, item.step, env)
    if not isinstance(step, Dim):
        title = f"a slice steps by a whole number, not {describe(step)}"
        fail("E0208", title, item.step.span)
    if step.number is not None and step.number < 1:
        helps = ["`flip(x, axis=…)` turns an axis around: `flip(x, axis=1)[:, ::2]`"]
        title = f"a slice steps forward, by 1 or more, not by {step}"
        fail("E0327", title, item.step.span, helps=helps)
    return step


RULES: dict[type, Callable[[Context, Any, Env], Evaluated]] = {
    tree.Num: _num,
    tree.Text: _text,
    tree.Name: _name,
    tree.Call: _call,
    tree.Unary: _unary,
    tree.Binary: _binary,
    tree.Compare: _compare,
    tree.Choice: _choice,
    tree.ListOf: _list,
    tree.ListFor: _list_for,
    tree.RecordOf: _record,
    tree.Index: _index,
}
