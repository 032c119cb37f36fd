"""Verify the invariants of IR graphs in tests, between passes, and after parsing. List the
dimensions of a node that must be non-negative.
"""

from collections.abc import Iterator, Mapping

from specc.ir import ops
from specc.ir.dim import Dim, DimError, min_dims
from specc.ir.graph import Graph, Node, NodeResults, Value
from specc.ir.ops import Extent, MixtureOfExperts, Range, Scan, Size
from specc.ir.types import ShapeError, Type


def find_graph_errors(graph: Graph) -> list[str]:
    """Return a message for each violated invariant of `graph`. The list is empty for a valid graph.
    The types of all nodes are inferred again and compared with the stored types.
    """
    return [f"{graph.name}: {error}" for error in _iterate_errors(graph)]


def _iterate_errors(graph: Graph) -> Iterator[str]:
    """Yield a message for each violated invariant of a graph or loop body."""
    inputs = {name: facts.type for name, facts in graph.input_facts.items()}
    parameters = {name: facts.type for name, facts in graph.parameter_facts.items()}
    yield from _iterate_input_errors("input", graph.inputs, inputs)
    yield from _iterate_input_errors("parameter", graph.parameters, parameters)
    defined_values = {*graph.inputs.values(), *graph.parameters.values()}
    previous_nodes: set[Node] = set()
    for n, (node, results) in enumerate(graph.nodes):
        location = f"node {n} ({node.op.name})"
        if node in previous_nodes:
            yield f"{location} is duplicated"
        previous_nodes.add(node)
        for error in _iterate_node_errors(node, results, defined_values):
            yield f"{location}: {error}"
        defined_values.update(results)
    yield from _iterate_undefined("output", graph.outputs, defined_values)
    yield from _iterate_undefined("name", graph.names, defined_values)
    for node in graph.node_origins:
        if node not in previous_nodes:
            yield f"origin of a node that is not in the graph: {node.op.name}"


def _iterate_undefined(
    value_kind: str, values: Mapping[str, Value], defined_values: set[Value]
) -> Iterator[str]:
    """Yield an error for each undefined value. `value_kind` is "output" or "name", for messages."""
    for name, value in values.items():
        if value not in defined_values:
            yield f"the {value_kind} `{name}` is not defined in the graph"


def _iterate_input_errors(
    input_kind: str, values: Mapping[str, Value], types: Mapping[str, Type]
) -> Iterator[str]:
    """Yield an error for each input or parameter whose type differs from `types`."""
    if values.keys() != types.keys():
        differing_names = sorted(values.keys() ^ types.keys())
        yield f"the {input_kind}s and their declarations differ: {differing_names}"
    for name, value in values.items():
        if value.node:
            yield f"{input_kind} `{name}` is the result of a node"
        if name in types and types[name] != value.type:
            yield f"{input_kind} `{name}` is {value.type} and {types[name]}"


def is_dynamic_size_node(node: Node) -> bool:
    """Return True if a node returns a dynamic axis size, or the position ids of a dynamic axis."""
    match node:
        case Node(Extent(axis=axis), (Value() as x,)):
            return x.shape[axis].number is None
        case Node(Range(length=length) | Size(length=length)):
            return length.number is None
    return False


def _iterate_node_errors(
    node: Node, results: NodeResults, defined_values: set[Value]
) -> Iterator[str]:
    """Yield a node's errors: undefined operands, invalid results, and errors in its body."""
    for n, a in enumerate(node.args):
        if a and a not in defined_values:
            yield f"operand {n + 1} is used before it is defined"
    yield from _iterate_result_errors(node, results)
    if isinstance(node.op, Scan | MixtureOfExperts):
        yield from _iterate_body_errors(node.op.body)


def _iterate_result_errors(node: Node, results: NodeResults) -> Iterator[str]:
    """Yield an error for each of a node's results that differs from the inferred result."""
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
    recorded_types = tuple(r.type for r in results)
    if types != recorded_types:
        inferred_text, recorded_text = (
            ", ".join(map(str, types)),
            ", ".join(map(str, recorded_types)),
        )
        yield f"the shape rule infers {inferred_text}, recorded is {recorded_text}"


def _iterate_body_errors(body: Graph) -> Iterator[str]:
    """Yield the errors in the body of a loop or a mixture of experts."""
    if body.parameters:
        yield "the body of a loop has parameters"
    if any(is_dynamic_size_node(n) for n, _ in body.nodes):
        yield (
            "the body of a loop computes position indices, which would restart at 0 if the loop "
            "processes only some of the positions"
        )
    yield from _iterate_errors(body)


def list_nonnegative_dims(node: Node) -> tuple[Dim, ...]:
    """Return the dimensions of `node` that must be non-negative. If one of the returned dimensions
    is negative, the node reads an invalid position.
    """
    if not node.args or node.args[0] is None:
        return ()
    shape = node.args[0].shape
    match node.op:
        case ops.Index(axis=axis, start=start, stop=stop):
            return start, shape[axis] - stop
        case ops.Slice(axis, start, stop):
            return start, stop - start, shape[axis] - stop
        case ops.StridedSlice(axis, start, stop, step):
            return start, stop - start, shape[axis] - stop, step - 1
        case ops.TopK(axis, k):
            return k, shape[axis] - k
        case ops.Pad(axis) as op:
            return op.list_nonnegative_dims(shape[axis])
        case ops.Resize(axis, sizes):
            return tuple(d - 1 for d in (*sizes, *shape[axis : axis + len(sizes)]))
        case ops.GridSample():
            return tuple(d - 1 for d in shape[2:])
        case ops.Conv() | ops.MaxPool() | ops.AveragePool() as op:
            # the window axes are axis 1 of a sequence, and axes 2 and 3 of an image
            rank = len(op.kernel)
            lengths = shape[rank : 2 * rank]
            return tuple(op.build_length_constraint(length, n) for n, length in enumerate(lengths))
        case ops.DownsamplePaddingMask() as op:
            length = shape[1]
            return (op.compute_output_length(length) - min_dims(length, 1),)
    return ()
