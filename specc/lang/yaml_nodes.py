"""YAML text → nodes with spans, from PyYAML's parser events alone.

No resolver runs: a scalar is its text, whatever it looks like. What makes YAML a language of its own is
refused: anchors, aliases, merge keys, tags, several documents, keys that are not plain text, keys twice.
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from specc.lang import limits
from specc.lang.fragment import Fragment
from specc.lang.lexer import Comment
from specc.lang.parse import capped
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Source, Span


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A text; `style` is `'`, `"`, `|`, `>` or empty."""

    value: str
    style: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """A list; `column` is where its entries start, 0 for the first."""

    items: "list[Node]"
    span: Span
    column: int
    flow: bool


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """`key: value`."""

    key: Scalar
    value: "Node"

    @property
    def name(self) -> str:
        """The text of the key."""
        return self.key.value


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """A map; its keys differ."""

    entries: list[Entry]
    span: Span
    column: int
    flow: bool


Node: TypeAlias = Scalar | Sequence | Mapping


@dataclass
class Open:
    """A collection that is being read."""

    start: int
    flow: bool
    mapping: bool
    items: list[Any] = field(default_factory=list)
    key: Scalar | None = None
    keys: dict[str, Scalar] = field(default_factory=dict)


@dataclass
class Document:
    """The root of a YAML text, or None if nothing is written, and its comments."""

    root: Node | None
    comments: list[Comment]


COMMENT = re.compile(r"(?:(?<=[ \t\n\r\x85\u2028\u2029])|\A)#[^\n]*")
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def compose(source: Source) -> Document:
    """The nodes of a text. Fails with E0110, E0116, E0121 to E0124."""
    composer = Composer(source)
    try:
        for event in yaml.parse(source.text, Loader=LOADER):
            composer.event(event)
    except yaml.YAMLError as error:
        raise Failed(unreadable(source, error)) from None
    if composer.faults:
        raise Failed(*capped(composer.faults))
    return Document(composer.root, comments(source, composer.scalars))


class Composer:
    """Events → nodes, without recursion."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.stack: list[Open] = []
        self.root: Node | None = None
        self.scalars: list[Span] = []
        self.faults: list[Diagnostic] = []
        self.documents = 0

    def event(self, event: Any) -> None:
        """Take the next event."""
        span = Span(self.source, event.start_mark.index, event.end_mark.index)
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    fail("E0123", "a second document in one file", span, "starts here",
                         helps=["write one spec a file"])  # fmt: skip
            case yaml.AliasEvent():
                self.refuse(span, "an alias")
            case yaml.ScalarEvent():
                self.refuse_marks(event, span)
                node = Scalar(event.value, event.style or "", span)
                if node.style or span.end > span.start:
                    self.scalars.append(span)
                self.put(node)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self.refuse_marks(event, span)
                self.stack.append(Open(span.start, bool(event.flow_style), isinstance(event, yaml.MappingStartEvent)))
                if len(self.stack) > limits.NESTING:
                    fail(
                        "E0110",
                        f"lists and maps inside each other more than {limits.NESTING} deep",
                        span,
                        f"number {len(self.stack)}",
                        helps=["give the inner part a name of its own"],
                    )
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self.close(span)
            case _:
                pass

    def refuse_marks(self, event: Any, span: Span) -> None:
        """Refuse `&anchor` and `!tag`."""
        if event.anchor is not None:
            self.refuse(span, "an anchor")
        if event.tag is not None:
            self.refuse(span, "a tag")

    def refuse(self, span: Span, what: str) -> None:
        """Fail because of something that YAML has and the language does not."""
        fail(
            "E0122",
            f"{what} is not part of the language",
            span,
            "here",
            notes=["specs know no anchors, aliases, merge keys or tags"],
            helps=["for a part that is used twice write a `block`; quote a text that starts with `&`, `*` or `!`"],
        )

    def close(self, span: Span) -> None:
        """The end of a collection; that of a block is where its last entry ends."""
        opened = self.stack.pop()
        end = span.end
        if not opened.flow:
            last = opened.items[-1] if opened.items else None
            inner = last.value if isinstance(last, Entry) else last
            end = max(inner.span.end, last.key.span.end if isinstance(last, Entry) else 0) if inner else opened.start
        whole = Span(self.source, opened.start, max(opened.start, end))
        column = opened.start - (self.source.text.rfind("\n", 0, opened.start) + 1)
        if opened.mapping:
            self.put(Mapping(opened.items, whole, column, opened.flow))
        else:
            self.put(Sequence(opened.items, whole, column, opened.flow))

    def put(self, node: Node) -> None:
        """Add a node to the collection that is open."""
        if not self.stack:
            self.root = node if not empty(node) else None
            return
        top = self.stack[-1]
        if not top.mapping:
            top.items.append(node)
        elif top.key is None:
            top.key = self.key(top, node)
        else:
            top.items.append(Entry(top.key, node))
            top.key = None

    def key(self, top: Open, node: Node) -> Scalar:
        """A key, which must be a text that the map does not have yet."""
        if not isinstance(node, Scalar):
            fail("E0124", "a key that is a list or a map", node.span, "here",
                 helps=["a key is one word; quote a text that starts with `[` or `{`"])  # fmt: skip
        if node.value == "<<":
            self.refuse(node.span, "a merge key")
        if node.value in top.keys:
            first = Label(top.keys[node.value].span, "first here")
            again = Label(node.span, "again here")
            self.faults.append(Diagnostic("E0116", f"the key `{node.value}` is given twice", again, (first,),
                                          helps=("leave one of the two out",)))  # fmt: skip
            if len(self.faults) >= limits.COLLECTED:
                raise Failed(*capped(self.faults))
        top.keys.setdefault(node.value, node)
        return node


def empty(node: Node) -> bool:
    """Whether nothing is written where a value could be."""
    return isinstance(node, Scalar) and not node.style and not node.value


def comments(source: Source, scalars: list[Span]) -> list[Comment]:
    """The comments of a text, which the events do not tell: every ` #` outside a scalar."""
    found: list[Comment] = []
    at = position = 0
    while match := COMMENT.search(source.text, position):
        start = match.start()
        while at < len(scalars) and scalars[at].end <= start:
            at += 1
        if at < len(scalars) and scalars[at].start <= start:
            position = scalars[at].end
            continue
        position = match.end()
        found.append(Comment(start, start + len(match.group().rstrip()), match.group()[1:].strip()))
    return found


REASONS = (
    ("cannot start any token", "a character that YAML keeps for itself", "put the text in quotes"),
    ("mapping values are not allowed", "a `:` where no key can be", "put the text in quotes, or check the indentation"),
    (
        "could not find expected ':'",
        "a line that is neither `key: value` nor part of a text",
        "write `key: value`, or check the indentation",
    ),
    (
        "did not find expected key",
        "a line that does not fit the lines before it",
        "check the indentation; put a text with `: ` or quotes inside in quotes",
    ),
    (
        "expected <block end>",
        "a line that does not fit the lines before it",
        "check the indentation; put a text with `: ` or quotes inside in quotes",
    ),
    ("did not find expected '-'", "a line that does not fit the list before it", "begin it with `- `, or indent it"),
    (
        "did not find expected ',' or",
        "a `[` or `{` that is not closed, or a missing `,`",
        "close it, and put a text with `[`, `{` or `,` in quotes",
    ),
    (
        "expected ',' or",
        "a `[` or `{` that is not closed, or a missing `,`",
        "close it, and put a text with `[`, `{` or `,` in quotes",
    ),
    ("did not find expected node content", "a sign where a value is due", "put the text in quotes"),
    ("expected the node content", "a sign where a value is due", "put the text in quotes"),
    ("unexpected end of stream", "a text in quotes that is never closed", "close it with the same quote"),
    ("unknown escape", "an escape that YAML does not know", "write `\\\\` for a backslash, or use single quotes"),
    ("undefined alias", "an alias is not part of the language", "quote a text that starts with `*`"),
    ("undefined tag handle", "a tag is not part of the language", "quote a text that starts with `!`"),
    ("directive", "a YAML directive is not part of the language", "leave out lines that start with `%`"),
)


def unreadable(source: Source, error: yaml.YAMLError) -> Diagnostic:
    """What PyYAML found, in our words."""
    if isinstance(error, yaml.reader.ReaderError):
        at = min(error.position, len(source.text))
        found = source.text[at : at + 1]
        shown = f"U+{ord(found):04X}" if found else "one"
        return Diagnostic("E0112", f"the control character {shown} cannot be in a YAML file",
                          Label(Span(source, at, at + len(found)), "here"), helps=("delete it",))  # fmt: skip
    assert isinstance(error, yaml.MarkedYAMLError)
    problem = error.problem or ""
    title, helps = f"this is not YAML: {problem}", "check quotes and indentation"
    for part, ours, mend in REASONS:
        if part in problem:
            title, helps = ours, mend
            break
    size = len(source.text)
    if error.problem_mark and source.text[error.problem_mark.index : error.problem_mark.index + 1] == "\t":
        title, helps = "a tab where YAML wants blanks", "indent with spaces"
    places = []
    for mark in (error.problem_mark, error.context_mark):
        at = min(mark.index, size) if mark else size
        places.append(Span(source, at, min(at + 1, size)))
    others = (Label(places[1], "this begins here"),) if error.context_mark and places[1].start < places[0].start else ()
    return Diagnostic("E0121", title, Label(places[0], "here"), others, helps=(helps,))


ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
HEX = {"x": 2, "u": 4, "U": 8}


def fragment(node: Scalar) -> Fragment:
    """The text of a scalar with the place of each of its characters in the file."""
    source, span = node.span.source, node.span
    raw = span.text
    if not node.style and raw == node.value:
        return Fragment(source, node.value, span.start, scalar=True)
    places: list[int] | None = None
    if node.style == "'":
        places = single(raw, node.value)
    elif node.style == '"':
        places = double(raw, node.value)
    if places is None:  # folded over lines: point at all of it
        return Fragment(source, node.value, places=(*[span.start] * len(node.value), span.end), scalar=True)
    return Fragment(source, node.value, places=tuple(span.start + n for n in places), scalar=True)


def single(raw: str, value: str) -> list[int] | None:
    """Offsets in `'it''s'` of the characters of `it's` and of the closing quote."""
    places: list[int] = []
    n = 1
    while n < len(raw) - 1:
        if len(places) >= len(value) or raw[n] != value[len(places)]:
            return None
        places.append(n)
        n += 2 if raw[n] == "'" else 1
    return [*places, n] if len(places) == len(value) else None


def double(raw: str, value: str) -> list[int] | None:
    r"""Offsets in `"a\tb"` of the characters of its value and of the closing quote."""
    places: list[int] = []
    n = 1
    while n < len(raw) - 1:
        start = n
        character = raw[n]
        n += 1
        if character == "\\":
            letter = raw[n]
            n += 1 + HEX.get(letter, 0)
            character = chr(int(raw[start + 2 : n], 16)) if letter in HEX else ESCAPES.get(letter, "")
        if len(places) >= len(value) or character != value[len(places)]:
            return None
        places.append(start)
    return [*places, n] if len(places) == len(value) else None
