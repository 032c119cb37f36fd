"""Evaluate expressions to compile-time values, or to graph nodes if an operand is a tensor."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from specc.diagnostics.diagnostic import Span, raise_error
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.elaboration_state import OPERATION_COST, record_value
from specc.frontend.mask_and_bias_definitions import (
    index_with_index_variables,
    uses_index_variables,
)
from specc.frontend.name_lookup import resolve_name
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.operators import (
    apply_arithmetic,
    apply_comparison,
    apply_logical,
    apply_negation,
)
from specc.frontend.spec_values import (
    ERROR_VALUE,
    AlreadyReportedError,
    ChoiceValue,
    EvalResult,
    Record,
    RuntimeNumber,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    describe_value,
)
from specc.frontend.weight_sharing import fill_placeholders
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast
from specc.syntax.ast import flatten_binary_chain

NAMES_PER_STEP = 64
"""The number of copied names that together count as one elaboration step."""


def evaluate_expression(expr: ast.Expr, env: LexicalScope) -> EvalResult:
    """Evaluate an expression. Raise SpeccError, or AlreadyReportedError for a reported error."""
    env.context.count_steps(expr.span)
    # the parser creates only these node classes, so a KeyError is a bug in specc
    value = EXPRESSION_EVALUATORS[type(expr)](expr, env)
    if value is ERROR_VALUE:
        raise AlreadyReportedError
    # messages show the expression that last read a tensor, e.g. `y` for `y = x; f(y)`
    if isinstance(value, Tensor) and expr.span:
        return Tensor(value.value, expr.span)
    return value


def require_integer(value: SpecValue, description: str, span: Span | None) -> int:
    """Return `value` as an int. Raise E0203, or UnresolvedValueError for a symbol."""
    if isinstance(value, RuntimeNumber):
        raise UnresolvedValueError(value.symbols, span)
    if not isinstance(value, Dim):
        raise_error("E0203", f"{description} must be an integer, got {describe_value(value)}", span)
    if value.number is None:
        raise UnresolvedValueError(value.symbols(), span)
    return value.number


def evaluate_condition(expr: ast.Expr, env: LexicalScope, description: str) -> bool:
    """Evaluate a compile-time condition. Raise E0207 for a tensor, and E0203 for other types."""
    value = env.evaluate_value(expr)
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


def _evaluate_number(expr: ast.NumberLiteral, env: LexicalScope) -> Dim | float:
    # an integer literal consists only of digits, so `1e3` is a float
    return parse_number_literal(expr.text) if expr.text.isdigit() else float(expr.text)


@lru_cache(maxsize=1024)
def parse_number_literal(text: str) -> Dim:
    """Parse an integer literal."""
    return Dim.from_value(int(text))


def _evaluate_text(expr: ast.StringLiteral, env: LexicalScope) -> str:
    return fill_placeholders(expr.value, env, expr.span)


def _evaluate_name(expr: ast.Name, env: LexicalScope) -> EvalResult:
    value = resolve_name(expr, env)
    record_value(expr.span, value)
    return value


def _evaluate_call(expr: ast.Call, env: LexicalScope) -> EvalResult:
    value = env.context.evaluator.call(expr, env)
    record_value(expr.function.span, value)
    return value


def _start_operation(expr: ast.Expr, env: LexicalScope) -> NodeBuilder:
    """Set the scope of the current statement, and return a node builder for an operator."""
    env.context.scope = env.scope
    return NodeBuilder(env.context, expr.span)


def _evaluate_unary(expr: ast.Unary, env: LexicalScope) -> SpecValue:
    value = env.evaluate_value(expr.operand)
    nodes = _start_operation(expr, env)
    if expr.op == "-":
        return apply_negation(nodes, value)
    return apply_logical(nodes, "not", [value])


def _evaluate_binary(expr: ast.Binary, env: LexicalScope) -> SpecValue:
    """Evaluate a chain of binary operators iteratively, because it may have thousands of terms."""
    leftmost, operations = flatten_binary_chain(expr)
    try:
        value = env.evaluate_value(leftmost)
    except AlreadyReportedError:  # also report errors in the right operands
        for operation in operations:
            env.evaluate_value(operation.right)
        raise
    for operation in operations:
        env.context.count_steps(operation.span, OPERATION_COST)
        value = _apply_binary(operation, value, env.evaluate_value(operation.right), env)
    return value


def _apply_binary(
    expr: ast.Binary, left: SpecValue, right: SpecValue, env: LexicalScope
) -> SpecValue:
    nodes = _start_operation(expr, env)
    if expr.op in ("&", "|"):
        return apply_logical(nodes, "&" if expr.op == "&" else "|", [left, right])
    result = apply_arithmetic(nodes, left, right, expr)
    if isinstance(result, Tensor) and expr.span:
        return Tensor(result.value, expr.span)
    return result


def _evaluate_comparison(expr: ast.Compare, env: LexicalScope) -> SpecValue:
    values = [_evaluate_comparison_operand(o, expr.operands, env) for o in expr.operands]
    nodes = _start_operation(expr, env)
    result: SpecValue = None
    # `0 <= i - j < n` is evaluated as a conjunction of two comparisons
    for n, (op, (left, right)) in enumerate(zip(expr.ops, pairwise(values), strict=True)):
        comparison = apply_comparison(nodes, op, left, right)
        result = apply_logical(nodes, "&", [result, comparison]) if n else comparison
    return result


def _evaluate_comparison_operand(
    expr: ast.Expr, operands: tuple[ast.Expr, ...], env: LexicalScope
) -> SpecValue:
    """Evaluate an operand of a comparison. A name compared with a choice is a choice value."""
    # for a field `kind: choice(gru | lstm)`, the name `gru` in `kind == gru` is a choice value
    if isinstance(expr, ast.Name | ast.ListLiteral):
        names = (o for o in operands if isinstance(o, ast.Name) and o is not expr)
        for value in (resolve_name(name, env, is_quiet=True) for name in names):
            if isinstance(value, ChoiceValue):
                return _evaluate_choice_value(expr, value, env)
    return env.evaluate_value(expr)


def _evaluate_choice_value(expr: ast.Expr, choice: ChoiceValue, env: LexicalScope) -> SpecValue:
    match expr:
        case ast.ListLiteral(items=items):
            return tuple(_evaluate_choice_value(item, choice, env) for item in items)
        case ast.Name(path=path) if path in choice.allowed_values:
            return ChoiceValue(path, choice.allowed_values)
        case ast.Name(path=path) if resolve_name(expr, env, is_quiet=True) is ERROR_VALUE:
            title = f"`{path}` is not one of {', '.join(choice.allowed_values)}"
            raise_error("E0203", title, expr.span)
    return env.evaluate_value(expr)


def _evaluate_conditional(expr: ast.Conditional, env: LexicalScope) -> EvalResult:
    return env.evaluate(select_conditional_branch(expr, env))


def select_conditional_branch(expr: ast.Expr, env: LexicalScope) -> ast.Expr:
    """Return the unevaluated branch of `a if c else b`, or any other expression unchanged."""
    while isinstance(expr, ast.Conditional):
        is_true = evaluate_condition(expr.condition, env, "the condition of `if`")
        expr = expr.then if is_true else expr.otherwise
    return expr


def _evaluate_list(expr: ast.ListLiteral, env: LexicalScope) -> SpecValue:
    items = tuple(env.evaluate_value(item) for item in expr.items)
    return env.context.count_value_items(items, expr.span)


def _evaluate_comprehension(expr: ast.ListComprehension, env: LexicalScope) -> SpecValue:
    iterable = env.evaluate_value(expr.iterable)
    items: Iterable[SpecValue]
    if isinstance(iterable, tuple | str):
        items, count = iterable, len(iterable)
    else:
        indices = range(require_integer(iterable, "the range of `for`", expr.iterable.span))
        items, count = map(Dim.from_value, indices), len(indices)
    values: list[SpecValue] = []
    env.context.count_list_items(count, expr.iterable.span)  # count items before they are created
    for item in items:
        # each iteration copies all names in scope, and there may be many names
        env.context.count_steps(expr.span, 1 + len(env.names) // NAMES_PER_STEP)
        inner_env = replace(env, names={**env.names, expr.variable: item})
        with env.context.weights.sharing.push_call(expr):
            values.append(inner_env.evaluate_value(expr.item))
    return env.context.count_value_items(tuple(values), expr.span, count)


def _evaluate_record(expr: ast.RecordLiteral, env: LexicalScope) -> SpecValue:
    fields = {f.name: env.evaluate_value(f.value) for f in expr.fields}
    return env.context.count_value_items(Record(fields), expr.span)


def _evaluate_index(expr: ast.Index, env: LexicalScope) -> SpecValue:
    base = env.evaluate_value(expr.base)
    if isinstance(base, tuple | str):
        return _index_list(tuple(base), expr, env)
    if not isinstance(base, Tensor):
        raise_error("E0203", f"{describe_value(base)} cannot be indexed", expr.span)
    # in a definition, `keep[j]` reads `keep` at an index variable; elsewhere `j` is a regular name
    if uses_index_variables(expr, env):
        return index_with_index_variables(base, expr, env)
    return _index_tensor(base, expr, env)


def _index_list(base: tuple[SpecValue, ...], expr: ast.Index, env: LexicalScope) -> SpecValue:
    item = expr.items[0]
    if len(expr.items) != 1 or isinstance(item, ast.Slice | ast.EllipsisDims):
        raise_error("E0203", "a list takes one index", expr.span)
    n = require_integer(env.evaluate_value(item), "an index", item.span)
    if not -len(base) <= n < len(base):
        title = f"index {n} is out of range for a list of length {len(base)}"
        raise_error("E0208", title, item.span)
    return base[n]


def _index_tensor(base: Tensor, expr: ast.Index, env: LexicalScope) -> Tensor:
    """Index a tensor, as in `x[:, 0]` or `x[..., a:b]`, where `...` stands for any number of
    axes.
    """
    value, axis = base, 0
    nodes = NodeBuilder(env.context, expr.span, env.scope)
    for item in _expand_ellipsis(base, expr):
        if isinstance(item, ast.Slice):
            value = _slice_axis(nodes, value, axis, item, env)
            axis += 1  # a slice keeps its axis, and an index removes its axis
        elif _is_new_axis(item):
            value = nodes.add_op(ops.Insert(axis), value)
            axis += 1
        else:
            value = _select_position(nodes, value, axis, item, env)
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
    nodes: NodeBuilder, value: Tensor, axis: int, item: ast.Expr, env: LexicalScope
) -> Tensor:
    index = env.evaluate_value(item)
    if isinstance(index, Tensor):
        return _gather_position(nodes, value, axis, index, is_definition=bool(env.pair_indices))
    if not isinstance(index, Dim):
        raise_error("E0208", f"an index must be an integer, got {describe_value(index)}", item.span)
    length = value.shape[axis]
    if index.number is not None and index.number < 0:
        # use `Last`, because it does not read the axis size, which changes during generation
        if index.number == -1:
            return nodes.add_op(ops.Last(axis), value)
        index = length + index
    return nodes.add_op(ops.Index(axis, index), value)


INDEX_HELPS = {
    False: "`gather(x, ids, axis=…)` takes several indices",
    True: "a mask, score or bias indexes tensors by `b`, `h`, `i` and `j` alone; instead of "
    "`keep[j - 1]`, shift the tensor that you pass, as in `pad(keep, before=1)`",
}
"""The help for an index that is not a scalar, inside (True) or outside a definition."""


def _gather_position(
    nodes: NodeBuilder, x: Tensor, axis: int, index: Tensor, is_definition: bool
) -> Tensor:
    """Select position `index` along an axis and remove the axis. Raise E0208 unless `index` is an
    integer scalar. As in `gather`, an index out of range is a run-time error.

    `is_definition`: the index is in a mask, score or bias.
    """
    if index.shape or index.type.dtype not in ("i64", "i32"):
        helps = [INDEX_HELPS[is_definition]]
        title = f"an index must be an integer scalar, got {describe_value(index)}"
        raise_error("E0208", title, index.source_span, helps=helps)
    ids = index
    # an index int[*leading, 1] selects the same position for each index of the leading axes
    for leading_axis, length in enumerate((*x.shape[:axis], Dim.from_value(1))):
        for op in (ops.Insert(leading_axis), ops.Expand(leading_axis, length)):
            ids = nodes.add_op(op, ids)
    selected = nodes.add_op(ops.Gather(axis), x, ids)
    return nodes.add_op(ops.Squeeze(axis), selected)


def _evaluate_slice_end(end: ast.Expr, length: Dim, env: LexicalScope) -> Dim:
    """Evaluate the start or stop of a slice. A negative bound counts from the end of the axis."""
    bound = env.evaluate_value(end)
    if not isinstance(bound, Dim):
        title = f"a slice must have integer bounds, not {describe_value(bound)}"
        raise_error("E0208", title, end.span)
    # the sign of a symbolic bound is unknown, so `-n` counts from the end due to its minus sign
    has_minus_sign = isinstance(end, ast.Unary) and (bound.number or 0) == 0
    is_negative = bound.number is not None and bound.number < 0
    return length + bound if has_minus_sign or is_negative else bound


def _slice_axis(
    nodes: NodeBuilder, value: Tensor, axis: int, item: ast.Slice, env: LexicalScope
) -> Tensor:
    step = _evaluate_slice_step(item, env)
    length = value.shape[axis]
    # a full slice, as in `x[:, 0]`, needs no node
    if item.start is None and item.stop is None and step == 1:
        return value
    start, stop = (
        default if end is None else _evaluate_slice_end(end, length, env)
        for end, default in ((item.start, Dim.from_value(0)), (item.stop, length))
    )
    op = ops.Slice(axis, start, stop) if step == 1 else ops.StridedSlice(axis, start, stop, step)
    return nodes.add_op(op, value)


def _evaluate_slice_step(item: ast.Slice, env: LexicalScope) -> Dim:
    """Evaluate the step of `a:b:s`. Raise E0327 for a step that is not positive."""
    if item.step is None:
        return Dim.from_value(1)
    step = env.evaluate_value(item.step)
    if not isinstance(step, Dim):
        title = f"the step of a slice must be an integer, got {describe_value(step)}"
        raise_error("E0208", title, item.step.span)
    if step.number is not None and step.number < 1:
        helps = ["`flip(x, axis=…)` reverses an axis: `flip(x, axis=1)[:, ::2]`"]
        title = f"the step of a slice must be at least 1, got {step}"
        raise_error("E0327", title, item.step.span, helps=helps)
    return step


EXPRESSION_EVALUATORS: dict[type, Callable[[Any, LexicalScope], EvalResult]] = {
    ast.NumberLiteral: _evaluate_number,
    ast.StringLiteral: _evaluate_text,
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
