"""The gates a model passes between lowering and being written.

ONNX's checker in full mode; the shapes of every value, found anew from the nodes and
compared with ours; a load in ONNX Runtime, last. The model is checked without its
weights: in a copy they are inputs, so that nothing large is read and models of any size
pass the same gates. A failure here is a fault of ours, never the user's, except that
the runtime installed may be too old for what was asked.
"""

from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from specc.passes.measure.limits import limits
from specc_onnx.emit.build import Built
from specc_onnx.gate.shapes import follow
from specc_onnx.gate.types import Found, Unsound, lengths
from specc_onnx.lower.emitter import declare
from specc_onnx.run import open_bytes


def check(built: Built, *, load: bool = True) -> None:
    """All gates. E0923 when ONNX Runtime cannot load the model; Unsound where the model
    is not what was meant.
    """
    model = without_weights(built)
    sound(built, model)
    if load and built.target.provider == "cpu":
        open_bytes(model.SerializeToString())


def sound(built: Built, model: ModelProto) -> Found:
    """The gates that need no runtime, on the model without its weights. Gives what is
    known of every value.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Unsound(
            f"the model for {built.target.name} is not valid: {error}"
        ) from error
    return agree(built, model)


def without_weights(built: Built) -> ModelProto:
    """A copy of the model in which weights are inputs."""
    names = {tensor.name for tensor in built.weights.values()}
    source = built.model.graph
    kept = [t for t in source.initializer if t.name not in names]
    extra = [
        helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in built.weights.values()
    ]
    graph = GraphProto(
        name=source.name,
        node=source.node,
        input=[*source.input, *extra],
        output=source.output,
        initializer=kept,
        value_info=source.value_info,
    )
    model = ModelProto(
        ir_version=built.model.ir_version,
        graph=graph,
        opset_import=built.model.opset_import,
    )
    model.producer_name = built.model.producer_name
    return model


def agree(built: Built, model: ModelProto) -> Found:
    """Every type in the model is the one that the graph gives, and the one that its
    nodes compute; gives the latter.

    Inputs, results and weights are compared as they stand, with their symbols; then
    every value of every node, at lengths that are all different.
    """
    for value in (*model.graph.input, *model.graph.output):
        ours = declare(value.name, built.types[value.name])
        if ours.type != value.type:
            raise Unsound(
                f"`{value.name}` is {_shown(value)} in the model, {_shown(ours)} in the graph"
            )
    usual = _lengths(built, {})
    found = _at(built, model, usual)
    longer = _lengths(built, built.beyond)
    # A long text may go another way: that is followed as well, if it can be so long.
    if built.beyond and all(longer.get(s, 0) > n for s, n in built.beyond.items()):
        found = _at(built, model, longer)
    return found


def _lengths(built: Built, beyond: Mapping[str, int]) -> dict[str, int]:
    graph = built.graph
    types = (*built.types.values(), *(v.type for v in graph.inputs.values()))
    dims = [d for t in types for d in t.shape]
    # A table of positions has no row for a length that is only tried.
    most = {symbol: limit.most for symbol, limit in limits(graph).items()}
    return lengths(dims, graph, beyond, most if beyond else None)


def _at(built: Built, model: ModelProto, env: Mapping[str, int]) -> Found:
    told = {name: env[symbol] for symbol, name in built.told.items() if symbol in env}
    return follow(model, env, told)


def _shown(value: ValueInfoProto) -> str:
    """A type for people."""
    tensor = value.type.tensor_type
    dims = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}[{dims}]"
