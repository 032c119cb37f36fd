"""Derive the encoder and step graphs of a generative model and their metadata, and prepare the
graphs and decoding settings of a standalone generator.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace

from specc.analysis.causality import find_time_symbol
from specc.analysis.length_limits import LengthLimit, find_length_limits
from specc.analysis.padding_check import can_padding_reach_outputs
from specc.analysis.time_axis import find_padding_strides
from specc.artifact.generation_metadata import (
    GenerationMetadata,
    convert_length_bounds_to_json,
    find_length_bounds,
)
from specc.artifact.manifest import RECORDED_SETTINGS, UNSUPPORTED_SETTINGS, RandomInitMetadata
from specc.decode.generation_settings import GenerationSettings, merge_settings
from specc.decode.setting_validation import VocabularySizes
from specc.diagnostics.diagnostic import raise_error
from specc.driver.compile_job import CompileJob, LoweringJob
from specc.incremental.step_plan import OutputPositions
from specc.ir.graph import Graph, select_entries
from specc.ir.input_shapes_and_defaults import extract_tokenwise_default, resolve_missing_inputs
from specc.ir.model_definition import (
    PAST_LENGTH_INPUT,
    DecodeState,
    DecodingConfig,
    DerivedGraphs,
    GenerateSection,
    ModelDefinition,
    StandaloneGeneratorSource,
    count_codebooks,
    has_token_logits,
)
from specc.preprocessing.input_checks import LengthBound
from specc.preprocessing.text_batches_and_windows import find_mask_input
from specc.transforms import pass_pipeline
from specc.weights.checkpoint_weight_streaming import CheckpointBinding

LEFT_PADDED_SIDES = ("any", "left")


def can_batch_mixed_lengths(model: ModelDefinition, derived: DerivedGraphs) -> bool:
    """Return True if sequences of different lengths in the same decode batch do not affect each
    other's results.
    """
    graph, sequence_input = model.graph, derived.sequence_input
    generation = model.generation
    assert generation is not None, "derived graphs come from a generative model"
    if graph.inputs[sequence_input].rank != 2:
        return False  # inputs with several codebooks do not support continuous batching
    mask = find_mask_input(graph, sequence_input)
    sequence_length = graph.inputs[sequence_input].shape[1]
    token_inputs = {n for n, v in graph.inputs.items() if sequence_length in v.shape}
    if token_inputs - {sequence_input, mask}:
        return False  # other token inputs have no known values at left-padded positions
    if not mask:
        return _has_fixed_size_states(derived)
    if graph.input_facts[mask].padding_side not in LEFT_PADDED_SIDES or not _has_tokenwise_mask(
        model, mask, sequence_input
    ):
        return False
    # left padding would shift the windows of strided ops
    if mask in find_padding_strides(graph) or not all(map(_can_pad_left, derived.states)):
        return False
    return not can_padding_reach_outputs(graph, mask, (generation.logits_output,))


def _has_fixed_size_states(derived: DerivedGraphs) -> bool:
    """Return True if every state has a fixed size and a batch axis, and no input of the step
    depends on the number of past positions.
    """
    has_fixed_size = all(s.time_axis is None and s.batch_axis is not None for s in derived.states)
    reads_past = derived.full_length_inputs or PAST_LENGTH_INPUT in derived.step.inputs
    return has_fixed_size and not reads_past


def _has_tokenwise_mask(model: ModelDefinition, mask: str, sequence_input: str) -> bool:
    """Return True if no token affects the mask value of another generated token."""
    defaults = model.defaults
    if defaults is None or mask not in defaults.outputs:
        return True
    return extract_tokenwise_default(defaults, mask, sequence_input) is not None


def _can_pad_left(state: DecodeState) -> bool:
    """Return True if left padding can be added to a state and removed from it."""
    if state.batch_axis is None:
        return state.name == PAST_LENGTH_INPUT  # all sequences have the same padded length
    # a sliding window over a state with prefix positions cannot be left-padded
    return (
        state.time_axis is None or not state.initial_output or state.max_positions == float("inf")
    )


def get_generate_section(model: ModelDefinition) -> GenerateSection:
    """Return the `generate` section of a model. Raise E0701 if the spec has no `generate` section,
    and E0977 for a streaming model.
    """
    if model.generation is None and model.streaming is not None:
        raise_error(
            "E0977",
            f"`{model.name}` is a streaming model and does not generate sequences",
            notes=[f"`{model.streaming.sequence_input}` is an input stream, not generated"],
            helps=["compile it with `--graphs score,step`"],
        )
    if model.generation is None:
        raise_error(
            "E0701",
            f"`{model.name}` has no `generate` section",
            notes=["only `--graphs score` can be compiled"],
            helps=[
                "add `generate NAME of INPUT from RESULT { … }` to the spec",
                "if another graph of the spec has one, select it: --graph NAME",
            ],
        )
    return model.generation


def _find_job_time_symbol(job: CompileJob, graph: Graph) -> str | None:
    """Return the symbolic dimension of the generated or streamed input's time axis, or None if the
    axis has a fixed size. Raise E0701 if the spec has neither a `generate` nor a `stream` section.
    """
    model = job.model
    stream = model.streaming if model.generation is None else None
    return find_time_symbol(
        graph, stream.sequence_input if stream else get_generate_section(model).sequence_input
    )


def derive_graphs(
    graph: Graph,
    generation: GenerateSection,
    output_positions: OutputPositions = "newest",
    bounded: bool = True,
    defaults: Graph | None = None,
    allows_empty_prompt: bool = True,
) -> DerivedGraphs:
    """Derive the `encode` and `step` graphs that compute the logits from which tokens are sampled.
    The `step` graph also computes all other outputs that can be computed incrementally.

    If `allows_empty_prompt` is true, there is no start token, and the model has positions before
    the first token (e.g. image embeddings), the first token is sampled from the logits of these
    positions. Raise E0711 to E0718 if the model cannot be decoded step by step.
    """
    return pass_pipeline.run_decode_step_passes(
        pass_pipeline.PassState(
            graph=graph,
            defaults=defaults,
            generation=generation,
            logits_positions=output_positions,
            evicts_positions=bounded,
            starts_without_prompt=allows_empty_prompt and generation.settings.get("start") is None,
        )
    )


def can_sample_tokens(graph: Graph, generation: GenerateSection) -> bool:
    """Return True if specc's runtime can decode, i.e. if token ids are sampled from logits."""
    return has_token_logits(
        graph.inputs[generation.sequence_input].type, graph.outputs[generation.logits_output].type
    )


def build_generation_metadata(
    job: LoweringJob, derived: DerivedGraphs, in_place: tuple[str, ...]
) -> GenerationMetadata:
    """Build the metadata for generation. `in_place` lists the states that are updated in place."""
    return replace(
        build_step_metadata(job, derived, get_generate_section(job.model)),
        first_token_logits=derived.initial_logits_output,
        in_place_states=in_place,
        allows_mixed_lengths=can_batch_mixed_lengths(job.model, derived),
    )


def build_step_metadata(
    job: LoweringJob, derived: DerivedGraphs, generation: GenerateSection
) -> GenerationMetadata:
    """Build the step graph metadata that generation and streaming share."""
    graph = job.simplified_graph
    limit = find_position_limit(job, graph)
    return GenerationMetadata(
        generation=generation,
        signature=build_input_signature(job, graph),
        defaults=job.model.defaults,
        preprocessing=job.preprocessing,
        states=derived.states,
        loop_invariant_inputs=derived.loop_invariant_inputs,
        full_inputs=derived.full_length_inputs,
        max_context=limit.max_length if limit else None,
        length_limiting_table=limit.table_name if limit else "",
        # sampling uses the seed of the randomly initialized weights
        random_init=get_random_init_metadata(job),
        length_bounds=find_non_time_length_bounds(job, graph),
    )


def get_random_init_metadata(job: CompileJob) -> RandomInitMetadata | None:
    """Return the seed of randomly initialized weights (all weights, or a new task head), or None if
    no weight is randomly initialized.
    """
    if not isinstance(job.parameter_source, CheckpointBinding):
        seed = job.options.init
        return None if seed is None else RandomInitMetadata(seed)
    head = job.parameter_source.head_weights
    return RandomInitMetadata(head.seed, len(head.parameters)) if head is not None else None


def build_input_signature(job: CompileJob, graph: Graph) -> Graph:
    """Return a graph that contains only the spec's inputs. The generated input may be empty."""
    spec = job.model.graph
    time_symbol = _find_job_time_symbol(job, graph)
    min_lengths = {n: length for n, length in spec.min_lengths.items() if n != time_symbol}
    return Graph(
        name="inputs",
        inputs=spec.inputs,
        input_facts=spec.input_facts,
        parameters={},
        parameter_facts={},
        nodes=(),
        outputs={},
        min_lengths=min_lengths,
    )


def get_vocabulary_size(graph: Graph, generation: GenerateSection) -> int:
    """Return the vocabulary size of the logits from which tokens are sampled.

    Raise E0703 if the generated input is not token ids, or if the output is not logits.
    """
    sequence_type = graph.inputs[generation.sequence_input].type
    logits_type = graph.outputs[generation.logits_output].type
    size = logits_type.shape[-1].number if logits_type.shape else None
    if codebooks := count_codebooks(sequence_type):
        raise_error(
            "E0703",
            f"`{generation.sequence_input}` has {codebooks} codebooks, and the `generate` graph "
            "samples one token per step",
            notes=[f"it is {sequence_type}"],
            helps=["compile a package instead: `--graphs step`"],
        )
    is_token_ids = sequence_type.dtype == "i64" and sequence_type.rank == 2
    if is_token_ids and logits_type.rank in (2, 3) and size is None:
        # the output distribution of a pointer network is over the positions of another input
        raise_error(
            "E0703",
            f"`{generation.logits_output}` selects one of {logits_type.shape[-1]} input positions, "
            "not a token of a fixed vocabulary",
            notes=[f"`{generation.logits_output}` has the type {logits_type}"],
            helps=[
                "compile with `--graphs step` instead; the `generate` graph needs a "
                "vocabulary of fixed size"
            ],
        )
    if sequence_type.rank != 2 or logits_type.rank not in (2, 3) or size is None:
        raise_error(
            "E0703",
            f"`{generation.sequence_input}` is not token ids sampled from "
            f"`{generation.logits_output}`",
            notes=[f"their types are {sequence_type} and {logits_type}"],
            helps=["`--graphs generate` expects ids [batch, seq] and logits [batch, seq, vocab]"],
        )
    return size


def find_position_limit(job: CompileJob, graph: Graph) -> LengthLimit | None:
    """Return the sequence length limit that the smallest position embedding sets, or None."""
    return find_length_limits(job.model.graph).get(_find_job_time_symbol(job, graph) or "")


def find_non_time_length_bounds(job: CompileJob, graph: Graph) -> dict[str, LengthBound]:
    """Return the bounds of all symbolic dimensions except that of the time axis."""
    time_symbol = _find_job_time_symbol(job, graph)
    bounds = find_length_bounds(job.model.graph)
    return {name: bound for name, bound in bounds.items() if name != time_symbol}


def get_decode_settings(job: CompileJob, source: StandaloneGeneratorSource) -> dict[str, object]:
    """Return the metadata of a standalone generator: its generation settings, maximum length and
    vocabulary size, and whether an empty prompt is allowed (`begins`).
    """
    generation, graph = get_generate_section(job.model), source.graph
    limit = find_position_limit(job, graph)
    # convert tuples to lists, because JSON has no tuples
    settings = {
        RECORDED_SETTINGS[name]: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(merge_generation_settings(job)).items()
        if name in RECORDED_SETTINGS
    }
    return {
        **settings,
        "context": limit.max_length if limit else None,
        "vocabulary": graph.outputs[generation.logits_output].shape[-1].number,
        "bounds": convert_length_bounds_to_json(find_non_time_length_bounds(job, graph)),
        "strides": {**find_padding_strides(graph)},
        "begins": bool(source.derived.initial_logits_output),
    }


def build_standalone_generator(
    job: CompileJob, graph: Graph, derived: DerivedGraphs | None = None
) -> StandaloneGeneratorSource:
    """Build a standalone generator. `derived` are the encoder and step graphs of `graph`, or None
    if they are not derived yet.
    """
    generation = get_generate_section(job.model)
    full_graph = _inline_defaults(job, graph, generation)
    if derived is None or full_graph is not graph:
        derived = derive_graphs(full_graph, generation, defaults=job.model.defaults)
    settings = merge_generation_settings(job)
    check_exportable_settings(settings)
    _check_token_settings(full_graph, generation, job.options.generation_config)
    setting_values, names = asdict(settings), {f.name for f in fields(DecodingConfig)}
    decoding = DecodingConfig(
        logits_output=generation.logits_output,
        start_token_ids=settings.start,
        stop_token_ids=settings.stop,
        pad_token_id=settings.pad,
        first_token_choices=settings.begin,
        has_repetition_penalty=settings.repetition_penalty != 1,
        **select_entries(setting_values, names),
    )
    return StandaloneGeneratorSource(full_graph, derived, decoding, job.model.defaults)


def check_exportable_settings(settings: GenerationSettings) -> None:
    """Raise E0733 for a setting that standalone generators do not support."""
    requested, default_values = asdict(settings), asdict(GenerationSettings())
    for name in UNSUPPORTED_SETTINGS:
        if requested[name] != default_values[name]:
            raise_error(
                "E0733",
                f"`{name}` is not supported by the `generate` graph",
                helps=[
                    "compile a package instead: `--graphs step`",
                    f"or remove `{name}` from the settings",
                ],
            )


def _check_token_settings(
    graph: Graph, generation: GenerateSection, settings: Mapping[str, object]
) -> None:
    """Raise E0703 unless tokens are sampled from logits, and E0732 for an invalid token id."""
    size = get_vocabulary_size(graph, generation)
    bound = graph.input_facts[generation.sequence_input].upper_bound
    VocabularySizes(bound.number if bound else None, size).check_token_id_settings(settings)


def merge_generation_settings(job: CompileJob) -> GenerationSettings:
    """Return the spec's generation settings, overridden by the settings in the options."""
    return merge_settings(get_generate_section(job.model).settings, **job.options.generation_config)


def _inline_defaults(job: CompileJob, graph: Graph, generation: GenerateSection) -> Graph:
    """Inline the default expressions of all inputs except masks, and return the graph."""
    source, defaults = job.graph, job.model.defaults
    if defaults is None:
        return graph
    time_symbol = find_time_symbol(source, generation.sequence_input)
    names = []
    for name in defaults.outputs:
        input_facts = source.input_facts.get(name)
        if input_facts is None or name == generation.sequence_input or input_facts.padding_side:
            continue
        # the default expression of an input such as position ids computes the values for new tokens
        if any(d.name == time_symbol for d in input_facts.type.shape):
            names.append(name)
    if not names:
        return graph
    return pass_pipeline.simplify_graph(
        pass_pipeline.inline_default_inputs(source, resolve_missing_inputs(defaults, names)),
        fuses_loops=job.quantize.weight_request is None,
    )
