"""Build a standalone generator, which consists of an encoder and an ONNX `Loop` around the decode
step.

The first iteration of the loop processes the complete prompt. Later iterations process one token
per sequence. KV caches are loop-carried values with a growing time axis. Fixed-size buffers would
be copied for every token, because a loop body cannot update a buffer in place. The loop body
captures weights and encoder outputs from the main graph. ONNX Runtime does not move nodes out of a
loop body. Therefore, loop-invariant nodes, such as those for keys and values of encoder outputs,
are hoisted into the main graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, collect_shape_symbols
from specc.ir.model_definition import DecodeState, StandaloneGenerator
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.generate.generator_beam_search import BeamSearchStrategy
from specc_onnx.generate.generator_inputs import (
    MAX_TOKENS_INPUT,
    GeneratorBuilder,
    GeneratorDefinition,
    LoopCarry,
    emit_empty_prompt_logits,
    emit_empty_prompt_mask,
    emit_input_loop_carry,
    emit_prompt_loop_carry,
    emit_prompt_mask,
    emit_start_tokens,
    get_scalar_input_types,
)
from specc_onnx.generate.generator_logits_processors import DecodingStrategyInputs
from specc_onnx.generate.generator_loop_body import (
    DecodingStrategy,
    GenerationLoop,
    build_generation_loop_body,
)
from specc_onnx.generate.generator_sampling import SamplingStrategy
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter, LoweringContext, NameTable, make_unique_name
from specc_onnx.lower.onnx_values import Tensor
from specc_onnx.lower.registry import lower_nodes
from specc_onnx.lower.reshape_reduce_and_matmul import emit_full
from specc_onnx.write.onnx_graph import OnnxBuildResult, add_initializers, finish_model


def build_generation_model(
    generator: StandaloneGenerator,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    storage_dtypes: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> OnnxBuildResult:
    """Build the ONNX model of `generator`. `storage_dtypes` and `ties` have the same meaning as in
    `build_model`. The model has the inputs of the definition and of `get_scalar_input_types`, the
    output `tokens`, and the output `log_probs` or (for beam search) `scores`. An output whose name
    is also the name of an input gets a numeric suffix. Raise E0944 if an input that has a value per
    token is not available inside the loop.
    """
    onnx_targets.check_opset(opset)
    definition = GeneratorDefinition.from_generator(generator)
    builder = _make_generator_builder(definition, target, opset)
    g = builder.g
    weights = add_initializers(g, definition.parameters, storage_dtypes or {}, ties or {})
    for name in builder.per_token_inputs:
        if not builder.graph.input_facts[name].padding_side:
            prompt_input = builder.derived_graphs.sequence_input
            raise_error(
                "E0944",
                f"`{name}` has no value for generated positions of `{prompt_input}`",
                notes=["a standalone generator can compute only the padding mask inside its loop"],
                helps=[f"add a default in the spec: `{name}: … = expression of {prompt_input}`"],
            )
    lower_encoder(builder)
    loop = _make_loop_iteration(builder)
    body = build_generation_loop_body(builder, loop)
    g.context = LoweringContext(("generate",))
    # An empty batch has no last token, so the loop is skipped.
    has_batch = g.emit_length(builder.batch) > 0
    initial_values = (c.initial_value for c in loop.carried_values)
    loop_inputs = (builder.scalars[MAX_TOKENS_INPUT], has_batch, *initial_values)
    final_values = g.emit_multi_output_node(
        "Loop", len(loop.carried_values), *loop_inputs, body=body
    )
    strategy_values = final_values[len(loop.token_carries) + len(loop.state_carries) :]
    outputs = loop.strategy.emit_outputs(strategy_values)
    inputs = {**builder.types, **{x.name: x.type for x in builder.scalars.values()}}
    used_names = set(inputs)
    output_tensors = {make_unique_name(n, used_names): t for n, t in outputs.items()}
    return finish_model(g, builder.graph, inputs, output_tensors, weights)


def _make_generator_builder(
    definition: GeneratorDefinition, target: Target, opset: int
) -> GeneratorBuilder:
    """Return the builder of a standalone generator, without any emitted nodes."""
    graph, derived_graphs, decoding = (
        definition.graph,
        definition.derived_graphs,
        definition.decoding_config,
    )
    types = dict(definition.inputs)
    used_names = set(types)
    # If the spec has an input `seed`, the scalar input gets a name with a numeric suffix.
    scalar_names = {n: make_unique_name(n, used_names) for n in get_scalar_input_types(decoding)}
    # No dimension is computed from an optional input, because an omitted input is empty.
    input_types = {n: t for n, t in types.items() if n not in definition.optional_inputs}
    lengths = DimResolver(input_types, graph.length_equations, graph.min_lengths)
    shape = graph.inputs[derived_graphs.sequence_input].type.shape
    assert len(shape) == 2, (
        f"{derived_graphs.sequence_input} is not a token sequence per batch element"
    )
    batch = shape[0]
    beams = decoding.num_beams if decoding.strategy == "beam" else 1
    loop_invariant_inputs = (
        derived_graphs.step.inputs[n].type for n in derived_graphs.loop_invariant_inputs
    )
    needs_repeats = any(batch in t.shape for t in loop_invariant_inputs)
    g = Emitter(
        target=target,
        opset=opset,
        lengths=lengths,
        name_table=NameTable({*types, *scalar_names.values()}, graph_name=graph.name),
    )
    return GeneratorBuilder(
        graph=graph,
        derived_graphs=derived_graphs,
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


def _make_loop_iteration(builder: GeneratorBuilder) -> GenerationLoop:
    """Emit the initial loop-carried values into the main graph and return the iteration."""
    g = builder.g
    token_carries = [
        emit_prompt_loop_carry(builder),
        *(
            emit_input_loop_carry(builder, name, builder.main_tensors[name])
            for name in builder.per_token_inputs
        ),
    ]
    state_carries = [emit_state_loop_carry(builder, s) for s in builder.derived_graphs.states]
    loop_invariant_inputs: dict[str, Tensor] = {}
    for name in builder.derived_graphs.loop_invariant_inputs:
        type = builder.derived_graphs.step.inputs[name].type
        encoder_output = builder.main_tensors[name].with_type(type)
        loop_invariant_inputs[name] = builder.repeat_for_beams(encoder_output).with_type(type)
    logits = builder.derived_graphs.step.outputs[builder.decoding_config.logits_output].type
    vocabulary = logits.shape[-1].number
    assert vocabulary is not None, "the vocabulary size is static"
    g.context = LoweringContext(("select_token",))
    strategy_inputs = DecodingStrategyInputs(
        g=g,
        decoding_config=builder.decoding_config,
        batch=builder.batch,
        vocabulary=vocabulary,
        step_batch_size=builder.step_batch_size,
        scalars=builder.scalars,
        prompt=token_carries[0].initial_value.cast("i64"),
        padding_mask=emit_prompt_mask(builder),
    )
    strategy = make_decoding_strategy(strategy_inputs)
    empty_prompt_logits = emit_empty_prompt_logits(builder)
    return GenerationLoop(
        token_carries=token_carries,
        state_carries=state_carries,
        strategy=strategy,
        loop_invariant_inputs=loop_invariant_inputs,
        hoisted_nodes=hoist_loop_invariant_nodes(builder, loop_invariant_inputs),
        empty_prompt_logits=empty_prompt_logits,
        empty_prompt_mask=None if empty_prompt_logits is None else emit_empty_prompt_mask(builder),
    )


def lower_encoder(builder: GeneratorBuilder) -> None:
    """Lower the start (BOS) tokens, the input defaults and the encoder into the main graph. Add the
    results of the generator to `builder.main_tensors`.
    """
    g = builder.g
    is_absent = emit_start_tokens(builder) if builder.accepts_empty_prompt else None
    for graph in (*builder.default_input_graphs, builder.derived_graphs.encode):
        if graph is None:
            continue
        builder.bind_inputs(graph, builder.main_tensors)
        lower_nodes(g, graph)
        for name, value in graph.outputs.items():
            tensor = g.values.tensors[value]
            if is_absent and name in builder.padding_masks:
                # the start token is not padding even if it is equal to the pad token
                tensor = (tensor | is_absent).with_type(tensor.type)
            builder.main_tensors[name] = tensor


def emit_state_loop_carry(builder: GeneratorBuilder, state: DecodeState) -> LoopCarry:
    """Emit the loop-carried value of a decode state. Its initial value is an output of `encode`, an
    empty tensor or zeros.
    """
    if state.initial_output:
        initial_value = builder.repeat_for_beams(
            builder.main_tensors[state.initial_output], state.batch_axis
        )
        return LoopCarry(state.name, state.type, initial_value)
    lengths = {str(builder.batch): builder.step_batch_size}
    # A cache is initially empty. A state without a time axis, as in a recurrent layer, is
    # initialized with zeros.
    shape = [
        Dim.from_value(0) if n == state.time_axis else d.substitute(lengths)
        for n, d in enumerate(state.type.shape)
    ]
    builder.g.context = LoweringContext(("states",))
    return LoopCarry(state.name, state.type, emit_full(builder.g, 0, state.type.dtype, shape))


def make_decoding_strategy(inputs: DecodingStrategyInputs) -> DecodingStrategy:
    """Create the strategy that the decoding settings select. The constructor of a strategy emits
    loop-invariant nodes.
    """
    is_beam_search = inputs.decoding_config.strategy == "beam"
    return BeamSearchStrategy(inputs) if is_beam_search else SamplingStrategy(inputs)


def hoist_loop_invariant_nodes(
    builder: GeneratorBuilder, loop_invariant_inputs: Mapping[str, Tensor]
) -> set[Node]:
    """Lower the decode step's loop-invariant nodes into the main graph and return these nodes.
    `loop_invariant_inputs` are the step inputs that do not change between iterations.
    """
    step, g = builder.derived_graphs.step, builder.g
    invariant_nodes = set(find_loop_invariant_nodes(step, loop_invariant_inputs))
    inputs = {t.name: t.type for t in loop_invariant_inputs.values()}
    # Only loop-invariant inputs of the decode step have tensors outside the loop body.
    hoisted_inputs = {n: step.inputs[n] for n in loop_invariant_inputs}
    builder.bind_inputs(replace(step, inputs=hoisted_inputs, outputs={}), loop_invariant_inputs)
    # In the decode step, the dimension `batch` is the number of beams of all sequences. In the
    # spec's graph, `batch` is the number of sequences.
    outer_lengths = g.lengths
    g.lengths = DimResolver(inputs, step.length_equations, builder.graph.min_lengths)
    types, previous_names = g.bodies.open_bodies[0].types, set(g.bodies.open_bodies[0].types)
    lower_nodes(g, step, invariant_nodes)
    for name in types.keys() - previous_names:
        lengths = {str(builder.batch): builder.step_batch_size}
        shape = tuple(d.substitute(lengths) for d in types[name].shape)
        types[name] = Type(types[name].dtype, shape)
    g.lengths = outer_lengths
    return invariant_nodes


def find_loop_invariant_nodes(step: Graph, loop_invariant_inputs: Iterable[str]) -> list[Node]:
    """Return the nodes of `step`, in order, that depend only on weights and loop-invariant
    inputs.
    """
    invariant_values = {step.inputs[n] for n in loop_invariant_inputs}
    fixed_symbols = collect_shape_symbols(invariant_values)
    invariant_values |= set(step.parameters.values())
    invariant_nodes = []
    for node, results in step.nodes:
        # The analysis does not visit the values that a `Scan` body captures, so any `Scan` may vary
        # between steps.
        if isinstance(node.op, ops.Scan) or not _has_fixed_lengths(node, results, fixed_symbols):
            continue
        if all(a is None or a in invariant_values for a in node.args):
            invariant_values.update(results)
            invariant_nodes.append(node)
    return invariant_nodes


def _has_fixed_lengths(node: Node, results: Sequence[Value], fixed_symbols: set[str]) -> bool:
    """Return True if the operands and results of a node have the same dimensions in all steps."""
    # `Range(past)` has no operands, but its result changes in every step.
    lengths = [d for result in results for d in result.type.shape]
    lengths += node.op.iterate_attribute_dims()
    return all(d.symbols() <= fixed_symbols for d in lengths)
