"""Parse a spec: decode its bytes, detect the syntax (DSL or YAML), and call the parser."""

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Literal, NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Source, Span, raise_error
from specc.syntax import ast
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.dsl_lexer import check_source_characters, raise_spec_too_long_error
from specc.syntax.dsl.dsl_parser import parse_dsl

Syntax = Literal["specc", "yaml"]
YAML_SUFFIXES = (".yaml", ".yml", ".json")
SYNTAX_BY_SUFFIX: dict[str, Syntax] = {".specc": "specc", **dict.fromkeys(YAML_SUFFIXES, "yaml")}
LEADING_BLANKS = re.compile(r"(?:\s+|#[^\n]*|---[ \t]*(?=\n))*")
DSL_START = re.compile(r"specc[ \t]+[0-9]|(?:model|config|graph|block|dims)[ \t]+[^\s:]")
YAML_START = re.compile(
    r"[\"']?(?:specc|model|extends|config|items|dims)[\"']?[ \t]*:|\{[ \t\r\n]*\"|- "
)
BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def parse_spec(source: Source) -> ast.File:
    """Parse a DSL or YAML spec. Raise E01xx, or E0201 for an unknown YAML key."""
    check_source_characters(source)
    if detect_syntax(source) == "specc":
        return parse_dsl(source)
    from specc.syntax.yaml.yaml_parser import parse_yaml

    return parse_yaml(source)


def detect_syntax(source: Source) -> Syntax:
    """Detect a spec's syntax by its file suffix or first word. Raise E0114 if the suffix and the
    first word contradict each other.
    """
    suffix = PurePath(source.name).suffix.lower()
    start = _find_start(source.text)
    by_name = SYNTAX_BY_SUFFIX.get(suffix)
    by_content = guess_syntax(source.text)
    # if a .specc file begins with `model: x`, the DSL parser reports only the colon
    if by_name and by_content and by_name != by_content:
        end = source.text.find("\n", start)
        span = Span(source, start, end if end >= 0 else len(source.text))
        _raise_syntax_conflict(by_content, suffix, span)
    return by_name or by_content or "specc"


def _find_start(text: str) -> int:
    """Return the offset of the first character after blank lines and comments."""
    leading_blanks = LEADING_BLANKS.match(text)
    return leading_blanks.end() if leading_blanks else 0


def guess_syntax(text: str) -> Syntax | None:
    """Detect the syntax of a text from its first word, or return None if the word is ambiguous."""
    start = _find_start(text)
    if YAML_START.match(text, start):
        return "yaml"
    return "specc" if DSL_START.match(text, start) else None


def _raise_syntax_conflict(syntax: Syntax, suffix: str, span: Span) -> NoReturn:
    """Raise E0114 for a text whose syntax contradicts the file suffix."""
    suffix_text = suffix if len(suffix) <= 12 else suffix[:11] + "…"
    content, label, right_suffix = (
        ("YAML", "written as YAML", ".yaml")
        if syntax == "yaml"
        else ("the .specc language", "not written as YAML", ".specc")
    )
    raise_error(
        "E0114",
        f"this is {content} in a file named {suffix_text}",
        span,
        label,
        helps=[f"name the file {right_suffix}; to convert it afterwards, use `specc convert`"],
    )


def convert_help_snippets_to_yaml(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics. In help messages about YAML files, DSL code is translated to YAML."""
    results = list(diagnostics)
    if not any(map(_is_about_yaml, results)):
        return results
    # import lazily, because most specs are DSL files
    from specc.syntax.yaml.yaml_printer import convert_help_to_yaml

    return [convert_help_to_yaml(d) if _is_about_yaml(d) else d for d in results]


def _is_about_yaml(diagnostic: Diagnostic) -> bool:
    """Return True if the primary label of a diagnostic is in a YAML file."""
    if diagnostic.primary is None:
        return False
    return diagnostic.primary.span.source.name.lower().endswith(YAML_SUFFIXES)


def decode_spec(data: bytes, name: str) -> Source:
    """Decode a spec file as UTF-8. Raise E0109 (above 1 MiB) or E0112 (other encoding)."""
    start_span = Span(Source(name, ""), 0, 0)
    if len(data) > dsl_lexer.MAX_SPEC_BYTES:
        raise_spec_too_long_error(f"{len(data)} bytes", start_span)
    # check UTF-32 first, because the byte order mark of UTF-32 begins with the mark of UTF-16
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise_error(
                "E0112",
                f"this file is in {encoding}; a spec is in UTF-8",
                start_span,
                helps=["save it as UTF-8"],
            )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # decode the text up to the error, because the message shows the line of the error
        valid_prefix = data[: error.start].decode("utf-8-sig", errors="replace")
        source = Source(name, valid_prefix + data[error.start :].decode("utf-8", errors="replace"))
        span = Span(source, len(valid_prefix), min(len(valid_prefix) + 1, len(source.text)))
        raise_error(
            "E0112",
            f"the byte {data[error.start]:#04x} is not UTF-8",
            span,
            "here",
            helps=["save the file as UTF-8"],
        )
    return check_source_characters(Source(name, text))
