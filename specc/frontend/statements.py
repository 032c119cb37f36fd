"""Run statements: assignments, unrolled `repeat` loops, `scan`, `when`, `require` and `return`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.declared_types import (
    ErrorContext,
    check_tensor_type,
    convert_to_declared_type,
    is_tensor_type,
)
from specc.frontend.elaboration_context import MAX_LAYERS, LexicalScope, record_value
from specc.frontend.expressions import evaluate_condition, require_integer
from specc.frontend.requirements_and_dimension_equations import check_requirement
from specc.frontend.scan_loops import elaborate_scan
from specc.frontend.spec_values import (
    ERROR_VALUE,
    AlreadyReportedError,
    EvalResult,
    ResultTuple,
    SpecValue,
    Tensor,
    describe_value,
    get_first_result,
)
from specc.frontend.weight_paths_and_sharing import resolve_weight_path
from specc.ir.dim import Dim
from specc.syntax import ast

Returned: TypeAlias = tuple[ast.ReturnStatement, tuple[EvalResult, ...]]
"""The `return` statement that ended a body, and its values."""


def run_statements(body: Sequence[ast.Statement], env: LexicalScope) -> Returned | None:
    """Run statements in order. Return the executed `return` statement with its values, or None.

    If a statement fails, the names that it assigns are bound to ERROR_VALUE, and later statements
    are still checked.
    """
    # a `return` inside `when` ends the whole body, not only the branch
    for statement in body:
        # restore the scope, because the preceding statement may have changed it
        env.context.scope = env.scope
        returned = STATEMENT_RUNNERS[type(statement)](statement, env)
        if returned is not None:
            return returned
    return None


def _run_let(statement: ast.Assignment, env: LexicalScope) -> None:
    with env.context.errors.collect_errors():
        value = env.evaluate(statement.value)
        _bind_targets(statement, value, env)
        return
    # names whose value could not be computed cause no further errors
    for target in statement.targets:
        env.names[target.name] = ERROR_VALUE


def _bind_targets(statement: ast.Assignment, value: EvalResult, env: LexicalScope) -> None:
    """Bind the targets of an assignment, and convert the values to their declared types."""
    for target, item in zip(statement.targets, _split_values(statement, value), strict=False):
        if target.name == "_":
            continue
        error_context = ErrorContext(f"`{target.name}`", statement.value.span)
        if target.type is None:
            env.names[target.name] = item
        elif is_tensor_type(target.type):
            env.names[target.name] = check_tensor_type(target.type, item, env, error_context)
        else:
            env.names[target.name] = convert_to_declared_type(target.type, item, env, error_context)
        record_value(target.span, item)
        if isinstance(item, Tensor):
            path = f"{env.scope}:{target.name}" if env.scope else target.name
            env.context.builder.names[path] = item.value


def _split_values(statement: ast.Assignment, value: EvalResult) -> tuple[SpecValue, ...]:
    """Return the values of an assignment, one per target. A single target is assigned the first
    result. Several targets are assigned the results of a call or the items of a list. An assignment
    may have more values than targets. Raise E0215 for fewer values than targets.
    """
    count = len(statement.targets)
    if count == 1:
        return (get_first_result(value),)
    values: tuple[SpecValue, ...]
    match value:
        case ResultTuple(values=values):
            pass
        case tuple():
            values = value
        case single:
            values = (single,)
    if len(values) < count:
        plural = "s" if len(values) != 1 else ""
        title = f"{count} names for {len(values)} result{plural}"
        raise_error("E0215", title, statement.value.span)
    return values


def _run_repeat(statement: ast.RepeatLoop, env: LexicalScope) -> None:
    items = _list_iterations(statement, env)
    # `collect h` creates a list of the values that `h` has at the end of each iteration
    collected: dict[str, list[SpecValue]] = {name: [] for name in statement.collect}
    # the loop variable shadows a name in the enclosing scope
    outer_value = env.names.get(statement.variable)
    for item in items:
        env.context.consume_steps(statement.span)
        env.names[statement.variable] = item
        # the body binds names in the scope of its block, so only the weight scope is restored
        scope = env.scope
        if statement.under:
            env.scope = env.with_weight_scope(resolve_weight_path(statement.under, env)).scope
        with env.context.weights.sharing.enter_call(
            statement, env.scope if statement.under else ""
        ):
            returned = run_statements(statement.body, env)
        env.scope = scope
        if returned is not None:
            raise_error("E0214", "`return` is not allowed inside `repeat`", returned[0].span)
        for name, values in collected.items():
            if name not in env.names:
                title = f"`{name}` is collected but never set in the loop"
                raise_error("E0202", title, statement.span)
            values.append(env.names[name])
    env.names.pop(statement.variable, None)
    if outer_value is not None:
        env.names[statement.variable] = outer_value
    env.names.update({name: tuple(values) for name, values in collected.items()})


def _list_iterations(statement: ast.RepeatLoop, env: LexicalScope) -> Sequence[SpecValue]:
    """Return the values of the loop variable: the items of a list, or 0 to count - 1."""
    span = statement.iterable.span
    iterable = env.evaluate_value(statement.iterable)
    items: Sequence[SpecValue]
    if isinstance(iterable, tuple):
        items = iterable
    else:
        if isinstance(iterable, Tensor):
            title = f"`repeat`: expected an integer or a list, got {describe_value(iterable)}"
            help_ = (
                "write the number of iterations, `repeat i in 3 { … }`; `scan` loops at run time"
            )
            raise_error("E0203", title, span, helps=[help_])
        count = require_integer(iterable, "a count", span)
        if count < 0:
            raise_error("E0216", f"invalid number of repetitions: {count}", span)
        # create at most one item more than the limit allows, because trip counts can be huge
        items = [Dim.from_value(n) for n in range(min(count, MAX_LAYERS + 1))]
    if len(items) > MAX_LAYERS:
        raise_error("E0216", f"more than {MAX_LAYERS} iterations of a loop", span)
    env.context.consume_steps(statement.span, len(items))
    return items


def _run_when(statement: ast.WhenStatement, env: LexicalScope) -> Returned | None:
    is_true = evaluate_condition(statement.condition, env, "the condition of `when`")
    return run_statements(statement.body if is_true else statement.otherwise, env)


def _run_return(statement: ast.ReturnStatement, env: LexicalScope) -> Returned:
    values: list[EvalResult] = []
    for value in statement.values:
        with env.context.errors.collect_errors():
            values.append(env.evaluate(value))
    # end the block here, because errors about the missing values have already been reported
    if len(values) < len(statement.values):
        raise AlreadyReportedError
    return statement, tuple(values)


def _run_scan(statement: ast.ScanLoop, env: LexicalScope) -> None:
    with env.context.errors.collect_errors():
        elaborate_scan(statement, env, run_statements)
        return
    for name in (*statement.carry, *statement.collect):
        env.names[name] = ERROR_VALUE


StatementRunner: TypeAlias = Callable[[Any, LexicalScope], Returned | None]
"""A function that runs a statement of one class. The parameter has the type Any, because its class
is the key of the function in a table.
"""

STATEMENT_RUNNERS: dict[type, StatementRunner] = {
    ast.Assignment: _run_let,
    ast.RepeatLoop: _run_repeat,
    ast.WhenStatement: _run_when,
    ast.ReturnStatement: _run_return,
    ast.RequireStatement: lambda statement, env: check_requirement(statement, env, {}),
    ast.ScanLoop: _run_scan,
}
