"""YAML text → nodes with spans, from PyYAML's parser events alone.

No resolver runs: a scalar is its text, whatever it looks like. What makes YAML a
language of its own is refused: anchors, aliases, merge keys, tags, several documents,
keys that are not plain text, keys twice.
"""

import re
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import yaml

from specc.lang import limits
from specc.lang.dsl.lexer import Comment
from specc.lang.dsl.parse import capped
from specc.lang.yaml.unreadable import unreadable
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
class OpenSequence:
    """A list that is being read."""

    start: int
    flow: bool
    items: list[Node] = field(default_factory=list)


@dataclass
class OpenMapping:
    """A map that is being read; `key` waits for its value."""

    start: int
    flow: bool
    entries: list[Entry] = field(default_factory=list)
    key: Scalar | None = None
    keys: dict[str, Scalar] = field(default_factory=dict)


@dataclass
class Document:
    """The root of a YAML text, or None if nothing is written, and its comments."""

    root: Node | None
    comments: list[Comment]


COMMENT = re.compile(r"(?:(?<=[ \t\n\r\x85\u2028\u2029])|\A)#[^\n]*")
"""A `#` begins a comment only behind a blank: `a#b` is a text."""
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def compose(source: Source) -> Document:
    """The nodes of a text. Fails with E0110, E0116, E0121 to E0124."""
    composer = Composer(source)
    try:
        for event in yaml.parse(source.text, Loader=LOADER):
            composer.take(event)
    except yaml.YAMLError as error:
        raise Failed(unreadable(source, error)) from None
    if composer.faults:
        raise Failed(*capped(composer.faults))
    return Document(composer.root, comments(source, composer.scalars))


class Composer:
    """Events → nodes, without recursion."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.stack: list[OpenSequence | OpenMapping] = []
        self.root: Node | None = None
        self.scalars: list[Span] = []
        self.faults: list[Diagnostic] = []
        self.documents = 0

    def take(self, event: yaml.Event) -> None:
        """Take the next event."""
        assert event.start_mark is not None
        assert event.end_mark is not None
        span = Span(self.source, event.start_mark.index, event.end_mark.index)
        match event:
            case yaml.DocumentStartEvent():
                self.begin_document(span)
            case yaml.AliasEvent():
                refuse(span, "an alias")
            case yaml.ScalarEvent():
                refuse_marks(event, span)
                node = Scalar(event.value, event.style or "", span)
                # an empty value has no place in the text, where a `#` could be
                if node.style or span.end > span.start:
                    self.scalars.append(span)
                self.put(node)
            case yaml.SequenceStartEvent():
                refuse_marks(event, span)
                self.open(OpenSequence(span.start, bool(event.flow_style)), span)
            case yaml.MappingStartEvent():
                refuse_marks(event, span)
                self.open(OpenMapping(span.start, bool(event.flow_style)), span)
            case yaml.CollectionEndEvent():
                self.close(span)
            case _:
                pass  # the ends of documents, and of the stream

    def begin_document(self, span: Span) -> None:
        """A file is one document."""
        self.documents += 1
        if self.documents > 1:
            fail(
                "E0123",
                "a second document in one file",
                span,
                "starts here",
                helps=["write one spec a file"],
            )

    def open(self, collection: OpenSequence | OpenMapping, span: Span) -> None:
        """The start of a collection."""
        self.stack.append(collection)
        if len(self.stack) > limits.NESTING:
            fail(
                "E0110",
                f"lists and maps inside each other more than {limits.NESTING} deep",
                span,
                f"number {len(self.stack)}",
                helps=["give the inner part a name of its own"],
            )

    def close(self, span: Span) -> None:
        """The end of a collection."""
        top = self.stack.pop()
        # PyYAML ends a block at the next line that is not part of it, comments and empty
        # lines included; here it ends where its last entry does
        end = span.end if top.flow else last_end(top)
        whole = Span(self.source, top.start, max(top.start, end))
        column = top.start - (self.source.text.rfind("\n", 0, top.start) + 1)
        match top:
            case OpenMapping():
                self.put(Mapping(top.entries, whole, column, top.flow))
            case OpenSequence():
                self.put(Sequence(top.items, whole, column, top.flow))

    def put(self, node: Node) -> None:
        """Add a node to the collection that is open."""
        if not self.stack:
            self.root = node if not empty(node) else None
            return
        match self.stack[-1]:
            case OpenSequence(items=items):
                items.append(node)
            case OpenMapping(key=None) as top:
                top.key = self.key(top, node)
            case OpenMapping(key=Scalar() as key) as top:
                top.entries.append(Entry(key, node))
                top.key = None

    def key(self, top: OpenMapping, node: Node) -> Scalar:
        """A key, which must be a text that the map does not have yet."""
        if not isinstance(node, Scalar):
            fail(
                "E0124",
                "a key that is a list or a map",
                node.span,
                "here",
                helps=["a key is one word; quote a text that starts with `[` or `{`"],
            )
        # PyYAML merges only in its constructor, which does not run here
        if node.value == "<<":
            refuse(node.span, "a merge key")
        if node.value in top.keys:
            self.faults.append(
                Diagnostic(
                    "E0116",
                    f"the key `{node.value}` is given twice",
                    Label(node.span, "again here"),
                    (Label(top.keys[node.value].span, "first here"),),
                    helps=(self._mend(top, node.value),),
                )
            )
            if len(self.faults) >= limits.COLLECTED:
                raise Failed(*capped(self.faults))
        top.keys.setdefault(node.value, node)
        return node

    def _mend(self, top: OpenMapping, key: str) -> str:
        """What to write instead of a key that the map has already."""
        first = next(e.value for e in top.entries if e.key.value == key)
        section = isinstance(first, Mapping) and len(self.stack) == 1
        if section or isinstance(first, Sequence):
            return f"put what both hold under one `{key}`, or leave one of the two out"
        # the last of the stack is the map itself
        if not top.flow and isinstance(self.stack[-2:][0], OpenSequence):
            return (
                f"write `- {key}: …` for a further entry, or leave one of the two out"
            )
        return "leave one of the two out"


def last_end(top: OpenSequence | OpenMapping) -> int:
    """Where the last entry of a collection ends."""
    match top:
        case OpenSequence(items=[*_, last]):
            return last.span.end
        case OpenMapping(entries=[*_, entry]):
            # an empty value has no place of its own
            return max(entry.value.span.end, entry.key.span.end)
        case _:
            return top.start


def refuse_marks(
    event: yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent,
    span: Span,
) -> None:
    """Refuse `&anchor` and `!tag`."""
    if event.anchor is not None:
        refuse(span, "an anchor")
    if event.tag is not None:
        refuse(span, "a tag")


def refuse(span: Span, what: str) -> NoReturn:
    """Fail because of something that YAML has and the language does not."""
    fail(
        "E0122",
        f"{what} is not part of the language",
        span,
        "here",
        notes=["specs know no anchors, aliases, merge keys or tags"],
        helps=[
            "for a part that is used twice write a `block`; quote a text that "
            "starts with `&`, `*` or `!`"
        ],
    )


def empty(node: Node) -> bool:
    """Whether nothing is written where a value could be."""
    return isinstance(node, Scalar) and not node.style and not node.value


def comments(source: Source, scalars: list[Span]) -> list[Comment]:
    """The comments of a text, which the events do not tell: every ` #` outside a scalar."""
    found: list[Comment] = []
    at = position = 0
    while match := COMMENT.search(source.text, position):
        start = match.start()
        # both run through the text once: scalars that end before the `#` are done with
        while at < len(scalars) and scalars[at].end <= start:
            at += 1
        if at < len(scalars) and scalars[at].start <= start:
            position = scalars[at].end
            continue
        position = match.end()
        text = match.group().rstrip()
        found.append(Comment(start, start + len(text), text[1:].strip()))
    return found
