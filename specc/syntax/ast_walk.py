"""Traverse a syntax tree generically and without recursion."""

from collections.abc import Iterator
from dataclasses import fields

from specc.syntax import ast

NODE_CLASSES: tuple[type[ast.Node], ...] = tuple(
    c for c in vars(ast).values() if isinstance(c, type) and c.__module__ == ast.__name__
)
FIELD_NAMES = {c: tuple(f.name for f in fields(c)) for c in NODE_CLASSES}
"""All fields of each tree class, in order."""
SPAN_FIELDS = ("span", "name_span", "op_span", "extends_span")
CONTENT_FIELDS = {
    c: tuple(n for n in names if n not in SPAN_FIELDS) for c, names in FIELD_NAMES.items()
}
"""The fields of each AST class without comments and spans."""


def iterate_children(node: ast.Node) -> Iterator[ast.Node]:
    """Yield the tree nodes directly inside a node, in source order."""
    for name in CONTENT_FIELDS[type(node)]:
        value = getattr(node, name)
        if isinstance(value, NODE_CLASSES):
            yield value
        elif isinstance(value, tuple):
            yield from (v for v in value if isinstance(v, NODE_CLASSES))


def walk_tree(node: ast.Node) -> Iterator[ast.Node]:
    """Yield a node and all its descendants, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(iterate_children(node))))


def flatten_binary_chain(expr: ast.Binary) -> tuple[ast.Expr, list[ast.Binary]]:
    """Return the leftmost operand of `a + b - c` and the operations that follow it, left to
    right.
    """
    operations: list[ast.Binary] = []
    left: ast.Expr = expr
    while isinstance(left, ast.Binary):
        operations.append(left)
        left = left.left
    operations.reverse()
    return left, operations
