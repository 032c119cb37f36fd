"""Match linear recurrences, i.e. loops that scale a state matrix by a decay and add an outer
product in each iteration.

    S = decay * S                                      one decay ≥ 0 per head
    S = S + k ⊗ v                                      linear attention, Mamba-2
    S = S + k ⊗ (beta * (v - sum(S * delta_rule_key)))       delta rule
    y = sum(S * q)                                     sums over the key axis

The positions of a chunk of a linear recurrence can be computed in parallel
(`specc.transforms.chunk_scan`).
"""

from collections.abc import Iterator

from specc.analysis.value_ranges import find_value_range, skip_views
from specc.ir import ops
from specc.ir.graph import Node, NodeOperands, NodeResults, Value, collect_required_nodes
from specc.transforms.chunk_scan import LinearRecurrence
from specc.transforms.split_scan import find_vectorizable_nodes

MAX_LOOP_LENGTH = 16
"""Minimum number of iterations at which a linear recurrence is computed in chunks of positions."""


def match_linear_recurrence(op: ops.Scan, args: NodeOperands) -> LinearRecurrence | None:
    """Return the linear recurrence that the loop `op` computes, or None for other loops.

    `args` are the operands of the loop, which may include a decay that is computed before the loop.
    """
    is_simple = (
        op.axis == 1 and op.carry_count == 1 and op.end_condition_index == -1 and not op.reverse
    )
    if not is_simple or op.body.parameters:
        return None
    state, update = op.split_body_inputs().initial_carries[0], op.get_next_carries()[0]
    reads = [_match_read(v, update) for v in op.get_scan_outputs()]
    axes = {key_axis for key_axis, _ in filter(None, reads)}
    if state.dtype != "f32" or state.rank < 3 or len(axes) != 1 or None in reads:
        return None
    queries = tuple(query for _, query in filter(None, reads))
    recurrence = next(_match_update(state, update, axes.pop(), queries), None)
    return recurrence if recurrence and _is_vectorizable(op, recurrence, args) else None


def _list_operand_orders(value: Value, function_name: str) -> list[tuple[Value, Value]]:
    """Return the operands of the binary op `function_name` in both orders, or [] for other ops."""
    match value.node:
        case Node(op, (Value() as left, Value() as right)) if op == ops.Arith(function_name):
            return [(left, right), (right, left)]
    return []


def _match_read(value: Value, state: Value) -> tuple[int, Value] | None:
    """Match `sum(state * vector)` over the key axis -1 or -2. Return the axis and the vector."""
    for (first, second), labels in _list_einsum_operands(value):
        matrix, vector, result = labels
        key_axis = -1 if result == matrix[:-1] else -2
        if first is state and result == _remove_label(matrix, key_axis):
            return (key_axis, second) if vector == _remove_label(matrix, -3 - key_axis) else None
    match value.node:
        case Node(ops.Reduce("sum", axis), (Value() as product,)):
            rank, key_axis = state.rank, axis - state.rank
            for first, second in _list_operand_orders(product, "mul"):
                is_product = first is state and key_axis >= -2
                if is_product and _is_vector_along_axis(second, key_axis, rank):
                    return key_axis, second
    return None


def _list_einsum_operands(
    value: Value,
) -> list[tuple[tuple[Value, Value], tuple[list[str], list[str], list[str]]]]:
    """Return the operands of a two-operand einsum in both orders. Each order includes the axis
    labels of the first operand, the second operand and the result.
    """
    match value.node:
        case Node(ops.Einsum(equation), (Value() as a, Value() as b)):
            left, right, result = (t.split() for t in equation.replace("->", ",").split(","))
            return [((a, b), (left, right, result)), ((b, a), (right, left, result))]
    return []


def _remove_label(labels: list[str], axis: int) -> list[str]:
    return [*labels[:axis], *labels[len(labels) + axis + 1 :]]


def _iterate_outer_products(
    value: Value, key_axis: int, rank: int
) -> Iterator[tuple[Value, Value]]:
    """Yield the key and value vectors for each way to interpret `value` as an outer product."""
    for (key, other), (key_labels, other_labels, result_labels) in _list_einsum_operands(value):
        factors = [_remove_label(result_labels, axis) for axis in (-3 - key_axis, key_axis)]
        if [key_labels, other_labels] == factors:
            yield key, other
    for key, other in _list_operand_orders(value, "mul"):
        if _is_vector_along_axis(key, key_axis, rank) and _is_vector_along_axis(
            other, -3 - key_axis, rank
        ):
            yield key, other


def _is_vector_along_axis(value: Value, axis: int, rank: int) -> bool:
    """Return True if a value has `rank` axes and size 1 along the last axis other than `axis`."""
    shape = value.shape
    return len(shape) == rank and shape[-3 - axis] == 1 and shape[axis] != 1


def _match_update(
    state: Value, update: Value, key_axis: int, queries: NodeResults
) -> Iterator[LinearRecurrence]:
    rank = state.rank
    for decayed_state, increment in _list_operand_orders(update, "add"):
        decays = [
            d
            for d, s in _list_operand_orders(decayed_state, "mul")
            if s is state and _is_scalar_value(d, rank)
        ]
        if decayed_state is not state and not decays:
            continue
        decay = decays[0] if decays else None
        for key, value in _iterate_outer_products(increment, key_axis, rank):
            yield _match_delta_rule(decayed_state, value, key_axis, key, queries, decay) or (
                LinearRecurrence(
                    key_axis=key_axis, key=key, value=value, queries=queries, decay=decay
                )
            )


def _is_scalar_value(value: Value, rank: int) -> bool:
    """Return True if a value has `rank` axes and its last two axes have size 1."""
    shape = value.shape
    return len(shape) == rank and shape[-2] == 1 and shape[-1] == 1


def _match_delta_rule(
    decayed: Value,
    value: Value,
    key_axis: int,
    key: Value,
    queries: NodeResults,
    decay: Value | None,
) -> LinearRecurrence | None:
    """Match the delta rule: an update vector `beta * (v - sum(state * delta_rule_key))`, with or
    without an inserted key axis. Return the recurrence, or None if `value` does not match.
    """
    rank, difference = decayed.rank, value
    if value.node and value.op == ops.Insert(rank + key_axis):
        difference = value.node.get_operand()
    for beta, inner in [(None, difference), *_list_operand_orders(difference, "mul")]:
        match inner.node:
            case Node(ops.Arith("sub"), (Value() as target, Value() as predicted)):
                read = _match_read(predicted, decayed)
                is_scalar_beta = beta is None or (beta.rank == rank - 1 and beta.shape[-1] == 1)
                if read and read[0] == key_axis and is_scalar_beta:
                    return LinearRecurrence(
                        key_axis=key_axis,
                        key=key,
                        value=target,
                        queries=queries,
                        decay=decay,
                        delta_rule_beta=beta,
                        delta_rule_key=read[1],
                    )
    return None


def _is_vectorizable(op: ops.Scan, recurrence: LinearRecurrence, args: NodeOperands) -> bool:
    """Return True if the decay is non-negative and the keys, values, queries and betas do not
    depend on the state. They can then be computed for all positions in parallel.
    """
    inner, operands = op.split_body_inputs(), op.split_operands(args)
    scanned_inputs, captured = set(inner.scanned), set(inner.captured)
    vectorizable_nodes = find_vectorizable_nodes(op.body, scanned_inputs, captured, op.axis)
    vectorizable_values = scanned_inputs | {
        r for n, results in op.body.nodes if n in vectorizable_nodes for r in results
    }
    factors = (
        recurrence.key,
        recurrence.value,
        recurrence.delta_rule_beta,
        recurrence.delta_rule_key,
        *recurrence.queries,
    )
    if not all(v in vectorizable_values for v in factors if v):
        return False
    if recurrence.decay is None:
        return True
    scanned = dict(zip(inner.scanned, operands.scanned, strict=True))
    outer_values = scanned | op.map_captured_inputs(args)
    base = skip_views(recurrence.decay)
    is_decay_vectorizable = (
        recurrence.decay in vectorizable_values | captured
        and collect_required_nodes([recurrence.decay]) <= vectorizable_nodes
    )
    return (
        is_decay_vectorizable
        and find_value_range(outer_values.get(base, base) if base else None)[0] >= 0
    )
