"""One walk over the nodes of a graph. A value is forgotten after its last use."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TypeAlias

import numpy as np

from specc.ir.graph import Graph, Node, Value, needed
from specc_numpy.table import Array, Env, evaluate, stored

After: TypeAlias = Callable[[Value, Array], Array]

_AROUND: ContextVar[After | None] = ContextVar("after", default=None)
"""`after` of the walk around a body, which holds inside it as well."""


def walk(
    graph: Graph,
    given: Mapping[Value, Array],
    env: Env,
    wanted: Iterable[Value],
    after: After | None = None,
) -> dict[Value, Array]:
    """What `wanted` are when the inputs and parameters of `graph` are `given`.

    A parameter may have any element type: it is converted when it is first read. `after`
    is given each result of a node, in bodies of loops too, and gives what is read in its
    place.
    """
    after = after or _AROUND.get()
    token = _AROUND.set(after)
    try:
        return _walk(graph, given, env, list(wanted), after)
    finally:
        _AROUND.reset(token)


def _walk(
    graph: Graph,
    given: Mapping[Value, Array],
    env: Env,
    wanted: list[Value],
    after: After | None,
) -> dict[Value, Array]:
    nodes = _in_use(graph, wanted)
    left = _uses(nodes, wanted)
    known: dict[Value, Array] = {}

    def read(value: Value) -> Array:
        if value not in known:
            known[value] = np.asarray(given[value]).astype(
                stored(value.type.dtype), copy=False
            )
        return known[value]

    for node, results in nodes:
        operands = [read(a) if a else None for a in node.args]
        # infinities and NaN go on as they are, as in any run-time
        with np.errstate(all="ignore"):
            evaluated = evaluate[node.op](node.op, env, *operands)
        arrays = evaluated if isinstance(evaluated, tuple) else (evaluated,)
        for result, array in zip(results, arrays, strict=True):
            # A result that nobody reads, such as the weights of an attention, is not
            # kept at all.
            if left[result]:
                made = np.asarray(array)
                known[result] = made if after is None else after(result, made)
        _let_go(node, left, known)
    return {v: read(v) for v in wanted}


Nodes = list[tuple[Node, tuple[Value, ...]]]


def _in_use(graph: Graph, wanted: list[Value]) -> Nodes:
    """The nodes that `wanted` is made from, in order."""
    live = needed(wanted)
    return [(node, results) for node, results in graph.nodes if node in live]


def _uses(nodes: Nodes, wanted: list[Value]) -> Counter[Value]:
    """How often each value is read. What is wanted is read once more, at the end."""
    uses = Counter(a for node, _ in nodes for a in node.args if a)
    uses.update(wanted)
    return uses


def _let_go(node: Node, left: Counter[Value], known: dict[Value, Array]) -> None:
    """Forget the operands that no later node reads: a long graph needs no more memory
    than its widest place.
    """
    # A node may read one value twice: `x * x` counts for two.
    read_here = Counter(a for a in node.args if a)
    left.subtract(read_here)
    for operand in read_here:
        if not left[operand]:
            known.pop(operand, None)
