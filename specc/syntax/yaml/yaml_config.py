"""Parse and print the `config` section of YAML specs."""

from collections.abc import Callable, Iterable, Mapping

from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import SOURCE
from specc.syntax.dsl.expression_printer import format_expression, format_type_name
from specc.syntax.yaml import yaml_reader
from specc.syntax.yaml.yaml_composer import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlScalar,
    YamlSequence,
)
from specc.syntax.yaml.yaml_layout import (
    YamlMap,
    YamlPair,
    YamlValue,
    make_yaml_list,
    strings_to_yaml,
)
from specc.syntax.yaml.yaml_reader import YamlReader, get_entry_span, get_first_line_span
from specc.syntax.yaml.yaml_values import (
    MISSING_TYPE,
    parse_yaml_fragment,
    parse_yaml_name,
    parse_yaml_static_value,
    parse_yaml_type,
)

FIELD_KEYS = ("type", "from", "default", "doc")
IGNORED_KEYS = "ignore keys"
"""The YAML key that lists ignored config keys. It contains a space, so that no config value can
have this name.
"""


def parse_yaml_config_entry(reader: YamlReader, entry: YamlEntry) -> ast.ConfigEntry:
    """Parse an entry of `config`: a field, an expectation, or a value for a field of the extended
    spec.
    """
    value = entry.value
    if entry.name.startswith("expect "):
        key = entry.name.removeprefix("expect ").strip()
        return ast.Expect(
            key, reader.read_strings(value, f"`{entry.name}`"), span=get_entry_span(entry)
        )
    if entry.name == IGNORED_KEYS:
        keys = reader.read_strings(value, f"`{IGNORED_KEYS}`")
        return ast.IgnoredKeys(keys, span=get_entry_span(entry))
    field_name = parse_yaml_name(reader, entry.key, "the name of a config value")
    if isinstance(value, YamlMapping) and is_field_declaration(e.name for e in value.entries):
        return parse_yaml_field(reader, field_name, entry, value)
    return ast.Assign(
        field_name, parse_yaml_static_value(reader, value), span=get_entry_span(entry)
    )


def is_field_declaration(keys: Iterable[str]) -> bool:
    """Return True if a map with these keys declares a config value, i.e. has the key `type` and
    only keys of a declaration.
    """
    names = set(keys)
    return "type" in names and names <= set(FIELD_KEYS)


def parse_yaml_field(
    reader: YamlReader, field_name: str, entry: YamlEntry, node: YamlMapping
) -> ast.Field:
    """Parse a config field, e.g. `{type: int, from: [hidden_size, n_embd], default: 768}`."""
    entries = {e.name: e for e in node.entries}
    field_type, leading_comments = parse_yaml_field_type(reader, entries["type"])
    sources: tuple[ast.Expr, ...] = ()
    if "from" in entries:
        paths = entries["from"].value
        nodes = paths.items if isinstance(paths, YamlSequence) else [paths]
        sources = tuple(parse_yaml_config_path(reader, n) for n in nodes)
    default = (
        parse_yaml_static_value(reader, entries["default"].value) if "default" in entries else None
    )
    return ast.Field(
        name=field_name,
        type=field_type,
        sources=sources,
        default=default,
        doc=reader.get_optional_text(entries, "doc"),
        comments=ast.Comments(leading_comments),
        span=get_entry_span(entry),
    )


def parse_yaml_field_type(
    reader: YamlReader, entry: YamlEntry
) -> tuple[ast.TypeName, tuple[str, ...]]:
    """Parse a type as a string, or `{record: {layers: {type: int}}}`; also return the comments that
    are moved above the field.
    """
    node = entry.value
    if not isinstance(node, YamlMapping):
        return parse_yaml_type(reader, node), ()
    entries = reader.read_known_keys(node, ("record",), "a type", ("record",))
    if "record" not in entries:
        return MISSING_TYPE, ()
    record = entries["record"]
    example = "`{layers: {type: int, default: 6}}`"
    fields = []
    for field_entry in reader.read_mapping(record.value, "a record", example):
        field = parse_yaml_config_entry(reader, field_entry)
        if isinstance(field, ast.Field):
            fields.append(field)
        else:
            reader.report_error(
                "E0126",
                f"`{field_entry.name}` has no `type`",
                get_first_line_span(field_entry.key.span),
                "`type` is missing here",
                f"write `{field_entry.name}: {{type: int}}`",
            )
    body = yaml_reader.collect_yaml_body(reader, record, fields)
    leading_comments = ((body.trailing,) if body.trailing else ()) + body.end
    return ast.TypeName(name="record", fields=body.children, span=node.span), leading_comments


def parse_yaml_config_path(reader: YamlReader, node: YamlNode) -> ast.Expr:
    """Parse a source in config.json: a path as unquoted text, or a call such as
    `len("id2label")`.
    """
    if isinstance(node, YamlScalar) and is_bare_config_path(node.value):
        return ast.TextLiteral(node.value, span=node.span)
    subject = "a place in config.json"
    return parse_yaml_fragment(reader, node, SOURCE, subject) or ast.TextLiteral("")


def is_bare_config_path(text: str) -> bool:
    """Return True if a path in config.json needs no quotes in YAML: it is neither a string literal
    nor a call.
    """
    return bool(text) and not text.startswith('"') and "(" not in text


def field_to_yaml(node: ast.Field) -> YamlPair:
    """Convert a config field to a map, e.g. `d: {type: int, from: hidden_size, default: 768, doc:
    width}`.
    """
    pairs = [YamlPair("type", field_type_to_yaml(node.type))]
    if node.sources:
        pairs.append(
            YamlPair("from", strings_to_yaml([config_path_to_yaml(s) for s in node.sources]))
        )
    if node.default is not None:
        pairs.append(YamlPair("default", static_value_to_yaml(node.default)))
    if node.doc:
        pairs.append(YamlPair("doc", node.doc))
    return YamlPair(
        node.name, YamlMap(pairs), node.comments, is_comment_on_first_line=bool(node.type.fields)
    )


def field_type_to_yaml(kind: ast.TypeName) -> YamlValue:
    """Convert a record type to a map of its fields, and any other type to a string."""
    if kind.name != "record" or kind.optional or not kind.fields:
        return format_type_name(kind)
    return YamlMap([YamlPair("record", YamlMap([field_to_yaml(f) for f in kind.fields]))])


def config_path_to_yaml(expr: ast.Expr) -> str:
    """Convert a path in config.json to an unquoted string, and any other expression to a DSL
    string.
    """
    if not isinstance(expr, ast.TextLiteral):
        return format_expression(expr)
    return expr.value if is_bare_config_path(expr.value) else format_expression(expr)


def static_value_to_yaml(expr: ast.Expr) -> YamlValue:
    """Convert a config value to YAML; a record becomes a map."""
    match expr:
        case ast.RecordLiteral():
            return YamlMap([YamlPair(f.name, static_value_to_yaml(f.value)) for f in expr.fields])
        case ast.ListLiteral():
            return make_yaml_list(map(static_value_to_yaml, expr.items))
        case _:
            return format_expression(expr)


def assignment_to_yaml(entry: ast.Assign) -> YamlPair:
    """Convert a value for a field of the extended spec to YAML."""
    value = static_value_to_yaml(entry.value)
    # a record that looks like a declaration would be parsed as one
    if isinstance(value, YamlMap) and is_field_declaration(p.key for p in value.pairs):
        value = format_expression(entry.value)
    return YamlPair(entry.name, value, entry.comments)


CONFIG_ENTRIES: Mapping[type[ast.Node], Callable[..., YamlPair]] = {
    ast.Field: field_to_yaml,
    ast.Expect: lambda e: YamlPair(f"expect {e.key}", make_yaml_list(e.values), e.comments),
    ast.IgnoredKeys: lambda e: YamlPair(IGNORED_KEYS, make_yaml_list(e.keys), e.comments),
    ast.Assign: assignment_to_yaml,
}
"""The functions that convert entries of `config` to YAML, by AST class."""
