"""Extract the body of a loop or expert as a graph with captures; position ids are hoisted."""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Node, NodeOrigin, Value

Key = TypeVar("Key")


def hoist_position_ids(
    builder: Builder, inside: Iterable[Node], outputs: Mapping[Key, Value]
) -> dict[Key, Value]:
    """`outputs`, with what leads to them built again where it reads row numbers of a
    run-time length.

    `inside` are the nodes that depend on the loop, in the order in which they were
    made.
    """
    now: dict[Value, Value] = {}
    for node in inside:
        if (length := _get_counted_length(node)) is not None:
            new = builder.add(ops.Range(length))
        elif any(a in now for a in node.args if a):
            new = builder.add(node.op, *(a and now.get(a, a) for a in node.args))
        else:
            continue
        now.update(zip(builder.nodes[node], new, strict=True))
        if (known := builder.made.get(node)) and new[0].node:
            builder.made.setdefault(new[0].node, known)
    if not now:
        return dict(outputs)
    builder.names = {n: now.get(v, v) for n, v in builder.names.items()}
    return {name: now.get(v, v) for name, v in outputs.items()}


def _get_counted_length(node: Node) -> Dim | None:
    """The run-time length whose rows a node numbers."""
    match node:
        case Node(ops.Extent(axis=axis), (Value() as x,)) if x.type.shape[axis].number is None:
            return x.type.shape[axis]
    return None


def extract_body_graph(
    builder: Builder, inputs: dict[str, Value], outputs: dict[str, Value], start: int, own: str = ""
) -> tuple[Graph, list[Value]]:
    """The nodes between loop inputs and outputs as a graph of its own, and what it
    takes from outside. What has rows of the length `own`, which nobody knows outside,
    is inside too. `start` is how many nodes there were before the body was read.
    """
    inside = _find_dependent_nodes(builder, inputs.values(), start, own)
    outputs = hoist_position_ids(builder, inside, outputs)
    # again: row numbers that were made outside depend on no row any more
    inside = _find_dependent_nodes(builder, inputs.values(), start, own)
    live, captured = _find_reachable(inside, inputs.values(), outputs.values())
    # captures go in the order in which the graph made them, so that the same spec
    # gives the same body, however its outputs were walked
    outer = _sort_captures(builder, captured)
    names = {**inputs, **{f"outer {n}": Value(v.type) for n, v in enumerate(outer)}}
    now = dict(zip([*inputs.values(), *outer], names.values(), strict=True))
    copies: list[tuple[Node, tuple[Value, ...]]] = []
    scopes: dict[Node, NodeOrigin] = {}
    for old in inside:
        if old not in live:
            continue
        results = builder.nodes[old]
        node = Node(old.op, tuple(now[a] if a else None for a in old.args))
        copies.append((node, tuple(Value(r.type, node, r.index) for r in results)))
        now.update(zip(results, copies[-1][1], strict=True))
        # a node of the body keeps the scope and the text it came from, for messages
        if old in builder.made:
            scopes[node] = builder.made[old]
    facts = {name: Input(v.type) for name, v in names.items()}
    given = {name: now[v] for name, v in outputs.items()}
    body = Graph(
        name="body",
        inputs=names,
        input_facts=facts,
        parameters={},
        parameter_facts={},
        nodes=tuple(copies),
        outputs=given,
        made=scopes,
    )
    return body, outer


def _find_reachable(
    inside: Container[Node], inputs: Iterable[Value], outputs: Iterable[Value]
) -> tuple[set[Node], dict[Value, None]]:
    """The nodes inside the loop that its outputs need, and the values from outside that
    these read, each found from the outputs backwards.
    """
    live: set[Node] = set()
    captured: dict[Value, None] = {}
    ends = set(inputs)
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value in ends:
            continue
        if value.node is None or value.node not in inside:
            captured[value] = None
        elif value.node not in live:
            live.add(value.node)
            waiting += [a for a in value.node.args if a]
    return live, captured


def _sort_captures(builder: Builder, captured: Iterable[Value]) -> list[Value]:
    """Values in the order in which a graph has them: inputs, parameters, and what nodes
    make of them; such as are of no graph yet first.
    """
    given = {v: n for n, v in enumerate(builder.inputs.values())}
    found = list(captured)
    if any(v.node is None and v not in given for v in found):
        weights = enumerate(builder.parameters.values(), len(given))
        given |= {v: n for n, v in weights}

    def place(value: Value) -> tuple[int, int]:
        if value.node is None:
            return given.get(value, -1), 0
        return len(given) + builder.places[value.node], value.index

    return sorted(found, key=place)


def _find_dependent_nodes(
    builder: Builder, leaves: Iterable[Value], start: int, length: str
) -> dict[Node, None]:
    """Every node that reads one of `leaves`, directly or not, or gives rows of this
    length, in order.

    The leaves are new with the body, so that only nodes behind the first `start` are
    looked at. But what follows from the length alone, such as the numbers of its rows,
    an earlier body may have made, and equal nodes are one.
    """
    moved, free = set(leaves), set[Value]()
    found: dict[Node, None] = {}
    known = builder.free.setdefault(length, {})
    for node in _iterate_candidates(builder, known, start):
        results = builder.nodes[node]
        reads = [a for a in node.args if a]
        rows = bool(length) and _depends_on_length(results[0], length)
        depends = any(a in moved for a in reads)
        if not depends and (rows or any(a in free for a in reads)):
            free.update(results)
            known[node] = None
        elif not depends:
            continue
        else:
            moved.update(results)
        found[node] = None
    return found


def _iterate_candidates(builder: Builder, known: dict[Node, None], start: int) -> Iterator[Node]:
    """What earlier bodies made of a length, and all nodes behind the first `start`."""
    earlier = tuple(known)
    new = dict.fromkeys(islice(builder.nodes, start, None))
    yield from (node for node in earlier if node not in new)
    yield from new


def _depends_on_length(value: Value, length: str) -> bool:
    """Whether an axis of a value follows from this length."""
    return any(d.number is None and length in d.symbols() for d in value.type.shape)
