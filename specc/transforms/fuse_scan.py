"""Fuse a `Scan` whose body contains an RNN, GRU or LSTM cell into an `rnn`, `gru` or `lstm` op.

    scan x in xs carry h collect logits {      hs, h = gru(xs, h)
      h = gru_cell(x, h)                  →    scan h in hs collect logits {
      logits = linear(h, w)                      logits = linear(h, w)
    }                                          }

The loop body is matched against patterns, which are the graphs of the cells in
`specs/std/recurrent.specc`. Other scan outputs may depend on the scanned values and the new state.
These scan outputs remain in a loop without loop-carried values, which is then vectorized
completely.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import (
    Graph,
    GraphBuilder,
    Input,
    Node,
    NodeOperands,
    NodeResults,
    Value,
    collect_required_nodes,
)
from specc.ir.op import Op
from specc.ir.ops.recurrent import RNN_ACTIVATIONS
from specc.ir.recurrent_as_loop import (
    CellCaptures,
    RecurrentCellBuilder,
    build_gru_gates,
    build_recurrent_cell,
)
from specc.ir.types import ShapeError, Type
from specc.transforms.split_scan import split_scan

FusedLayer = ops.Rnn | ops.Gru | ops.Lstm
GATE_COUNTS: Mapping[type[Op], int] = {ops.Rnn: 1, ops.Gru: 3, ops.Lstm: 4}
OPTIONAL_BIASES = ("b", "c", "c new")
"""The biases of patterns that a loop body may omit."""


def fuse_scan(b: GraphBuilder, op: Op, args: NodeOperands) -> NodeResults | None:
    """Replace a `Scan` over an RNN, GRU or LSTM cell by a recurrent layer (rewrite rule)."""
    if not isinstance(op, ops.Scan) or op.axis != 1 or op.end_condition_index != -1:
        return None
    inner = op.split_body_inputs()
    states = inner.initial_carries
    if not 1 <= op.carry_count <= 2 or any(s.rank != 2 for s in states):
        return None
    # Any scanned value may be the cell input, and the other scanned values may be used by scan
    # outputs.
    for element, cell in _iterate_element_patterns(inner.scanned, states):
        bindings = _match_cell(cell, element, states, op.get_next_carries())
        # At most one pattern matches, because no two cells compute the same function.
        if bindings is not None:
            return _LoopFusion(b, op, [a for a in args if a], cell, bindings).build_results(element)
    return None


def _iterate_element_patterns(
    scanned: Sequence[Value], states: Sequence[Value]
) -> "Iterator[tuple[Value, _CellPattern]]":
    """Yield pairs of a scanned value (a possible cell input) and a pattern for its type."""
    for element in scanned:
        if element.rank == 2 and element.shape[0] == states[0].shape[0]:
            for cell in _iterate_patterns(element.type, [s.type for s in states]):
                yield element, cell


@dataclass(frozen=True)
class _CellPattern:
    """The pattern of a cell. It consists of the recurrent layer `layer`, the inputs of the pattern
    by name (`leaves`), and the next states as functions of these inputs.
    """

    layer: FusedLayer
    leaves: dict[str, Value]
    next_states: NodeResults


@dataclass(frozen=True)
class _PatternBuilder(RecurrentCellBuilder):
    """A builder for the pattern of a recurrent cell with an input type and state types."""

    element_type: Type
    state_types: Sequence[Type]

    def add_input(self, name: str, *shape: Dim) -> Value:
        """Add an input to the pattern."""
        return self.b.add_input(name, Input(Type(self.element_type.dtype, shape)))

    def add_linear_weights(self, weight: str, bias: str, out: Dim, width: Dim) -> dict[str, Value]:
        """Add the weight `[out, width]` and the bias of a linear layer as inputs."""
        return {weight: self.add_input(weight, out, width), bias: self.add_input(bias, out)}

    def build_pattern(self, layer: FusedLayer) -> _CellPattern:
        """Return the pattern of the cell of `layer`."""
        size, gates = self.state_types[0].shape[1], GATE_COUNTS[type(layer)]
        x = self.add_input("x", *self.element_type.shape)
        states = [
            self.add_input(name, *s.shape)
            for name, s in zip(("h", "cell"), self.state_types, strict=False)
        ]
        weights = self.add_linear_weights("w", "b", size * gates, self.element_type.shape[1])
        projection = self.add_linear(x, weights["w"], weights["b"])
        is_split = isinstance(layer, ops.Gru) and layer.reset == "before"
        weights |= self.add_linear_weights("u", "c", size * (gates - is_split), size)
        if is_split:
            weights |= self.add_linear_weights("u new", "c new", size, size)
        if isinstance(layer, ops.Gru):
            mixed = self._mix_gru_states(layer, projection, states[0], weights)
            next_states: Sequence[Value] = [mixed]
        else:
            next_states = build_recurrent_cell(self, layer, projection, states, weights)
        return _CellPattern(layer, self.b.inputs, tuple(next_states))

    def _mix_gru_states(self, op: ops.Gru, x: Value, h: Value, weights: CellCaptures) -> Value:
        """Return the next state `z * h + (1 - z) * candidate`, as in `specs/std`."""
        z, candidate = build_gru_gates(self, op, x, h, weights)
        complement = self.add_op("sub", self.add_input("one"), z)
        # Depending on `op.update`, the update gate is the fraction of the old state that is kept or
        # replaced.
        keep, update = (z, complement) if op.update == "old" else (complement, z)
        update_term = self.add_op("mul", update, candidate)
        return self.add_op("add", update_term, self.add_op("mul", keep, h))


def _iterate_patterns(element_type: Type, state_types: Sequence[Type]) -> Iterator[_CellPattern]:
    """Yield the patterns of all recurrent cells for an input type and state types."""
    layers: Sequence[FusedLayer] = [ops.Lstm()] if state_types[0] == state_types[-1] else []
    if len(state_types) == 1:
        # There are four GRU variants: the reset gate is applied before or after the recurrent
        # projection, and the update gate selects the old or the new state.
        grus = [ops.Gru(r, u) for r in ("after", "before") for u in ("old", "new")]
        layers = [*(ops.Rnn(name) for name in RNN_ACTIVATIONS), *grus]
    for layer in layers:
        yield _PatternBuilder(GraphBuilder(), element_type, state_types).build_pattern(layer)


LeafBindings = dict[Value, Value]


def _match_cell(
    cell: _CellPattern, element: Value, states: Sequence[Value], next_states: Sequence[Value]
) -> LeafBindings | None:
    """Match the next states of a loop body against the pattern of a cell. Return the body value
    that matches each pattern input, or None if the body does not match.
    """
    # A cell without biases matches the pattern without optional biases.
    optional_inputs = {cell.leaves[n] for n in OPTIONAL_BIASES if n in cell.leaves}
    bindings: LeafBindings | None = dict(
        zip(
            (cell.leaves[n] for n in ("x", "h", "cell") if n in cell.leaves),
            (element, *states),
            strict=True,
        )
    )
    for pattern, value in zip(cell.next_states, next_states, strict=True):
        if bindings is not None:
            bindings = _match_value(pattern, value, bindings, optional_inputs)
    return bindings


def _match_value(
    pattern: Value, value: Value | None, bindings: LeafBindings, pattern_inputs: set[Value]
) -> LeafBindings | None:
    """Match a value against a pattern. Return `bindings` together with the pattern inputs that were
    matched, or None if the value does not match. Operands of sums and products match in either
    order.
    """
    if pattern.node is None:
        return _match_leaf(pattern, value, bindings, pattern_inputs)
    if value is None or value.node is None or value.node.op != pattern.node.op:
        return None
    # Sums may be written in either order, and trying both orders avoids additional patterns.
    orders = [value.node.args]
    if value.node.op in (ops.Arith("add"), ops.Arith("mul")):
        orders.append(value.node.args[::-1])
    for order in orders:
        extended = _match_operands(pattern.node.args, order, bindings, pattern_inputs)
        if extended is not None:
            return extended
    return None


def _match_leaf(
    leaf: Value, value: Value | None, bindings: LeafBindings, pattern_inputs: set[Value]
) -> LeafBindings | None:
    """Bind the pattern input `leaf` to `value`, or return None if its value or type differs."""
    if value is None:
        return bindings if leaf in pattern_inputs else None
    if leaf in bindings:
        return bindings if bindings[leaf] is value else None
    return {**bindings, leaf: value} if leaf.type == value.type else None


def _match_operands(
    patterns: NodeOperands, values: NodeOperands, bindings: LeafBindings, pattern_inputs: set[Value]
) -> LeafBindings | None:
    """Match all operands of a node. An optional operand that is absent may be None or omitted."""
    extended: LeafBindings | None = bindings
    for pattern, value in zip_longest(patterns, values):
        if pattern is None or extended is None:
            return None
        extended = _match_value(pattern, value, extended, pattern_inputs)
    return extended


class _LoopFusion:
    """A loop over a recurrent cell that is fused into a recurrent layer."""

    def __init__(
        self,
        b: GraphBuilder,
        op: ops.Scan,
        args: list[Value],
        cell: _CellPattern,
        bindings: LeafBindings,
    ) -> None:
        self.b, self.op, self.cell = b, op, cell
        self.operands, self.inner = op.split_operands(args), op.split_body_inputs()
        self.outer = dict(zip(op.body.inputs.values(), self.operands.body_operands, strict=True))
        self.leaves = {
            name: bindings[leaf] for name, leaf in cell.leaves.items() if leaf in bindings
        }

    def build_results(self, element: Value) -> NodeResults | None:
        """Add the recurrent layer that replaces the loop, and return its final states and scan
        outputs. `element` is the body input that receives one time step of the scanned operand.
        Return None if a weight is computed inside the loop, or if a scan output cannot be computed
        from the new states.
        """
        b, op = self.b, self.op
        weights = self._map_weights()
        scan_outputs, state = op.get_scan_outputs(), op.get_next_carries()[0]
        if None in weights.values() or not self._subtracts_from_one():
            return None
        if not self._is_computable_from_state(scan_outputs, state):
            return None
        u, c = (
            self._build_combined_weight(weights.get(n), weights.get(f"{n} new")) for n in ("u", "c")
        )
        cell_operands = (self.outer[element], weights["w"], u, weights.get("b"), c)
        operands = (*cell_operands, self.operands.keep, *self.operands.initial_carries)
        layer = replace(self.cell.layer, reverse=op.reverse)
        try:
            results = b.add_node(layer, *operands)
        except ShapeError:
            return None
        return (*results[1:], *self._build_scan_output(scan_outputs, state, results[0]))

    def _map_weights(self) -> dict[str, Value | None]:
        """Return the outer value of each weight, or None if the loop computes a weight. All pattern
        inputs except the cell input and the states are weights.
        """
        non_weights = ("x", "h", "cell", "one")
        return {n: self.outer.get(v) for n, v in self.leaves.items() if n not in non_weights}

    def _build_scan_output(
        self, scan_outputs: Sequence[Value], state: Value, states: Value
    ) -> Iterator[Value]:
        """Yield the scan outputs of the fused loop. A scan output that is equal to `state` is
        replaced with `states`, the layer's states at all positions. All other scan outputs are
        recomputed.
        """
        others = [v for v in scan_outputs if v is not state]
        values = iter(self._build_other_values(others, state, states) if others else ())
        return (states if v is state else next(values) for v in scan_outputs)

    def _subtracts_from_one(self) -> bool:
        """Return True if gates are subtracted from the constant 1."""
        if "one" not in self.leaves:
            return True
        value = self.outer.get(self.leaves["one"], self.leaves["one"])
        return value.op == ops.Constant(1.0, value.dtype)

    def _is_computable_from_state(self, scan_outputs: Sequence[Value], new_state: Value) -> bool:
        """Return True if all scan outputs can be computed from scanned values and the new state."""
        other_outputs = [v for v in scan_outputs if v is not new_state]
        nodes = collect_required_nodes(
            other_outputs, lambda node: [a for a in node.operands if a is not new_state]
        )
        read_values = (*other_outputs, *(a for node in nodes for a in node.operands))
        return {*self.inner.initial_carries}.isdisjoint(read_values)

    def _build_combined_weight(
        self, first_part: Value | None, other_part: Value | None
    ) -> Value | None:
        """Return the weight of all gates: the concatenation of two weights, or one weight of which
        both are slices.
        """
        if first_part is None or other_part is None:
            return first_part
        match first_part.node, other_part.node:
            case (
                Node(ops.Slice(0, start, middle), (Value() as source,)),
                Node(ops.Slice(0, other_start, stop), (Value() as other,)),
            ) if source is other:
                # the two slices are adjacent and together cover the complete weight
                if start == 0 and other_start == middle and stop == source.shape[0]:
                    return source
        return self.b.add_op(ops.Concat(0), first_part, other_part)

    def _build_other_values(
        self, values: Sequence[Value], new_state: Value, states: Value
    ) -> NodeResults:
        """Compute the other scan outputs, `values`, from the scanned operands and the `states` of
        the layer, in a loop without loop-carried values.
        """
        op, builder = self.op, GraphBuilder()
        inputs = {f"row {n}": v for n, v in enumerate(self.inner.scanned)} | {"state": new_state}
        inputs |= {f"outer {n}": v for n, v in enumerate(self.inner.captured)}
        new_values = {v: builder.add_input(name, Input(v.type)) for name, v in inputs.items()}
        computed = [v for v in values if v not in inputs.values()]
        body_inputs = frozenset(new_values)
        nodes = collect_required_nodes(
            computed, lambda n: [a for a in n.operands if a not in body_inputs]
        )
        builder.copy_nodes(op.body, new_values, nodes)
        body: Graph = builder.build_graph(
            "body", {f"out {n}": new_values[v] for n, v in enumerate(values)}
        )
        loop = ops.Scan(body, op.scanned_count + 1, 0, 1, op.reverse, op.has_mask)
        keep = [self.operands.keep] if self.operands.keep else []
        args = [*keep, *self.operands.scanned, states, *self.operands.captured]
        return split_scan(self.b, loop, args) or self.b.add_node(loop, *args)
