"""The TextMate grammar highlights every keyword of the language, and the extension is complete."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generators import textmate_grammar
from specc.syntax.dsl.lalr import load_lalr_table

EXTENSION = Path(__file__).parents[2] / "editors" / "vscode"
GRAMMAR = json.loads((EXTENSION / "syntaxes" / "specc.tmLanguage.json").read_text(encoding="utf-8"))
WORDS = sorted(text for text in load_lalr_table().keywords if text.isalpha())
USES = {
    "in": "repeat i in 4 {", "if": "a if c else b", "else": "a if c else b", "for": "[i for i in n]",
    "not": "x = not a", "as": 'use "vit" as v', "of": "generate t of ids from y {",
    "from": "generate t of ids from y {", "under": 'repeat i in n under "a" {', "collect": "repeat i in n collect h {",
    "along": "scan x in y along n {", "carry": "scan x in y carry h {", "reverse": "scan x in y reverse {",
    "keep": "scan x in y keep m {", "until": "scan x in y until d {", "where": "-> float[a] where n = m {",
    "show": "  show logits = text(a)", "left": "k: keep[b, n] left", "right": "k: keep[b, n] right",
    "list": "a: list[int]", "pair": "a: pair[int]", "choice": "a: choice(b | c)", "record": "a: record { b: int }",
    "tie": "  tie a = b", "load": "  load a = b", "ignore": "  ignore a", "share": "  share a", "expect": '  expect "a" in (b)',
}  # fmt: skip
"""How words are used that begin no item and no statement."""


def find_scopes(line: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a line with the scope of the first matching pattern, as an editor does
    for single-line patterns."""
    at = 0
    while at < len(line):
        found = [
            (m.start(), n, m)
            for n, p in enumerate(GRAMMAR["patterns"])
            if (m := _match_pattern(p, line, at))
        ]
        if not found:
            return
        start, number, match = min(found, key=lambda f: f[:2])
        pattern = GRAMMAR["patterns"][number]
        captures = pattern.get("captures", {})
        for group, capture in captures.items():
            if match[int(group)]:
                yield match[int(group)], capture["name"]
        if not captures:
            yield match[0].strip(), pattern["name"]
        at = max(match.end(), start + 1)


def _match_pattern(pattern: Any, line: str, at: int) -> "re.Match[str] | None":
    return re.compile(pattern.get("match") or '"(?:\\\\.|[^"])*"').search(line, at)


def test_every_keyword_is_highlighted() -> None:
    for word in WORDS:
        found = dict(find_scopes(USES.get(word, f"{word} name(x) {{")))
        assert found[word].startswith(("keyword", "support.type")), (word, found)


@pytest.mark.parametrize(
    ("line", "word", "scope"),
    [
        ("y = attend(x, x, x, mask=causal)", "mask", "variable.parameter"),
        ("text = dims + 1", "text", "variable.other"),
        ("h = linear(x, out=d) @ encoder.layers.0", "encoder.layers.0", "entity.name.tag"),
        ("h = linear(x, out=d)", "linear", "support.function"),
        ("h = mine(x)", "mine", "entity.name.function"),
        ("  d: int = 8", "int", "support.type"),
        ("x = none", "none", "constant.language"),
        ("x = 1.5e-5 # mask", "# mask", "comment"),
        ("mask near(n) = i - j < n", "near", "entity.name.function"),
    ],
)
def test_scopes_of_names(line: str, word: str, scope: str) -> None:
    assert dict(find_scopes(line))[word].startswith(scope)


def test_extension_files_exist() -> None:
    package = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
    there = package["contributes"]
    files = [
        package["main"],
        *(g["path"] for g in there["grammars"]),
        *(lang["configuration"] for lang in there["languages"]),
    ]
    assert [f for f in files if not (EXTENSION / f).is_file()] == []
    assert {g["scopeName"] for g in there["grammars"]} == {
        textmate_grammar.build_textmate_grammar()["scopeName"]
    }
    json.loads((EXTENSION / "language-configuration.json").read_text(encoding="utf-8"))
