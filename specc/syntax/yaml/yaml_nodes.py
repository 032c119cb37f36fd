"""Compose YAML nodes with source spans from PyYAML events, and map scalars to source offsets."""

import re
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import yaml

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Source, Span
from specc.syntax.dsl import lexer
from specc.syntax.dsl.dsl_parser import cap_diagnostics
from specc.syntax.dsl.lexer import Comment, Fragment
from specc.syntax.yaml.yaml_errors import explain_yaml_error


@dataclass(frozen=True, slots=True, eq=False)
class YamlScalar:
    """A text; `style` is `'`, `"`, `|`, `>` or empty."""

    value: str
    style: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class YamlSequence:
    """A list; `column` is where its entries start, 0 for the first."""

    items: "list[YamlNode]"
    span: Span
    column: int
    flow: bool


@dataclass(frozen=True, slots=True, eq=False)
class YamlEntry:
    """`key: value`."""

    key: YamlScalar
    value: "YamlNode"

    @property
    def name(self) -> str:
        """The text of the key."""
        return self.key.value


@dataclass(frozen=True, slots=True, eq=False)
class YamlMapping:
    """A map; its keys differ."""

    entries: list[YamlEntry]
    span: Span
    column: int
    flow: bool


YamlNode: TypeAlias = YamlScalar | YamlSequence | YamlMapping


@dataclass
class OpenSequence:
    """A list that is being read."""

    start: int
    flow: bool
    items: list[YamlNode] = field(default_factory=list)


@dataclass
class OpenMapping:
    """A map that is being read; `key` waits for its value."""

    start: int
    flow: bool
    entries: list[YamlEntry] = field(default_factory=list)
    key: YamlScalar | None = None
    keys: dict[str, YamlScalar] = field(default_factory=dict)


@dataclass
class YamlDocument:
    """The root of a YAML text, or None if it is empty, and its comments."""

    root: YamlNode | None
    comments: list[Comment]


COMMENT_PATTERN = re.compile(r"(?:(?<=[ \t\n\r\x85\u2028\u2029])|\A)#[^\n]*")
"""A `#` begins a comment only after whitespace: `a#b` is text."""
YAML_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def compose_yaml(source: Source) -> YamlDocument:
    """Compose the nodes of a text. Fails with E0110, E0116, E0121 to E0124."""
    composer = YamlComposer(source)
    try:
        for event in yaml.parse(source.text, Loader=YAML_LOADER):
            composer.process_event(event)
    except yaml.YAMLError as error:
        raise Failed(explain_yaml_error(source, error)) from None
    if composer.faults:
        raise Failed(*cap_diagnostics(composer.faults))
    return YamlDocument(composer.root, find_yaml_comments(source, composer.scalars))


class YamlComposer:
    """Events → nodes, without recursion."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.stack: list[OpenSequence | OpenMapping] = []
        self.root: YamlNode | None = None
        self.scalars: list[Span] = []
        self.faults: list[Diagnostic] = []
        self.documents = 0

    def process_event(self, event: yaml.Event) -> None:
        """Process the next event."""
        assert event.start_mark is not None
        assert event.end_mark is not None
        span = Span(self.source, event.start_mark.index, event.end_mark.index)
        match event:
            case yaml.DocumentStartEvent():
                self.begin_document(span)
            case yaml.AliasEvent():
                reject_yaml_feature(span, "an alias")
            case yaml.ScalarEvent():
                reject_anchors_and_tags(event, span)
                node = YamlScalar(event.value, event.style or "", span)
                # an empty value has no location in the text, where a `#` could be
                if node.style or span.end > span.start:
                    self.scalars.append(span)
                self.add_node(node)
            case yaml.SequenceStartEvent():
                reject_anchors_and_tags(event, span)
                self.open(OpenSequence(span.start, bool(event.flow_style)), span)
            case yaml.MappingStartEvent():
                reject_anchors_and_tags(event, span)
                self.open(OpenMapping(span.start, bool(event.flow_style)), span)
            case yaml.CollectionEndEvent():
                self.close(span)
            case _:
                pass  # the ends of documents, and of the stream

    def begin_document(self, span: Span) -> None:
        """Begin a document. E0123 for a second one."""
        self.documents += 1
        if self.documents > 1:
            raise_error(
                "E0123",
                "a second document in one file",
                span,
                "starts here",
                helps=["write one spec per file"],
            )

    def open(self, collection: OpenSequence | OpenMapping, span: Span) -> None:
        """Begin a collection. E0110 if nested too deeply."""
        self.stack.append(collection)
        if len(self.stack) > lexer.MAX_NESTING:
            raise_error(
                "E0110",
                f"lists and maps nested more than {lexer.MAX_NESTING} deep",
                span,
                f"number {len(self.stack)}",
                helps=["bind the inner part to a name"],
            )

    def close(self, span: Span) -> None:
        """End a collection."""
        top = self.stack.pop()
        # PyYAML ends a block at the next line that is not part of it, comments and empty lines
        # included; here it ends after its last entry
        end = span.end if top.flow else find_last_entry_end(top)
        whole = Span(self.source, top.start, max(top.start, end))
        column = top.start - (self.source.text.rfind("\n", 0, top.start) + 1)
        match top:
            case OpenMapping():
                self.add_node(YamlMapping(top.entries, whole, column, top.flow))
            case OpenSequence():
                self.add_node(YamlSequence(top.items, whole, column, top.flow))

    def add_node(self, node: YamlNode) -> None:
        """Add a node to the collection that is open."""
        if not self.stack:
            self.root = node if not is_empty_node(node) else None
            return
        match self.stack[-1]:
            case OpenSequence(items=items):
                items.append(node)
            case OpenMapping(key=None) as top:
                top.key = self.key(top, node)
            case OpenMapping(key=YamlScalar() as key) as top:
                top.entries.append(YamlEntry(key, node))
                top.key = None

    def key(self, top: OpenMapping, node: YamlNode) -> YamlScalar:
        """Check a key: a text that the map does not have yet."""
        if not isinstance(node, YamlScalar):
            raise_error(
                "E0124",
                "a key that is a list or a map",
                node.span,
                "here",
                helps=["a key is one word; quote a string that starts with `[` or `{`"],
            )
        # PyYAML merges only in its constructor, which is not used here
        if node.value == "<<":
            reject_yaml_feature(node.span, "a merge key")
        if node.value in top.keys:
            self.faults.append(
                Diagnostic(
                    "E0116",
                    f"the key `{node.value}` is duplicated",
                    Label(node.span, "again here"),
                    (Label(top.keys[node.value].span, "first here"),),
                    helps=(self._suggest_fix(top, node.value),),
                )
            )
            if len(self.faults) >= lexer.MAX_COLLECTED_ERRORS:
                raise Failed(*cap_diagnostics(self.faults))
        top.keys.setdefault(node.value, node)
        return node

    def _suggest_fix(self, top: OpenMapping, key: str) -> str:
        """Suggest a fix for a duplicate key."""
        first = next(e.value for e in top.entries if e.key.value == key)
        section = isinstance(first, YamlMapping) and len(self.stack) == 1
        if section or isinstance(first, YamlSequence):
            return f"merge both under one `{key}`, or leave one of the two out"
        # the last of the stack is the map itself
        if not top.flow and isinstance(self.stack[-2:][0], OpenSequence):
            return f"write `- {key}: …` for a further entry, or leave one of the two out"
        return "leave one of the two out"


def find_last_entry_end(top: OpenSequence | OpenMapping) -> int:
    """Return the offset where the last entry of a collection ends."""
    match top:
        case OpenSequence(items=[*_, last]):
            return last.span.end
        case OpenMapping(entries=[*_, entry]):
            # an empty value has no location
            return max(entry.value.span.end, entry.key.span.end)
        case _:
            return top.start


def reject_anchors_and_tags(
    event: yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent, span: Span
) -> None:
    """Refuse `&anchor` and `!tag`."""
    if event.anchor is not None:
        reject_yaml_feature(span, "an anchor")
    if event.tag is not None:
        reject_yaml_feature(span, "a tag")


def reject_yaml_feature(span: Span, what: str) -> NoReturn:
    """Raise E0122 for a YAML feature that specs do not support."""
    raise_error(
        "E0122",
        f"{what} is not part of the language",
        span,
        "here",
        notes=["specs support no anchors, aliases, merge keys or tags"],
        helps=[
            "for a part that is used twice write a `block`; quote a text that "
            "starts with `&`, `*` or `!`"
        ],
    )


def is_empty_node(node: YamlNode) -> bool:
    """Return whether a value is missing."""
    return isinstance(node, YamlScalar) and not node.style and not node.value


def find_yaml_comments(source: Source, scalars: list[Span]) -> list[Comment]:
    """Find the comments of a text, which YAML events omit: every ` #` outside a scalar."""
    found: list[Comment] = []
    at = position = 0
    while match := COMMENT_PATTERN.search(source.text, position):
        start = match.start()
        # both are in text order: scalars that end before the `#` are finished
        while at < len(scalars) and scalars[at].end <= start:
            at += 1
        if at < len(scalars) and scalars[at].start <= start:
            position = scalars[at].end
            continue
        position = match.end()
        text = match.group().rstrip()
        found.append(Comment(start, start + len(text), text[1:].strip()))
    return found


YAML_ESCAPE_VALUES = {
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
HEX_ESCAPE_LENGTHS = {"x": 2, "u": 4, "U": 8}
"""Number of hexadecimal digits after each escape."""


def scalar_to_fragment(node: YamlScalar) -> Fragment:
    """Return the text of a scalar with the file offset of each character."""
    source, span = node.span.source, node.span
    raw = span.text
    # most scalars: characters and offsets correspond
    if not node.style and raw == node.value:
        return Fragment(source, node.value, span.start, scalar=True)
    offsets: list[int] | None = None
    if node.style == "'":
        offsets = map_single_quoted_offsets(raw, node.value)
    elif node.style == '"':
        offsets = map_double_quoted_offsets(raw, node.value)
    if offsets is None:  # folded over lines: point to all of it
        places = (*[span.start] * len(node.value), span.end)
    else:
        places = tuple(span.start + n for n in offsets)
    return Fragment(source, node.value, places=places, scalar=True)


def map_single_quoted_offsets(raw: str, value: str) -> list[int] | None:
    """Return the offsets in `'it''s'` of the characters of `it's` and of the closing quote."""
    places: list[int] = []
    n = 1
    while n < len(raw) - 1:
        if len(places) >= len(value) or raw[n] != value[len(places)]:
            return None
        places.append(n)
        n += 2 if raw[n] == "'" else 1  # a quote is doubled
    return [*places, n] if len(places) == len(value) else None


def map_double_quoted_offsets(raw: str, value: str) -> list[int] | None:
    r"""Return the offsets in `"a\tb"` of the characters of its value and of the closing quote."""
    places: list[int] = []
    n = 1
    while n < len(raw) - 1:
        start = n
        character = raw[n]
        n += 1
        if character == "\\":
            letter = raw[n]
            n += 1 + HEX_ESCAPE_LENGTHS.get(letter, 0)
            if letter in HEX_ESCAPE_LENGTHS:
                character = chr(int(raw[start + 2 : n], 16))
            else:
                # an escaped line break stands for nothing, so nothing is located here
                character = YAML_ESCAPE_VALUES.get(letter, "")
        if len(places) >= len(value) or character != value[len(places)]:
            return None
        places.append(start)
    return [*places, n] if len(places) == len(value) else None
