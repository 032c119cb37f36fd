"""Loops for which no step can be derived: they run over one axis and carry, or look
back along, the one that grows.
"""

from collections.abc import Iterable, Iterator

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.heads import Clock
from specc.ir.reach import links
from specc.passes.prove.beyond import beyond
from specc.passes.prove.flow import Flow

LOOK_BACK = "it loops over one axis and looks back along the one that grows"
NUMBERS = "row numbers are made inside this loop; they would begin anew in every step"
CROSSED = (
    "loop along the growing axis itself, or let attention bring the two axes together",
)
HEADS = "rows with and without fixed ones before them meet inside this loop"
CARRY = "it goes on from a state that would have a row for every position"


def crossing(graph: Graph, found: Flow, live: set[Node]) -> Iterator[tuple[Node, str]]:
    """Each such node of `live`, with the reason."""
    for node, _ in graph.nodes:
        if node not in live or not isinstance(node.op, ops.Scan | ops.CumSum):
            continue
        given = [found.state(a) if a else None for a in node.args]
        if isinstance(node.op, ops.CumSum):
            state, axis = given[0], node.op.axis
            times = state.axes if state else {}
            if axis in times and not _over_keys(node, times, axis, found.clock):
                yield node, CARRY
            continue
        own = found.state(node.op.row(node)).axes
        if node.op.axis in own:
            continue
        if why := _in_body(node.op.body, found.clock):
            yield node, why
        elif len(_heads(node, found)) > 1:
            yield node, HEADS


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


def _heads(node: Node, found: Flow) -> set[Dim | None]:
    """The heads of the time axes that go into a loop. In its body one length is put in
    place of the growing one.
    """
    return {
        found.clock.head(a.type.shape[axis])
        for a in node.args
        if a
        for axis in found.state(a).axes
    }


def _in_body(body: Graph, clock: Clock) -> str:
    """Why a body cannot work on new rows alone; empty where each of its ops goes row for row."""
    for node, results in body.nodes:
        if isinstance(node.op, ops.Scan) and (why := _in_body(node.op.body, clock)):
            return why
        for link in links(node, results):
            operand = node.args[link.operand]
            if (
                operand
                and clock.head(operand.type.shape[link.operand_axis]) is not None
                and link.kind != "same"
            ):
                return NUMBERS if link.kind == "extent" else LOOK_BACK
    return ""


def crossed(node: Node, why: str) -> bool:
    """Whether a loop reads every row only as it looks back again in each of its turns."""
    return (
        isinstance(node.op, ops.Scan)
        and why == "all"
        and not node.op.reverse
        and not _looks_ahead(node.op.body)
    )


def _looks_ahead(body: Graph) -> bool:
    """Whether an op in a body reads later rows whatever a mask says."""
    return any(
        link.kind == "window" and link.lo < 0
        for node, results in body.nodes
        for link in links(node, results)
    )
