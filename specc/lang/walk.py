"""Going over a tree without knowing each of its classes, and without recursion.

Chains that group to the left may be thousands of operators long (`specc.lang.limits`);
`chain` turns one into a list.
"""

from collections.abc import Iterator
from dataclasses import fields

from specc.lang import tree

NODES: tuple[type[tree.Node], ...] = tuple(
    c
    for c in vars(tree).values()
    if isinstance(c, type) and c.__module__ == tree.__name__
)


SPANS = ("span", "name_span", "op_span", "extends_span")
NAMES = {c: tuple(f.name for f in fields(c) if f.name not in SPANS) for c in NODES}
"""The fields of each tree class that say something."""


def children(node: tree.Node) -> Iterator[tree.Node]:
    """The tree nodes directly inside a node, in the order of the source."""
    for name in NAMES[type(node)]:
        value = getattr(node, name)
        if isinstance(value, NODES):
            yield value
        elif isinstance(value, tuple):
            yield from (v for v in value if isinstance(v, NODES))


def walk(node: tree.Node) -> Iterator[tree.Node]:
    """A node and everything inside it, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(children(node))))


def chain(expr: tree.Binary) -> tuple[tree.Expr, list[tree.Binary]]:
    """The leftmost operand of `a + b - c` and the operations that follow it, from the left."""
    operations: list[tree.Binary] = []
    left: tree.Expr = expr
    while isinstance(left, tree.Binary):
        operations.append(left)
        left = left.left
    operations.reverse()
    return left, operations
