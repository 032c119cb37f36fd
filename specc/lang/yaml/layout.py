"""A small model of YAML text and its printer: what fits on a line is written in flow
style, the rest in blocks.

Scalars are quoted only where YAML needs it, since the reader never asks what a scalar
looks like.
"""

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from specc.lang.dsl.layout import WIDTH
from specc.lang.dsl.write_expression import visible
from specc.lang.tree import NONE, Remarks


@dataclass(frozen=True, slots=True)
class Pair:
    """`key: value` with its comments. `headed`: the comment behind stands on the first
    line, not the last.
    """

    key: str
    value: "Value"
    remarks: Remarks = NONE
    headed: bool = False


@dataclass(frozen=True, slots=True)
class Map:
    """A map; `end` are comments after its last entry, `tall` asks for a line each."""

    pairs: list[Pair]
    end: tuple[str, ...] = ()
    tall: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list with its comments; `apart` asks for an empty line above."""

    value: "Value"
    remarks: Remarks = NONE
    headed: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class List:
    """A list."""

    items: list[Item] = field(default_factory=list)
    end: tuple[str, ...] = ()
    tall: bool = False


Value: TypeAlias = str | Map | List

PLAIN = re.compile(r"(?:[A-Za-z0-9_(]|[-.][A-Za-z0-9_(])(?:.*\S)?", re.DOTALL)
ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(character: str) -> str:
    """A character as it stands between double quotes."""
    if character in ESCAPED:
        return ESCAPED[character]
    return character if visible(character) else escape(character)


def scalar(text: str, flow: bool) -> str:
    """A text as a YAML scalar."""
    # only double quotes can say what does not show
    if not all(map(visible, text)):
        return f'"{"".join(map(_escaped, text))}"'
    plain = (
        PLAIN.fullmatch(text)
        and ": " not in text
        and " #" not in text
        and not text.endswith(":")
    )
    if plain and not (flow and re.search(r"[\[\]{},?:]", text)):
        return text
    # single quotes have one escape, so the text stays readable
    return "'" + text.replace("'", "''") + "'"


def escape(character: str) -> str:
    """A character that does not show, as YAML writes it in double quotes."""
    code = ord(character)
    return (
        f"\\x{code:02x}"
        if code < 256
        else f"\\u{code:04x}"
        if code < 65536
        else f"\\U{code:08x}"
    )


def flow(value: Value) -> str | None:
    """A value on one line, or None if comments or a wish for lines stand against it."""
    if isinstance(value, str):
        return scalar(value, flow=True)
    if value.end or value.tall:  # a comment needs the end of a line
        return None
    parts: list[str] = []
    if isinstance(value, Map):
        for pair in value.pairs:
            inner = flow(pair.value)
            if inner is None or pair.remarks != NONE:
                return None
            parts.append(f"{scalar(pair.key, flow=True)}: {inner}")
        return "{" + ", ".join(parts) + "}"
    for item in value.items:
        inner = flow(item.value)
        if inner is None or item.remarks != NONE:
            return None
        parts.append(inner)
    return "[" + ", ".join(parts) + "]"


def comments(texts: tuple[str, ...], indent: int) -> list[str]:
    """Lines of comments."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def after(head: str, value: Value, indent: int) -> list[str]:
    """`head` with a value behind it: on the same line if it fits, else below and moved
    in by `indent`.
    """
    if isinstance(value, str):
        return [f"{head} {scalar(value, flow=False)}"]
    line = flow(value)
    entries = value.pairs if isinstance(value, Map) else value.items
    if line is not None and (len(head) + 1 + len(line) <= WIDTH or not entries):
        return [f"{head} {line}"]
    return [head, *block(value, indent)]


def block(value: Map | List, indent: int) -> list[str]:
    """A value in lines of its own."""
    out: list[str] = []
    if isinstance(value, Map):
        for pair in value.pairs:
            if pair.remarks.gap and out:
                out.append("")
            out += pair_lines(pair, indent)
    else:
        for item in value.items:
            if out and (item.apart or item.remarks.gap):
                out.append("")
            out += item_lines(item, indent)
    return out + comments(value.end, indent)


def pair_lines(pair: Pair, indent: int) -> list[str]:
    """The lines of `key: value`."""
    made = after(
        " " * indent + scalar(pair.key, flow=False) + ":", pair.value, indent + 2
    )
    return [
        *comments(pair.remarks.before, indent),
        *trailed(made, pair.remarks, pair.headed),
    ]


def item_lines(item: Item, indent: int) -> list[str]:
    """The lines of `- value`; a map that does not fit begins behind the dash."""
    blanks = " " * indent
    if isinstance(item.value, Map) and item.value.pairs:
        line = flow(item.value)
        if line is None or len(item.value.pairs) == 1 or indent + 2 + len(line) > WIDTH:
            inner = block(item.value, indent + 2)
            made = [f"{blanks}- {inner[0].lstrip()}", *inner[1:]]
        else:
            made = [f"{blanks}- {line}"]
    else:
        made = after(f"{blanks}-", item.value, indent + 2)
    return [
        *comments(item.remarks.before, indent),
        *trailed(made, item.remarks, item.headed),
    ]


def trailed(made: list[str], remarks: Remarks, headed: bool) -> list[str]:
    """Lines with the comment behind the first or last of them."""
    if remarks.behind:
        made[0 if headed else -1] += f"  # {remarks.behind}"
    return made
