"""Verify a built ONNX model: ONNX's checker, the type of every value, a load in ONNX Runtime.

A copy is checked in which weights are inputs, so models of any size can be checked. A failure is
a bug of specc, or a runtime that is too old for the requested opset.

ONNX's shape rules are applied node by node with concrete lengths and with folded integer
constants, because whole-graph inference loses symbols after the first `Reshape`. Rules that ONNX
lacks are in `specc_onnx.verifier.shape_rules`. Data-dependent lengths stay unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

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
from specc_onnx.emit.onnx_graph import BuiltModel
from specc_onnx.lower.onnx_nodes import make_value_info
from specc_onnx.ort_session import open_ort_model_bytes
from specc_onnx.verifier.onnx_value_types import (
    InferredTypes,
    OperandMismatchError,
    UnsoundModelError,
    choose_distinct_lengths,
    find_type_conflict,
    has_unknown_length,
    join_types,
    make_tensor_type,
    read_shape,
    substitute_type_lengths,
)
from specc_onnx.verifier.shape_rules import (
    CONTRIB_SHAPE_RULES,
    DATA_DEPENDENT_OPS,
    SHAPE_CHECKS,
    fold_node,
    get_node_attribute,
    read_constant_tensor,
)

NODE_ERRORS = (
    *(OperandMismatchError, ShapeError, InferenceError, ValidationError, ValueError, IndexError),
)
"""Errors of rules for nodes with invalid operands."""


def infer_model_types(
    model: ModelProto, env: Mapping[str, int], scalars: Mapping[str, int]
) -> InferredTypes:
    """Infer the type of every value at the input lengths `env`; `scalars` are values of scalar
    inputs. Raise UnsoundModelError if a node has invalid operands or a declared type is wrong.
    """
    opsets = {o.domain: o.version for o in model.opset_import}
    found = InferredTypes(env=env, opsets=opsets)
    found.add_declared_types((*model.graph.value_info, *model.graph.output))
    for value in model.graph.input:
        numbers = np.array(scalars[value.name]) if value.name in scalars else None
        found.add_value(value.name, substitute_type_lengths(value.type, env), numbers)
    infer_graph_types(found, model.graph)
    found.check_unknown_lengths()
    return found


def infer_graph_types(found: InferredTypes, graph: GraphProto) -> None:
    """Infer the initializers and nodes of a graph whose inputs are known."""
    given = {value.name for value in graph.input}
    for tensor in (t for t in graph.initializer if t.name not in given):
        found.add_value(
            tensor.name,
            make_tensor_type(tensor.data_type, tuple(tensor.dims)),
            read_constant_tensor(tensor),
        )
    for node in graph.node:
        try:
            _infer_node(found, node)
        except NODE_ERRORS as error:
            raise UnsoundModelError(f"node `{node.name}` ({node.op_type}): {error}") from error


def _infer_node(found: InferredTypes, node: NodeProto) -> None:
    types = _infer_results(found, node)
    if (check := SHAPE_CHECKS.get(node.op_type)) is not None:
        check(found, node, types)
    sizes = [found.get_static_shape(n) for n in node.input if n]
    if node.op_type not in DATA_DEPENDENT_OPS and None not in sizes:
        _check_lengths_known(types, sizes)
    operands = [found.constants.get(n) for n in node.input]
    numbers = fold_node(node, operands, sizes[0] if sizes else None)
    for n, name in enumerate(filter(None, node.output)):
        found.add_value(name, types[n], numbers if n == 0 else None)


def _check_lengths_known(
    results: Sequence[TypeProto], operand_shapes: Sequence[list[int] | None]
) -> None:
    """Raise OperandMismatchError for unknown lengths: ONNX's inference silently gives up on invalid
    operands.
    """
    if any(has_unknown_length(t) for t in results):
        raise OperandMismatchError(f"no shape follows from {', '.join(map(str, operand_shapes))}")


def _infer_results(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Return the result types of a node by the rule for control flow, contrib ops or ONNX's."""
    if node.op_type in CONTROL_FLOW_RULES:
        return CONTROL_FLOW_RULES[node.op_type](found, node)
    rule = CONTRIB_SHAPE_RULES.get((node.domain, node.op_type), _infer_by_schema)
    return rule(found, node)


def _infer_by_schema(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Return the result types by the shape inference of the ONNX schema."""
    schema = defs.get_schema(node.op_type, found.opsets[node.domain], node.domain)
    types = {n: found.types[n] for n in node.input if n}
    data = {
        n: numpy_helper.from_array(found.constants[n]) for n in node.input if n in found.constants
    }
    opsets = [helper.make_opsetid(d, v) for d, v in found.opsets.items()]
    made = infer_node_outputs(schema, node, types, data, opset_imports=opsets)
    return [made.get(n, TypeProto()) for n in node.output if n]


# --- control flow ---------------------------------------------------------------------


def _infer_body(
    found: InferredTypes, body: GraphProto, types: Sequence[TypeProto]
) -> list[TypeProto]:
    """Infer a body whose inputs have these types; return the types of its outputs."""
    found.add_declared_types((*body.input, *body.value_info, *body.output))
    for value, type in zip(body.input, types, strict=True):
        found.add_value(value.name, type)
    infer_graph_types(found, body)
    return [found.types[o.name] for o in body.output]


def _infer_if(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer both branches; return the types of the branch taken, or those common to both."""
    known = found.constants.get(node.input[0])
    taken = None if known is None else bool(known.all())
    before, made = found.is_reached, []
    for name, branch in (("then", True), ("else", False)):
        found.is_reached = before and taken is branch
        made.append(_infer_body(found, get_node_attribute(node, f"{name}_branch"), []))
    found.is_reached = before
    then, other = made
    if taken is not None:
        return then if taken else other
    return [join_types(a, b) for a, b in zip(then, other, strict=True)]


def _infer_scan(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer a `Scan`: carries keep their types; outputs get the scanned length in front."""
    count = get_node_attribute(node, "num_scan_inputs")
    carried, scanned = list(node.input)[:-count], list(node.input)[-count:]
    axes = get_node_attribute(node, "scan_input_axes", [0] * count)
    rows, lengths = [], set()
    for name, axis in zip(scanned, axes, strict=True):
        shape = found.get_shape(name)
        if shape is not None:
            lengths.add(shape[axis])
            shape = (*shape[:axis], *shape[axis:][1:])
        rows.append(make_tensor_type(found.get_element_type(name), shape))
    if len(lengths - {None}) > 1:
        raise OperandMismatchError(f"scanned sequences have different lengths: {lengths}")
    starts = [found.types[n] for n in carried]
    ends = _infer_body(found, get_node_attribute(node, "body"), [*starts, *rows])
    _check_carries(starts, ends)
    length = lengths.pop() if len(lengths) == 1 else None
    return [*ends[: len(carried)], *(_stack_type(t, length) for t in ends[len(carried) :])]


def _infer_loop(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Infer a `Loop` from its first iteration. Carries may grow, so only lengths equal before and
    after it are known. Symbols of the body are bound by the carries.
    """
    body = get_node_attribute(node, "body")
    counters, starts = list(body.input)[:2], [found.types[n] for n in node.input[2:]]
    outside, found.env = found.env, _read_symbol_lengths(body.input[2:], starts)
    before, found.unknown_lengths = found.unknown_lengths, []
    if found.is_reached:
        found.constants[counters[0].name] = np.array(0)
    ends = _infer_body(found, body, [*(v.type for v in counters), *starts])[1:]
    found.check_unknown_lengths()
    found.env, found.unknown_lengths = outside, before
    # the second iteration gets these results: carries with a common symbol must still agree
    next_lengths = _read_symbol_lengths(body.input[2:], ends)
    _check_carries([substitute_type_lengths(v.type, next_lengths) for v in body.input[2:]], ends)
    last = [join_types(a, b) for a, b in zip(starts, ends, strict=False)]
    iterations = _count_iterations(found, node, body)
    return [*last, *(_stack_type(t, iterations) for t in ends[len(starts) :])]


def _count_iterations(found: InferredTypes, node: NodeProto, body: GraphProto) -> int | None:
    """Return the trip count of a `Loop` without an early exit, else None."""
    most = found.constants.get(node.input[0])
    condition = body.input[1].name
    is_constant = any(
        n.op_type == "Identity" and n.input[0] == condition
        for n in body.node
        if body.output[0].name in n.output
    )
    first = found.constants.get(node.input[1])
    if most is None or first is None or not (is_constant and first.all() and found.is_reached):
        return None
    return int(most)


def _read_symbol_lengths(
    values: Iterable[ValueInfoProto], types: Iterable[TypeProto]
) -> dict[str, int]:
    """Return the lengths of the symbols in declared types, by the inferred types."""
    found: dict[str, int] = {}
    for value, type in zip(values, types, strict=False):
        dims = value.type.tensor_type.shape.dim
        for dim, length in zip(dims, read_shape(type) or (), strict=False):
            if dim.dim_param.isidentifier() and length is not None:
                found.setdefault(dim.dim_param, length)
    return found


def _check_carries(before: Sequence[TypeProto], after: Sequence[TypeProto]) -> None:
    for n, (a, b) in enumerate(zip(before, after, strict=False)):
        if reason := find_type_conflict(a, b):
            raise OperandMismatchError(f"carry {n} changes: {reason}")


def _stack_type(row: TypeProto, length: int | None) -> TypeProto:
    shape = read_shape(row)
    return make_tensor_type(row.tensor_type.elem_type, None if shape is None else (length, *shape))


CONTROL_FLOW_RULES: Mapping[str, Callable[[InferredTypes, NodeProto], list[TypeProto]]] = {
    "If": _infer_if,
    "Scan": _infer_scan,
    "Loop": _infer_loop,
}
"""Rules of operators with subgraphs."""


def verify_built_model(built: BuiltModel, *, load: bool = True) -> None:
    """Run all checks. Raise E0923 if ONNX Runtime cannot load it, else UnsoundModelError."""
    model = make_weights_inputs(built)
    verify_without_runtime(built, model)
    if load and built.target.provider == "cpu":
        open_ort_model_bytes(model.SerializeToString())


def verify_without_runtime(built: BuiltModel, model: ModelProto) -> InferredTypes:
    """Check a model without weights; return the inferred types of its values."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise UnsoundModelError(
            f"the model for {built.target.name} is not valid: {error}"
        ) from error
    return check_value_types(built, model)


def make_weights_inputs(built: BuiltModel) -> ModelProto:
    """Return a copy of the model in which weights are inputs."""
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
    return ModelProto(
        ir_version=built.model.ir_version,
        graph=graph,
        opset_import=built.model.opset_import,
        producer_name=built.model.producer_name,
    )


def check_value_types(built: BuiltModel, model: ModelProto) -> InferredTypes:
    """Compare the types of inputs, outputs and weights with the graph, and those of all values with
    the inferred ones at distinct lengths; return the latter.
    """
    for value in (*model.graph.input, *model.graph.output):
        expected = make_value_info(value.name, built.types[value.name])
        if expected.type != value.type:
            raise UnsoundModelError(
                f"`{value.name}` is {_format_value_type(value)} in the model, "
                f"{_format_value_type(expected)} in the graph"
            )
    found = _infer_at_lengths(built, model, _choose_lengths(built, {}))
    long = _choose_lengths(built, built.branch_lengths)
    # Long inputs may take other branches, so these are checked too.
    if built.branch_lengths and all(long.get(s, 0) > n for s, n in built.branch_lengths.items()):
        found = _infer_at_lengths(built, model, long)
    return found


def _choose_lengths(built: BuiltModel, beyond: Mapping[str, int]) -> dict[str, int]:
    graph = built.graph
    types = (*built.types.values(), *(v.type for v in graph.inputs.values()))
    dims = [d for t in types for d in t.shape]
    # Trial lengths must not exceed position tables.
    most = find_max_lengths(graph)
    return choose_distinct_lengths(dims, graph, beyond, most if beyond else None)


def _infer_at_lengths(
    built: BuiltModel, model: ModelProto, env: Mapping[str, int]
) -> InferredTypes:
    scalars = {name: env[symbol] for symbol, name in built.length_inputs.items() if symbol in env}
    return infer_model_types(model, env, scalars)


def _format_value_type(value: ValueInfoProto) -> str:
    """Return a type as text, such as `float[batch, 8]`."""
    tensor = value.type.tensor_type
    dims = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}[{dims}]"
