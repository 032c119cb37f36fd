"""The gates a model passes between lowering and being written.

ONNX's checker in full mode; its strict shape inference, whose types must agree with ours; a load in ONNX
Runtime, last. The model is checked without its weights: in a copy they are inputs, so that nothing large
is read and models of any size pass the same gates. A failure here is a fault of ours, never the user's,
except that the runtime installed may be too old for what was asked.
"""

from collections.abc import Iterable, Iterator

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from specc_onnx.build import Built
from specc_onnx.run import open_bytes


def check(built: Built, *, load: bool = True) -> None:
    """All gates. E0923 when ONNX Runtime cannot load the model; the others are assertions."""
    model = without_weights(built)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise AssertionError(f"the model for {built.target.name} is not valid: {error}") from error
    agree(model)
    if load and built.target.provider == "cpu":
        open_bytes(model.SerializeToString())


def without_weights(built: Built) -> ModelProto:
    """A copy of the model in which weights are inputs."""
    names = {tensor.name for tensor in built.weights.values()}
    source = built.model.graph
    kept = [t for t in source.initializer if t.name not in names]
    extra = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in built.weights.values()]
    graph = GraphProto(
        name=source.name,
        node=source.node,
        input=[*source.input, *extra],
        output=source.output,
        initializer=kept,
        value_info=source.value_info,
    )
    model = ModelProto(ir_version=built.model.ir_version, graph=graph, opset_import=built.model.opset_import)
    model.producer_name = built.model.producer_name
    return model


def agree(model: ModelProto) -> None:
    """ONNX infers no type that contradicts ours. What it does not know is no contradiction."""
    ours = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    inferred = _inferred(model)
    theirs = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
    symbols = set(_words(ours.values())) | set(_words(model.graph.input))
    for name in ours.keys() & theirs.keys():
        clash = _clash(ours[name], theirs[name], symbols)
        assert not clash, f"`{name}`: {clash}"


def _inferred(model: ModelProto) -> ModelProto:
    """The model with the types ONNX infers, where it can without ours; operators not its own it is told.

    Following values as well as shapes (`data_prop`) it sees more, but stumbles in onnx 1.23 over vectors of
    positions that it takes for shapes. Then it starts from our types and refuses what contradicts them.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    foreign = {name for node in model.graph.node if node.domain for name in node.output}
    del bare.graph.value_info[:]
    bare.graph.value_info.extend(v for v in model.graph.value_info if v.name in foreign)
    try:
        return _infer(bare, data_prop=True)
    except onnx.shape_inference.InferenceError:
        pass
    try:
        return _infer(model, data_prop=False)
    except onnx.shape_inference.InferenceError as error:
        raise AssertionError(f"strict shape inference fails: {error}") from error


def _infer(model: ModelProto, data_prop: bool) -> ModelProto:
    made: ModelProto = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=data_prop)
    return made


def _words(values: Iterable[ValueInfoProto]) -> Iterator[str]:
    """The formulas of lengths that occur in types."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                yield dim.dim_param


def _clash(ours: ValueInfoProto, theirs: ValueInfoProto, symbols: set[str]) -> str:
    """How two types of one value contradict each other; "" where they do not."""
    a, b = ours.type.tensor_type, theirs.type.tensor_type
    if b.elem_type and a.elem_type != b.elem_type:
        return f"element type {a.elem_type} here, {b.elem_type} inferred"
    if not b.HasField("shape"):
        return ""
    if len(a.shape.dim) != len(b.shape.dim):
        return f"{len(a.shape.dim)} axes here, {len(b.shape.dim)} inferred"
    for axis, (here, there) in enumerate(zip(a.shape.dim, b.shape.dim, strict=True)):
        if there.HasField("dim_value"):
            # 0 is what ONNX's inference of Attention says for a length it does not know
            wrong = here.HasField("dim_value") and there.dim_value not in (here.dim_value, 0)
            wrong = wrong or (not here.HasField("dim_value") and there.dim_value > 1)
        else:
            wrong = there.dim_param in symbols and there.dim_param != here.dim_param
        if wrong:
            return f"axis {axis} is {_shown(here)} here, {_shown(there)} inferred"
    return ""


def _shown(dim: onnx.TensorShapeProto.Dimension) -> str:
    return dim.dim_param or str(dim.dim_value)
