"""Compile a package: graphs derived from one spec over shared weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from specc.artifact.manifest import DOC, KEY
from specc.backend import EmittedModel, ExtraFile, PackageGraph, PackageMetadata, Texts
from specc.diagnostics.diagnostic import raise_error
from specc.driver.available_parts import drop_unavailable_parts
from specc.driver.calibrate_weights import calibrate_job, fail_no_int8_cache
from specc.driver.compile_job import (
    CompileJob,
    CompileOptions,
    build_manifest,
    job_input_files,
    open_job,
    report_compiled,
)
from specc.driver.compile_report import CompileReport
from specc.driver.generation_graphs import (
    build_generator_source,
    decode_settings_of,
    derive_graphs,
    generation_facts,
    require_generation,
    spec_signature,
    writes_tokens,
)
from specc.driver.precision import convert_generator_dtype
from specc.driver.profiles.export_profile import ROWS, apply_profile, check_profile
from specc.driver.spec_loader import OpenedSpec
from specc.driver.streaming_graphs import derive_streaming_graphs, streaming_facts
from specc.huggingface.repository_files import (
    companion_notes,
    find_companion_paths,
    read_companions,
)
from specc.io.atomic_write import sanitize_file_stem
from specc.io.output_paths import MODEL_OUTPUT, normalize_output_path, resolve_output_path
from specc.io.safe_read import escape_text
from specc.ir.derived_graphs import DerivedGraphs, KVBufferGraph, SelfDecodingGraph
from specc.ir.graph import Graph
from specc.ir.model import StreamSection
from specc.preprocessing.tokenizer_files import SUFFIX
from specc.transforms import pass_pipeline

PARTS = ("score", "encode", "step", "generate")
"""Graphs that a package can hold: the full forward, the encoder, one decoding step
(decoder-with-past), and the whole generation loop in one file.
"""


@dataclass(frozen=True)
class PackageContents:
    """Contents of a package: graphs by role, further files, and the generation metadata in
    `specc.json`.
    """

    parts: Mapping[str, PackageGraph]
    extras: tuple[ExtraFile, ...] = ()
    facts: Mapping[str, object] | None = None


def compile_package(spec: OpenedSpec, options: CompileOptions) -> CompileReport:
    """Compile a spec to `options.output`: a package directory, or one self-contained
    generator file. Raise the errors of `compile_spec`.

    Raise E0701 if the spec does not generate, E0711 to E0717 if it is not causal, E0934 if
    the target cannot run a generation loop.
    """
    check_profile(options.names)
    with open_job(spec, options) as opened:
        job, left = opened, tuple[str, ...]()
        # generation settings given as options need the `generate` graph
        if options.parts == PARTS and not options.settings:
            job, left = drop_unavailable_parts(opened)
        with calibrate_job(job, write_package_directory) as ready:
            _check_decodes(job)
            if options.parts == ("generate",) and options.output.endswith(".onnx"):
                return _write_generator_file(ready)
            made = write_package_directory(ready)
            return replace(made, remarks=(*made.remarks, *left))


def _check_decodes(job: CompileJob) -> None:
    """Raise E0934: such a target computes wrong results without an error."""
    if "generate" in job.options.parts and not job.target.decodes:
        others = [p for p in (job.options.parts) if p != "generate"] or ["step"]
        raise_error(
            "E0934",
            f"`{job.target.name}` cannot run a generation loop inside a graph",
            notes=["it computes caches that grow inside a loop wrongly, or not at all"],
            helps=[
                f"compile with `--graphs {','.join(others)}`: the runtime calls the steps",
                "or with `--target onnx`, for ONNX Runtime in any language",
            ],
        )


def parse_part_names(said: object) -> tuple[str, ...]:
    """Return the graphs of a package, from a list of names, a comma-separated string or
    `all`. Raise E0754 for unknown names.
    """
    if said == "all":
        return PARTS
    names = said.split(",") if isinstance(said, str) else said
    if not isinstance(names, list | tuple | set | frozenset):
        _fail_unknown_part(said)
    if not all(isinstance(name, str) for name in names):
        _fail_unknown_part(said)
    for name in names:
        if name not in PARTS:
            _fail_unknown_part(name)
    return tuple(part for part in PARTS if part in names)


def _fail_unknown_part(name: object) -> NoReturn:
    raise_error(
        "E0754",
        f"a package has no graph called `{escape_text(str(name))[:60]}`",
        helps=[f"graphs are {', '.join(PARTS)}, and `all`"],
    )


def _write_generator_file(job: CompileJob) -> CompileReport:
    """Write a self-contained generator: token ids in, token ids out."""
    path = resolve_output_path(
        job.options.output, MODEL_OUTPUT, inputs=job_input_files(job), force=job.options.force
    )
    job = job.with_reading(job.reading.placed(sanitize_file_stem(path.stem)))
    # resolved first, so that a missing target or backend is reported before the proof
    target = job.target
    graph = job.simplified
    source = convert_generator(job, build_generator_source(job, graph))
    written = job.compiler.write_model(
        job.rounded(source),
        path,
        job.numbers,
        target=target,
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=job.options.dtype,
        metadata=_generator_metadata(job, source),
        load=job.options.try_load,
        beside=[(SUFFIX, file.content) for file in job.reading.files if file.name],
    )
    return report_compiled(job, written, *_unapplied_settings(job))


def write_package_directory(job: CompileJob) -> CompileReport:
    """Write the package directory; its input files are never overwritten."""
    tokenizers = {file.sha256: "tokenizer.json" for file in job.reading.files}
    job = job.with_reading(job.reading.named(tokenizers))
    target = job.target  # as in `_write_generator_file`
    contents = package_contents(job)
    texts = [ExtraFile(f.name, f.content, role="tokenizer") for f in job.reading.files]
    names = job.options.names
    # programs that read other profiles load companion files by their usual names
    taken = [extra.name for extra in (*texts, *contents.extras)]
    beside = tuple(read_companions(names, job.folders, taken))
    written = job.compiler.write_package(
        {
            role: replace(part, graph=job.rounded(part.graph))
            for role, part in contents.parts.items()
        },
        normalize_output_path(job.options.output),
        job.numbers,
        target=target,
        about=PackageMetadata(job.model.name, contents.facts or {}, job.sources),
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=job.options.dtype,
        extras=[*texts, *contents.extras, *beside],
        load=job.options.try_load,
        inputs=[*job_input_files(job), *(find_companion_paths(job.folders) if beside else ())],
        force=job.options.force,
        every_load=job.options.hash_full,
    )
    missed = companion_notes(names, job.folders)
    return report_compiled(job, written, *_unapplied_settings(job), *missed)


def _runtime_metadata(
    job: CompileJob, derived: DerivedGraphs, buffers: tuple[str, ...]
) -> Mapping[str, object] | None:
    """Return the metadata for our generation runtime; None if the model emits no tokens."""
    if not writes_tokens(job.model.graph, require_generation(job.model)):
        return None
    computed = job.computed_apart(derived)
    return generation_facts(job, job.simplified, computed, buffers).dump()


def package_contents(job: CompileJob) -> PackageContents:
    """Build the requested graphs and what goes with them."""
    wanted, graph = job.options.parts, job.simplified
    parts: dict[str, PackageGraph] = {}
    if "score" in wanted:
        texts = _graph_metadata(job, job.told, whole=True)
        parts["score"] = PackageGraph(job.computed(graph), "score.onnx", texts)
    # the full forward alone needs no causality proof
    if wanted == ("score",):
        return PackageContents(parts)
    if job.model.generation is None and job.model.streaming is not None:
        return _add_streaming_graphs(job, job.model.streaming, parts)
    return _add_generation_graphs(job, parts)


def _add_generation_graphs(job: CompileJob, parts: dict[str, PackageGraph]) -> PackageContents:
    """Add the graphs of a generative model."""
    wanted, graph = job.options.parts, job.simplified
    ours = job.options.names == "specc"
    derived = derive_graphs(
        graph,
        require_generation(job.model),
        ROWS[job.options.names],
        bounded=ours,
        defaults=job.model.defaults,
        begins=ours,
    )
    extras: tuple[ExtraFile, ...] = ()
    buffers: tuple[str, ...] = ()
    if {"encode", "step"} & set(wanted):
        computed = job.computed_apart(derived)
        forms = apply_profile(job.options.names, job.model, computed)
        for stem, form in forms.graphs.items():
            parts[stem] = PackageGraph(
                form, f"{stem}.onnx", _graph_metadata(job, form, whole=False)
            )
        extras = tuple(ExtraFile.of_data(n, data) for n, data in forms.files.items())
        # only our runtime feeds preallocated buffers; others get caches that grow
        if ours:
            parts["step"], buffers = _build_buffered_step(job, forms.graphs["step"], computed)
    facts = _runtime_metadata(job, derived, buffers) if ours else None
    if "generate" in wanted:
        # other profiles need other logits, so their derived graphs are not those of `generate`
        source = convert_generator(
            job, build_generator_source(job, graph, derived if ours else None)
        )
        parts["generate"] = PackageGraph(source, "generate.onnx", _generator_metadata(job, source))
    return PackageContents(parts, extras, facts)


def convert_generator(job: CompileJob, source: SelfDecodingGraph) -> SelfDecodingGraph:
    """Return a self-contained generator in the compute dtype of the target."""
    return convert_generator_dtype(source, job.options.dtype, job.target)


def _add_streaming_graphs(
    job: CompileJob, streaming: StreamSection, parts: Mapping[str, PackageGraph]
) -> PackageContents:
    """Add the graphs of a streaming model, which only our runtime can feed. Raise E0977 for
    options that apply to generation alone.
    """
    other = job.options.names if job.options.names != "specc" else ""
    if other or "generate" in job.options.parts:
        asked = f"--io-names {other}" if other else "--graphs generate"
        raise_error(
            "E0977",
            f"`{asked}` is for generative models, and `{job.model.name}` is a streaming model",
            notes=[f"`{streaming.growing}` is an input stream, not generated"],
            helps=["compile it with `--graphs score,step`"],
        )
    stream = derive_streaming_graphs(job, streaming)
    found = dict(parts)
    graphs = {"encode": stream.derived.encode, "step": stream.derived.step}
    for stem, graph in graphs.items():
        if graph is not None:
            found[stem] = PackageGraph(
                graph, f"{stem}.onnx", _graph_metadata(job, graph, whole=False)
            )
    return PackageContents(found, facts=streaming_facts(job, stream).dump())


def _build_buffered_step(
    job: CompileJob, step: Graph, derived: DerivedGraphs
) -> tuple[PackageGraph, tuple[str, ...]]:
    """Return the step graph with in-place KV buffers where the target supports them, and the
    names of these inputs.
    """
    caches = job.compiler.find_kv_buffers(step, derived.states, job.target, job.opset)
    # none: the target cannot write in place, or no attention matches its kernel
    if not caches:
        # the scales were calibrated on a package with default options, which had buffers
        if job.scales:
            why = "no attention writes into a KV buffer with these options"
            fail_no_int8_cache(why, job.rounding.cache)
        return PackageGraph(step, "step.onnx", _graph_metadata(job, step, whole=False)), ()
    if job.scales:
        step = pass_pipeline.apply_int8_kv_cache(step, caches)
    source = KVBufferGraph(step, caches)
    return PackageGraph(source, "step.onnx", _graph_metadata(job, step, whole=False)), source.names


def _graph_metadata(job: CompileJob, graph: Graph, *, whole: bool) -> Texts:
    """Return the metadata of a graph in a package; spec sources are in `specc.json`."""

    def texts(emitted: EmittedModel) -> Mapping[str, str]:
        told = build_manifest(job, graph, emitted, whole=whole)
        return {KEY: told.dump(), DOC: told.doc}

    return texts


def _generator_metadata(job: CompileJob, source: SelfDecodingGraph) -> Texts:
    """Return the metadata of a self-contained generator."""
    decodes, signature = (decode_settings_of(job, source), spec_signature(job, source.graph))

    def texts(emitted: EmittedModel) -> Mapping[str, str]:
        told = build_manifest(job, signature, emitted, decodes=decodes, scoring=source.graph)
        return {KEY: told.dump(), DOC: told.doc}

    return texts


def _unapplied_settings(job: CompileJob) -> tuple[str, ...]:
    """Return remarks on generation settings that a graph of token ids cannot follow."""
    generation = job.model.generation
    if "generate" not in job.options.parts or generation is None:
        return ()
    if not generation.settings.get("stop_strings"):
        return ()
    return ("`generate` does not apply the stop strings: it has tokens, not text",)
