"""Verify the invariants of a graph in tests, between passes, and after parsing."""

from collections.abc import Iterator, Mapping

from specc.ir.dim import DimError
from specc.ir.graph import Graph, Node, NodeResults, Value
from specc.ir.ops import Extent, MixtureOfExperts, Range, Scan, Size
from specc.ir.types import ShapeError, Type


def find_graph_errors(graph: Graph) -> list[str]:
    """Return the errors of `graph`. All types are inferred again and compared with the stored
    ones.
    """
    return [f"{graph.name}: {fault}" for fault in _iterate_errors(graph)]


def _iterate_errors(graph: Graph) -> Iterator[str]:
    inputs = {name: facts.type for name, facts in graph.input_facts.items()}
    parameters = {name: facts.type for name, facts in graph.parameter_facts.items()}
    yield from _iterate_input_errors("input", graph.inputs, inputs)
    yield from _iterate_input_errors("parameter", graph.parameters, parameters)
    known = {*graph.inputs.values(), *graph.parameters.values()}
    seen: set[Node] = set()
    for n, (node, results) in enumerate(graph.nodes):
        where = f"node {n} ({node.op.name})"
        if node in seen:
            yield f"{where} is duplicated"
        seen.add(node)
        for fault in _iterate_node_errors(node, results, known):
            yield f"{where}: {fault}"
        known.update(results)
    yield from _iterate_undefined("output", graph.outputs, known)
    yield from _iterate_undefined("name", graph.names, known)
    for node in graph.node_origins:
        if node not in seen:
            yield f"provenance of a node that is not in the graph: {node.op.name}"


def _iterate_undefined(
    value_kind: str, values: Mapping[str, Value], defined_values: set[Value]
) -> Iterator[str]:
    for name, value in values.items():
        if value not in defined_values:
            yield f"the {value_kind} `{name}` is not defined in the graph"


def _iterate_input_errors(
    input_kind: str, values: Mapping[str, Value], types: Mapping[str, Type]
) -> Iterator[str]:
    """Yield the errors of inputs or parameters, given their declared types."""
    if values.keys() != types.keys():
        differ = sorted(values.keys() ^ types.keys())
        yield f"the {input_kind}s and their declarations differ: {differ}"
    for name, value in values.items():
        if value.node:
            yield f"{input_kind} `{name}` is the result of a node"
        if name in types and types[name] != value.type:
            yield f"{input_kind} `{name}` is {value.type} and {types[name]}"


def is_length_dependent(node: Node) -> bool:
    """Return True if a node returns a dynamic size, or the indices 0, 1, … below a dynamic size."""
    match node:
        case Node(Extent(axis=axis), (Value() as x,)):
            return x.shape[axis].number is None
        case Node(Range(length=length) | Size(length=length)):
            return length.number is None
    return False


def _iterate_node_errors(
    node: Node, results: NodeResults, defined_values: set[Value]
) -> Iterator[str]:
    for n, a in enumerate(node.args):
        if a and a not in defined_values:
            yield f"operand {n + 1} is used before it is defined"
    yield from _iterate_result_errors(node, results)
    if isinstance(node.op, Scan | MixtureOfExperts):
        yield from _iterate_body_errors(node.op.body)


def _iterate_result_errors(node: Node, results: NodeResults) -> Iterator[str]:
    """Yield the errors of the results of a node, by inferring their types again."""
    for n, r in enumerate(results):
        if r.node is not node and r.node != node:
            yield "a result belongs to another node"
        if r.index != n:
            yield f"result {n + 1} has the index of result {r.index + 1}"
    try:
        types = node.infer_types()
    except (ShapeError, DimError) as error:
        yield str(error)
        return
    recorded = tuple(r.type for r in results)
    if types != recorded:
        inferred_text, recorded_text = ", ".join(map(str, types)), ", ".join(map(str, recorded))
        yield f"the shape rule infers {inferred_text}, recorded is {recorded_text}"


def _iterate_body_errors(body: Graph) -> Iterator[str]:
    if body.parameters:
        yield "the body of a loop has parameters"
    if any(is_length_dependent(n) for n, _ in body.nodes):
        yield (
            "the body of a loop computes position indices, which would restart where "
            "it runs on some of the positions"
        )
    yield from _iterate_errors(body)
