"""Hover markdown, inlay hints with shapes, and the document outline."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specc.diagnostics.render import escape_control_characters
from specc.diagnostics.source import Span
from specc.lsp.document_analysis import DocumentAnalysis
from specc.lsp.hover import NameMeaning
from specc.syntax import ast
from specc.syntax.ast_walk import walk_tree

TICKS = re.compile(r"`+")
MARKS = re.compile(r"([<>\[\]!\\&])")
"""Characters that would make more of a text than a text."""


def meaning_as_markdown(found: NameMeaning) -> str:
    """What a word means, as an editor shows it: code, text, and what stands there."""
    parts: list[str] = []
    if found.shown:
        parts.append(fence_code(found.shown))
    if found.doc:
        parts.append(escape_spec_text(found.doc))
    if found.stands:
        parts.append("here: " + " or ".join(f"`{escape_code(s)}`" for s in found.stands))
    # numbers tell nothing more where no length is a config value
    if found.numbers and found.numbers != found.stands:
        said = " or ".join(f"`{escape_code(s)}`" for s in found.numbers)
        parts.append(f"with this config: {said}")
    return "\n\n".join(parts)


def fence_code(code: str) -> str:
    """Code in a fence that nothing in it closes."""
    longest = max((len(t) for t in TICKS.findall(code)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(escape_control_characters(line) for line in code.split("\n"))
    return f"{fence}specc\n{lines}\n{fence}"


def escape_spec_text(text: str) -> str:
    """A text of a spec whose marks stay marks: no link, no picture, no HTML."""
    lines = (escape_control_characters(line) for line in text.split("\n"))
    return "\n".join(MARKS.sub(r"\\\1", line) for line in lines)


def escape_code(text: str) -> str:
    """A text between backticks."""
    return escape_control_characters(text).replace("`", "'")


@dataclass(frozen=True)
class InlayHint:
    """A text that is shown behind a character and is no part of the file."""

    offset: int
    text: str


def find_inlay_hints(known: DocumentAnalysis, start: int, end: int) -> Iterator[InlayHint]:
    """The shapes of the names that a part of a text gives, where it does not say them."""
    nodes = walk_tree(known.file) if known.file else ()
    targets = (n for n in nodes if isinstance(n, ast.Target) and not n.type)
    for span in (target.span for target in targets):
        if span is None or not start <= span.start <= end:
            continue
        # numbers and words say themselves; a shape has brackets
        said = known.shapes.get((span.start, span.end), ())
        shapes = [s for s in said if "[" in s and not s.startswith("the ")]
        if shapes:
            yield _hint(known, span, " or ".join(map(escape_control_characters, shapes)))


def _hint(known: DocumentAnalysis, span: Span, shown: str) -> InlayHint:
    """Return the hint after a name; in YAML at the end of its line."""
    if known.syntax == "specc":
        return InlayHint(span.end, f": {shown}")
    text = known.source.text
    line = text.find("\n", span.start)
    return InlayHint(line if line >= 0 else len(text), f"  {shown}")


@dataclass(frozen=True)
class OutlineEntry:
    """One item of a spec for the outline."""

    name: str
    kind: str
    detail: str
    start: int
    end: int


def document_outline(known: DocumentAnalysis) -> Iterator[OutlineEntry]:
    """The items of a spec that have a name."""
    for item in known.file.items if known.file else ():
        span = item.span
        if span is None:
            continue
        match item:
            case ast.Block() | ast.Definition():
                yield OutlineEntry(item.name, item.kind, item.doc, span.start, span.end)
            case ast.Config():
                yield OutlineEntry("config", "config", "", span.start, span.end)
            case ast.Stream():
                yield OutlineEntry(item.source, "stream", "", span.start, span.end)
            case ast.Generate():
                yield OutlineEntry(item.name, "generate", "", span.start, span.end)
            case _:
                continue
