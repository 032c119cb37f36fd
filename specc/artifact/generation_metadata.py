"""Generation metadata in `specc.json`: spec inputs, decode states, bounds of symbolic dimensions,
and chunk size. The runtime uses this metadata to run the step graph of a generative or streaming
package.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NoReturn

from specc.analysis.length_limits import (
    compute_max_symbol_size,
    find_length_limits,
    find_length_sum_limits,
    find_min_lengths,
)
from specc.analysis.valid_axis_sizes import find_divisibility_constraints
from specc.artifact.manifest import RandomInitMetadata, parse_generate_section
from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import INTEGER_BOUND, Json, JsonReader, get_exact_integer, to_json_value
from specc.io.safe_read import escape_text
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.ir.input_shapes_and_defaults import DEFAULTS_GRAPH_NAME
from specc.ir.ir_parser import parse_ir
from specc.ir.ir_printer_and_lexer import format_ir, parse_dim
from specc.ir.model_definition import DecodeState, GenerateSection, StateRole, has_token_logits
from specc.preprocessing.input_checks import LengthBound
from specc.preprocessing.preprocessing_config import PreprocessingConfig

METADATA_KEY = "generation"
STATE_ROLES: tuple[StateRole, ...] = ("key", "value", "carry", "rows")


@dataclass(frozen=True)
class ChunkConfig:
    """The chunk size of a streaming model. The length of each chunk must be a multiple of
    `step_length` time steps. `output_lengths` maps each output to the size of its time axis as a
    function of the stream length. `per_step_inputs` are inputs whose default at a position depends
    only on other inputs at the same position.
    """

    step_length: int
    output_lengths: Mapping[str, Dim]
    per_step_inputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerationMetadata:
    """The generation metadata of a package.

    `signature` is a graph with exactly the inputs of the spec, and `defaults` computes omitted
    inputs. `loop_invariant_inputs` are the inputs that do not change between steps. `full_inputs`
    are the inputs that contain all positions so far. `max_context` is the maximum sequence length
    (None if unlimited). `length_limiting_table` is the position embedding table that sets this
    maximum. `length_bounds` are the bounds of other symbolic dimensions. If the prompt is empty,
    the first token is sampled from the `encode` output `first_token_logits`. `in_place_states` are
    the states whose buffers a step updates in place (`specc.runtime.decoder_sessions`). If
    `allows_mixed_lengths` is True, a batch may contain sequences of different lengths
    (`specc.runtime.batch_slots`). `chunk_config` is None for a generative model.
    """

    generation: GenerateSection
    signature: Graph
    defaults: Graph | None
    preprocessing: PreprocessingConfig
    states: tuple[DecodeState, ...]
    loop_invariant_inputs: tuple[str, ...]
    full_inputs: tuple[str, ...]
    first_token_logits: str = ""
    max_context: int | None = None
    length_limiting_table: str = ""
    random_init_metadata: RandomInitMetadata | None = None
    in_place_states: tuple[str, ...] = ()
    length_bounds: Mapping[str, LengthBound] = field(default_factory=dict)
    allows_mixed_lengths: bool = False
    chunk_config: ChunkConfig | None = None

    def to_json(self) -> dict[str, Json]:
        """Return the metadata as JSON for `parse_generation_metadata`."""
        graphs = [self.signature, *([self.defaults] if self.defaults else [])]
        chunks: Json = None
        if stream := self.chunk_config:
            chunks = {
                "step_length": stream.step_length,
                "output_lengths": {
                    name: str(length) for name, length in stream.output_lengths.items()
                },
                "per_step_inputs": to_json_value(stream.per_step_inputs),
            }
        fields: dict[str, Json] = {
            "generate_section": to_json_value(self.generation.to_json()),
            "graphs": format_ir(*graphs),
            "preprocessing": self.preprocessing.to_json(),
            "states": [_convert_state(s) for s in self.states],
            "loop_invariant_inputs": to_json_value(self.loop_invariant_inputs),
            "full_inputs": to_json_value(self.full_inputs),
            "first_token_logits": self.first_token_logits,
            "max_context": self.max_context,
            "length_limiting_table": self.length_limiting_table,
            "seed": self.random_init_metadata.seed if self.random_init_metadata else None,
            "random_weights": self.random_init_metadata.count if self.random_init_metadata else 0,
            "in_place_states": to_json_value(self.in_place_states),
            "length_bounds": length_bounds_to_json(self.length_bounds),
            "allows_mixed_lengths": self.allows_mixed_lengths,
            "chunks": chunks,
        }
        return {METADATA_KEY: fields}


def is_streaming_package(metadata: Mapping[str, object]) -> bool:
    """Return True if the unparsed metadata of a package describes a streaming model."""
    fields = metadata.get(METADATA_KEY)
    return isinstance(fields, dict) and fields.get("chunks") is not None


def length_bounds_to_json(bounds: Mapping[str, LengthBound]) -> Json:
    """Convert the bounds of symbolic dimensions to JSON: `[low, high, reason]`, keyed by symbol."""
    return {name: [b.low, b.high, b.reason] for name, b in sorted(bounds.items())}


def parse_length_bounds(data: object) -> dict[str, LengthBound]:
    """Parse the bounds of symbolic dimensions from JSON. Ignore invalid bounds."""
    bounds = {}
    for name, bound_data in data.items() if isinstance(data, dict) else ():
        match bound_data:
            # ignore an invalid bound, because the runtime reports invalid sizes when the graph is
            # run
            case [int() as low, None | int() as high, str() as reason]:
                bounds[str(name)] = LengthBound(low, high, reason[:300])
    return bounds


def _convert_state(state: DecodeState) -> Json:
    """Convert a state to JSON. Omit its type, because the step graph declares the type."""
    return {
        "name": state.name,
        "next_output": state.next_output,
        "batch_axis": state.batch_axis,
        "time_axis": state.time_axis,
        "max_positions": None if state.max_positions == inf else int(state.max_positions),
        "initial_output": state.initial_output,
        "role": state.role,
        "layer": state.layer,
    }


def parse_generation_metadata(
    metadata: Mapping[str, object], step: Graph, path: str
) -> GenerationMetadata:
    """Parse the generation metadata of the package at `path` with the step graph `step`. Raise
    E0831 if the metadata is invalid or does not match the step graph.
    """
    data = metadata.get(METADATA_KEY)
    if not isinstance(data, dict):
        _raise_invalid_package(path, "its generation settings are missing")
    fields = JsonReader(
        data,
        report_error=lambda place, what: _raise_invalid_package(
            path, f"`{'.'.join(place)}` {what}"
        ),
    )
    generation = parse_generate_section(fields.get_optional("generate_section"))
    text = fields.get_optional("graphs")
    if generation is None or not isinstance(text, str):
        _raise_invalid_package(path, "`generate_section` is invalid")
    graphs = parse_ir(text, path)
    chunks = _read_chunks(fields, step, path)
    signature = _read_signature(graphs, generation, step, path, generates_tokens=chunks is None)
    context, seed, count = (
        get_exact_integer(fields.get_optional(key))
        for key in ("max_context", "seed", "random_weights")
    )
    return GenerationMetadata(
        generation=generation,
        signature=signature,
        defaults=graphs.get(DEFAULTS_GRAPH_NAME),
        states=_read_states(fields, signature, step, path),
        preprocessing=PreprocessingConfig.from_json(fields.get_optional("preprocessing")),
        loop_invariant_inputs=_read_names(fields, "loop_invariant_inputs", step, path),
        full_inputs=_read_names(fields, "full_inputs", step, path),
        first_token_logits=fields.read_string("first_token_logits")
        if fields.has_field("first_token_logits")
        else "",
        max_context=context if context is not None and context > 0 else None,
        length_limiting_table=str(fields.get_optional("length_limiting_table") or "")[:200],
        random_init_metadata=None if seed is None else RandomInitMetadata(seed, max(count or 0, 0)),
        in_place_states=_read_names(fields, "in_place_states", step, path),
        length_bounds=parse_length_bounds(fields.get_optional("length_bounds")),
        allows_mixed_lengths=fields.get_optional("allows_mixed_lengths") is True,
        chunk_config=chunks,
    )


def _read_chunks(metadata_fields: JsonReader, step: Graph, path: str) -> ChunkConfig | None:
    """Parse the chunk size of a streaming model. Return None for a generative model."""
    chunk_data = metadata_fields.get_optional("chunks")
    if chunk_data is None:
        return None
    fields = chunk_data if isinstance(chunk_data, dict) else {}
    step_length, lengths = (
        get_exact_integer(fields.get("step_length")),
        fields.get("output_lengths"),
    )
    if step_length is None or step_length < 1 or not isinstance(lengths, dict):
        _raise_invalid_package(path, "`chunks` is invalid")
    names = fields.get("per_step_inputs")
    per_step_inputs = tuple(map(str, names)) if isinstance(names, list) else ()
    return ChunkConfig(step_length, _read_output_lengths(lengths, step, path), per_step_inputs)


def _read_output_lengths(
    output_lengths: Mapping[str, object], step: Graph, path: str
) -> dict[str, Dim]:
    """Parse the size of each output's time axis as a function of the stream length."""
    try:
        lengths = {str(n): parse_dim(str(text)) for n, text in output_lengths.items()}
    except DimError:
        _raise_invalid_package(path, "`chunks` has an invalid length")
    if not lengths.keys() <= step.outputs.keys():
        _raise_invalid_package(path, "`chunks` names an unknown output of the step")
    return lengths


def _read_signature(
    graphs: Mapping[str, Graph],
    generation: GenerateSection,
    step: Graph,
    path: str,
    *,
    generates_tokens: bool,
) -> Graph:
    """Return the graph whose inputs are those of the spec. Raise E0831 if the spec or the step
    graph lacks the generated or streamed input, or if the step graph lacks the corresponding
    output.
    """
    signature = next((g for n, g in graphs.items() if n != DEFAULTS_GRAPH_NAME), None)
    name = generation.sequence_input
    if signature is None or name not in signature.inputs or name not in step.inputs:
        _raise_invalid_package(path, f"the step has no input `{escape_text(name)[:200]}`")
    type_, output = signature.inputs[name].type, step.outputs.get(generation.logits_output)
    is_valid = output is not None and (not generates_tokens or has_token_logits(type_, output.type))
    if not is_valid or type_.rank < 2:
        kind = "logits" if generates_tokens else "streamed"
        _raise_invalid_package(path, f"the step has no {kind} output")
    return signature


def check_encoder_outputs(
    metadata: GenerationMetadata,
    encoder_inputs: Collection[str],
    encoder_outputs: Collection[str],
    path: str,
) -> None:
    """Raise E0831 if a loop-invariant input or an initial state of the step is neither an input of
    the spec nor an output of `encode`. Also raise E0831 if `encode` has an input that the spec
    lacks. `encoder_inputs` and `encoder_outputs` are empty if there is no `encode` graph.
    """
    inputs = metadata.signature.inputs.keys()
    loop_invariant_inputs = {name for name in metadata.loop_invariant_inputs if name not in inputs}
    initial = {state.initial_output for state in metadata.states if state.initial_output}
    initial |= {metadata.first_token_logits} - {""}
    missing = [
        *sorted((loop_invariant_inputs | initial) - set(encoder_outputs)),
        *sorted(set(encoder_inputs) - inputs),
    ]
    if missing:
        _raise_invalid_package(
            path, f"no `encode` graph returns or reads `{escape_text(missing[0])[:200]}`"
        )


def _read_states(
    data: JsonReader, signature: Graph, step: Graph, path: str
) -> tuple[DecodeState, ...]:
    """Parse a step's states. Raise E0831 unless each state has a separate input and output of the
    step. A state must also be an output of `encode`, or have an initial shape that follows from the
    inputs.
    """
    # Two states with the same name would share a buffer, and one state would overwrite the other.
    states = tuple(_read_state(state_data, step, path) for state_data in data.read_list("states"))
    names, next_outputs = {s.name for s in states}, {s.next_output for s in states}
    if min(len(names), len(next_outputs)) < len(states):
        _raise_invalid_package(path, "duplicate state")
    known_lengths = {d.name for value in signature.inputs.values() for d in value.type.shape}
    for state in states:
        dims = [d for axis, d in enumerate(state.type.shape) if axis != state.time_axis]
        symbols = {s for d in dims for s in d.symbols()}
        # the graph `encode` determines the shape of the states that it outputs
        if not state.initial_output and not symbols <= known_lengths:
            _raise_invalid_package(
                path, f"the initial size of the state `{escape_text(state.name)[:200]}` is unknown"
            )
    return states


def _read_state(data: object, step: Graph, path: str) -> DecodeState:
    """Parse a decode state. Raise E0831 if the step has no matching input and output."""
    if not isinstance(data, dict):
        _raise_invalid_package(path, "a state is invalid")
    name, next_output = data.get("name"), data.get("next_output")
    if (
        not isinstance(name, str)
        or not isinstance(next_output, str)
        or name not in step.inputs
        or next_output not in step.outputs
    ):
        _raise_invalid_package(path, f"the step has no state `{escape_text(name)[:200]}`")
    reason = f"the state `{escape_text(name)[:200]}` is invalid"
    fields = JsonReader(data, report_error=lambda *_: _raise_invalid_package(path, reason))
    type_ = step.inputs[name].type
    max_positions = _read_optional_int(fields, "max_positions", INTEGER_BOUND)
    return DecodeState(
        name=name,
        next_output=next_output,
        type=type_,
        batch_axis=_read_optional_int(fields, "batch_axis", type_.rank - 1),
        time_axis=_read_optional_int(fields, "time_axis", type_.rank - 1),
        max_positions=inf if max_positions is None else max_positions,
        initial_output=fields.read_string("initial_output"),
        role=fields.read_choice("role", STATE_ROLES),
        layer=fields.read_int("layer", 0, INTEGER_BOUND),
    )


def _read_optional_int(data: JsonReader, key: str, maximum: int) -> int | None:
    """Parse an integer from 0 to `maximum`, or return None if the field is missing or null."""
    return data.read_int(key, 0, maximum) if data.has_field(key) else None


def _read_names(data: JsonReader, key: str, step: Graph, path: str) -> tuple[str, ...]:
    """Parse a list of step inputs. Raise E0831 if the step graph lacks one of the inputs."""
    names = data.read_list(key)
    for name in names:
        if not isinstance(name, str) or name not in step.inputs:
            _raise_invalid_package(path, f"the step has no input `{escape_text(name)[:200]}`")
    return tuple(map(str, names))


def _raise_invalid_package(path: str, reason: str) -> NoReturn:
    raise_error(
        "E0831",
        f"the package `{path}` cannot generate",
        notes=[reason],
        helps=["compile the package again"],
    )


def find_length_bounds(graph: Graph) -> dict[str, LengthBound]:
    """Return the bounds of each symbolic dimension, keyed by its name. The bounds are derived from
    the `dims` section, from minimum sizes that ops require, and from position embeddings. A
    position embedding may also bound a sum of dimensions. A bound on a sum has an expression such
    as `past + seq` as its key.
    """
    max_lengths, min_lengths = find_length_limits(graph), find_min_lengths(graph)
    bounds = {
        text: LengthBound(0, limit.max_length, limit.reason)
        for text, limit in find_length_sum_limits(graph).items()
    }
    for text, quotient in find_divisibility_constraints(graph).items():
        bounds[text] = LengthBound(0, 0, f"an axis has the size `{quotient[1:-1]}`")
    for symbol in {*graph.min_lengths, *max_lengths, *min_lengths}:
        limit, min_length = max_lengths.get(symbol), min_lengths.get(symbol, 0)
        reasons = []
        if symbol in graph.min_lengths:
            reasons.append(f"the spec declares `{symbol} >= {graph.min_lengths[symbol]}`")
        if min_length:
            reasons.append(f"an op requires `{symbol} >= {min_length}`")
        if limit:
            reasons.append(limit.reason)
        bounds[symbol] = LengthBound(
            max(graph.min_lengths.get(symbol, 0), min_length),
            limit.max_length if limit else None,
            "; ".join(reasons),
        )
    return bounds


def compute_dim_upper_bound(
    bounds: Mapping[str, LengthBound], symbol: str, known_sizes: Mapping[str, int]
) -> int | None:
    """Return the upper bound of the dimension `symbol`, given the sizes `known_sizes` of the other
    dimensions. Return None if the size is unlimited.
    """
    max_lengths = []
    for text, bound in bounds.items():
        try:
            expression = parse_dim(text)
        except DimError:  # skip an invalid expression in an invalid package
            continue
        is_known = expression.symbols() - {symbol} <= known_sizes.keys()
        if symbol in expression.symbols() and bound.high is not None and is_known:
            max_lengths.append(compute_max_symbol_size(expression, symbol, known_sizes, bound.high))
    return min(max_lengths, default=None)
