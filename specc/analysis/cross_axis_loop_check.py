"""Find loops over another axis than time for which no decode step can be derived."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specc.analysis.masked_values import find_masked_values
from specc.analysis.time_axis_strides import is_prefix_slice
from specc.analysis.time_dataflow_facts import TimeFlow
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.time_axis import TimeAxis

POSITION_IDS_REASON = "position ids are computed inside this loop and would restart in every step"
PREFIX_REASON = "this loop over another axis selects fixed positions of a prefix"
MISSING_AXES_REASON = (
    "the part of the time axis that this loop carries has fewer axes than the loop runs along"
)
UNSUPPORTED_LOOP_HELPS = (
    "loop along the time axis itself, or combine the two axes with attention",
    "for a constant number of iterations, `repeat n in 6 { … }` does the same",
)
STATE_SIZE_REASON = "it resumes from a state with one entry for every position"


@dataclass(frozen=True, slots=True)
class UnsupportedLoop:
    """The unsupported node, the graph or body that contains it, and the reason."""

    place: Graph
    node: Node
    why: str


def find_unsupported_loops(
    graph: Graph, found: TimeFlow, live: set[Node]
) -> Iterator[UnsupportedLoop]:
    """Yield each unsupported node of `live`; for a loop, the first one in its body."""
    for node, _ in graph.nodes:
        if node not in live:
            continue
        inside = _find_in_body(node, found) if node in found.inside else None
        if inside is not None:
            yield inside
        elif why := _explain_running_sum(node, found):
            yield UnsupportedLoop(graph, node, why)


def _explain_running_sum(node: Node, found: TimeFlow) -> str:
    """Return why a running sum has no state of fixed shape; "" if it has."""
    if not isinstance(node.op, ops.CumSum):
        return ""
    times, axis = found.state(node.operand()).axes, node.op.axis
    if axis not in times or _is_sum_over_keys(node.operand(), times, axis, found.clock):
        return ""
    return STATE_SIZE_REASON


def _is_sum_over_keys(x: Value, times: Iterable[int], axis: int, clock: TimeAxis) -> bool:
    """Return True if a running sum has one time axis, or runs over grid keys of which the mask
    shows none after the query; it is then recomputed in each step.
    """
    return all(
        any(reach.lo >= 0 for reach in find_masked_values(x, query, axis, clock).values())
        for query in times
        if query != axis
    )


def _find_in_body(loop: Node, found: TimeFlow) -> UnsupportedLoop | None:
    """Return the node in a loop body that cannot resume from cached states, or None."""
    op, body = loop.op, found.inside[loop]
    assert isinstance(op, ops.Scan), "no other op has a body"
    for node, results in body.nodes:
        deeper = _find_in_body(node, found) if node in found.inside else None
        if deeper is not None:
            return deeper
        if why := _explain_body_node(node, results, op.axis, found):
            return UnsupportedLoop(body, node, why)
    return None


def _explain_body_node(node: Node, results: tuple[Value, ...], axis: int, found: TimeFlow) -> str:
    """Return why a node of such a body cannot resume from states; "" if it can."""
    if _is_position_id_source(node, found.clock):
        return POSITION_IDS_REASON
    if is_prefix_slice(node, found.clock):
        return PREFIX_REASON
    # States are stacked along the loop axis.
    if any(found.state(r).axes and r.type.rank < axis for r in results):
        return MISSING_AXES_REASON
    return _explain_running_sum(node, found)


def _is_position_id_source(node: Node, clock: TimeAxis) -> bool:
    """Return True if a node makes position ids of the time axis."""
    match node:
        case Node(ops.Range(length=counted)):
            return clock.get_prefix_length(counted) is not None
        case Node(ops.Extent(axis=axis), (Value() as x,)):
            return clock.get_prefix_length(x.type.shape[axis]) is not None
    return False
