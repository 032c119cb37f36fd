"""What another provider than the processor left to the processor, and whether that is
more than lengths.

ONNX Runtime computes shapes on the processor whatever the provider: a `Shape` gives its
numbers there, and a `Concat` or `Slice` of a few of them would only travel to the card
and back. It can refuse every node on the processor, but then it refuses nearly every
model whose lengths are open, and names none. So nodes are let be where all they read
are lengths, constants and single numbers, and every other one is named: numbers of the
model are computed on the provider that was asked for, or not at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

LENGTHS = frozenset({"Shape", "Size"})
"""Whatever these read, what they give are lengths."""

SINGLE = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""Element types of the single numbers that a graph can be given: limits, counters, conditions."""

Key = tuple[str, str]
"""What ONNX Runtime tells of a node: its operator and its name."""


def computing(model: ModelProto, left: Iterable[Key]) -> list[Key]:
    """Those of the nodes `left` to the processor that compute more than lengths, each
    once, in the order given.

    A node that is not in the model, because ONNX Runtime made it, counts as computing.
    """
    harmless: dict[Key, bool] = {}
    for key, lengths_only in _judged(model.graph, {}):
        harmless[key] = harmless.get(key, True) and lengths_only
    return [key for key in dict.fromkeys(left) if not harmless.get(key, False)]


def _judged(
    graph: GraphProto, outside: Mapping[str, bool]
) -> Iterator[tuple[Key, bool]]:
    """Every node of a graph and of the graphs inside it, with whether it only reads
    what is `True` of.
    """
    scope = _Scope(dict(outside))
    scope.few.update((t.name, True) for t in graph.initializer)
    scope.few.update((t.values.name, True) for t in graph.sparse_initializer)
    scope.few.update((i.name, _single(i)) for i in graph.input)
    for node in graph.node:
        lengths_only = scope.reads_few(node)
        scope.few.update(
            (name, lengths_only or node.op_type in LENGTHS) for name in node.output
        )
        yield (node.op_type, node.name), lengths_only or node.op_type in LENGTHS
        for attribute in node.attribute:
            for body in _graphs(attribute):
                yield from _judged(body, scope.few)


@dataclass
class _Scope:
    """Values by name: whether they are lengths, constants and single numbers, or what
    comes of those alone.
    """

    few: dict[str, bool] = field(default_factory=dict)

    def reads_few(self, node: NodeProto) -> bool:
        """Whether a node could be computed without a number of the model. One with a
        graph inside is not asked.
        """
        if any(_graphs(attribute) for attribute in node.attribute):
            return False
        return all(self.few.get(name, False) for name in node.input if name)


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    if attribute.type == AttributeProto.GRAPH:
        return [attribute.g]
    return list(attribute.graphs)


def _single(given: ValueInfoProto) -> bool:
    """Whether an input is one number, as its type declares it."""
    type_ = given.type.tensor_type
    return (
        type_.elem_type in SINGLE
        and type_.HasField("shape")
        and all(d.dim_value == 1 for d in type_.shape.dim)
    )
