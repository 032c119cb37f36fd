"""Infer the type of every value of an ONNX model at given input lengths.

ONNX's own rules for shapes are asked node by node, with a number for every length;
whole numbers that are known by then, such as the parts of a shape, are computed on the
way and told to the rules that want them. Inference over a whole graph of symbols knows
less, and has forgotten it behind the first `Reshape`. What ONNX does not know or does
not ask is in `specc_onnx.verifier.shape_rules`. What depends on data stays unknown, above all
what a `Loop` collects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
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

from specc_onnx.verifier.onnx_value_types import (
    InferredTypes,
    OperandMismatchError,
    UnsoundModelError,
    find_type_conflict,
    has_unknown_length,
    join_types,
    make_tensor_type,
    read_shape,
    substitute_type_lengths,
)
from specc_onnx.verifier.shape_arithmetic import fold_node, read_constant_tensor
from specc_onnx.verifier.shape_rules import (
    CONTRIB_SHAPE_RULES,
    DATA_DEPENDENT_OPS,
    SHAPE_CHECKS,
    get_node_attribute,
)


def infer_model_types(
    model: ModelProto, env: Mapping[str, int], told: Mapping[str, int]
) -> InferredTypes:
    """Every value of a model whose inputs have the lengths `env`; `told` are the
    numbers in some inputs.

    Unsound where a node cannot take what it is given, or a type written down is not the
    one that is found.
    """
    opsets = {o.domain: o.version for o in model.opset_import}
    found = InferredTypes(env=env, opsets=opsets)
    found.declare((*model.graph.value_info, *model.graph.output))
    for value in model.graph.input:
        numbers = np.array(told[value.name]) if value.name in told else None
        found.enter(value.name, substitute_type_lengths(value.type, env), numbers)
    infer_graph_types(found, model.graph)
    found.settle()
    return found


def infer_graph_types(found: InferredTypes, graph: GraphProto) -> None:
    """Initializers and nodes of a graph, whose inputs are entered: those that have a
    default are as they are given.
    """
    given = {value.name for value in graph.input}
    for tensor in (t for t in graph.initializer if t.name not in given):
        found.enter(
            tensor.name,
            make_tensor_type(tensor.data_type, tuple(tensor.dims)),
            read_constant_tensor(tensor),
        )
    for node in graph.node:
        try:
            _infer_node(found, node)
        except (
            OperandMismatchError,
            InferenceError,
            ValidationError,
            ValueError,
            IndexError,
        ) as error:
            raise UnsoundModelError(f"node `{node.name}` ({node.op_type}): {error}") from error


def _infer_node(found: InferredTypes, node: NodeProto) -> None:
    types = _infer_results(found, node)
    if (ask := SHAPE_CHECKS.get(node.op_type)) is not None:
        ask(found, node, types)
    sizes = [found.sizes(n) for n in node.input if n]
    known = node.op_type not in DATA_DEPENDENT_OPS and None not in sizes
    # ONNX's rules give up without a word where operands do not fit.
    if known and any(has_unknown_length(t) for t in types):
        raise OperandMismatchError(f"no shape follows from {', '.join(map(str, sizes))}")
    operands = [found.numbers.get(n) for n in node.input]
    numbers = fold_node(node, operands, sizes[0] if sizes else None)
    for n, name in enumerate(filter(None, node.output)):
        found.enter(name, types[n], numbers if n == 0 else None)


def _infer_results(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """The types of what a node gives, by the graphs inside it, our rule or ONNX's."""
    if node.op_type in CONTROL_FLOW_RULES:
        return CONTROL_FLOW_RULES[node.op_type](found, node)
    rule = CONTRIB_SHAPE_RULES.get((node.domain, node.op_type), _infer_by_schema)
    return rule(found, node)


def _infer_by_schema(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """What ONNX's rule for this operator says."""
    schema = defs.get_schema(node.op_type, found.opsets[node.domain], node.domain)
    types = {n: found.types[n] for n in node.input if n}
    data = {n: numpy_helper.from_array(found.numbers[n]) for n in node.input if n in found.numbers}
    opsets = [helper.make_opsetid(d, v) for d, v in found.opsets.items()]
    made = infer_node_outputs(schema, node, types, data, opset_imports=opsets)
    return [made.get(n, TypeProto()) for n in node.output if n]


# --- operators with graphs inside -----------------------------------------------------


def _infer_body(
    found: InferredTypes, body: GraphProto, types: Sequence[TypeProto]
) -> list[TypeProto]:
    """Follow a body whose inputs have these types; gives those of its results."""
    found.declare((*body.input, *body.value_info, *body.output))
    for value, type in zip(body.input, types, strict=True):
        found.enter(value.name, type)
    infer_graph_types(found, body)
    return [found.types[o.name] for o in body.output]


def _infer_if(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Both branches are followed; where it is known which is taken, that one's results count."""
    known = found.numbers.get(node.input[0])
    yes = None if known is None else bool(known.all())
    # What is in neither branch for sure may run or not, at these lengths.
    before, made = found.taken, []
    for name, branch in (("then", True), ("else", False)):
        found.taken = before and yes is branch
        made.append(_infer_body(found, get_node_attribute(node, f"{name}_branch"), []))
    found.taken = before
    then, other = made
    if yes is not None:
        return then if yes else other
    return [join_types(a, b) for a, b in zip(then, other, strict=True)]


def _infer_scan(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """Carries keep their types; what is collected gets the length that was scanned in front."""
    count = get_node_attribute(node, "num_scan_inputs")
    carried, scanned = list(node.input)[:-count], list(node.input)[-count:]
    axes = get_node_attribute(node, "scan_input_axes", [0] * count)
    rows, many = [], set()
    for name, axis in zip(scanned, axes, strict=True):
        shape = found.shape(name)
        if shape is not None:
            many.add(shape[axis])
            shape = (*shape[:axis], *shape[axis:][1:])
        rows.append(make_tensor_type(found.element(name), shape))
    if len(many - {None}) > 1:
        raise OperandMismatchError(f"rows of different number are scanned together: {many}")
    starts = [found.types[n] for n in carried]
    ends = _infer_body(found, get_node_attribute(node, "body"), [*starts, *rows])
    _check_carries(starts, ends)
    length = many.pop() if len(many) == 1 else None
    return [*ends[: len(carried)], *(_stack_type(t, length) for t in ends[len(carried) :])]


def _infer_loop(found: InferredTypes, node: NodeProto) -> list[TypeProto]:
    """The first turn is followed. Carries may grow: behind the loop they are what
    beginning and end have in common.

    A graph of its own may stand inside, in which a symbol is another length than
    outside: the carries tell which.
    """
    body = get_node_attribute(node, "body")
    turn, starts = list(body.input)[:2], [found.types[n] for n in node.input[2:]]
    outside, found.env = found.env, _read_symbol_lengths(body.input[2:], starts)
    before, found.untold = found.untold, []
    if found.taken:
        found.numbers[turn[0].name] = np.array(0)
    ends = _infer_body(found, body, [*(v.type for v in turn), *starts])[1:]
    found.settle()
    found.env, found.untold = outside, before
    # the second turn is given what the first one made: carries that share a length
    # still do
    again = _read_symbol_lengths(body.input[2:], ends)
    _check_carries([substitute_type_lengths(v.type, again) for v in body.input[2:]], ends)
    last = [join_types(a, b) for a, b in zip(starts, ends, strict=False)]
    turns = _count_iterations(found, node, body)
    return [*last, *(_stack_type(t, turns) for t in ends[len(starts) :])]


def _count_iterations(found: InferredTypes, node: NodeProto, body: GraphProto) -> int | None:
    """How often a loop turns, where the number that it is given decides."""
    most = found.numbers.get(node.input[0])
    going = body.input[1].name
    on = next((n for n in body.node if body.output[0].name in n.output), None)
    always = on is not None and on.op_type == "Identity" and on.input[0] == going
    first = found.numbers.get(node.input[1])
    # One that stops by itself turns as often as data says.
    if most is None or first is None or not (always and first.all() and found.taken):
        return None
    return int(most)


def _read_symbol_lengths(
    values: Iterable[ValueInfoProto], types: Iterable[TypeProto]
) -> dict[str, int]:
    """The lengths that values have a symbol for, as far as their types are known."""
    found: dict[str, int] = {}
    for value, type in zip(values, types, strict=False):
        dims = value.type.tensor_type.shape.dim
        for dim, length in zip(dims, read_shape(type) or (), strict=False):
            if dim.dim_param.isidentifier() and length is not None:
                found.setdefault(dim.dim_param, length)
    return found


def _check_carries(before: Sequence[TypeProto], after: Sequence[TypeProto]) -> None:
    for n, (a, b) in enumerate(zip(before, after, strict=False)):
        if why := find_type_conflict(a, b):
            raise OperandMismatchError(f"carry {n} changes: {why}")


def _stack_type(row: TypeProto, length: int | None) -> TypeProto:
    shape = read_shape(row)
    return make_tensor_type(row.tensor_type.elem_type, None if shape is None else (length, *shape))


CONTROL_FLOW_RULES: Mapping[str, Callable[[InferredTypes, NodeProto], list[TypeProto]]] = {
    "If": _infer_if,
    "Scan": _infer_scan,
    "Loop": _infer_loop,
}
"""Operators with graphs inside."""
