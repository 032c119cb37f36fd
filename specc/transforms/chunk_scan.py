"""Compute a linear recurrence in chunks of positions, as Mamba-2 and Gated DeltaNet do.

In a chunk with the initial state S, the cumulative decay d[t] and
D[t, s] = d[t] / d[s] for s ≤ t:

    y = (q kᵀ * D) u + d * (q S)          S ← d[last] * S + (k * D[last])ᵀ u

where u = v or, with the delta rule, the solution of
(I + strictly lower part of beta * (r kᵀ * D)) u = beta * (v - d * (r S)).
Source: arXiv:2405.21060, sec. 6; arXiv:2412.06464, eq. 9 and appendix A.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, floor_divide_dims
from specc.ir.graph import Graph, GraphBuilder, Input, NodeResults, Value
from specc.ir.recurrent_as_loop import RecurrentCellBuilder
from specc.ir.types import Type
from specc.transforms.split_scan import (
    find_vectorizable_nodes,
    vectorize_nodes,
    zero_masked_positions,
)

CHUNK_LENGTH = 64
"""The number of positions per chunk."""
CHUNK = Dim.from_value(CHUNK_LENGTH)


@dataclass(frozen=True, kw_only=True)
class LinearRecurrence:
    """The operands of a linear recurrence in a loop body. The operands do not depend on the state.

    The last two axes of the state are the key axis and the value axis, in either order: `key_axis`
    is -2 or -1. The value axis of the keys and the queries is absent or has size 1. The key axis of
    the values is absent or has size 1. `decay` has size 1 along the key axis and the value axis.
    `delta_rule_beta` [*lead, 1] is the update strength β of the delta rule.
    """

    key_axis: int
    key: Value
    value: Value
    queries: NodeResults
    decay: Value | None
    delta_rule_beta: Value | None = None
    delta_rule_key: Value | None = None

    @property
    def value_axis(self) -> int:
        """The index of the state's value axis, which is also an axis of the results."""
        return -3 - self.key_axis


def build_chunkwise_recurrence(
    b: GraphBuilder, op: ops.Scan, args: Sequence[Value], recurrence: LinearRecurrence
) -> NodeResults:
    """Add nodes that compute the loop `op` with the body `recurrence` chunk by chunk. Return the
    results of the loop: the final state and one scan output per query. `args` contains the operands
    of the loop.
    """
    operands, inner = op.split_operands(args), op.split_body_inputs()
    length, rank = operands.scanned[0].shape[1], operands.initial_carries[0].rank
    values = dict(zip(inner.scanned, operands.scanned, strict=True))
    captures = op.map_captured_inputs(args)
    vectorizable = find_vectorizable_nodes(op.body, {*inner.scanned}, {*captures}, op.axis)
    nodes = [n for n, _ in op.body.nodes if n in vectorizable]
    vectorize_nodes(b, op, nodes, values, captures)
    if recurrence.decay in captures:
        expanded = b.add_op(ops.Insert(1), captures[recurrence.decay])
        values[recurrence.decay] = b.add_op(ops.Expand(1, length), expanded)
    chunks = _ChunkedOperands(b, recurrence, operands.keep, length, rank).split_operands(values)
    state = _transpose_state(b, recurrence, operands.initial_carries[0])
    masks = _add_masks(b, recurrence.delta_rule_key is not None)
    body = _ChunkBodyBuilder(GraphBuilder(), rank).build_body(chunks, state, masks)
    loop = ops.Scan(body, len(chunks), 1, 1)
    final, *chunk_outputs = b.add_node(loop, *chunks.values(), state, *masks)
    # merge the chunks [b, chunks, 64, …] into positions [b, n, …]
    merged = (b.add_op(ops.Merge(1, 2), y) for y in chunk_outputs)
    outputs = (b.add_op(ops.Slice(1, Dim.from_value(0), length), y) for y in merged)
    masked = [zero_masked_positions(b, y, operands.keep) for y in outputs]
    return (_transpose_state(b, recurrence, final), *masked)


def _transpose_state(b: GraphBuilder, recurrence: LinearRecurrence, state: Value) -> Value:
    """Swap the key axis and the value axis of the state, unless the key axis is first."""
    return state if recurrence.key_axis == -2 else _transpose_matrix(b, state)


def _transpose_matrix(b: GraphBuilder, x: Value) -> Value:
    rank = x.rank
    return b.add_op(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)


@dataclass(frozen=True)
class _ChunkedOperands:
    """The operands of the recurrence, [b, n, …, x], split into chunks, [b, chunks, 64, …, x].

    At masked positions and in the padding of the last chunk, keys, values and the logarithm of the
    decay are zero, which leaves the state unchanged.
    """

    b: GraphBuilder
    recurrence: LinearRecurrence
    keep: Value | None
    length: Dim
    rank: int

    def split_operands(self, full_values: dict[Value, Value]) -> dict[str, Value]:
        """Return the operands by name: `query 0`, `query 1`, …, `key`, `value`, `decay`, …"""
        recurrence, value_axis = self.recurrence, self.recurrence.value_axis
        queries = {
            f"query {n}": self._get_vectors(full_values, q, value_axis)
            for n, q in enumerate(recurrence.queries)
        }
        queries = {name: self._split_into_chunks(x) for name, x in queries.items()}
        updates = {
            "key": self._get_vectors(full_values, recurrence.key, value_axis),
            "value": self._get_vectors(full_values, recurrence.value, recurrence.key_axis),
        }
        if recurrence.decay is not None:
            decay = self._get_vectors(full_values, recurrence.decay, -1)
            updates["log decay"] = self.b.add_op(ops.Pointwise("log"), decay)
        if recurrence.delta_rule_key is not None:
            updates["read key"] = self._get_vectors(
                full_values, recurrence.delta_rule_key, value_axis
            )
        if recurrence.delta_rule_beta is not None:
            updates["beta"] = full_values[recurrence.delta_rule_beta]
        masked = {n: zero_masked_positions(self.b, x, self.keep) for n, x in updates.items()}
        return queries | {name: self._split_into_chunks(x) for name, x in masked.items()}

    def _get_vectors(self, full_values: dict[Value, Value], value: Value, axis: int) -> Value:
        """Return `value` at all positions. If the value has the rank of the state, remove the axis
        `axis`, which has size 1. `full_values` maps values of the body to values at all positions.
        """
        x = full_values[value]
        if value.rank < self.rank:
            return x
        return self.b.add_op(ops.Squeeze(self.rank + 1 + axis), x)

    def _split_into_chunks(self, x: Value) -> Value:
        count = floor_divide_dims(self.length + CHUNK_LENGTH - 1, CHUNK_LENGTH)
        padded = self.b.add_op(
            ops.Pad(1, Dim.from_value(0), count * CHUNK_LENGTH - self.length, value=0.0), x
        )
        return self.b.add_op(ops.Split(1, (count, CHUNK)), padded)


def _add_masks(b: GraphBuilder, solves_system: bool) -> list[Value]:
    """Add [64, 64] masks of the lower triangle, with and without the diagonal. If `solves_system`
    is True (delta rule), also add the identity matrix. In addition, for each block size 1, 2, 4, …,
    add a mask of the blocks to the left of every second diagonal block.
    """
    positions = b.add_op(ops.Range(CHUNK))
    row, column = b.add_op(ops.Insert(1), positions), b.add_op(ops.Insert(0), positions)
    masks = [b.add_op(ops.Compare(fn), row, column) for fn in ("ge", "gt")]
    if not solves_system:
        return masks
    is_equal = b.add_op(ops.Compare("eq"), row, column)
    masks.append(b.add_op(ops.Cast("f32"), is_equal))
    size = 1
    while size < CHUNK_LENGTH:
        is_in_pair = _compare_blocks(b, "eq", row, column, 2 * size)
        is_left = _compare_blocks(b, "gt", row, column, size)
        masks.append(b.add_op(ops.And(), is_in_pair, is_left))
        size *= 2
    return masks


def _compare_blocks(b: GraphBuilder, fn: str, row: Value, column: Value, size: int) -> Value:
    width = b.add_op(ops.Constant(size, "i64"))
    blocks = [b.add_op(ops.Arith("floordiv"), x, width) for x in (row, column)]
    return b.add_op(ops.Compare(fn), *blocks)


@dataclass(frozen=True)
class _ChunkBodyBuilder(RecurrentCellBuilder):
    """A builder for the loop body that processes one chunk (operands [*lead, 64, x], state [*lead,
    k, v]).
    """

    rank: int

    def build_body(
        self, chunk_operands: Mapping[str, Value], initial_state: Value, masks: Sequence[Value]
    ) -> Graph:
        """Build the body of the loop over chunks. The inputs of the body are slices of
        `chunk_operands`, the state and `masks`. The outputs of the body are the next state and a
        result per query.
        """
        inputs = {name: self._add_chunk_input(name, x) for name, x in chunk_operands.items()}
        state = self.b.add_input("state", Input(initial_state.type))
        lower, *others = (self.b.add_input(f"mask {n}", Input(m.type)) for n, m in enumerate(masks))
        decays = _Decays.from_logarithms(self, inputs.get("log decay"), lower, others[0])
        if "read key" in inputs:
            inputs["value"] = self._solve_delta_rule(inputs, decays, state, others)
        key, value = inputs["key"], inputs["value"]
        outputs = {"next state": self._compute_next_state(decays, key, value, state)}
        for name in [name for name in inputs if name.startswith("query")]:
            weights = self.add_op("mul", self._multiply_positions(inputs[name], key), decays.pairs)
            from_chunk = self.add_matmul(weights, value)
            from_state = decays.decay_state(self, self.add_matmul(inputs[name], state))
            outputs[f"result of {name}"] = self._move_positions_back(
                self.add_op("add", from_chunk, from_state)
            )
        return self.b.build_graph("chunk", outputs)

    def add_matmul(self, left: Value, right: Value) -> Value:
        """Add a MatMul."""
        return self.b.add_op(ops.MatMul(), left, right)

    def slice_last_position(self, x: Value) -> Value:
        """Slice the last position of the chunk."""
        return self.b.add_op(ops.Slice(self.rank - 2, CHUNK - 1, CHUNK), x)

    def _add_chunk_input(self, name: str, x: Value) -> Value:
        """Add an input for a chunk [b, 64, …, x], and move its position axis to index -2."""
        shape = (x.shape[0], *x.shape[2:])
        chunk = self.b.add_input(name, Input(Type(x.dtype, shape)))
        order = (0, *range(2, self.rank - 1), 1, self.rank - 1)
        return self.b.add_op(ops.Transpose(order), chunk)

    def _move_positions_back(self, y: Value) -> Value:
        last = self.rank - 1
        return self.b.add_op(ops.Transpose((0, last - 1, *range(1, last - 1), last)), y)

    def _multiply_positions(self, left: Value, right: Value) -> Value:
        """Return the dot products of all positions of `left` and `right`, [*lead, 64, 64]."""
        return self.add_matmul(left, _transpose_matrix(self.b, right))

    def _compute_next_state(
        self, decays: "_Decays", key: Value, value: Value, state: Value
    ) -> Value:
        decay_to_end = _transpose_matrix(self.b, self.slice_last_position(decays.pairs))
        key = self.add_op("mul", key, decay_to_end)
        update = self.add_matmul(_transpose_matrix(self.b, key), value)
        decayed = state
        if decays.total is not None:
            decayed = self.add_op("mul", self.slice_last_position(decays.total), state)
        return self.add_op("add", decayed, update)

    def _solve_delta_rule(
        self,
        chunk_operands: Mapping[str, Value],
        decays: "_Decays",
        state: Value,
        masks: Sequence[Value],
    ) -> Value:
        """Return the values `u` that the delta rule writes to the state (see module docstring)."""
        strict, identity, *levels = masks
        zero = self.b.add_op(ops.Constant(0.0, "f32"))
        delta_rule_key, beta = chunk_operands["read key"], chunk_operands.get("beta")
        pairs = self.add_op(
            "mul", self._multiply_positions(delta_rule_key, chunk_operands["key"]), decays.pairs
        )
        system = self.b.add_op(ops.Where(), strict, pairs, zero)
        from_state = decays.decay_state(self, self.add_matmul(delta_rule_key, state))
        targets = self.add_op("sub", chunk_operands["value"], from_state)
        if beta is not None:
            system, targets = (self.add_op("mul", beta, system), self.add_op("mul", beta, targets))
        # The inverse of [[A, 0], [B, C]] is [[A⁻¹, 0], [-C⁻¹ B A⁻¹, C⁻¹]]. A Neumann series would
        # cost as much, and would lose all precision if keys are similar.
        inverse = identity
        for level in levels:
            block = self.b.add_op(ops.Where(), level, system, zero)
            if inverse is not identity:
                block = self.add_matmul(inverse, self.add_matmul(block, inverse))
            inverse = self.add_op("sub", inverse, block)
        return self.add_matmul(inverse, targets)


@dataclass(frozen=True)
class _Decays:
    """The decays in a chunk. `pairs`, [*lead, 64, 64], contains the decay from each position to
    each later position, and zeros for earlier positions. `total`, [*lead, 64, 1], contains the
    decay from the state before the chunk to each position (None if the recurrence has no decay).
    """

    pairs: Value
    total: Value | None

    @classmethod
    def from_logarithms(
        cls, body: _ChunkBodyBuilder, log_decay: Value | None, lower: Value, strict_mask: Value
    ) -> "_Decays":
        """Compute the decays from their logarithms, [*lead, 64, 1]."""
        b, axis = body.b, body.rank - 2
        if log_decay is None:
            pairs = b.add_op(ops.Cast("f32"), lower)
            for _ in range(axis):
                pairs = b.add_op(ops.Insert(0), pairs)
            return cls(pairs, None)
        zero = b.add_op(ops.Constant(0.0, "f32"))
        # Sum the logarithms of the decays between two positions, because differences of cumulative
        # sums lose precision.
        between = b.add_op(ops.CumSum(axis), b.add_op(ops.Where(), strict_mask, log_decay, zero))
        pairs = b.add_op(ops.Where(), lower, body.add_op("exp", between), zero)
        return cls(pairs, body.add_op("exp", b.add_op(ops.CumSum(axis), log_decay)))

    def decay_state(self, body: _ChunkBodyBuilder, x: Value) -> Value:
        """Return `x` multiplied by the decay from the beginning of the chunk to each position."""
        return x if self.total is None else body.add_op("mul", self.total, x)
