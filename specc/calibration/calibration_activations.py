"""Find the input activations of each int4 weight, including weights in loops and experts, and add
them to the outputs of the graph.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Node, Value
from specc.ir.ops.quantized import QuantizationPlan
from specc.transforms.graph_quantization import expand_recurrent_layers
from specc.transforms.quantizable_weights import find_underlying_weight, match_matmul

WeightNames: TypeAlias = Mapping[Value, str]
"""The name of each weight, by the value that represents the weight in a graph or loop body."""


class WeightMatrixRef(NamedTuple):
    """A weight matrix, or the matrix of the expert with index `expert` in a stacked weight."""

    name: str
    expert: int = 0


def add_activation_outputs(
    graph: Graph, names: WeightNames
) -> tuple[Graph, Mapping[WeightMatrixRef, list[Value]]]:
    """Return a copy of the graph whose outputs include the input activations of the weights in
    `names`. Also return a mapping from each weight matrix to its input activations in the copy.
    """
    builder = GraphBuilder()
    copier = _GraphCopier(builder, builder.copy_inputs_and_parameters(graph))
    copier.copy_nodes(graph, names)
    outputs = {name: copier.copies[value] for name, value in graph.outputs.items()}
    outputs |= {
        f"met {matrix.name} {matrix.expert} {n}": value
        for matrix, values in copier.activations_by_matrix.items()
        for n, value in enumerate(values)
    }
    return builder.clone_graph(graph, copier.copies, outputs), copier.activations_by_matrix


@dataclass
class _GraphCopier:
    """A helper that copies graph nodes and collects the input activations of weights. `copies` maps
    values of the original graph to their copies. `activations_by_matrix` maps each weight matrix to
    the copies of its activations.
    """

    builder: GraphBuilder
    copies: dict[Value, Value] = field(default_factory=dict)
    activations_by_matrix: dict[WeightMatrixRef, list[Value]] = field(default_factory=dict)

    def copy_nodes(self, graph: Graph, names: WeightNames) -> None:
        """Copy a graph's nodes, and record the input activations of the weights in `names`."""
        for node, results in graph.nodes:
            for name, x in _find_product(node, names):
                self._record_activation(WeightMatrixRef(name), self.copies[x])
            args = [a and self.copies[a] for a in node.args]
            if isinstance(node.op, ops.Scan):
                new_results = self._copy_loop(node, node.op, names)
            else:
                new_results = self.builder.add_node(node.op, *args)
            if isinstance(node.op, ops.MixtureOfExperts):
                present_args = [a for a in args if a]
                for name, expert, value in collect_expert_activations(
                    self.builder, node, present_args, names
                ):
                    self._record_activation(WeightMatrixRef(name, expert), value)
            self.copies.update(zip(results, new_results, strict=True))

    def _record_activation(self, matrix: WeightMatrixRef, value: Value) -> None:
        values = self.activations_by_matrix.setdefault(matrix, [])
        if value not in values:
            values.append(value)

    def _copy_loop(self, node: Node, op: ops.Scan, names: WeightNames) -> tuple[Value, ...]:
        """Copy a loop with scan outputs for activations. Return the original loop's results."""
        inner = _GraphCopier(builder := GraphBuilder(), builder.copy_inputs_and_parameters(op.body))
        inner.copy_nodes(op.body, _find_body_weights(node, op, names))
        args = [a and self.copies[a] for a in node.args]
        collected = inner.list_collectable_activations(node, op)
        if not collected:
            return self.builder.add_node(op, *args)
        new_results = self.builder.add_node(inner.make_collecting_scan(op, collected), *args)
        # the added scan outputs are between the loop-carried values and the existing scan outputs
        first, end = op.carry_count, op.carry_count + len(collected)
        outer_values = dict(zip(collected, new_results[first:end], strict=True))
        for matrix, values in inner.activations_by_matrix.items():
            for value in values:
                if value in outer_values:
                    self._record_activation(
                        matrix, self._transpose_activation(outer_values[value], op.axis)
                    )
        return *new_results[:first], *new_results[end:]

    def _transpose_activation(self, value: Value, axis: int) -> Value:
        """Move the iteration axis `axis` of a scan output to the second-last position. An enclosing
        loop requires that the batch axis is the first axis.
        """
        order = [n for n in range(value.type.rank) if n != axis]
        order.insert(value.type.rank - 2, axis)
        if order == sorted(order):
            return value
        return self.builder.add_op(ops.Transpose(tuple(order)), value)

    def list_collectable_activations(self, node: Node, op: ops.Scan) -> list[Value]:
        """Return the activations of the loop body that can be stacked as scan outputs, without
        duplicates. Such activations have the axis `op.axis` and, in a loop with a mask, a leading
        batch axis.
        """
        activations = dict.fromkeys(
            v for values in self.activations_by_matrix.values() for v in values
        )
        candidates = [v for v in activations if v.type.rank > op.axis]
        mask = node.args[0] if op.has_mask else None
        if mask is None:
            return candidates
        batch = mask.type.shape[0]
        return [v for v in candidates if v.type.shape[0] == batch]

    def make_collecting_scan(self, op: ops.Scan, collected_values: list[Value]) -> ops.Scan:
        """Return the loop with the copied body, whose scan outputs include `collected_values`."""
        body_outputs = {name: self.copies[v] for name, v in op.body.outputs.items()}
        outputs = dict(list(body_outputs.items())[: op.carry_count])
        outputs |= {f"met {n}": v for n, v in enumerate(collected_values)}
        body = self.builder.clone_graph(op.body, self.copies, {**outputs, **body_outputs})
        return replace(op, body=body)


def _find_body_weights(node: Node, op: ops.Scan, names: WeightNames) -> WeightNames:
    """Return the names of the weights that a loop captures, keyed by value of the loop body."""
    body_names = {}
    for inner, outer in op.map_captured_inputs(node.operands).items():
        root = find_underlying_weight(outer)
        if root is not None and root in names:
            body_names[inner] = names[root]
    return body_names


def _iterate_products(body: Graph, names: WeightNames) -> Iterator[tuple[str, Value]]:
    """Yield the name and the activation of each weight in `names` that a MatMul of `body` uses."""
    return (product for node, _ in body.nodes for product in _find_product(node, names))


def _find_product(node: Node, names: WeightNames) -> list[tuple[str, Value]]:
    """Return the weight name and activation of a MatMul with a weight in `names`, or []."""
    product = match_matmul(node)
    weight = find_underlying_weight(node.args[product.matrix_index]) if product else None
    activations = node.args[product.activation_index] if product else None
    return [(names[weight], activations)] if weight in names and weight and activations else []


def collect_expert_activations(
    builder: GraphBuilder, node: Node, args: list[Value], weight_names: Mapping[Value, str]
) -> Iterator[tuple[str, int, Value]]:
    """Yield the weight name, expert index and input activation of each expert matrix of a
    `MixtureOfExperts` node. `args` are the operands of `node` in the graph of `builder`.
    `weight_names` maps operands of `node` to the names of stacked weights.
    """
    op = node.op
    assert isinstance(op, ops.MixtureOfExperts)
    stacks = op.split_operands([a for a in node.args if a is not None]).stacked_operands
    pairs = zip(stacks, op.get_expert_inputs()[1:], strict=False)
    names = {inner: weight_names[outer] for outer, inner in pairs if outer in weight_names}
    count = op.num_experts.number
    if not names or count is None:
        return
    (output,) = op.body.outputs
    bodies = {
        value: replace(op.body, outputs={output: value})
        for _, value in _iterate_products(op.body, names)
    }
    for expert in range(count):
        expert_activations = {
            v: _tap_expert(builder, op, b, args, expert) for v, b in bodies.items()
        }
        for name, value in _iterate_products(op.body, names):
            yield name, expert, expert_activations[value]


def _tap_expert(
    builder: GraphBuilder, op: ops.MixtureOfExperts, body: Graph, args: list[Value], expert: int
) -> Value:
    """Add a `MixtureOfExperts` node that runs a single expert. The expert's body graph `body`
    outputs one of its activations. Return the activations of all tokens that are routed to the
    expert.
    """
    operands = op.split_operands(args)
    index = builder.add_op(ops.Constant(expert, operands.ids.type.dtype))
    is_selected = builder.add_op(ops.Compare("eq"), operands.ids, index)
    # tokens routed to `expert` get the expert index 0, all other tokens get -1 (no expert)
    unit = builder.add_op(ops.Constant(1, operands.ids.type.dtype))
    selected = builder.add_op(ops.Cast(operands.ids.type.dtype), is_selected)
    ids = builder.add_op(ops.Arith("sub"), selected, unit)
    gates = builder.add_op(ops.Cast(operands.gates.type.dtype), is_selected)
    slice_op = ops.Slice(0, Dim.from_value(expert), Dim.from_value(expert + 1))
    routing = [operands.x, ids, gates, *([operands.keep] if operands.keep is not None else [])]
    parts = [builder.add_op(slice_op, stack) for stack in operands.stacked_operands]
    single_expert = replace(op, body=body, num_experts=Dim.from_value(1))
    return builder.add_op(single_expert, *routing, *parts, *operands.captured)


MAX_TAPPED_BITS = 4
"""The bit width of the weights that are quantized with GPTQ. Weights with more bits do not need
GPTQ, because their rounding error is small.
"""
MAX_INPUT_FEATURES = 16_384
"""Maximum number of input features of a weight for GPTQ. For a weight of maximum size, the Gram
matrix takes 2 GB, and the factorization another 1.5 GB."""
WeightInputs: TypeAlias = tuple[Value, ...]
"""The input activations of a weight: one activation per node that uses the weight."""


@dataclass(frozen=True)
class CalibrationTargets:
    """Weights to be quantized with calibration data. `tap_points` maps activations of `graph` to
    the weights that they are multiplied with. Weights with the same activations share a Gram
    matrix. Weights that are not in `tap_points` are rounded to nearest.
    """

    graph: Graph
    tap_points: Mapping[WeightInputs, tuple[WeightMatrixRef, ...]]

    @property
    def expert_counts(self) -> Mapping[str, int]:
        """The number of experts in each weight by weight name, which is 1 for unstacked weights."""
        matrices = [matrix for activations in self.tap_points.values() for matrix in activations]
        return Counter(matrix.name for matrix in matrices)

    @property
    def activations(self) -> tuple[Value, ...]:
        """The input activations of all calibrated linear layers, without duplicates."""
        return tuple(dict.fromkeys(v for activations in self.tap_points for v in activations))


def find_calibration_targets(
    graph: Graph, plan: QuantizationPlan, ties: Mapping[str, str]
) -> CalibrationTargets:
    """Find the input activations of the int4 weights in a plan. `ties` maps each tied weight to its
    source. Recurrent layers are first expanded to loops, because activations inside a recurrent op
    cannot be graph outputs.
    """
    weight_names = [n for n, f in plan.items() if f.bits == MAX_TAPPED_BITS and n not in ties]
    graph = expand_recurrent_layers(graph, {n for n in plan if ties.get(n, n) in weight_names})
    names = {v: ties.get(n, n) for n, v in graph.parameters.items()}
    tapped, activations_by_matrix = add_activation_outputs(
        graph, {v: n for v, n in names.items() if n in weight_names}
    )
    tap_points = _find_tap_points(activations_by_matrix, weight_names)
    return CalibrationTargets(tapped, tap_points)


def _find_tap_points(
    activations_by_matrix: Mapping[WeightMatrixRef, list[Value]], weight_names: list[str]
) -> dict[WeightInputs, tuple[WeightMatrixRef, ...]]:
    """Group weights by their input activations, in the order of `weight_names`. Weights with more
    than `MAX_INPUT_FEATURES` input features are omitted.
    """
    feature_counts = {
        matrix: count_input_features(tuple(values))
        for matrix, values in activations_by_matrix.items()
    }
    too_wide = {m.name for m, count in feature_counts.items() if count > MAX_INPUT_FEATURES}
    order = {name: n for n, name in enumerate(weight_names)}
    tap_points: dict[WeightInputs, tuple[WeightMatrixRef, ...]] = {}
    for matrix in sorted(feature_counts, key=lambda m: (order[m.name], m.expert)):
        if matrix.name not in too_wide:
            activations = tuple(activations_by_matrix[matrix])
            tap_points[activations] = (*tap_points.get(activations, ()), matrix)
    return tap_points


def count_input_features(activations: WeightInputs) -> int:
    """Return the number of input features of a weight that multiplies `activations`."""
    return activations[0].type.shape[-1].number or 0


def find_padding_mask(graph: Graph, value: Value) -> str:
    """Return the name of the padding mask input whose shape equals the leading axes of `value`, or
    "" if there is not exactly one such input.
    """
    mask_names = [
        name
        for name, facts in graph.input_facts.items()
        if facts.padding_side and facts.type.shape == value.type.shape[: facts.type.rank]
    ]
    return mask_names[0] if len(mask_names) == 1 and value.type.rank > 1 else ""
