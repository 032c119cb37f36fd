"""Call blocks: broadcast batch axes of size 1, bind parameters, run the body, check the results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.declared_types import (
    ErrorContext,
    check_tensor_type,
    convert_to_declared_type,
    is_tensor_type,
)
from specc.frontend.elaboration_context import (
    EMPTY_NAMES,
    ElaborationContext,
    LexicalScope,
    SpecNamespace,
    UnevaluatedFunctionCall,
    record_value,
)
from specc.frontend.elaboration_limits_and_errors import ErrorCollectorContext
from specc.frontend.expressions import select_conditional_branch
from specc.frontend.foreign_names_and_options import match_options
from specc.frontend.name_lookup import evaluate_with_expected_type
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import (
    ERROR_VALUE,
    BlockFunction,
    EvalResult,
    ResultTuple,
    SpecValue,
    StringChoice,
    Tensor,
    get_first_result,
)
from specc.frontend.statements import Returned, run_statements
from specc.frontend.used_specs import add_call_label_to_errors
from specc.frontend.weight_paths_and_sharing import register_weight_sharing_rules
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast

ParameterArgument: TypeAlias = tuple[ast.BlockParameter, SpecValue, ast.Expr]
"""A parameter, together with the value and the source expression of its argument."""


def broadcast_batch_arguments(
    arguments: Sequence[ParameterArgument], env: LexicalScope
) -> list[ParameterArgument]:
    """Expand tensor arguments of batch size 1 to the batch size of the other arguments or of
    `dims`. An argument is expanded only if the other batch axis is declared with the same name.
    Return all arguments.
    """
    lengths = _find_batch_lengths(arguments, env)
    expanded: list[ParameterArgument] = []
    for param, value, expr in arguments:
        length = lengths.get(_get_batch_name(param, value, env))
        if length is not None and isinstance(value, Tensor) and value.shape[0] == 1:
            op = ops.Expand(0, length)
            value = NodeBuilder(env.context, expr.span, env.scope).add_op(op, value)
        expanded.append((param, value, expr))
    return expanded


def _find_batch_lengths(
    arguments: Sequence[ParameterArgument], env: LexicalScope
) -> dict[str, Dim]:
    """Map the declared name of each batch axis to the first size of the axis that is not 1."""
    lengths: dict[str, Dim] = {}
    for name, value in ((_get_batch_name(p, v, env), v) for p, v, _ in arguments):
        if name and isinstance(value, Tensor):
            length = env.find_dynamic_length(name) or value.shape[0]
            if length != 1:
                lengths.setdefault(name, length)
    return lengths


def _get_batch_name(param: ast.BlockParameter, value: SpecValue, env: LexicalScope) -> str:
    """Return the declared name of a tensor's first axis, or "" if the name is already bound."""
    match param.type.dims, value:
        case (ast.Name(path=name), *_), Tensor(shape=(_, _, *_)):
            return "" if name == "_" or name in env.names or name in env.config else name
    return ""


MAX_BLOCK_DEPTH = 64
"""The maximum nesting depth of block calls."""

BoundArguments: TypeAlias = dict[str, tuple[ast.BlockParameter, ast.Expr, LexicalScope]]
"""The arguments by parameter name, each with the scope in which the argument is evaluated."""


def call_block(
    context: ElaborationContext, target: BlockFunction, call: UnevaluatedFunctionCall
) -> ResultTuple:
    """Call a block in the weight scope of `call.inner_env`, and return its results."""
    block, module, expr = target.block, target.module, call.expr
    is_other_file = module.root is not call.caller_env.module.root and not module.is_standard
    env = _make_block_env(context, target, call)
    context.evaluator.check_step_estimate(block, module, env.config, expr.span)
    bind_arguments(block, _collect_arguments(target, call), env)
    with (
        enter_block_call(block, expr, call.caller_env),
        context.errors.track_user_call(expr.span, is_standard=module.is_standard),
        context.weights.sharing.enter_call(expr, call.explicit_weight_scope),
        add_call_label_to_errors(context, expr.span if is_other_file else None, expr.function.path),
    ):
        if target.weight_scope is None and is_other_file:
            file_env = LexicalScope(
                context=env.context, module=module, config=env.config, scope=env.scope
            )
            register_weight_sharing_rules(module.file.items, file_env)
        bind_default_arguments(block, env, expr)
        results = check_block_results(block, run_statements(block.body, env), env)
    _record_result_names(results, env, call.caller_env)
    return results


def _make_block_env(
    context: ElaborationContext, target: BlockFunction, call: UnevaluatedFunctionCall
) -> LexicalScope:
    """Return the scope of a block's body, which contains the names of the block's file."""
    module, caller, bound_env = target.module, call.caller_env, target.env
    is_same_file = module.root is caller.module.root
    definition_env = _find_bound_env(target)
    config_env = caller if is_same_file else definition_env
    env = LexicalScope(
        context=caller.context,
        module=module,
        config=_get_block_config(context, module, call, config_env),
        scope=call.inner_env.scope,
        config_file=caller.config_file,
        dynamic_lengths=caller.dynamic_lengths,
        file_scope=caller.file_scope,
    )
    if target.weight_scope is not None and bound_env is not None:
        env.config_file, env.file_scope = bound_env.config_file, target.weight_scope
    elif not is_same_file and not module.is_standard:
        env.file_scope = definition_env.file_scope if definition_env else env.scope
    if not is_same_file:
        # arguments determine the dimensions of a used file: its `batch` may be the caller's `batch
        # * 2`
        env.dynamic_lengths = None if module.is_standard else {}
    return env


def _find_bound_env(target: BlockFunction) -> LexicalScope | None:
    """Return the scope in which the block was referenced, if this scope has a config and belongs to
    the block's file. Return None otherwise.
    """
    env = target.env
    return env if env and env.module.root is target.module.root and env.config else None


def _get_block_config(
    context: ElaborationContext,
    module: SpecNamespace,
    call: UnevaluatedFunctionCall,
    config_env: LexicalScope | None,
) -> Mapping[str, SpecValue]:
    """Return the config of the block's file: the `config` option of the call if it is set,
    otherwise the config of the scope `config_env`.
    """
    option = next((o for o in call.options if o.name == "config"), None)
    if option is None and config_env is not None:
        return config_env.config
    if module.is_standard:
        return EMPTY_NAMES
    expr = option.value if option else ast.Name("none")
    config = call.caller_env.evaluate_value(expr)
    return context.evaluator.configure_used_spec(context, module, config, expr.span)


def _collect_arguments(target: BlockFunction, call: UnevaluatedFunctionCall) -> BoundArguments:
    """Return the argument that is passed for each parameter. Arguments of the call override options
    that were bound when the block was passed as a value. Raise E0201, E0211 or E0212 for invalid
    arguments.
    """
    block = target.block
    pairs = _pair_arguments(block, call)
    arguments: BoundArguments = {p.name: (p, value, call.caller_env) for p, value in pairs}
    for name, (option, option_env) in target.bound_arguments.items():
        param = next((p for p in block.params if p.name == name), None)
        if param is None:
            title = f"unknown option `{name}` of `{block.name}`"
            raise_error("E0201", title, call.expr.span)
        # use the current context, because an earlier elaboration may have bound the option
        current_env = replace(option_env, context=call.caller_env.context)
        arguments.setdefault(name, (param, option.value, current_env))
    return arguments


@contextmanager
def enter_block_call(block: ast.Block, expr: ast.Call, caller_env: LexicalScope) -> Iterator[None]:
    """Return a context manager that adds a block call to the call stack. Raise E0210 for recursion
    and E0110 for deep nesting.
    """
    stack = caller_env.context.call_stack
    # identify a block by its location, because two files may define blocks with the same name
    key = f"{block.name}@{block.name_span}"
    if key in stack:
        cycle = [called.split("@")[0] for called in (*stack[stack.index(key) :], key)]
        title = f"`{block.name}` calls itself: {' → '.join(cycle)}"
        raise_error("E0210", title, expr.span, helps=["use `repeat`, or a `scan` loop"])
    if len(stack) >= MAX_BLOCK_DEPTH:
        raise_error(
            "E0110",
            f"more than {MAX_BLOCK_DEPTH} nested block calls",
            expr.span,
            f"this call of `{block.name}` exceeds the limit",
            helps=["reduce the nesting depth, for example by calling blocks one after another"],
        )
    stack.append(key)
    try:
        yield
    finally:
        stack.pop()
        caller_env.context.scope = caller_env.scope


def _pair_arguments(
    block: ast.Block, call: UnevaluatedFunctionCall
) -> list[tuple[ast.BlockParameter, ast.Expr]]:
    """Pair each argument with its parameter. Raise E0201, E0211 or E0212 for invalid arguments."""
    options = [o for o in call.options if o.name != "config"]
    _check_argument_count(block, call.args)
    pairs = list(zip(block.params, call.args, strict=False))
    by_name = {p.name: p for p in block.params}
    return pairs + match_options(block.name, options, by_name, {p.name for p, _ in pairs})


def _check_argument_count(block: ast.Block, args: Sequence[ast.Expr]) -> None:
    """Raise E0211 if there are more positional arguments than inputs of the block."""
    if len(args) > len(block.params):
        names = ", ".join(p.name for p in block.params)
        title = f"`{block.name}` expects {len(block.params)} inputs, got {len(args)}"
        raise_error(
            "E0211", title, args[len(block.params)].span, helps=[f"its inputs are ({names})"]
        )


def bind_arguments(block: ast.Block, bound_arguments: BoundArguments, env: LexicalScope) -> None:
    """Bind the parameters of `block` to `bound_arguments` in `env`. Compile-time values are bound
    before tensors. Each argument is evaluated in the scope of the call. The errors of all arguments
    are raised together.
    """
    errors = ErrorCollectorContext()
    # a tensor type such as `float[batch, width]` may contain the static parameter `width`
    for are_tensors in (False, True):
        arguments: list[ParameterArgument] = []
        for param, value, caller in bound_arguments.values():
            if is_tensor_type(param.type) == are_tensors:
                with errors:
                    arguments.append((param, _evaluate_argument(param, value, caller), value))
        for param, argument, expr in broadcast_batch_arguments(arguments, env):
            with errors:
                _bind_parameter(block, param, argument, expr, env)
                record_value(param.span, env.names[param.name])
    errors.raise_collected_errors()


def bind_default_arguments(block: ast.Block, env: LexicalScope, expr: ast.Call) -> None:
    """Bind each parameter without an argument to its default, or raise E0211 if there is none."""
    for param in block.params:
        # the arguments are already bound by `bind_arguments`, and defaults are evaluated in the
        # block's scope
        if param.name in env.names:
            continue
        if param.default is None:
            if param.type.optional:
                env.names[param.name] = None
                continue
            _raise_missing_argument(block, param, expr)
        value = _evaluate_argument(param, param.default, env)
        _bind_parameter(block, param, value, param.default, env)


def _raise_missing_argument(
    block: ast.Block, param: ast.BlockParameter, expr: ast.Call
) -> NoReturn:
    """Raise E0211 for a parameter that has neither an argument nor a default."""
    names = ", ".join(p.name for p in block.params)
    function_help = (
        f"to pass `{block.name}` as a function, write the call as an argument, as in "
        f"`residual(x, f={block.name}(…), …)`"
    )
    is_input = is_tensor_type(param.type)
    kind = "input" if is_input else "option"
    is_first = param is block.params[0]
    helps = [f"`{block.name}` takes: {names}", *[function_help] * (is_input * is_first)]
    raise_error("E0211", f"missing {kind} `{param.name}` of `{block.name}`", expr.span, helps=helps)


def _evaluate_argument(
    param: ast.BlockParameter, expr: ast.Expr, caller: LexicalScope
) -> SpecValue:
    """Evaluate an argument. A parameter of type `choice` accepts the name of a choice value."""
    choice_names = param.type.names if param.type.name == "choice" else ()
    if choice_names:
        # the argument may be a conditional expression such as `half if old else interleaved`
        expr = select_conditional_branch(expr, caller)
    if isinstance(expr, ast.Name) and expr.path in choice_names and expr.path not in caller.names:
        return StringChoice(expr.path, choice_names)
    return get_first_result(evaluate_with_expected_type(param.type, expr, caller))


def _bind_parameter(
    block: ast.Block, param: ast.BlockParameter, value: SpecValue, expr: ast.Expr, env: LexicalScope
) -> None:
    """Convert an argument to its declared type and bind it. Raise E0203 or a shape error."""
    description = f"`{param.name}` of `{block.name}`"
    error_context = ErrorContext(description, expr.span, block.name)
    if value is None and param.type.optional:
        env.names[param.name] = None
    elif is_tensor_type(param.type):
        env.names[param.name] = check_tensor_type(param.type, value, env, error_context)
    elif param.type.name == "choice" and value is ERROR_VALUE:
        raise_error(
            "E0203", f"{description} must be one of {', '.join(param.type.names)}", expr.span
        )
    else:
        env.names[param.name] = convert_to_declared_type(param.type, value, env, error_context)


def _check_return(
    block: ast.Block, returned: Returned | None
) -> tuple[ast.ReturnStatement, Sequence[EvalResult]]:
    """Return the `return` statement and one value per declared result, or raise E0214."""
    if returned is None:
        _raise_missing_return(block)
    statement, values = returned
    # `return attend(…)` returns all results of the call
    if len(values) == 1 and isinstance(values[0], ResultTuple) and len(block.results) > 1:
        values = values[0].values
    expected_count = len(block.results)
    if len(values) != expected_count:
        count_text = f"{expected_count} result{'' if expected_count == 1 else 's'}"
        title = f"`{block.name}` declares {count_text}, but returns {len(values)}"
        raise_error("E0214", title, statement.span)
    return statement, values


def _raise_missing_return(block: ast.Block) -> NoReturn:
    names = ", ".join(p.name or "value" for p in block.results)
    raise_error(
        "E0214",
        f"missing `return` at the end of `{block.name}`",
        block.name_span,
        "no result",
        helps=[f"end it with `return {names}`"],
    )


def check_block_results(
    block: ast.Block, returned: Returned | None, env: LexicalScope
) -> ResultTuple:
    """Return the results of a block. Raise E0214 if `return` is missing or has the wrong number of
    values, and E0301 or E0302 if a value does not have the declared type.
    """
    statement, values = _check_return(block, returned)
    spans = [expr.span for expr in statement.values]
    if len(spans) != len(values):  # one call may return several values
        spans = [statement.span] * len(values)
    tensors = []
    for param, value, span in zip(block.results, values, spans, strict=True):
        description = f"the result `{param.name}`" if param.name else "the result"
        error_context = ErrorContext(description, span)
        tensors.append(check_tensor_type(param.type, get_first_result(value), env, error_context))
    return ResultTuple(tuple(tensors), tuple(p.name for p in block.results))


def _record_result_names(results: ResultTuple, env: LexicalScope, caller: LexicalScope) -> None:
    """Record the tap names of results: `a.b` for the first result, `a.b:weights` for another."""
    if env.scope == caller.scope or not env.scope:
        return
    for n, (value, name) in enumerate(zip(results.values, results.names, strict=True)):
        # the tap name of the first result is the call's weight scope, without a suffix
        if n == 0:
            env.context.builder.names[env.scope] = value.value
        if name:
            env.context.builder.names[f"{env.scope}:{name}"] = value.value
