"""How far a YAML node reaches with the comments that belong to it.

PyYAML knows no comments, so their place follows from their column: what is indented like
the entries of a block is part of it.

    do:
      - h: f(x)
      # in the body, at its end
    # no longer
"""

from bisect import bisect_left
from collections.abc import Sequence as Children

from specc.lang.remarks import Body, T
from specc.lang.yaml.nodes import Entry, Mapping, Node, Scalar, Sequence, empty
from specc.lang.yaml.reader import Reader
from specc.text.source import Span


def body(reader: Reader, entry: Entry, children: Children[T]) -> Body[T]:
    """The statements below a key with their comments."""
    start = entry.key.span.end
    return reader.attacher.body(children, start, max(value_end(reader, entry), start))


def entry_extent(reader: Reader, entry: Entry) -> Span:
    """From a key to the end of its value and the comments that belong to it."""
    key, value = entry.key.span, entry.value.span
    end = max(key.end, value.end, value_end(reader, entry))
    return Span(reader.source, key.start, end)


def node_extent(reader: Reader, node: Node) -> Span:
    """A node with the comments at its end."""
    end = max(node.span.end, node_end(reader, node))
    return Span(reader.source, node.span.start, end)


def value_end(reader: Reader, entry: Entry) -> int:
    """The end of a value together with its comments."""
    if not empty(entry.value):
        return node_end(reader, entry.value)
    # comments in place of a value: they are indented deeper than its key
    end = max(entry.key.span.end, entry.value.span.end)
    return comments_end(reader, end, column(entry.key.span) + 1)


def node_end(reader: Reader, node: Node) -> int:
    """Where a node ends together with the comments after it that are indented like its
    entries.
    """
    if isinstance(node, Scalar) or node.flow:
        return node.span.end
    end = node.span.end
    if isinstance(node, Sequence) and node.items:
        end = max(end, node_end(reader, node.items[-1]))
    elif isinstance(node, Mapping) and node.entries:
        end = max(end, value_end(reader, node.entries[-1]))
    return comments_end(reader, end, node.column)


def comments_end(reader: Reader, end: int, least: int) -> int:
    """The end of the comments behind `end` on its line, and of those below from column
    `least` on.
    """
    text = reader.source.text
    position = end
    for n in range(bisect_left(reader.attacher.starts, end), len(reader.comments)):
        comment = reader.comments[n]
        gap = text[position : comment.start]
        # anything but what closes flow style begins something else
        if gap.strip(" \t\r\n,]}"):
            break
        start = comment.start - (text.rfind("\n", 0, comment.start) + 1)
        if "\n" in gap and start < least:
            break
        end = position = comment.end
    return end


def column(span: Span) -> int:
    """The column of a span, 0 for the first."""
    return span.start - (span.source.text.rfind("\n", 0, span.start) + 1)
