"""Translate PyYAML errors into diagnostics."""

import yaml

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Source, Span

PYYAML_REASONS: tuple[tuple[str, str, str], ...] = (
    ("cannot start any token", "a character reserved by YAML", "put the string in quotes"),
    (
        "mapping values are not allowed",
        "a `:` where no key can be",
        "put the string in quotes, or check the indentation",
    ),
    (
        "could not find expected ':'",
        "a line that is neither `key: value` nor part of a string",
        "write `key: value`, or check the indentation",
    ),
    (
        "did not find expected key",
        "a line that does not fit the lines before it",
        "check the indentation; quote strings that contain `: ` or quotes",
    ),
    (
        "expected <block end>",
        "a line that does not fit the lines before it",
        "check the indentation; quote strings that contain `: ` or quotes",
    ),
    (
        "did not find expected '-'",
        "a line that does not fit the list before it",
        "start it with `- `, or indent it",
    ),
    (
        "did not find expected ',' or",
        "a `[` or `{` that is not closed, or a missing `,`",
        "close it, and quote strings with `[`, `{` or `,`",
    ),
    (
        "expected ',' or",
        "a `[` or `{` that is not closed, or a missing `,`",
        "close it, and quote strings with `[`, `{` or `,`",
    ),
    (
        "did not find expected node content",
        "an unexpected character, expected a value",
        "put the string in quotes",
    ),
    (
        "expected the node content",
        "an unexpected character, expected a value",
        "put the string in quotes",
    ),
    ("unexpected end of stream", "unterminated quoted string", "close it with the same quote"),
    (
        "unknown escape",
        "an unknown YAML escape sequence",
        "write `\\\\` for a backslash, or use single quotes",
    ),
    (
        "undefined alias",
        "an alias is not part of the language",
        "quote a string that starts with `*`",
    ),
    (
        "undefined tag handle",
        "a tag is not part of the language",
        "quote a string that starts with `!`",
    ),
    (
        "directive",
        "a YAML directive is not part of the language",
        "leave out lines that start with `%`",
    ),
)
"""A part of PyYAML's problem, specc's title, and the fix."""


def explain_yaml_error(source: Source, error: yaml.YAMLError) -> Diagnostic:
    """Explain why a text is not valid YAML."""
    if isinstance(error, yaml.reader.ReaderError):
        at = min(error.position, len(source.text))
        return _control_character(Span(source, at, min(at + 1, len(source.text))))
    assert isinstance(error, yaml.MarkedYAMLError)
    title, fix = _translate_yaml_error(source, error)
    here = _character_at(source, error.problem_mark)
    others: list[Label] = []
    if error.context_mark:
        context = _character_at(source, error.context_mark)
        # if both marks are at one location, the second adds nothing
        if context.start < here.start:
            others.append(Label(context, "starts here"))
    return Diagnostic("E0121", title, Label(here, "here"), tuple(others), helps=(fix,))


def _control_character(span: Span) -> Diagnostic:
    shown = f"U+{ord(span.text):04X}" if span.text else "one"
    return Diagnostic(
        "E0112",
        f"the control character {shown} cannot be in a YAML file",
        Label(span, "here"),
        helps=("delete it",),
    )


def _translate_yaml_error(source: Source, error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return the title of a YAML error, and its fix."""
    mark = error.problem_mark
    if mark and source.text[mark.index : mark.index + 1] == "\t":
        return "a tab in place of spaces", "indent with spaces"
    problem = error.problem or ""
    for part, title, fix in PYYAML_REASONS:
        if part in problem:
            return title, fix
    return f"this is not YAML: {problem}", "check quotes and indentation"


def _character_at(source: Source, mark: yaml.Mark | None) -> Span:
    """Return the span of the character at a mark; the end of the text if there is no mark."""
    size = len(source.text)
    at = min(mark.index, size) if mark else size
    return Span(source, at, min(at + 1, size))
