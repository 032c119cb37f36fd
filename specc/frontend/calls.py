"""Evaluate calls: match arguments to parameters, convert arguments, and run the callee."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.block_calls import call_block
from specc.frontend.builtins.registry import Builtin, BuiltinParameter, CallContext
from specc.frontend.elaboration_context import (
    ElaborationContext,
    LexicalScope,
    UnevaluatedFunctionCall,
)
from specc.frontend.elaboration_limits_and_errors import ErrorCollectorContext
from specc.frontend.expressions import select_conditional_branch
from specc.frontend.foreign_names_and_options import match_options, raise_unknown_option_error
from specc.frontend.mask_and_bias_definitions import bind_definition
from specc.frontend.name_lookup import (
    NAMED_CONSTANTS,
    evaluate_score_normalizer,
    resolve_callee,
    resolve_name,
)
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.parameter_kinds import (
    ANY_KIND,
    FLOAT_KIND,
    FUNCTION_KIND,
    NORMALIZER_KIND,
    NUMBER_KIND,
    TENSOR_KIND,
    TEXT_KIND,
    ListParameterKind,
    ParameterKinds,
    convert_to_parameter_kind,
    list_choice_values,
)
from specc.frontend.runtime_scalars import convert_to_op_attribute
from specc.frontend.spec_values import (
    ERROR_VALUE,
    MISSING,
    AttentionFunction,
    BlockFunction,
    BuiltinFunction,
    EvalResult,
    Function,
    Number,
    RuntimeScalar,
    SpecValue,
    Tensor,
    describe_value,
    get_first_result,
)
from specc.frontend.weight_paths_and_sharing import resolve_weight_path
from specc.ir.dim import DimError, DimLimitError
from specc.syntax import ast


def evaluate_argument(
    expr: ast.Expr, kinds: ParameterKinds, description: str, env: LexicalScope
) -> SpecValue:
    """Evaluate an argument. Raise E0203 unless the value has one of the kinds `kinds`."""
    if list_choice_values(kinds):
        # the argument may be a conditional expression such as `half if old else interleaved`
        expr = select_conditional_branch(expr, env)
    if isinstance(expr, ast.Name) and (
        choice := _match_choice_value(expr, kinds, description, env)
    ):
        return choice
    if NORMALIZER_KIND in kinds:
        value = get_first_result(evaluate_score_normalizer(expr, env))
    elif FUNCTION_KIND in kinds:
        value = get_first_result(evaluate_function_value(expr, env))
    else:
        value = env.evaluate_value(expr)
    # the error behind ERROR_VALUE has already been reported, so do not report another one
    if value is ERROR_VALUE:
        raise SpeccError
    if isinstance(value, Tensor) and TENSOR_KIND in kinds:
        return value
    nodes = NodeBuilder(env.context, expr.span)
    if isinstance(value, RuntimeScalar) and not {FLOAT_KIND, NUMBER_KIND, ANY_KIND} & {*kinds}:
        # raise E0315 for a run-time scalar if the parameter accepts only compile-time numbers
        convert_to_op_attribute(nodes, value, description)
    return _require_known_number(
        nodes, convert_to_parameter_kind(value, kinds, description, expr.span), kinds, description
    )


def _match_choice_value(
    name: ast.Name, kinds: ParameterKinds, description: str, env: LexicalScope
) -> str | None:
    """Resolve a name, such as `half` in `pairs=half`, to a choice value, unless the name refers to
    a variable. Return None if the name has another meaning. Raise E0203 if the choice value is
    unknown.
    """
    choice_names = list_choice_values(kinds)
    if not choice_names:
        return None
    if name.path in choice_names and name.path not in env.names:
        return name.path
    # a misspelled choice value would also be accepted by a parameter for arbitrary strings
    if TEXT_KIND not in kinds and resolve_name(name, env, missing_ok=True) is ERROR_VALUE:
        helps = suggest_similar_name(
            name.path, choice_names, f"expected one of {', '.join(choice_names)}"
        )
        raise_error("E0203", f"{description} cannot be `{name.path}`", name.span, helps=helps)
    return None


def _require_known_number(
    nodes: NodeBuilder, value: SpecValue, kinds: ParameterKinds, description: str
) -> SpecValue:
    """Return `value`. Raise E0315 if the value of an op attribute is known only at run time."""
    if isinstance(value, tuple) and kinds[:1] == (ListParameterKind(FLOAT_KIND),):
        return tuple(_require_known_number(nodes, v, (FLOAT_KIND,), description) for v in value)
    if FLOAT_KIND in kinds and isinstance(value, Number):
        return convert_to_op_attribute(nodes, value, description)
    return value


def call_builtin(
    context: ElaborationContext, target: BuiltinFunction, call: UnevaluatedFunctionCall
) -> EvalResult:
    """Call a built-in function with the arguments of `call`. Raise E0211 for a missing argument,
    E0212 for a repeated argument, and E0309 or E0310 for an undefined dimension.
    """
    builtin, expr = target.builtin, call.expr
    if builtin.name == "apply":
        raise_error("E0205", "the function that `apply` calls cannot be `apply`", expr.span)
    pairs = _pair_with_parameters(builtin, call)
    ctx = CallContext(call.inner_env, expr, {p.name: value.span for p, value in pairs})
    values = dict(target.bound_arguments)
    variadic_arguments = _evaluate_arguments(builtin, pairs, values, call.caller_env)
    _check_missing_arguments(builtin, values, bool(variadic_arguments), expr)
    # pass parameters that precede a variadic parameter by position, such as `a` in `min(a, b, c)`
    leading_names = [s.name for s in builtin.parameters if s.is_positional and builtin.is_variadic]
    leading_values = [values.pop(name) for name in leading_names if name in values]
    try:
        with context.weights.sharing.enter_call(expr, call.explicit_weight_scope):
            return builtin.evaluate(ctx, *leading_values, *variadic_arguments, **values)
    except DimError as error:
        code = "E0309" if isinstance(error, DimLimitError) else "E0310"
        raise_error(code, f"`{builtin.name}`: {error}", expr.span)


def _evaluate_arguments(
    builtin: Builtin,
    pairs: list[tuple[BuiltinParameter, ast.Expr]],
    values: dict[str, SpecValue],
    env: LexicalScope,
) -> list[SpecValue]:
    """Evaluate all arguments. Add named arguments to `values`, and return variadic arguments.

    All arguments are evaluated before an error is raised, so that all errors of a call are reported
    at once.
    """
    errors = ErrorCollectorContext()
    variadic_arguments: list[SpecValue] = []
    for parameter, expr in pairs:
        description = (
            f"`{builtin.name}`"
            if parameter.is_variadic
            else f"`{parameter.name}` of `{builtin.name}`"
        )
        with errors:
            value = evaluate_argument(expr, parameter.kinds, description, env)
            if parameter.is_variadic:
                variadic_arguments.append(value)
            else:
                values[parameter.name] = value
    errors.raise_collected_errors()
    return variadic_arguments


def _pair_with_parameters(
    builtin: Builtin, call: UnevaluatedFunctionCall
) -> list[tuple[BuiltinParameter, ast.Expr]]:
    """Pair each argument with its parameter. Raise E0201, E0211 or E0212 for invalid arguments."""
    positional = [s for s in builtin.parameters if s.is_positional]
    pairs: list[tuple[BuiltinParameter, ast.Expr]] = []
    for n, value in enumerate(call.args):
        # the last parameter may accept any number of arguments, as in `max(a, b, c)`
        parameter = positional[min(n, len(positional) - 1)] if positional else None
        if parameter is None or (n >= len(positional) and not parameter.is_variadic):
            _raise_too_many_inputs(builtin, len(positional), value.span)
        pairs.append((parameter, value))
    by_name = {s.name: s for s in builtin.parameters if not s.is_variadic}
    return pairs + match_options(builtin.name, call.options, by_name, {s.name for s, _ in pairs})


def _raise_too_many_inputs(builtin: Builtin, input_count: int, span: Span | None) -> NoReturn:
    plural = "s" * (input_count > 1)
    title = f"`{builtin.name}` takes {input_count or 'no'} input{plural}, but more were passed"
    options = [p.name for p in builtin.parameters if not p.is_positional]
    hints = [f"options are named: `{options[0]}=…`"] if options else []
    first_input = next((p for p in builtin.parameters if p.is_positional), None)
    if first_input and any(isinstance(kind, ListParameterKind) for kind in first_input.kinds):
        hints = [f"the input is one list: `{builtin.name}([a, b])`, in YAML `in: [[a, b]]`"]
    raise_error("E0211", title, span, helps=[*hints, f"`{builtin.format_signature()}`"])


def _check_missing_arguments(
    builtin: Builtin, values: Mapping[str, SpecValue], has_variadic: bool, expr: ast.Call
) -> None:
    """Raise E0211 if a parameter has neither an argument nor a default. `has_variadic` is True if
    the variadic parameter has an argument.
    """
    for parameter in builtin.parameters:
        is_required = parameter.default is MISSING and not parameter.is_variadic
        if is_required and parameter.name not in values:
            _raise_missing_argument(builtin, parameter, expr.span)
    has_input = has_variadic or any(
        p.is_positional and p.name in values for p in builtin.parameters
    )
    if builtin.is_variadic and not has_input:
        title = f"missing input of `{builtin.name}`"
        raise_error("E0211", title, expr.span, helps=[f"`{builtin.format_signature()}`"])


def _raise_missing_argument(
    builtin: Builtin, parameter: BuiltinParameter, span: Span | None
) -> NoReturn:
    kind = "input" if parameter.is_positional else "option"
    helps = [f"`{builtin.format_signature()}`"]
    if words := list_choice_values(parameter.kinds):
        helps = [f"write {' or '.join(f'`{parameter.name}={word}`' for word in words)}"]
    title = f"missing {kind} `{parameter.name}` of `{builtin.name}`"
    raise_error("E0211", title, span, helps=helps)


def evaluate_call(expr: ast.Call, env: LexicalScope) -> EvalResult:
    """Evaluate a call `f(args, options) @ weights`."""
    target = resolve_callee(expr.function, env)
    if isinstance(target, AttentionFunction):
        return bind_definition(target, expr, env)
    if isinstance(target, BuiltinFunction) and target.name == "apply":
        return _evaluate_apply(expr, env)
    return _dispatch_call(target, expr, expr.args, env)


def _evaluate_apply(expr: ast.Call, env: LexicalScope) -> EvalResult:
    """Evaluate `apply(f, x, …)`, which is a call of `f` with the remaining arguments."""
    if not expr.args:
        raise_error("E0211", "missing function, the first argument of `apply`", expr.span)
    description = "the first argument of `apply`"
    target = evaluate_argument(expr.args[0], (FUNCTION_KIND,), description, env)
    assert isinstance(target, Function)  # `evaluate_argument` raises an error for all other values
    return _dispatch_call(target, expr, expr.args[1:], env)


def _dispatch_call(
    target: Function, expr: ast.Call, args: Sequence[ast.Expr], env: LexicalScope
) -> EvalResult:
    inner_env = env
    if isinstance(target, BlockFunction) and target.weight_scope is not None:
        inner_env = replace(env, scope=target.weight_scope)
    # the weight path of the applied function comes first: the path of `apply(f @ a, x) @ b` is
    # `a.b`
    if target.weight_path:
        inner_env = inner_env.with_weight_scope(
            resolve_weight_path(target.weight_path, target.env or env)
        )
    if expr.weights:
        inner_env = inner_env.with_weight_scope(resolve_weight_path(expr.weights, env))
    pending = UnevaluatedFunctionCall(
        target=target, expr=expr, args=args, caller_env=env, inner_env=inner_env
    )
    match target:
        case BuiltinFunction():
            return call_builtin(env.context, target, pending)
        case BlockFunction():
            return call_block(env.context, target, pending)
    option = {"bias": "add", "normalizer": "normalize"}.get(target.kind, target.kind)
    raise_error(
        "E0205",
        f"{describe_value(target)} cannot be called with tensors",
        expr.span,
        helps=[f"pass it to `attend` or `attend_by` as `{option}=`"],
    )


def evaluate_function_value(expr: ast.Expr, env: LexicalScope) -> EvalResult:
    """Evaluate an expression to a function value, like `layer_norm(eps=1e-5)` or `gelu`."""
    expr = select_conditional_branch(expr, env)
    match expr:
        case ast.Name(path=path) if path in NAMED_CONSTANTS:
            return NAMED_CONSTANTS[path]
        case ast.Call():
            target = resolve_callee(expr.function, env)
            if isinstance(target, AttentionFunction):
                return bind_definition(target, expr, env)
            return bind_function_options(target, expr, env)
    return env.evaluate_value(expr)


def bind_function_options(
    target: BuiltinFunction | BlockFunction, expr: ast.Call, env: LexicalScope
) -> EvalResult:
    """Bind options to a function. If the function has no inputs, call it immediately."""
    if isinstance(target, BuiltinFunction):
        parameters = target.builtin.parameters
        if not any(s.is_positional and s.default is MISSING for s in parameters):
            # a function without inputs, such as `rope(theta=…)`, is called immediately
            return evaluate_call(expr, env)
        values = _bind_builtin_options(target, expr, env)
        _reject_inputs(target, expr)
        return replace(target, bound_arguments=values, weight_path=expr.weights, env=env)
    # options of a block are converted to their declared types when the block is called
    options = {**target.bound_arguments, **{o.name: (o, env) for o in expr.options}}
    _reject_inputs(target, expr)
    return replace(target, bound_arguments=options, weight_path=expr.weights, env=target.env)


def _bind_builtin_options(
    target: BuiltinFunction, expr: ast.Call, env: LexicalScope
) -> dict[str, SpecValue]:
    """Return the options already bound to a function, together with the options of `expr`."""
    builtin = target.builtin
    parameters_by_name = {s.name: s for s in builtin.parameters}
    values = dict(target.bound_arguments)
    for option in expr.options:
        if option.name not in parameters_by_name:
            raise_unknown_option_error(builtin.name, option, parameters_by_name)
        kinds = parameters_by_name[option.name].kinds
        description = f"`{option.name}` of `{builtin.name}`"
        values[option.name] = evaluate_argument(option.value, kinds, description, env)
    return values


def _reject_inputs(target: Function, expr: ast.Call) -> None:
    """Raise E0211 if an expression for a function value contains positional arguments."""
    if expr.args:
        title = f"`{target.name}` is passed as a function here, so it accepts only options"
        raise_error("E0211", title, expr.args[0].span)
