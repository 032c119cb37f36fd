"""Verify a built ONNX model: types of all values, and that ONNX Runtime loads it.

ONNX's checker in full mode; the shapes of every value, found anew from the nodes and
compared with ours; a load in ONNX Runtime, last. The model is checked without its
weights: in a copy they are inputs, so that nothing large is read and models of any size
pass the same gates. A failure here is a fault of ours, never the user's, except that
the runtime installed may be too old for what was asked.
"""

from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from specc.analysis.length_limits import find_length_limits
from specc_onnx.emit.onnx_graph import BuiltModel
from specc_onnx.lower.emitter import make_value_info
from specc_onnx.ort_session import open_ort_model_bytes
from specc_onnx.verifier.onnx_value_types import (
    InferredTypes,
    UnsoundModelError,
    choose_distinct_lengths,
)
from specc_onnx.verifier.shape_inference import infer_model_types


def verify_built_model(built: BuiltModel, *, load: bool = True) -> None:
    """All gates. E0923 when ONNX Runtime cannot load the model; Unsound where the model
    is not what was meant.
    """
    model = make_weights_inputs(built)
    verify_without_runtime(built, model)
    if load and built.target.provider == "cpu":
        open_ort_model_bytes(model.SerializeToString())


def verify_without_runtime(built: BuiltModel, model: ModelProto) -> InferredTypes:
    """The gates that need no runtime, on the model without its weights. Gives what is
    known of every value.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise UnsoundModelError(
            f"the model for {built.target.name} is not valid: {error}"
        ) from error
    return check_value_types(built, model)


def make_weights_inputs(built: BuiltModel) -> ModelProto:
    """A copy of the model in which weights are inputs."""
    names = {tensor.name for tensor in built.weights.values()}
    source = built.model.graph
    kept = [t for t in source.initializer if t.name not in names]
    extra = [
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in built.weights.values()
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
        ir_version=built.model.ir_version, graph=graph, opset_import=built.model.opset_import
    )
    model.producer_name = built.model.producer_name
    return model


def check_value_types(built: BuiltModel, model: ModelProto) -> InferredTypes:
    """Every type in the model is the one that the graph gives, and the one that its
    nodes compute; gives the latter.

    Inputs, results and weights are compared as they stand, with their symbols; then
    every value of every node, at lengths that are all different.
    """
    for value in (*model.graph.input, *model.graph.output):
        ours = make_value_info(value.name, built.types[value.name])
        if ours.type != value.type:
            raise UnsoundModelError(
                f"`{value.name}` is {_format_value_type(value)} in the model, "
                f"{_format_value_type(ours)} in the graph"
            )
    usual = _choose_lengths(built, {})
    found = _infer_at_lengths(built, model, usual)
    longer = _choose_lengths(built, built.beyond)
    # A long text may go another way: that is followed as well, if it can be so long.
    if built.beyond and all(longer.get(s, 0) > n for s, n in built.beyond.items()):
        found = _infer_at_lengths(built, model, longer)
    return found


def _choose_lengths(built: BuiltModel, beyond: Mapping[str, int]) -> dict[str, int]:
    graph = built.graph
    types = (*built.types.values(), *(v.type for v in graph.inputs.values()))
    dims = [d for t in types for d in t.shape]
    # A table of positions has no row for a length that is only tried.
    most = {symbol: limit.most for symbol, limit in find_length_limits(graph).items()}
    return choose_distinct_lengths(dims, graph, beyond, most if beyond else None)


def _infer_at_lengths(
    built: BuiltModel, model: ModelProto, env: Mapping[str, int]
) -> InferredTypes:
    told = {name: env[symbol] for symbol, name in built.told.items() if symbol in env}
    return infer_model_types(model, env, told)


def _format_value_type(value: ValueInfoProto) -> str:
    """A type for people."""
    tensor = value.type.tensor_type
    dims = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}[{dims}]"
