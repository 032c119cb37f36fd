"""What is shown at and beside a text: hovers, shapes behind names, the outline."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specc.editors.analysis import Analysis
from specc.editors.meaning import Meaning
from specc.lang import tree
from specc.lang.walk import walk
from specc.text.characters import escaped
from specc.text.source import Span

TICKS = re.compile(r"`+")
MARKS = re.compile(r"([<>\[\]!\\&])")
"""Characters that would make more of a text than a text."""


def markdown(found: Meaning) -> str:
    """What a word means, as an editor shows it: code, text, and what stands there."""
    parts: list[str] = []
    if found.shown:
        parts.append(fenced(found.shown))
    if found.doc:
        parts.append(plain(found.doc))
    if found.stands:
        parts.append("here: " + " or ".join(f"`{plain_code(s)}`" for s in found.stands))
    # numbers tell nothing more where no length is a config value
    if found.numbers and found.numbers != found.stands:
        said = " or ".join(f"`{plain_code(s)}`" for s in found.numbers)
        parts.append(f"with this config: {said}")
    return "\n\n".join(parts)


def fenced(code: str) -> str:
    """Code in a fence that nothing in it closes."""
    longest = max((len(t) for t in TICKS.findall(code)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(escaped(line) for line in code.split("\n"))
    return f"{fence}specc\n{lines}\n{fence}"


def plain(text: str) -> str:
    """A text of a spec whose marks stay marks: no link, no picture, no HTML."""
    lines = (escaped(line) for line in text.split("\n"))
    return "\n".join(MARKS.sub(r"\\\1", line) for line in lines)


def plain_code(text: str) -> str:
    """A text between backticks."""
    return escaped(text).replace("`", "'")


@dataclass(frozen=True)
class Hint:
    """A text that is shown behind a character and is no part of the file."""

    offset: int
    text: str


def hints(known: Analysis, start: int, end: int) -> Iterator[Hint]:
    """The shapes of the names that a part of a text gives, where it does not say them."""
    nodes = walk(known.file) if known.file else ()
    targets = (n for n in nodes if isinstance(n, tree.Target) and not n.type)
    for span in (target.span for target in targets):
        if span is None or not start <= span.start <= end:
            continue
        # numbers and words say themselves; a shape has brackets
        said = known.shapes.get((span.start, span.end), ())
        shapes = [s for s in said if "[" in s and not s.startswith("the ")]
        if shapes:
            yield _hint(known, span, " or ".join(map(escaped, shapes)))


def _hint(known: Analysis, span: Span, shown: str) -> Hint:
    """A shape behind its name; in YAML, where a key has its own colon, at the end of its
    line.
    """
    if known.syntax == "specc":
        return Hint(span.end, f": {shown}")
    text = known.source.text
    line = text.find("\n", span.start)
    return Hint(line if line >= 0 else len(text), f"  {shown}")


@dataclass(frozen=True)
class Entry:
    """One item of a spec for the outline."""

    name: str
    kind: str
    detail: str
    start: int
    end: int


def outline(known: Analysis) -> Iterator[Entry]:
    """The items of a spec that have a name."""
    for item in known.file.items if known.file else ():
        span = item.span
        if span is None:
            continue
        match item:
            case tree.Block() | tree.Definition():
                yield Entry(item.name, item.kind, item.doc, span.start, span.end)
            case tree.Config():
                yield Entry("config", "config", "", span.start, span.end)
            case tree.Stream():
                yield Entry(item.source, "stream", "", span.start, span.end)
            case tree.Generate():
                yield Entry(item.name, "generate", "", span.start, span.end)
            case _:
                continue
