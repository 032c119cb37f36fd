"""Evaluate normalizers of attention scores: built-in names such as `softmax`, and definitions."""

from specc.frontend.context import Context, Env
from specc.frontend.declared_types import is_function_type
from specc.frontend.masks import bind_definition
from specc.frontend.name_lookup import NAMED_CONSTANTS, resolve_callee
from specc.frontend.parameter_kinds import NORMALIZER_WORDS
from specc.frontend.spec_values import ChoiceValue, DefinitionFunction, EvalResult
from specc.syntax import ast


def evaluate_as_type(context: Context, type: ast.TypeName, expr: ast.Expr, env: Env) -> EvalResult:
    """Evaluate an expression where a value of a declared type is expected."""
    if type.name == "normalizer":
        return evaluate_normalizer(context, expr, env)
    is_function = is_function_type(type)
    if is_function and type.name == "any" and isinstance(expr, ast.Call) and expr.args:
        # `positions(x)` is a tensor; `window(3)` stays a definition
        is_function = isinstance(resolve_callee(context, expr.function, env), DefinitionFunction)
    return context.evaluate_function(expr, env) if is_function else context.evaluate(expr, env)


def evaluate_normalizer(context: Context, expr: ast.Expr, env: Env) -> EvalResult:
    """Evaluate an expression where a normalizer is expected."""
    match expr:
        case ast.Conditional():
            taken = context.evaluate(expr.condition, env)
            return evaluate_normalizer(context, expr.then if taken else expr.otherwise, env)
        case ast.Name(path=path) if path in NORMALIZER_WORDS and path not in env.names:
            # built-in names take precedence over config values
            return ChoiceValue(path, NORMALIZER_WORDS)
        case ast.Name(path=path) if not _is_bound_name(path, env):
            if (found := _find_normalizer(context, expr, env)) is not None:
                return found
        case ast.Call(function=name) if not _is_bound_name(name.path, env):
            if (found := _find_normalizer(context, name, env)) is not None:
                return bind_definition(context, found, expr, env)
    return context.evaluate(expr, env)


def _is_bound_name(path: str, env: Env) -> bool:
    """Return whether a name stands for a value here, or for a member of one."""
    head, *rest = path.split(".")
    bound = head in env.grid_indices or head in env.names or head in env.config
    return bound or bool(rest) or head in NAMED_CONSTANTS


def _find_normalizer(context: Context, name: ast.Name, env: Env) -> DefinitionFunction | None:
    """Return the normalizer of this name, from the spec or from std, or None."""
    found = env.module.find_definition(name.path) or context.library.find_standard_item(name.path)
    if found is None:
        return None
    item, module = found
    if isinstance(item, ast.Block) or item.kind != "normalizer":
        return None
    return DefinitionFunction(
        name=name.path, definition=item, module=module, env=env, span=name.span
    )
