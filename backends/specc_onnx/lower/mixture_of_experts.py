"""Lower mixture-of-experts (MoE) layers. Each expert is run once, on the tokens routed to it.

    tokens routed to the expert ─► Gather ─► body of the expert ─► ScatterND (add)

Activations are never materialized for all pairs of a token and an expert, and weights are read only
for experts that have tokens. The expert id of a padded token is out of range, so no expert runs on
the token. If there are few experts, each expert is unrolled into an `If`, so that a runtime can
pack the slices of stacked weights at load time. A large number of experts is lowered to a `Loop`,
which copies the slices. With 8 experts of 512 × 1 024, the loop took 1.4 ms for one token, and the
unrolled experts took 0.7 ms. For 512 tokens, they took 31 ms and 25 ms (ONNX Runtime 1.31, one
core).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from onnx import GraphProto

from specc.ir import ops
from specc.ir.dim import multiply_dims
from specc.ir.ops.nn import MixtureOfExpertsOperands
from specc.ir.types import Type
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_targets import HALF_DTYPES
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower, lower_nodes
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_flatten,
    emit_full,
    emit_reduce,
    emit_reshape,
)
from specc_onnx.lower.subgraphs import (
    EXPERT_LOOP_NAME,
    emit_if,
    emit_subgraph_outputs,
    make_subgraph_proto,
)

MAX_INLINE_ELEMENTS = 1 << 26
"""The maximum total number of elements of unrolled expert weights (256 MiB in f32). While a model
is loaded, unrolled weights are in memory twice, whereas a loop reads its weights from the file.
"""

MAX_INLINE_NODES = 24
"""Experts with more nodes than this maximum are not unrolled."""


@lower
def mixture_of_experts(op: ops.MixtureOfExperts, g: Emitter, *args: Tensor) -> OnnxValue:
    """Lower a mixture of experts to one subgraph per expert or to a loop over experts. For each
    token, the outputs of the selected experts are weighted by the gates and summed.
    """
    (result_type,) = g.context.types
    operands = op.split_operands(args)
    *leading_shape, width = result_type.shape
    # 16-bit sums would lose precision, and ONNX Runtime has no kernel for them.
    dtype = "f32" if result_type.dtype in HALF_DTYPES else result_type.dtype
    sums_type = Type(dtype, (multiply_dims(leading_shape), width))
    experts = _ExpertEmitter(
        op=op,
        g=g,
        operands=operands,
        tokens=emit_flatten(operands.x),
        gates=emit_flatten(operands.gates),
        expert_ids=_emit_expert_ids(op, g, operands),
        result_type=sums_type,
    )
    initial_sums = emit_full(g, 0, dtype, sums_type.shape)
    is_unrolled = _can_inline_experts(op, g, operands)
    sums = (
        experts.emit_unrolled_experts(initial_sums)
        if is_unrolled
        else experts.emit_expert_loop(initial_sums)
    )
    result = emit_reshape(sums, result_type.shape, source_shape=sums_type.shape)
    return result.cast(result_type.dtype)


def _can_inline_experts(
    op: ops.MixtureOfExperts, g: Emitter, operands: MixtureOfExpertsOperands[Tensor]
) -> bool:
    """Return True if experts are few and small enough to unroll, and their weights are
    parameters.
    """
    weights = (*g.values.parameters.values(), *g.values.narrow_weights.values())
    parameter_names = {weight.name for weight in weights}
    elements = sum(
        multiply_dims(t.shape).number or MAX_INLINE_ELEMENTS for t in operands.stacked_operands
    )
    count = op.num_experts.number
    return (
        count is not None
        and count <= g.target.max_unrolled_experts
        and elements <= MAX_INLINE_ELEMENTS
        and len(op.body.nodes) <= MAX_INLINE_NODES
        and all(t.name in parameter_names for t in operands.stacked_operands)
    )


def _emit_expert_ids(
    op: ops.MixtureOfExperts, g: Emitter, operands: MixtureOfExpertsOperands[Tensor]
) -> OnnxValue:
    """Emit expert ids i64[n, k] of the tokens. The id `num_experts` means "no expert"."""
    no_expert = g.emit_length(op.num_experts)
    ids = emit_flatten(operands.ids).cast("i64")
    is_valid = (ids < no_expert) & ~(ids < 0)
    if operands.keep is not None:
        shape = operands.keep.shape
        keep = emit_reshape(operands.keep, (multiply_dims(shape), 1))
        is_valid = is_valid & keep
    return is_valid.where(ids, no_expert)


@dataclass(frozen=True, kw_only=True)
class _ExpertEmitter:
    """An emitter for the experts of a layer: `tokens` [n, d], `gates` [n, k] and `expert_ids` [n,
    k].
    """

    op: ops.MixtureOfExperts
    g: Emitter
    operands: MixtureOfExpertsOperands[Tensor]
    tokens: OnnxValue
    gates: OnnxValue
    expert_ids: OnnxValue
    result_type: Type

    def emit_expert_loop(self, initial_sums: OnnxValue) -> OnnxValue:
        """Emit a `Loop` that adds the outputs of experts with routed tokens to `initial_sums`."""
        used_results = self._emit_used_experts().slice(0, 0, self.op.num_experts)
        # The loop runs experts in ascending order, so that a token's summation order does not
        # depend on other tokens.
        used_experts = used_results.apply_op("NonZero").squeeze(0)
        iterations = used_experts.numel()
        return iterations.apply_op(
            "Loop", None, initial_sums, body=self._emit_iteration(used_experts)
        )

    def _emit_iteration(self, used_experts: OnnxValue) -> GraphProto:
        """Return the loop body, whose inputs are iteration, condition and partial sums."""
        g = self.g
        with g.open_body() as body:
            iteration, condition = g.make_loop_inputs()
            sums = g.new_tensor("sums", self.result_type)
            expert = used_experts.gather(iteration, 0)
            expert_weights = [
                self._slice_expert_weights(t, expert) for t in self.operands.stacked_operands
            ]
            new_sums = self._add_expert_output(sums, expert, expert_weights)
            results = emit_subgraph_outputs(g, [condition, *new_sums])
        name, types = g.make_scoped_name(EXPERT_LOOP_NAME), [condition.type, self.result_type]
        return make_subgraph_proto(name, body, results, types, [iteration, condition, sums])

    def emit_unrolled_experts(self, initial_sums: OnnxValue) -> OnnxValue:
        """Emit an `If` for each expert, which adds the expert's outputs to `initial_sums`."""
        g, sums, count = self.g, initial_sums, self.op.num_experts.number or 0
        parts = [self._split_expert_weights(t, count) for t in self.operands.stacked_operands]
        for index in range(count):
            expert = g.emit_constant(index, "i64")
            expert_weights = [weights[index] for weights in parts]
            is_used = self._emit_used_experts().gather(expert, 0)
            add_output = partial(self._add_expert_output, sums, expert, expert_weights)
            branches = {"used": add_output, "unused": partial(tuple[OnnxValue], [sums])}
            (sums,) = emit_if(g, is_used, [self.result_type], branches)
        return sums

    def _emit_used_experts(self) -> OnnxValue:
        """Emit a bool[experts + 1] mask that is true for experts with tokens. The last entry
        belongs to the id "no expert".
        """
        g, count = self.g, self.op.num_experts + 1
        flat_ids = self.expert_ids.reshape([-1])
        ones = g.emit_node("Expand", True, flat_ids.runtime_shape())
        zeros = emit_full(g, False, "bool", [count])
        return zeros.apply_op("ScatterElements", flat_ids, ones, axis=0)

    def _add_expert_output(
        self, sums: OnnxValue, expert: OnnxValue, expert_weights: Sequence[Tensor]
    ) -> tuple[OnnxValue, ...]:
        """Add one expert's outputs to the `sums` of the tokens that are routed to it. Return a
        tuple with the new sums, as a branch of an `If` does.
        """
        g = self.g
        token_ids, token_gates = self._select_tokens(self.expert_ids.equals(expert))
        output = self._lower_expert(token_ids, expert_weights)
        factors = (x.cast(self.result_type.dtype) for x in (output, token_gates))
        weighted_output = g.emit_node("Mul", *factors)
        return g.emit_multi_output_node(
            "ScatterND", 1, sums, token_ids.unsqueeze(1), weighted_output, reduction="add"
        )

    def _select_tokens(self, is_chosen: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
        """Return the indices i64[m] of the tokens routed to an expert, and their gates [m, 1]."""
        any_chosen = emit_reduce("ReduceMax", is_chosen.cast("i64"), 1)
        token_ids = any_chosen.apply_op("NonZero").squeeze(0)
        gates = is_chosen.where(self.gates, 0)
        token_gates = emit_reduce("ReduceSum", gates, 1, keepdims=True)
        return token_ids, token_gates.gather(token_ids, 0)

    def _lower_expert(self, token_ids: OnnxValue, expert_weights: Sequence[Tensor]) -> OnnxValue:
        """Lower an expert's body for the tokens at `token_ids`, and return the output [m, o]."""
        op, g = self.op, self.g
        value, *captures = op.get_expert_inputs()
        lead_axes = value.type.rank - 2
        expert_tokens = self.tokens.gather(token_ids, 0)
        x = expert_tokens.unsqueeze(*range(lead_axes)).with_type(value.type, value)
        g.values.tensors[value] = x
        g.values.tensors.update(
            zip(captures, [*expert_weights, *self.operands.captured], strict=True)
        )
        # the branch or the iteration runs only if tokens are routed to the expert
        with g.enter_graph(DimResolver({x.name: x.type}, {}, {op.token_count_symbol: 1})):
            lower_nodes(g, op.body)
        output = g.values.tensors[op.get_expert_output()]
        if not lead_axes:
            return output
        return output.squeeze(*range(lead_axes))

    def _split_expert_weights(self, stacked: Tensor, count: int) -> list[Tensor]:
        """Split `stacked` outside all loops into the weights of `count` experts, so that the
        `Split` can be constant-folded.
        """
        g = self.g
        stored = g.values.narrow_weights.get(stacked.name, stacked)
        with g.hoist_nodes(g.context.scope, level=0):
            parts = g.emit_multi_output_node("Split", count, stored, [1] * count, axis=0)
            return [_cast_expert_part(stacked, part.squeeze(0)) for part in parts]

    def _slice_expert_weights(self, stacked: Tensor, expert: OnnxValue) -> Tensor:
        """Emit the slice of stacked weights for one expert."""
        stored = self.g.values.narrow_weights.get(stacked.name, stacked)
        return _cast_expert_part(stacked, stored.gather(expert, 0))


def _cast_expert_part(stacked: Tensor, part: OnnxValue) -> Tensor:
    """Cast `part`, the slice of `stacked` for one expert, to the compute type."""
    return part.cast(stacked.dtype).with_shape(stacked.shape[1:])
