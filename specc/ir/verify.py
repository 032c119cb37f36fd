"""What every graph must be, checked again: for tests, between passes, and after reading."""

from collections.abc import Iterator

from specc.ir.dim import DimError
from specc.ir.graph import Graph, Node, Value
from specc.ir.ops import Extent, Range, Scan, Size
from specc.ir.types import ShapeError


def verify(graph: Graph) -> list[str]:
    """What is wrong with `graph`; nothing, for a sound one. Every node is inferred again."""
    return [f"{graph.name}: {fault}" for fault in _faults(graph)]


def _faults(graph: Graph) -> Iterator[str]:
    known: set[Value] = set()
    for what, values, facts in (
        ("input", graph.inputs, {k: f.type for k, f in graph.input_facts.items()}),
        ("parameter", graph.parameters, {k: f.type for k, f in graph.parameter_facts.items()}),
    ):
        if values.keys() != facts.keys():
            yield f"the {what}s and what is known of them differ: {sorted(values.keys() ^ facts.keys())}"
        for name, value in values.items():
            if value.node:
                yield f"{what} `{name}` is made by a node"
            if name in facts and facts[name] != value.type:
                yield f"{what} `{name}` is {value.type} and {facts[name]}"
            known.add(value)
    seen: set[Node] = set()
    for n, (node, results) in enumerate(graph.nodes):
        where = f"node {n} ({node.op.name})"
        if node in seen:
            yield f"{where} stands there twice"
        seen.add(node)
        for fault in _node_faults(node, results, known):
            yield f"{where}: {fault}"
        known.update(results)
    for what, values in (("output", graph.outputs), ("name", graph.names)):
        for name, value in values.items():
            if value not in known:
                yield f"the {what} `{name}` is made by no node of the graph"
    for node in graph.made:
        if node not in seen:
            yield f"something is said about a node that is not there: {node.op.name}"


def numbers_rows(node: Node) -> bool:
    """Whether a node holds the rows of a run-time length: their numbers, or how many they are."""
    match node:
        case Node(Extent(axis=axis), (Value() as x,)):
            return x.type.shape[axis].number is None
        case Node(Range(length=length) | Size(length=length)):
            return length.number is None
    return False


def _node_faults(node: Node, results: tuple[Value, ...], known: set[Value]) -> Iterator[str]:
    for n, a in enumerate(node.args):
        if a and a not in known:
            yield f"operand {n + 1} is not made before it is used"
    for r in results:
        if r.node is not node and r.node != node:
            yield "a result belongs to another node"
    try:
        types = node.op.infer(*(a.type if a else None for a in node.args))
    except (ShapeError, DimError) as error:
        yield str(error)
        return
    if types != tuple(r.type for r in results):
        yield f"gives {', '.join(map(str, types))}, {', '.join(str(r.type) for r in results)} is recorded"
    if isinstance(node.op, Scan):
        if node.op.body.parameters:
            yield "the body of a scan has parameters of its own"
        if any(numbers_rows(n) for n, _ in node.op.body.nodes):
            yield "the body of a scan makes row numbers, which would begin anew where it is run on a part of the rows"
        yield from _faults(node.op.body)
