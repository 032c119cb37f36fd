"""The compiler's representation of a model: graphs, input defaults, and generation settings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr
from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Value, collect_required_nodes
from specc.ir.types import Type

DEFAULTS_GRAPH_NAME = "input defaults"
"""The name of the graph that computes input defaults. A graph in a spec cannot have this name,
because it contains a space.
"""


@immutable_dataclass
class GenerateSection:
    """The `generate` section of a spec. The section names the input with the token ids and the
    output with the logits. `settings` contains settings such as `start`, `stop` and `strategy` as
    Python values.
    """

    name: str
    sequence_input: str
    logits_output: str
    settings: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Convert the section to JSON-compatible values, with the keys of the metadata format."""
        return {
            "name": self.name,
            "sequence_input": self.sequence_input,
            "logits_output": self.logits_output,
            "settings": self.settings,
        }


def count_codebooks(sequence_type: Type) -> int:
    """Return the number of codebooks of ids [batch, time, codebooks], or 0 for other shapes."""
    if sequence_type.rank != 3 or sequence_type.dtype != "i64":
        return 0
    return sequence_type.shape[2].number or 0


def has_token_logits(sequence_type: Type, logits_type: Type) -> bool:
    """Return True if token ids can be sampled from logits. Ids [batch, time] need logits [batch,
    vocab] or [batch, time, vocab]. Ids [batch, time, codebooks] need logits [batch, time,
    codebooks, vocab].
    """
    if sequence_type.rank == 2:
        return logits_type.rank in (2, 3)
    codebooks = count_codebooks(sequence_type)
    return codebooks > 0 and logits_type.rank == 4 and logits_type.shape[2] == codebooks


@immutable_dataclass
class StreamSection:
    """The `stream` section of a spec: the streamed input, and the outputs computed from it."""

    sequence_input: str
    streamed_outputs: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Convert the section to JSON-compatible values, with the keys of the metadata format."""
        return {
            "sequence_input": self.sequence_input,
            "streamed_outputs": list(self.streamed_outputs),
        }


@immutable_dataclass(kw_only=True)
class ModelDefinition:
    """The definition of a model. `graph` computes the outputs. `defaults` computes omitted inputs
    and is None if no input has a default. `input_configs` (preprocessing), `output_formats`
    (postprocessing) and `config` are JSON-compatible values for the manifest. `shared_scopes` maps
    each scope that matches a `share` rule to True if several calls share the weights of the scope.
    """

    name: str
    doc: str
    graph: Graph
    defaults: Graph | None = None
    generation: GenerateSection | None = None
    streaming: StreamSection | None = None
    input_configs: Mapping[str, object] = field(default_factory=dict)
    output_formats: Mapping[str, object] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    shared_scopes: Mapping[str, bool] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        return format_repr(f"spec {self.name}, {self.graph.format_signature()}")


StateRole = Literal["key", "value", "carry", "rows"]


@immutable_dataclass(kw_only=True)
class DecodeState:
    """A decode state: the input `name` of a decode step, and the output `next_output` with the
    value for the next step.

    `batch_axis` is None if the state has no batch axis. `time_axis` is None if the state has a
    fixed shape. A time axis has at most `max_positions` positions. `initial_output` is the encoder
    output with the initial value, or "" for zeros. `role` and `layer` identify the attention layer,
    loop or cumulative sum to which the state belongs.
    """

    name: str
    next_output: str
    type: Type
    batch_axis: int | None
    time_axis: int | None
    max_positions: float
    initial_output: str
    role: StateRole
    layer: int


@immutable_dataclass(kw_only=True)
class DerivedGraphs:
    """The encoder graph and decode step of a generative model. `encode` runs once and is None if
    there is no encoder. The inputs of `step` are the new positions of `sequence_input`, the
    `loop_invariant_inputs` (outputs of `encode`, or inputs of the spec), other inputs along the
    time axis, and the states. The inputs in `full_length_inputs` include earlier positions.
    `initial_logits_output` is the output of `encode` with the logits for an empty prompt, [batch,
    vocab] or [batch, 1, vocab]. It is "" if a prompt must have at least one token.
    """

    encode: Graph | None
    step: Graph
    states: tuple[DecodeState, ...]
    loop_invariant_inputs: tuple[str, ...]
    full_length_inputs: tuple[str, ...]
    sequence_input: str
    initial_logits_output: str = ""


PAST_LENGTH_INPUT = "past.rows"
"""The name of the input with the number of past positions. The input exists if no input shape
determines this number. It is a decode state or, if KV caches are in-place buffers, an argument that
the caller passes.
"""


@immutable_dataclass
class KVCache:
    """The KV cache of an attention layer: the names of its inputs and of the updated outputs."""

    key: str
    value: str
    present_key: str
    present_value: str


@immutable_dataclass
class KVBufferGraph:
    """The graph of a decode step whose KV caches are in-place buffers."""

    graph: Graph
    caches: tuple[KVCache, ...]

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """The names of the inputs that are KV cache buffers."""
        return tuple(n for c in self.caches for n in (c.key, c.value))


@immutable_dataclass(kw_only=True)
class DecodingConfig:
    """Generation settings that are compiled into a standalone generator.

    Each sequence starts with `start_token_ids` (empty if the caller passes a prompt), ends with one
    of `stop_token_ids`, and is padded with `pad_token_id`. Beam search keeps `num_beams`
    hypotheses. A finished hypothesis has the score `sum(log_probs) / length ** length_penalty`. If
    `early_stopping` is True, the search stops as soon as `num_beams` hypotheses are finished. If
    `early_stopping` is "never", the search stops when no better hypothesis is possible.
    `min_length` includes the prompt, `min_tokens` does not. `first_token_choices` contains the
    allowed tokens of each of the first positions. If `has_repetition_penalty` is True, the penalty
    is an input of the graph. All other settings have the same meaning as in transformers.
    """

    logits_output: str
    strategy: Literal["greedy", "sample", "beam"] = "greedy"
    start_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    first_token_choices: tuple[tuple[int, ...], ...] = ()
    forced_eos_token_id: int | None = None
    renormalize_logits: bool = False
    has_repetition_penalty: bool = False
    num_beams: int = 4
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        assert 1 <= self.num_return_sequences <= self.num_beams, (
            f"{self.num_return_sequences} of {self.num_beams} beams"
        )

    @property
    def fill_token_id(self) -> int:
        """The token id with which a finished sequence is padded."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        return self.stop_token_ids[0] if self.stop_token_ids else 0


@immutable_dataclass
class StandaloneGeneratorSource:
    """The source of a standalone generator: the spec's graph, the derived graphs, and the
    generation settings. `defaults` computes the graph inputs that are not inputs of the generator.
    """

    graph: Graph
    derived: DerivedGraphs
    decoding_config: DecodingConfig
    defaults: Graph | None = None


ModelSource: TypeAlias = Graph | KVBufferGraph | StandaloneGeneratorSource
"""The source of a model file: a graph, a decode step with in-place KV caches, or a standalone
generator.
"""


def resolve_missing_inputs(defaults: Graph, missing_names: Collection[str]) -> Graph:
    """Return a graph that computes the defaults of `missing_names` from the model's other inputs.
    If a default depends on another missing input, that input's default is inlined. An input with a
    circular default remains an input of the graph.
    """
    builder, new_values = GraphBuilder(), dict[Value, Value]()
    for name, facts in defaults.input_facts.items():
        if name not in missing_names:
            new_values[defaults.inputs[name]] = builder.add_input(name, facts)
    pending_names = [n for n in defaults.outputs if n in missing_names]
    outputs: dict[str, Value] = {}
    while pending_names:
        name = _choose_next_default(defaults, pending_names)
        pending_names.remove(name)
        for source_name in find_default_sources(defaults, name) - {*builder.inputs} - {*outputs}:
            new_values[defaults.inputs[source_name]] = builder.add_input(
                source_name, defaults.input_facts[source_name]
            )
        value = defaults.outputs[name]
        builder.copy_nodes(defaults, new_values, collect_required_nodes([value]))
        outputs[name] = new_values[value]
        # unless the input has been added, later defaults read the output `name` instead of the
        # input
        if name in defaults.inputs:
            new_values.setdefault(defaults.inputs[name], outputs[name])
    ordered_outputs = {n: outputs[n] for n in defaults.outputs if n in outputs}
    return builder.build_graph(defaults.name, ordered_outputs, min_lengths=defaults.min_lengths)


def _choose_next_default(defaults: Graph, pending_names: Sequence[str]) -> str:
    """Return the name of an input whose default depends on no pending input. If the dependences are
    circular, return the first of `pending_names`.
    """
    ready_names = (
        n for n in pending_names if not find_default_sources(defaults, n) & {*pending_names}
    )
    return next(ready_names, pending_names[0])


def find_default_sources(defaults: Graph, name: str) -> set[str]:
    """Return the names of the inputs on which the default of `name` depends."""
    value = defaults.outputs[name]
    used_values = {value, *(a for node in collect_required_nodes([value]) for a in node.args)}
    return {n for n, v in defaults.inputs.items() if v in used_values}


def extract_tokenwise_default(defaults: Graph, name: str, sequence_input: str) -> Graph | None:
    """Return the graph of the default of `name` if each position depends only on the token at the
    same position, otherwise None.
    """
    value = defaults.outputs[name]
    if find_default_sources(defaults, name) != {sequence_input}:
        return None
    if value.shape != defaults.inputs[sequence_input].shape:
        return None
    used_ops = [node.op for node in collect_required_nodes([value])]
    if not all(op.is_elementwise or isinstance(op, ops.Constant) for op in used_ops):
        return None
    return resolve_missing_inputs(defaults, (name,))


def find_circular_default(defaults: Graph) -> str:
    """Return the name of an input whose default depends on the input itself, or ""."""
    pending_names = set(defaults.outputs)
    while ready_names := {
        n for n in pending_names if not find_default_sources(defaults, n) & pending_names
    }:
        pending_names -= ready_names
    return next((n for n in defaults.outputs if n in pending_names), "")


def inline_defaults(graph: Graph, defaults: Graph) -> Graph:
    """Inline the defaults of all inputs of `graph` that have a default. Each output of `defaults`
    has the name of its input. If the default of a padding mask is inlined, negative token ids at
    padded positions become 0.
    """
    defaults = resolve_missing_inputs(defaults, defaults.outputs)
    builder = GraphBuilder()
    for name, facts in graph.input_facts.items():
        if name not in defaults.outputs:
            builder.add_input(name, facts)
    for parameter in graph.parameter_facts.values():
        builder.add_parameter(parameter)
    default_values = _copy_remaining_inputs(defaults, builder)
    builder.copy_nodes(defaults, default_values)
    new_values = _copy_remaining_inputs(graph, builder)
    new_values |= {
        graph.inputs[n]: default_values[v] for n, v in defaults.outputs.items() if n in graph.inputs
    }
    for name in defaults.outputs:
        if name in graph.inputs and graph.input_facts[name].padding_side:
            _zero_padding_ids(builder, graph, new_values, graph.inputs[name])
    new_values |= {v: builder.parameters[n] for n, v in graph.parameters.items()}
    builder.copy_nodes(graph, new_values)
    return builder.finish_copy(graph, new_values)


def _zero_padding_ids(
    builder: GraphBuilder, graph: Graph, new_values: dict[Value, Value], mask: Value
) -> None:
    """Replace negative token ids at padded positions with 0, so that embedding lookups stay in
    range. `mask` is the padding mask. `new_values` is updated in place.
    """
    for name, facts in graph.input_facts.items():
        ids = graph.inputs[name]
        if facts.upper_bound is None or ids not in new_values or ids.shape != mask.shape:
            continue
        zero = builder.add_op(ops.Constant(0, ids.dtype))
        is_negative = builder.add_op(ops.Compare("lt"), new_values[ids], zero)
        is_padding = builder.add_op(
            ops.And(), builder.add_op(ops.Not(), new_values[mask]), is_negative
        )
        new_values[ids] = builder.add_op(ops.Where(), is_padding, zero, new_values[ids])


def _copy_remaining_inputs(graph: Graph, builder: GraphBuilder) -> dict[Value, Value]:
    """Map the inputs of `graph` to the inputs of `builder` with the same names, if they exist."""
    return {v: builder.inputs[n] for n, v in graph.inputs.items() if n in builder.inputs}
