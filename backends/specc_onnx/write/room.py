"""What the weights of a model take in memory while it runs."""

from collections.abc import Iterable

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specc.backend import Room


def room(model: ModelProto) -> Room:
    """The weights of a model, stored and at work. A weight that a `Cast` widens is there
    as what it becomes: ONNX Runtime does that once, while loading.
    """
    widened = _widened(model)
    numbers = stored = held = 0
    for tensor in _weights(model.graph):
        count = 1
        for length in tensor.dims:
            count *= max(length, 0)
        width = _width(tensor.data_type)
        numbers += count
        stored += count * width // 8
        held += count * max(width, widened.get(tensor.name, 0)) // 8
    return Room(numbers, stored, held)


def _widened(model: ModelProto) -> dict[str, int]:
    """The bits an element has behind the casts of a value, by that value's name."""
    found: dict[str, int] = {}
    for node in _nodes(model.graph):
        if node.op_type == "Cast" and node.input:
            kinds = [a.i for a in node.attribute if a.name == "to"]
            bits = max((_width(kind) for kind in kinds), default=0)
            found[node.input[0]] = max(bits, found.get(node.input[0], 0))
    return found


def _width(kind: int) -> int:
    """Bits of an element; types of fewer than eight are packed. 0 for no known type."""
    packed = {TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1}
    if kind in packed:
        return 4
    try:
        return 8 * int(helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except (KeyError, TypeError):
        return 0


def _weights(graph: GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    for inner in _graphs(graph.node):
        yield from _weights(inner)


def _nodes(graph: GraphProto) -> Iterable[NodeProto]:
    yield from graph.node
    for inner in _graphs(graph.node):
        yield from _nodes(inner)


def _graphs(nodes: Iterable[NodeProto]) -> Iterable[GraphProto]:
    """The bodies of loops and branches."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs
