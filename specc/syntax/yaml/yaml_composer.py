"""Compose YAML nodes with source spans from PyYAML events, and translate PyYAML errors."""

import re
from dataclasses import dataclass, field
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
"""Phrases of PyYAML messages, each with the title and the fix of a diagnostic."""


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
    """Return the span of the character at a PyYAML mark, by default the end of the text."""
    size = len(source.text)
    offset = min(mark.index, size) if mark else size
    return Span(source, offset, min(offset + 1, size))


@dataclass(frozen=True, slots=True, eq=False)
class YamlScalar:
    """A YAML scalar. `style` is its quote or block indicator `'`, `"`, `|` or `>`, or ""."""

    value: str
    style: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class YamlSequence:
    """A YAML list. `column` is the 0-based column of its entries."""

    items: "list[YamlNode]"
    span: Span
    column: int
    is_flow: bool


@dataclass(frozen=True, slots=True, eq=False)
class YamlEntry:
    """A `key: value` entry of a YAML map."""

    key: YamlScalar
    value: "YamlNode"

    @property
    def name(self) -> str:
        """The key of the entry as a string."""
        return self.key.value


@dataclass(frozen=True, slots=True, eq=False)
class YamlMapping:
    """A YAML map with unique keys. `column` is the 0-based column of its keys."""

    entries: list[YamlEntry]
    span: Span
    column: int
    is_flow: bool


YamlNode: TypeAlias = YamlScalar | YamlSequence | YamlMapping


@dataclass
class OpenSequence:
    """A YAML list that is still being composed."""

    start: int
    is_flow: bool
    items: list[YamlNode] = field(default_factory=list)


@dataclass
class OpenMapping:
    """A YAML map that is still being composed. `key` is the key whose value comes next."""

    start: int
    is_flow: bool
    entries: list[YamlEntry] = field(default_factory=list)
    key: YamlScalar | None = None
    keys: dict[str, YamlScalar] = field(default_factory=dict)


COMMENT_PATTERN = re.compile(r"(?:(?<=[ \t\n\r\x85\u2028\u2029])|\A)#[^\n]*")
"""The pattern of a comment. `#` begins a comment only after whitespace, unlike in `a#b`."""
YAML_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def compose_yaml(source: Source) -> tuple[YamlNode | None, list[Comment]]:
    """Return the root node of a YAML text (None if the text is empty) and its comments. Raise
    E0110, E0116, or E0121 to E0124 for invalid or unsupported YAML.
    """
    composer = YamlComposer(source)
    try:
        for event in yaml.parse(source.text, Loader=YAML_LOADER):
            composer.process_event(event)
    except yaml.YAMLError as error:
        raise SpeccError(explain_yaml_error(source, error)) from None
    if composer.errors:
        raise SpeccError(*truncate_diagnostics(composer.errors))
    return composer.root, find_yaml_comments(source, composer.scalars)


class YamlComposer:
    """Composes YAML nodes from PyYAML events, without recursion."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.stack: list[OpenSequence | OpenMapping] = []
        self.root: YamlNode | None = None
        self.scalars: list[Span] = []
        self.errors: list[Diagnostic] = []
        self.documents = 0

    def process_event(self, event: yaml.Event) -> None:
        """Process the next PyYAML event. Raise E0110 or E0122 to E0124 for unsupported YAML."""
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
                self.add_scalar(YamlScalar(event.value, event.style or "", span))
            case yaml.SequenceStartEvent():
                reject_anchors_and_tags(event, span)
                self.open_collection(OpenSequence(span.start, bool(event.flow_style)), span)
            case yaml.MappingStartEvent():
                reject_anchors_and_tags(event, span)
                self.open_collection(OpenMapping(span.start, bool(event.flow_style)), span)
            case yaml.CollectionEndEvent():
                self.close_collection(span)
            case _:
                pass  # end of a document, or start or end of the stream

    def add_scalar(self, node: YamlScalar) -> None:
        """Add a scalar to the innermost open collection."""
        # an empty scalar cannot contain a `#`
        if node.style or node.span.end > node.span.start:
            self.scalars.append(node.span)
        self.add_node(node)

    def begin_document(self, span: Span) -> None:
        """Begin a YAML document. Raise E0123 for a second document."""
        self.documents += 1
        if self.documents > 1:
            raise_error(
                "E0123",
                "a second document in one file",
                span,
                "starts here",
                helps=["write one spec per file"],
            )

    def open_collection(self, collection: OpenSequence | OpenMapping, span: Span) -> None:
        """Begin a collection. Raise E0110 if the collection is nested too deeply."""
        self.stack.append(collection)
        if len(self.stack) > dsl_lexer.MAX_NESTING:
            raise_error(
                "E0110",
                f"lists and maps nested more than {dsl_lexer.MAX_NESTING} levels deep",
                span,
                f"number {len(self.stack)}",
                helps=["bind the inner part to a name"],
            )

    def close_collection(self, span: Span) -> None:
        """End the innermost open collection at the end of `span`, and add it as a node."""
        collection = self.stack.pop()
        # the PyYAML span of a block includes the comments and empty lines after its last entry
        end = span.end if collection.is_flow else find_last_entry_end(collection)
        extent = Span(self.source, collection.start, max(collection.start, end))
        column = extent.column - 1
        match collection:
            case OpenMapping():
                self.add_node(YamlMapping(collection.entries, extent, column, collection.is_flow))
            case OpenSequence():
                self.add_node(YamlSequence(collection.items, extent, column, collection.is_flow))

    def add_node(self, node: YamlNode) -> None:
        """Add a node to the innermost open collection."""
        if not self.stack:
            self.root = node if not is_empty_node(node) else None
            return
        match self.stack[-1]:
            case OpenSequence(items=items):
                items.append(node)
            case OpenMapping(key=None) as mapping:
                mapping.key = self.check_key(mapping, node)
            case OpenMapping(key=YamlScalar() as key) as mapping:
                mapping.entries.append(YamlEntry(key, node))
                mapping.key = None

    def check_key(self, mapping: OpenMapping, node: YamlNode) -> YamlScalar:
        """Return `node` as the next key of `mapping`. Raise E0124 or E0122 for a key that is not a
        string. Report E0116 for a duplicate key.
        """
        if not isinstance(node, YamlScalar):
            raise_error(
                "E0124",
                "a key that is a list or a map",
                node.span,
                "here",
                helps=["a key is one word; quote a string that starts with `[` or `{`"],
            )
        # only the PyYAML constructor, which is not used here, merges keys
        if node.value == "<<":
            reject_yaml_feature(node.span, "a merge key")
        if node.value in mapping.keys:
            self.errors.append(
                Diagnostic(
                    "E0116",
                    f"the key `{node.value}` is duplicated",
                    Label(node.span, "again here"),
                    (Label(mapping.keys[node.value].span, "first here"),),
                    helps=(self._suggest_fix(mapping, node.value),),
                )
            )
            if len(self.errors) >= dsl_lexer.MAX_COLLECTED_ERRORS:
                raise SpeccError(*truncate_diagnostics(self.errors))
        mapping.keys.setdefault(node.value, node)
        return node

    def _suggest_fix(self, mapping: OpenMapping, key: str) -> str:
        """Return the help for the duplicate key `key` of `mapping`."""
        first_value = next(e.value for e in mapping.entries if e.key.value == key)
        is_section = isinstance(first_value, YamlMapping) and len(self.stack) == 1
        if is_section or isinstance(first_value, YamlSequence):
            return f"merge both under one `{key}`, or remove one of the two"
        # the last entry of the stack is `mapping` itself
        if not mapping.is_flow and isinstance(self.stack[-2:][0], OpenSequence):
            return f"write `- {key}: …` for a further entry, or remove one of the two"
        return "remove one of the two"


def find_last_entry_end(collection: OpenSequence | OpenMapping) -> int:
    """Return the end offset of the last entry of a collection."""
    match collection:
        case OpenSequence(items=[*_, last]):
            return last.span.end
        case OpenMapping(entries=[*_, entry]):
            # an empty value has no location
            return max(entry.value.span.end, entry.key.span.end)
        case _:
            return collection.start


def reject_anchors_and_tags(
    event: yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent, span: Span
) -> None:
    """Raise E0122 for a YAML anchor such as `&a`, or a YAML tag such as `!t`."""
    if event.anchor is not None:
        reject_yaml_feature(span, "an anchor")
    if event.tag is not None:
        reject_yaml_feature(span, "a tag")


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


def is_empty_node(node: YamlNode) -> bool:
    """Return True if a node is an empty value."""
    return isinstance(node, YamlScalar) and not node.style and not node.value


def find_yaml_comments(source: Source, scalars: list[Span]) -> list[Comment]:
    """Find the comments of a YAML text outside the spans `scalars`. PyYAML omits comments."""
    comments: list[Comment] = []
    index = position = 0
    while match := COMMENT_PATTERN.search(source.text, position):
        start = match.start()
        # scalars and comments are in source order, so skip the scalars before this comment
        while index < len(scalars) and scalars[index].end <= start:
            index += 1
        if index < len(scalars) and scalars[index].start <= start:
            position = scalars[index].end
            continue
        position = match.end()
        text = match.group().rstrip()
        comments.append(Comment(start, start + len(text), text[1:].strip()))
    return comments
