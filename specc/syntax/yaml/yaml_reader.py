"""`YamlReader`: checks of node kinds and keys for all YAML parsers, error reporting, and node
extents including comments.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Children
from typing import TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label
from specc.diagnostics.source import Source, Span
from specc.diagnostics.suggest import did_you_mean, format_name_list, format_suggestion
from specc.syntax import ast
from specc.syntax.comments import CommentAttacher, CommentedBody, T
from specc.syntax.dsl import lexer
from specc.syntax.dsl.dsl_parser import cap_diagnostics
from specc.syntax.dsl.lexer import Comment
from specc.syntax.yaml.yaml_nodes import (
    YamlEntry,
    YamlMapping,
    YamlNode,
    YamlScalar,
    YamlSequence,
    is_empty_node,
)

N = TypeVar("N")


ITEM_WORDS = ("block", "graph", *ast.DEFINITION_KINDS)
"""Definitions, which YAML specs have in the list `items:`."""


class YamlReader:
    """The reading of one YAML file."""

    def __init__(self, source: Source, comments: list[Comment]) -> None:
        self.source = source
        self.comments = comments
        self.attacher = CommentAttacher(source.text, comments)
        self.faults: list[Diagnostic] = []

    def report_error(
        self,
        code: str,
        title: str,
        span: Span,
        label: str,
        *helps: str,
        others: Iterable[Label] = (),
    ) -> None:
        """Report an error and continue."""
        self.add(Diagnostic(code, title, Label(span, label), tuple(others), helps=helps))

    def add(self, *faults: Diagnostic) -> None:
        """Report errors; stop at the limit."""
        self.faults.extend(faults)
        if len(self.faults) >= lexer.MAX_COLLECTED_ERRORS:
            raise Failed(*cap_diagnostics(self.faults))

    def read_mapping(self, node: YamlNode, what: str, example: str) -> list[YamlEntry]:
        """Return the entries of a map; an empty value is an empty map."""
        if isinstance(node, YamlMapping):
            return node.entries
        if not is_empty_node(node):
            self.report_wrong_kind(node, what, "a map", example)
        return []

    def items(self, node: YamlNode, what: str, example: str) -> list[YamlNode]:
        """Return the entries of a list; an empty value is an empty list."""
        if isinstance(node, YamlSequence):
            return node.items
        if not is_empty_node(node):
            self.report_wrong_kind(node, what, "a list", example)
        return []

    def report_wrong_kind(self, node: YamlNode, what: str, due: str, example: str) -> None:
        """Report a list in place of a map, or the like."""
        found = NODE_KIND_NAMES[type(node)]
        self.report_error(
            "E0125",
            f"{what} is {due}, not {found}",
            get_first_line_span(node.span),
            f"this is {found}",
            f"write {example}",
        )

    def raw(self, node: YamlNode, what: str) -> str:
        """Return the text of a scalar."""
        if not isinstance(node, YamlScalar):
            example = "it as a string, in quotes if it contains `: ` or brackets"
            self.report_wrong_kind(node, what, "a string", example)
            return ""
        if is_empty_node(node):
            self.report_error(
                "E0101",
                f"{what} is empty",
                node.span,
                "expected a string here",
                "write the string after the `:`",
            )
        return node.value

    def texts(self, node: YamlNode, what: str) -> tuple[str, ...]:
        """Return the texts of a list, or a single text as one."""
        nodes = node.items if isinstance(node, YamlSequence) else [node]
        return tuple(self.raw(each, what) for each in nodes)

    def get_optional_text(self, entries: dict[str, YamlEntry], key: str) -> str:
        """Return the text of a key that may be absent."""
        return self.raw(entries[key].value, f"`{key}`") if key in entries else ""

    def known(
        self, node: YamlNode, names: Iterable[str], what: str, required: Iterable[str] = ()
    ) -> dict[str, YamlEntry]:
        """Return the entries by key. Reports E0201 for a key not in `names`, E0126 for a missing
        one.
        """
        allowed = tuple(names)
        entries = node.entries if isinstance(node, YamlMapping) else []
        found = {e.name: e for e in entries}
        missing = [n for n in required if n not in found]
        for entry in entries:
            if entry.name not in allowed:
                # a misspelled key is one error, not two
                meant = self.unknown(entry, allowed, what)
                if meant in missing:
                    missing.remove(meant)
        for name in missing:
            self.report_error(
                "E0126",
                f"{what} has no `{name}`",
                get_first_line_span(node.span),
                f"`{name}` is missing here",
                f"add `{name}: {REQUIRED_VALUES.get(name, '…')}`",
            )
        return found

    def unknown(self, entry: YamlEntry, allowed: Iterable[str], what: str) -> str:
        """Report an unknown key; return the key probably meant, or ""."""
        names = list(allowed)
        meant = did_you_mean(entry.name, names)
        hint = format_suggestion(meant) if meant else f"{what} takes: {format_name_list(names)}"
        if "items" in names and (item := did_you_mean(entry.name, ITEM_WORDS)):
            hint = f"write it as an entry of `items:`: `- {item}: …`"
        self.report_error(
            "E0201", f"{what} has no key `{entry.name}`", entry.key.span, "unknown key", hint
        )
        return meant or ""

    def report_duplicate(self, what: str, span: Span, first: Span | None = None) -> None:
        """Report a duplicate."""
        others = [Label(first, "first here")] if first is not None else []
        self.report_error(
            "E0116",
            f"{what} is duplicated",
            span,
            "again here",
            "leave one of the two out",
            others=others,
        )


REQUIRED_VALUES = {"specc": "1", "model": "my_model"}
"""Values of required keys that a message shows."""

NODE_KIND_NAMES = {YamlScalar: "a string", YamlSequence: "a list", YamlMapping: "a map"}


def get_entry_span(entry: YamlEntry) -> Span:
    """Return the span from a key to the end of its value; an empty value may start before its key
    ends.
    """
    end = max(entry.key.span.end, entry.value.span.end)
    return Span(entry.key.span.source, entry.key.span.start, end)


def get_first_line_span(span: Span) -> Span:
    """Return the part of a span on its first line."""
    line = span.text.find("\n")
    return Span(span.source, span.start, span.start + line) if line >= 0 else span


def collect_yaml_body(
    reader: YamlReader, entry: YamlEntry, children: Children[T]
) -> CommentedBody[T]:
    """Return the statements below a key with their comments."""
    start = entry.key.span.end
    return reader.attacher.body(children, start, max(find_value_end(reader, entry), start))


def make_section(
    reader: YamlReader,
    entry: YamlEntry,
    node: Callable[..., N],
    field: str,
    children: Children[T],
    **others: object,
) -> N:
    """Make the node of a key with entries below it, which go into `field`."""
    body = collect_yaml_body(reader, entry, children)
    return node(
        **{field: body.children},
        **others,
        comments=ast.Comments(trailing=body.trailing),
        end=body.end,
        span=compute_entry_extent(reader, entry),
    )


def compute_entry_extent(reader: YamlReader, entry: YamlEntry) -> Span:
    """Return the span from a key to the end of its value and comments."""
    key, value = entry.key.span, entry.value.span
    end = max(key.end, value.end, find_value_end(reader, entry))
    return Span(reader.source, key.start, end)


def compute_node_extent(reader: YamlReader, node: YamlNode) -> Span:
    """Return the span of a node with the comments at its end."""
    end = max(node.span.end, find_node_end(reader, node))
    return Span(reader.source, node.span.start, end)


def find_value_end(reader: YamlReader, entry: YamlEntry) -> int:
    """Return the end of a value with its comments."""
    if not is_empty_node(entry.value):
        return find_node_end(reader, entry.value)
    # comments instead of a value: they are indented deeper than its key
    end = max(entry.key.span.end, entry.value.span.end)
    return find_comments_end(reader, end, get_span_column(entry.key.span) + 1)


def find_node_end(reader: YamlReader, node: YamlNode) -> int:
    """Return the end of a node with the comments after it that are indented like its entries."""
    if isinstance(node, YamlScalar) or node.flow:
        return node.span.end
    end = node.span.end
    if isinstance(node, YamlSequence) and node.items:
        end = max(end, find_node_end(reader, node.items[-1]))
    elif isinstance(node, YamlMapping) and node.entries:
        end = max(end, find_value_end(reader, node.entries[-1]))
    return find_comments_end(reader, end, node.column)


def find_comments_end(reader: YamlReader, end: int, least: int) -> int:
    """Return the end of the trailing comment after `end`, and of those below from column
    `least`.
    """
    text = reader.source.text
    position = end
    for n in range(bisect_left(reader.attacher.starts, end), len(reader.comments)):
        comment = reader.comments[n]
        gap = text[position : comment.start]
        # anything but the end of flow style begins another token
        if gap.strip(" \t\r\n,]}"):
            break
        start = comment.start - (text.rfind("\n", 0, comment.start) + 1)
        if "\n" in gap and start < least:
            break
        end = position = comment.end
    return end


def get_span_column(span: Span) -> int:
    """Return the column of a span, from 0."""
    return span.start - (span.source.text.rfind("\n", 0, span.start) + 1)
