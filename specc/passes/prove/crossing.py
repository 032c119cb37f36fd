"""Loops for which no step can be derived: they run over one axis and carry, or look
back along, the one that grows.
"""

from collections.abc import Iterable, Iterator

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.reach import links
from specc.passes.prove.beyond import beyond
from specc.passes.prove.flow import Flow

LOOK_BACK = "it loops over one axis and looks back along the one that grows"
NUMBERS = "row numbers are made inside this loop; they would begin anew in every step"
CROSSED = (
    "loop along the growing axis itself, or let attention bring the two axes together",
)
CARRY = "it goes on from a state that would have a row for every position"


def crossing(graph: Graph, found: Flow, live: set[Node]) -> Iterator[tuple[Node, str]]:
    """Each such node of `live`, with the reason."""
    for node, _ in graph.nodes:
        if node not in live or not isinstance(node.op, ops.Scan | ops.CumSum):
            continue
        given = [found.state(a) if a else None for a in node.args]
        if isinstance(node.op, ops.CumSum):
            state, axis = given[0], node.op.axis
            if state and axis in state.axes and not _over_keys(node, state.axes, axis):
                yield node, CARRY
            continue
        own = found.state(node.op.row(node)).axes
        if node.op.axis in own:
            continue
        if why := _in_body(node.op.body, Dim.symbol(found.symbol)):
            yield node, why


def _over_keys(node: Node, times: Iterable[int], axis: int) -> bool:
    """Whether a running sum has one time axis, or goes over the keys of a grid whose
    mask shows none behind the query: it is then done again in each step.
    """
    x = node.first
    assert x is not None
    return all(
        any(reach.lo >= 0 for reach in beyond(x, query, axis).values())
        for query in times
        if query != axis
    )


def _in_body(body: Graph, length: Dim) -> str:
    """Why a body cannot work on new rows alone; empty where each of its ops goes row for row."""
    for node, results in body.nodes:
        if isinstance(node.op, ops.Scan) and (why := _in_body(node.op.body, length)):
            return why
        for link in links(node, results):
            operand = node.args[link.operand]
            if (
                operand
                and operand.type.shape[link.operand_axis] == length
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
