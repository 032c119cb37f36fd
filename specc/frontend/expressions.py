"""Evaluate expressions to compile-time values, or to graph nodes if an operand is a tensor."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from specc.diagnostics.diagnostic import Span, raise_error
from specc.frontend.elaboration_context import Context, Env
from specc.frontend.elaboration_state import OPERATION_COST, record_value
from specc.frontend.mask_and_bias_definitions import (
    index_with_index_variables,
    uses_index_variables,
)
from specc.frontend.name_lookup import resolve_name
from specc.frontend.node_builder import add_op
from specc.frontend.operators import (
    apply_arithmetic,
    apply_comparison,
    apply_logical,
    apply_negation,
)
from specc.frontend.spec_values import (
    POISON,
    AlreadyReportedError,
    ChoiceValue,
    EvalResult,
    Record,
    RuntimeNumber,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    describe_value,
    get_first_result,
)
from specc.frontend.weight_sharing import fill_placeholders
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast
from specc.syntax.ast import flatten_binary_chain

NAMES_PER_STEP = 64
"""Number of copied names that together count as one elaboration step."""


def evaluate_expression(context: Context, expr: ast.Expr, env: Env) -> EvalResult:
    """Evaluate an expression. Raise SpeccError, or AlreadyReportedError for a reported error."""
    context.count_steps(expr.span)
    # the parser creates only these node classes, so a KeyError is a bug in specc
    value = EXPRESSION_EVALUATORS[type(expr)](context, expr, env)
    if value is POISON:
        raise AlreadyReportedError
    # messages show the expression that last read a tensor, e.g. `y` for `y = x; f(y)`
    if isinstance(value, Tensor) and expr.span:
        return Tensor(value.value, expr.span)
    return value


def evaluate_value(context: Context, expr: ast.Expr, env: Env) -> SpecValue:
    """Evaluate an expression and return its first result."""
    return get_first_result(evaluate_expression(context, expr, env))


def require_integer(value: SpecValue, description: str, span: Span | None) -> int:
    """Return `value` as an int. Raise E0203, or UnresolvedValueError for a symbol."""
    if isinstance(value, RuntimeNumber):
        raise UnresolvedValueError(value.symbols, span)
    if not isinstance(value, Dim):
        raise_error("E0203", f"{description} must be an integer, got {describe_value(value)}", span)
    if value.number is None:
        raise UnresolvedValueError(value.symbols(), span)
    return value.number


def evaluate_condition(context: Context, expr: ast.Expr, env: Env, description: str) -> bool:
    """Evaluate a compile-time condition. Raise E0207 for a tensor, and E0203 for other types."""
    value = evaluate_value(context, expr, env)
    if isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        raise_error(
            "E0207",
            f"{description} must be known at compile time, but this depends on an input",
            expr.span,
            f"this is {describe_value(value)}",
            helps=["to select between tensors at run time write `where(condition, a, b)`"],
        )
    title = f"{description} must be true or false, got {describe_value(value)}"
    raise_error("E0203", title, expr.span)


def _evaluate_number(context: Context, expr: ast.NumberLiteral, env: Env) -> Dim | float:
    # an integer literal consists only of digits, so `1e3` is a float
    return parse_number_literal(expr.text) if expr.text.isdigit() else float(expr.text)


@lru_cache(maxsize=1024)
def parse_number_literal(text: str) -> Dim:
    """Parse an integer literal."""
    return Dim.from_value(int(text))


def _evaluate_text(context: Context, expr: ast.TextLiteral, env: Env) -> str:
    return fill_placeholders(context, expr.value, env, expr.span)


def _evaluate_name(context: Context, expr: ast.Name, env: Env) -> EvalResult:
    value = resolve_name(context, expr, env)
    record_value(expr.span, value)
    return value


def _evaluate_call(context: Context, expr: ast.Call, env: Env) -> EvalResult:
    value = context.evaluator.call(context, expr, env)
    record_value(expr.function.span, value)
    return value


def _evaluate_unary(context: Context, expr: ast.Unary, env: Env) -> SpecValue:
    value = evaluate_value(context, expr.operand, env)
    context.scope = env.scope
    if expr.op == "-":
        return apply_negation(context, value, expr)
    return apply_logical(context, "not", [value], expr)


def _evaluate_binary(context: Context, expr: ast.Binary, env: Env) -> SpecValue:
    """Evaluate a chain of binary operators iteratively, because it may have thousands of terms."""
    leftmost, operations = flatten_binary_chain(expr)
    try:
        value = evaluate_value(context, leftmost, env)
    except AlreadyReportedError:  # also report errors in the right operands
        for operation in operations:
            evaluate_value(context, operation.right, env)
        raise
    for operation in operations:
        context.count_steps(operation.span, OPERATION_COST)
        value = _apply_binary(
            context, operation, value, evaluate_value(context, operation.right, env), env
        )
    return value


def _apply_binary(
    context: Context, expr: ast.Binary, left: SpecValue, right: SpecValue, env: Env
) -> SpecValue:
    context.scope = env.scope
    if expr.op in ("&", "|"):
        return apply_logical(context, "&" if expr.op == "&" else "|", [left, right], expr)
    result = apply_arithmetic(context, expr.op, left, right, expr)
    if isinstance(result, Tensor) and expr.span:
        return Tensor(result.value, expr.span)
    return result


def _evaluate_comparison(context: Context, expr: ast.Compare, env: Env) -> SpecValue:
    values = [_evaluate_comparison_operand(context, o, expr.operands, env) for o in expr.operands]
    context.scope = env.scope
    result: SpecValue = None
    # `0 <= i - j < n` is evaluated as a conjunction of two comparisons
    for n, (op, (left, right)) in enumerate(zip(expr.ops, pairwise(values), strict=True)):
        comparison = apply_comparison(context, op, left, right, expr)
        result = apply_logical(context, "&", [result, comparison], expr) if n else comparison
    return result


def _evaluate_comparison_operand(
    context: Context, expr: ast.Expr, operands: tuple[ast.Expr, ...], env: Env
) -> SpecValue:
    """Evaluate an operand of a comparison. A name compared with a choice is a choice value."""
    # the name `gru` in `kind == gru` or `kind in [gru, lstm]`, where `kind: choice(gru | lstm)`
    if isinstance(expr, ast.Name | ast.ListLiteral):
        names = (o for o in operands if isinstance(o, ast.Name) and o is not expr)
        for value in (resolve_name(context, name, env, is_quiet=True) for name in names):
            if isinstance(value, ChoiceValue):
                return _evaluate_choice_value(expr, value, context, env)
    return evaluate_value(context, expr, env)


def _evaluate_choice_value(
    expr: ast.Expr, choice: ChoiceValue, context: Context, env: Env
) -> SpecValue:
    match expr:
        case ast.ListLiteral(items=items):
            return tuple(_evaluate_choice_value(item, choice, context, env) for item in items)
        case ast.Name(path=path) if path in choice.allowed_values:
            return ChoiceValue(path, choice.allowed_values)
        case ast.Name(path=path) if resolve_name(context, expr, env, is_quiet=True) is POISON:
            title = f"`{path}` is not one of {', '.join(choice.allowed_values)}"
            raise_error("E0203", title, expr.span)
    return evaluate_value(context, expr, env)


def _evaluate_conditional(context: Context, expr: ast.Conditional, env: Env) -> EvalResult:
    return evaluate_expression(context, select_conditional_branch(context, expr, env), env)


def select_conditional_branch(context: Context, expr: ast.Expr, env: Env) -> ast.Expr:
    """Return the unevaluated branch of `a if c else b`, or any other expression unchanged."""
    while isinstance(expr, ast.Conditional):
        is_true = evaluate_condition(context, expr.condition, env, "the condition of `if`")
        expr = expr.then if is_true else expr.otherwise
    return expr


def _evaluate_list(context: Context, expr: ast.ListLiteral, env: Env) -> SpecValue:
    items = tuple(evaluate_value(context, item, env) for item in expr.items)
    return context.count_value_items(items, expr.span)


def _evaluate_comprehension(context: Context, expr: ast.ListComprehension, env: Env) -> SpecValue:
    iterable = evaluate_value(context, expr.iterable, env)
    items: Iterable[SpecValue]
    if isinstance(iterable, tuple | str):
        items, count = iterable, len(iterable)
    else:
        indices = range(require_integer(iterable, "the range of `for`", expr.iterable.span))
        items, count = map(Dim.from_value, indices), len(indices)
    values: list[SpecValue] = []
    context.count_list_items(count, expr.iterable.span)  # count items before they are created
    for item in items:
        # each iteration copies all names in scope, and there may be many names
        context.count_steps(expr.span, 1 + len(env.names) // NAMES_PER_STEP)
        inner_env = replace(env, names={**env.names, expr.variable: item})
        with context.weights.sharing.push_call(expr):
            values.append(evaluate_value(context, expr.item, inner_env))
    return context.count_value_items(tuple(values), expr.span, count)


def _evaluate_record(context: Context, expr: ast.RecordLiteral, env: Env) -> SpecValue:
    fields = {f.name: evaluate_value(context, f.value, env) for f in expr.fields}
    return context.count_value_items(Record(fields), expr.span)


def _evaluate_index(context: Context, expr: ast.Index, env: Env) -> SpecValue:
    base = evaluate_value(context, expr.base, env)
    if isinstance(base, tuple | str):
        return _index_list(context, tuple(base), expr, env)
    if not isinstance(base, Tensor):
        raise_error("E0203", f"{describe_value(base)} cannot be indexed", expr.span)
    # in a definition, `keep[j]` reads `keep` at an index variable; elsewhere `j` is a regular name
    if uses_index_variables(expr, env):
        return index_with_index_variables(context, base, expr, env)
    return _index_tensor(context, base, expr, env)


def _index_list(
    context: Context, base: tuple[SpecValue, ...], expr: ast.Index, env: Env
) -> SpecValue:
    item = expr.items[0]
    if len(expr.items) != 1 or isinstance(item, ast.Slice | ast.EllipsisDims):
        raise_error("E0203", "a list takes one index", expr.span)
    n = require_integer(evaluate_value(context, item, env), "an index", item.span)
    if not -len(base) <= n < len(base):
        title = f"index {n} is out of range for a list of length {len(base)}"
        raise_error("E0208", title, item.span)
    return base[n]


def _index_tensor(context: Context, base: Tensor, expr: ast.Index, env: Env) -> Tensor:
    """Index a tensor, as in `x[:, 0]` or `x[..., a:b]`, where `...` stands for any number of
    axes.
    """
    value, axis = base, 0
    for item in _expand_ellipsis(base, expr):
        if isinstance(item, ast.Slice):
            value = _slice_axis(context, value, axis, item, env, expr.span)
            axis += 1  # a slice keeps its axis, and an index removes its axis
        elif _is_new_axis(item):
            value = add_op(context, ops.Insert(axis), value, span=expr.span, scope=env.scope)
            axis += 1
        else:
            value = _select_position(context, value, axis, item, env, expr.span)
    return value


def _expand_ellipsis(base: Tensor, expr: ast.Index) -> list[ast.Expr | ast.Slice]:
    """Replace `...` in indices with full slices. Raise E0208 for too many indices or two `...`."""
    ellipses = sum(isinstance(item, ast.EllipsisDims) for item in expr.items)
    if ellipses > 1:
        raise_error("E0208", "`...` may occur once in an index", expr.span)
    new_axes = sum(_is_new_axis(item) for item in expr.items)
    count, rank = len(expr.items) - ellipses - new_axes, len(base.shape)
    if count > rank:
        title = f"too many indices: {count} for {describe_value(base)} with {rank} axes"
        raise_error("E0208", title, expr.span)
    full_slices: list[ast.Expr | ast.Slice] = [ast.Slice()] * (rank - count)
    item_lists = ([i] if not isinstance(i, ast.EllipsisDims) else full_slices for i in expr.items)
    return [item for items in item_lists for item in items]


def _is_new_axis(item: ast.Expr | ast.Slice | ast.EllipsisDims) -> bool:
    """Return True if an index is the literal `none`, which inserts an axis."""
    return isinstance(item, ast.Name) and item.path == "none"


def _select_position(
    context: Context, value: Tensor, axis: int, item: ast.Expr, env: Env, span: Span | None
) -> Tensor:

    index = evaluate_value(context, item, env)
    if isinstance(index, Tensor):
        return _gather_position(context, value, axis, index, env.scope, span)
    if not isinstance(index, Dim):
        raise_error("E0208", f"an index must be an integer, got {describe_value(index)}", item.span)
    length = value.shape[axis]
    if index.number is not None and index.number < 0:
        # `Last` does not read the size of the axis, which changes during generation
        if index.number == -1:
            return add_op(context, ops.Last(axis), value, span=span, scope=env.scope)
        index = length + index
    return add_op(context, ops.Index(axis, index), value, span=span, scope=env.scope)


def _gather_position(
    context: Context, x: Tensor, axis: int, index: Tensor, scope: str, span: Span | None
) -> Tensor:
    """Select position `index` along an axis and remove the axis. Raise E0208 unless `index` is an
    integer scalar. As in `gather`, an index out of range is a run-time error.
    """
    if index.shape or index.type.dtype not in ("i64", "i32"):
        helps = ["`gather(x, ids, axis=…)` takes several indices"]
        title = f"an index must be an integer scalar, got {describe_value(index)}"
        raise_error("E0208", title, index.span, helps=helps)
    ids = index
    # an index int[*leading, 1] selects the same position for each index of the leading axes
    for leading_axis, length in enumerate((*x.shape[:axis], Dim.from_value(1))):
        for op in (ops.Insert(leading_axis), ops.Expand(leading_axis, length)):
            ids = add_op(context, op, ids, span=span, scope=scope)
    selected = add_op(context, ops.Gather(axis), x, ids, span=span, scope=scope)
    return add_op(context, ops.Squeeze(axis), selected, span=span, scope=scope)


def _evaluate_slice_end(context: Context, end: ast.Expr, length: Dim, env: Env) -> Dim:
    """Evaluate the start or stop of a slice. A negative bound counts from the end of the axis."""
    bound = evaluate_value(context, end, env)
    if not isinstance(bound, Dim):
        title = f"a slice must have integer bounds, not {describe_value(bound)}"
        raise_error("E0208", title, end.span)
    # as in Python, negative bounds count from the end; the sign of a symbolic `-n` is unknown, so
    # the minus sign in the source decides
    has_minus_sign = isinstance(end, ast.Unary) and (bound.number or 0) == 0
    is_negative = bound.number is not None and bound.number < 0
    return length + bound if has_minus_sign or is_negative else bound


def _slice_axis(
    context: Context, value: Tensor, axis: int, item: ast.Slice, env: Env, span: Span | None
) -> Tensor:
    step = _evaluate_slice_step(context, item, env)
    length = value.shape[axis]
    # a full slice, as in `x[:, 0]`, needs no node
    if item.start is None and item.stop is None and step == 1:
        return value
    start, stop = (
        default if end is None else _evaluate_slice_end(context, end, length, env)
        for end, default in ((item.start, Dim.from_value(0)), (item.stop, length))
    )
    op = ops.Slice(axis, start, stop) if step == 1 else ops.StridedSlice(axis, start, stop, step)
    return add_op(context, op, value, span=span, scope=env.scope)


def _evaluate_slice_step(context: Context, item: ast.Slice, env: Env) -> Dim:
    """Evaluate the step of `a:b:s`. Raise E0327 for a step that is not positive."""
    if item.step is None:
        return Dim.from_value(1)
    step = evaluate_value(context, item.step, env)
    if not isinstance(step, Dim):
        title = f"the step of a slice must be an integer, got {describe_value(step)}"
        raise_error("E0208", title, item.step.span)
    if step.number is not None and step.number < 1:
        helps = ["`flip(x, axis=…)` reverses an axis: `flip(x, axis=1)[:, ::2]`"]
        title = f"the step of a slice must be at least 1, got {step}"
        raise_error("E0327", title, item.step.span, helps=helps)
    return step


EXPRESSION_EVALUATORS: dict[type, Callable[[Context, Any, Env], EvalResult]] = {
    ast.NumberLiteral: _evaluate_number,
    ast.TextLiteral: _evaluate_text,
    ast.Name: _evaluate_name,
    ast.Call: _evaluate_call,
    ast.Unary: _evaluate_unary,
    ast.Binary: _evaluate_binary,
    ast.Compare: _evaluate_comparison,
    ast.Conditional: _evaluate_conditional,
    ast.ListLiteral: _evaluate_list,
    ast.ListComprehension: _evaluate_comprehension,
    ast.RecordLiteral: _evaluate_record,
    ast.Index: _evaluate_index,
}
