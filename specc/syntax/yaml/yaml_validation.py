"""Check the types and keys of YAML nodes, compute spans, and convert scalars to DSL fragments."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Children
from typing import TypeVar

import yaml

from specc.diagnostics.diagnostic import Diagnostic, ErrorCollector, Label, Source, Span, SpeccError
from specc.diagnostics.suggest import find_similar_name, format_name_list, format_suggestion
from specc.syntax import ast
from specc.syntax.comments import CommentAttacher, CommentedBody, T
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.dsl_lexer import Comment, SourceFragment
from specc.syntax.dsl.dsl_parser import truncate_diagnostics
from specc.syntax.yaml.yaml_composer import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlScalar,
    YamlSequence,
    get_list_items,
    is_empty_yaml_node,
)

N = TypeVar("N")


ITEM_WORDS = ("block", "graph", *ast.DEFINITION_KINDS)
"""The keys of blocks, graphs and definitions, which YAML specs list under `items:`."""


KEY_SYNONYMS = {
    **dict.fromkeys(("input", "inputs", "args", "arguments"), "in"),
    **dict.fromkeys(("output", "outputs", "returns"), "out"),
    **dict.fromkeys(("body", "steps", "statements", "then", "forward"), "do"),
    **dict.fromkeys(("description", "docs", "summary"), "doc"),
    **dict.fromkeys(("expr", "expression", "value", "definition"), "is"),
    "otherwise": "else",
    "name": "model",
}
"""The YAML keys of specs that correspond to words of other formats, keyed by the word."""
FOREIGN_STATEMENT_HINTS = {
    "if": "write `- when: c`, with `do:` and `else:`",
    "for": "write `- repeat: i in 3`, with `do:`",
    "while": "write `- scan: step in 8`, with `carry:`, `until:` and `do:`",
}
"""The help messages for statements of other languages, keyed by the statement's first key."""


class YamlReader(ErrorCollector):
    """A reader that checks YAML nodes and reports errors. `subject` is the name of a node in
    messages.
    """

    def __init__(self, source: Source, comments: list[Comment]) -> None:
        super().__init__()
        self.source = source
        self.comments = comments
        self.attacher = CommentAttacher(source.text, comments)

    def add_errors(self, *errors: Diagnostic) -> None:
        """Report errors. Stop parsing at the limit MAX_COLLECTED_ERRORS."""
        super().add_errors(*errors)
        if len(self.errors) >= dsl_lexer.MAX_COLLECTED_ERRORS:
            raise SpeccError(*truncate_diagnostics(self.errors))

    def read_mapping(self, node: YamlNode, subject: str, example: str) -> list[YamlEntry]:
        """Return the entries of a map. An empty value is treated as an empty map."""
        if isinstance(node, YamlMapping):
            return node.entries
        if not is_empty_yaml_node(node):
            self.report_wrong_kind(node, subject, "a map", example)
        return []

    def read_sequence(self, node: YamlNode, subject: str, example: str) -> list[YamlNode]:
        """Return the entries of a list. An empty value is treated as an empty list."""
        if isinstance(node, YamlSequence):
            return node.items
        if not is_empty_yaml_node(node):
            self.report_wrong_kind(node, subject, "a list", example)
        return []

    def report_wrong_kind(self, node: YamlNode, subject: str, expected: str, example: str) -> None:
        """Report E0125 for a node of the wrong type, e.g. a list where a map is expected."""
        kind_name = NODE_KIND_NAMES[type(node)]
        self.report_error(
            "E0125",
            f"{subject} must be {expected}, not {kind_name}",
            get_first_line_span(node.span),
            f"this is {kind_name}",
            f"write {example}",
        )

    def read_scalar(self, node: YamlNode, subject: str) -> str:
        """Return the value of a scalar as a string. Report E0125 for a node that is not a
        scalar.
        """
        if not isinstance(node, YamlScalar):
            example = "it as a string, in quotes if it contains `: ` or brackets"
            self.report_wrong_kind(node, subject, "a string", example)
            return ""
        if is_empty_yaml_node(node):
            self.report_error(
                "E0101",
                f"{subject} is empty",
                node.span,
                "expected a string here",
                "write the string after the `:`",
            )
        return node.value

    def read_strings(self, node: YamlNode, subject: str) -> tuple[str, ...]:
        """Return the strings of a list. A single string is treated as a list with one string."""
        return tuple(self.read_scalar(item, subject) for item in get_list_items(node))

    def get_optional_text(self, entries: dict[str, YamlEntry], key: str) -> str:
        """Return the value of a key as a string, or "" if the key is absent."""
        return self.read_scalar(entries[key].value, f"`{key}`") if key in entries else ""

    def read_entries_by_key(
        self, node: YamlNode, names: Iterable[str], subject: str, required: Iterable[str] = ()
    ) -> dict[str, YamlEntry]:
        """Return entries, keyed by name. Report E0201 for unknown and E0126 for missing keys."""
        allowed_keys = tuple(names)
        entries = node.entries if isinstance(node, YamlMapping) else []
        entries_by_key = {e.key: e for e in entries}
        missing_keys = [n for n in required if n not in entries_by_key]
        for entry in entries:
            if entry.key not in allowed_keys:
                # a missing key is not reported if another key is likely to be its misspelling
                similar_name = self.report_unknown_key(entry, allowed_keys, subject)
                if similar_name in missing_keys:
                    missing_keys.remove(similar_name)
        for name in missing_keys:
            self._report_missing_key(node, name, subject)
        return entries_by_key

    def _report_missing_key(self, node: YamlNode, name: str, subject: str) -> None:
        """Report E0126 for a map without the required key `name`."""
        self.report_error(
            "E0126",
            f"{subject} has no `{name}`",
            get_first_line_span(node.span),
            f"`{name}` is missing here",
            f"add `{name}: {REQUIRED_VALUES.get(name, '…')}`",
        )

    def report_unknown_key(self, entry: YamlEntry, allowed: Iterable[str], subject: str) -> str:
        """Report E0201 for an unknown key. Return a similar key in `allowed`, or ""."""
        names = list(allowed)
        synonym = KEY_SYNONYMS.get(entry.key)
        similar_name = synonym if synonym in names else find_similar_name(entry.key, names)
        hint = (
            format_suggestion(similar_name)
            if similar_name
            else f"valid keys of {subject}: {format_name_list(names)}"
        )
        if "items" in names and (item := find_similar_name(entry.key, ITEM_WORDS)):
            hint = f"write it as an entry of `items:`: `- {item}: …`"
        elif "items" in names and synonym in ("in", "out"):
            entry_text = f"{{graph: main, {synonym}: {{…}}, …}}"
            hint = f"write it as the key `{synonym}:` of a graph: `items: [{entry_text}]`"
        self.report_error(
            "E0201",
            f"unknown key `{entry.key}` in {subject}",
            entry.key_node.span,
            "unknown key",
            hint,
        )
        return similar_name or ""

    def report_duplicate(self, subject: str, span: Span, first_span: Span | None = None) -> None:
        """Report E0116 for a duplicate `subject`, which already occurs at `first_span`."""
        related_labels = [Label(first_span, "first here")] if first_span is not None else []
        fix = "remove one of the two"
        self.report_error(
            "E0116",
            f"{subject} is duplicated",
            span,
            "again here",
            fix,
            related_labels=related_labels,
        )


REQUIRED_VALUES = {"specc": "1", "model": "my_model"}
"""The example values of required top-level keys, for messages."""

NODE_KIND_NAMES = {YamlScalar: "a string", YamlSequence: "a list", YamlMapping: "a map"}


def get_first_line_span(span: Span) -> Span:
    """Return the part of a span that is on the span's first line."""
    newline_offset = span.text.find("\n")
    return (
        Span(span.source, span.start, span.start + newline_offset) if newline_offset >= 0 else span
    )


def collect_yaml_body(
    reader: YamlReader, entry: YamlEntry, children: Children[T]
) -> CommentedBody[T]:
    """Return the body below a key, with comments attached to its children."""
    start = entry.key_node.span.end
    return reader.attacher.attach_comments(
        children, start, max(find_value_end(reader, entry), start)
    )


def build_section_node(
    reader: YamlReader,
    entry: YamlEntry,
    node_class: Callable[..., N],
    field: str,
    children: Children[T],
    **other_fields: object,
) -> N:
    """Build the node of a top-level key. Its field `field` contains `children` and comments."""
    body = collect_yaml_body(reader, entry, children)
    end = max(entry.span.end, find_value_end(reader, entry))
    return node_class(
        **{field: body.children},
        **other_fields,
        comments=ast.Comments(trailing=body.trailing),
        end_comments=body.end_comments,
        span=Span(reader.source, entry.span.start, end),
    )


def compute_node_span_with_comments(reader: YamlReader, node: YamlNode) -> Span:
    """Return the span of a node, including the comments at the end of the node."""
    end = max(node.span.end, find_node_end(reader, node))
    return Span(reader.source, node.span.start, end)


def find_value_end(reader: YamlReader, entry: YamlEntry) -> int:
    """Return the end offset of an entry's value, including comments."""
    if not is_empty_yaml_node(entry.value):
        return find_node_end(reader, entry.value)
    # the comments of an empty value are indented more than the key
    return find_comments_end(reader, entry.span.end, entry.key_node.span.column)


def find_node_end(reader: YamlReader, node: YamlNode) -> int:
    """Return the end offset of a node, including comments that are indented like its entries."""
    if isinstance(node, YamlScalar) or node.is_flow:
        return node.span.end
    end = node.span.end
    if isinstance(node, YamlSequence) and node.items:
        end = max(end, find_node_end(reader, node.items[-1]))
    elif isinstance(node, YamlMapping) and node.entries:
        end = max(end, find_value_end(reader, node.entries[-1]))
    return find_comments_end(reader, end, node.column)


def find_comments_end(reader: YamlReader, end: int, column: int) -> int:
    """Return the end offset of the comments after the offset `end`. The comments are a trailing
    comment, and comments on the following lines that start at or after the column `column`.
    """
    text = reader.source.text
    position = end
    for n in range(bisect_left(reader.attacher.starts, end), len(reader.comments)):
        comment = reader.comments[n]
        gap = text[position : comment.start]
        # text other than the end of a flow collection begins a new token
        if gap.strip(" \t\r\n,]}"):
            break
        if "\n" in gap and reader.source.get_line_and_column(comment.start)[1] - 1 < column:
            break
        end = position = comment.end
    return end


HEX_ESCAPE = r"\\(?:x(?P<x>..)|u(?P<u>.{4})|U(?P<U>.{8}))"
QUOTED_CHARACTERS = {
    "'": re.compile(r"''|.", re.DOTALL),
    '"': re.compile(rf"{HEX_ESCAPE}|\\(?P<letter>.)|.", re.DOTALL),
}
"""The pattern of a character in a quoted scalar, keyed by the quotation mark."""


def make_dsl_fragment(node: YamlScalar) -> SourceFragment:
    """Return the value of a scalar as a DSL fragment, with the file offset of each character."""
    source, span = node.span.source, node.span
    raw = span.text
    # most scalars have the same characters in the value as in the source
    if not node.style and raw == node.value:
        return SourceFragment(source, node.value, span.start, is_yaml_scalar=True)
    offsets = (
        map_quoted_scalar_offsets(raw, node.value) if node.style in QUOTED_CHARACTERS else None
    )
    # the characters of a folded scalar have no offsets, so use the span of the scalar
    if offsets is None:
        file_offsets = (*[span.start] * len(node.value), span.end)
    else:
        file_offsets = tuple(span.start + n for n in offsets)
    return SourceFragment(source, node.value, offsets=file_offsets, is_yaml_scalar=True)


def map_quoted_scalar_offsets(quoted_text: str, value: str) -> list[int] | None:
    r"""Return the source offset of each character in a quoted scalar such as `'it''s'` or `"a\tb"`,
    and of the closing quote. Return None if a character does not correspond to a single offset.
    """
    offsets: list[int] = []
    for match in QUOTED_CHARACTERS[quoted_text[0]].finditer(quoted_text, 1, len(quoted_text) - 1):
        if _unescape_quoted(match) != value[len(offsets) : len(offsets) + 1]:
            return None
        offsets.append(match.start())
    return [*offsets, len(quoted_text) - 1] if len(offsets) == len(value) else None


def _unescape_quoted(match: re.Match[str]) -> str:
    """Return the character that a match represents, or "" for an escaped line break."""
    groups = match.groupdict()
    if letter := groups.get("letter"):
        return str(yaml.scanner.Scanner.ESCAPE_REPLACEMENTS.get(letter, ""))
    code = groups.get("x") or groups.get("u") or groups.get("U")
    return chr(int(code, 16)) if code else match.group()[0]
