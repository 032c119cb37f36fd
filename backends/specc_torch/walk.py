"""One walk over the nodes of a graph. A value is forgotten after its last use."""

from collections import Counter
from collections.abc import Iterable, Mapping

from torch import Tensor

from specc.ir.graph import Graph, Value, needed
from specc_torch.table import Place, evaluate


def walk(graph: Graph, given: Mapping[Value, Tensor], place: Place, wanted: Iterable[Value]) -> dict[Value, Tensor]:
    """What `wanted` are when the inputs and parameters of `graph` are `given`."""
    wanted = list(wanted)
    live = needed(wanted)
    nodes = [(node, results) for node, results in graph.nodes if node in live]
    left = Counter(a for node, _ in nodes for a in node.args if a)
    left.update(wanted)
    known = dict(given)
    for node, results in nodes:
        operands = [known[a] if a else None for a in node.args]
        made = evaluate[node.op](node.op, place, *operands)
        found = made if isinstance(made, tuple) else (made,)
        known.update((r, x) for r, x in zip(results, found, strict=True) if left[r])
        for a in node.args:
            if a:
                left[a] -= 1
                if not left[a]:
                    known.pop(a, None)
    return {v: known[v] for v in wanted}
