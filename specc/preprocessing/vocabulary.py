"""Vocabulary files."""

import json
from collections.abc import Iterable

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Source, Span
from specc.io.safe_read import escape_text
from specc.preprocessing.records import MAX_TOKEN, MAX_VOCABULARY


def read_vocabulary(source: Source) -> tuple[str, ...]:
    """The tokens of a vocabulary file. Fails with E0909, which points at the line."""
    tokens: dict[str, Span] = {}
    start = 0
    lines = source.text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for line in lines:
        span = Span(source, start, start + len(line))
        start += len(line) + 1
        token = _token(line.removesuffix("\r"), span)
        if token in tokens:
            raise_error(
                "E0909",
                "the vocabulary lists a token twice",
                span,
                "again here",
                others=[Label(tokens[token], "first")],
            )
        tokens[token] = span
        if len(tokens) > MAX_VOCABULARY:
            raise_error("E0909", f"the vocabulary has more than {MAX_VOCABULARY} tokens", span)
    if not tokens:
        raise_error(
            "E0909",
            f"the vocabulary `{escape_text(source.name)}` is empty",
            helps=["write one token a line"],
        )
    return tuple(tokens)


def write_vocabulary(tokens: Iterable[str]) -> str:
    """The text of a vocabulary file: `read_vocabulary` undone."""
    return "".join(f"{_line(token)}\n" for token in tokens)


def _token(line: str, span: Span) -> str:
    """The token that a line stands for."""
    if line.startswith('"'):
        try:
            token = json.loads(line)
        except ValueError:
            raise_error(
                "E0909",
                "this line of the vocabulary begins with a quote and is no JSON string",
                span,
                helps=[f"write {json.dumps(line, ensure_ascii=False)} for these very characters"],
            )
        if not isinstance(token, str) or any("\ud800" <= c <= "\udfff" for c in token):
            raise_error("E0909", "this line of the vocabulary is no whole text", span)
    else:
        token = line
        if _line(token) != line:
            raise_error(
                "E0909",
                "this line of the vocabulary is easily lost or changed by an editor",
                span,
                notes=[
                    "empty lines, spaces at an edge and control characters are "
                    "written as JSON strings"
                ],
                helps=[f"write {json.dumps(token, ensure_ascii=False)}"]
                if token
                else ["remove the empty line"],
            )
    if not token or len(token) > MAX_TOKEN:
        raise_error("E0909", f"a token has 1 to {MAX_TOKEN} characters", span)
    return token


def _line(token: str) -> str:
    """A token as a line of a vocabulary file."""
    plain = token == token.strip() and token.isprintable() and token and not token.startswith('"')
    return token if plain else json.dumps(token, ensure_ascii=not token.isprintable())
