"""From an IR graph to an ONNX graph: lower every node, drop what nobody reads, name the outputs.

The result holds no weights yet: they are initializers that have a name, a type and a shape. Where their
numbers go is decided when the model is written (`specc_onnx.package`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specc import __version__
from specc.ir.graph import Graph
from specc_onnx import legal
from specc_onnx.elements import CODE
from specc_onnx.emit import CONTRIB, Emitter, Tensor, declare, infos
from specc_onnx.lengths import Lengths
from specc_onnx.table import lower_nodes
from specc_onnx.targets import Target


@dataclass(frozen=True, slots=True)
class Built:
    """A model without its weights.

    `weights` maps each parameter to its initializer in the model (which has dtype and shape, no data).
    `attentions` says, per attention, where its weights can be read (`specc_onnx.taps`).
    """

    model: ModelProto
    graph: Graph
    target: Target
    opset: int
    weights: Mapping[str, TensorProto]
    attentions: tuple[Mapping[str, str], ...]


def build(
    graph: Graph, target: Target, opset: int = legal.USUAL, stored: Mapping[str, str] | None = None
) -> Built:
    """`graph` in ONNX. `stored` names the element type of each weight that is stored in another than it has."""
    legal.check_opset(opset)
    types = {name: value.type for name, value in graph.inputs.items()}
    g = Emitter(target, opset, Lengths(types, graph.facts, graph.least), {*graph.inputs, *graph.outputs})
    for name, value in graph.inputs.items():
        g.tensors[value] = Tensor(name, value.type, value)
    weights = _enter_parameters(g, graph, stored or {})
    lower_nodes(g, graph)
    names = _outputs(g, graph)
    g.bodies[0].nodes = nodes = _live(g.bodies[0].nodes, set(names))
    read = {name for node in nodes for name in inputs_of(node)} | set(names)
    constants = [t for name, t in g.constants.items() if name in read]
    made = GraphProto(
        name=graph.name or "main",
        node=nodes,
        input=[declare(n, t) for n, t in types.items()],
        output=[declare(n, v.type) for n, v in graph.outputs.items()],
        initializer=[*weights.values(), *constants],
        value_info=infos(g.bodies[0], names),
    )
    model = _model(made, opset)
    # a protobuf list copies what is put into it, so the initializers are those of the model
    placed = dict(zip(weights, model.graph.initializer, strict=False))
    return Built(model, graph, target, opset, placed, _attentions(g, nodes))


def _model(made: GraphProto, opset: int) -> ModelProto:
    imports = [helper.make_opsetid("", opset)]
    if any(node.domain == CONTRIB for node in made.node):
        imports.append(helper.make_opsetid(CONTRIB, 1))
    return ModelProto(
        ir_version=legal.ir_version(opset),
        producer_name="specc",
        producer_version=__version__,
        graph=made,
        opset_import=imports,
    )


def _enter_parameters(g: Emitter, graph: Graph, stored: Mapping[str, str]) -> dict[str, TensorProto]:
    """Initializers under the parameters' own names; those stored in another element type are widened."""
    weights: dict[str, TensorProto] = {}
    for name, value in graph.parameters.items():
        sizes = [d.number for d in value.type.shape]
        assert None not in sizes, f"{name} has the open shape {value.type}"
        dtype = stored.get(name, value.type.dtype)
        known = g.unique(name)
        weights[name] = TensorProto(name=known, data_type=CODE[dtype], dims=[d or 0 for d in sizes])
        if dtype != value.type.dtype:
            known = g.node("Cast", known, to=CODE[value.type.dtype])
        g.parameters[name] = g.tensors[value] = Tensor(known, value.type, value)
    return weights


def _outputs(g: Emitter, graph: Graph) -> list[str]:
    """Give the outputs their names, and a node of their own to those that have none or share one."""
    own = {name: node for node in g.bodies[0].nodes for name in node.output}
    renamed: dict[str, str] = {}
    for name, value in graph.outputs.items():
        old = g.tensors[value].name
        assert name not in graph.inputs, f"{name} is an input and an output"
        if old in own and old not in renamed:
            renamed[old] = name
    rename(g.bodies[0].nodes, renamed)
    for note in g.attentions:
        note.update({k: renamed.get(v, v) for k, v in note.items() if k != "scope"})
    for name, value in graph.outputs.items():
        old = g.tensors[value].name
        if renamed.get(old) != name:
            g.site = type(g.site)("outputs")
            source = renamed.get(old, old)
            node = NodeProto(op_type="Identity", name=g.unique(f"outputs/{name}"), input=[source], output=[name])
            g.bodies[0].nodes.append(node)
    return list(graph.outputs)


def rename(nodes: list[NodeProto], names: Mapping[str, str]) -> None:
    """Call values by other names, in these nodes and in the bodies inside them."""
    for node in nodes:
        for field in (node.input, node.output):
            for n, name in enumerate(field):
                if name in names:
                    field[n] = names[name]
        for body in bodies_of(node):
            for result in body.output:
                result.name = names.get(result.name, result.name)
            rename(list(body.node), names)


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g


def inputs_of(node: NodeProto) -> Iterator[str]:
    """Every name a node reads, also from within its bodies."""
    yield from node.input
    for body in bodies_of(node):
        for inner in body.node:
            yield from inputs_of(inner)
        for result in body.output:
            yield result.name


def _live(nodes: list[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """The nodes that `wanted` is made from."""
    read, kept = set(wanted), []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(inputs_of(node))
    return kept[::-1]


def _attentions(g: Emitter, nodes: list[NodeProto]) -> tuple[Mapping[str, str], ...]:
    """The notes on attentions that are still there."""
    there = {name for node in nodes for name in node.output}
    return tuple(n for n in g.attentions if n.get("guard", n.get("node", n.get("weights"))) in there)
