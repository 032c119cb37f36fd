"""Write the files of a compile: one model file, or a package directory."""

from collections.abc import Iterator
from dataclasses import replace

from specc.backend import ExtraFile, PackageMetadata, WrittenModel
from specc.driver import precision
from specc.driver import reading_section as readings
from specc.driver.compile_job import LoweringJob, job_input_files
from specc.driver.compile_options import CompileReport
from specc.driver.model_manifest import describe_generator, describe_graph
from specc.driver.package_graphs import build_generator, build_package_graphs
from specc.driver.weight_sources import check_memory, count_values
from specc.huggingface.repository_files import (
    companion_notes,
    find_companion_paths,
    read_companions,
)
from specc.io.atomic_write import sanitize_file_stem
from specc.io.output_paths import MODEL_OUTPUT, normalize_output_path, resolve_output_path
from specc.ir.model import ModelSource
from specc.preprocessing.tokenizer_files import TOKENIZER_SUFFIX
from specc.weights.parameter_values import CheckpointBinding


def write_model_file(job: LoweringJob) -> CompileReport:
    """Write one ONNX file: the full forward, or a self-contained generator (token ids in,
    token ids out).
    """
    options = job.options
    path = resolve_output_path(
        options.output, MODEL_OUTPUT, inputs=job_input_files(job), force=options.force
    )
    # files of readings stand next to the model, under its name
    job = replace(job, reading=job.reading.placed(sanitize_file_stem(path.stem)))
    if options.is_generator_file:
        generator = build_generator(job)
        source: ModelSource = generator
        metadata = describe_generator(job, generator)
    else:
        source = job.convert_dtype(job.simplified)
        metadata = describe_graph(job, job.manifest_graph, whole=True, sources=True)
    written = job.compiler.write_model(
        job.quantize_source(source),
        path,
        job.stored,
        target=job.target,
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=options.dtype,
        metadata=metadata,
        load=not options.no_load,
        beside=[(TOKENIZER_SUFFIX, file.content) for file in job.reading.files if file.name],
    )
    return build_report(job, written)


def write_package(job: LoweringJob) -> CompileReport:
    """Write the package directory; its input files are never overwritten."""
    options = job.options
    tokenizers = {file.sha256: "tokenizer.json" for file in job.reading.files}
    job = replace(job, reading=job.reading.named(tokenizers))
    contents = build_package_graphs(job)
    texts = [ExtraFile(f.name, f.content, role="tokenizer") for f in job.reading.files]
    # programs that read other profiles load companion files by their usual names
    taken = [extra.name for extra in (*texts, *contents.extras)]
    companions = tuple(read_companions(options.io_names, job.directories, taken))
    written = job.compiler.write_package(
        {
            role: replace(part, graph=job.quantize_source(part.graph))
            for role, part in contents.graphs.items()
        },
        normalize_output_path(options.output),
        job.stored,
        target=job.target,
        about=PackageMetadata(job.model.name, contents.facts, job.sources),
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=options.dtype,
        extras=[*texts, *contents.extras, *companions],
        load=not options.no_load,
        inputs=[
            *job_input_files(job),
            *(find_companion_paths(job.directories) if companions else ()),
        ],
        force=options.force,
        every_load=options.hash == "full",
    )
    return build_report(job, written, *companion_notes(options.io_names, job.directories))


def build_report(job: LoweringJob, written: WrittenModel, *remarks: str) -> CompileReport:
    """Return the report of `written`; `remarks` precede those about weights."""
    warnings = job.values.warnings if isinstance(job.values, CheckpointBinding) else ()
    plan = job.decision.plan
    remarks = (
        *job.spec.remarks,
        *readings.reading_notes(job.model, job.directories),
        *job.remarks,
        *job.quantize.remarks,
        *([job.recipe] if job.recipe else []),
        *precision.quantization_notes(job.decision, job.folds, job.quantize),
        *precision.standalone_quantization_notes(plan, job.target, job.options.graphs),
        *_unapplied_settings(job),
        *remarks,
        *_storage_remarks(job, written),
        *check_memory(job.stored, count_values(job.values)),
    )
    return CompileReport(
        path=written.path,
        files=written.files,
        model=job.model,
        remarks=remarks,
        warnings=(*job.spec.warnings, *warnings, *job.model.warnings),
        forms=tuple(job.forms),
    )


def _unapplied_settings(job: LoweringJob) -> Iterator[str]:
    """Yield remarks on generation settings that a graph of token ids cannot follow."""
    generation = job.model.generation
    if "generate" not in job.options.graphs or generation is None:
        return
    if generation.settings.get("stop_strings"):
        yield "`generate` does not apply the stop strings: it has tokens, not text"


def _storage_remarks(job: LoweringJob, written: WrittenModel) -> Iterator[str]:
    """Yield a remark on where the weights are stored, if that was open."""
    if linked := len(written.plan.linked):
        yield (
            f"{linked} weights are external data in their original file: "
            "keep that file next to the model"
        )
        return
    reasons = sorted(set(written.plan.reasons.values()))
    # no remark if the user chose the storage, or the weights are random
    named = job.options.weights or job.spec.checkpoint
    if named and reasons and not job.options.weights_as:
        yield f"weights were copied: {reasons[0]}"
