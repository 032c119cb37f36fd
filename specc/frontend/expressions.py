"""Evaluate expressions to compile-time values, or to graph nodes if an operand is a tensor."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from specc.diagnostics.diagnostic import Span, raise_error
from specc.frontend.builtins.indexing import index_tensor
from specc.frontend.elaboration_context import LexicalScope, record_value
from specc.frontend.elaboration_limits_and_errors import OPERATION_COST
from specc.frontend.mask_and_bias_definitions import (
    has_index_variables,
    index_tensor_with_variables,
)
from specc.frontend.name_lookup import resolve_name
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.operators import (
    apply_arithmetic,
    apply_comparison,
    apply_logical_operator,
    apply_negation,
)
from specc.frontend.spec_values import (
    ERROR_VALUE,
    AlreadyReportedError,
    EvalResult,
    Record,
    RuntimeScalar,
    SpecValue,
    StringChoice,
    Tensor,
    UnresolvedValueError,
    describe_value,
)
from specc.frontend.weight_paths_and_sharing import fill_placeholders
from specc.ir.dim import Dim
from specc.syntax import ast
from specc.syntax.ast import flatten_binary_chain

NAMES_PER_STEP = 64
"""The number of names in scope that a loop iteration can copy for one elaboration step."""


def evaluate_expression(expr: ast.Expr, env: LexicalScope) -> EvalResult:
    """Evaluate an expression. Raise SpeccError, or AlreadyReportedError for a reported error."""
    env.context.consume_steps(expr.span)
    # the parser creates only these node classes, so a KeyError indicates a bug in specc
    value = EXPRESSION_EVALUATORS[type(expr)](expr, env)
    if value is ERROR_VALUE:
        raise AlreadyReportedError
    # messages show the last name given to a tensor, such as `y` in `y = x; f(y)`
    if isinstance(value, Tensor) and expr.span:
        return Tensor(value.value, expr.span)
    return value


def require_integer(value: SpecValue, description: str, span: Span | None) -> int:
    """Return `value` as an int. Raise E0203, or UnresolvedValueError for a symbol."""
    if isinstance(value, RuntimeScalar):
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
    # only literals that consist of digits are integers, so `1e3` is a float
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
    """Restore the scope of the current statement, and return a node builder for an operator."""
    env.context.scope = env.scope
    return NodeBuilder(env.context, expr.span)


def _evaluate_unary(expr: ast.UnaryOp, env: LexicalScope) -> SpecValue:
    value = env.evaluate_value(expr.operand)
    nodes = _start_operation(expr, env)
    if expr.op == "-":
        return apply_negation(nodes, value)
    return apply_logical_operator(nodes, "not", [value])


def _evaluate_binary(expr: ast.BinaryOp, env: LexicalScope) -> SpecValue:
    """Evaluate a chain of binary operators iteratively, because it may have thousands of terms."""
    leftmost, operations = flatten_binary_chain(expr)
    try:
        value = env.evaluate_value(leftmost)
    except AlreadyReportedError:  # also report errors in the right operands
        for operation in operations:
            env.evaluate_value(operation.right)
        raise
    for operation in operations:
        env.context.consume_steps(operation.span, OPERATION_COST)
        value = _apply_binary(operation, value, env.evaluate_value(operation.right), env)
    return value


def _apply_binary(
    expr: ast.BinaryOp, left: SpecValue, right: SpecValue, env: LexicalScope
) -> SpecValue:
    nodes = _start_operation(expr, env)
    if expr.op in ("&", "|"):
        return apply_logical_operator(nodes, "&" if expr.op == "&" else "|", [left, right])
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
        result = apply_logical_operator(nodes, "&", [result, comparison]) if n else comparison
    return result


def _evaluate_comparison_operand(
    expr: ast.Expr, operands: tuple[ast.Expr, ...], env: LexicalScope
) -> SpecValue:
    """Evaluate an operand of a comparison. A name is a choice value if the other operand is one."""
    # for a field `kind: choice(gru | lstm)`, the name `gru` in `kind == gru` is a choice value
    if isinstance(expr, ast.Name | ast.ListLiteral):
        names = (o for o in operands if isinstance(o, ast.Name) and o is not expr)
        for value in (resolve_name(name, env, missing_ok=True) for name in names):
            if isinstance(value, StringChoice):
                return _evaluate_choice_value(expr, value, env)
    return env.evaluate_value(expr)


def _evaluate_choice_value(expr: ast.Expr, choice: StringChoice, env: LexicalScope) -> SpecValue:
    match expr:
        case ast.ListLiteral(items=items):
            return tuple(_evaluate_choice_value(item, choice, env) for item in items)
        case ast.Name(path=path) if path in choice.allowed_values:
            return StringChoice(path, choice.allowed_values)
        case ast.Name(path=path) if resolve_name(expr, env, missing_ok=True) is ERROR_VALUE:
            title = f"`{path}` is not one of {', '.join(choice.allowed_values)}"
            raise_error("E0203", title, expr.span)
    return env.evaluate_value(expr)


def _evaluate_conditional(expr: ast.Conditional, env: LexicalScope) -> EvalResult:
    return env.evaluate(select_conditional_branch(expr, env))


def select_conditional_branch(expr: ast.Expr, env: LexicalScope) -> ast.Expr:
    """Return the selected branch of `a if c else b`, unevaluated. Return other nodes unchanged."""
    while isinstance(expr, ast.Conditional):
        is_true = evaluate_condition(expr.condition, env, "the condition of `if`")
        expr = expr.then if is_true else expr.otherwise
    return expr


def _evaluate_list(expr: ast.ListLiteral, env: LexicalScope) -> SpecValue:
    items = tuple(env.evaluate_value(item) for item in expr.items)
    return env.context.check_item_limit(items, expr.span)


def _evaluate_comprehension(expr: ast.ListComprehension, env: LexicalScope) -> SpecValue:
    iterable = env.evaluate_value(expr.iterable)
    items: Iterable[SpecValue]
    if isinstance(iterable, tuple | str):
        items, count = iterable, len(iterable)
    else:
        indices = range(require_integer(iterable, "the range of `for`", expr.iterable.span))
        items, count = map(Dim.from_value, indices), len(indices)
    values: list[SpecValue] = []
    env.context.charge_list_items(count, expr.iterable.span)  # count items before they are created
    for item in items:
        # each iteration copies all names in scope, so many names cost additional steps
        env.context.consume_steps(expr.span, 1 + len(env.names) // NAMES_PER_STEP)
        inner_env = replace(env, names={**env.names, expr.variable: item})
        with env.context.weights.sharing.enter_call(expr):
            values.append(inner_env.evaluate_value(expr.item))
    return env.context.check_item_limit(tuple(values), expr.span, count)


def _evaluate_record(expr: ast.RecordLiteral, env: LexicalScope) -> SpecValue:
    fields = {f.name: env.evaluate_value(f.value) for f in expr.fields}
    return env.context.check_item_limit(Record(fields), expr.span)


def _evaluate_index(expr: ast.Index, env: LexicalScope) -> SpecValue:
    base = env.evaluate_value(expr.base)
    if isinstance(base, tuple | str):
        return _index_list(tuple(base), expr, env)
    if not isinstance(base, Tensor):
        raise_error("E0203", f"{describe_value(base)} cannot be indexed", expr.span)
    # in a definition, `j` in `keep[j]` is an index variable; elsewhere `j` is a regular name
    if has_index_variables(expr, env):
        return index_tensor_with_variables(base, expr, env)
    return index_tensor(base, expr, env)


def _index_list(base: tuple[SpecValue, ...], expr: ast.Index, env: LexicalScope) -> SpecValue:
    item = expr.items[0]
    if len(expr.items) != 1 or isinstance(item, ast.Slice | ast.EllipsisDims):
        raise_error("E0203", "a list accepts a single index", expr.span)
    n = require_integer(env.evaluate_value(item), "an index", item.span)
    if not -len(base) <= n < len(base):
        title = f"index {n} is out of range for a list of length {len(base)}"
        raise_error("E0208", title, item.span)
    return base[n]


EXPRESSION_EVALUATORS: dict[type, Callable[[Any, LexicalScope], EvalResult]] = {
    ast.NumberLiteral: _evaluate_number,
    ast.StringLiteral: _evaluate_text,
    ast.Name: _evaluate_name,
    ast.Call: _evaluate_call,
    ast.UnaryOp: _evaluate_unary,
    ast.BinaryOp: _evaluate_binary,
    ast.Compare: _evaluate_comparison,
    ast.Conditional: _evaluate_conditional,
    ast.ListLiteral: _evaluate_list,
    ast.ListComprehension: _evaluate_comprehension,
    ast.RecordLiteral: _evaluate_record,
    ast.Index: _evaluate_index,
}
