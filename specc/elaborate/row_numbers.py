"""Row numbers leave a loop: they depend on no row of it, so they are made before it and
captured.

scan x in xs carry h {              at = range(n)
  h = h + positions(h)      →       scan x in xs carry h { h = h + at }
}

Inside, they would begin anew whenever the loop is run on a part of the rows.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Node, Value

Key = TypeVar("Key")


def made_outside(
    builder: Builder, inside: Iterable[Node], outputs: Mapping[Key, Value]
) -> dict[Key, Value]:
    """`outputs`, with what leads to them built again where it reads row numbers of a
    run-time length.

    `inside` are the nodes that depend on the loop, in the order in which they were
    made.
    """
    now: dict[Value, Value] = {}
    for node in inside:
        if (length := _counted(node)) is not None:
            new = builder.add(ops.Range(length))
        elif any(a in now for a in node.args if a):
            new = builder.add(node.op, *(a and now.get(a, a) for a in node.args))
        else:
            continue
        now.update(zip(builder.nodes[node], new, strict=True))
        if (known := builder.made.get(node)) and new[0].node:
            builder.made.setdefault(new[0].node, known)
    if not now:
        return dict(outputs)
    builder.names = {n: now.get(v, v) for n, v in builder.names.items()}
    return {name: now.get(v, v) for name, v in outputs.items()}


def _counted(node: Node) -> Dim | None:
    """The run-time length whose rows a node numbers."""
    match node:
        case Node(ops.Extent(axis=axis), (Value() as x,)) if (
            x.type.shape[axis].number is None
        ):
            return x.type.shape[axis]
    return None
