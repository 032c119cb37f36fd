"""Bytes and texts of either syntax → tree: the front door of the language.

Which syntax a file is in follows from its name; a text of the other one is recognized
and said so.
"""

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Literal, NoReturn

from specc.lang import limits, tree
from specc.lang.dsl.parse import checked, parse_dsl, parse_expression
from specc.text.diagnostic import Diagnostic, fail
from specc.text.source import Source, Span

Syntax = Literal["specc", "yaml"]
YAML_ENDINGS = (".yaml", ".yml", ".json")
LEADING = re.compile(r"(?:\s+|#[^\n]*|---[ \t]*(?=\n))*")
DSL_START = re.compile(
    r"specc[ \t]+[0-9]|(?:model|config|graph|block|dims)[ \t]+[^\s:]"
)
YAML_START = re.compile(
    r"[\"']?(?:specc|model|extends|config|items|dims)[\"']?[ \t]*:|\{[ \t\r\n]*\"|- "
)
BOMS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def read(source: Source) -> tree.File:
    """The tree of a spec in either syntax. Fails with E01xx or E0201."""
    checked(source)
    if syntax(source) == "specc":
        return parse_dsl(source)
    from specc.lang.yaml.read import (
        # a sixth of the start-up of `specc check`, and specs in the DSL need none of it
        parse_yaml,
    )

    return parse_yaml(source)


def syntax(source: Source) -> Syntax:
    """The syntax a text is in: by its name, else by its first word. Fails with E0114 if
    the two differ.
    """
    ending = PurePath(source.name).suffix.lower()
    leading = LEADING.match(source.text)
    start = leading.end() if leading else 0
    named, looks = _named(ending), _looks(source.text, start)
    # `model: x` in a .specc file: parsing it would blame the colon
    if named and looks and named != looks:
        end = source.text.find("\n", start)
        span = Span(source, start, end if end >= 0 else len(source.text))
        _other_syntax(looks, ending, span)
    return named or looks or "specc"


def _named(ending: str) -> Syntax | None:
    """What a file's ending says, if anything."""
    if ending in YAML_ENDINGS:
        return "yaml"
    return "specc" if ending == ".specc" else None


def _looks(text: str, start: int) -> Syntax | None:
    """What the first word says, behind blank lines and comments."""
    if YAML_START.match(text, start):
        return "yaml"
    return "specc" if DSL_START.match(text, start) else None


def _other_syntax(looks: Syntax, ending: str, span: Span) -> NoReturn:
    """E0114: the text is in one syntax, the file's name says the other."""
    if looks == "yaml":
        fail(
            "E0114",
            f"this is YAML in a file named {shown(ending)}",
            span,
            "written as YAML",
            helps=[
                "name the file .yaml, or turn it into the language with `specc convert`"
            ],
        )
    fail(
        "E0114",
        f"this is the .specc language in a file named {shown(ending)}",
        span,
        "not written as YAML",
        helps=["name the file .specc, or turn it into YAML with `specc convert`"],
    )


def answered(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Messages with their advice in the syntax of the file that they are about."""
    found = list(diagnostics)
    if not any(map(_of_yaml, found)):
        return found
    # YAML's own modules are read where a YAML file was
    from specc.lang.yaml.answer import answered as in_yaml

    return [in_yaml(d) if _of_yaml(d) else d for d in found]


def _of_yaml(diagnostic: Diagnostic) -> bool:
    if diagnostic.primary is None:
        return False
    return diagnostic.primary.span.source.name.lower().endswith(YAML_ENDINGS)


def shown(ending: str) -> str:
    """A file ending, cut if long."""
    return ending if len(ending) <= 12 else ending[:11] + "…"


def decode(data: bytes, name: str) -> Source:
    """The text of a file's bytes. Fails with E0109 for more than 1 MiB, E0112 for
    anything but UTF-8.
    """
    nothing = Source(name, "")
    at_start = Span(nothing, 0, 0)
    if len(data) > limits.TEXT:
        fail(
            "E0109",
            f"a spec of {len(data)} bytes; at most {limits.TEXT} are read",
            at_start,
            helps=[
                "repeat layers with `repeat`, and keep blocks in files of their own with `use`"
            ],
        )
    # the UTF-32 mark begins with that of UTF-16, so it is looked for first
    for mark, encoding in BOMS:
        if data.startswith(mark):
            fail(
                "E0112",
                f"this file is in {encoding}; a spec is in UTF-8",
                at_start,
                helps=["save it as UTF-8"],
            )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # the text up to the fault is shown, so that its line can be underlined
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        source = Source(
            name, before + data[error.start :].decode("utf-8", errors="replace")
        )
        span = Span(source, len(before), min(len(before) + 1, len(source.text)))
        fail(
            "E0112",
            f"the byte {data[error.start]:#04x} is not UTF-8",
            span,
            "here",
            helps=["save the file as UTF-8"],
        )
    return checked(Source(name, text))


__all__ = ["answered", "decode", "parse_dsl", "parse_expression", "read", "syntax"]
