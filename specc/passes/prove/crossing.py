"""Loops for which no step can be derived: they run over one axis, and what they carry
along the one that grows has no state, or none that begins empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.heads import Clock
from specc.ir.reach import links
from specc.passes.prove.beyond import beyond
from specc.passes.prove.flow import Flow
from specc.passes.prove.seen import zero_everywhere

NUMBERS = "row numbers are made inside this loop; they would begin anew in every step"
BEGINS = "inside a loop over another axis it does not begin with zeros"
HEADS = "inside a loop over another axis rows that are fixed stand before what it keeps"
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
    if _begins(node, found):
        return BEGINS
    if _behind_a_head(node, results, found):
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


def _behind_a_head(node: Node, results: tuple[Value, ...], found: Flow) -> bool:
    """Whether a node looks back along an axis with a head, which states had to begin as,
    or takes its rows away.
    """
    for link in links(node, results):
        x = node.args[link.operand]
        if x is None or link.operand_axis not in found.state(x).axes:
            continue
        head = found.clock.head(x.type.shape[link.operand_axis])
        if head != 0 and link.kind not in ("same", "extent"):
            return True
    return False


def _begins(node: Node, found: Flow) -> bool:
    """Whether a layer or a loop along the growing axis begins as anything but zeros."""
    match node.op:
        case ops.Scan(axis=axis) as op if axis in found.state(op.row(node)).axes:
            starts: tuple[Value | None, ...] = op.parts(node.args).starts
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            starts = tuple(state.of(node.args) for state in node.op.first_states)
        case _:
            return False
    return not all(s is None or zero_everywhere(s) for s in starts)
