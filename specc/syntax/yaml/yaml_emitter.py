"""Convert expressions and `config` entries to YAML, and print YAML in flow or block style."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.syntax import ast
from specc.syntax.ast import NO_COMMENTS, Comments
from specc.syntax.dsl.expression_printer import (
    MAX_LINE_WIDTH,
    TEXT_ESCAPES,
    format_comment_lines,
    format_expression,
    format_inline_type,
    is_printable_character,
)


@immutable_dataclass
class YamlPair:
    """A `key: value` pair with its comments. If `is_comment_on_first_line` is True, the trailing
    comment is on the first line, otherwise on the last line.
    """

    key: str
    value: "YamlValue"
    comments: Comments = NO_COMMENTS
    is_comment_on_first_line: bool = False


@immutable_dataclass
class YamlMap:
    """A YAML map. `end_comments` are the comments after the last entry. If `is_multiline` is True,
    each entry is on its own line.
    """

    entries: list[YamlPair]
    end_comments: tuple[str, ...] = ()
    is_multiline: bool = False


@immutable_dataclass
class YamlItem:
    """An entry of a YAML list, with its comments."""

    value: "YamlValue"
    comments: Comments = NO_COMMENTS
    is_comment_on_first_line: bool = False
    has_blank_line_before: bool = False


@immutable_dataclass
class YamlList:
    """A YAML list. `end_comments` and `is_multiline` have the same meaning as in `YamlMap`."""

    entries: list[YamlItem] = field(default_factory=list)
    end_comments: tuple[str, ...] = ()
    is_multiline: bool = False


YamlValue: TypeAlias = str | YamlMap | YamlList

PLAIN_SCALAR = re.compile(r"(?:[A-Za-z0-9_(]|[-.][A-Za-z0-9_(])(?:.*\S)?", re.DOTALL)


def format_yaml_scalar(text: str, is_flow: bool) -> str:
    """Format a string as a YAML scalar."""
    # only double-quoted scalars can contain escaped non-printable characters
    if not all(map(is_printable_character, text)):
        return f'"{"".join(map(escape_yaml_character, text))}"'
    if _is_plain_scalar(text) and not (is_flow and re.search(r"[\[\]{},?:]", text)):
        return text
    # single quotes are more readable, because only quotes must be escaped
    return "'" + text.replace("'", "''") + "'"


def _is_plain_scalar(text: str) -> bool:
    """Return True if a text requires no quotes in block style."""
    return (
        PLAIN_SCALAR.fullmatch(text) is not None
        and ": " not in text
        and " #" not in text
        and not text.endswith(":")
    )


def escape_yaml_character(character: str) -> str:
    r"""Escape a character for a double-quoted scalar. Non-printable characters become `\x`, `\u` or
    `\U` escapes.
    """
    if character in TEXT_ESCAPES or is_printable_character(character):
        return TEXT_ESCAPES.get(character, character)
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def format_yaml_flow(value: YamlValue, *, force: bool = False) -> str | None:
    """Format a YAML value in flow style on one line. Return None if the value has comments or is
    multiline. If `force` is True, omit comments and ignore `is_multiline`.
    """
    if isinstance(value, str):
        return format_yaml_scalar(value, is_flow=True)
    if (value.end_comments or value.is_multiline) and not force:  # the value requires block style
        return None
    parts: list[str] = []
    for entry in value.entries:
        part = _format_flow_entry(entry, is_forced=force)
        if part is None:
            return None
        parts.append(part)
    opener, closer = "{}" if isinstance(value, YamlMap) else "[]"
    return opener + ", ".join(parts) + closer


def _format_flow_entry(entry: "YamlPair | YamlItem", *, is_forced: bool) -> str | None:
    """Format an entry of a map or list in flow style, or return None."""
    inner = format_yaml_flow(entry.value, force=is_forced)
    if inner is None or (entry.comments != NO_COMMENTS and not is_forced):
        return None
    if isinstance(entry, YamlPair):
        return f"{format_yaml_scalar(entry.key, is_flow=True)}: {inner}"
    return inner


def format_yaml_value(line_start: str, value: YamlValue, indent: int) -> list[str]:
    """Format a value on the line `line_start` if the value fits, otherwise on new lines."""
    if isinstance(value, str):
        return [f"{line_start} {format_yaml_scalar(value, is_flow=False)}"]
    line = format_yaml_flow(value)
    if line and (len(line_start) + 1 + len(line) <= MAX_LINE_WIDTH or not value.entries):
        return [f"{line_start} {line}"]
    return [line_start, *format_yaml_block(value, indent)]


def format_yaml_block(value: YamlMap | YamlList, indent: int) -> list[str]:
    """Format the entries of a map or list on their own lines, indented by `indent`."""
    lines: list[str] = []
    for entry in value.entries:
        if isinstance(entry, YamlPair):
            has_blank_line, entry_lines = False, format_yaml_pair(entry, indent)
        else:
            has_blank_line = entry.has_blank_line_before
            entry_lines = format_yaml_item(entry, indent)
        if lines and (has_blank_line or entry.comments.has_blank_line_before):
            lines.append("")
        lines += entry_lines
    return lines + format_comment_lines(value.end_comments, indent)


def format_yaml_pair(pair: YamlPair, indent: int) -> list[str]:
    """Format a `key: value` pair as lines."""
    lines = format_yaml_value(
        " " * indent + format_yaml_scalar(pair.key, is_flow=False) + ":", pair.value, indent + 2
    )
    return add_yaml_comments(lines, pair, indent)


def format_yaml_item(item: YamlItem, indent: int) -> list[str]:
    """Format a list item `- value`. A multiline map begins on the line of the dash."""
    indentation = " " * indent
    if isinstance(item.value, YamlMap) and item.value.entries:
        line = format_yaml_flow(item.value)
        if line is None or len(item.value.entries) == 1 or indent + 2 + len(line) > MAX_LINE_WIDTH:
            inner = format_yaml_block(item.value, indent + 2)
            lines = [f"{indentation}- {inner[0].lstrip()}", *inner[1:]]
        else:
            lines = [f"{indentation}- {line}"]
    else:
        lines = format_yaml_value(f"{indentation}-", item.value, indent + 2)
    return add_yaml_comments(lines, item, indent)


def add_yaml_comments(lines: list[str], entry: YamlPair | YamlItem, indent: int) -> list[str]:
    """Return the lines of an entry with its comments above and on its first or last line."""
    if entry.comments.trailing:
        lines[0 if entry.is_comment_on_first_line else -1] += f"  # {entry.comments.trailing}"
    return [*format_comment_lines(entry.comments.leading, indent), *lines]


def values_to_yaml(values: Sequence[ast.Expr]) -> YamlValue:
    """Convert the values of `return` or the inputs of a call to a YAML list. A single value is not
    enclosed in a list, unless the value is itself a list.
    """
    if len(values) == 1 and not isinstance(values[0], ast.ListLiteral):
        return expression_to_yaml(values[0])
    return make_yaml_list(map(expression_to_yaml, values))


def is_printed_as_map(expr: ast.Expr) -> bool:
    """Return True if an expression is printed as a YAML map. A call is printed as a map if it has a
    weight path or an argument that is printed as a map. Calls that cannot be represented as a map
    are printed as strings.
    """
    if isinstance(expr, ast.ListLiteral):
        return any(is_printed_as_map(e) for e in expr.items)
    if not isinstance(expr, ast.Call):
        return False
    # options with these names would be parsed as keys of the call
    if any(o.name in ("in", "weights") for o in expr.options):
        return False
    values = (*expr.args, *(o.value for o in expr.options))
    return expr.weights is not None or any(map(is_printed_as_map, values))


def expression_to_yaml(expr: ast.Expr) -> YamlValue:
    """Convert an expression to YAML. Calls with weight paths become maps. Other calls become
    strings.
    """
    if isinstance(expr, ast.ListLiteral):
        return make_yaml_list(map(expression_to_yaml, expr.items))
    if not isinstance(expr, ast.Call) or not is_printed_as_map(expr):
        return format_expression(expr)
    pairs = [YamlPair("in", values_to_yaml(expr.args))] if expr.args else []
    pairs += [YamlPair(o.name, expression_to_yaml(o.value)) for o in expr.options]
    pairs += [YamlPair("weights", expr.weights.text)] if expr.weights is not None else []
    return YamlMap([YamlPair(expr.function.path, YamlMap(pairs))])


def make_yaml_list(values: Iterable[YamlValue]) -> YamlList:
    """Make a YAML list of values without comments."""
    return YamlList([YamlItem(value) for value in values])


def make_multiline_list(items: list[YamlItem], end_comments: tuple[str, ...]) -> YamlMap | YamlList:
    """Make a YAML list with one line per item, or an empty map if there are only comments."""
    if not items and end_comments:
        return YamlMap([], end_comments, is_multiline=True)
    return YamlList(items, end_comments, is_multiline=bool(items))


def strings_to_yaml(strings: Sequence[str]) -> str | YamlList:
    """Convert several strings to a YAML list. If there is only one string, return it unchanged."""
    return strings[0] if len(strings) == 1 else make_yaml_list(strings)


FIELD_KEYS = ("type", "from", "default", "doc")


IGNORED_KEYS = "ignore keys"
"""The YAML key of ignored config keys. Unlike this key, no config field contains a space."""


TYPE_WORD = re.compile(r"(int|float|bool|text|list|pair|choice|mask|activation|norm)\b")


def is_field_declaration(keys: Iterable[str], type_text: str = "") -> bool:
    """Return True if a map with the keys `keys` declares a config field. A declaration has a key
    `type`. Either all keys are keys of a config field, or `type_text` is a type name.
    """
    names = set(keys)
    return "type" in names and (names <= set(FIELD_KEYS) or TYPE_WORD.match(type_text) is not None)


def is_unquoted_config_path(text: str) -> bool:
    """Return True if a path in config.json does not look like a string literal or a call."""
    return bool(text) and not text.startswith('"') and "(" not in text


def field_to_yaml(node: ast.ConfigField) -> YamlPair:
    """Convert a config field to a map, as in `d: {type: int, from: hidden_size, default: 768}`."""
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


def field_type_to_yaml(type: ast.TypeExpr) -> YamlValue:
    """Convert a record type to a map of its fields, and any other type to a string."""
    if type.name != "record" or type.optional or not type.fields:
        return format_inline_type(type)
    return YamlMap([YamlPair("record", YamlMap([field_to_yaml(f) for f in type.fields]))])


def config_path_to_yaml(expr: ast.Expr) -> str:
    """Convert a path in config.json to plain text, and any other expression to DSL text."""
    if not isinstance(expr, ast.StringLiteral):
        return format_expression(expr)
    return expr.value if is_unquoted_config_path(expr.value) else format_expression(expr)


def static_value_to_yaml(expr: ast.Expr) -> YamlValue:
    """Convert a config value to YAML. A record becomes a map, and a list becomes a YAML list."""
    match expr:
        case ast.RecordLiteral():
            return YamlMap([YamlPair(f.name, static_value_to_yaml(f.value)) for f in expr.fields])
        case ast.ListLiteral():
            return make_yaml_list(map(static_value_to_yaml, expr.items))
        case _:
            return format_expression(expr)


def config_override_to_yaml(entry: ast.ConfigOverride) -> YamlPair:
    """Convert a config value of a derived spec to YAML."""
    value = static_value_to_yaml(entry.value)
    # a record with the same keys as a declaration would be parsed as a declaration
    if isinstance(value, YamlMap) and is_field_declaration(p.key for p in value.entries):
        value = format_expression(entry.value)
    return YamlPair(entry.name, value, entry.comments)


CONFIG_ENTRIES: Mapping[type[ast.Node], Callable[..., YamlPair]] = {
    ast.ConfigField: field_to_yaml,
    ast.ExpectedConfigValues: lambda e: YamlPair(
        f"expect {e.key}", make_yaml_list(e.values), e.comments
    ),
    ast.IgnoredConfigKeys: lambda e: YamlPair(IGNORED_KEYS, make_yaml_list(e.keys), e.comments),
    ast.ConfigOverride: config_override_to_yaml,
}
"""The functions that convert entries of `config` to YAML, keyed by AST class."""
