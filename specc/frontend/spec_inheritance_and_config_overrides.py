"""Check the items of a derived spec, and parse config values from derived specs, `--set` arguments
and Python callers.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TypeVar

from specc.diagnostics.diagnostic import ErrorCollector, Label, Source, Span, raise_error
from specc.diagnostics.suggest import format_name_list, suggest_similar_name
from specc.frontend.elaboration_context import SpecNamespace
from specc.frontend.elaboration_limits_and_errors import ErrorCollectorContext
from specc.io.safe_read import escape_text
from specc.syntax import ast
from specc.syntax.dsl.dsl_lexer import MAX_NESTING
from specc.syntax.dsl.dsl_parser import parse_expression
from specc.syntax.inputs_section import iterate_declared_inputs, resolve_declared_inputs

Entry = TypeVar("Entry", bound=ast.ConfigEntry)


def iterate_config_entries(file: ast.File, entry_type: type[Entry]) -> Iterator[Entry]:
    """Yield the entries that are instances of `entry_type` in the `config` sections of a file."""
    for item in file.items:
        if isinstance(item, ast.ConfigSection):
            yield from (e for e in item.entries if isinstance(e, entry_type))


def iterate_defined_names(item: ast.Item) -> Iterator[tuple[str, Span | None]]:
    """Yield (name, span) for each name that an item defines."""
    match item:
        case ast.Block() | ast.AttentionDef():
            yield item.name, item.name_span
        case ast.DimsSection():
            yield from ((d.name, d.span) for d in item.dims)
        case ast.UseStatement():
            yield item.name, item.span
        case ast.ConfigSection():
            yield from ((e.name, e.span) for e in item.entries if isinstance(e, ast.ConfigField))


def check_derived_spec_items(module: SpecNamespace) -> None:
    """Raise E0209 if an item of a derived spec would change the graph of the base spec."""
    for item in module.file.items:
        match item:
            case ast.Block(kind="graph"):
                description = "a graph"
            case ast.DimsSection():
                description = "`dims`"
            case ast.UseStatement(has_own_config=True):
                description = "a spec with a separate config and separate weights"
            case _:
                continue
        raise_error(
            "E0209",
            f"{description} is not allowed in a derived spec",
            item.span,
            "allowed only in a spec without `extends`",
            notes=[
                "a derived spec sets config values of its base spec, and may contain masks, "
                "scores, biases, normalizers and blocks for these values, and the sections "
                "`inputs`, `require`, `reading`, `weights` and `generate`"
            ],
            helps=["remove `extends`, or move this to the base spec"],
        )


def check_derived_spec_names(module: SpecNamespace, base: SpecNamespace) -> None:
    """Raise E0225 if the base spec already defines a name of a derived spec. Such a name would have
    different meanings in config values and in the graph.
    """
    spans_by_name: dict[str, Span | None] = {}
    ancestor: SpecNamespace | None = base
    while ancestor:
        for item in ancestor.file.items:
            for name, span in iterate_defined_names(item):
                spans_by_name.setdefault(name, span)
        ancestor = ancestor.base
    errors = ErrorCollectorContext()
    for item in module.file.items:
        for name, span in iterate_defined_names(item):
            with errors:
                if name in spans_by_name:
                    raise_error(
                        "E0225",
                        f"`{name}` is already defined in `{base.file.model}`, which this spec "
                        "extends",
                        span,
                        "again here",
                        related_labels=Label.tuple_from_span(spans_by_name[name], "first here"),
                        notes=[
                            "definitions in a derived spec are for its config values; they do "
                            "not replace definitions of the base spec"
                        ],
                        helps=[_suggest_for_redefinition(item, name)],
                    )
    errors.raise_collected_errors()


def apply_input_overrides(chain: Sequence[SpecNamespace]) -> SpecNamespace:
    """Return the base spec of a chain with the input declarations of the derived specs. A
    declaration of a derived spec replaces a base declaration of the same name. Raise E0201 for an
    input that the base spec does not declare.
    """
    *derived_modules, base = chain
    overrides = {
        entry.name: entry
        for module in reversed(derived_modules)
        for entry in iterate_declared_inputs(module.file)
    }
    if not overrides:
        return base
    _check_overridden_inputs(overrides.values(), base.file)
    items = tuple(_override_entries(item, overrides) for item in base.file.items)
    # errors of the base spec have already been reported, and overriding sections adds none
    file = resolve_declared_inputs(ErrorCollector(), replace(base.file, items=items))
    blocks = [item for item in file.items if isinstance(item, ast.Block | ast.AttentionDef)]
    return replace(base, file=file, items={block.name: block for block in blocks})


def _override_entries(item: ast.Item, overrides: Mapping[str, ast.InputDecl]) -> ast.Item:
    """Replace the entries of an `inputs` section, and return any other item unchanged."""
    if not isinstance(item, ast.InputsSection):
        return item
    return replace(item, entries=tuple(overrides.get(e.name, e) for e in item.entries))


def _check_overridden_inputs(overrides: Iterable[ast.InputDecl], base: ast.File) -> None:
    """Raise E0201 for an overridden input that the base spec does not declare."""
    names = {entry.name: None for entry in iterate_declared_inputs(base)}
    for entry in overrides:
        if entry.name not in names:
            title = f"`{base.model}` declares no input `{entry.name}` in `inputs`"
            default_help = f"its inputs: {format_name_list(names)}" if names else ""
            helps = suggest_similar_name(entry.name, names, default_help)
            raise_error("E0201", title, entry.span, "unknown input", helps=helps)


def _suggest_for_redefinition(item: ast.Item, name: str) -> str:
    """Return a help message that suggests either setting a field or renaming a definition."""
    if isinstance(item, ast.ConfigSection):
        return f"set its value without a type: `{name} = …`, in YAML `{name}: …`"
    return f"rename it, for example to `{name}_here`, and use that name in `config`"


def reject_untyped_config_values(module: SpecNamespace) -> None:
    """Raise E0220 if a file that does not extend a spec contains a config value without a type."""
    for entry in iterate_config_entries(module.file, ast.ConfigOverride):
        helps = [
            f"declare it: `{entry.name}: {_format_declaration(entry.value)}`",
            "or name the spec that declares it: `extends …`",
        ]
        title = f"`{entry.name}` has a value but no type"
        raise_error("E0220", title, entry.span, helps=helps)


def _format_declaration(value: ast.Expr) -> str:
    """Format a config field declaration with `value` as the default."""
    text = value.span.text if value.span else "…"
    match value:
        case ast.NumberLiteral(text=number):
            return f"{'int' if number.isdigit() else 'float'} = {number}"
        case ast.Name(path="true" | "false" as truth):
            return f"bool = {truth}"
        case ast.StringLiteral():
            return f"text = {text}"
    return f"int = {text}" if "\n" not in text else "int = …"


@dataclass(frozen=True)
class ConfigAssignment:
    """A value that a derived spec or the command line assigns to a config field. Names in the value
    are resolved in `module`; if `module` is None, they are resolved in the spec that the user
    named.
    """

    value: ast.Expr
    span: Span | None
    module: SpecNamespace | None = None


def parse_config_assignments(settings: Sequence[str]) -> dict[str, ConfigAssignment]:
    """Return the values that `--set` arguments assign, keyed by config path. Raise E0407 if the
    name or `=` is missing.
    """
    assignments: dict[str, ConfigAssignment] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not (equals and path.strip()):
            missing = "name" if equals else "value"
            title = f"`--set {escape_text(setting)}` has no {missing}"
            raise_error("E0407", title, helps=["write --set heads=4"])
        expr = parse_expression(Source(f"--set {path}", text))
        flatten_config_assignments(path.strip(), expr, expr.span, assignments)
    return assignments


def flatten_config_assignments(
    path: str,
    value: ast.Expr,
    span: Span | None,
    assignments: dict[str, ConfigAssignment],
    module: SpecNamespace | None = None,
) -> None:
    """Add a value to `assignments`. Flatten records to dotted paths so that they can be merged."""
    if isinstance(value, ast.RecordLiteral):
        for option in value.fields:
            option_span = option.span or span
            flatten_config_assignments(
                f"{path}.{option.name}", option.value, option_span, assignments, module
            )
    else:
        assignments[path] = ConfigAssignment(value, span, module)


def iterate_config_literals(
    prefix: str, config_values: Mapping[str, object], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield config values by dotted path, as literals of the spec language."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"values are nested more than {MAX_NESTING} levels deep",
            helps=["check whether a value contains itself"],
        )
    for key, value in config_values.items():
        path = f"{prefix}{key}"
        if "=" in path:
            raise_error("E0407", f"`{escape_text(path)}` is not the name of a config value")
        if isinstance(value, Mapping):
            yield from iterate_config_literals(f"{path}.", value, depth + 1)
        else:
            yield path, _format_literal(value, path)


def _format_literal(value: object, path: str, depth: int = 0) -> str:
    """Return a Python value as a literal of the spec language. Raise E0203 for other values."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"the value of `{escape_text(path)}` is nested more than {MAX_NESTING} levels deep",
            helps=["check whether the value contains itself"],
        )
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            # a plain string may be an expression, but strings in a list are string literals
            return value if depth == 0 else json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(_format_literal(item, path, depth + 1) for item in value)}]"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
    raise_error(
        "E0203",
        f"`{escape_text(path)}` cannot be set to {escape_text(repr(value))[:60]}",
        helps=["pass a number, a bool, a string, a list or None"],
    )
