"""Loops for which no step can be derived: they run over one axis, and what they carry
along the one that grows has no state, or none that begins empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.heads import Clock
from specc.passes.prove.beyond import beyond
from specc.passes.prove.flow import Flow
from specc.passes.prove.spliced import from_head

NUMBERS = "row numbers are made inside this loop; they would begin anew in every step"
HEADS = "inside a loop over another axis fixed rows are picked from those before a text"
NARROW = "what this loop keeps of the growing axis has fewer axes than it runs along"
CROSSED = (
    "loop along the growing axis itself, or let attention bring the two axes together",
    "where the number of turns is a number, `repeat n in 6 { … }` does the same",
)
CARRY = "it goes on from a state that would have a row for every position"


@dataclass(frozen=True, slots=True)
class Crossing:
    """A node at fault, in the graph or the body where it stands, and why."""

    place: Graph
    node: Node
    why: str


def crossing(graph: Graph, found: Flow, live: set[Node]) -> Iterator[Crossing]:
    """Each of `live` that is at fault, or has such a node inside; of a loop the first."""
    for node, _ in graph.nodes:
        if node not in live:
            continue
        inside = _in_body(node, found) if node in found.inside else None
        if inside is not None:
            yield inside
        elif why := _many_states(node, found):
            yield Crossing(graph, node, why)


def _many_states(node: Node, found: Flow) -> str:
    """Why a running sum has no state of fixed shape."""
    if not isinstance(node.op, ops.CumSum):
        return ""
    times = found.state(node.first).axes if node.first else {}
    axis = node.op.axis
    return (
        CARRY
        if axis in times and not _over_keys(node, times, axis, found.clock)
        else ""
    )


def _over_keys(node: Node, times: Iterable[int], axis: int, clock: Clock) -> bool:
    """Whether a running sum has one time axis, or goes over the keys of a grid whose
    mask shows none behind the query: it is then done again in each step.
    """
    x = node.first
    assert x is not None
    return all(
        any(reach.lo >= 0 for reach in beyond(x, query, axis, clock).values())
        for query in times
        if query != axis
    )


def _in_body(loop: Node, found: Flow) -> Crossing | None:
    """What the body of a loop over another axis cannot go on with from states of its own."""
    op, body = loop.op, found.inside[loop]
    assert isinstance(op, ops.Scan), "no other op has a body"
    for node, results in body.nodes:
        deeper = _in_body(node, found) if node in found.inside else None
        if deeper is not None:
            return deeper
        if why := _why(node, results, op.axis, found):
            return Crossing(body, node, why)
    return None


def _why(node: Node, results: tuple[Value, ...], axis: int, found: Flow) -> str:
    """Why a node of such a body cannot; empty where it can."""
    if _numbers(node, found.clock):
        return NUMBERS
    if from_head(node, found.clock):
        return HEADS
    # States are stacked along the loop's axis.
    if any(found.state(r).axes and r.type.rank < axis for r in results):
        return NARROW
    return _many_states(node, found)


def _numbers(node: Node, clock: Clock) -> bool:
    """Whether a node numbers the rows that grow."""
    match node:
        case Node(ops.Range(length=counted)):
            return clock.head(counted) is not None
        case Node(ops.Extent(axis=axis), (Value() as x,)):
            return clock.head(x.type.shape[axis]) is not None
    return False
