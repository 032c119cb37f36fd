"""Build the manifest of a compiled model and the generation metadata of a package."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby

from specc.analysis.causality import find_time_symbol
from specc.analysis.length_limits import LengthLimit, find_length_limits
from specc.analysis.padding_check import can_padding_reach_outputs
from specc.analysis.padding_offsets import find_padding_mask_strides
from specc.artifact.generation_metadata import (
    GenerationMetadata,
    find_length_bounds,
    length_bounds_to_json,
)
from specc.artifact.manifest import (
    DOC_METADATA_KEY,
    METADATA_KEY,
    RECORDED_SETTINGS,
    Manifest,
    RandomInitMetadata,
)
from specc.backend import EmittedModel, MetadataBuilder
from specc.driver.compile_job import (
    CompileJob,
    LoweringJob,
    get_generate_section,
    merge_generation_settings,
)
from specc.driver.weight_sources import build_weight_manifest
from specc.ir.graph import Graph, select_entries
from specc.ir.input_shapes_and_defaults import extract_per_token_default
from specc.ir.model_definition import (
    PAST_LENGTH_INPUT,
    DecodeState,
    DerivedGraphs,
    GenerateSection,
    ModelDefinition,
    StandaloneGenerator,
)
from specc.preprocessing.input_checks import LengthBound
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.text_batches_and_windows import find_mask_input
from specc.weights.checkpoint_weight_streaming import CheckpointWeights
from specc.weights.quantized_weights import QuantizedWeights


def make_metadata_builder(
    job: LoweringJob, graph: Graph, *, is_full_forward: bool, with_sources: bool = False
) -> MetadataBuilder:
    """Return the metadata of a graph. If `is_full_forward` is false, the graph is a derived graph:
    its inputs have no preprocessing, and it cannot generate tokens by itself. `with_sources` is
    true for a single model file, which stores the spec sources. A package stores the spec sources
    in the package index.
    """
    # if the source text of a spec file is unknown, only its name is stored
    files = {module.path: "" for module in job.spec.library.modules.values()} | job.spec_sources
    return partial(
        build_manifest,
        job,
        graph,
        is_full_forward=is_full_forward,
        sources=files if with_sources else {},
    )


def make_generator_metadata_builder(
    job: LoweringJob, generator: StandaloneGenerator
) -> MetadataBuilder:
    """Return the metadata of a standalone generator."""
    signature, decode_settings = (
        build_input_signature(job, generator.graph),
        build_generator_metadata(job, generator),
    )
    return partial(
        build_manifest,
        job,
        signature,
        decode_settings=decode_settings,
        scoring_graph=generator.graph,
    )


def build_manifest(
    job: LoweringJob,
    graph: Graph,
    emitted_model: EmittedModel,
    *,
    is_full_forward: bool = True,
    sources: Mapping[str, str] = {},
    decode_settings: Mapping[str, object] | None = None,
    scoring_graph: Graph | None = None,
) -> dict[str, str]:
    """Return the metadata entries, including the manifest, of the model that `job` compiles from
    `graph`.

    The manifest of a standalone generator (with `decode_settings`) lists the spec's inputs, but no
    inlined defaults or attention metadata. `specc verify` decodes with `scoring_graph`.
    """
    model, declared_graph = job.model, scoring_graph or graph
    unquantized_reasons = job.quantization_decision.unquantized_reasons
    job.attention_lowerings.extend(describe_attention_lowerings(graph.name, emitted_model))
    # a standalone generator computes the defaults of its inputs, so the manifest lists no defaults
    inlines_defaults = job.options.inline_defaults and decode_settings is None
    manifest = Manifest(
        name=model.name,
        doc=model.doc,
        graph=graph,
        defaults=model.defaults if is_full_forward and not inlines_defaults else None,
        preprocessing=job.preprocessing if is_full_forward else PreprocessingConfig(),
        config=model.config,
        generation=model.generation.to_json() if is_full_forward and model.generation else None,
        streaming=model.streaming if is_full_forward else None,
        sources=sources,
        weights=build_weight_manifest(
            job.parameter_source,
            job.options.init,
            emitted_model.weight_files,
            hash_contents=job.options.hash == "full",
        ),
        initializers=_find_initializers(job, declared_graph, emitted_model),
        precision=build_weight_precision_metadata(
            declared_graph, job.quantized, unquantized_reasons, emitted_model, job.int4_method
        )
        if job.quantized
        else {},
        target=job.target.name,
        opset=job.opset,
        attentions=emitted_model.attention_weight_locations if decode_settings is None else (),
        decoding=decode_settings,
        scoring_graph=scoring_graph,
    )
    return {METADATA_KEY: manifest.serialize(), DOC_METADATA_KEY: manifest.doc}


def _find_initializers(
    job: LoweringJob, graph: Graph, emitted_model: EmittedModel
) -> dict[str, str]:
    """Return the initializers of the parameters that the graph uses."""
    plan = job.quantization_decision.plan
    # the initializer of a quantized parameter contains its codes
    initializer_names = {
        n: plan[n].format_tensor_name(n, "codes") if n in plan else n for n in graph.parameters
    }
    return {
        n: emitted_model.initializer_names[i]
        for n, i in initializer_names.items()
        if i in emitted_model.initializer_names
    }


def build_weight_precision_metadata(
    graph: Graph,
    values: QuantizedWeights,
    kept_reasons: Mapping[str, str],
    emitted_model: EmittedModel,
    int4_method: str,
) -> dict[str, object]:
    """Return the manifest entry of each quantized weight, and the reason why each other weight is
    not quantized.

    `int4_method` is the quantization method of int4 weights. In an entry, `error` is a relative
    error, and `worst` is the maximum absolute error of an element.
    """
    entries: dict[str, object] = {}
    initializers = emitted_model.initializer_names
    for name in graph.parameters:
        format = values.plan.get(name)
        if format is None:
            continue
        quantized = values.states[values.base.get_tied_source(name) or name]
        error = quantized.error
        entries[name] = {
            "bits": format.bits,
            "block": format.group_size,
            "layout": format.layout,
            "rounding": format.rounding,
            "turned": format.is_transposed,
            **{
                str(role): initializers[format.format_tensor_name(name, role)]
                for role in format.tensor_roles[1:]
            },
            "recipe": quantized.recipe,
            "error": float(f"{error.relative_error:.4g}"),
            "worst": float(f"{error.max_error:.4g}"),
        }
    return {
        "rounded": entries,
        "recipe": int4_method,
        "kept": select_entries(kept_reasons, graph.parameters),
    }


def describe_attention_lowerings(graph: str, emitted_model: EmittedModel) -> Iterator[str]:
    """Describe the lowering of attention, with one entry per group of consecutive equal layers."""
    lowerings = (
        (a["how"], a["scope"]) for a in emitted_model.attention_weight_locations if "how" in a
    )
    for how, entries in groupby(lowerings, key=lambda lowering: lowering[0]):
        scopes = [scope for _, scope in entries]
        scope_texts = scopes if len(scopes) < 3 else [scopes[0], "…", scopes[-1]]
        yield f"{graph}: {' '.join(scope_texts)}: {how}"


LEFT_PADDED_SIDES = ("any", "left")


def can_batch_mixed_lengths(model: ModelDefinition, derived_graphs: DerivedGraphs) -> bool:
    """Return True if sequences of different lengths in the same decode batch do not affect each
    other's results.
    """
    graph, sequence_input = model.graph, derived_graphs.sequence_input
    generation = model.generation
    assert generation is not None, "derived graphs come from a generative model"
    if graph.inputs[sequence_input].rank != 2:
        return False  # inputs with several codebooks do not support continuous batching
    mask = find_mask_input(graph, sequence_input)
    sequence_length = graph.inputs[sequence_input].shape[1]
    token_inputs = {n for n, v in graph.inputs.items() if sequence_length in v.shape}
    if token_inputs - {sequence_input, mask}:
        return False  # for other token inputs, the values at left-padded positions are not known
    if not mask:
        return _has_fixed_size_states(derived_graphs)
    if graph.input_facts[mask].padding_side not in LEFT_PADDED_SIDES or not _has_tokenwise_mask(
        model, mask, sequence_input
    ):
        return False
    # left padding would shift the windows of strided ops
    if mask in find_padding_mask_strides(graph) or not all(
        map(_can_pad_left, derived_graphs.states)
    ):
        return False
    return not can_padding_reach_outputs(graph, mask, (generation.logits_output,))


def _has_fixed_size_states(derived_graphs: DerivedGraphs) -> bool:
    """Return True if every state has a fixed size and a batch axis, and no input of the step
    depends on the number of past positions.
    """
    has_fixed_size = all(
        s.time_axis is None and s.batch_axis is not None for s in derived_graphs.states
    )
    reads_past = (
        derived_graphs.full_length_inputs or PAST_LENGTH_INPUT in derived_graphs.step.inputs
    )
    return has_fixed_size and not reads_past


def _has_tokenwise_mask(model: ModelDefinition, mask: str, sequence_input: str) -> bool:
    """Return True if the mask value of a generated token depends only on this token."""
    defaults = model.defaults
    if defaults is None or mask not in defaults.outputs:
        return True
    return extract_per_token_default(defaults, mask, sequence_input) is not None


def _can_pad_left(state: DecodeState) -> bool:
    """Return True if left padding can be added to a state and removed from it."""
    if state.batch_axis is None:
        # the padded length is the same for all sequences
        return state.name == PAST_LENGTH_INPUT
    # a sliding window over a state with prefix positions cannot be left-padded
    return (
        state.time_axis is None or not state.initial_output or state.max_positions == float("inf")
    )


def _find_job_time_symbol(job: CompileJob, graph: Graph) -> str | None:
    """Return the symbolic dimension of the generated or streamed input's time axis, or None if the
    axis has a fixed size. Raise E0701 if the spec has neither a `generate` nor a `stream` section.
    """
    model = job.model
    stream = model.streaming if model.generation is None else None
    return find_time_symbol(
        graph, stream.sequence_input if stream else get_generate_section(model).sequence_input
    )


def build_generation_metadata(
    job: LoweringJob, derived_graphs: DerivedGraphs, in_place_states: tuple[str, ...]
) -> GenerationMetadata:
    """Build the metadata for generation. `in_place_states` lists the states that are updated in
    place.
    """
    return replace(
        build_step_metadata(job, derived_graphs, get_generate_section(job.model)),
        first_token_logits=derived_graphs.initial_logits_output,
        in_place_states=in_place_states,
        allows_mixed_lengths=can_batch_mixed_lengths(job.model, derived_graphs),
    )


def build_step_metadata(
    job: LoweringJob, derived_graphs: DerivedGraphs, generation: GenerateSection
) -> GenerationMetadata:
    """Build the step graph metadata that generation and streaming share."""
    graph = job.simplified_graph
    limit = find_context_length_limit(job, graph)
    return GenerationMetadata(
        generation=generation,
        signature=build_input_signature(job, graph),
        defaults=job.model.defaults,
        preprocessing=job.preprocessing,
        states=derived_graphs.states,
        loop_invariant_inputs=derived_graphs.loop_invariant_inputs,
        full_inputs=derived_graphs.full_length_inputs,
        max_context=limit.max_length if limit else None,
        length_limiting_table=limit.table_name if limit else "",
        # sampling uses the seed of the randomly initialized weights
        random_init_metadata=get_random_init_metadata(job),
        length_bounds=find_non_time_axis_bounds(job, graph),
    )


def get_random_init_metadata(job: CompileJob) -> RandomInitMetadata | None:
    """Return the seed of randomly initialized weights (all weights, or a new task head), or None if
    no weight is randomly initialized.
    """
    if not isinstance(job.parameter_source, CheckpointWeights):
        seed = job.options.init
        return None if seed is None else RandomInitMetadata(seed)
    head = job.parameter_source.head_weights
    return RandomInitMetadata(head.seed, len(head.parameters)) if head is not None else None


def build_input_signature(job: CompileJob, graph: Graph) -> Graph:
    """Return a graph with only the spec's inputs. The generated input may have length 0."""
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


def find_context_length_limit(job: CompileJob, graph: Graph) -> LengthLimit | None:
    """Return the length limit of the smallest position embedding, or None if there is none."""
    return find_length_limits(job.model.graph).get(_find_job_time_symbol(job, graph) or "")


def find_non_time_axis_bounds(job: CompileJob, graph: Graph) -> dict[str, LengthBound]:
    """Return the bounds of all symbolic dimensions except the time axis."""
    time_symbol = _find_job_time_symbol(job, graph)
    bounds = find_length_bounds(job.model.graph)
    return {name: bound for name, bound in bounds.items() if name != time_symbol}


def build_generator_metadata(job: CompileJob, generator: StandaloneGenerator) -> dict[str, object]:
    """Return the metadata of a standalone generator: its generation settings, maximum length and
    vocabulary size. `begins` is true if an empty prompt is allowed.
    """
    generation, graph = get_generate_section(job.model), generator.graph
    limit = find_context_length_limit(job, graph)
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
        "bounds": length_bounds_to_json(find_non_time_axis_bounds(job, graph)),
        "strides": {**find_padding_mask_strides(graph)},
        "begins": bool(generator.derived_graphs.initial_logits_output),
    }
