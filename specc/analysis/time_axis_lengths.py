"""Find ops whose attributes hold the length of the time axis."""

from collections.abc import Iterator

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.time_axis import TimeAxis


def find_length_use(body: Graph, related: frozenset[str]) -> Node | None:
    """Return the first node of a body with the length in an attribute."""
    for node, _ in body.nodes:
        if any(_mentions(v, related) for v in _iterate_attributes(node)):
            return node
    return None


def _iterate_attributes(node: Node) -> Iterator[object]:
    """Yield the attributes of a node; for a loop, those of the nodes in its body."""
    if isinstance(node.op, ops.Scan):
        for inner, _ in node.op.body.nodes:
            yield from _iterate_attributes(inner)
    else:
        yield from node.op.attributes().values()


def has_time_axis_length(node: Node, clock: TimeAxis) -> bool:
    """Return True if an op uses the length itself, other than to make an axis of that length or to
    drop prefix positions.
    """
    match node.op:
        case ops.Range(length=dim) | ops.Expand(length=dim):
            rows = clock.head(dim) is not None
        case ops.Slice(axis=axis, start=start, stop=stop):
            rows = _is_axis_end(node, axis, stop) and not _mentions(start, clock.related)
        case ops.Stride(axis=axis, start=start, stop=stop, step=step):
            rows = _is_axis_end(node, axis, stop) and not any(
                _mentions(d, clock.related) for d in (start, step)
            )
        case ops.Resize():
            return False  # every row is read, which says more
        case ops.Scan():
            return False
        case _:
            rows = False
    said = node.op.attributes().values()
    return not rows and any(_mentions(v, clock.related) for v in said)


def _mentions(value: object, related: frozenset[str]) -> bool:
    if isinstance(value, tuple):
        return any(_mentions(v, related) for v in value)
    return isinstance(value, Dim) and bool(value.symbols() & related)


def _is_axis_end(node: Node, axis: int, stop: Dim) -> bool:
    """Return True if `stop` is the end of the axis."""
    return node.first is not None and stop == node.first.type.shape[axis]
