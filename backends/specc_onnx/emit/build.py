"""From an IR graph to an ONNX graph: lower every node, drop what nobody reads, name the
outputs.

The result holds no weights yet: they are initializers that have a name, a type and a
shape. Where their numbers go is decided when the model is written
(`specc_onnx.write.package`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto, helper

from specc.ir.graph import Graph, Value
from specc.ir.target import Target
from specc.ir.types import Type
from specc.passes.measure.limits import limits
from specc.version import __version__
from specc_onnx.emit.names import domains_of, rename, settled
from specc_onnx.lower import legal
from specc_onnx.lower.elements import CODE
from specc_onnx.lower.emitter import CONTRIB, Emitter, Site, Tensor, declare, infos
from specc_onnx.lower.lengths import Lengths
from specc_onnx.lower.reading import inputs_of, live
from specc_onnx.lower.table import lower_nodes

NAMED = frozenset({"node", "guard", "weights", "blocks", "mask", "added"})
"""The entries of a note on an attention that are names of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model without its weights.

    `weights` maps each parameter that is stored to its initializer in the model (dtype
    and shape, no data). `attentions` says, per attention, where its weights can be
    read: `scope` and `dtype`, then `weights` (a value) or `node` (the result of an
    `Attention`), with `guard` where that lies in an `If`. `types` are those that the
    graph gives to inputs, results and stored weights, by their names in the model;
    `told` the inputs whose number is a length, by the symbol of that; `beyond` lengths
    above which the model takes another way than below.
    """

    model: ModelProto
    graph: Graph
    target: Target
    opset: int
    weights: Mapping[str, TensorProto]
    attentions: tuple[Mapping[str, str], ...]
    types: Mapping[str, Type]
    told: Mapping[str, str]
    beyond: Mapping[str, int]


def build(
    graph: Graph,
    target: Target,
    opset: int = legal.USUAL,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> Built:
    """`graph` in ONNX.

    `stored` names the element type of each weight that is stored in another than it has
    in the graph; `ties` maps a parameter to the one whose numbers it shares, which is
    stored in its place.
    """
    legal.check_opset(opset)
    types = {name: value.type for name, value in graph.inputs.items()}
    g = Emitter(
        target,
        opset,
        Lengths(types, graph.facts, graph.least),
        {*graph.inputs, *graph.outputs},
        most={symbol: limit.most for symbol, limit in limits(graph).items()},
        home=graph.name,
    )
    for name, value in graph.inputs.items():
        g.tensors[value] = Tensor(name, value.type, value)
        g.padded[value] = graph.input_facts[name].keep
    weights = enter_parameters(g, graph.parameters, stored or {}, ties or {})
    lower_nodes(g, graph)
    return finished(
        g, graph, types, {n: g.tensors[v] for n, v in graph.outputs.items()}, weights
    )


def finished(
    g: Emitter,
    graph: Graph,
    inputs: Mapping[str, Type],
    outputs: Mapping[str, Tensor],
    weights: Mapping[str, TensorProto],
) -> Built:
    """The model of what has been written: names settled, the unread dropped. `graph` is
    what it was made from.
    """
    bearers = _outputs(g, inputs, outputs)
    taken = {*inputs, *outputs, *g.constants, *(t.name for t in weights.values())}
    names = _name_again(g, bearers, taken)
    nodes = g.bodies[0].nodes
    read = {name for node in nodes for name in inputs_of(node)}
    constants = [t for name, t in g.constants.items() if name in read]
    made = GraphProto(
        name=graph.name or "main",
        node=nodes,
        input=[declare(n, t) for n, t in inputs.items()],
        output=[declare(n, t.type) for n, t in outputs.items()],
        initializer=[*weights.values(), *constants],
        value_info=infos(g.bodies[0], list(outputs)),
    )
    model = _model(made, g.opset)
    # a protobuf list copies what is put into it, so the initializers are those of the
    # model
    placed = dict(zip(weights, model.graph.initializer, strict=False))
    types = {**inputs, **{n: t.type for n, t in outputs.items()}, **g.stored}
    return Built(
        model=model,
        graph=graph,
        target=g.target,
        opset=g.opset,
        weights=placed,
        attentions=_attentions(g, names),
        types=types,
        told=g.lengths.numbers,
        beyond=g.beyond,
    )


def _model(made: GraphProto, opset: int) -> ModelProto:
    imports = [helper.make_opsetid("", opset)]
    if CONTRIB in domains_of(made.node):
        imports.append(helper.make_opsetid(CONTRIB, 1))
    return ModelProto(
        ir_version=legal.ir_version(opset),
        producer_name="specc",
        producer_version=__version__,
        graph=made,
        opset_import=imports,
    )


def enter_parameters(
    g: Emitter,
    parameters: Mapping[str, Value],
    stored: Mapping[str, str],
    ties: Mapping[str, str],
) -> dict[str, TensorProto]:
    """Initializers under the parameters' own names; those stored in another element
    type are widened.
    """
    weights: dict[str, TensorProto] = {}
    for name, value in parameters.items():
        own = ties.get(name, name)
        dtype = stored.get(own, value.type.dtype)
        if own not in weights:
            sizes = [d.number for d in value.type.shape]
            assert None not in sizes, f"{name} has the open shape {value.type}"
            weights[own] = TensorProto(
                name=g.unique(own), data_type=CODE[dtype], dims=[d or 0 for d in sizes]
            )
        known = weights[own].name
        g.stored[known] = Type(dtype, value.type.shape)
        if dtype != value.type.dtype:
            # a weight is widened in the scope that it belongs to
            g.site = Site((name.rpartition(".")[0],))
            wide = g.node("Cast", known, to=CODE[value.type.dtype])
            g.narrow[wide], known = known, wide
        g.parameters[name] = g.tensors[value] = Tensor(known, value.type, value)
    return weights


def _outputs(
    g: Emitter, inputs: Mapping[str, Type], outputs: Mapping[str, Tensor]
) -> dict[str, str]:
    """Which values are to bear the outputs' names. Where there is no node of its own,
    one is made.
    """
    own = {name for node in g.bodies[0].nodes for name in node.output}
    names: dict[str, str] = {}
    g.site = Site(("outputs",))
    for name, tensor in outputs.items():
        assert name not in inputs, f"{name} is an input and an output"
        result = tensor.name
        if result not in own or result in names:
            result = g.alias(result, g.place(name))
        names[result] = name
    return names


def _name_again(
    g: Emitter, outputs: Mapping[str, str], taken: set[str]
) -> dict[str, str]:
    """Drop what nobody reads and give the rest its final names; gives them by the names
    of before.
    """
    main = g.bodies[0]
    main.nodes = live(main.nodes, outputs)
    names = settled(main.nodes, outputs, g.wishes, taken)
    rename(main.nodes, names)
    main.types = {
        names[name]: type for name, type in main.types.items() if name in names
    }
    return names


def _attentions(g: Emitter, names: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    """The notes on attentions that are still there, in final names."""
    return tuple(
        {key: names[value] if key in NAMED else value for key, value in note.items()}
        for note in g.attentions
        if all(note[key] in names for key in NAMED & note.keys())
    )
