"""One walk over the nodes of a graph. A value is forgotten after its last use."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from specc.ir.graph import Graph, Value, needed
from specc_numpy.table import Array, Env, evaluate, stored


def walk(graph: Graph, given: Mapping[Value, Array], env: Env, wanted: Iterable[Value]) -> dict[Value, Array]:
    """What `wanted` are when the inputs and parameters of `graph` are `given`.

    A parameter may have any element type: it is converted when it is first read.
    """
    wanted = list(wanted)
    live = needed(wanted)
    nodes = [(node, results) for node, results in graph.nodes if node in live]
    left = Counter(a for node, _ in nodes for a in node.args if a)
    left.update(wanted)
    known: dict[Value, Array] = {}

    def read(value: Value) -> Array:
        if value not in known:
            known[value] = np.asarray(given[value]).astype(stored(value.type.dtype), copy=False)
        return known[value]

    for node, results in nodes:
        operands = [read(a) if a else None for a in node.args]
        with np.errstate(all="ignore"):  # infinities and NaN go on as they are, as in any run-time
            made = evaluate[node.op](node.op, env, *operands)
        found = made if isinstance(made, tuple) else (made,)
        known.update((r, np.asarray(x)) for r, x in zip(results, found, strict=True) if left[r])
        for a in node.args:
            if a:
                left[a] -= 1
                if not left[a]:
                    known.pop(a, None)
    return {v: read(v) for v in wanted}
