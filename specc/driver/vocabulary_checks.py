"""Check vocabularies: entries that are not text or that no tokenization reaches."""

import json
from collections.abc import Iterator, Sequence
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.spec_modules import Program
from specc.io.safe_read import escape_text
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.word_tokens import TextWords, find_unreachable_words
from specc.syntax import ast

MOST_SHOWN = 8
"""Words that a message names."""


def check_vocabulary_texts(given: Sequence[object], span: Span | None) -> list[str]:
    """The words of a list that is written in a spec. E0985 for what is no text."""
    for token in given:
        if not isinstance(token, str):
            _no_text(token, span)
    return [token for token in given if isinstance(token, str)]


def _no_text(token: object, span: Span | None) -> NoReturn:
    said = escape_text(json.dumps(token, default=str))[:60]
    helps = ['write a list of texts: ["one", "two"]']
    if isinstance(token, int | float):
        helps = [f'a number that is a word is written as a text: "{said}"']
    raise_error("E0985", f"`{said}` is no text, and stands in a vocabulary", span, helps=helps)


def warn_unreachable_words(program: Program, reading: PreprocessingConfig) -> Iterator[Diagnostic]:
    """W0756 for each input whose vocabulary has such words."""
    spans = {e.name: e.span for item, _ in program.items(ast.Reading) for e in item.entries}
    for name, record in reading.inputs:
        if isinstance(record, TextWords) and (words := find_unreachable_words(record)):
            span = spans.get(name)
            yield Diagnostic(
                "W0756",
                _title(name, words),
                Label(span, "read by these words") if span else None,
                notes=tuple(_why(record, words)),
                helps=("write them in the list as texts have them",),
                severity="warning",
            )


def _title(name: str, words: list[str]) -> str:
    named = ", ".join(f"`{escape_text(word[:40])}`" for word in words[:MOST_SHOWN])
    more = f" and {len(words) - MOST_SHOWN} more" if len(words) > MOST_SHOWN else ""
    return f"no text for `{name}` can be read as {named}{more}"


def _why(record: TextWords, words: list[str]) -> Iterator[str]:
    """What keeps texts from them: one or both."""
    if any(any(c.isspace() for c in word) for word in words):
        yield "words stand between white space, so none is in a word"
    if record.lower and any(word != word.lower() for word in words):
        yield "with `lower=true` words are looked for in small letters"
