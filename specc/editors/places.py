"""What the tree has at a character of a text, and where it says what a name is."""

from collections.abc import Iterator
from dataclasses import dataclass

from specc.lang import tree
from specc.lang.walk import NODES, children, walk
from specc.text.source import Span

Spanned = tree.Node
NO_NODE = (tree.Remarks,)


@dataclass(frozen=True)
class Binding:
    """A name that a text gives: to what, and where."""

    name: str
    kind: str
    span: Span
    node: tree.Node


def span_of(node: tree.Node) -> Span | None:
    """Where a node stands; None for one that a program made."""
    if isinstance(node, NO_NODE) or not isinstance(node, NODES):
        return None
    return node.span


def around(root: tree.Node, offset: int) -> list[tree.Node]:
    """The nodes that a character belongs to, the innermost last. A character right
    behind a word belongs to it.
    """
    found: list[tree.Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        span = span_of(node)
        if span is not None and not span.start <= offset <= span.end:
            continue
        if span is not None:
            found.append(node)
        stack.extend(children(node))
    # of two that begin and end alike the parent was met first, and stays first
    return sorted(found, key=_size, reverse=True)


def _size(node: tree.Node) -> int:
    span = span_of(node)
    assert span is not None  # others were left out
    return span.end - span.start


def bindings(item: tree.Node, before: int | None = None) -> Iterator[Binding]:
    """The names that are in sight in a block or a definition: of those that stand
    before a character, if one is given.
    """
    for node in walk(item):
        for found in _bound_by(node):
            if before is None or found.span.start < before:
                yield found


def _bound_by(node: tree.Node) -> Iterator[Binding]:
    """The names that one node gives."""
    span = span_of(node)
    if span is None:
        return
    match node:
        case tree.Param(name=name) if name:
            yield Binding(name, "input", span, node)
        case tree.Parameter(name=name):
            yield Binding(name, "parameter", span, node)
        case tree.Target(name=name) if name != "_":
            yield Binding(name, "value", span, node)
        case tree.Repeat(variable=name):
            yield Binding(name, "number of the turn", span, node)
        case tree.ListFor(variable=name):
            yield Binding(name, "number of the turn", span, node)
        case tree.Scan(variables=names):
            for name in names:
                yield Binding(name, "row of the turn", span, node)
        case _:
            return


def fields_of(file: tree.File) -> Iterator[tree.Field]:
    """The config values that a file declares."""
    for item in file.items:
        if isinstance(item, tree.Config):
            yield from (e for e in item.entries if isinstance(e, tree.Field))


def item_around(
    file: tree.File, offset: int, *, begun: bool = False
) -> tree.Block | tree.Definition | None:
    """The block or definition that a character stands in. In one that is `begun`, and
    longer by now than the tree has it, the last one before the character.
    """
    before = [
        (item, item.span)
        for item in file.items
        if isinstance(item, tree.Block | tree.Definition)
        and item.span is not None
        and item.span.start <= offset
    ]
    if not before:
        return None
    item, span = max(before, key=lambda pair: pair[1].start)
    return item if begun or offset <= span.end else None
