"""Check vocabularies: entries that are not strings, or that no tokenization produces."""

import json
from collections.abc import Iterator, Sequence
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.spec_modules import Program
from specc.io.safe_read import escape_text
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.records import TextWords
from specc.preprocessing.vocabulary import find_unreachable_words
from specc.syntax import ast

MAX_SHOWN = 8
"""Maximum number of entries that a message lists."""


def check_vocabulary_texts(given: Sequence[object], span: Span | None) -> list[str]:
    """Return the entries of a vocabulary list in a spec. Raise E0985 if one is not a string."""
    for token in given:
        if not isinstance(token, str):
            _fail_not_a_string(token, span)
    return [token for token in given if isinstance(token, str)]


def _fail_not_a_string(token: object, span: Span | None) -> NoReturn:
    shown = escape_text(json.dumps(token, default=str))[:60]
    helps = ['write a list of strings: ["one", "two"]']
    if isinstance(token, int | float):
        helps = [f'quote a token that is a number: "{shown}"']
    raise_error("E0985", f"`{shown}` in a vocabulary is not a string", span, helps=helps)


def warn_unreachable_words(program: Program, reading: PreprocessingConfig) -> Iterator[Diagnostic]:
    """Yield W0756 for each input whose vocabulary has tokens that no text can produce."""
    spans = {e.name: e.span for item, _ in program.iterate_items(ast.Reading) for e in item.entries}
    for name, record in reading.inputs:
        if isinstance(record, TextWords) and (words := find_unreachable_words(record)):
            span = spans.get(name)
            yield Diagnostic(
                "W0756",
                _format_title(name, words),
                Label.at(span, "tokenized with this vocabulary"),
                notes=tuple(_explain_unreachable(record, words)),
                helps=("write the tokens as they occur in texts",),
                severity="warning",
            )


def _format_title(name: str, words: list[str]) -> str:
    named = ", ".join(f"`{escape_text(word[:40])}`" for word in words[:MAX_SHOWN])
    more = f" and {len(words) - MAX_SHOWN} more" if len(words) > MAX_SHOWN else ""
    return f"the tokenizer of `{name}` can never produce the tokens {named}{more}"


def _explain_unreachable(record: TextWords, words: list[str]) -> Iterator[str]:
    """Yield the reasons why no text produces some of the tokens: white space, upper case."""
    if any(any(c.isspace() for c in word) for word in words):
        yield "texts are split at white space, so no token contains any"
    if record.lower and any(word != word.lower() for word in words):
        yield "`lower=true` lowercases every text"
