"""Format a new spec that extends a built-in spec, with config values and comments."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from specc.diagnostics.diagnostic import Source, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.spec_modules import Program, build_program
from specc.library.spec_files import SpecLibrary, find_builtin_specs
from specc.syntax import ast
from specc.syntax.ast import walk_tree
from specc.syntax.dsl.dsl_parser import parse_expression
from specc.syntax.dsl.expression_printer import format_expression

SCHEMA_FILE = "specc.schema.json"
"""File name of the JSON Schema of YAML specs, which is written next to specs for editors."""
SAMPLE_VALUES = {"int": "16", "float": "1.0", "bool": "false", "list": "[16]"}
"""Placeholder values, by type, for config fields without a default."""


@dataclass(kw_only=True)
class DerivedSpec:
    """A spec that extends a base spec: its name, the config values by path that override the
    defaults, and the comment lines before and after the spec.
    """

    name: str
    extends: str
    config_values: Mapping[str, str] = field(default_factory=dict)
    header_comments: tuple[str, ...] = ()
    footer_comments: tuple[str, ...] = ()
    omits_defaults: bool = False
    """True if the spec contains only `config_values`, without the defaults of the other fields."""
    comment_separator: str = ": "
    """The separator between a config name and its value in a comment."""


def format_derived_spec(derived_spec: DerivedSpec) -> ast.File:
    """Build the syntax tree of a derived spec. Raise E0222 if the base spec is not built-in."""
    library = SpecLibrary()
    if derived_spec.extends not in find_builtin_specs():
        helps = suggest_similar_name(
            derived_spec.extends,
            find_builtin_specs(),
            "`specc list specs` prints the built-in specs",
        )
        raise_error("E0222", f"unknown built-in spec `{derived_spec.extends}`", helps=helps)
    program = build_program(library.open_spec(derived_spec.extends), library)
    entries = list(_iterate_entries(program, derived_spec))
    return ast.File(
        version=1,
        model=derived_spec.name,
        doc=program.doc,
        extends=derived_spec.extends,
        items=(_make_config(entries),)
        if any(isinstance(entry, ast.ConfigOverride) for entry in entries)
        else (),
        comments=ast.Comments(leading=derived_spec.header_comments),
        end=derived_spec.footer_comments,
    )


def _make_config(entries: list["ast.ConfigOverride | str"]) -> ast.ConfigSection:
    """Build a `config` section from entries and comments; comments precede the next entry."""
    assignments: list[ast.ConfigEntry] = []
    pending_comments: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            pending_comments.append(entry)
        else:
            comments = ast.Comments(tuple(pending_comments), entry.comments.trailing)
            assignments.append(ast.ConfigOverride(entry.name, entry.value, comments=comments))
            pending_comments = []
    return ast.ConfigSection(tuple(assignments), end=tuple(pending_comments))


def _iterate_entries(
    program: Program, derived_spec: DerivedSpec
) -> Iterator["ast.ConfigOverride | str"]:
    """Yield a value or comment for each config field, followed by the values of used specs."""
    fields = {entry.name: entry for entry in program.iterate_fields()}
    for name, entry in fields.items():
        written_values: dict[str, str] = {}
        for path, config_field in _flatten_fields(entry, name):
            text, is_written = _format_value(program, derived_spec, path, config_field)
            if not text or (derived_spec.omits_defaults and path not in derived_spec.config_values):
                continue
            if is_written:
                written_values[path] = text
            else:
                doc = f"  ({config_field.doc})" if config_field.doc else ""
                yield f"{path}{derived_spec.comment_separator}{text}{doc}"
        if written_values:
            yield ast.ConfigOverride(
                name, _build_value(written_values, name), comments=ast.Comments(trailing=entry.doc)
            )
    yield from _iterate_used_spec_values(derived_spec.config_values, fields)


def _iterate_used_spec_values(
    values: Mapping[str, str], fields: Container[str]
) -> Iterator[ast.ConfigOverride]:
    """Yield the config values whose path is not a field of the spec itself, but of a used spec."""
    spec_values = {path: text for path, text in values.items() if path.split(".")[0] not in fields}
    for name in dict.fromkeys(path.split(".")[0] for path in spec_values):
        nested_values = {
            path: text for path, text in spec_values.items() if path.split(".")[0] == name
        }
        yield ast.ConfigOverride(name, _build_value(nested_values, name))


def _build_value(values: Mapping[str, str], path: str) -> ast.Expr:
    """Build the expression of the config value at a path: a literal, a record, or a call."""
    subpaths = [p.removeprefix(f"{path}.") for p in values if p.startswith(f"{path}.")]
    names = dict.fromkeys(p.split(".")[0] for p in subpaths)
    options = [ast.Option(name, _build_value(values, f"{path}.{name}")) for name in names]
    if path not in values:
        return ast.RecordLiteral(tuple(options))
    # a used spec is written as a call of the spec's name with its config values as arguments
    if options:
        return ast.Call(ast.Name(values[path]), options=tuple(options))
    return parse_expression(Source("<value>", values[path]))


def _flatten_fields(entry: ast.Field, path: str) -> Iterator[tuple[str, ast.Field]]:
    """Yield the leaf fields of an entry with their dotted paths."""
    if entry.type.name != "record":
        yield path, entry
        return
    for part in entry.type.fields:
        yield from _flatten_fields(part, f"{path}.{part.name}")


def _format_value(
    program: Program, derived_spec: DerivedSpec, path: str, entry: ast.Field
) -> tuple[str, bool]:
    """Return the source text of a field's value, and whether the config section sets the value. A
    default that is computed from other fields is a comment instead.
    """
    if path in derived_spec.config_values:
        return derived_spec.config_values[path], True
    if path in program.assignments:
        return format_expression(program.assignments[path].value), True
    if entry.default is None:
        sample = "" if entry.type.optional else SAMPLE_VALUES.get(entry.type.name, "")
        return sample, True
    names = {path.split(".")[0] for path in program.map_fields_by_path()}
    depends_on_fields = any(
        isinstance(node, ast.Name) and node.path.split(".")[0] in names
        for node in walk_tree(entry.default)
    )
    return format_expression(entry.default), not depends_on_fields
