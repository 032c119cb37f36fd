"""Lower `Scan` to ONNX `Scan` or `Loop`. A linear recurrence over many positions is computed in
chunks.

A loop body accesses captured values of the outer graph by name. ONNX Runtime's `Scan` rejects empty
axes. An axis that may be empty is padded with one position, and the results for this position are
removed.
"""

from collections.abc import Sequence

from onnx import GraphProto

from specc.analysis.linear_recurrence import MAX_LOOP_LENGTH, match_linear_recurrence
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Value, collect_required_nodes
from specc.ir.ops.loop import LoopOperands, remove_axis
from specc.ir.types import Type
from specc.transforms.chunk_scan import LinearRecurrence, build_chunkwise_recurrence
from specc_onnx.lower.dynamic_shapes import assume_nonzero_dims
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower, lower_by_expansion, lower_nodes
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_axis_length,
    emit_count_nonzero,
    emit_full,
    emit_padding_to_min_length,
    emit_reshape,
)
from specc_onnx.lower.subgraphs import emit_if, emit_subgraph_outputs, make_subgraph_proto


@lower
def scan(op: ops.Scan, g: Emitter, *args: Tensor) -> tuple[OnnxValue, ...]:
    """Lower a `Scan` to a loop over positions, or over chunks for long linear recurrences."""
    recurrence = match_linear_recurrence(op, [a.value for a in args])
    length = op.split_operands(args).scanned[0].shape[op.axis]
    if recurrence is None or (length.number or MAX_LOOP_LENGTH + 1) <= MAX_LOOP_LENGTH:
        return emit_scan(op, g, *args)
    if length.number is not None:
        return _emit_chunks(op, g, args, recurrence)
    g.analysis.add_branch_threshold(length, MAX_LOOP_LENGTH)
    with g.hoist_nodes("lengths"):
        is_long = g.emit_length(length) > MAX_LOOP_LENGTH

    def compute_chunks() -> tuple[OnnxValue, ...]:
        with assume_nonzero_dims(g, length):
            return _emit_chunks(op, g, args, recurrence)

    branches = {"chunks": compute_chunks, "positions": lambda: emit_scan(op, g, *args)}
    return emit_if(g, is_long, g.context.types, branches)


def _emit_chunks(
    op: ops.Scan, g: Emitter, args: Sequence[Tensor], recurrence: LinearRecurrence
) -> tuple[OnnxValue, ...]:
    def add_chunks(b: GraphBuilder, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return build_chunkwise_recurrence(b, op, [x for x in inputs if x], recurrence)

    return lower_by_expansion(g, args, add_chunks)


def emit_scan(op: ops.Scan, g: Emitter, *args: Tensor) -> tuple[OnnxValue, ...]:
    """Emit a `Scan`, or a `Loop` if the loop has an early exit or the target requires `Loop`."""
    if op.end_condition_index != -1 or g.target.loop_operator == "loop":
        return emit_loop(op, g, *args)
    operands = op.split_operands(args)
    scanned_inputs, axes = _emit_scanned_operands(op, g, operands)
    body = _build_scan_body(op, g, operands)
    directions = [int(op.reverse)]
    scan_output_count = len(op.body.outputs) - op.carry_count
    results = g.emit_multi_output_node(
        "Scan",
        len(op.body.outputs),
        *operands.initial_carries,
        *scanned_inputs,
        body=body,
        num_scan_inputs=len(scanned_inputs),
        scan_input_axes=axes,
        scan_input_directions=directions * len(scanned_inputs),
        scan_output_directions=directions * scan_output_count if scan_output_count else None,
    )
    # ONNX Runtime 1.31 crashes with `scan_output_axes` if the batch is empty
    scan_outputs = [
        _emit_moved_axis(name, 0, op.axis, type.rank)
        for name, type in zip(
            results[op.carry_count :], g.context.types[op.carry_count :], strict=True
        )
    ]
    results = (*results[: op.carry_count], *scan_outputs)
    length = operands.scanned[0].shape[op.axis]
    if g.lengths.is_positive(length):
        return results
    return _emit_without_placeholder(op, g, results, operands.initial_carries, length)


def _emit_scanned_operands(
    op: ops.Scan, g: Emitter, operands: LoopOperands[Tensor]
) -> tuple[list[OnnxValue], list[int]]:
    """Emit scanned inputs, padded to at least one position. Return the inputs and scan axes."""
    tensors, axes = [*operands.scanned], [op.axis] * op.scanned_count
    # The time axis of the padding mask `keep` `[b, t]` is always 1.
    if operands.keep is not None:
        tensors, axes = [operands.keep, *tensors], [1, *axes]
    inputs = [emit_padding_to_min_length(t, axis) for t, axis in zip(tensors, axes, strict=True)]
    for n, (x, axis) in enumerate(zip(tensors, axes, strict=True)):
        if any(not g.lengths.is_positive(d) for d in x.shape[axis + 1 :]):
            # ONNX Runtime 1.31 crashes with `scan_input_axes` if a later axis is empty, such as the
            # time axis of an empty cache
            inputs[n], axes[n] = _emit_moved_axis(inputs[n], axis, 0, x.rank), 0
    return inputs, axes


def _emit_moved_axis(x: OnnxValue, axis: int, target: int, rank: int) -> OnnxValue:
    """Move `axis` of `x` to index `target`."""
    order = [n for n in range(rank) if n != axis]
    order.insert(target, axis)
    return x if axis == target else x.transpose(order)


def _emit_without_placeholder(
    op: ops.Scan,
    g: Emitter,
    results: tuple[OnnxValue, ...],
    initial_carries: Sequence[Tensor],
    length: Dim,
) -> tuple[OnnxValue, ...]:
    """Emit the results of a `Scan` over an axis of size `length`. If a placeholder position was
    added because the axis is empty, return the initial loop-carried values and empty scan outputs.
    """
    has_positions = g.emit_length(length) > 0
    final_carries = [
        has_positions.where(final_carry, initial_carry)
        for initial_carry, final_carry in zip(
            initial_carries, results[: op.carry_count], strict=True
        )
    ]
    scan_outputs = [r.slice(op.axis, 0, length) for r in results[op.carry_count :]]
    return (*final_carries, *scan_outputs)


def _build_scan_body(op: ops.Scan, g: Emitter, operands: LoopOperands[Tensor]) -> GraphProto:
    """Build the body graph. Its inputs are in ONNX's order: loop-carried values, `keep`, scanned
    slices.
    """
    body_inputs = list(op.body.inputs.items())
    scanned_inputs, carried_inputs = (
        body_inputs[: op.scanned_count],
        body_inputs[op.scanned_count : op.scanned_count + op.carry_count],
    )
    with g.open_body() as body:
        keep = operands.keep and g.new_tensor("keep", remove_axis(operands.keep.type, 1))
        inputs = [add_subgraph_input(g, name, value) for name, value in carried_inputs]
        inputs += [keep] if keep else []
        inputs += [add_subgraph_input(g, name, value) for name, value in scanned_inputs]
        results = lower_scan_body(op, g, operands.captured, keep)
    types = [v.type for v in op.body.outputs.values()]
    return make_subgraph_proto(g.make_scoped_name("body"), body, results, types, inputs)


def add_subgraph_input(g: Emitter, name: str, value: Value) -> Tensor:
    """Bind `value` to a new subgraph input and return it. The unique name of the input begins with
    `name`.
    """
    g.values.tensors[value] = g.new_tensor(name, value.type, value)
    return g.values.tensors[value]


def lower_scan_body(
    op: ops.Scan, g: Emitter, captured: Sequence[Tensor], position_mask: Tensor | None
) -> list[OnnxValue]:
    """Lower the body of one iteration and return the outputs of the body. At masked positions, the
    loop-carried values are unchanged and the scan outputs are zeros.
    """
    values, body_inputs = list(op.body.outputs.values()), op.split_body_inputs()
    g.values.tensors.update(zip(body_inputs.captured, captured, strict=True))
    for name, value in op.body.parameters.items():
        g.values.tensors[value] = g.values.parameters[name]
    if op.unfrozen_output_count:
        results = _lower_body_with_early_exit(op, g)
    else:
        lower_nodes(g, op.body)
        results = [*g.get_tensors(values)]
    if position_mask is not None:
        zeros = [g.emit_constant(0, v.type.dtype) for v in values[op.carry_count :]]
        old_values = [*g.get_tensors(body_inputs.initial_carries), *zeros]
        results = [
            _emit_at_valid_positions(position_mask, result.with_type(v.type), old_value)
            for v, result, old_value in zip(values, results, old_values, strict=True)
        ]
    return emit_subgraph_outputs(g, results)


def _lower_body_with_early_exit(op: ops.Scan, g: Emitter) -> list[OnnxValue]:
    """Lower the loop body. Conditional outputs are computed in an `If`, which is skipped after all
    sequences have ended.
    """
    values = list(op.body.outputs.values())
    conditional_outputs = values[: len(values) - op.unfrozen_output_count]
    unconditional_nodes = collect_required_nodes(values[len(conditional_outputs) :])
    lower_nodes(g, op.body, unconditional_nodes)
    initial_carries = op.split_body_inputs().initial_carries
    any_unfinished = _emit_any_unfinished(g.values.tensors[initial_carries[op.end_condition_index]])
    types = [v.type for v in conditional_outputs]

    def lower_body() -> Sequence[OnnxValue]:
        lower_nodes(g, op.body, {n for n, _ in op.body.nodes} - unconditional_nodes)
        return g.get_tensors(conditional_outputs)

    def emit_unchanged() -> list[OnnxValue]:
        zeros = [emit_full(g, 0, t.dtype, t.shape) for t in types[op.carry_count :]]
        return [*g.get_tensors(initial_carries), *zeros]

    branches = {"unfinished": lower_body, "finished": emit_unchanged}
    results = emit_if(g, any_unfinished, types, branches)
    return [*results, *g.get_tensors(values[len(conditional_outputs) :])]


def _emit_at_valid_positions(
    position_mask: Tensor, new_value: Tensor, old_value: OnnxValue
) -> OnnxValue:
    """Select `new_value` `[b, …]` where `position_mask`, bool[b], is true, else `old_value`."""
    shape = (*position_mask.shape, *[Dim.from_value(1)] * (new_value.rank - position_mask.rank))
    return emit_reshape(position_mask, shape).where(new_value, old_value)


def emit_loop(op: ops.Scan, g: Emitter, *args: Tensor) -> tuple[OnnxValue, ...]:
    """Emit a `Loop` node that runs over all positions, or until all sequences are finished."""
    operands = op.split_operands(args)
    length = operands.scanned[0].shape[op.axis]
    iterations = g.emit_length(length)
    body = _build_loop_body(op, g, operands, iterations)
    has_early_exit = _has_early_exit(op)
    condition = None
    if has_early_exit:
        condition = _emit_any_unfinished(operands.initial_carries[op.end_condition_index])
    loop_inputs = (iterations, condition, *operands.initial_carries)
    results = g.emit_multi_output_node("Loop", len(op.body.outputs), *loop_inputs, body=body)
    # the scan outputs are complete if all iterations run and there is at least one iteration
    has_all_iterations = not has_early_exit and g.lengths.is_positive(length)
    scan_outputs = []
    for scan_output, type in zip(
        results[op.carry_count :], g.context.types[op.carry_count :], strict=True
    ):
        if not has_all_iterations:
            scan_output = _emit_zero_filled(op, g, scan_output, type, iterations)
        if op.reverse:
            scan_output = scan_output.apply_op("Slice", [-1], [-(2**62)], [0], [-1])
        scan_outputs.append(_emit_moved_axis(scan_output, 0, op.axis, type.rank))
    return (*results[: op.carry_count], *scan_outputs)


def _build_loop_body(
    op: ops.Scan, g: Emitter, operands: LoopOperands[Tensor], iterations: OnnxValue
) -> GraphProto:
    """Build the body graph, whose inputs are the iteration, condition and loop-carried values."""
    body_inputs = list(op.body.inputs.items())
    initial_carries = body_inputs[op.scanned_count : op.scanned_count + op.carry_count]
    with g.open_body() as body:
        iteration, condition = g.make_loop_inputs()
        inputs = [
            iteration,
            condition,
            *(add_subgraph_input(g, name, v) for name, v in initial_carries),
        ]
        position: OnnxValue = iteration
        if op.reverse:
            position = iterations - 1 - position
        for (_, value), x in zip(body_inputs, operands.scanned, strict=False):
            position_value = x.gather(position, op.axis)
            g.values.tensors[value] = position_value.with_type(value.type, value)
        keep = operands.keep
        position_mask = None
        if keep is not None:
            position_keep = keep.gather(position, 1)
            position_mask = position_keep.with_type(remove_axis(keep.type, 1))
        results = lower_scan_body(op, g, operands.captured, position_mask)
        # In ONNX, an output of a graph must not have the name of one of its inputs.
        next_condition = (
            _emit_any_unfinished(results[op.end_condition_index])
            if _has_early_exit(op)
            else g.emit_identity(condition, "next_condition")
        )
    types = [Type("bool", ()), *(v.type for v in op.body.outputs.values())]
    return make_subgraph_proto(
        g.make_scoped_name("body"), body, [next_condition, *results], types, inputs
    )


def _has_early_exit(op: ops.Scan) -> bool:
    """Return True if the loop ends as soon as all sequences are finished."""
    return op.end_condition_index != -1 and not op.unfrozen_output_count


def _emit_any_unfinished(is_finished: OnnxValue) -> OnnxValue:
    """Emit a bool[] that is true if a sequence is unfinished. The reduction is a sum, because a sum
    supports an empty batch.
    """
    return emit_count_nonzero(~is_finished, dtype="i32") > 0


def _emit_zero_filled(
    op: ops.Scan, g: Emitter, scan_outputs: OnnxValue, type: Type, iterations: OnnxValue
) -> OnnxValue:
    """Pad `scan_outputs` (one entry per executed iteration) with zeros to `iterations` entries.
    `type` is the type of the result.
    """
    element_shape = remove_axis(type, op.axis).shape
    run_count = emit_axis_length(scan_outputs, 0)
    # After zero iterations, ONNX Runtime returns outputs of the wrong shape.
    shape = run_count.apply_op("Concat", g.emit_shape(element_shape), axis=0)
    outputs = scan_outputs.apply_op("Reshape", shape, allowzero=1)
    missing_count = iterations.unsqueeze(0) - run_count
    shape = missing_count.apply_op("Concat", g.emit_shape(element_shape), axis=0)
    zeros = g.emit_constant(0, type.dtype).expand(shape)
    return outputs.apply_op("Concat", zeros, axis=0)
