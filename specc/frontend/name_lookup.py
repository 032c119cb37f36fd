"""Resolve names of variables, dimensions, config values, blocks, definitions and built-in
functions. Evaluate expressions whose value must be a normalizer or have a declared type.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, Span, raise_error
from specc.diagnostics.suggest import format_suggestion, suggest_similar_name
from specc.frontend.builtins.registry import BUILTINS
from specc.frontend.declared_types import is_function_type
from specc.frontend.elaboration_context import LexicalScope, SpecNamespace, join_weight_path
from specc.frontend.foreign_names_and_options import (
    FOREIGN_LIBRARIES,
    suggest_builtin_for_qualified_name,
    suggest_replacement_name,
)
from specc.frontend.json_parser_with_spans import JsonObject
from specc.frontend.mask_and_bias_definitions import bind_definition
from specc.frontend.parameter_kinds import NORMALIZER_NAMES
from specc.frontend.spec_values import (
    ERROR_VALUE,
    MISSING,
    AttentionFunction,
    BlockFunction,
    BuiltinFunction,
    EvalResult,
    Function,
    MissingValue,
    RawConfigSection,
    Record,
    ResultTuple,
    SpecValue,
    StringChoice,
    SubmodelConfig,
    Tensor,
    describe_value,
)
from specc.syntax import ast

NAMED_CONSTANTS: dict[str, SpecValue] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": math.inf,
    "pi": math.pi,
}
"""The constants of the spec language, by name."""

MISSPELLED_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "none",
    "null": "none",
    "yes": "true",
    "no": "false",
    "on": "true",
    "off": "false",
    "nil": "none",
    "~": "none",
}
"""The spec constant for each constant of other languages."""

LIST_HELP = "see `specc list`"

QUERY_KEY_INDEX_NAMES = ("i", "j")
"""The index variables for query and key positions in masks, scores, biases and normalizers."""


def resolve_name(name: ast.Name, env: LexicalScope, missing_ok: bool = False) -> EvalResult:
    """Return the value of a dotted name. For an unknown name, raise E0202, or return ERROR_VALUE if
    `missing_ok` is True.
    """
    head, *rest = name.path.split(".")
    value: EvalResult | MissingValue = _resolve_first_part(head, env, name.span)
    if isinstance(value, MissingValue) and head == "config" and rest:
        # `config` means the whole config file, unless a variable or config field has this name
        value = RawConfigSection("", env.config_file)
    if isinstance(value, MissingValue):
        if rest and (item := resolve_used_spec_function(name, env)) is not None:
            return item
        if missing_ok:
            return ERROR_VALUE
        _raise_unknown_name(name, env)
    if rest and _has_used_item(value, rest[0]):
        item = resolve_used_spec_function(name, env)
        if item is not None:
            return item
    for part in rest:
        value = _get_member(value, part, name, missing_ok)
    return value


def _has_used_item(value: EvalResult, name: str) -> bool:
    """Return True if a value is a used spec's config and the spec defines an item `name`."""
    return (
        isinstance(value, Record)
        and value.used_spec is not None
        and name in value.used_spec.module.items
    )


def _resolve_first_part(
    first_name: str, env: LexicalScope, span: Span | None
) -> SpecValue | MissingValue:
    """Return the value of the first component of a dotted name. The lookup order is: index
    variables, variables, dimensions, config values, functions of the spec, functions of std.
    """
    values_by_name: Mapping[str, SpecValue]
    for values_by_name in (env.index_variables, env.names, env.dims, env.config):
        if first_name in values_by_name:
            return values_by_name[first_name]
    if (length := env.find_dynamic_length(first_name)) is not None:
        return length
    if first_name in NAMED_CONSTANTS:
        return NAMED_CONSTANTS[first_name]
    if first_name == "i" and env.index_variables:
        _raise_no_query_position(span)
    target = resolve_function(first_name, env, span)
    return MISSING if target is None else target


def _raise_no_query_position(span: Span | None) -> NoReturn:
    """Raise E0604 if `i` is used with a query [batch, d], which has no position axis."""
    helps = [
        "`insert(x, axis=1)` adds a length axis of size 1 to the query",
        "`local_window(center, reach)` and `trailing_window(at, back)` have a parameter for the "
        "query position",
    ]
    title = "this query has no position: it is one vector per batch element"
    raise_error("E0604", title, span, "reads the query's position", helps=helps)


def resolve_function(name: str, env: LexicalScope, span: Span | None) -> Function | None:
    """Return the function `name`, which is looked up in the spec, std and the built-ins."""
    item_and_module = env.module.find_definition(name) or env.context.library.find_std_item(name)
    # std also defines a normalizer `topk`, but here the name `topk` means the built-in function
    is_builtin_name = (
        item_and_module is not None and item_and_module[1].is_standard and name in BUILTINS
    )
    if item_and_module is not None and not is_builtin_name:
        return _make_function_value(*item_and_module, env, span)
    if name in BUILTINS:
        return BuiltinFunction(name=name, builtin=BUILTINS[name], env=env, span=span)
    return None


def _make_function_value(
    item: ast.Block | ast.AttentionDef, module: SpecNamespace, env: LexicalScope, span: Span | None
) -> Function:
    """Return a block or definition of `module` as a function value."""
    name = item.name
    if isinstance(item, ast.Block):
        return BlockFunction(name=name, block=item, module=module, env=env, span=span)
    return AttentionFunction(name=name, definition=item, module=module, env=env, span=span)


def resolve_used_spec_function(name: ast.Name, env: LexicalScope) -> Function | None:
    """Return an item such as `v.encoder` of a file with the `use` alias `v`, or None."""
    alias, _, item_name = name.path.partition(".")
    if (use_and_module := env.module.find_use_statement(alias)) is None:
        return None
    use, importer = use_and_module
    match env.config.get(alias):
        case Record(fields=config, used_spec=SubmodelConfig(module=module, config_file=file)):
            file_scope = join_weight_path(env.file_scope, use.under.text if use.under else "")
            inner_env = LexicalScope(
                context=env.context,
                module=module,
                config=config,
                config_file=file,
                file_scope=file_scope,
            )
        case _:
            module = env.context.library.load_imported_module(use.path, importer, use.span)
            # the config is empty, because the used file cannot read the config of the caller
            inner_env = LexicalScope(context=env.context, module=module, config={})
    if item_name not in module.items:
        _raise_unknown_item(module, item_name, use, name.span)
    function = _make_function_value(module.items[item_name], module, inner_env, name.span)
    if isinstance(function, BlockFunction) and use.has_own_config:
        return replace(function, weight_scope=inner_env.file_scope)
    return function


def _raise_unknown_item(
    module: SpecNamespace, item_name: str, use: ast.UseStatement, span: Span | None
) -> NoReturn:
    """Raise E0204 for a name that is not a block, definition or graph of a used file."""
    helps = suggest_similar_name(
        item_name, module.items, f"expected one of {', '.join(module.items)}"
    )
    title = f"`{module.path}` has no block or graph called `{item_name}`"
    related_labels = [Label(use.span, "used here")] if use.span and use.paths[1:] else []
    raise_error("E0204", title, span, helps=helps, related_labels=related_labels)


def _get_member(value: EvalResult, member_name: str, name: ast.Name, is_quiet: bool) -> EvalResult:
    """Return the member `member_name` of a record, a raw config, or the results of a call."""
    match value:
        case Record(fields=fields) if member_name in fields:
            return fields[member_name]
        case Record(fields=fields):
            if is_quiet:
                return ERROR_VALUE
            expected = f"expected one of {', '.join(fields)}"
            helps = suggest_similar_name(member_name, fields, expected)
            title = f"`{name.path}`: the record has no field `{member_name}`"
            raise_error("E0202", title, name.span, helps=helps)
        case RawConfigSection() as config:
            return _get_raw_section(config, member_name)
        case ResultTuple(values=values, names=names) if member_name in names:
            return values[names.index(member_name)]
    # suggest an equivalent for tensor attributes of other libraries, such as `x.shape` or `x.T`
    fix = suggest_replacement_name(member_name, BUILTINS) if isinstance(value, Tensor) else ""
    title = f"`{name.path}`: {describe_value(value)} has no member `{member_name}`"
    raise_error("E0202", title, name.span, helps=[fix] if fix else ())


def _get_raw_section(config: RawConfigSection, key: str) -> RawConfigSection:
    """Return the section of a raw config under a key, or an empty section."""
    member = config.data.members.get(key) if config.data else None
    section = member.value if member and isinstance(member.value, JsonObject) else None
    return RawConfigSection(f"{config.path}.{key}".lstrip("."), section)


def _raise_unknown_name(name: ast.Name, env: LexicalScope) -> NoReturn:
    """Raise E0202 for an undefined name, or E0105 for a constant of another language. The help
    messages explain index variables, foreign operations and typos.
    """
    if name.path in MISSPELLED_CONSTANTS:
        suggestion = format_suggestion(MISSPELLED_CONSTANTS[name.path])
        raise_error("E0105", f"`{name.path}` is not a value here; {suggestion}", name.span)
    values = [*env.index_variables, *env.names, *env.dims, *env.config]
    values += [*env.module.root.dims, *NAMED_CONSTANTS]
    functions = _list_functions(env)
    if name.path in QUERY_KEY_INDEX_NAMES:
        helps = [
            f"`{name.path}` is an index in the definition of a mask, score or bias: define "
            "one, and use its name here"
        ]
    elif fix := suggest_replacement_name(name.path, functions):
        helps = [fix]
    else:
        names = _format_visible_names(env)
        # an unknown name that is not called is more likely a variable than a block
        helps = suggest_similar_name(name.path, values)
        helps = helps or suggest_similar_name(name.path, functions, names)
    title = f"`{name.path}` is not defined"
    raise_error("E0202", title, name.span, "unknown name", helps=helps)


def _format_visible_names(env: LexicalScope) -> str:
    names = sorted(n for n in {*env.names, *env.config} if not n.startswith("_"))
    return f"names in scope: {', '.join(names[:12])}" if names else ""


def _list_functions(env: LexicalScope) -> list[str]:
    """Return the names of all functions of the spec and of std, and of all built-in functions."""
    return [*env.module.list_names(), *env.context.library.list_std_names(), *BUILTINS]


def resolve_callee(name: ast.Name, env: LexicalScope) -> Function:
    """Return the callee of a call. Raise E0204 with a similar name for an unknown callee."""
    # a dotted name refers to a field of a record or an item of a used file, never to a block of
    # this file
    if "." in name.path:
        return _resolve_member_callee(name, env)
    value = env.names.get(name.path, env.config.get(name.path))
    if isinstance(value, Function):
        return value
    # a variable shadows a block with the same name, except as a callee
    target = resolve_function(name.path, env, name.span)
    if target is not None:
        return target
    if value is not None:
        title = f"`{name.path}` is {describe_value(value)} and cannot be called"
        raise_error("E0205", title, name.span)
    function_names = _list_functions(env)
    fix = suggest_replacement_name(name.path, function_names)
    helps = [fix] if fix else suggest_similar_name(name.path, function_names, LIST_HELP)
    title = f"unknown block or operation `{name.path}`"
    raise_error("E0204", title, name.span, "unknown operation", helps=helps)


def _resolve_member_callee(name: ast.Name, env: LexicalScope) -> Function:
    """Return the callee with a dotted name: a function in a record, or an item of a used file."""
    alias, _, member = name.path.partition(".")
    owner = resolve_name(ast.Name(alias, span=name.span), env, missing_ok=True)
    if (item := resolve_used_spec_function(name, env)) is not None:
        return item
    if isinstance(owner, Record | RawConfigSection):
        value = resolve_name(name, env)
        if isinstance(value, Function):
            return value
        title = f"`{name.path}` is {describe_value(value)} and cannot be called"
        raise_error("E0205", title, name.span)
    fix = suggest_builtin_for_qualified_name(name.path, _list_functions(env))
    helps, label = [fix or LIST_HELP], "operations are functions in specs"
    is_library = alias in FOREIGN_LIBRARIES
    if is_library and (owner is ERROR_VALUE or (fix and not isinstance(owner, Tensor))):
        title, label = f"`{name.path}` belongs to another library", "unknown operation"
    elif owner is not ERROR_VALUE:
        title = f"`{alias}` is {describe_value(owner)} and has no method `{member}`"
    else:
        title, use_text = f"no used file is called `{alias}`", f'`use "file.specc" as {alias}`'
        helps, label = suggest_similar_name(alias, env.module.uses, f"write {use_text} above"), ""
    raise_error("E0204", title, name.span, label, helps=helps)


def evaluate_with_expected_type(
    type: ast.TypeExpr, expr: ast.Expr, env: LexicalScope
) -> EvalResult:
    """Evaluate an expression whose value must have the declared type `type`."""
    if type.name == "normalizer":
        return evaluate_score_normalizer(expr, env)
    is_function = is_function_type(type)
    if is_function and type.name == "any" and isinstance(expr, ast.Call) and expr.args:
        # `positions(x)` evaluates to a tensor, but `window(3)` is still an unexpanded definition
        is_function = isinstance(resolve_callee(expr.function, env), AttentionFunction)
    return env.context.evaluator.evaluate_function(expr, env) if is_function else env.evaluate(expr)


def evaluate_score_normalizer(expr: ast.Expr, env: LexicalScope) -> EvalResult:
    """Evaluate an expression whose value must be a normalizer."""
    match expr:
        case ast.Conditional():
            is_true = env.evaluate(expr.condition)
            return evaluate_score_normalizer(expr.then if is_true else expr.otherwise, env)
        case ast.Name(path=path) if path in NORMALIZER_NAMES and path not in env.names:
            # names of built-in normalizers take precedence over config values
            return StringChoice(path, NORMALIZER_NAMES)
        case ast.Name() if normalizer := _find_normalizer(expr, env):
            return normalizer
        case ast.Call(function=name) if normalizer := _find_normalizer(name, env):
            return bind_definition(normalizer, expr, env)
    return env.evaluate(expr)


def _is_bound_name(path: str, env: LexicalScope) -> bool:
    """Return True if a name refers to a value in scope, or to a member of such a value."""
    head, *rest = path.split(".")
    is_bound = head in env.index_variables or head in env.names or head in env.config
    return is_bound or bool(rest) or head in NAMED_CONSTANTS


def _find_normalizer(name: ast.Name, env: LexicalScope) -> AttentionFunction | None:
    """Return the normalizer definition `name` of the spec or std, or None."""
    if _is_bound_name(name.path, env):
        return None
    item_and_module = env.module.find_definition(name.path) or env.context.library.find_std_item(
        name.path
    )
    match item_and_module and _make_function_value(*item_and_module, env, name.span):
        case AttentionFunction(kind="normalizer") as function:
            return function
    return None
