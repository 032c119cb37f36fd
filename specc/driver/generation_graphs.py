"""Derive the encoder and step graphs of generative and streaming models. Build the graphs of a
package, and prepare the graphs and decoding settings of a standalone generator.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from specc.analysis.causality import find_time_symbol
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.artifact.generation_metadata import ChunkConfig, GenerationMetadata
from specc.artifact.manifest import UNSUPPORTED_SETTINGS
from specc.backend import ExtraFile, PackageGraph
from specc.decode.generation_settings import GenerationSettings
from specc.decode.setting_validation import VocabularySizes
from specc.diagnostics.diagnostic import raise_error
from specc.driver.compile_job import (
    CompileJob,
    LoweringJob,
    get_generate_section,
    merge_generation_settings,
)
from specc.driver.genai_config_and_export_profiles import RETURNED_LOGITS, apply_export_profile
from specc.driver.manifest_and_generation_metadata import (
    build_generation_metadata,
    build_step_metadata,
    make_generator_metadata_builder,
    make_metadata_builder,
)
from specc.driver.quantize_option_errors import raise_int8_kv_cache_error
from specc.incremental.step_plan import OutputPositions
from specc.ir.dim import Dim
from specc.ir.graph import Graph, select_entries
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph
from specc.ir.model_definition import (
    DecodingConfig,
    DerivedGraphs,
    GenerateSection,
    KVBufferGraph,
    StandaloneGenerator,
    StreamSection,
    count_codebooks,
    has_token_logits,
)
from specc.ir.types import SAME_POSITION
from specc.transforms import pass_pipeline


def derive_generation_graphs(
    graph: Graph,
    generation: GenerateSection,
    output_positions: OutputPositions = "newest",
    evicts_positions: bool = True,
    defaults: Graph | None = None,
    allows_empty_prompt: bool = True,
) -> DerivedGraphs:
    """Derive the `encode` and `step` graphs that compute the logits from which tokens are sampled.
    The `step` graph also computes all other outputs that can be computed incrementally.

    With `allows_empty_prompt`, a model without a start token samples the first token from the
    logits of the positions before it (e.g. image embeddings), if there are any. Raise E0711 to
    E0718 if the model cannot be decoded step by step.
    """
    return pass_pipeline.run_decode_step_passes(
        pass_pipeline.CompilerPassState(
            graph=graph,
            defaults=defaults,
            generation=generation,
            logits_positions=output_positions,
            evicts_positions=evicts_positions,
            starts_without_prompt=allows_empty_prompt and generation.settings.get("start") is None,
        )
    )


def can_sample_tokens(graph: Graph, generation: GenerateSection) -> bool:
    """Return True if specc's runtime can generate: token ids must be sampled from logits."""
    return has_token_logits(
        graph.inputs[generation.sequence_input].type, graph.outputs[generation.logits_output].type
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
                "compile with `--graphs step` instead; the `generate` graph requires a "
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


def _build_unconverted_generator(
    job: CompileJob, graph: Graph, derived_graphs: DerivedGraphs | None = None
) -> StandaloneGenerator:
    """Build a standalone generator in the dtype of `graph`. `derived_graphs` are the encoder and
    step graphs of `graph`, or None if they are not derived yet.
    """
    generation = get_generate_section(job.model)
    full_graph = _inline_defaults(job, graph, generation)
    if derived_graphs is None or full_graph is not graph:
        derived_graphs = derive_generation_graphs(
            full_graph, generation, defaults=job.model.defaults
        )
    settings = merge_generation_settings(job)
    check_generator_settings(settings)
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
    return StandaloneGenerator(full_graph, derived_graphs, decoding, job.model.defaults)


def check_generator_settings(settings: GenerationSettings) -> None:
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
        pass_pipeline.inline_default_inputs(source, build_input_defaults_graph(defaults, names)),
        fuse_loops=job.quantize.weight_options is None,
    )


def _derive_streaming_graphs(
    job: LoweringJob, streaming: StreamSection
) -> tuple[DerivedGraphs, GenerationMetadata]:
    """Derive the step graph that computes streamed outputs chunk by chunk, and its metadata.

    Raise E0711 to E0718 if an output at a time step depends on later time steps.
    """
    graph, defaults = job.simplified_graph, job.model.defaults
    sequence_input = streaming.sequence_input
    state = pass_pipeline.run_passes(
        pass_pipeline.CompilerPassState(
            graph=graph, defaults=defaults, streaming=streaming, logits_positions="new"
        ),
        pass_pipeline.DERIVE_PASSES,
    )
    derived_graphs = state.derived_graphs
    assert derived_graphs is not None, "DERIVE_PASSES always derive a step graph"
    metadata = build_step_metadata(
        job,
        derived_graphs,
        GenerateSection(job.model.name, sequence_input, streaming.streamed_outputs[0]),
    )
    chunks = ChunkConfig(
        state.chunk_length,
        _find_output_lengths(graph, sequence_input, derived_graphs.step),
        _find_pointwise_defaults(defaults, sequence_input),
    )
    return derived_graphs, replace(metadata, chunk_config=chunks)


def _find_pointwise_defaults(defaults: Graph | None, sequence_input: str) -> tuple[str, ...]:
    """Return the inputs whose default at a time step depends only on other inputs at the same step.
    The default of such an input for a chunk is a slice of the default for the full sequence.
    """
    if defaults is None or sequence_input not in defaults.inputs:
        return ()
    symbol = find_time_symbol(defaults, sequence_input)
    if symbol is None:
        return ()
    states = trace_time_dataflow(defaults, symbol)
    return tuple(
        name
        for name, value in defaults.outputs.items()
        if [*states.get_state(value).axes.values()] == [SAME_POSITION]
    )


def _find_output_lengths(graph: Graph, sequence_input: str, step: Graph) -> dict[str, Dim]:
    """Return the sizes of the step outputs that depend on the input length, keyed by name."""
    symbol = find_time_symbol(graph, sequence_input)
    return {
        name: dims[0]
        for name in step.outputs
        if name in graph.outputs
        and (dims := [d for d in graph.outputs[name].shape if symbol in d.symbols()])
    }


@dataclass(frozen=True)
class PackageContents:
    """The contents of a package: its graphs, extra files, and metadata for `specc.json`."""

    graphs: Mapping[str, PackageGraph]
    extra_files: tuple[ExtraFile, ...] = ()
    generation_metadata: Mapping[str, object] = field(default_factory=dict)


def build_package_contents(job: LoweringJob) -> PackageContents:
    """Build the requested graphs of a package with their files and metadata.

    Raise E0701 if the spec is not generative, E0711 to E0718 if the model is not causal, and E0977
    if generation options are given for a streaming model.
    """
    graph_names = job.options.graphs
    graphs: dict[str, PackageGraph] = {}
    if "score" in graph_names:
        metadata = make_metadata_builder(job, job.manifest_graph, is_full_forward=True)
        graphs["score"] = PackageGraph(
            job.convert_dtype(job.simplified_graph), "score.onnx", metadata
        )
    # a package with only the full forward pass does not require causality
    if graph_names == ("score",):
        return PackageContents(graphs)
    if job.model.generation is None and job.model.streaming is not None:
        return _add_streaming_graphs(job, job.model.streaming, graphs)
    return _add_generation_graphs(job, graphs)


def build_standalone_generator(
    job: LoweringJob, derived_graphs: DerivedGraphs | None = None
) -> StandaloneGenerator:
    """Build a standalone generator in the compute dtype of the target. `derived_graphs` are the
    encoder and step graphs derived from the simplified graph, or None if they are not derived yet.
    """
    generator = _build_unconverted_generator(job, job.simplified_graph, derived_graphs)
    return replace(
        generator,
        graph=job.convert_dtype(generator.graph),
        derived_graphs=job.convert_derived_graphs_dtype(generator.derived_graphs),
    )


def _add_generation_graphs(job: LoweringJob, graphs: dict[str, PackageGraph]) -> PackageContents:
    """Add the graphs of a generative model to `graphs`, which contains the full-forward graph."""
    graph_names, is_native_profile = job.options.graphs, job.options.io_names == "specc"
    generation = get_generate_section(job.model)
    derived_graphs = derive_generation_graphs(
        job.simplified_graph,
        generation,
        RETURNED_LOGITS[job.options.io_names],
        evicts_positions=is_native_profile,
        defaults=job.model.defaults,
        allows_empty_prompt=is_native_profile,
    )
    extra_files: tuple[ExtraFile, ...] = ()
    buffers: tuple[str, ...] = ()
    if {"encode", "step"} & set(graph_names):
        converted = job.convert_derived_graphs_dtype(derived_graphs)
        exported = apply_export_profile(job.options.io_names, job.model, converted)
        graphs |= {stem: _build_derived_graph(job, stem, g) for stem, g in exported.graphs.items()}
        extra_files = tuple(ExtraFile.from_json(n, data) for n, data in exported.json_files.items())
        # only specc's runtime supports preallocated KV buffers, so KV caches for other runtimes
        # grow by concatenation
        if is_native_profile:
            step = exported.graphs["step"]
            graphs["step"], buffers = _build_buffered_step(job, step, converted)
    runtime_metadata = (
        _build_runtime_metadata(job, derived_graphs, buffers) if is_native_profile else {}
    )
    if "generate" in graph_names:
        # derived graphs for other profiles compute logits at other positions, so `generate` cannot
        # share these graphs
        generator = build_standalone_generator(job, derived_graphs if is_native_profile else None)
        metadata = make_generator_metadata_builder(job, generator)
        graphs["generate"] = PackageGraph(generator, "generate.onnx", metadata)
    return PackageContents(graphs, extra_files, runtime_metadata)


def _build_runtime_metadata(
    job: LoweringJob, derived_graphs: DerivedGraphs, buffers: tuple[str, ...]
) -> Mapping[str, object]:
    """Return the metadata for specc's generation runtime, or {} if tokens cannot be sampled."""
    if not can_sample_tokens(job.model.graph, get_generate_section(job.model)):
        return {}
    converted = job.convert_derived_graphs_dtype(derived_graphs)
    return build_generation_metadata(job, converted, buffers).to_json()


def _add_streaming_graphs(
    job: LoweringJob, streaming: StreamSection, graphs: Mapping[str, PackageGraph]
) -> PackageContents:
    """Add the graphs of a streaming model. Raise E0977 for options that apply only to
    generation.
    """
    profile = job.options.io_names if job.options.io_names != "specc" else ""
    if profile or "generate" in job.options.graphs:
        option = f"--io-names {profile}" if profile else "--graphs generate"
        raise_error(
            "E0977",
            f"`{option}` is for generative models, and `{job.model.name}` is a streaming model",
            notes=[f"`{streaming.sequence_input}` is an input stream, not generated"],
            helps=["compile it with `--graphs score,step`"],
        )
    derived_graphs, metadata = _derive_streaming_graphs(job, streaming)
    stems = {"encode": derived_graphs.encode, "step": derived_graphs.step}
    package_graphs = {
        stem: _build_derived_graph(job, stem, graph) for stem, graph in stems.items() if graph
    }
    return PackageContents({**graphs, **package_graphs}, generation_metadata=metadata.to_json())


def _build_derived_graph(job: LoweringJob, stem: str, graph: Graph) -> PackageGraph:
    return PackageGraph(
        graph, f"{stem}.onnx", make_metadata_builder(job, graph, is_full_forward=False)
    )


def _build_buffered_step(
    job: LoweringJob, step: Graph, derived_graphs: DerivedGraphs
) -> tuple[PackageGraph, tuple[str, ...]]:
    """Return the step graph, with KV buffers if supported, and the names of buffer inputs."""
    caches = job.compiler.find_in_place_kv_caches(
        step, derived_graphs.states, job.target, job.opset
    )
    # there are no buffers if the target cannot update them in place or if its kernel supports no
    # attention layer of the graph
    if not caches:
        # calibration measures scales with KV buffers, but these options disable KV buffers
        if job.kv_cache_scales:
            reason = "no attention updates a KV buffer in place with these options"
            raise_int8_kv_cache_error(reason, job.quantize.kv_cache.span)
        return _build_derived_graph(job, "step", step), ()
    if job.kv_cache_scales:
        step = pass_pipeline.apply_int8_kv_cache(step, caches)
    source = KVBufferGraph(step, caches)
    metadata = make_metadata_builder(job, step, is_full_forward=False)
    return PackageGraph(source, "step.onnx", metadata), source.buffer_names
