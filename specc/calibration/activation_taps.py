"""Find the input activations of each int4 weight, and expose activations inside loops as graph
outputs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Node, Value
from specc.ir.ops.quantized import QuantizationPlan
from specc.transforms.graph_quantization import expand_recurrent_layers, find_underlying_weight
from specc.transforms.weight_uses import find_matrix_product

WeightNames: TypeAlias = Mapping[Value, str]
"""The names of weights by the value (of a graph or loop body) that contains them."""


class WeightMatrix(NamedTuple):
    """A weight matrix, or the matrix of one `expert` in a stacked weight."""

    name: str
    expert: int = 0


def expose_loop_activations(
    graph: Graph, names: WeightNames
) -> tuple[Graph, Mapping[WeightMatrix, list[Value]]]:
    """Return a copy of the graph whose outputs include the activations that the weights `names` (or
    their experts) multiply, and these activations by weight.
    """
    made = GraphBuilder()
    walk = _GraphCopier(made, made.copy_inputs_and_parameters(graph))
    walk.copy_nodes(graph, names)
    outputs = {name: walk.copies[value] for name, value in graph.outputs.items()}
    outputs |= {
        f"met {matrix.name} {matrix.expert} {n}": value
        for matrix, values in walk.activations_of.items()
        for n, value in enumerate(values)
    }
    finished = made.build_graph(
        graph.name, outputs, min_lengths=graph.min_lengths, length_equations=graph.length_equations
    )
    return finished, walk.activations_of


@dataclass
class _GraphCopier:
    """Copies the nodes of a graph. `copies` maps values to their copies, `activations_of` maps
    weights to activations.
    """

    builder: GraphBuilder
    copies: dict[Value, Value] = field(default_factory=dict)
    activations_of: dict[WeightMatrix, list[Value]] = field(default_factory=dict)

    def copy_nodes(self, graph: Graph, names: WeightNames) -> None:
        """Copy every node of a graph, in topological order."""
        for node, results in graph.nodes:
            for name, x in _find_product(node, names):
                self._record_activation(WeightMatrix(name), self.copies[x])
            args = [a and self.copies[a] for a in node.args]
            if isinstance(node.op, ops.Scan):
                new = self._copy_loop(node, node.op, names)
            else:
                new = self.builder.add_node(node.op, *args)
            if isinstance(node.op, ops.MixtureOfExperts):
                present_args = [a for a in args if a]
                for name, expert, value in collect_expert_activations(
                    self.builder, node, present_args, names
                ):
                    self._record_activation(WeightMatrix(name, expert), value)
            self.copies.update(zip(results, new, strict=True))

    def _record_activation(self, matrix: WeightMatrix, value: Value) -> None:
        values = self.activations_of.setdefault(matrix, [])
        if value not in values:
            values.append(value)

    def _copy_loop(self, node: Node, op: ops.Scan, names: WeightNames) -> tuple[Value, ...]:
        """Copy a loop with scan outputs that collect the activations in its body."""
        inner = _GraphCopier(builder := GraphBuilder(), builder.copy_inputs_and_parameters(op.body))
        inner.copy_nodes(op.body, _tap_body(node, op, names))
        args = [a and self.copies[a] for a in node.args]
        more = inner.list_collectable_activations(node, op)
        if not more:
            return self.builder.add_node(op, *args)
        new = self.builder.add_node(inner.make_collecting_scan(op, more), *args)
        # New outputs are inserted after the loop-carried values and before the existing scan
        # outputs.
        first, end = op.carry_count, op.carry_count + len(more)
        seen = dict(zip(more, new[first:end], strict=True))
        for matrix, values in inner.activations_of.items():
            for value in values:
                if value in seen:
                    self._record_activation(
                        matrix, self._transpose_activation(seen[value], op.axis)
                    )
        return *new[:first], *new[end:]

    def _transpose_activation(self, value: Value, axis: int) -> Value:
        """Move the iteration axis of a scan output before the last axis, because an enclosing loop
        uses the first axis as the batch axis.
        """
        order = [n for n in range(value.type.rank) if n != axis]
        order.insert(value.type.rank - 2, axis)
        if order == sorted(order):
            return value
        return self.builder.add_op(ops.Transpose(tuple(order)), value)

    def list_collectable_activations(self, node: Node, op: ops.Scan) -> list[Value]:
        """Return the activations of the loop body that can be collected, without duplicates.

        Activations are stacked along an axis before the last axis. In a masked loop, the first axis
        must be the batch.
        """
        every = dict.fromkeys(v for values in self.activations_of.values() for v in values)
        every_wide = [v for v in every if v.type.rank > op.axis]
        keep = node.args[0] if op.has_mask else None
        if keep is None:
            return every_wide
        batch = keep.type.shape[0]
        return [v for v in every_wide if v.type.shape[0] == batch]

    def make_collecting_scan(self, op: ops.Scan, collected_values: list[Value]) -> ops.Scan:
        """Return the loop with additional scan outputs for the body values `collected_values`."""
        given = {name: self.copies[v] for name, v in op.body.outputs.items()}
        outputs = dict(list(given.items())[: op.carry_count])
        outputs |= {f"met {n}": v for n, v in enumerate(collected_values)}
        facts, least = op.body.length_equations, op.body.min_lengths
        outputs = {**outputs, **given}
        body = self.builder.build_graph(
            op.body.name, outputs, min_lengths=least, length_equations=facts
        )
        return replace(op, body=body)


def _tap_body(node: Node, op: ops.Scan, names: WeightNames) -> WeightNames:
    """Return the weight names of the body values."""
    known = {}
    for inner, outer in op.map_captures(node.operands).items():
        root = find_underlying_weight(outer)
        if root is not None and root in names:
            known[inner] = names[root]
    return known


def _iterate_products(body: Graph, names: WeightNames) -> Iterator[tuple[str, Value]]:
    """Yield the weights of `names` that a MatMul in the body multiplies, with their activations."""
    return (product for node, _ in body.nodes for product in _find_product(node, names))


def _find_product(node: Node, names: WeightNames) -> list[tuple[str, Value]]:
    """Return the weight of `names` and the activation that a MatMul node multiplies, or [] if the
    node multiplies no such weight.
    """
    product = find_matrix_product(node)
    weight = find_underlying_weight(node.args[product.matrix_operand]) if product else None
    rows = node.args[product.activation_operand] if product else None
    return [(names[weight], rows)] if weight in names and weight and rows else []


def collect_expert_activations(
    builder: GraphBuilder, node: Node, args: list[Value], stack_names: Mapping[Value, str]
) -> Iterator[tuple[str, int, Value]]:
    """Yield the weight name, expert index and activation of each matrix in a stacked weight. `args`
    are the operands of `node` in the new graph; `stack_names` are the names of stacked weights
    outside the loop.
    """
    op = node.op
    assert isinstance(op, ops.MixtureOfExperts)
    outside = op.split_operands([a for a in node.args if a is not None]).stacked
    inside = zip(outside, op.get_body_inputs()[1:], strict=False)
    names = {inner: stack_names[outer] for outer, inner in inside if outer in stack_names}
    count = op.num_experts.number
    if not names or count is None:
        return
    (output,) = op.body.outputs
    bodies = {
        value: replace(op.body, outputs={output: value})
        for _, value in _iterate_products(op.body, names)
    }
    for expert in range(count):
        activations_of = {v: _tap_expert(builder, op, b, args, expert) for v, b in bodies.items()}
        for name, value in _iterate_products(op.body, names):
            yield name, expert, activations_of[value]


def _tap_expert(
    builder: GraphBuilder, op: ops.MixtureOfExperts, body: Graph, args: list[Value], expert: int
) -> Value:
    """Return the activations that one expert multiplies."""
    given = op.split_operands(args)
    number = builder.add_op(ops.Constant(expert, given.ids.type.dtype))
    named = builder.add_op(ops.Compare("eq"), given.ids, number)
    # tokens of this expert get expert index 0, all other tokens -1 (no expert)
    one = builder.add_op(ops.Constant(1, given.ids.type.dtype))
    chosen = builder.add_op(ops.Cast(given.ids.type.dtype), named)
    ids = builder.add_op(ops.Arith("sub"), chosen, one)
    gates = builder.add_op(ops.Cast(given.gates.type.dtype), named)
    part = ops.Slice(0, Dim.from_value(expert), Dim.from_value(expert + 1))
    rows = [given.x, ids, gates, *([given.keep] if given.keep is not None else [])]
    parts = [builder.add_op(part, stack) for stack in given.stacked]
    alone = replace(op, body=body, num_experts=Dim.from_value(1))
    return builder.add_op(alone, *rows, *parts, *given.captured)


MAX_TAPPED_BITS = 4
"""Maximum number of bits of weights that are quantized with error compensation; the error of wider
weights is small."""
MAX_INPUT_FEATURES = 16_384
"""Maximum number of input features: a Gram matrix of this size takes 2 GB, and its factorization
another 1.5 GB."""
WeightInputs: TypeAlias = tuple[Value, ...]
"""The input activations of a weight (several if several nodes read the weight)."""


@dataclass(frozen=True)
class CalibrationTargets:
    """The weights to calibrate. `tap_points` maps activations of `graph` to the weights that
    multiply them: weights with the same activations share statistics. Other
    weights are rounded to nearest.
    """

    graph: Graph
    tap_points: Mapping[WeightInputs, tuple[WeightMatrix, ...]]

    @property
    def experts(self) -> Mapping[str, int]:
        """The number of stacked matrices of each weight (1 for a single matrix)."""
        every = [matrix for activations in self.tap_points.values() for matrix in activations]
        return Counter(matrix.name for matrix in every)

    @property
    def values(self) -> tuple[Value, ...]:
        """Return the tapped values without duplicates."""
        return tuple(dict.fromkeys(v for activations in self.tap_points for v in activations))


def find_calibration_targets(
    graph: Graph, plan: QuantizationPlan, ties: Mapping[str, str]
) -> CalibrationTargets:
    """Find the activations that the weights of a plan multiply. `ties` maps a tied weight to its
    source. Recurrent layers are expanded to loops, whose activations can be output.
    """
    wanted = [n for n, form in plan.items() if form.bits == MAX_TAPPED_BITS and n not in ties]
    graph = expand_recurrent_layers(graph, {n for n in plan if ties.get(n, n) in wanted})
    names = {v: ties.get(n, n) for n, v in graph.parameters.items()}
    tapped, activations_of = expose_loop_activations(
        graph, {v: n for v, n in names.items() if n in wanted}
    )
    tap_points = _find_tap_points(activations_of, wanted)
    return CalibrationTargets(tapped, tap_points)


def _find_tap_points(
    activations_of: Mapping[WeightMatrix, list[Value]], weight_names: list[str]
) -> dict[WeightInputs, tuple[WeightMatrix, ...]]:
    """Return the weights by the activations that they multiply, in the order of `weight_names`."""
    # Embedding tables multiply no activations, and some activations inside loops cannot be output.
    wide = {
        matrix: count_input_features(tuple(values)) for matrix, values in activations_of.items()
    }
    too_wide = {matrix.name for matrix, many in wide.items() if many > MAX_INPUT_FEATURES}
    order = {name: n for n, name in enumerate(weight_names)}
    tap_points: dict[WeightInputs, tuple[WeightMatrix, ...]] = {}
    for matrix in sorted(wide, key=lambda m: (order[m.name], m.expert)):
        if matrix.name not in too_wide:
            activations = tuple(activations_of[matrix])
            tap_points[activations] = (*tap_points.get(activations, ()), matrix)
    return tap_points


def count_input_features(activations: WeightInputs) -> int:
    """Return the input dimension of a weight from its activations."""
    return activations[0].type.shape[-1].number or 0


def find_padding_mask(graph: Graph, value: Value) -> str:
    """Return the name of the padding mask that matches the leading axes of a value, or "" if there
    is not exactly one.
    """
    found = [
        name
        for name, facts in graph.input_facts.items()
        if facts.padding_side and facts.type.shape == value.type.shape[: facts.type.rank]
    ]
    return found[0] if len(found) == 1 and value.type.rank > 1 else ""
