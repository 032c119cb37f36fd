"""Build a standalone generator, which consists of an encoder and an ONNX `Loop` around the decode
step.

The first iteration of the loop processes the complete prompt. Later iterations process one token
per sequence. KV caches are loop-carried values whose time axis grows. Fixed-size buffers would be
copied for every token, because a loop body cannot update a buffer in place. The loop body captures
weights and encoder outputs from the main graph.
"""

from collections.abc import Mapping
from dataclasses import replace

from onnx import TensorProto

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model import DecodeState, StandaloneGeneratorSource
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.generate.generator_decoding_strategies import StrategyInputs, make_decoding_strategy
from specc_onnx.generate.generator_inputs import (
    MAX_TOKENS_INPUT,
    GenerationContext,
    GeneratorDefinition,
    LoopCarry,
    get_scalar_input_types,
)
from specc_onnx.generate.generator_loop_body import (
    LoopIteration,
    build_generation_body,
    hoist_invariant_nodes,
)
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter, LoweringSite, NameTable
from specc_onnx.lower.indexing import emit_zeroed_padding_indices
from specc_onnx.lower.onnx_nodes import make_unique_name
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower_nodes
from specc_onnx.lower.tensor_helpers import emit_axis_length, emit_count_nonzero, emit_full
from specc_onnx.write.onnx_graph import BuiltModel, add_parameters, finish_model


def build_generation_model(
    source: StandaloneGeneratorSource,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    storage_dtypes: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> BuiltModel:
    """Build the standalone generator for `source`. `storage_dtypes` and `ties` are the arguments of
    `build_model`. The model has the inputs of the definition and of `get_scalar_input_types`, the
    output `tokens`, and the output `log_probs` or (for beam search) `scores`. An output whose name
    is also the name of an input gets a numeric suffix. Raise E0944 for a per-token input without a
    value inside the loop.
    """
    onnx_targets.check_opset(opset)
    definition = GeneratorDefinition.from_graph(source)
    context = _make_generation_context(definition, target, opset)
    g = context.g
    weights = add_parameters(g, definition.parameters, storage_dtypes or {}, ties or {})
    for name in context.per_token_inputs:
        if not context.graph.input_facts[name].padding_side:
            prompt_input = context.derived.sequence_input
            raise_error(
                "E0944",
                f"`{name}` has no value for generated positions of `{prompt_input}`",
                notes=["a standalone generator can compute only the padding mask inside its loop"],
                helps=[f"add a default in the spec: `{name}: … = expression of {prompt_input}`"],
            )
    lower_encoder(context)
    loop = _make_loop_iteration(context)
    body = build_generation_body(context, loop)
    g.site = LoweringSite(("generate",))
    # An empty batch has no last token, so the loop is skipped.
    has_batch = g.emit_length(context.batch) > 0
    initial_values = (c.initial_value for c in loop.carried_values)
    loop_inputs = (context.scalars[MAX_TOKENS_INPUT], has_batch, *initial_values)
    final_values = g.emit_nodes("Loop", len(loop.carried_values), *loop_inputs, body=body)
    strategy_values = final_values[len(loop.token_carries) + len(loop.state_carries) :]
    outputs = loop.strategy.map_outputs(strategy_values)
    inputs = {**context.types, **{x.name: x.type for x in context.scalars.values()}}
    used_names = set(inputs)
    output_tensors = {make_unique_name(n, used_names): t for n, t in outputs.items()}
    return finish_model(g, context.graph, inputs, output_tensors, weights)


def _make_generation_context(
    definition: GeneratorDefinition, target: Target, opset: int
) -> GenerationContext:
    """Return the initial context of a standalone generator, without any emitted nodes."""
    graph, derived, decoding = definition.graph, definition.derived, definition.decoding_config
    types = dict(definition.inputs)
    used_names = set(types)
    # If the spec has an input `seed`, the scalar input gets a name with a numeric suffix.
    scalar_names = {n: make_unique_name(n, used_names) for n in get_scalar_input_types(decoding)}
    # No dimension is computed from an optional input, because the input is empty if it is omitted.
    input_types = {n: t for n, t in types.items() if n not in definition.optional_inputs}
    lengths = DimResolver(input_types, graph.length_equations, graph.min_lengths)
    shape = graph.inputs[derived.sequence_input].type.shape
    assert len(shape) == 2, f"{derived.sequence_input} is not a token sequence per batch element"
    batch = shape[0]
    beams = decoding.num_beams if decoding.strategy == "beam" else 1
    loop_invariant_inputs = (derived.step.inputs[n].type for n in derived.loop_invariant_inputs)
    needs_repeats = any(batch in t.shape for t in loop_invariant_inputs)
    g = Emitter(
        target=target,
        opset=opset,
        lengths=lengths,
        name_table=NameTable({*types, *scalar_names.values()}, graph_name=graph.name),
    )
    return GenerationContext(
        graph=graph,
        derived=derived,
        decoding_config=decoding,
        defaults=definition.defaults,
        g=g,
        types=types,
        scalars={
            n: Tensor(g, scalar_names[n], Type(dtype, ()))
            for n, dtype in get_scalar_input_types(decoding).items()
        },
        main_tensors={n: Tensor(g, n, t) for n, t in types.items()},
        batch=batch,
        repeat_count=beams if needs_repeats else 1,
    )


def _make_loop_iteration(context: GenerationContext) -> LoopIteration:
    """Emit the initial loop-carried values into the main graph and return the iteration."""
    g = context.g
    token_carries = [
        emit_prompt_carry(context),
        *(
            emit_loop_carried_values(context, name, context.main_tensors[name])
            for name in context.per_token_inputs
        ),
    ]
    state_carries = [emit_state_carry(context, s) for s in context.derived.states]
    loop_invariant_inputs: dict[str, Tensor] = {}
    for name in context.derived.loop_invariant_inputs:
        type = context.derived.step.inputs[name].type
        encoder_output = context.main_tensors[name].with_type(type)
        loop_invariant_inputs[name] = context.repeat_for_beams(encoder_output).with_type(type)
    logits = context.derived.step.outputs[context.decoding_config.logits_output].type
    vocabulary = logits.shape[-1].number
    assert vocabulary is not None, "the number of tokens is known"
    g.site = LoweringSite(("select_token",))
    strategy_inputs = StrategyInputs(
        g=g,
        decoding_config=context.decoding_config,
        batch=context.batch,
        vocabulary=vocabulary,
        step_batch_size=context.step_batch_size,
        scalars=context.scalars,
        prompt=token_carries[0].initial_value.cast("i64"),
        padding_mask=emit_prompt_mask(context),
    )
    strategy = make_decoding_strategy(strategy_inputs)
    first_logits = emit_empty_prompt_logits(context)
    return LoopIteration(
        token_carries=token_carries,
        state_carries=state_carries,
        strategy=strategy,
        loop_invariant_inputs=loop_invariant_inputs,
        hoisted_nodes=hoist_invariant_nodes(context, loop_invariant_inputs),
        first_logits=first_logits,
        empty_prompt_mask=None if first_logits is None else emit_empty_prompt_mask(context),
    )


def lower_encoder(context: GenerationContext) -> None:
    """Lower the start (BOS) tokens, the input defaults and the encoder into the main graph. Add
    their results to `context.main_tensors`.
    """
    g = context.g
    is_absent = _emit_begin_token(context) if context.accepts_empty_prompt else None
    for graph in (*context.default_graphs, context.derived.encode):
        if graph is None:
            continue
        context.bind_inputs(graph, context.main_tensors)
        lower_nodes(g, graph)
        for name, value in graph.outputs.items():
            tensor = g.values.tensors[value]
            if is_absent and name in context.padding_masks:
                # the start token is valid even if the start token is the pad token
                tensor = (tensor | is_absent).with_type(tensor.type)
            context.main_tensors[name] = tensor


def _emit_begin_token(context: GenerationContext) -> OnnxValue | None:
    """Emit the start (BOS) tokens for an omitted prompt, and their padding mask. Return a bool[1]
    that is true if the prompt is omitted, or None if generation needs no start token.
    """
    g, start_ids = context.g, context.decoding_config.start_token_ids
    g.site = LoweringSite(("start",))
    prompt_input = context.derived.sequence_input
    prompt_type, is_absent = context.types[prompt_input], None
    tokens = _emit_optional_input(context, prompt_input)
    if not context.starts_from_prefix:
        is_absent = emit_axis_length(tokens, 1).equals([0])
        # A slice of size 0 or 1 replaces an `If`, whose branches would need equal shapes.
        start_tokens = g.emit_constant([list(start_ids)], prompt_type.dtype)
        shape = g.emit_shape([context.batch]).emit_node("Concat", [1], axis=0)
        count = is_absent.cast("i64") * [len(start_ids)]
        start_column = start_tokens.expand(shape)
        start_column = start_column.emit_node("Slice", [0], count, [1])
        tokens = start_column.emit_node("Concat", tokens, axis=1)
    context.main_tensors[prompt_input] = tokens.with_type(prompt_type)
    # The prompt length is now the number of tokens including start tokens, not the size of the
    # input.
    g.lengths = replace(g.lengths, inputs={**g.lengths.inputs, tokens.name: prompt_type})
    for name in context.optional_inputs:
        if name != prompt_input:
            context.main_tensors[name] = _emit_extended_mask(context, name, tokens)
    return is_absent


def _emit_extended_mask(context: GenerationContext, name: str, tokens: OnnxValue) -> Tensor:
    """Emit the padding mask input `name`. For start tokens, or if the mask is omitted, true values
    are prepended up to the length of `tokens` i64[batch, n].
    """
    g = context.g
    mask = _emit_optional_input(context, name)
    missing_length = emit_axis_length(tokens, 1) - emit_axis_length(mask, 1)
    shape = g.emit_shape([context.batch]).emit_node("Concat", missing_length, axis=0)
    leading_mask = g.emit_node("Expand", True, shape)
    return leading_mask.emit_node("Concat", mask, axis=1).with_type(context.types[name])


def _emit_optional_input(context: GenerationContext, name: str) -> OnnxValue:
    """Emit the optional input `name`, `[batch, n]`. If the caller omits the input, `n` is 0."""
    g, type = context.g, context.types[name]
    # An initializer with an input's name is the input's default. Its batch size of 1 is expanded.
    code = ONNX_TYPE_CODES[type.dtype]
    g.values.constants[name] = TensorProto(name=name, data_type=code, dims=[1, 0])
    shape = g.emit_shape([context.batch]).emit_node("Concat", [1], axis=0)
    return Tensor(g, name, type).expand(shape)


def emit_prompt_carry(context: GenerationContext) -> LoopCarry:
    """Emit the loop-carried token ids, whose initial value is the complete prompt."""
    prompt_input = context.derived.sequence_input
    ids = context.main_tensors[prompt_input]
    default_names = (n for graph in context.default_graphs for n in graph.outputs)
    for name in default_names:
        # The pad id may be -1, which is not a valid embedding index.
        if name in context.padding_masks and _is_lookup_index(context.derived.step, prompt_input):
            keep = context.main_tensors[name]
            ids = emit_zeroed_padding_indices(ids, keep).with_type(ids.type)
    return emit_loop_carried_values(context, prompt_input, ids)


def _is_lookup_index(step: Graph, name: str) -> bool:
    """Return True if an embedding layer of `step` looks up the input `name`."""
    ids = step.inputs[name]
    consumers = [node.op for node, _ in step.nodes if ids in node.args]
    return any(isinstance(op, ops.Embedding) for op in consumers)


def emit_loop_carried_values(
    context: GenerationContext, name: str, initial_tensor: Tensor
) -> LoopCarry:
    """Emit the loop-carried value for the step input `name`. In the first iteration, it is
    `initial_tensor`, repeated for each beam.
    """
    type = context.derived.step.inputs[name].type
    return LoopCarry(name, type, context.repeat_for_beams(initial_tensor))


def emit_state_carry(context: GenerationContext, state: DecodeState) -> LoopCarry:
    """Emit a decode state's loop-carried value, which is initially an output of `encode`, empty or
    zeros.
    """
    if state.initial_output:
        initial_value = context.repeat_for_beams(
            context.main_tensors[state.initial_output], state.batch_axis
        )
        return LoopCarry(state.name, state.type, initial_value)
    lengths = {str(context.batch): context.step_batch_size}
    # A cache is initially empty; a state without a time axis (of a recurrent layer) is initially
    # zeros.
    shape = [
        Dim.from_value(0) if n == state.time_axis else d.substitute(lengths)
        for n, d in enumerate(state.type.shape)
    ]
    context.g.site = LoweringSite(("states",))
    return LoopCarry(state.name, state.type, emit_full(context.g, 0, state.type.dtype, shape))


def emit_prompt_mask(context: GenerationContext) -> OnnxValue | None:
    """Emit the padding mask of the prompt, bool[batch, n], repeated for each beam. Return None
    without a padding mask.
    """
    for name in context.padding_masks:
        if name in context.main_tensors:
            return context.repeat_for_beams(context.main_tensors[name])
    return None


def emit_empty_prompt_logits(context: GenerationContext) -> Tensor | None:
    """Emit logits f32[batch, vocabulary] for the first token of sequences without a prompt. Return
    None if every sequence needs a start token.
    """
    name, g = context.derived.initial_logits_output, context.g
    if not context.starts_from_prefix:
        return None
    initial_output = context.main_tensors[name]
    g.site = LoweringSite(("start",))
    logits, shape = context.repeat_for_beams(initial_output), initial_output.shape
    if initial_output.rank == 3:
        logits = logits.squeeze(1)
    logits = logits.cast("f32")
    return logits.with_shape((context.step_batch_size, shape[-1]))


def emit_empty_prompt_mask(context: GenerationContext) -> OnnxValue | None:
    """Emit a bool[batch, 1] mask of all-padding prompts. Return None without a padding mask."""
    mask = emit_prompt_mask(context)
    return None if mask is None else emit_count_nonzero(mask, 1, keepdims=True).equals(0)
