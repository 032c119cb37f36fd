"""Loops for which no step can be derived: they run over one axis and carry, or look back along, the one that grows."""

from collections.abc import Iterator

from specc.ir import ops
from specc.ir.graph import Graph, Node
from specc.ir.reach import links
from specc.passes.flow import Flow

LOOK_BACK = "it loops over one axis and looks back along the one that grows"
CARRY = "it goes on from a state that would have a row for every position"


def crossing(graph: Graph, found: Flow, live: set[Node]) -> Iterator[tuple[Node, str]]:
    """Each such node of `live`, with the reason."""
    for node, results in graph.nodes:
        if node not in live or not isinstance(node.op, ops.Scan | ops.CumSum):
            continue
        given = [found.state(a) if a else None for a in node.args]
        if isinstance(node.op, ops.CumSum):
            state = given[0]
            if state and node.op.axis in state.axes and len(state.axes) > 1:
                yield node, CARRY
            continue
        row = node.args[1 if node.op.masked else 0]
        own = found.state(row).axes if row else {}
        if node.op.axis in own:
            continue
        reached = [s.axes for s in given if s]
        for link in links(node, results):
            if link.operand_axis in reached[link.operand] and link.kind != "same":
                yield node, LOOK_BACK
                break
