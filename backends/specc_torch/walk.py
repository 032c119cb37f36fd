"""One walk over the nodes of a graph. A value is forgotten after its last use."""

from collections import Counter
from collections.abc import Iterable, Mapping

from torch import Tensor

from specc.ir.graph import Graph, Node, Value, needed
from specc_torch.table import Place, evaluate


def walk(
    graph: Graph, given: Mapping[Value, Tensor], place: Place, wanted: Iterable[Value]
) -> dict[Value, Tensor]:
    """What `wanted` are when the inputs and parameters of `graph` are `given`."""
    wanted = list(wanted)
    live = needed(wanted)
    nodes = [(node, results) for node, results in graph.nodes if node in live]
    # What is wanted is read once more, at the end.
    left = Counter(a for node, _ in nodes for a in node.args if a)
    left.update(wanted)
    known = dict(given)
    for node, results in nodes:
        operands = [known[a] if a else None for a in node.args]
        evaluated = evaluate[node.op](node.op, place, *operands)
        tensors = evaluated if isinstance(evaluated, tuple) else (evaluated,)
        for result, tensor in zip(results, tensors, strict=True):
            if left[result]:
                known[result] = tensor
        _let_go(node, left, known)
    return {v: known[v] for v in wanted}


def _let_go(node: Node, left: Counter[Value], known: dict[Value, Tensor]) -> None:
    """Forget the operands that no later node reads: a long graph needs no more memory
    than its widest place. Under autograd the tape keeps what it needs by itself.
    """
    # A node may read one value twice: `x * x` counts for two.
    read_here = Counter(a for a in node.args if a)
    left.subtract(read_here)
    for operand in read_here:
        if not left[operand]:
            known.pop(operand, None)
