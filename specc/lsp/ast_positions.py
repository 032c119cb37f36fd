"""AST nodes and bindings at a position of a document."""

from collections.abc import Iterator
from dataclasses import dataclass

from specc.diagnostics.source import Span
from specc.syntax import ast
from specc.syntax.ast_walk import NODE_CLASSES, iterate_children, walk_tree

Spanned = ast.Node
NO_NODE = (ast.Comments,)


@dataclass(frozen=True)
class NameBinding:
    """A name that a text gives: to what, and where."""

    name: str
    kind: str
    span: Span
    node: ast.Node


def node_span(node: ast.Node) -> Span | None:
    """Where a node stands; None for one that a program made."""
    if isinstance(node, NO_NODE) or not isinstance(node, NODE_CLASSES):
        return None
    return node.span


def nodes_at(root: ast.Node, offset: int) -> list[ast.Node]:
    """The nodes that a character belongs to, the innermost last. A character right
    behind a word belongs to it.
    """
    found: list[ast.Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        span = node_span(node)
        if span is not None and not span.start <= offset <= span.end:
            continue
        if span is not None:
            found.append(node)
        stack.extend(iterate_children(node))
    # of two that begin and end alike the parent was met first, and stays first
    return sorted(found, key=_size, reverse=True)


def _size(node: ast.Node) -> int:
    span = node_span(node)
    assert span is not None  # others were left out
    return span.end - span.start


def bindings_at(item: ast.Node, before: int | None = None) -> Iterator[NameBinding]:
    """The names that are in sight in a block or a definition: of those that stand
    before a character, if one is given.
    """
    for node in walk_tree(item):
        for found in _bound_by(node):
            if before is None or found.span.start < before:
                yield found


def _bound_by(node: ast.Node) -> Iterator[NameBinding]:
    """The names that one node gives."""
    span = node_span(node)
    if span is None:
        return
    match node:
        case ast.BlockParameter(name=name) if name:
            yield NameBinding(name, "input", span, node)
        case ast.DefinitionParameter(name=name):
            yield NameBinding(name, "parameter", span, node)
        case ast.Target(name=name) if name != "_":
            yield NameBinding(name, "value", span, node)
        case ast.Repeat(variable=name):
            yield NameBinding(name, "number of the turn", span, node)
        case ast.ListComprehension(variable=name):
            yield NameBinding(name, "number of the turn", span, node)
        case ast.Scan(variables=names):
            for name in names:
                yield NameBinding(name, "row of the turn", span, node)
        case _:
            return


def config_fields(file: ast.File) -> Iterator[ast.Field]:
    """The config values that a file declares."""
    for item in file.items:
        if isinstance(item, ast.Config):
            yield from (e for e in item.entries if isinstance(e, ast.Field))


def enclosing_item(
    file: ast.File, offset: int, *, begun: bool = False
) -> ast.Block | ast.Definition | None:
    """The block or definition that a character stands in. In one that is `begun`, and
    longer by now than the tree has it, the last one before the character.
    """
    before = [
        (item, item.span)
        for item in file.items
        if isinstance(item, ast.Block | ast.Definition)
        and item.span is not None
        and item.span.start <= offset
    ]
    if not before:
        return None
    item, span = max(before, key=lambda pair: pair[1].start)
    return item if begun or offset <= span.end else None
