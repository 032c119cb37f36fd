"""Translate PyYAML errors into diagnostics."""

import yaml

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Source, Span

PYYAML_REASONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("cannot start any token",), "a character reserved by YAML", "put the string in quotes"),
    (
        ("mapping values are not allowed",),
        "a `:` where no key can be",
        "put the string in quotes, or check the indentation",
    ),
    (
        ("could not find expected ':'",),
        "a line that is neither `key: value` nor part of a string",
        "write `key: value`, or check the indentation",
    ),
    (
        ("did not find expected key", "expected <block end>"),
        "a line that does not fit the lines before it",
        "check the indentation; quote strings that contain `: ` or quotes",
    ),
    (
        ("did not find expected '-'",),
        "a line that does not fit the list before it",
        "start it with `- `, or indent it",
    ),
    (
        ("expected ',' or",),
        "a `[` or `{` that is not closed, or a missing `,`",
        "close it, and quote strings with `[`, `{` or `,`",
    ),
    (
        ("did not find expected node content", "expected the node content"),
        "an unexpected character, expected a value",
        "put the string in quotes",
    ),
    (("unexpected end of stream",), "unterminated quoted string", "close it with the same quote"),
    (
        ("unknown escape",),
        "an unknown YAML escape sequence",
        "write `\\\\` for a backslash, or use single quotes",
    ),
    (
        ("undefined alias",),
        "an alias is not part of the language",
        "quote a string that starts with `*`",
    ),
    (
        ("undefined tag handle",),
        "a tag is not part of the language",
        "quote a string that starts with `!`",
    ),
    (
        ("directive",),
        "a YAML directive is not part of the language",
        "leave out lines that start with `%`",
    ),
)
"""Phrases of PyYAML's messages, with specc's title and fix."""


def explain_yaml_error(source: Source, error: yaml.YAMLError) -> Diagnostic:
    """Explain why a text is not valid YAML."""
    if isinstance(error, yaml.reader.ReaderError):
        offset = min(error.position, len(source.text))
        span = Span(source, offset, min(offset + 1, len(source.text)))
        shown = f"U+{ord(span.text):04X}" if span.text else "one"
        title = f"the control character {shown} cannot be in a YAML file"
        return Diagnostic("E0112", title, Label(span, "here"), helps=("delete it",))
    assert isinstance(error, yaml.MarkedYAMLError)
    title, fix = _translate_yaml_error(source, error)
    here = _get_mark_span(source, error.problem_mark)
    others: list[Label] = []
    if error.context_mark:
        context = _get_mark_span(source, error.context_mark)
        # if both marks are at one location, the second adds nothing
        if context.start < here.start:
            others.append(Label(context, "starts here"))
    return Diagnostic("E0121", title, Label(here, "here"), tuple(others), helps=(fix,))


def _translate_yaml_error(source: Source, error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return the title of a YAML error, and its fix."""
    mark = error.problem_mark
    if mark and source.text[mark.index : mark.index + 1] == "\t":
        return "a tab in place of spaces", "indent with spaces"
    problem = error.problem or ""
    for phrases, title, fix in PYYAML_REASONS:
        if any(phrase in problem for phrase in phrases):
            return title, fix
    return f"this is not YAML: {problem}", "check quotes and indentation"


def _get_mark_span(source: Source, mark: yaml.Mark | None) -> Span:
    """Return the span of the character at a mark; the end of the text if there is no mark."""
    size = len(source.text)
    offset = min(mark.index, size) if mark else size
    return Span(source, offset, min(offset + 1, size))
