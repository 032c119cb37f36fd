"""Call blocks: broadcast operands of batch size 1, bind parameters, run the body, check the
declared results.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.frontend.context import EMPTY_NAMES, Context, Env, PendingCall, SpecModule
from specc.frontend.declared_types import (
    ValueContext,
    convert_to_declared_type,
    is_tensor_type,
    match_tensor_type,
)
from specc.frontend.elaboration_state import record_value
from specc.frontend.expressions import select_branch
from specc.frontend.foreign_names import raise_unknown_option
from specc.frontend.name_lookup import evaluate_as_type
from specc.frontend.node_builder import add_op
from specc.frontend.spec_values import (
    POISON,
    AlreadyReported,
    BlockFunction,
    ChoiceValue,
    EvalResult,
    Results,
    SpecValue,
    Tensor,
    take_first_result,
)
from specc.frontend.statements import Returned, run_statements
from specc.frontend.used_specs import show_call_in_errors
from specc.frontend.weight_paths_and_sharing import register_share_rules
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast

ParameterArgument: TypeAlias = tuple[ast.BlockParameter, SpecValue, ast.Expr]
"""A parameter, its value, and the expression that the value came from."""


def broadcast_batch(
    context: Context, given: Sequence[ParameterArgument], env: Env
) -> list[ParameterArgument]:
    """Expand operands with batch size 1 if the declared type names the batch axis and
    another operand, or a run-time length of `dims`, has a larger size for that name.
    """
    lengths: dict[str, Dim] = {}
    for param, value, _ in given:
        name = _get_batch_name(param, value, env)
        if name and isinstance(value, Tensor):
            known = env.find_runtime_length(name) or value.shape[0]
            if known != 1:
                lengths.setdefault(name, known)
    return [
        (
            param,
            _expand_to_length(
                context, value, lengths.get(_get_batch_name(param, value, env)), expr, env
            ),
            expr,
        )
        for param, value, expr in given
    ]


def _get_batch_name(param: ast.BlockParameter, value: SpecValue, env: Env) -> str:
    """Return the declared name of the first axis; empty if a config value fixes it."""
    dims = param.type.dims
    if not dims or not isinstance(dims[0], ast.Name) or not isinstance(value, Tensor):
        return ""
    name = dims[0].path
    fixed = name == "_" or name in env.names or name in env.config
    return "" if fixed or len(value.shape) < 2 else name


def _expand_to_length(
    context: Context, value: SpecValue, length: Dim | None, expr: ast.Expr, env: Env
) -> SpecValue:
    if length is None or not isinstance(value, Tensor) or value.shape[0] != 1:
        return value
    op = ops.Expand(0, length)
    return add_op(context, op, value, span=expr.span, scope=env.scope)


MAX_BLOCK_DEPTH = 64
"""The maximum depth of nested block calls."""

BoundArguments: TypeAlias = dict[str, tuple[ast.BlockParameter, ast.Expr, Env]]
"""The argument of each parameter, by name, and the scope that it is evaluated in."""


def call_block(context: Context, target: BlockFunction, call: PendingCall) -> Results:
    """Call a block and return its results; its weights go under the scope of `call.inner`."""
    block, module, caller = target.block, target.module, call.caller
    foreign = module.root is not caller.module.root and not module.is_standard
    at = call.expr.span if foreign else None
    config = _get_block_config(context, target, call)
    env = _make_block_env(target, call, config)
    context.check_step_estimate(block, module, config, call.expr.span)
    bind_arguments(context, block, _collect_arguments(target, call), env)
    enter_block(context, block, call.expr)
    try:
        with (
            context.enter_call(call.expr.span, standard=module.is_standard),
            context.weights.sharing.enter_step(call.expr, call.own_scope),
            show_call_in_errors(context, at, call.expr.function.path),
        ):
            if target.weight_scope is None and foreign:
                there = Env(module=module, config=config, scope=call.inner_env.scope)
                register_share_rules(context, module.file.items, there)
            bind_defaults(context, block, env, call.expr)
            results = check_block_results(
                context, block, run_statements(context, block.body, env), env
            )
        _record_result_names(context, results, env, caller)
        return results
    finally:
        context.call_stack.pop()
        context.scope = caller.scope


def _make_block_env(
    target: BlockFunction, call: PendingCall, config: Mapping[str, SpecValue]
) -> Env:
    """Return the scope of a block's body: the names and values of its file."""
    module, caller, home = target.module, call.caller, target.env
    raw, base = caller.config_file, caller.file_scope
    if target.weight_scope is not None and home is not None:
        raw, base = home.config_file, target.weight_scope
    elif module.root is not caller.module.root and not module.is_standard:
        # passed on by its own file, or called where a used file sets its config
        static_inputs = home is not None and home.module.root is module.root and home.config
        base = home.file_scope if home is not None and static_inputs else call.inner_env.scope
    return Env(
        module=module,
        config=config,
        scope=call.inner_env.scope,
        config_file=raw,
        runtime_lengths=_resolve_file_lengths(module, caller),
        file_scope=base,
    )


def _resolve_file_lengths(module: SpecModule, caller: Env) -> dict[str, Dim] | None:
    """Return what the run-time lengths of a block's file stand for during this call.

    In the same file, and in specs that extend it, they are the caller's own; std declares
    none. Those of a used file are bound by its operands: its `batch` may be `batch * 2`
    here.
    """
    if module.root is caller.module.root:
        return caller.runtime_lengths
    return None if module.is_standard else {}


def _collect_arguments(target: BlockFunction, call: PendingCall) -> BoundArguments:
    """Return each given parameter with its argument. Arguments of the call override
    options that were bound earlier.
    """
    block = target.block
    given = _pair_arguments(block, call)
    bound: BoundArguments = {p.name: (p, value, call.caller) for p, value in given}
    for name, (option, where) in target.bound_arguments.items():
        param = next((p for p in block.params if p.name == name), None)
        if param is None:
            title = f"`{block.name}` has no option `{name}`"
            raise_error("E0201", title, call.expr.span)
        bound.setdefault(name, (param, option.value, where))
    return bound


def enter_block(context: Context, block: ast.Block, expr: ast.Call) -> None:
    """Push a block on the call stack. Raise E0210 for recursion, E0110 if it is too deep."""
    key = f"{block.name}@{block.name_span}"
    # the key includes the location: two files may have blocks of one name
    if key in context.call_stack:
        cycle = [c.split("@")[0] for c in context.call_stack[context.call_stack.index(key) :]] + [
            block.name
        ]
        context.call_stack.append(key)
        raise_error(
            "E0210",
            f"`{block.name}` calls itself: {' → '.join(cycle)}",
            expr.span,
            helps=["use `repeat`, or a `scan` loop"],
        )
    if len(context.call_stack) >= MAX_BLOCK_DEPTH:
        context.call_stack.append(key)
        title = f"more than {MAX_BLOCK_DEPTH} nested block calls"
        raise_error(
            "E0110",
            title,
            expr.span,
            f"`{block.name}` would be call {MAX_BLOCK_DEPTH + 1}",
            helps=["call the blocks one after the other"],
        )
    context.call_stack.append(key)


def _get_block_config(
    context: Context, target: BlockFunction, call: PendingCall
) -> Mapping[str, SpecValue]:
    """Return the config values that a block reads: those of its file."""
    module, caller, home = target.module, call.caller, target.env
    option = next((o for o in call.options if o.name == "config"), None)
    if option is None:
        if module.root is caller.module.root:
            return caller.config
        # passed on by its own file: it keeps the config it was bound with
        if home and home.module.root is module.root and home.config:
            return home.config
    if module.is_standard:
        return EMPTY_NAMES
    if option is None:
        return context.evaluator.configure_used_spec(context, module, None, None)
    given = context.evaluate_value(option.value, caller)
    return context.evaluator.configure_used_spec(context, module, given, option.value.span)


def _pair_arguments(
    block: ast.Block, call: PendingCall
) -> list[tuple[ast.BlockParameter, ast.Expr]]:
    """Pair each argument with its parameter. Raise E0201, E0211 or E0212 on a mismatch."""
    args = call.args
    options = [o for o in call.options if o.name != "config"]
    if len(args) > len(block.params):
        shown = ", ".join(p.name for p in block.params)
        title = f"`{block.name}` takes {len(block.params)} inputs, {len(args)} are given"
        raise_error("E0211", title, args[len(block.params)].span, helps=[f"it takes ({shown})"])
    found = list(zip(block.params, args, strict=False))
    by_name = {p.name: p for p in block.params}
    for option in options:
        at = option.name_span or option.span
        if option.name not in by_name:
            raise_unknown_option(block.name, option, by_name)
        if any(p.name == option.name for p, _ in found):
            raise_error("E0212", f"`{option.name}` is given twice", at)
        found.append((by_name[option.name], option.value))
    return found


def bind_arguments(context: Context, block: ast.Block, pairs: BoundArguments, env: Env) -> None:
    """Bind parameters to the arguments: first compile-time values, then tensors. Arguments
    are evaluated in the caller's scope.
    """
    faults: list[Diagnostic] = []
    poisoned = False
    # a tensor's declared type may name static parameters: `x: float[batch, width]`
    for tensors in (False, True):
        given: list[ParameterArgument] = []
        for param, value, caller in pairs.values():
            if is_tensor_type(param.type) == tensors:
                try:
                    given.append((param, _evaluate_argument(context, param, value, caller), value))
                except Failed as failed:
                    faults += failed.diagnostics
                except AlreadyReported:
                    poisoned = True
        for param, known, expr in broadcast_batch(context, given, env):
            try:
                _bind_parameter(context, block, param, known, expr, env)
                record_value(param.span, env.names[param.name])
            except Failed as failed:
                faults += failed.diagnostics
            except AlreadyReported:
                poisoned = True
    if faults:
        raise Failed(*faults)
    if poisoned:
        raise AlreadyReported


def bind_defaults(context: Context, block: ast.Block, env: Env, expr: ast.Call) -> None:
    """Bind the remaining parameters to their defaults, in order."""
    for param in block.params:
        # bound by `bind_arguments`; defaults are evaluated in the block's scope
        if param.name in env.names:
            continue
        if param.default is None:
            if param.type.optional:
                env.names[param.name] = None
                continue
            what = "input" if is_tensor_type(param.type) else "option"
            helps = [f"`{block.name}` takes: {', '.join(p.name for p in block.params)}"]
            raise_error(
                "E0211", f"`{block.name}` needs the {what} `{param.name}`", expr.span, helps=helps
            )
        value = _evaluate_argument(context, param, param.default, env)
        _bind_parameter(context, block, param, value, param.default, env)


def _evaluate_argument(
    context: Context, param: ast.BlockParameter, expr: ast.Expr, caller: Env
) -> SpecValue:
    """Evaluate an argument; a bare choice word evaluates to itself."""
    words = param.type.names if param.type.name == "choice" else ()
    if words:
        expr = select_branch(context, expr, caller)  # `half if old else interleaved`
    if isinstance(expr, ast.Name) and expr.path in words and expr.path not in caller.names:
        return ChoiceValue(expr.path, words)
    return take_first_result(evaluate_as_type(context, param.type, expr, caller))


def _bind_parameter(
    context: Context,
    block: ast.Block,
    param: ast.BlockParameter,
    value: SpecValue,
    expr: ast.Expr,
    env: Env,
) -> None:
    what = f"`{param.name}` of `{block.name}`"
    place = ValueContext(what, expr.span, block.name)
    words = param.type.names if param.type.name == "choice" else ()
    if isinstance(value, ChoiceValue) and value.word in words and value.words == words:
        env.names[param.name] = value
    elif value is None and param.type.optional:
        env.names[param.name] = None
    elif is_tensor_type(param.type):
        env.names[param.name] = match_tensor_type(context, param.type, value, env, place)
    elif param.type.name == "choice" and value is POISON:
        raise_error("E0203", f"{what} must be one of {', '.join(param.type.names)}", expr.span)
    else:
        env.names[param.name] = convert_to_declared_type(context, param.type, value, env, place)


def _check_return(
    block: ast.Block, returned: Returned | None
) -> tuple[ast.Return, Sequence[EvalResult]]:
    """Return the `return` statement and one value per declared result. Raise E0214 for a
    missing `return`, or another number of values.
    """
    if returned is None:
        names = ", ".join(p.name or "value" for p in block.results)
        raise_error(
            "E0214",
            f"`{block.name}` ends without `return`",
            block.name_span,
            "no result",
            helps=[f"end it with `return {names}`"],
        )
    statement, values = returned
    # `return attend(…)` returns all results of the call
    if len(values) == 1 and isinstance(values[0], Results) and len(block.results) > 1:
        values = values[0].values
    wanted = len(block.results)
    if len(values) != wanted:
        declared = f"{wanted} result{'' if wanted == 1 else 's'}"
        title = f"`{block.name}` declares {declared} and returns {len(values)}"
        raise_error("E0214", title, statement.span)
    return statement, values


def check_block_results(
    context: Context, block: ast.Block, returned: Returned | None, env: Env
) -> Results:
    """Check the returned values against the declared results and return them."""
    statement, values = _check_return(block, returned)
    spans = [expr.span for expr in statement.values]
    if len(spans) != len(values):  # a single expression with several results
        spans = [statement.span] * len(values)
    tensors = []
    for param, value, span in zip(block.results, values, spans, strict=True):
        what = f"the result `{param.name}`" if param.name else "the result"
        place = ValueContext(what, span)
        tensors.append(match_tensor_type(context, param.type, take_first_result(value), env, place))
    return Results(tuple(tensors), tuple(p.name for p in block.results))


def _record_result_names(context: Context, results: Results, env: Env, caller: Env) -> None:
    """Record the results of a scope for taps: `a.b` is the first, `a.b:weights` another."""
    if env.scope == caller.scope or not env.scope:
        return
    for n, (value, name) in enumerate(zip(results.values, results.names, strict=True)):
        # the scope alone names the first result
        if n == 0:
            context.builder.names[env.scope] = value.value
        if name:
            context.builder.names[f"{env.scope}:{name}"] = value.value
