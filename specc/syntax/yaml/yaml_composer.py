"""Compose YAML nodes with source spans from PyYAML events, and translate PyYAML errors."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import yaml

from specc.diagnostics.diagnostic import Diagnostic, Label, Source, Span, SpeccError, raise_error
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.dsl_lexer import Comment
from specc.syntax.dsl.dsl_parser import truncate_diagnostics

PYYAML_REASONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("cannot start any token",), "a character reserved by YAML", "put the string in quotes"),
    (
        ("mapping values are not allowed",),
        "a `:` where no key can be",
        "put the string in quotes, or check the indentation",
    ),
    (
        ("could not find expected ':'",),
        "a line that is neither `key: value` nor part of a string",
        "write `key: value`, or check the indentation",
    ),
    (
        ("did not find expected key", "expected <block end>"),
        "a line that does not fit the lines before it",
        "check the indentation; quote strings that contain `: ` or quotes",
    ),
    (
        ("did not find expected '-'",),
        "a line that does not fit the list before it",
        "start it with `- `, or indent it",
    ),
    (
        ("expected ',' or",),
        "a `[` or `{` that is not closed, or a missing `,`",
        "close it, and quote strings with `[`, `{` or `,`",
    ),
    (
        ("did not find expected node content", "expected the node content"),
        "an unexpected character, expected a value",
        "put the string in quotes",
    ),
    (("unexpected end of stream",), "unterminated quoted string", "close it with the same quote"),
    (
        ("unknown escape",),
        "an unknown YAML escape sequence",
        "write `\\\\` for a backslash, or use single quotes",
    ),
    (
        ("undefined alias",),
        "an alias is not part of the language",
        "quote a string that starts with `*`",
    ),
    (
        ("undefined tag handle",),
        "a tag is not part of the language",
        "quote a string that starts with `!`",
    ),
    (
        ("directive",),
        "a YAML directive is not part of the language",
        "remove lines that start with `%`",
    ),
)
"""Phrases in PyYAML messages, each with the title and the suggested fix of the diagnostic."""


def explain_yaml_error(source: Source, error: yaml.YAMLError) -> Diagnostic:
    """Return E0112 or E0121 for the PyYAML exception `error`."""
    if isinstance(error, yaml.reader.ReaderError):
        offset = min(error.position, len(source.text))
        span = Span(source, offset, min(offset + 1, len(source.text)))
        character = f"U+{ord(span.text):04X}" if span.text else "one"
        title = f"the control character {character} cannot be in a YAML file"
        return Diagnostic("E0112", title, Label(span, "here"), helps=("delete it",))
    assert isinstance(error, yaml.MarkedYAMLError)
    title, fix = _translate_yaml_error(source, error)
    primary_span = _get_mark_span(source, error.problem_mark)
    related_labels: list[Label] = []
    if error.context_mark:
        context = _get_mark_span(source, error.context_mark)
        # a second mark at the same location adds no information
        if context.start < primary_span.start:
            related_labels.append(Label(context, "starts here"))
    return Diagnostic(
        "E0121", title, Label(primary_span, "here"), tuple(related_labels), helps=(fix,)
    )


def _translate_yaml_error(source: Source, error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return the error title and the suggested fix for a PyYAML exception."""
    mark = error.problem_mark
    if mark and source.text[mark.index : mark.index + 1] == "\t":
        return "a tab in place of spaces", "indent with spaces"
    problem = error.problem or ""
    for phrases, title, fix in PYYAML_REASONS:
        if any(phrase in problem for phrase in phrases):
            return title, fix
    return f"this is not YAML: {problem}", "check quotes and indentation"


def _get_mark_span(source: Source, mark: yaml.Mark | None) -> Span:
    """Return the span of the character at a PyYAML mark, or of the end of the text if there is no
    mark.
    """
    size = len(source.text)
    offset = min(mark.index, size) if mark else size
    return Span(source, offset, min(offset + 1, size))


@dataclass(frozen=True, slots=True, eq=False)
class YamlScalar:
    """A YAML scalar. `style` is the scalar's quote or block indicator (`'`, `"`, `|` or `>`), or
    "".
    """

    value: str
    style: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class YamlSequence:
    """A YAML list. `column` is the 0-based column of the list's entries."""

    items: "list[YamlNode]"
    span: Span
    column: int
    is_flow: bool


@dataclass(frozen=True, slots=True, eq=False)
class YamlEntry:
    """A `key: value` entry of a YAML map."""

    key_node: YamlScalar
    value: "YamlNode"

    @property
    def key(self) -> str:
        """The key of the entry, as a string."""
        return self.key_node.value

    @property
    def span(self) -> Span:
        """The span from the key to the end of the value."""
        # the span of an empty value may start before the end of its key
        end = max(self.key_node.span.end, self.value.span.end)
        return Span(self.key_node.span.source, self.key_node.span.start, end)


@dataclass(frozen=True, slots=True, eq=False)
class YamlMapping:
    """A YAML map with unique keys. `column` is the 0-based column of the map's keys."""

    entries: list[YamlEntry]
    span: Span
    column: int
    is_flow: bool


YamlNode: TypeAlias = YamlScalar | YamlSequence | YamlMapping


COMMENT_PATTERN = re.compile(r"(?:(?<=[ \t\n\r\x85\u2028\u2029])|\A)#[^\n]*")
"""The pattern of a comment. `#` begins a comment only after whitespace, unlike in `a#b`."""
YAML_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def compose_yaml(source: Source) -> tuple[YamlNode | None, list[Comment]]:
    """Return the root node of a YAML text (None if the text is empty) and its comments. Raise
    E0110, E0116, or E0121 to E0124 for invalid or unsupported YAML.
    """
    composer = YamlComposer(source)
    try:
        root = composer.compose_document()
    except yaml.YAMLError as error:
        raise SpeccError(explain_yaml_error(source, error)) from None
    if composer.errors:
        raise SpeccError(*truncate_diagnostics(composer.errors))
    return root, find_yaml_comments(source, composer.scalars)


class YamlComposer:
    """A composer of YAML nodes from PyYAML events."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.events = iter(yaml.parse(source.text, Loader=YAML_LOADER))
        self.scalars: list[Span] = []
        self.errors: list[Diagnostic] = []
        self.collection_end = 0

    def compose_document(self) -> YamlNode | None:
        """Return the root node, or None if the text is empty. Raise E0123 for a second document."""
        root: YamlNode | None = None
        for event in self.events:
            if isinstance(event, yaml.NodeEvent):
                root = self.compose_node(event, 0)
            elif root and isinstance(event, yaml.DocumentStartEvent):
                title, span = "a second document in one file", self._get_event_span(event)
                raise_error("E0123", title, span, "starts here", helps=["write one spec per file"])
        return None if root is None or is_empty_yaml_node(root) else root

    def compose_node(
        self, event: yaml.NodeEvent, depth: int, *, is_list_item: bool = False
    ) -> YamlNode:
        """Return the node that starts with `event` and is nested in `depth` collections. Raise
        E0110 for a collection that is nested too deeply, and E0122 for an alias, an anchor or a
        tag.
        """
        span = self._get_event_span(event)
        if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            reject_yaml_feature(span, "an alias")
        if event.anchor is not None:
            reject_yaml_feature(span, "an anchor")
        if event.tag is not None:
            reject_yaml_feature(span, "a tag")
        if isinstance(event, yaml.ScalarEvent):
            # an empty scalar cannot contain a `#`
            if event.style or span.text:
                self.scalars.append(span)
            return YamlScalar(event.value, event.style or "", span)
        if depth == dsl_lexer.MAX_NESTING:
            raise_error(
                "E0110",
                f"lists and maps nested more than {dsl_lexer.MAX_NESTING} levels deep",
                span,
                f"number {depth + 1}",
                helps=["bind the inner part to a name"],
            )
        is_flow = bool(event.flow_style)
        if isinstance(event, yaml.SequenceStartEvent):
            items = [
                self.compose_node(e, depth + 1, is_list_item=True) for e in self._iterate_children()
            ]
            extent = self._make_extent(span.start, is_flow, items)
            return YamlSequence(items, extent, extent.column - 1, is_flow)
        entries = self._compose_entries(depth + 1, can_repeat=is_list_item and not is_flow)
        extent = self._make_extent(span.start, is_flow, entries)
        return YamlMapping(entries, extent, extent.column - 1, is_flow)

    def _get_event_span(self, event: yaml.Event) -> Span:
        """Return the span of a PyYAML event."""
        assert event.start_mark is not None
        assert event.end_mark is not None
        return Span(self.source, event.start_mark.index, event.end_mark.index)

    def _iterate_children(self) -> Iterator[yaml.NodeEvent]:
        """Yield the first event of each node in a collection, up to the end of the collection."""
        for event in self.events:
            if not isinstance(event, yaml.NodeEvent):
                self.collection_end = self._get_event_span(event).end
                return
            yield event

    def _make_extent(
        self, start: int, is_flow: bool, children: Sequence[YamlNode | YamlEntry]
    ) -> Span:
        """Return the span of the last collection that was read."""
        # the PyYAML span of a block includes the comments and empty lines after its last entry
        end = (
            self.collection_end if is_flow else max((c.span.end for c in children[-1:]), default=0)
        )
        return Span(self.source, start, max(start, end))

    def _compose_entries(self, depth: int, *, can_repeat: bool) -> list[YamlEntry]:
        """Return the entries of a map that is nested in `depth - 1` collections. Report E0116 for
        duplicate keys. `can_repeat` is True if the map is an entry of a list in block style.
        """
        entries: list[YamlEntry] = []
        first_entries: dict[str, YamlEntry] = {}
        for event in self._iterate_children():
            key = self._check_key(self.compose_node(event, depth))
            if key.value in first_entries:
                first_entry = first_entries[key.value]
                fix = _suggest_fix(first_entry, depth, can_repeat=can_repeat)
                self._report_duplicate_key(key, first_entry, fix)
            value_event = next(self.events)
            assert isinstance(value_event, yaml.NodeEvent), "each key has a value"
            entries.append(YamlEntry(key, self.compose_node(value_event, depth)))
            first_entries.setdefault(key.value, entries[-1])
        return entries

    def _check_key(self, node: YamlNode) -> YamlScalar:
        """Return `node` as a key. Raise E0124 or E0122 for a key that is not a string."""
        if not isinstance(node, YamlScalar):
            raise_error(
                "E0124",
                "a key that is a list or a map",
                node.span,
                "here",
                helps=["a key is one word; quote a string that starts with `[` or `{`"],
            )
        # PyYAML merges keys only in its constructor, which is not used here
        if node.value == "<<":
            reject_yaml_feature(node.span, "a merge key")
        return node

    def _report_duplicate_key(self, key: YamlScalar, first_entry: YamlEntry, fix: str) -> None:
        """Report E0116 for a key that a map already contains. Stop after MAX_COLLECTED_ERRORS."""
        related_labels = (Label(first_entry.key_node.span, "first here"),)
        title = f"the key `{key.value}` is duplicated"
        self.errors.append(
            Diagnostic("E0116", title, Label(key.span, "again here"), related_labels, helps=(fix,))
        )
        if len(self.errors) >= dsl_lexer.MAX_COLLECTED_ERRORS:
            raise SpeccError(*truncate_diagnostics(self.errors))


def _suggest_fix(first_entry: YamlEntry, depth: int, *, can_repeat: bool) -> str:
    """Return the help message for a second entry with the key of `first_entry`."""
    key, first_value = first_entry.key, first_entry.value
    is_section = isinstance(first_value, YamlMapping) and depth == 1
    if is_section or isinstance(first_value, YamlSequence):
        return f"merge both under one `{key}`, or remove one of the two"
    if can_repeat:
        return f"write `- {key}: …` for a further entry, or remove one of the two"
    return "remove one of the two"


def reject_yaml_feature(span: Span, feature: str) -> NoReturn:
    """Raise E0122 for a YAML feature that specs do not support."""
    raise_error(
        "E0122",
        f"{feature} is not part of the language",
        span,
        "here",
        notes=["specs support no anchors, aliases, merge keys or tags"],
        helps=[
            "for a part that is used twice write a `block`; quote a text that "
            "starts with `&`, `*` or `!`"
        ],
    )


def get_list_items(node: YamlNode) -> list[YamlNode]:
    """Return the entries of a list. Any other node is treated as a list with one entry."""
    return node.items if isinstance(node, YamlSequence) else [node]


def is_empty_yaml_node(node: YamlNode) -> bool:
    """Return True if a node is an empty value."""
    return isinstance(node, YamlScalar) and not node.style and not node.value


def find_yaml_comments(source: Source, scalars: list[Span]) -> list[Comment]:
    """Find the comments of a YAML text outside the spans `scalars`. PyYAML omits comments."""
    comments: list[Comment] = []
    index = position = 0
    while match := COMMENT_PATTERN.search(source.text, position):
        start = match.start()
        # scalars and comments are in source order, so skip the scalars before the comment
        while index < len(scalars) and scalars[index].end <= start:
            index += 1
        if index < len(scalars) and scalars[index].start <= start:
            position = scalars[index].end
            continue
        position = match.end()
        text = match.group().rstrip()
        comments.append(Comment(start, start + len(text), text[1:].strip()))
    return comments
