"""The YAML output model: maps, lists, flow and block style, quoting; and expressions in it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from specc.syntax import ast
from specc.syntax.ast import NO_COMMENTS, Comments
from specc.syntax.dsl.expression_printer import is_visible_character, print_expression
from specc.syntax.dsl.line_breaking import MAX_LINE_WIDTH


@dataclass(frozen=True, slots=True)
class YamlPair:
    """`key: value` with its comments. `headed`: the comment behind stands on the first
    line, not the last.
    """

    key: str
    value: "YamlValue"
    remarks: Comments = NO_COMMENTS
    headed: bool = False


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A map; `end` are comments after its last entry, `tall` asks for a line each."""

    pairs: list[YamlPair]
    end: tuple[str, ...] = ()
    tall: bool = False


@dataclass(frozen=True, slots=True)
class YamlItem:
    """An entry of a list with its comments; `apart` asks for an empty line above."""

    value: "YamlValue"
    remarks: Comments = NO_COMMENTS
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
    """A character as it stands between double quotes."""
    if character in YAML_ESCAPES:
        return YAML_ESCAPES[character]
    return character if is_visible_character(character) else escape_yaml_character(character)


def format_yaml_scalar(text: str, flow: bool) -> str:
    """A text as a YAML scalar."""
    # only double quotes can say what does not show
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
    """A character that does not show, as YAML writes it in double quotes."""
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def format_yaml_flow(value: YamlValue) -> str | None:
    """A value on one line, or None if comments or a wish for lines stand against it."""
    if isinstance(value, str):
        return format_yaml_scalar(value, flow=True)
    if value.end or value.tall:  # a comment needs the end of a line
        return None
    parts: list[str] = []
    if isinstance(value, YamlMap):
        for pair in value.pairs:
            inner = format_yaml_flow(pair.value)
            if inner is None or pair.remarks != NO_COMMENTS:
                return None
            parts.append(f"{format_yaml_scalar(pair.key, flow=True)}: {inner}")
        return "{" + ", ".join(parts) + "}"
    for item in value.items:
        inner = format_yaml_flow(item.value)
        if inner is None or item.remarks != NO_COMMENTS:
            return None
        parts.append(inner)
    return "[" + ", ".join(parts) + "]"


def print_yaml_comments(texts: tuple[str, ...], indent: int) -> list[str]:
    """Lines of comments."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def print_yaml_after(head: str, value: YamlValue, indent: int) -> list[str]:
    """`head` with a value behind it: on the same line if it fits, else below and moved
    in by `indent`.
    """
    if isinstance(value, str):
        return [f"{head} {format_yaml_scalar(value, flow=False)}"]
    line = format_yaml_flow(value)
    entries = value.pairs if isinstance(value, YamlMap) else value.items
    if line is not None and (len(head) + 1 + len(line) <= MAX_LINE_WIDTH or not entries):
        return [f"{head} {line}"]
    return [head, *print_yaml_block(value, indent)]


def print_yaml_block(value: YamlMap | YamlList, indent: int) -> list[str]:
    """A value in lines of its own."""
    out: list[str] = []
    if isinstance(value, YamlMap):
        for pair in value.pairs:
            if pair.remarks.blank_line_before and out:
                out.append("")
            out += print_yaml_pair(pair, indent)
    else:
        for item in value.items:
            if out and (item.apart or item.remarks.blank_line_before):
                out.append("")
            out += print_yaml_item(item, indent)
    return out + print_yaml_comments(value.end, indent)


def print_yaml_pair(pair: YamlPair, indent: int) -> list[str]:
    """The lines of `key: value`."""
    made = print_yaml_after(
        " " * indent + format_yaml_scalar(pair.key, flow=False) + ":", pair.value, indent + 2
    )
    return [
        *print_yaml_comments(pair.remarks.before, indent),
        *append_yaml_comment(made, pair.remarks, pair.headed),
    ]


def print_yaml_item(item: YamlItem, indent: int) -> list[str]:
    """The lines of `- value`; a map that does not fit begins behind the dash."""
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
        *print_yaml_comments(item.remarks.before, indent),
        *append_yaml_comment(made, item.remarks, item.headed),
    ]


def append_yaml_comment(made: list[str], remarks: Comments, headed: bool) -> list[str]:
    """Lines with the comment behind the first or last of them."""
    if remarks.behind:
        made[0 if headed else -1] += f"  # {remarks.behind}"
    return made


def values_to_yaml(values: Sequence[ast.Expr]) -> YamlValue:
    """The values of `return`, or the inputs of a call: one as it is, several or a list
    as a list.
    """
    if len(values) == 1 and not isinstance(values[0], ast.ListLiteral):
        return expression_to_yaml(values[0])
    return make_yaml_list(map(expression_to_yaml, values))


def has_own_weights(expr: ast.Expr) -> bool:
    """Whether a call, or a call that it is given directly, has weights, and a map can say it."""
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
    """An expression: a call that owns weights as a map, a list as a list, anything else as text."""
    if isinstance(expr, ast.ListLiteral):
        return make_yaml_list(map(expression_to_yaml, expr.items))
    if not isinstance(expr, ast.Call) or not has_own_weights(expr):
        return print_expression(expr)
    pairs = [YamlPair("in", values_to_yaml(expr.args))] if expr.args else []
    pairs += [YamlPair(o.name, expression_to_yaml(o.value)) for o in expr.options]
    pairs += [YamlPair("weights", expr.weights.text)] if expr.weights is not None else []
    return YamlMap([YamlPair(expr.function.path, YamlMap(pairs))])


def make_yaml_list(values: Iterable[YamlValue]) -> YamlList:
    """A list of values without comments."""
    return YamlList([YamlItem(value) for value in values])


def make_tall_list(items: list[YamlItem], end: tuple[str, ...]) -> YamlMap | YamlList:
    """A list with a line per item; a map where only comments stand there, since a list without
    items has no line of its own.
    """
    if not items and end:
        return YamlMap([], end, tall=True)
    return YamlList(items, end, tall=bool(items))


def texts_to_yaml(texts: Sequence[str]) -> str | YamlList:
    """A text by itself, or several as a list."""
    return texts[0] if len(texts) == 1 else make_yaml_list(texts)
