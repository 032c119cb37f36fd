"""Build the body of the generation loop, which runs the decode step, selects the next tokens and
updates the loop-carried values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from onnx import GraphProto

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.input_shapes_and_defaults import extract_per_token_default
from specc.ir.model_definition import DecodeState
from specc.ir.types import Type
from specc_onnx.generate.generator_inputs import DecodingStepResult, GeneratorBuilder, LoopCarry
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import LoweringContext
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower_nodes
from specc_onnx.lower.reshape_reduce_and_matmul import emit_axis_length
from specc_onnx.lower.subgraphs import (
    emit_if,
    emit_subgraph_outputs,
    make_branch,
    make_subgraph_proto,
)


def find_default_mask_graph(builder: GeneratorBuilder, name: str) -> Graph | None:
    """Return the input default that computes whether a generated token is valid, or None if all
    generated tokens are valid. Raise E0944 if the default depends on inputs other than the token.
    """
    defaults, prompt_input = builder.defaults, builder.derived_graphs.sequence_input
    # If padding is allowed on only one side, all generated positions are valid.
    has_fixed_side = builder.graph.input_facts[name].padding_side != "any"
    if defaults is None or name not in defaults.outputs or has_fixed_side:
        return None
    default = extract_per_token_default(defaults, name, prompt_input)
    if default is None:
        raise_error(
            "E0944",
            f"the default of `{name}` depends on positions of `{prompt_input}` before the last one",
            notes=["the loop of a standalone generator processes only the newest token"],
            helps=["compile a package: --graphs step", f"or compute `{name}` from one token"],
        )
    return None if _is_true_for_tokens(default.outputs[name]) else default


def _is_true_for_tokens(value: Value) -> bool:
    """Return True if a condition such as `ids >= 0` or `ids != -1` holds for all token ids."""
    match value.node:
        case Node(ops.Compare(fn=fn), (Value(node=None), Value(node=Node(op)))):
            constant = op.value if isinstance(op, ops.Constant) else math.inf
            return (fn == "ge" and constant <= 0) or (fn in ("gt", "ne") and constant < 0)
    return False


class DecodingStrategy(Protocol):
    """A decoding strategy. The strategy emits the nodes that select the next tokens in each
    iteration. `carried_values` are the strategy's loop-carried values.
    """

    carried_values: list[LoopCarry]

    def emit_step(
        self, logits: OnnxValue, iteration: OnnxValue, carried_values: Sequence[OnnxValue]
    ) -> DecodingStepResult:
        """Emit the nodes that select the next tokens from logits f32[batch, vocabulary] in
        iteration `iteration` i64[]. `carried_values` are the current values of the strategy's
        loop-carried values.
        """
        ...

    def emit_outputs(self, final_carries: Sequence[OnnxValue]) -> dict[str, Tensor]:
        """Return the outputs of the model, computed from the final loop-carried values."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLoop:
    """One iteration of the generation loop. It has the loop-carried values `token_carries` (tokens
    and masks) and `state_carries` (caches), the `strategy`, the encoder outputs
    `loop_invariant_inputs`, and the `hoisted_nodes` (nodes that depend only on weights and encoder
    outputs). `empty_prompt_mask` is true for sequences without a prompt, which use
    `empty_prompt_logits` as logits.
    """

    token_carries: Sequence[LoopCarry]
    state_carries: Sequence[LoopCarry]
    strategy: DecodingStrategy
    loop_invariant_inputs: Mapping[str, Tensor]
    hoisted_nodes: set[Node]
    empty_prompt_logits: Tensor | None = None
    empty_prompt_mask: OnnxValue | None = None

    @property
    def carried_values(self) -> list[LoopCarry]:
        """Return every loop-carried value, in the order of the loop's inputs."""
        return [*self.token_carries, *self.state_carries, *self.strategy.carried_values]


def build_generation_loop_body(builder: GeneratorBuilder, loop: GenerationLoop) -> GraphProto:
    """Build the `Loop` body. The inputs of the loop body are the iteration, the condition and the
    loop-carried values. The outputs of the loop body are the condition and the next loop-carried
    values.
    """
    g, step, carries = builder.g, builder.derived_graphs.step, loop.carried_values
    state_count = len(loop.token_carries) + len(loop.state_carries)
    with g.open_body() as body:
        g.context = LoweringContext(("step",))
        iteration, condition = g.make_loop_inputs()
        carry_tensors = [g.new_tensor(c.name, c.type) for c in carries]
        body_tensors = {
            c.name: t for c, t in zip(carries[:state_count], carry_tensors, strict=False)
        }
        input_types = {
            t.name: t.type for t in (*body_tensors.values(), *loop.loop_invariant_inputs.values())
        }
        # The generation loop is skipped for an empty batch.
        lower_bounds = {**step.min_lengths, str(builder.batch): 1}
        with g.enter_graph(DimResolver(input_types, step.length_equations, lower_bounds)):
            builder.bind_inputs(step, {**body_tensors, **loop.loop_invariant_inputs})
            if loop.empty_prompt_logits is None:
                logits = _emit_step(builder, loop)
            else:
                logits = emit_iteration_logits(
                    builder, loop, loop.empty_prompt_logits, body_tensors, iteration
                )
            g.context = LoweringContext(("select_token",))
            strategy_values = carry_tensors[state_count:]
            selection = loop.strategy.emit_step(logits, iteration, strategy_values)
            next_carries = _emit_next_carries(builder, body_tensors, selection)
        results = emit_subgraph_outputs(g, [selection.should_continue, *next_carries])
    types = [Type("bool", ()), *(_get_carry_type_after(c) for c in carries)]
    return make_subgraph_proto("step", body, results, types, [iteration, condition, *carry_tensors])


def _emit_step(builder: GeneratorBuilder, loop: GenerationLoop) -> OnnxValue:
    """Emit the decode step and return the logits of the last position, f32[batch, vocabulary]."""
    g, step = builder.g, builder.derived_graphs.step
    lower_nodes(g, step, {node for node, _ in step.nodes} - loop.hoisted_nodes)
    g.context = LoweringContext(("select_token",))
    logits = g.values.tensors[step.outputs[builder.decoding_config.logits_output]]
    # The logits may have no position axis, i.e. the shape `[batch, vocabulary]`.
    last_logits = logits if logits.rank == 2 else logits.squeeze(1)
    # Scores are sums over many steps, so they are f32 even in 16-bit models.
    return last_logits.cast("f32")


def emit_iteration_logits(
    builder: GeneratorBuilder,
    loop: GenerationLoop,
    empty_prompt_logits: Tensor,
    body_tensors: Mapping[str, Tensor],
    iteration: OnnxValue,
) -> OnnxValue:
    """Emit the logits of an iteration, f32[batch, vocabulary]. The logits are `empty_prompt_logits`
    in the first iteration of sequences without a prompt, otherwise the logits of the decode step.
    """
    g, state_carries = builder.g, builder.derived_graphs.states
    next_states = [builder.derived_graphs.step.outputs[s.next_output] for s in state_carries]
    logits_type = Type("f32", (builder.batch, empty_prompt_logits.shape[-1]))
    tokens = body_tensors[builder.derived_graphs.sequence_input]
    has_tokens = (emit_axis_length(tokens, 1) > [0]).squeeze()
    types = [logits_type, *(value.type for value in next_states)]

    def lower_step() -> list[OnnxValue]:
        logits = _emit_step(builder, loop)
        return [logits, *g.get_tensors(next_states)]

    step_branch = make_branch(g, "step", types, lower_step)
    start_results = [empty_prompt_logits, *(body_tensors[s.name] for s in state_carries)]
    start_branch = make_branch(
        g, "start", [logits_type, *(c.type for c in loop.state_carries)], lambda: start_results
    )
    g.context = LoweringContext(("start",))
    logits, *next_values = g.emit_multi_output_node(
        "If", len(types), has_tokens, then_branch=step_branch, else_branch=start_branch
    )
    for value, next_value in zip(next_states, next_values, strict=True):
        g.values.tensors[value] = next_value.with_type(value.type, value)
    if loop.empty_prompt_mask is None:
        return logits
    # One batch may contain both sequences with a prompt and sequences without one.
    is_first = iteration.equals(0)
    operands = loop.empty_prompt_mask, empty_prompt_logits, logits
    branches = {"first": lambda: [g.emit_node("Where", *operands)], "later": lambda: [logits]}
    return emit_if(g, is_first, [logits_type], branches)[0]


def _emit_next_carries(
    builder: GeneratorBuilder, body_tensors: Mapping[str, Tensor], selection: DecodingStepResult
) -> list[OnnxValue]:
    """Return the next loop-carried values, in the order of `GenerationLoop.carried_values`."""
    dtype = builder.derived_graphs.step.inputs[builder.derived_graphs.sequence_input].type.dtype
    token = selection.tokens.unsqueeze(1).cast(dtype)
    return [
        token,
        *(
            _emit_next_mask(builder, n, body_tensors[n], token, selection)
            for n in builder.per_token_inputs
        ),
        *(_emit_next_state(builder, s, selection) for s in builder.derived_graphs.states),
        *selection.next_carries,
    ]


def _emit_next_mask(
    builder: GeneratorBuilder, name: str, x: Tensor, token: OnnxValue, selection: DecodingStepResult
) -> OnnxValue:
    """Append one position to the padding mask. The appended position is false if the token is one
    for which the default of the mask is false.
    """
    g = builder.g
    mask: OnnxValue = x
    default = find_default_mask_graph(builder, name)
    batch_axis = builder.find_batch_axis(x.type)
    # If all generated tokens are valid, all beams of a sequence have equal masks.
    beams_share_mask = builder.repeat_count > 1 and default is None
    if selection.parents is not None and batch_axis is not None and not beams_share_mask:
        mask = mask.gather(selection.parents, batch_axis)
    new_length = builder.derived_graphs.step.inputs[
        builder.derived_graphs.sequence_input
    ].type.shape[1]
    time_axis = next(n for n, d in enumerate(x.shape) if d.symbols() & new_length.symbols())
    if default is None:
        leading_shape = mask.apply_op("Shape", start=0, end=time_axis)
        trailing_shape = mask.apply_op("Shape", start=time_axis + 1)
        shape = leading_shape.apply_op("Concat", [1], trailing_shape, axis=0)
        new_column = g.emit_node("Expand", True, shape)
    else:
        value = default.inputs[builder.derived_graphs.sequence_input]
        g.values.tensors[value] = token.with_type(value.type)
        # The IR types are not recorded. Their `batch` is the number of sequences, but the batch
        # size in the loop body is the number of beams.
        types, g.innermost_body.types = g.innermost_body.types, {}
        lower_nodes(g, default)
        g.innermost_body.types = types
        new_column = g.values.tensors[default.outputs[name]]
    # An input contains either all positions or only the positions of the current step.
    if name in builder.derived_graphs.full_length_inputs:
        return mask.apply_op("Concat", new_column, axis=time_axis)
    return new_column


def _emit_next_state(
    builder: GeneratorBuilder, state: DecodeState, selection: DecodingStepResult
) -> OnnxValue:
    """Emit the value of a decode state for the next iteration, gathered by parent beam."""
    value = builder.g.values.tensors[builder.derived_graphs.step.outputs[state.next_output]]
    # A beam continues with the cache of the beam from which it was extended. A state without a
    # batch axis is the same for all beams.
    if selection.parents is None or state.batch_axis is None:
        return value
    return value.gather(selection.parents, state.batch_axis)


def _get_carry_type_after(carry: LoopCarry) -> Type:
    """Return a loop-carried value's type after a step, with new symbols for sizes that change."""
    # ONNX's shape inference assumes equal sizes for equal symbols.
    shape = tuple(
        d if d.number else Dim.symbol(f"{carry.name}.{n}") for n, d in enumerate(carry.type.shape)
    )
    return Type(carry.type.dtype, shape)
