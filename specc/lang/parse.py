"""Expression and `.specc` text → tree.

The grammar is grammar.lark; everything that is one scalar in YAML can be parsed alone, from a fragment
that knows where its characters stand in the file.
"""

import re
from typing import Any

import specc.lang.build_expression
import specc.lang.build_item  # noqa: F401 — registers the callbacks
from specc.lang import limits, tree
from specc.lang.build import Build
from specc.lang.fragment import Fragment, whole
from specc.lang.lalr import Run, load
from specc.lang.lexer import Tokens, lex
from specc.lang.syntax_error import ITEMS, Explainer
from specc.text.diagnostic import Diagnostic, Failed, fail
from specc.text.source import Source, Span

CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Characters that no text has: most mean that a file is no text, or is in another encoding than UTF-8."""

KINDS = {
    "file": "a spec",
    "expr": "an expression",
    "type": "a type",
    "sided_type": "a type",
    "types": "types",
    "source": "a place in config.json",
    "dim_name": "a length",
    "definition_head": "a name with its parameters",
    "repeat_head": "`name in count`",
    "scan_head": "`names in sequences`",
    "name": "a name",
    "names": "names",
    "title": "a name",
    "targets": "names",
    "dotted": "a name",
    "path": "a name of weights",
}


def parse_fragment(fragment: Fragment, start: str = "expr") -> Any:
    """The tree of a piece of text; `start` is one of the starts of the grammar. Fails with E01xx."""
    table = load()
    lexed = lex(fragment, table.words)
    if lexed.faults:
        raise Failed(*capped(lexed.faults))
    explain = Explainer(fragment, KINDS[start])
    build = Build(fragment, lexed.tokens, lexed.comments)

    def exceeded(code: str, first: int, last: int) -> Diagnostic:
        title = f"operators inside each other more than {limits.HEIGHT} deep"
        if code == "E0111":
            title = f"an expression of more than {limits.TOKENS} words and signs"
        return explain.exceeded(
            code, title, "give parts of it names of their own", lexed.tokens[first], lexed.tokens[last]
        )

    run = Run(table, lexed.tokens, start, build, explain, exceeded, restarts(fragment, lexed), build.faults)
    made = run.parse()
    if build.faults:
        raise Failed(*capped(build.faults))
    return made


def restarts(fragment: Fragment, lexed: Tokens) -> list[int]:
    """Where parsing may go on after a fault: words in column 1 that begin an item and are no names."""
    text = fragment.text
    tokens = lexed.tokens
    return [
        n
        for n, t in enumerate(tokens)
        if t.kind in ITEMS
        and (t.start == 0 or text[t.start - 1] == "\n")
        and tokens[n + 1].kind not in ("EQUAL", "COLON", "COMMA")
    ]


def capped(faults: list[Diagnostic]) -> list[Diagnostic]:
    """Faults in the order of the text, at most 20, the last saying how many more there are."""

    def place(fault: Diagnostic) -> int:
        return fault.primary.span.start if fault.primary else 0

    ordered = sorted(faults, key=place)
    unseen = len(ordered) - limits.REPORTED
    if unseen <= 0:
        return ordered
    last = ordered[limits.REPORTED - 1]
    count = f"{unseen} more errors" if len(ordered) < limits.COLLECTED else "many more errors"
    more = Diagnostic(
        last.code,
        last.title,
        last.primary,
        last.others,
        (*last.notes, f"{count} are not shown"),
        last.helps,
        last.fixes,
    )
    return [*ordered[: limits.REPORTED - 1], more]


def parse_dsl(source: Source) -> tree.File:
    """The tree of a `.specc` text. Fails with E01xx, showing up to 20 independent faults."""
    checked(source)
    made: tree.File = parse_fragment(whole(source), "file")
    return made


def parse_expression(source: Source | str) -> tree.Expr:
    """The tree of one expression, such as a value given on the command line."""
    if isinstance(source, str):
        source = Source("<expression>", source)
    checked(source)
    made: tree.Expr = parse_fragment(whole(source), "expr")
    return made


def checked(source: Source) -> Source:
    """A text without control characters. Fails with E0109 or E0112."""
    if len(source.text) > limits.TEXT:
        fail(
            "E0109",
            f"a spec of {len(source.text)} characters; at most {limits.TEXT} are read",
            Span(source, 0, 0),
            "starts here",
            helps=["repeat layers with `repeat`, and keep blocks in files of their own with `use`"],
        )
    found = CONTROL.search(source.text)
    if found:
        code = ord(found.group())
        what = "the control character" if code < 0xD800 else "the character"
        fail(
            "E0112",
            f"{what} U+{code:04X} cannot be in a spec",
            Span(source, found.start(), found.end()),
            "here",
            notes=["many of these mean that the file is not a text, or is in another encoding than UTF-8"],
            helps=["delete it"],
        )
    return source
