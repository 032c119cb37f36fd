"""How many rows of a table a graph asks for by row numbers: `embedding(positions(x))`
has no value where there are more rows than the table has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value

ROTARY = "--context"
"""What stands for a table where frequencies are those of texts up to some length."""


@dataclass(frozen=True)
class Room:
    """`length` rows are asked for by `node`, and there are `most`: of `table`, None where
    they are frequencies.
    """

    node: Node
    length: Dim
    most: int
    table: Value | None


def rooms(graph: Graph) -> Iterator[Room]:
    """All of a graph whose length is known only when it runs."""
    for node, _ in graph.nodes:
        found = room_of(node)
        if found is None:
            continue
        length = found.length.substitute(graph.facts)
        if length.symbols():
            yield Room(node, length, found.most, found.table)


def room_of(node: Node) -> Room | None:
    """What a node asks a table for; None where it does not, or nobody knows how much."""
    match node:
        case Node(ops.Embedding(), (Value() as ids, Value() as table)):
            return _room(node, ids, table.type.shape[0].number, table)
        case Node(ops.RopeAngles(most=most), (Value() as ids,)) if most:
            return _room(node, ids, most, None)
    return None


def _room(node: Node, ids: Value, most: int | None, table: Value | None) -> Room | None:
    greatest = _greatest(ids)
    if most is None or greatest is None:
        return None
    return Room(node, greatest + 1, most, table)


def _greatest(value: Value) -> Dim | None:
    """The greatest number in `value`, where its numbers are row numbers."""
    match value.node:
        # rows are counted from 0, so the last one is one less than how many there are
        case Node(ops.Extent(axis=axis), (Value() as x,)):
            return x.type.shape[axis] - 1
        case Node(ops.Range(length=length), ()):
            return length - 1
        case Node(ops.Size(length=length), ()):
            return length
        # how many rows are kept up to each, at most all
        case Node(
            ops.CumSum(axis=axis),
            (Value(node=Node(ops.Cast(), (Value() as keep,))) as x,),
        ):
            return x.type.shape[axis] if keep.type.dtype == "bool" else None
        case Node(ops.Arith(fn="add" | "sub" as fn), (Value() as x, Value() as y)):
            return _moved(fn, _greatest(x), y)
        # the number that padded rows are given is a small one: `max(cumsum(keep) - 1, 0)`
        case Node(
            ops.Arith(fn="max"), (Value() as x, Value(node=Node(ops.Constant())))
        ):
            return _greatest(x)
        case Node(
            ops.Insert() | ops.Expand() | ops.Transpose() | ops.Squeeze(),
            (Value() as x,),
        ):
            return _greatest(x)
        # the last rows are the greatest: those of a step are behind those before it
        case Node(ops.Slice(axis=axis, stop=stop), (Value() as x,)):
            return _greatest(x) if stop == x.type.shape[axis] else None
        case Node(ops.Where(), (_, Value() as x, Value(node=Node(ops.Constant())))):
            return _greatest(x)
        case _:
            return None


def _moved(fn: str, greatest: Dim | None, by: Value) -> Dim | None:
    """Row numbers moved by a number, or by a length, as those of a step are."""
    match by.node:
        case _ if greatest is None:
            return None
        case Node(ops.Constant(value=c)):
            return greatest + int(c if fn == "add" else -c)
        case Node(ops.Size(length=length)):
            return greatest + length if fn == "add" else greatest - length
        case _:
            return None
