"""Generate the TextMate grammar of `.specc` files."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from docs.generators.json_schema_parts import list_callables
from specc.frontend.declared_types import STATIC_KINDS, TENSOR_DTYPES
from specc.frontend.name_lookup import NAMED_CONSTANTS
from specc.syntax.dsl.lalr import load_lalr_table
from specc.syntax.dsl.unexpected_token import (
    DEFINITION_TERMINALS,
    ITEM_TERMINALS,
    RESERVED_TERMINALS,
)

Pattern: TypeAlias = Mapping[str, object]
NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
NO_NAME = r"(?!\s*(?:=(?!=)|[:,.()\]]))"
"""Negative lookahead after a keyword, which excludes names: a name precedes these characters."""


def build_textmate_grammar() -> Mapping[str, object]:
    """Return the TextMate grammar of specs. The first matching pattern applies."""
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "specc",
        "scopeName": "source.specc",
        "patterns": [*_plain(), *_declarations(), *_words(), *_names()],
    }


def _plain() -> list[Pattern]:
    """Return the patterns of comments, strings and numbers."""
    escape = {"name": "constant.character.escape.specc", "match": r"\\."}
    hole = {"name": "variable.other.hole.specc", "match": r"\{[^{}\"]*\}"}
    return [
        {"name": "comment.line.number-sign.specc", "match": "#.*$"},
        {
            "name": "string.quoted.double.specc",
            "begin": '"',
            "end": '"|$',
            "patterns": [escape, hole],
        },
        {"name": "constant.numeric.specc", "match": r"\b[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\b"},
    ]


def _declarations() -> list[Pattern]:
    """Return the patterns of declarations, weight names and types."""
    giving = [*_lower(DEFINITION_TERMINALS), "block", "graph", "model"]
    # `a if bias else (b)` does not declare a name
    given = rf"(?!(?:{'|'.join(_lower(RESERVED_TERMINALS))})\b){NAME_PATTERN}"
    types = sorted({*STATIC_KINDS, *TENSOR_DTYPES, "list", "pair", "choice", "record"})
    return [
        _captured(
            rf"\b({'|'.join(giving)})\s+({given})(?!\s*=\s*{NAME_PATTERN}\s*[,)])",
            "keyword.declaration.specc",
            "entity.name.function.specc",
        ),
        _captured(
            rf"(@)\s*({NAME_PATTERN}(?:\.(?:{NAME_PATTERN}|[0-9]+))*)?",
            "keyword.operator.weights.specc",
            "entity.name.tag.specc",
        ),
        _captured(
            rf"(:|->)\s*({'|'.join(types)})\b", "punctuation.separator.specc", "support.type.specc"
        ),
    ]


def _captured(match: str, *scopes: str) -> Pattern:
    """Return a pattern whose capture groups have the given scopes."""
    captures = {str(n): {"name": scope} for n, scope in enumerate(scopes, 1)}
    return {"match": match, "captures": captures}


def _lower(kinds: Iterable[str]) -> list[str]:
    return sorted(kind.lower() for kind in kinds)


def _words() -> list[Pattern]:
    """Return the patterns of keywords: reserved words, then words that may also be names."""
    # keywords that consist of letters
    words = {text for text in load_lalr_table().keywords if text.isalpha()}
    hard = _lower(RESERVED_TERMINALS)
    items = sorted({*_lower(ITEM_TERMINALS), "specc", "model", "extends"} & words)
    soft = sorted(words - set(hard) - set(items))
    return [
        {"name": "keyword.control.specc", "match": rf"(?<!\.)\b(?:{'|'.join(hard)})\b"},
        {
            "name": "keyword.declaration.specc",
            "match": rf"(?:^|(?<=[\s}}]))(?:{'|'.join(items)})\b{NO_NAME}",
        },
        {"name": "keyword.other.specc", "match": rf"(?<![.\w])(?:{'|'.join(soft)})\b{NO_NAME}"},
        {
            "name": "constant.language.specc",
            "match": rf"(?<!\.)\b(?:{'|'.join(NAMED_CONSTANTS)})\b",
        },
    ]


def _names() -> list[Pattern]:
    """Return the patterns of function names, options, other names and operators."""
    known = "|".join(map(re.escape, list_callables()))
    return [
        {"name": "support.function.specc", "match": rf"\b(?:{known})\b(?=\s*\()"},
        {"name": "entity.name.function.specc", "match": rf"\b{NAME_PATTERN}\b(?=\s*\()"},
        {"name": "variable.parameter.specc", "match": rf"(?<=[(,])\s*{NAME_PATTERN}(?=\s*=(?!=))"},
        {"name": "variable.other.specc", "match": rf"\b{NAME_PATTERN}\b"},
        {"name": "keyword.operator.specc", "match": r"\.\.\.|->|\*\*|//|[=!<>]=|[-+*/%&|<>=?:]"},
    ]


def render_textmate_json() -> str:
    """Return the content of the TextMate grammar file."""
    return json.dumps(build_textmate_grammar(), indent=2, ensure_ascii=False) + "\n"
