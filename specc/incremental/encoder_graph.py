"""Build the encoder graph, which computes the initial states and all values that do not depend on
generated positions.

If there are fewer than k keys, masked keys are appended to the operand of `topk`. In the example
with k = 3, position 0 of the full graph also has only one visible key. It also selects the first
two masked keys, whose scores are -inf and whose indices equal the indices of the padding:

    step 1, 1 key, k = 3          step 4, 4 keys
    a  -inf  -inf  -inf           a  b  c  d  -inf  -inf  -inf
    └──────┬─────┘                └── selects three of these
    indices 0, 1, 2

If consumers read only the last position of a value, only this position is computed, from the last
positions of the operands. The last MLP and the output projection then process only one position of
a long prefix such as image embeddings.

    x = linear(y) @ norm           x' = linear(y[:, -1:]) @ norm
    logits = linear(x) @ head  →   logits' = linear(x') @ head

If there are positions before the first token, the initial states contain the values at these
positions. The encoder graph computes them with the same ops and a time axis of size 0. Empty
operands of a concatenation are removed, so the encoder graph does not read the generated input.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

from specc.analysis.time_dependence_and_unsupported_loops import TimeDataflow
from specc.incremental.demand_propagation import collect_decode_step_nodes
from specc.incremental.graph_boundary import (
    add_shape_only_input,
    find_inferable_symbols,
    remove_unused_inputs,
    split_folded_batch_axis,
)
from specc.incremental.step_plan import StepPlan
from specc.ir import ops
from specc.ir.dim import Dim, min_dims
from specc.ir.graph import (
    Graph,
    GraphBuilder,
    Node,
    NodeResults,
    Value,
    collect_required_nodes,
    collect_shape_symbols,
    substitute_dims_in_op,
)
from specc.ir.loop_dependence import find_dependences
from specc.ir.types import Type


def pad_top_k_keys(builder: GraphBuilder, op: ops.TopK, keys: Value) -> Value:
    """Append masked keys to the operand of a top-k, for a total of at least k keys."""
    masked_score = -inf if op.largest else inf
    return builder.add_op(ops.Pad(op.axis, Dim.from_value(0), op.k, value=masked_score), keys)


def _add_node_with_enough_keys(
    b: GraphBuilder, node: Node, args: list[Value | None], symbol: str
) -> tuple[Value, ...]:
    """Add a node with an empty time axis. Pad the operand of a `topk` to k positions."""
    op, x = node.op, node.first_operand
    if isinstance(op, ops.TopK) and x and args[0] and symbol in x.shape[op.axis].symbols():
        args = [pad_top_k_keys(b, op, args[0])]
    return b.add_node(op, *args)


LastPosition: TypeAlias = tuple[Value, int]
"""The last position of a value along an axis, as a pair (value, axis)."""


def has_position_before_first_token(graph: Graph, flow: TimeDataflow, output_name: str) -> bool:
    """Return True if an output has a position before the first token, i.e. if it has a prefix."""
    value, time_axis = graph.outputs[output_name], flow.time_axis
    axes = [*flow.get_state(value).axes]
    if not all(time_axis.has_prefix_positions(value.shape[axis]) for axis in axes):
        return False
    # if a node reads only the last position of a value, this position must precede the first token
    last_positions = _iterate_last_position_reads(graph, collect_decode_step_nodes([value], flow))
    along_time = ((x, axis) for x, axis in last_positions if axis in flow.get_state(x).axes)
    return all(time_axis.has_prefix_positions(x.shape[axis]) for x, axis in along_time)


def _iterate_last_position_reads(graph: Graph, live: Collection[Node]) -> Iterator[LastPosition]:
    """Yield (value, time axis) for each node in `live` that reads only the last position of the
    value.
    """
    for node, results in graph.nodes:
        if node in live:
            for dependence in find_dependences(node, results):
                if dependence.kind == "newest" and (operand := node.args[dependence.operand]):
                    yield operand, dependence.operand_axis


@dataclass(kw_only=True)
class LastPositionSubgraph:
    """The subgraph that computes the last position of `value` along `axis`, for a time axis
    (`symbol`) of size 0.

    If the node of the value is in `computed_nodes` (nodes whose results are computed at all
    positions), the position is sliced from the value. Otherwise, the position is computed from
    positions of the operands. `full_values` are the values that are needed at all positions.
    `positions` are the positions to compute, in topological order.
    """

    value: Value
    axis: int
    computed_nodes: set[Node]
    symbol: str
    full_values: list[Value] = field(default_factory=list)
    positions: list[LastPosition] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Collect the positions to recompute, without duplicates and in topological order."""
        visited: set[LastPosition] = set()
        worklist: list[tuple[LastPosition, bool]] = [((self.value, self.axis), False)]
        while worklist:
            position, is_expanded = worklist.pop()
            if is_expanded:
                self.positions.append(position)
            elif position not in visited:
                visited.add(position)
                operand_positions, fully_read = self._find_operand_positions(position)
                self.full_values += fully_read if operand_positions else [position[0]]
                if operand_positions:
                    worklist.append((position, True))
                    worklist += [(p, False) for p in operand_positions.values()]

    def _find_operand_positions(
        self, position: LastPosition
    ) -> tuple[dict[int, LastPosition], list[Value]]:
        """Return the operand positions that each output position depends on, keyed by operand
        index, and the operands that are read in full. If the position is sliced from its value, it
        depends on no operand positions.
        """
        value, axis = position
        node = value.node
        if node is None or node in self.computed_nodes or isinstance(node.op, ops.Scan):
            return {}, []
        if (passed_operand := self._find_passed_operand(node, axis)) is not None:
            return {passed_operand[0]: passed_operand[1]}, []
        operand_positions = self._find_same_position_operands(node, position)
        return operand_positions, [
            a for n, a in enumerate(node.args) if a and n not in operand_positions
        ]

    def _find_same_position_operands(
        self, node: Node, position: LastPosition
    ) -> dict[int, LastPosition]:
        """Return the operands that are read only at the position of the result. Return {} if the
        node reads other positions (except through a mask) or depends on the axis size.
        """
        value, axis = position
        result_axis = value.index, axis
        reads = [d for d in find_dependences(node) if (d.result, d.result_axis) == result_axis]
        depends_on_length = (
            substitute_dims_in_op(node.op, {self.symbol: Dim.from_value(0)}) != node.op
        )
        if depends_on_length or any(read.kind not in ("same", "band") for read in reads):
            return {}
        operands = ((read, node.args[read.operand]) for read in reads if read.kind == "same")
        return {
            read.operand: (x, read.operand_axis)
            for read, x in operands
            if x and x.shape[read.operand_axis] == value.shape[axis]
        }

    def _find_passed_operand(self, node: Node, axis: int) -> tuple[int, LastPosition] | None:
        """Return the index of the Concat or Slice operand that contains the result's last position,
        and the position in this operand. Return None for other nodes.
        """
        match node:
            case Node(ops.Slice(axis=n, stop=stop), (Value() as x,)) if n == axis:
                return (0, (x, axis)) if stop == x.shape[axis] else None
            case Node(ops.Concat(n)) if n == axis:
                # find the last operand that is not empty if the time axis is empty
                for operand_index, a in reversed([*enumerate(node.args)]):
                    if a and a.shape[axis].substitute({self.symbol: 0}) != 0:
                        return operand_index, (a, axis)
        return None

    def build_nodes(self, builder: GraphBuilder, new_values: Mapping[Value, Value]) -> Value:
        """Add to `builder`, which contains `new_values`, nodes that compute the last position."""
        built_positions: dict[LastPosition, Value] = {}

        def get_position(position: LastPosition) -> Value:
            if position not in built_positions:
                value, axis = new_values[position[0]], position[1]
                length = value.shape[axis]
                op = ops.Slice(axis, length - 1, length)
                built_positions[position] = value if length == 1 else builder.add_op(op, value)
            return built_positions[position]

        for position in self.positions:
            node = position[0].node
            assert node is not None, "a recomputed value is the result of a node"
            operand_positions, _ = self._find_operand_positions(position)
            if self._find_passed_operand(node, position[1]) is not None:
                (built_positions[position],) = map(get_position, operand_positions.values())
                continue
            args = [
                get_position(operand_positions[n])
                if n in operand_positions
                else a and new_values[a]
                for n, a in enumerate(node.args)
            ]
            results = _add_node_with_enough_keys(builder, node, args, self.symbol)
            built_positions[position] = results[position[0].index]
        return get_position((self.value, self.axis))


@dataclass(frozen=True)
class InitialStateValue:
    """The initial value of a state, which is a value of the full-forward graph for an empty time
    axis. The state contains the last `max_positions` positions along `axis`, or their sum if
    `is_sum`. If `is_last_position` is True, the state contains only the last position. The encoder
    graph then computes only the positions on which the last position depends.
    """

    value: Value
    axis: int | None = None
    max_positions: float = inf
    is_sum: bool = False
    is_last_position: bool = False


def build_encoder_graph(plan: StepPlan, targets: Mapping[str, InitialStateValue]) -> Graph | None:
    """Build the encoder graph, whose outputs are `targets` by name. Return None if there are no
    targets.

    If no other input determines a size such as the batch size, the encoder graph also has the input
    with the time axis, and uses only its shape.
    """
    if not targets:
        return None
    encoder = EncoderGraphBuilder(plan)
    encoder.copy_nodes(targets.values())
    outputs = {name: encoder.build_output(target) for name, target in targets.items()}
    b, (min_lengths, length_equations) = encoder.builder, plan.get_length_constraints()
    name = f"{plan.graph.name} encode"
    graph = remove_unused_inputs(
        b.build_graph(name, outputs, min_lengths=min_lengths, length_equations=length_equations)
    )
    symbols = collect_shape_symbols(r for _, results in graph.nodes for r in results)
    required_symbols = symbols | collect_shape_symbols(graph.outputs.values())
    if required_symbols <= find_inferable_symbols(graph.inputs.values(), length_equations):
        return graph
    return add_shape_only_input(
        graph, plan.time_axis_input, plan.graph.input_facts[plan.time_axis_input]
    )


class EncoderGraphBuilder:
    """A builder of the encoder graph, i.e. the full-forward graph with a time axis of size 0."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.builder = GraphBuilder()
        self.new_values: dict[Value, Value] = {}
        self.last_position_subgraphs: dict[Value, LastPositionSubgraph] = {}

    def copy_nodes(self, targets: Iterable[InitialStateValue]) -> None:
        """Copy every node on which the targets depend, except nodes of which only the last position
        is needed. Loops that have additional scan outputs are copied last.
        """
        b, graph, new_values = self.builder, self.plan.graph, self.new_values
        values = self._find_full_values(list(targets))
        live_nodes = collect_required_nodes(values, self._list_read_operands)
        self._declare_inputs({a for node in live_nodes for a in node.operands})
        for node, results in graph.nodes:
            if node in live_nodes:
                copied_results = self._copy_node(node, results)
                new_values.update(zip(results, copied_results, strict=True))
                if (origin := graph.node_origins.get(node)) and copied_results[0].node:
                    b.node_origins.setdefault(copied_results[0].node, origin)
        # compute the last positions of nodes that were not copied
        for value in values:
            if value not in new_values and value.node:
                new_values[value] = self._copy_node(value.node, (value,))[value.index]

    def _declare_inputs(self, read_values: Collection[Value]) -> None:
        """Declare inputs and parameters. Generated inputs in `read_values` are replaced by
        constants for the positions before the first token.
        """
        b, graph, new_values = self.builder, self.plan.graph, self.new_values
        for name, value in graph.inputs.items():
            if not self.plan.depends_on_time(value):
                new_values[value] = b.add_input(name, graph.input_facts[name])
        for name, value in graph.parameters.items():
            new_values[value] = b.add_parameter(graph.parameter_facts[name])
        for value in graph.inputs.values():
            if value not in new_values and value in read_values:
                zero = False if value.dtype == "bool" else 0
                new_values[value] = self._build_filled_constant(value.type, zero)

    def _find_full_values(self, targets: Sequence[InitialStateValue]) -> list[Value]:
        """Return the values that are needed at more positions than the last position."""
        values = [initial.value for initial in targets if not initial.is_last_position]
        computed_nodes = collect_required_nodes(values, self._list_read_operands)
        for target in targets:
            if target.is_last_position and target.axis is not None:
                subgraph = LastPositionSubgraph(
                    value=target.value,
                    axis=target.axis,
                    computed_nodes=computed_nodes,
                    symbol=self.plan.time_symbol,
                )
                self.last_position_subgraphs[target.value] = subgraph
                values += subgraph.full_values
        return values

    def build_output(self, target: InitialStateValue) -> Value:
        """Build an encoder output that contains only the positions that `target` requests."""
        if target.is_last_position and target.axis is not None:
            return self.last_position_subgraphs[target.value].build_nodes(
                self.builder, self.new_values
            )
        value, axis = self.new_values[target.value], target.axis
        if target.is_sum and axis is not None:
            value = self.builder.add_op(ops.Reduce("sum", axis), value)
        elif target.max_positions != inf and axis is not None:
            length = value.shape[axis]
            max_length = self._limit_length(length, int(target.max_positions))
            if max_length != length:
                value = self.builder.add_op(ops.Slice(axis, length - max_length, length), value)
        return split_folded_batch_axis(self.builder, value, self.plan.batch_size)

    def _limit_length(self, length: Dim, max_length: int) -> Dim:
        """Return `min(length, max_length)`, simplified if one of the sizes is always smaller."""
        time_axis = self.plan.flow.time_axis
        if time_axis.is_non_negative(length - max_length):
            return Dim.from_value(max_length)
        is_shorter = time_axis.is_non_negative(max_length - length)
        return length if is_shorter else min_dims(length, max_length)

    def _list_read_operands(self, node: Node) -> list[Value | None]:
        """Return the operands that a node reads when the time axis is empty. An `extent` reads no
        operand, and a concatenation or `pad` reads only non-empty operands.
        """
        if isinstance(node.op, ops.Extent) or self._is_all_padding(node):
            return []
        if isinstance(node.op, ops.Concat):
            axis = node.op.axis
            nonempty = [a for a in node.operands if self._remove_time_axis(a.shape[axis]) != 0]
            return [*(nonempty or node.args)]
        return [*node.args]

    def _remove_time_axis(self, length: Dim) -> Dim:
        """Return a dimension with 0 substituted for the time axis."""
        return length.substitute({self.plan.time_symbol: 0})

    def _copy_node(self, node: Node, results: NodeResults) -> NodeResults:
        """Copy a node so that it computes only the positions before the first token."""
        op = substitute_dims_in_op(node.op, {self.plan.time_symbol: Dim.from_value(0)})
        # `extent` uses only the axis size of its operand
        if isinstance(op, ops.Extent):
            return self.builder.add_node(ops.Range(self._remove_time_axis(results[0].shape[0])))
        if isinstance(op, ops.Pad) and self._is_all_padding(node):
            return (self._build_filled_constant(results[0].type, op.value),)
        args = [a and self.new_values[a] for a in self._list_read_operands(node)]
        if isinstance(op, ops.Concat) and len(args) == 1 and args[0]:
            return (args[0],)
        return _add_node_with_enough_keys(
            self.builder, replace(node, op=op), args, self.plan.time_symbol
        )

    def _is_all_padding(self, node: Node) -> bool:
        """Return True if a `pad` pads an empty axis, so that the result consists of padding."""
        if not isinstance(node.op, ops.Pad) or node.op.mode != "constant":
            return False
        return self._remove_time_axis(node.get_operand().shape[node.op.axis]) == 0

    def _build_filled_constant(self, type: Type, fill_value: float | bool) -> Value:
        """Return a constant of the type `type` with an empty time axis."""
        value = self.builder.add_op(ops.Constant(fill_value, type.dtype))
        for axis, length in enumerate(type.shape):
            value = self.builder.add_op(ops.Insert(axis), value)
            value = self.builder.add_op(ops.Expand(axis, self._remove_time_axis(length)), value)
        return value
