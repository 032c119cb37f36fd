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
    """Return `outputs` with position ids of a run-time length replaced by `Range` ops.

    `inside` are the nodes that depend on the loop, in the order of their creation.
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
    """Return the run-time length whose indices `node` computes, or None."""
    match node:
        case Node(ops.Extent(axis=axis), (Value() as x,)) if x.type.shape[axis].number is None:
            return x.type.shape[axis]
    return None


def extract_body_graph(
    builder: Builder, inputs: dict[str, Value], outputs: dict[str, Value], start: int, own: str = ""
) -> tuple[Graph, list[Value]]:
    """Extract the nodes between loop inputs and outputs as a graph, and the captured values.

    Nodes with an axis of the length `own`, a symbol unknown outside, are part of the body
    too. `start` is the number of nodes before the body was elaborated.
    """
    inside = _find_dependent_nodes(builder, inputs.values(), start, own)
    outputs = hoist_position_ids(builder, inside, outputs)
    # again: position ids made outside no longer depend on the loop
    inside = _find_dependent_nodes(builder, inputs.values(), start, own)
    live, captured = _find_reachable(inside, inputs.values(), outputs.values())
    # captures are ordered as in the graph, so that the same spec gives the same body
    # independent of the traversal order
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
        # nodes of the body keep their scope and source location, for messages
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
    """Return the body nodes that the outputs need, and the outside values that they read,
    in backward order.
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
    """Sort values in graph order: inputs, parameters, then results of nodes; values that
    are not part of the graph yet come first.
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
    """Return, in order, every node that depends on one of `leaves` or has an axis of length
    `length`.

    The leaves are created with the body, so that only nodes after the first `start` can
    depend on them. Nodes that depend only on the length may come from an earlier body,
    since equal nodes are shared.
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
    """Yield nodes of earlier bodies with this length, then nodes after the first `start`."""
    earlier = tuple(known)
    new = dict.fromkeys(islice(builder.nodes, start, None))
    yield from (node for node in earlier if node not in new)
    yield from new


def _depends_on_length(value: Value, length: str) -> bool:
    """Return whether a dimension of the value contains this symbol."""
    return any(d.number is None and length in d.symbols() for d in value.type.shape)
