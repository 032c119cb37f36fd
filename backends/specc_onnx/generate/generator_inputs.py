"""Define the inputs of a standalone generator, and the builder that assembles the generator. Emit
the prompt: the padding mask, start tokens for an omitted prompt, and the logits for the first
token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from onnx import TensorProto

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph, find_default_inputs
from specc.ir.model_definition import DecodingConfig, StandaloneGenerator
from specc.ir.types import Type
from specc_onnx.lower.emitter import Emitter, LoweringContext
from specc_onnx.lower.indexing import emit_zeroed_padding_indices
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.reshape_reduce_and_matmul import emit_axis_length, emit_count_nonzero

MAX_TOKENS_INPUT = "max_tokens"
"""The name of the input i64[] that contains the maximum number of generated tokens."""

SEED_INPUT = "seed"
"""The name of the input i64[] that contains the nonnegative seed of sampling."""

PENALTY_INPUT = "repetition_penalty"
"""Name of the input f32[] with the repetition penalty. A penalty of 1 has no effect."""

SAMPLING_INPUTS = {"temperature": "f32", "top_k": "i64", "top_p": "f32", "min_p": "f32"}
"""The scalar inputs of a sampling model. `top_k` and `min_p` have no effect if they are 0.
`temperature` and `top_p` have no effect if they are 1.
"""

GENERATED_DIM = Dim.symbol("generated")
"""The dimension whose size is the number of tokens generated so far."""

NO_TOKEN = -1
"""The token id that is returned, with a log-probability of NaN, if all logits are NaN."""


def get_scalar_input_types(decoding: DecodingConfig) -> dict[str, str]:
    """Return the scalar inputs with their element types, in the order of the signature."""
    scalars = {MAX_TOKENS_INPUT: "i64"}
    if decoding.strategy == "sample":
        scalars |= {SEED_INPUT: "i64", **SAMPLING_INPUTS}
    if decoding.has_repetition_penalty:
        scalars[PENALTY_INPUT] = "f32"
    return scalars


@immutable_dataclass
class LoopCarry:
    """A loop-carried value: its name and type inside the loop, and its initial value."""

    name: str
    type: Type
    initial_value: OnnxValue


@immutable_dataclass
class DecodingStepResult:
    """The result of a decoding step. It consists of the next `tokens` i64[batch], their parent
    beams i64[batch] (None without beam search), `should_continue` bool[], and the loop-carried
    values after the step.
    """

    tokens: OnnxValue
    parents: OnnxValue | None
    should_continue: OnnxValue
    next_carries: Sequence[OnnxValue]


@immutable_dataclass(slots=False)
class GeneratorDefinition(StandaloneGenerator):
    """Graphs, decoding settings and input defaults of a standalone generator."""

    @classmethod
    def from_generator(cls, generator: StandaloneGenerator) -> "GeneratorDefinition":
        """Return the definition of the standalone generator `generator`."""
        return cls(
            generator.graph, generator.derived_graphs, generator.decoding_config, generator.defaults
        )

    @property
    def parameters(self) -> dict[str, Value]:
        """Return the parameters that the graphs use, keyed by name, in the order of the spec."""
        encoder_parameters = (
            self.derived_graphs.encode.parameters if self.derived_graphs.encode else {}
        )
        parameters = {**encoder_parameters, **self.derived_graphs.step.parameters}
        return {n: parameters[n] for n in (*self.graph.parameters, *parameters) if n in parameters}

    @property
    def weight_graph(self) -> Graph:
        """Return a graph with all used parameters, from which the weight placement is planned."""
        return replace(self.graph, parameters=self.parameters)

    @property
    def graphs(self) -> list[Graph]:
        """Return the graphs to lower: the encoder, if the model has one, and the decode step."""
        return [g for g in (self.derived_graphs.encode, self.derived_graphs.step) if g]

    @property
    def default_input_graphs(self) -> list[Graph]:
        """Return the graphs of the used input defaults. The graphs of padding masks come first."""
        masks = [n for n in self.padding_masks if n in self._defaulted_inputs]
        other_inputs = [n for n in self._defaulted_inputs if n not in masks]
        return [
            build_input_defaults_graph(self.defaults, names)
            for names in (masks, other_inputs)
            if names and self.defaults
        ]

    @property
    def accepts_empty_prompt(self) -> bool:
        """Return True if generation can start without a prompt."""
        graph, prompt_input = self.graph, self.derived_graphs.sequence_input
        batch = graph.inputs[prompt_input].type.shape[0]
        other_types = [
            t for n, t in self.inputs.items() if n not in (prompt_input, *self.padding_masks)
        ]
        return (bool(self.decoding_config.start_token_ids) or self.can_start_from_prefix) and any(
            d == batch for t in other_types for d in t.shape
        )

    @property
    def can_start_from_prefix(self) -> bool:
        """Return True if the last prefix position (a position before the first token) predicts the
        first token of an empty sequence.
        """
        return not self.decoding_config.start_token_ids and bool(
            self.derived_graphs.initial_logits_output
        )

    @property
    def inputs(self) -> dict[str, Type]:
        """Return the inputs of the spec that are inputs of the model, in the order of the spec."""
        return {
            n: v.type
            for n, v in self.graph.inputs.items()
            if n in self._read_inputs and n not in self._defaulted_inputs
        }

    @property
    def optional_inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs that may be omitted: the prompt and its padding masks, if
        generation can start without a prompt.
        """
        absent_inputs = (
            (self.derived_graphs.sequence_input, *self.padding_masks)
            if self.accepts_empty_prompt
            else ()
        )
        return tuple(n for n in self.inputs if n in absent_inputs)

    @property
    def padding_masks(self) -> tuple[str, ...]:
        """Return the names of the inputs that are the prompt's padding masks."""
        graph, shape = self.graph, self.graph.inputs[self.derived_graphs.sequence_input].type.shape
        return tuple(
            n
            for n, v in graph.inputs.items()
            if graph.input_facts[n].padding_side and v.type.shape == shape
        )

    @cached_property
    def _read_inputs(self) -> set[str]:
        """Return the names of the spec inputs that the graphs or their input defaults read."""
        names = {n for part in self.graphs for n in part.inputs if n in self.graph.inputs} | {
            self.derived_graphs.sequence_input
        }
        pending = list(names)
        while pending:
            name = pending.pop()
            if (
                self.defaults
                and name in self.defaults.outputs
                and name != self.derived_graphs.sequence_input
            ):
                sources = find_default_inputs(self.defaults, name) - names
                names |= sources
                pending += sources
        return names

    @property
    def _defaulted_inputs(self) -> list[str]:
        """Return the spec inputs that the model computes from their defaults."""
        outputs = self.defaults.outputs if self.defaults else ()
        return [
            n for n in outputs if n in self._read_inputs and n != self.derived_graphs.sequence_input
        ]


@immutable_dataclass(kw_only=True)
class GeneratorBuilder(GeneratorDefinition):
    """A standalone generator under construction. It has the `types` of the spec's inputs, the
    scalar inputs by role, and the tensors of the main graph by name (`main_tensors`), including
    encoder outputs. Each sequence is repeated `repeat_count` times. If an encoder output has a
    batch axis, the size of this axis is fixed, so `repeat_count` is the number of beams. Otherwise
    `repeat_count` is 1, and the first step expands each sequence to `num_beams` beams.
    """

    g: Emitter
    types: Mapping[str, Type]
    scalars: Mapping[str, Tensor]
    main_tensors: dict[str, Tensor]
    batch: Dim
    repeat_count: int

    @property
    def step_batch_size(self) -> Dim:
        """Return the number of sequences in a step: the batch size times the number of beams."""
        return self.batch * self.repeat_count

    @property
    def per_token_inputs(self) -> list[str]:
        """Return the names of the step inputs with one value per token, except the token ids."""
        other_inputs = {
            self.derived_graphs.sequence_input,
            *self.derived_graphs.loop_invariant_inputs,
            *(s.name for s in self.derived_graphs.states),
        }
        return [n for n in self.derived_graphs.step.inputs if n not in other_inputs]

    def find_batch_axis(self, type: Type) -> int | None:
        """Return the first axis of `type` whose size is the batch size, or None without one."""
        return next((n for n, d in enumerate(type.shape) if d == self.batch), None)

    def bind_inputs(self, graph: Graph, tensors: Mapping[str, OnnxValue]) -> None:
        """Bind the inputs of `graph` to `tensors` by name, and its parameters to the weights."""
        g = self.g
        used_values = {a for node, _ in graph.nodes for a in node.args if a}
        used_values |= set(graph.outputs.values())
        for name, value in graph.inputs.items():
            # `encode` has all inputs of the spec. The inputs that `encode` does not use need not be
            # bound.
            if name in tensors or value in used_values:
                g.values.tensors[value] = tensors[name].with_type(value.type, value)
                g.analysis.padding_sides[value] = graph.input_facts[name].padding_side
        for name, value in graph.parameters.items():
            g.values.tensors[value] = g.values.parameters[name]

    def repeat_for_beams(self, x: Tensor, axis: int | None = None) -> OnnxValue:
        """Repeat each entry along the batch axis of `x` `repeat_count` times. `axis` is the batch
        axis. If `axis` is None, use the axis whose size is the batch size, if there is one.
        """
        if axis is None:
            axis = self.find_batch_axis(x.type)
        if axis is None or self.repeat_count == 1:
            return x
        g = self.g
        g.context = LoweringContext(("beams",))
        beam_ids = g.emit_node("Range", 0, g.emit_length(self.step_batch_size), 1)
        # Beams of one sequence must be adjacent (0 0 0 1 1 1), but `Tile` interleaves sequences (0
        # 1 0 1 0 1).
        sequence_ids = beam_ids / self.repeat_count
        return x.gather(sequence_ids, axis)


GENERATED_COUNT_DIM = Dim.symbol("generated_tokens")
"""The dimension of the model's outputs whose size is the number of generated tokens."""


def emit_start_tokens(builder: GeneratorBuilder) -> OnnxValue | None:
    """Emit the start (BOS) tokens that replace an omitted prompt, and their padding mask. Return a
    bool[1] that is true if the prompt is omitted, or None if generation requires no start token.
    """
    g, start_ids = builder.g, builder.decoding_config.start_token_ids
    g.context = LoweringContext(("start",))
    prompt_input = builder.derived_graphs.sequence_input
    prompt_type, is_absent = builder.types[prompt_input], None
    tokens = _emit_optional_input(builder, prompt_input)
    if not builder.can_start_from_prefix:
        is_absent = emit_axis_length(tokens, 1).equals([0])
        # A slice of size 0 or 1 is used instead of an `If`, because the branches of an `If` must
        # have equal shapes.
        start_tokens = g.emit_constant([list(start_ids)], prompt_type.dtype)
        shape = g.emit_shape([builder.batch]).apply_op("Concat", [1], axis=0)
        count = is_absent.cast("i64") * [len(start_ids)]
        start_column = start_tokens.expand(shape)
        start_column = start_column.apply_op("Slice", [0], count, [1])
        tokens = start_column.apply_op("Concat", tokens, axis=1)
    builder.main_tensors[prompt_input] = tokens.with_type(prompt_type)
    # The prompt length is now the number of tokens including start tokens, not the size of the
    # input.
    g.lengths = replace(g.lengths, inputs={**g.lengths.inputs, tokens.name: prompt_type})
    for name in builder.optional_inputs:
        if name != prompt_input:
            builder.main_tensors[name] = _emit_extended_mask(builder, name, tokens)
    return is_absent


def _emit_extended_mask(builder: GeneratorBuilder, name: str, tokens: OnnxValue) -> Tensor:
    """Emit the padding mask input `name`. True values are prepended for start tokens, or for an
    omitted mask, until the mask has the length of `tokens` i64[batch, n].
    """
    g = builder.g
    mask = _emit_optional_input(builder, name)
    missing_length = emit_axis_length(tokens, 1) - emit_axis_length(mask, 1)
    shape = g.emit_shape([builder.batch]).apply_op("Concat", missing_length, axis=0)
    leading_mask = g.emit_node("Expand", True, shape)
    return leading_mask.apply_op("Concat", mask, axis=1).with_type(builder.types[name])


def _emit_optional_input(builder: GeneratorBuilder, name: str) -> OnnxValue:
    """Emit the optional input `name`, `[batch, n]`. If the caller omits the input, `n` is 0."""
    g, type = builder.g, builder.types[name]
    # An initializer with an input's name is the input's default. This default has batch size 1 and
    # is expanded to the batch size.
    code = ONNX_TYPE_CODES[type.dtype]
    g.values.constants[name] = TensorProto(name=name, data_type=code, dims=[1, 0])
    shape = g.emit_shape([builder.batch]).apply_op("Concat", [1], axis=0)
    return Tensor(g, name, type).expand(shape)


def emit_prompt_loop_carry(builder: GeneratorBuilder) -> LoopCarry:
    """Emit the loop-carried token ids, whose initial value is the complete prompt."""
    prompt_input = builder.derived_graphs.sequence_input
    ids = builder.main_tensors[prompt_input]
    default_names = (n for graph in builder.default_input_graphs for n in graph.outputs)
    for name in default_names:
        # The pad id may be -1, which is not a valid embedding index.
        if name in builder.padding_masks and _is_lookup_index(
            builder.derived_graphs.step, prompt_input
        ):
            keep = builder.main_tensors[name]
            ids = emit_zeroed_padding_indices(ids, keep).with_type(ids.type)
    return emit_input_loop_carry(builder, prompt_input, ids)


def _is_lookup_index(step: Graph, name: str) -> bool:
    """Return True if an embedding layer of `step` looks up the input `name`."""
    ids = step.inputs[name]
    consumers = [node.op for node, _ in step.nodes if ids in node.args]
    return any(isinstance(op, ops.Embedding) for op in consumers)


def emit_input_loop_carry(
    builder: GeneratorBuilder, name: str, initial_tensor: Tensor
) -> LoopCarry:
    """Emit the loop-carried value for the step input `name`. In the first iteration, the value is
    `initial_tensor`, repeated for each beam.
    """
    type = builder.derived_graphs.step.inputs[name].type
    return LoopCarry(name, type, builder.repeat_for_beams(initial_tensor))


def emit_prompt_mask(builder: GeneratorBuilder) -> OnnxValue | None:
    """Emit the padding mask of the prompt, bool[batch, n], repeated for each beam. Return None if
    there is no padding mask.
    """
    for name in builder.padding_masks:
        if name in builder.main_tensors:
            return builder.repeat_for_beams(builder.main_tensors[name])
    return None


def emit_empty_prompt_logits(builder: GeneratorBuilder) -> Tensor | None:
    """Emit the logits f32[batch, vocabulary] for the first token of sequences without a prompt.
    Return None if every sequence requires a start token.
    """
    name, g = builder.derived_graphs.initial_logits_output, builder.g
    if not builder.can_start_from_prefix:
        return None
    initial_output = builder.main_tensors[name]
    g.context = LoweringContext(("start",))
    logits, shape = builder.repeat_for_beams(initial_output), initial_output.shape
    if initial_output.rank == 3:
        logits = logits.squeeze(1)
    logits = logits.cast("f32")
    return logits.with_shape((builder.step_batch_size, shape[-1]))


def emit_empty_prompt_mask(builder: GeneratorBuilder) -> OnnxValue | None:
    """Emit bool[batch, 1], true for all-padding prompts, or return None without a mask."""
    mask = emit_prompt_mask(builder)
    return None if mask is None else emit_count_nonzero(mask, 1, keepdims=True).equals(0)
