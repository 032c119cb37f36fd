"""The definition of a model: graphs, input defaults, generation settings and derived graphs."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr
from specc.ir.graph import Graph
from specc.ir.types import Type


@immutable_dataclass
class GenerateSection:
    """The `generate` section of a spec. The section contains the names of the token id input and of
    the logits output. `settings` contains settings such as `start`, `stop` and `strategy` as Python
    values.
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
    """Return the codebook count of ids [batch, time, codebooks], or 0 for other shapes."""
    if sequence_type.rank != 3 or sequence_type.dtype != "i64":
        return 0
    return sequence_type.shape[2].number or 0


def has_token_logits(sequence_type: Type, logits_type: Type) -> bool:
    """Return True if token ids can be sampled from logits. Ids of shape [batch, time] require
    logits of shape [batch, vocab] or [batch, time, vocab]. Ids of shape [batch, time, codebooks]
    require logits of shape [batch, time, codebooks, vocab].
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
    (postprocessing) and `config` are JSON-compatible values for the manifest. The keys of
    `shared_scopes` are the scopes that match a `share` rule. A scope's value is True if several
    calls share the weights of the scope.
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
    """A decode state: the input `name` of a decode step, and the output `next_output`, which is
    passed to the next step.

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
    """The encoder graph and decode step of a generative model. `encode` runs once, before the first
    step. `encode` is None if the model has no encoder. The inputs of `step` are the new positions
    of `sequence_input`, the `loop_invariant_inputs`, other inputs along the time axis, and the
    states. Loop-invariant inputs are outputs of `encode` or inputs of the spec. The inputs in
    `full_length_inputs` contain the earlier positions in addition to the new positions.
    `initial_logits_output` is the output of `encode` with the logits for an empty prompt, of shape
    [batch, vocab] or [batch, 1, vocab]. `initial_logits_output` is "" if a prompt must have at
    least one token.
    """

    encode: Graph | None
    step: Graph
    states: tuple[DecodeState, ...]
    loop_invariant_inputs: tuple[str, ...]
    full_length_inputs: tuple[str, ...]
    sequence_input: str
    initial_logits_output: str = ""


PAST_LENGTH_INPUT = "past.rows"
"""The name of the input that contains the number of past positions. The input exists only if no
input shape determines this number. The input is a decode state. If KV caches are in-place buffers,
the caller passes the number of past positions as an argument.
"""


@immutable_dataclass
class KVCacheNames:
    """The KV cache of an attention layer: the names of its inputs and of the updated outputs."""

    key: str
    value: str
    present_key: str
    present_value: str


@immutable_dataclass
class KVBufferGraph:
    """The graph of a decode step whose KV caches are in-place buffers."""

    graph: Graph
    caches: tuple[KVCacheNames, ...]

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """The names of the inputs that are KV cache buffers."""
        return tuple(n for c in self.caches for n in (c.key, c.value))


@immutable_dataclass(kw_only=True)
class DecodingConfig:
    """Generation settings that are compiled into a standalone generator.

    Each sequence starts with `start_token_ids`, which is empty if the caller passes a prompt. A
    sequence ends with one of `stop_token_ids`, and is padded with `pad_token_id`. Beam search keeps
    `num_beams` hypotheses. A finished hypothesis has the score `sum(log_probs) / length **
    length_penalty`. If `early_stopping` is True, the search stops as soon as `num_beams` hypotheses
    are finished. If `early_stopping` is "never", the search stops when no better hypothesis is
    possible. `min_length` includes the prompt, `min_tokens` does not. `first_token_choices`
    contains the allowed tokens of each of the first positions. If `has_repetition_penalty` is True,
    the penalty is an input of the graph. All other settings have the same meaning as in
    transformers.
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
    def effective_pad_token_id(self) -> int:
        """The token id with which a finished sequence is padded."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        return self.stop_token_ids[0] if self.stop_token_ids else 0


@immutable_dataclass
class StandaloneGenerator:
    """A standalone generator: the spec's graph, the derived graphs, and the
    generation settings. `defaults` computes the graph inputs that are not inputs of the generator.
    """

    graph: Graph
    derived_graphs: DerivedGraphs
    decoding_config: DecodingConfig
    defaults: Graph | None = None


ModelSource: TypeAlias = Graph | KVBufferGraph | StandaloneGenerator
"""The source of a model file: a graph, a decode step with in-place KV caches, or a standalone
generator.
"""
