"""Expression and `.specc` text → tree.

The grammar is grammar.lark; everything that is one scalar in YAML can be parsed alone,
from a fragment that knows where its characters stand in the file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast

import specc.lang.dsl.build_expression
import specc.lang.dsl.build_section  # noqa: F401 — both register callbacks
from specc.lang import limits, tree
from specc.lang.dsl.build import Build
from specc.lang.dsl.build_item import DefinitionHead
from specc.lang.dsl.build_statement import RepeatHead, ScanHead
from specc.lang.dsl.errors import Explainer
from specc.lang.dsl.fragment import Fragment, whole
from specc.lang.dsl.lalr import Run, load
from specc.lang.dsl.lexer import Tokens, lex
from specc.lang.dsl.terminals import ITEMS
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Source, Span

T = TypeVar("T")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Characters that no text has: most mean that a file is no text, or is in another
encoding than UTF-8.
"""


@dataclass(frozen=True, slots=True)
class Start(Generic[T]):
    """What can be parsed alone: a symbol of the grammar, and what messages call it. `T`
    is what its callback gives.
    """

    symbol: str
    what: str


FILE: Start[tree.File] = Start("file", "a spec")
EXPR: Start[tree.Expr] = Start("expr", "an expression")
TYPE: Start[tree.TypeName] = Start("type", "a type")
SIDED_TYPE: Start[tree.TypeName] = Start("sided_type", "a type")
TYPES: Start[tuple[tree.TypeName, ...]] = Start("types", "types")
SOURCE: Start[tree.Text | tree.Call] = Start("source", "a place in config.json")
DIM_NAME: Start[tree.DimName] = Start("dim_name", "a length")
DEFINITION_HEAD: Start[DefinitionHead] = Start(
    "definition_head", "a name with its parameters"
)
REPEAT_HEAD: Start[RepeatHead] = Start("repeat_head", "`name in count`")
SCAN_HEAD: Start[ScanHead] = Start("scan_head", "`names in sequences`")
TARGETS: Start[tuple[tree.Target, ...]] = Start("targets", "names")
DOTTED: Start[tree.Name] = Start("dotted", "a name")


def parse_fragment(fragment: Fragment, start: Start[T]) -> T:
    """The tree of a piece of text. Fails with E01xx."""
    table = load()
    lexed = lex(fragment, table.words)
    # the parser would blame what the lexer made of a stray character
    if lexed.faults:
        raise Failed(*capped(lexed.faults))
    build = Build(fragment, lexed.tokens, lexed.comments)

    def exceeded(code: str, first: int) -> Diagnostic:
        token = lexed.tokens[first]
        title = f"operators inside each other more than {limits.HEIGHT} deep"
        if code == "E0111":
            title = f"an expression of more than {limits.TOKENS} words and signs"
        label = Label(fragment.span(token.start, token.end), "starts here")
        return Diagnostic(
            code, title, label, helps=("give parts of it names of their own",)
        )

    run = Run(
        table=table,
        tokens=lexed.tokens,
        start=start.symbol,
        build=build,
        explain=Explainer(fragment, start.what),
        exceeded=exceeded,
        restarts=restarts(fragment, lexed),
        faults=build.faults,
    )
    value = run.parse()
    if build.faults:
        raise Failed(*capped(build.faults))
    # the table leads from a start symbol to the callback of that symbol alone
    return cast(T, value)


def restarts(fragment: Fragment, lexed: Tokens) -> list[int]:
    """Where parsing may go on after a fault: words in column 1 that begin an item and
    are no names.
    """
    text = fragment.text
    tokens = lexed.tokens
    return [
        n
        for n, t in enumerate(tokens)
        if t.kind in ITEMS
        and (t.start == 0 or text[t.start - 1] == "\n")
        # `mask = …`, `mask: type`, `mask, x = …`: names, since most keywords are
        and tokens[n + 1].kind not in ("EQUAL", "COLON", "COMMA")
    ]


def capped(faults: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Faults in the order of the text, at most 20, the last saying how many more there are."""

    def place(fault: Diagnostic) -> int:
        return fault.primary.span.start if fault.primary else 0

    ordered = sorted(faults, key=place)
    unseen = len(ordered) - limits.REPORTED
    if unseen <= 0:
        return ordered
    # reading stopped where so many were collected, so their number says nothing
    stopped = len(ordered) >= limits.COLLECTED
    count = "many more errors" if stopped else f"{unseen} more errors"
    last = ordered[limits.REPORTED - 1]
    last = replace(last, notes=(*last.notes, f"{count} are not shown"))
    return [*ordered[: limits.REPORTED - 1], last]


def parse_dsl(source: Source) -> tree.File:
    """The tree of a `.specc` text. Fails with E01xx, showing up to 20 independent faults."""
    return parse_fragment(whole(checked(source)), FILE)


def parse_expression(source: Source | str) -> tree.Expr:
    """The tree of one expression, such as a value given on the command line."""
    if isinstance(source, str):
        source = Source("<expression>", source)
    return parse_fragment(whole(checked(source)), EXPR)


def checked(source: Source) -> Source:
    """A text without control characters. Fails with E0109 or E0112."""
    if len(source.text) > limits.TEXT:
        fail(
            "E0109",
            f"a spec of {len(source.text)} characters; at most {limits.TEXT} are read",
            Span(source, 0, 0),
            "starts here",
            helps=[
                "repeat layers with `repeat`, and keep blocks in files of their own with `use`"
            ],
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
            notes=[
                "many of these mean that the file is not a text, or is in another "
                "encoding than UTF-8"
            ],
            helps=["delete it"],
        )
    return source
