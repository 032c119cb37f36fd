"""The YAML output model: maps, lists, flow and block style, quoting; and expressions in it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from specc.syntax import ast
from specc.syntax.ast import NO_COMMENTS, Comments
from specc.syntax.dsl.expression_printer import (
    MAX_LINE_WIDTH,
    is_visible_character,
    print_expression,
)


@dataclass(frozen=True, slots=True)
class YamlPair:
    """`key: value` with its comments. `headed`: the trailing comment is on the first line, not the
    last.
    """

    key: str
    value: "YamlValue"
    comments: Comments = NO_COMMENTS
    headed: bool = False


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A map; `end` are comments after its last entry, `tall` asks for a line each."""

    pairs: list[YamlPair]
    end: tuple[str, ...] = ()
    tall: bool = False


@dataclass(frozen=True, slots=True)
class YamlItem:
    """An entry of a list with its comments; `apart` asks for a blank line above."""

    value: "YamlValue"
    comments: Comments = NO_COMMENTS
    headed: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class YamlList:
    """A list."""

    items: list[YamlItem] = field(default_factory=list)
    end: tuple[str, ...] = ()
    tall: bool = False


YamlValue: TypeAlias = str | YamlMap | YamlList

PLAIN_SCALAR = re.compile(r"(?:[A-Za-z0-9_(]|[-.][A-Za-z0-9_(])(?:.*\S)?", re.DOTALL)
YAML_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape_in_quotes(character: str) -> str:
    """Escape a character for double quotes."""
    if character in YAML_ESCAPES:
        return YAML_ESCAPES[character]
    return character if is_visible_character(character) else escape_yaml_character(character)


def format_yaml_scalar(text: str, flow: bool) -> str:
    """Format a text as a YAML scalar."""
    # only double quotes can express invisible characters
    if not all(map(is_visible_character, text)):
        return f'"{"".join(map(_escape_in_quotes, text))}"'
    plain = (
        PLAIN_SCALAR.fullmatch(text)
        and ": " not in text
        and " #" not in text
        and not text.endswith(":")
    )
    if plain and not (flow and re.search(r"[\[\]{},?:]", text)):
        return text
    # single quotes have one escape, so the text stays readable
    return "'" + text.replace("'", "''") + "'"


def escape_yaml_character(character: str) -> str:
    """Escape an invisible character as YAML does in double quotes."""
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def format_yaml_flow(value: YamlValue) -> str | None:
    """Format a value on one line, or return None if comments or the layout prevent it."""
    if isinstance(value, str):
        return format_yaml_scalar(value, flow=True)
    if value.end or value.tall:  # a comment needs the rest of a line
        return None
    parts: list[str] = []
    if isinstance(value, YamlMap):
        for pair in value.pairs:
            inner = format_yaml_flow(pair.value)
            if inner is None or pair.comments != NO_COMMENTS:
                return None
            parts.append(f"{format_yaml_scalar(pair.key, flow=True)}: {inner}")
        return "{" + ", ".join(parts) + "}"
    for item in value.items:
        inner = format_yaml_flow(item.value)
        if inner is None or item.comments != NO_COMMENTS:
            return None
        parts.append(inner)
    return "[" + ", ".join(parts) + "]"


def print_yaml_comments(texts: tuple[str, ...], indent: int) -> list[str]:
    """Print comment lines."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def print_yaml_after(head: str, value: YamlValue, indent: int) -> list[str]:
    """Print `head` with a value: on the same line if it fits, else below, indented by `indent`."""
    if isinstance(value, str):
        return [f"{head} {format_yaml_scalar(value, flow=False)}"]
    line = format_yaml_flow(value)
    entries = value.pairs if isinstance(value, YamlMap) else value.items
    if line is not None and (len(head) + 1 + len(line) <= MAX_LINE_WIDTH or not entries):
        return [f"{head} {line}"]
    return [head, *print_yaml_block(value, indent)]


def print_yaml_block(value: YamlMap | YamlList, indent: int) -> list[str]:
    """Print a value on its own lines."""
    out: list[str] = []
    if isinstance(value, YamlMap):
        for pair in value.pairs:
            if pair.comments.blank_line_before and out:
                out.append("")
            out += print_yaml_pair(pair, indent)
    else:
        for item in value.items:
            if out and (item.apart or item.comments.blank_line_before):
                out.append("")
            out += print_yaml_item(item, indent)
    return out + print_yaml_comments(value.end, indent)


def print_yaml_pair(pair: YamlPair, indent: int) -> list[str]:
    """Print the lines of `key: value`."""
    made = print_yaml_after(
        " " * indent + format_yaml_scalar(pair.key, flow=False) + ":", pair.value, indent + 2
    )
    return [
        *print_yaml_comments(pair.comments.leading, indent),
        *append_yaml_comment(made, pair.comments, pair.headed),
    ]


def print_yaml_item(item: YamlItem, indent: int) -> list[str]:
    """Print the lines of `- value`; a map that does not fit begins after the dash."""
    blanks = " " * indent
    if isinstance(item.value, YamlMap) and item.value.pairs:
        line = format_yaml_flow(item.value)
        if line is None or len(item.value.pairs) == 1 or indent + 2 + len(line) > MAX_LINE_WIDTH:
            inner = print_yaml_block(item.value, indent + 2)
            made = [f"{blanks}- {inner[0].lstrip()}", *inner[1:]]
        else:
            made = [f"{blanks}- {line}"]
    else:
        made = print_yaml_after(f"{blanks}-", item.value, indent + 2)
    return [
        *print_yaml_comments(item.comments.leading, indent),
        *append_yaml_comment(made, item.comments, item.headed),
    ]


def append_yaml_comment(made: list[str], comments: Comments, headed: bool) -> list[str]:
    """Append the trailing comment to the first or last line."""
    if comments.trailing:
        made[0 if headed else -1] += f"  # {comments.trailing}"
    return made


def values_to_yaml(values: Sequence[ast.Expr]) -> YamlValue:
    """Convert the values of `return`, or the inputs of a call: one unchanged, several or a list to
    a list.
    """
    if len(values) == 1 and not isinstance(values[0], ast.ListLiteral):
        return expression_to_yaml(values[0])
    return make_yaml_list(map(expression_to_yaml, values))


def has_own_weights(expr: ast.Expr) -> bool:
    """Return whether a call, or a call among its direct arguments, has weights, and a map can
    express it.
    """
    if isinstance(expr, ast.ListLiteral):
        return any(has_own_weights(e) for e in expr.items)
    if not isinstance(expr, ast.Call):
        return False
    # an option of such a name would be taken for the key of the map
    if any(o.name in ("in", "weights") for o in expr.options):
        return False
    given = (*expr.args, *(o.value for o in expr.options))
    return expr.weights is not None or any(has_own_weights(a) for a in given)


def expression_to_yaml(expr: ast.Expr) -> YamlValue:
    """Convert an expression: a call with weights to a map, a list to a list, anything else
    to text.
    """
    if isinstance(expr, ast.ListLiteral):
        return make_yaml_list(map(expression_to_yaml, expr.items))
    if not isinstance(expr, ast.Call) or not has_own_weights(expr):
        return print_expression(expr)
    pairs = [YamlPair("in", values_to_yaml(expr.args))] if expr.args else []
    pairs += [YamlPair(o.name, expression_to_yaml(o.value)) for o in expr.options]
    pairs += [YamlPair("weights", expr.weights.text)] if expr.weights is not None else []
    return YamlMap([YamlPair(expr.function.path, YamlMap(pairs))])


def make_yaml_list(values: Iterable[YamlValue]) -> YamlList:
    """Make a list of values without comments."""
    return YamlList([YamlItem(value) for value in values])


def make_tall_list(items: list[YamlItem], end: tuple[str, ...]) -> YamlMap | YamlList:
    """Make a list with a line per item; a map if there are only comments, since an empty list has
    no line of its own.
    """
    if not items and end:
        return YamlMap([], end, tall=True)
    return YamlList(items, end, tall=bool(items))


def texts_to_yaml(texts: Sequence[str]) -> str | YamlList:
    """Convert one text to itself, several to a list."""
    return texts[0] if len(texts) == 1 else make_yaml_list(texts)
