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
"""What a package can hold: the graph as it is written, what is computed once, one step,
and all of it in one file.
"""


@dataclass(frozen=True)
class PackageContents:
    """What a package holds: graphs by role, further files, and what `specc.json` tells
    the program that writes with it.
    """

    parts: Mapping[str, PackageGraph]
    extras: tuple[ExtraFile, ...] = ()
    facts: Mapping[str, object] | None = None


def compile_package(spec: OpenedSpec, options: CompileOptions) -> CompileReport:
    """Derive, bind the weights, lower, write `options.output`: a folder, or one file
    that decodes by itself. Fails as `compile_spec` does.

    E0701 where the spec does not generate, E0711 to E0717 where it cannot; E0934 where
    the target cannot run a model that decodes by itself.
    """
    check_profile(options.names)
    with open_job(spec, options) as opened:
        job, left = opened, tuple[str, ...]()
        # settings of the command are those of the graph that decodes by itself
        if options.parts == PARTS and not options.settings:
            job, left = drop_unavailable_parts(opened)
        with calibrate_job(job, write_package_directory) as ready:
            _check_decodes(job)
            if options.parts == ("generate",) and options.output.endswith(".onnx"):
                return _one_file(ready)
            made = write_package_directory(ready)
            return replace(made, remarks=(*made.remarks, *left))


def _check_decodes(job: CompileJob) -> None:
    """E0934: what such a target would compute is wrong, and it would not say so."""
    if "generate" in job.options.parts and not job.target.decodes:
        others = [p for p in (job.options.parts) if p != "generate"] or ["step"]
        raise_error(
            "E0934",
            f"`{job.target.name}` cannot run a model that decodes by itself",
            notes=["caches that grow inside a loop come out wrong there, or not at all"],
            helps=[
                f"compile with `--for {','.join(others)}`, and have a program run the steps",
                "or with `--target onnx`, for ONNX Runtime in any language",
            ],
        )


def parse_part_names(said: object) -> tuple[str, ...]:
    """The graphs a package is to hold, of names, a text of names with commas, or `all`.
    E0754 for unknown names.
    """
    if said == "all":
        return PARTS
    names = said.split(",") if isinstance(said, str) else said
    if not isinstance(names, list | tuple | set | frozenset):
        _no_part(said)
    if not all(isinstance(name, str) for name in names):
        _no_part(said)
    for name in names:
        if name not in PARTS:
            _no_part(name)
    return tuple(part for part in PARTS if part in names)


def _no_part(name: object) -> NoReturn:
    raise_error(
        "E0754",
        f"a package has no part called `{escape_text(str(name))[:60]}`",
        helps=[f"there are {', '.join(PARTS)}, and `all`"],
    )


def _one_file(job: CompileJob) -> CompileReport:
    """Tokens in and tokens out, with nothing beside it but what is too large."""
    path = resolve_output_path(
        job.options.output, MODEL_OUTPUT, inputs=job_input_files(job), force=job.options.force
    )
    job = job.with_reading(job.reading.placed(sanitize_file_stem(path.stem)))
    # A target or backend that is not there is told of before the graph is proven.
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
        metadata=_decoding_texts(job, source),
        load=job.options.try_load,
        beside=[(SUFFIX, file.content) for file in job.reading.files if file.name],
    )
    return report_compiled(job, written, *_left_out(job))


def write_package_directory(job: CompileJob) -> CompileReport:
    """The package, over none of the files that it is made from."""
    tokenizers = {file.sha256: "tokenizer.json" for file in job.reading.files}
    job = job.with_reading(job.reading.named(tokenizers))
    target = job.target  # as in `_one_file`
    contents = package_contents(job)
    texts = [ExtraFile(f.name, f.content, role="tokenizer") for f in job.reading.files]
    names = job.options.names
    # a program of another form loads them itself, by their usual names
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
    return report_compiled(job, written, *_left_out(job), *missed)


def _facts(
    job: CompileJob, derived: DerivedGraphs, buffers: tuple[str, ...]
) -> Mapping[str, object] | None:
    """What our own runner has to know to write texts; None of what writes no tokens."""
    if not writes_tokens(job.model.graph, require_generation(job.model)):
        return None
    computed = job.computed_apart(derived)
    return generation_facts(job, job.simplified, computed, buffers).dump()


def package_contents(job: CompileJob) -> PackageContents:
    """The graphs that are wanted, and what goes with them."""
    wanted, graph = job.options.parts, job.simplified
    parts: dict[str, PackageGraph] = {}
    if "score" in wanted:
        texts = _texts(job, job.told, whole=True)
        parts["score"] = PackageGraph(job.computed(graph), "score.onnx", texts)
    # The whole graph alone needs no proof that it can go on.
    if wanted == ("score",):
        return PackageContents(parts)
    if job.model.generation is None and job.model.streaming is not None:
        return _streaming(job, job.model.streaming, parts)
    return _writing(job, parts)


def _writing(job: CompileJob, parts: dict[str, PackageGraph]) -> PackageContents:
    """These graphs, and those of a model that writes."""
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
            parts[stem] = PackageGraph(form, f"{stem}.onnx", _texts(job, form, whole=False))
        extras = tuple(ExtraFile.of_data(n, data) for n, data in forms.files.items())
        # Only our own runner knows how to feed a buffer; others are given caches that
        # grow.
        if ours:
            parts["step"], buffers = _in_place(job, forms.graphs["step"], computed)
    facts = _facts(job, derived, buffers) if ours else None
    if "generate" in wanted:
        # other programs' names want other rows of the logits, so that what was derived
        # for them is not what decodes
        source = convert_generator(
            job, build_generator_source(job, graph, derived if ours else None)
        )
        parts["generate"] = PackageGraph(source, "generate.onnx", _decoding_texts(job, source))
    return PackageContents(parts, extras, facts)


def convert_generator(job: CompileJob, source: SelfDecodingGraph) -> SelfDecodingGraph:
    """What decodes by itself, in the width that the target computes in."""
    return convert_generator_dtype(source, job.options.dtype, job.target)


def _streaming(
    job: CompileJob, streaming: StreamSection, parts: Mapping[str, PackageGraph]
) -> PackageContents:
    """The graphs of a stream: only our own runner knows how to feed them. E0977 for
    what only a text has.
    """
    other = job.options.names if job.options.names != "specc" else ""
    if other or "generate" in job.options.parts:
        asked = f"--names {other}" if other else "--for generate"
        raise_error(
            "E0977",
            f"`{asked}` is for what writes, and `{job.model.name}` is streamed",
            notes=[f"rows of `{streaming.growing}` are given, not drawn"],
            helps=["compile it with `--for score,step`"],
        )
    stream = derive_streaming_graphs(job, streaming)
    found = dict(parts)
    graphs = {"encode": stream.derived.encode, "step": stream.derived.step}
    for stem, graph in graphs.items():
        if graph is not None:
            found[stem] = PackageGraph(graph, f"{stem}.onnx", _texts(job, graph, whole=False))
    return PackageContents(found, facts=streaming_facts(job, stream).dump())


def _in_place(
    job: CompileJob, step: Graph, derived: DerivedGraphs
) -> tuple[PackageGraph, tuple[str, ...]]:
    """A step that our own runner drives has buffers for caches, where the target can
    write into them; gives the part, and the inputs that are buffers.
    """
    caches = job.compiler.find_kv_buffers(step, derived.states, job.target, job.opset)
    # The target cannot write in place, or no attention is of a form that its kernel
    # has.
    if not caches:
        # scales were measured on a package of the usual options, which had buffers
        if job.scales:
            why = "no attention writes into buffers with these options"
            fail_no_int8_cache(why, job.rounding.cache)
        return PackageGraph(step, "step.onnx", _texts(job, step, whole=False)), ()
    if job.scales:
        step = pass_pipeline.apply_int8_kv_cache(step, caches)
    source = KVBufferGraph(step, caches)
    return PackageGraph(source, "step.onnx", _texts(job, step, whole=False)), source.names


def _texts(job: CompileJob, graph: Graph, *, whole: bool) -> Texts:
    """What a graph of the package carries; the spec's texts stand in `specc.json`."""

    def texts(emitted: EmittedModel) -> Mapping[str, str]:
        told = build_manifest(job, graph, emitted, whole=whole)
        return {KEY: told.dump(), DOC: told.doc}

    return texts


def _decoding_texts(job: CompileJob, source: SelfDecodingGraph) -> Texts:
    """What a model that decodes by itself carries."""
    decodes, signature = (decode_settings_of(job, source), spec_signature(job, source.graph))

    def texts(emitted: EmittedModel) -> Mapping[str, str]:
        told = build_manifest(job, signature, emitted, decodes=decodes, scoring=source.graph)
        return {KEY: told.dump(), DOC: told.doc}

    return texts


def _left_out(job: CompileJob) -> tuple[str, ...]:
    """What a spec says of generating that a model which knows only tokens cannot do."""
    generation = job.model.generation
    if "generate" not in job.options.parts or generation is None:
        return ()
    if not generation.settings.get("stop_strings"):
        return ()
    return (
        "the stop strings are not in the model that decodes by itself: it knows tokens, not text",
    )
