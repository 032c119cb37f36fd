"""Build the graphs of a model file or a package, and write the files of a compilation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from specc.analysis.causality import find_time_symbol
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.artifact.generation_metadata import ChunkConfig, GenerationMetadata
from specc.backend import ExtraFile, PackageGraph, PackageMetadata, WrittenModel
from specc.diagnostics.diagnostic import raise_error
from specc.driver import preprocessing_section
from specc.driver.compile_job import LoweringJob, list_job_input_files
from specc.driver.compile_options import CompileReport
from specc.driver.genai_config_and_export_profiles import RETURNED_LOGITS, apply_export_profile
from specc.driver.generation_graphs import (
    build_generation_metadata,
    build_standalone_generator,
    build_step_metadata,
    can_sample_tokens,
    derive_graphs,
    get_generate_section,
)
from specc.driver.model_manifest import describe_graph, make_generator_metadata_builder
from specc.driver.quantization_and_half_precision import describe_quantization
from specc.driver.quantize_option_errors import raise_no_int8_kv_cache
from specc.driver.weight_sources import count_parameters, count_weight_bytes
from specc.huggingface.repository_files import (
    describe_missing_companion_files,
    find_tokenizer_and_config_paths,
    read_companion_files,
)
from specc.io.atomic_write import sanitize_file_stem
from specc.io.memory_check import describe_memory_shortage
from specc.io.output_paths import MODEL_OUTPUT, normalize_output_path, resolve_output_path
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model_definition import (
    DerivedGraphs,
    GenerateSection,
    KVBufferGraph,
    ModelSource,
    StandaloneGeneratorSource,
    StreamSection,
)
from specc.ir.types import SAME_POSITION
from specc.preprocessing.tokenizer_files import TOKENIZER_SUFFIX
from specc.transforms import pass_pipeline
from specc.weights.checkpoint_weight_streaming import CheckpointBinding


def _derive_streaming_graphs(
    job: LoweringJob, streaming: StreamSection
) -> tuple[DerivedGraphs, GenerationMetadata]:
    """Derive the step graph that computes streamed outputs chunk by chunk, and its metadata.

    Raise E0711 to E0718 if an output at a time step depends on later time steps.
    """
    graph, defaults = job.simplified_graph, job.model.defaults
    sequence_input = streaming.sequence_input
    state = pass_pipeline.run_passes(
        pass_pipeline.PassState(
            graph=graph, defaults=defaults, streaming=streaming, logits_positions="new"
        ),
        pass_pipeline.DERIVE_PASSES,
    )
    derived = state.derived
    assert derived is not None, "`encode` is the last pass"
    metadata = build_step_metadata(
        job, derived, GenerateSection(job.model.name, sequence_input, streaming.streamed_outputs[0])
    )
    chunks = ChunkConfig(
        state.chunk_length,
        _find_output_lengths(graph, sequence_input, derived.step),
        _find_pointwise_defaults(defaults, sequence_input),
    )
    return derived, replace(metadata, stream_chunks=chunks)


def _find_pointwise_defaults(defaults: Graph | None, sequence_input: str) -> tuple[str, ...]:
    """Return the inputs whose default at a time step depends only on other inputs at that step, so
    that the default of a chunk is a slice of the full default.
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
    """Return the step's outputs whose size depends on the input length, with their sizes."""
    symbol = find_time_symbol(graph, sequence_input)
    return {
        name: dims[0]
        for name in step.outputs
        if name in graph.outputs
        and (dims := [d for d in graph.outputs[name].shape if symbol in d.symbols()])
    }


@dataclass(frozen=True)
class PackageContents:
    """The contents of a package: graphs by role, extra files, and metadata for `specc.json`."""

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
        metadata = describe_graph(job, job.manifest_graph, is_full_forward=True)
        graphs["score"] = PackageGraph(
            job.convert_dtype(job.simplified_graph), "score.onnx", metadata
        )
    # a package with only the full forward pass does not require causality
    if graph_names == ("score",):
        return PackageContents(graphs)
    if job.model.generation is None and job.model.streaming is not None:
        return _add_streaming_graphs(job, job.model.streaming, graphs)
    return _add_generation_graphs(job, graphs)


def build_generator_source(
    job: LoweringJob, derived: DerivedGraphs | None = None
) -> StandaloneGeneratorSource:
    """Build a standalone generator in the compute dtype of the target. `derived` are the encoder
    and step of the simplified graph, or None if they are not derived yet.
    """
    source = build_standalone_generator(job, job.simplified_graph, derived)
    return replace(
        source,
        graph=job.convert_dtype(source.graph),
        derived=job.convert_derived_dtype(source.derived),
    )


def _add_generation_graphs(job: LoweringJob, graphs: dict[str, PackageGraph]) -> PackageContents:
    """Add the graphs of a generative model to the full-forward graph in `graphs`."""
    graph_names, is_native_profile = job.options.graphs, job.options.io_names == "specc"
    generation = get_generate_section(job.model)
    derived = derive_graphs(
        job.simplified_graph,
        generation,
        RETURNED_LOGITS[job.options.io_names],
        bounded=is_native_profile,
        defaults=job.model.defaults,
        allows_empty_prompt=is_native_profile,
    )
    extra_files: tuple[ExtraFile, ...] = ()
    buffers: tuple[str, ...] = ()
    if {"encode", "step"} & set(graph_names):
        converted = job.convert_derived_dtype(derived)
        exported = apply_export_profile(job.options.io_names, job.model, converted)
        graphs |= {stem: _build_derived_graph(job, stem, g) for stem, g in exported.graphs.items()}
        extra_files = tuple(ExtraFile.from_json(n, data) for n, data in exported.json_files.items())
        # only specc's runtime supports preallocated KV buffers, so KV caches for other runtimes
        # grow by concatenation
        if is_native_profile:
            step = exported.graphs["step"]
            graphs["step"], buffers = _build_buffered_step(job, step, converted)
    runtime_metadata = _build_runtime_metadata(job, derived, buffers) if is_native_profile else {}
    if "generate" in graph_names:
        # other profiles need the logits of other positions, so `generate` cannot share their
        # derived graphs
        source = build_generator_source(job, derived if is_native_profile else None)
        metadata = make_generator_metadata_builder(job, source)
        graphs["generate"] = PackageGraph(source, "generate.onnx", metadata)
    return PackageContents(graphs, extra_files, runtime_metadata)


def _build_runtime_metadata(
    job: LoweringJob, derived: DerivedGraphs, buffers: tuple[str, ...]
) -> Mapping[str, object]:
    """Return the metadata for specc's generation runtime, or {} if tokens cannot be sampled."""
    if not can_sample_tokens(job.model.graph, get_generate_section(job.model)):
        return {}
    converted = job.convert_derived_dtype(derived)
    return build_generation_metadata(job, converted, buffers).to_json()


def _add_streaming_graphs(
    job: LoweringJob, streaming: StreamSection, graphs: Mapping[str, PackageGraph]
) -> PackageContents:
    """Add the graphs of a streaming model. Raise E0977 for options of generation only."""
    profile = job.options.io_names if job.options.io_names != "specc" else ""
    if profile or "generate" in job.options.graphs:
        option = f"--io-names {profile}" if profile else "--graphs generate"
        raise_error(
            "E0977",
            f"`{option}` is for generative models, and `{job.model.name}` is a streaming model",
            notes=[f"`{streaming.sequence_input}` is an input stream, not generated"],
            helps=["compile it with `--graphs score,step`"],
        )
    derived, metadata = _derive_streaming_graphs(job, streaming)
    stems = {"encode": derived.encode, "step": derived.step}
    derived_graphs = {
        stem: _build_derived_graph(job, stem, graph) for stem, graph in stems.items() if graph
    }
    return PackageContents({**graphs, **derived_graphs}, generation_metadata=metadata.to_json())


def _build_derived_graph(job: LoweringJob, stem: str, graph: Graph) -> PackageGraph:
    return PackageGraph(graph, f"{stem}.onnx", describe_graph(job, graph, is_full_forward=False))


def _build_buffered_step(
    job: LoweringJob, step: Graph, derived: DerivedGraphs
) -> tuple[PackageGraph, tuple[str, ...]]:
    """Return the step graph, with KV buffers if supported, and the names of buffer inputs."""
    caches = job.compiler.find_kv_buffers(step, derived.states, job.target, job.opset)
    # there are no buffers if the target cannot update them in place or if its kernel supports no
    # attention layer of the graph
    if not caches:
        # calibration measured the scales with KV buffers, which it uses by default
        if job.kv_cache_scales:
            reason = "no attention updates a KV buffer in place with these options"
            raise_no_int8_kv_cache(reason, job.quantize.kv_cache.span)
        return _build_derived_graph(job, "step", step), ()
    if job.kv_cache_scales:
        step = pass_pipeline.apply_int8_kv_cache(step, caches)
    source = KVBufferGraph(step, caches)
    metadata = describe_graph(job, step, is_full_forward=False)
    return PackageGraph(source, "step.onnx", metadata), source.buffer_names


def write_model_file(job: LoweringJob) -> CompileReport:
    """Write one ONNX file with the full-forward graph or a standalone generator."""
    options = job.options
    path = resolve_output_path(
        options.output, MODEL_OUTPUT, inputs=list_job_input_files(job), force=options.force
    )
    # write preprocessing files next to the model, with names that begin with the model's file name
    job = replace(
        job, preprocessing=job.preprocessing.assign_file_names(sanitize_file_stem(path.stem))
    )
    if options.is_standalone_generator:
        generator = build_generator_source(job)
        source: ModelSource = generator
        metadata = make_generator_metadata_builder(job, generator)
    else:
        source = job.convert_dtype(job.simplified_graph)
        metadata = describe_graph(job, job.manifest_graph, is_full_forward=True, sources=True)
    written_model = job.compiler.write_model(
        job.quantize_model_graphs(source),
        path,
        job.stored_parameters,
        target=job.target,
        opset=job.opset,
        weights_as=options.weights_as or "auto",
        dtype=options.dtype,
        metadata=metadata,
        load=not options.no_load,
        side_files=[
            (TOKENIZER_SUFFIX, file.content) for file in job.preprocessing.files if file.name
        ],
    )
    return build_report(job, written_model)


def write_package(job: LoweringJob) -> CompileReport:
    """Write the package directory without overwriting input files."""
    options = job.options
    file_names = {file.sha256: "tokenizer.json" for file in job.preprocessing.files}
    job = replace(job, preprocessing=job.preprocessing.rename_files(file_names))
    contents = build_package_contents(job)
    tokenizer_files = [
        ExtraFile(f.name, f.content, role="tokenizer") for f in job.preprocessing.files
    ]
    # programs that load models of other profiles expect the usual names of tokenizer files
    used_names = [extra.name for extra in (*tokenizer_files, *contents.extra_files)]
    companions = tuple(read_companion_files(options.io_names, job.directories, used_names))
    written_model = job.compiler.write_package(
        {
            role: replace(package_graph, graph=job.quantize_model_graphs(package_graph.graph))
            for role, package_graph in contents.graphs.items()
        },
        normalize_output_path(options.output),
        job.stored_parameters,
        target=job.target,
        metadata=PackageMetadata(job.model.name, contents.generation_metadata, job.spec_sources),
        opset=job.opset,
        weights_as=options.weights_as or "auto",
        dtype=options.dtype,
        extra_files=[*tokenizer_files, *contents.extra_files, *companions],
        load=not options.no_load,
        input_paths=[
            *list_job_input_files(job),
            *(find_tokenizer_and_config_paths(job.directories) if companions else ()),
        ],
        force=options.force,
        hash_on_every_load=options.hash == "full",
    )
    return build_report(
        job, written_model, *describe_missing_companion_files(options.io_names, job.directories)
    )


def build_report(job: LoweringJob, written_model: WrittenModel, *remarks: str) -> CompileReport:
    """Build the report on the written files. `remarks` precede the remarks on weights."""
    warnings = (
        job.parameter_source.warnings if isinstance(job.parameter_source, CheckpointBinding) else ()
    )
    remarks = (
        *job.spec.remarks,
        *preprocessing_section.describe_preprocessing_files(job.model, job.directories),
        *job.remarks,
        *job.quantize.remarks,
        *([job.int4_method] if job.int4_method else []),
        *describe_quantization(
            job.quantization_decision, job.norm_folds, job.quantize, job.target, job.options.graphs
        ),
        *_iterate_unapplied_settings(job),
        *remarks,
        *_describe_weight_storage(job, written_model),
        *describe_memory_shortage(
            *count_weight_bytes(job.stored_parameters), count_parameters(job.parameter_source)
        ),
    )
    return CompileReport(
        path=written_model.path,
        files=written_model.files,
        model=job.model,
        remarks=remarks,
        warnings=(*job.spec.warnings, *warnings, *job.model.warnings),
        attention_forms=tuple(job.attention_forms),
    )


def _iterate_unapplied_settings(job: LoweringJob) -> Iterator[str]:
    """Yield remarks on generation settings that need text, so that a graph cannot apply them."""
    generation = job.model.generation
    if "generate" not in job.options.graphs or generation is None:
        return
    if generation.settings.get("stop_strings"):
        yield "`generate` does not apply the stop strings, because its output is tokens, not text"


def _describe_weight_storage(job: LoweringJob, written_model: WrittenModel) -> Iterator[str]:
    """Yield a remark on the location of the weights, unless the user chose the weight storage."""
    if linked_count := len(written_model.plan.linked_tensors):
        yield (
            f"{linked_count} weights are external data in their original file: keep that file next "
            "to the model"
        )
        return
    reasons = sorted(set(written_model.plan.copy_reasons.values()))
    # yield no remark if the user chose the weight storage or if the weights are randomly
    # initialized
    has_weight_file = job.options.weights or job.spec.checkpoint
    if has_weight_file and reasons and not job.options.weights_as:
        yield f"weights were copied: {reasons[0]}"
