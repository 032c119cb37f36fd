"""The proof that the rows of a batch do not mix: each is computed as if it were alone.

The same flow as for causality, with a stricter test: along the batch every reach is row for row, nothing
sums over it, and no value has the batch on two axes.
"""

from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.interval import SAME
from specc.ir.reach import links
from specc.passes.causality import span_of, spoken
from specc.passes.flow import flow, needs_length
from specc.text.diagnostic import Diagnostic, Label


def batch_symbol(graph: Graph) -> str | None:
    """The symbol that is the first axis of every input that has axes; None where there is no such one."""
    names = {v.type.shape[0].name for v in graph.inputs.values() if v.type.rank}
    return names.pop() if len(names) == 1 else None


def mixing(graph: Graph, symbol: str) -> list[Diagnostic]:
    """A warning W0602 for each op that mixes the rows of the axis `symbol`, in the graph's order."""
    found = flow(graph, symbol)
    length = Dim.symbol(symbol)
    spoilt: set[Node] = set()
    faults = []
    for node, results in graph.nodes:
        given = [found.state(a) if a else None for a in node.args]
        if any(a and a.node in spoilt for a in node.args):
            spoilt.add(node)  # one cause, one warning
            continue
        mixed = needs_length(node, length, found.related)
        for link in links(node, results):
            state = given[link.operand]
            if state is None or link.operand_axis not in state.axes:
                continue
            kept = link.kind == "same" and link.reach == SAME
            mixed = mixed or not kept
        mixed = mixed or any(r.type.shape.count(length) > 1 for r in results)
        if mixed:
            spoilt.add(node)
            faults.append(_warning(graph, node, symbol))
    return faults


def _warning(graph: Graph, node: Node, symbol: str) -> Diagnostic:
    span = span_of(graph, node)
    outputs = ", ".join(f"`{n}`" for n in graph.outputs)
    return Diagnostic(
        "W0602",
        f"`{spoken(node.op)}` mixes the rows of `{symbol}`: what one gives depends on the others",
        Label(span, "here rows of the batch meet") if span else None,
        notes=(f"{outputs} may differ between a batch of one and a larger one",),
        helps=("work along another axis",),
        severity="warning",
    )
