"""Verify a built ONNX model with ONNX's checker, with type inference for every value, and by
loading it in ONNX Runtime.

The verifier checks a copy in which weights are inputs, so models of any size can be checked. A
model fails verification because of a bug in specc, or because the runtime is too old for the
requested opset.

ONNX's shape rules are applied node by node with concrete axis sizes and folded integer constants,
because whole-graph shape inference loses symbolic dimensions at the first `Reshape`. Rules that
ONNX lacks are in `specc_onnx.write.onnx_shape_rules`. Data-dependent dimensions remain unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError, infer_node_outputs

from specc.analysis.length_limits import find_max_lengths
from specc.ir.types import ShapeError
from specc_onnx.lower.subgraphs import make_value_info
from specc_onnx.ort_session import open_serialized_ort_model
from specc_onnx.write.onnx_graph import OnnxBuildResult
from specc_onnx.write.onnx_shape_rules import (
    CONTRIB_SHAPE_RULES,
    DATA_DEPENDENT_OPS,
    SHAPE_CHECKS,
    fold_node,
    get_node_attribute,
    read_constant_tensor,
)
from specc_onnx.write.onnx_value_types import (
    InferredTypes,
    InvalidModelError,
    OperandMismatchError,
    choose_distinct_dim_sizes,
    describe_type_conflict,
    format_value_type,
    has_unknown_length,
    join_branch_types,
    make_tensor_type,
    read_shape,
    resolve_symbolic_dims,
)

NODE_ERRORS = (
    *(OperandMismatchError, ShapeError, InferenceError, ValidationError, ValueError, IndexError),
)
"""Exceptions that a type inference rule may raise for a node with invalid operands."""


def infer_onnx_value_types(
    model: ModelProto, lengths: Mapping[str, int], scalars: Mapping[str, int]
) -> InferredTypes:
    """Infer the type of every value in a model. `lengths` maps symbolic dimensions to their sizes,
    and `scalars` maps names of scalar inputs to their values. Raise InvalidModelError if a node has
    invalid operands or a declared type is wrong.
    """
    opsets = {o.domain: o.version for o in model.opset_import}
    inferred_types = InferredTypes(lengths=lengths, opsets=opsets)
    inferred_types.add_declared_types((*model.graph.value_info, *model.graph.output))
    for value in model.graph.input:
        elements = np.array(scalars[value.name]) if value.name in scalars else None
        inferred_types.add_value(value.name, resolve_symbolic_dims(value.type, lengths), elements)
    infer_graph_types(inferred_types, model.graph)
    inferred_types.check_unknown_lengths()
    return inferred_types


def infer_graph_types(inferred_types: InferredTypes, graph: GraphProto) -> None:
    """Infer the types of a graph's initializers and node results from its input types."""
    input_names = {value.name for value in graph.input}
    for tensor in (t for t in graph.initializer if t.name not in input_names):
        inferred_types.add_value(
            tensor.name,
            make_tensor_type(tensor.data_type, tuple(tensor.dims)),
            read_constant_tensor(tensor),
        )
    for node in graph.node:
        try:
            _infer_node(inferred_types, node)
        except NODE_ERRORS as error:
            raise InvalidModelError(f"node `{node.name}` ({node.op_type}): {error}") from error


def _infer_node(inferred_types: InferredTypes, node: NodeProto) -> None:
    contrib_rule = CONTRIB_SHAPE_RULES.get((node.domain, node.op_type), _infer_by_schema)
    types = CONTROL_FLOW_RULES.get(node.op_type, contrib_rule)(inferred_types, node)
    if (check := SHAPE_CHECKS.get(node.op_type)) is not None:
        check(inferred_types, node, types)
    operand_shapes = [inferred_types.get_static_shape(n) for n in node.input if n]
    is_static = node.op_type not in DATA_DEPENDENT_OPS and None not in operand_shapes
    # ONNX's shape inference silently skips some invalid nodes.
    if is_static and any(has_unknown_length(t) for t in types):
        shapes = ", ".join(map(str, operand_shapes))
        raise OperandMismatchError(f"no result shape can be inferred from operand shapes {shapes}")
    operands = [inferred_types.constants.get(n) for n in node.input]
    elements = fold_node(node, operands, operand_shapes[0] if operand_shapes else None)
    for n, name in enumerate(filter(None, node.output)):
        inferred_types.add_value(name, types[n], elements if n == 0 else None)


def _infer_by_schema(inferred_types: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Return a node's result types, inferred by the ONNX schema of its operator."""
    schema = _get_schema(node.op_type, inferred_types.opsets[node.domain], node.domain)
    types = {n: inferred_types.types[n] for n in node.input if n}
    data = {
        n: numpy_helper.from_array(inferred_types.constants[n])
        for n in node.input
        if n in inferred_types.constants
    }
    results = infer_node_outputs(
        schema, node, types, data, opset_imports=inferred_types.opset_imports
    )
    return [results.get(n, TypeProto()) for n in node.output if n]


# `get_schema` is cached, because each call copies the schema with the documentation
_get_schema = cache(defs.get_schema)


def _infer_body(
    inferred_types: InferredTypes, body: GraphProto, types: Sequence[TypeProto]
) -> list[TypeProto]:
    """Infer the types in a subgraph whose inputs have `types`. Return the output types."""
    inferred_types.add_declared_types((*body.input, *body.value_info, *body.output))
    for value, type in zip(body.input, types, strict=True):
        inferred_types.add_value(value.name, type)
    infer_graph_types(inferred_types, body)
    return [inferred_types.types[o.name] for o in body.output]


def _infer_if(inferred_types: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer the result types of an `If`. They are the types of the selected branch, or the joined
    types of both branches if the condition is unknown.
    """
    condition = inferred_types.constants.get(node.input[0])
    is_then_branch = None if condition is None else bool(condition.all())
    is_outer_reached, branch_types = inferred_types.is_reached, []
    for name, branch in (("then", True), ("else", False)):
        inferred_types.is_reached = is_outer_reached and is_then_branch is branch
        branch_types.append(
            _infer_body(inferred_types, get_node_attribute(node, f"{name}_branch"), [])
        )
    inferred_types.is_reached = is_outer_reached
    then_types, else_types = branch_types
    if is_then_branch is not None:
        return then_types if is_then_branch else else_types
    return [join_branch_types(a, b) for a, b in zip(then_types, else_types, strict=True)]


def _infer_scan(inferred_types: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer the output types of a `Scan`. Loop-carried values keep their types. Scan outputs get a
    first axis whose size is the number of iterations.
    """
    count = get_node_attribute(node, "num_scan_inputs")
    carry_names, scanned_names = list(node.input)[:-count], list(node.input)[-count:]
    axes = get_node_attribute(node, "scan_input_axes", [0] * count)
    slices, lengths = [], set()
    for name, axis in zip(scanned_names, axes, strict=True):
        shape = inferred_types.get_shape(name)
        if shape is not None:
            lengths.add(shape[axis])
            shape = (*shape[:axis], *shape[axis:][1:])
        slices.append(make_tensor_type(inferred_types.get_element_type(name), shape))
    if len(lengths - {None}) > 1:
        raise OperandMismatchError(f"scanned sequences have different lengths: {lengths}")
    initial_types = [inferred_types.types[n] for n in carry_names]
    final_types = _infer_body(
        inferred_types, get_node_attribute(node, "body"), [*initial_types, *slices]
    )
    _check_carries(initial_types, final_types)
    length = lengths.pop() if len(lengths) == 1 else None
    return [
        *final_types[: len(carry_names)],
        *(_stack_type(t, length) for t in final_types[len(carry_names) :]),
    ]


def _infer_loop(inferred_types: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer the output types of a `Loop` from its first iteration. Loop-carried values may grow, so
    an axis size is known only if it is the same after an iteration. The symbolic dimensions in the
    body are computed from the loop-carried values.
    """
    body = get_node_attribute(node, "body")
    loop_counters, initial_types = (
        list(body.input)[:2],
        [inferred_types.types[n] for n in node.input[2:]],
    )
    outer_lengths, inferred_types.lengths = (
        inferred_types.lengths,
        _read_symbol_lengths(body.input[2:], initial_types),
    )
    outer_unknown, inferred_types.unknown_lengths = inferred_types.unknown_lengths, []
    if inferred_types.is_reached:
        inferred_types.constants[loop_counters[0].name] = np.array(0)
    final_types = _infer_body(
        inferred_types, body, [*(v.type for v in loop_counters), *initial_types]
    )[1:]
    inferred_types.check_unknown_lengths()
    inferred_types.lengths, inferred_types.unknown_lengths = outer_lengths, outer_unknown
    # The results of the first iteration become the inputs of the second iteration. In it,
    # loop-carried values with a common symbolic dimension must still agree.
    next_lengths = _read_symbol_lengths(body.input[2:], final_types)
    _check_carries(
        [resolve_symbolic_dims(v.type, next_lengths) for v in body.input[2:]], final_types
    )
    carry_types = [
        join_branch_types(a, b) for a, b in zip(initial_types, final_types, strict=False)
    ]
    iterations = _count_iterations(inferred_types, node, body)
    return [*carry_types, *(_stack_type(t, iterations) for t in final_types[len(initial_types) :])]


def _count_iterations(
    inferred_types: InferredTypes, node: NodeProto, body: GraphProto
) -> int | None:
    """Return the trip count of a `Loop` without early exit, or None for other loops."""
    trip_count = inferred_types.constants.get(node.input[0])
    condition = body.input[1].name
    is_condition_unchanged = any(
        n.op_type == "Identity" and n.input[0] == condition
        for n in body.node
        if body.output[0].name in n.output
    )
    initial_condition = inferred_types.constants.get(node.input[1])
    if (
        trip_count is None
        or initial_condition is None
        or not (is_condition_unchanged and initial_condition.all() and inferred_types.is_reached)
    ):
        return None
    return int(trip_count)


def _read_symbol_lengths(
    values: Iterable[ValueInfoProto], types: Iterable[TypeProto]
) -> dict[str, int]:
    """Return the sizes of symbolic dimensions, found by comparing declared and inferred types."""
    lengths_by_symbol: dict[str, int] = {}
    for value, type in zip(values, types, strict=False):
        dims = value.type.tensor_type.shape.dim
        for dim, length in zip(dims, read_shape(type) or (), strict=False):
            if dim.dim_param.isidentifier() and length is not None:
                lengths_by_symbol.setdefault(dim.dim_param, length)
    return lengths_by_symbol


def _check_carries(initial_types: Sequence[TypeProto], final_types: Sequence[TypeProto]) -> None:
    for n, (a, b) in enumerate(zip(initial_types, final_types, strict=False)):
        if reason := describe_type_conflict(a, b):
            raise OperandMismatchError(f"carry {n} changes: {reason}")


def _stack_type(element: TypeProto, length: int | None) -> TypeProto:
    shape = read_shape(element)
    return make_tensor_type(
        element.tensor_type.elem_type, None if shape is None else (length, *shape)
    )


CONTROL_FLOW_RULES: Mapping[str, Callable[[InferredTypes, NodeProto], list[TypeProto]]] = {
    "If": _infer_if,
    "Scan": _infer_scan,
    "Loop": _infer_loop,
}
"""Type inference rules of operators with subgraphs."""


def verify_built_model(built_model: OnnxBuildResult, *, verify_load: bool = True) -> None:
    """Verify a model. If `verify_load` is True and the target is a CPU, also load the model in ONNX
    Runtime. Raise E0923 if ONNX Runtime cannot load the model, and InvalidModelError if another
    check fails.
    """
    model = convert_weights_to_inputs(built_model)
    verify_model_statically(built_model, model)
    if verify_load and built_model.target.provider == "cpu":
        open_serialized_ort_model(model.SerializeToString())


def verify_model_statically(built_model: OnnxBuildResult, model: ModelProto) -> InferredTypes:
    """Run ONNX's checker and `check_value_types` on `model`, a result of
    `convert_weights_to_inputs`. Return the inferred types of the model's values.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InvalidModelError(
            f"the model for {built_model.target.name} is not valid: {error}"
        ) from error
    return check_value_types(built_model, model)


def convert_weights_to_inputs(built_model: OnnxBuildResult) -> ModelProto:
    """Return a copy of the model in which weights are inputs."""
    names = {tensor.name for tensor in built_model.weights.values()}
    source_graph = built_model.model.graph
    constants = [t for t in source_graph.initializer if t.name not in names]
    weight_inputs = [
        helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in built_model.weights.values()
    ]
    graph = GraphProto(
        name=source_graph.name,
        node=source_graph.node,
        input=[*source_graph.input, *weight_inputs],
        output=source_graph.output,
        initializer=constants,
        value_info=source_graph.value_info,
    )
    return ModelProto(
        ir_version=built_model.model.ir_version,
        graph=graph,
        opset_import=built_model.model.opset_import,
        producer_name=built_model.model.producer_name,
    )


def check_value_types(built_model: OnnxBuildResult, model: ModelProto) -> InferredTypes:
    """Check that inputs, outputs and weights have the types in the IR graph. Check that the
    declared types of all values agree with the types that are inferred when all axis sizes are
    distinct. Return the inferred types.
    """
    for value in (*model.graph.input, *model.graph.output):
        expected_info = make_value_info(value.name, built_model.types[value.name])
        if expected_info.type != value.type:
            raise InvalidModelError(
                f"`{value.name}` is {format_value_type(value)} in the model, "
                f"{format_value_type(expected_info)} in the graph"
            )
    inferred_types = _infer_at_lengths(built_model, model, _choose_lengths(built_model, {}))
    long_lengths = _choose_lengths(built_model, built_model.branch_thresholds)
    # The model may take other branches for long inputs, so types are also inferred with large axis
    # sizes.
    if built_model.branch_thresholds and all(
        long_lengths.get(s, 0) > n for s, n in built_model.branch_thresholds.items()
    ):
        inferred_types = _infer_at_lengths(built_model, model, long_lengths)
    return inferred_types


def _choose_lengths(
    built_model: OnnxBuildResult, lower_limits: Mapping[str, int]
) -> dict[str, int]:
    graph = built_model.graph
    types = (*built_model.types.values(), *(v.type for v in graph.inputs.values()))
    dims = [d for t in types for d in t.shape]
    # Trial sizes must not exceed the number of position embeddings.
    max_lengths = find_max_lengths(graph)
    return choose_distinct_dim_sizes(
        dims, graph, lower_limits, max_lengths if lower_limits else None
    )


def _infer_at_lengths(
    built_model: OnnxBuildResult, model: ModelProto, lengths: Mapping[str, int]
) -> InferredTypes:
    scalars = {
        name: lengths[symbol]
        for symbol, name in built_model.length_inputs.items()
        if symbol in lengths
    }
    return infer_onnx_value_types(model, lengths, scalars)
