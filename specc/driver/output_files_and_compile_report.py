"""Write the model file or the package of a compilation, and report on the written files."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specc.backend import ExtraFile, PackageMetadata, WriteResult
from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.render import format_repr, format_thousands, render_html_table
from specc.driver import preprocessing_section
from specc.driver.compile_job import LoweringJob, list_job_input_files
from specc.driver.genai_config_and_export_profiles import (
    describe_missing_runtime_files,
    find_tokenizer_and_config_paths,
    read_runtime_files,
)
from specc.driver.generation_graphs import build_package_contents, build_standalone_generator
from specc.driver.manifest_and_generation_metadata import (
    make_generator_metadata_builder,
    make_metadata_builder,
)
from specc.driver.quantization_and_half_precision import describe_quantization
from specc.driver.weight_sources import count_parameters, count_weight_bytes
from specc.io.memory_check import describe_memory_shortage
from specc.io.output_paths import (
    MODEL_OUTPUT,
    normalize_output_path,
    resolve_output_path,
    sanitize_file_stem,
)
from specc.io.safe_read import escape_text
from specc.ir.model_definition import ModelDefinition, ModelSource
from specc.preprocessing.tokenizer_files import TOKENIZER_SUFFIX
from specc.weights.checkpoint_weight_streaming import CheckpointWeights
from specc.weights.external_data import ExternalDataPlan, count_tensor_bytes

MIN_REPORTED_COPY = 1 << 30
"""Size in bytes of copied weights above which the compile report contains a remark."""
HALF_DTYPE_NAMES = {"bf16": "bfloat16", "f16": "float16"}
"""The names of the 16-bit storage dtypes."""


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """The result of `compile`: the written files with their sizes, remarks and warnings.
    `attention_lowerings` describes how each attention layer is lowered, and why.
    """

    path: Path
    files: tuple[tuple[Path, int], ...]
    model: ModelDefinition
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    attention_lowerings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        count = len(self.files)
        files = "1 file" if count == 1 else f"{count} files"
        byte_count = format_thousands(sum(size for _, size in self.files))
        return format_repr(f"compiled {self.model.name}: {self.path}, {files}, {byte_count} bytes")

    def _repr_html_(self) -> str:
        """Return an HTML table of the written files, for notebooks."""
        return render_html_table(
            f"specc compiled {self.model.name}",
            [
                ("graph", self.model.graph.format_signature()),
                *((str(path), f"{format_thousands(size)} bytes") for path, size in self.files),
                *(("remark", remark) for remark in self.remarks),
                *(("warning", f"{d.code}: {d.title}") for d in self.warnings),
            ],
        )


def write_model_file(job: LoweringJob) -> CompileReport:
    """Write one ONNX file with the full-forward graph or a standalone generator."""
    options = job.options
    path = resolve_output_path(
        options.output, MODEL_OUTPUT, inputs=list_job_input_files(job), force=options.force
    )
    # write preprocessing files next to the model, with names that begin with the model's file name
    job = replace(
        job,
        preprocessing=job.preprocessing.assign_tokenizer_file_names(sanitize_file_stem(path.stem)),
    )
    if options.writes_standalone_generator:
        generator = build_standalone_generator(job)
        source: ModelSource = generator
        metadata = make_generator_metadata_builder(job, generator)
    else:
        source = job.convert_dtype(job.simplified_graph)
        metadata = make_metadata_builder(
            job, job.manifest_graph, is_full_forward=True, with_sources=True
        )
    write_result = job.compiler.write_model(
        job.quantize_model_graphs(source),
        path,
        job.stored_parameters,
        target=job.target,
        opset=job.opset,
        weights_as=options.weights_as or "auto",
        dtype=options.dtype,
        metadata=metadata,
        verify_load=not options.no_load,
        sidecar_files=[
            (TOKENIZER_SUFFIX, file.content)
            for file in job.preprocessing.tokenizer_files
            if file.name
        ],
    )
    return build_compile_report(job, write_result)


def write_package(job: LoweringJob) -> CompileReport:
    """Write the package directory without overwriting input files."""
    options = job.options
    file_names = {file.sha256: "tokenizer.json" for file in job.preprocessing.tokenizer_files}
    job = replace(job, preprocessing=job.preprocessing.rename_tokenizer_files(file_names))
    contents = build_package_contents(job)
    tokenizer_files = [
        ExtraFile(f.name, f.content, role="tokenizer") for f in job.preprocessing.tokenizer_files
    ]
    # runtimes of other profiles expect the standard names of tokenizer files
    used_names = [extra.name for extra in (*tokenizer_files, *contents.extra_files)]
    companions = tuple(read_runtime_files(options.io_names, job.directories, used_names))
    write_result = job.compiler.write_package(
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
        verify_load=not options.no_load,
        input_paths=[
            *list_job_input_files(job),
            *(find_tokenizer_and_config_paths(job.directories) if companions else ()),
        ],
        force=options.force,
        checks_hashes_on_open=options.hash == "full",
    )
    return build_compile_report(
        job, write_result, *describe_missing_runtime_files(options.io_names, job.directories)
    )


def build_compile_report(
    job: LoweringJob, write_result: WriteResult, *remarks: str
) -> CompileReport:
    """Build the report on the written files. The report lists `remarks` before the remarks on
    weights.
    """
    source = job.parameter_source
    warnings = source.warnings if isinstance(source, CheckpointWeights) else ()
    remarks = (
        *job.spec.remarks,
        *_describe_embedded_adapter(job),
        *preprocessing_section.describe_preprocessing_files(job.model, job.directories),
        *job.remarks,
        *job.quantize.remarks,
        *([job.int4_method] if job.int4_method else []),
        *describe_quantization(
            job.quantization_decision, job.norm_folds, job.quantize, job.target, job.options.graphs
        ),
        *_iterate_unapplied_settings(job),
        *remarks,
        *_describe_weight_storage(job, write_result.plan),
        *describe_memory_shortage(
            *count_weight_bytes(job.stored_parameters), count_parameters(job.parameter_source)
        ),
    )
    return CompileReport(
        path=write_result.path,
        files=write_result.files,
        model=job.model,
        remarks=remarks,
        warnings=(*job.spec.warnings, *warnings, *job.model.warnings),
        attention_lowerings=tuple(job.attention_lowerings),
    )


def _describe_embedded_adapter(job: LoweringJob) -> Iterator[str]:
    """Yield a remark if the merged adapter is in the checkpoint directory."""
    has_checkpoint = isinstance(job.parameter_source, CheckpointWeights)
    if has_checkpoint and not job.options.adapter and job.embedded_adapter:
        directory = escape_text(job.embedded_adapter)
        yield f"the LoRA adapter in `{directory}` is merged into the weights"


def _iterate_unapplied_settings(job: LoweringJob) -> Iterator[str]:
    """Yield remarks on text-based generation settings, which a graph cannot apply."""
    generation = job.model.generation
    if "generate" not in job.options.graphs or generation is None:
        return
    if generation.settings.get("stop_strings"):
        yield "`generate` does not apply the stop strings, because its output is tokens, not text"


def _describe_weight_storage(job: LoweringJob, plan: ExternalDataPlan) -> Iterator[str]:
    """Yield remarks on weights that are linked, copied, or stored in another dtype."""
    if linked_count := len(plan.linked_tensors):
        yield (
            f"{linked_count} weights are external data in their original file: keep that file next "
            "to the model"
        )
    # add no remark if the user chose the weight storage
    elif not job.options.weights_as:
        yield from _describe_copied_weights(plan)
    yield from _describe_widened_weights(job, plan)


def _describe_copied_weights(plan: ExternalDataPlan) -> Iterator[str]:
    """Yield a remark if many weights are copied although the model could use them in place."""
    if plan.copy_reasons and plan.copied_bytes >= MIN_REPORTED_COPY:
        reason, *others = sorted(set(plan.copy_reasons.values()))
        files = f" (and {len(others)} more files)" if others else ""
        yield (
            f"{plan.copied_bytes / 1e9:.1f} GB of weights were copied, because {reason}{files}; "
            "with `--weights-as link`, weights in the directory of the model are used in place"
        )


def _describe_widened_weights(job: LoweringJob, plan: ExternalDataPlan) -> Iterator[str]:
    """Yield a remark if 16-bit matrices of the checkpoint are stored as float32."""
    source = job.parameter_source
    if job.quantized or job.options.dtype or not isinstance(source, CheckpointWeights):
        return
    dtypes = {source.get_stored_dtype(name) for name in _list_float32_matrices(source, plan)}
    for dtype in sorted(dtypes & HALF_DTYPE_NAMES.keys()):
        name = HALF_DTYPE_NAMES[dtype]
        yield (
            f"the {name} weights of the checkpoint are stored as float32 (twice the size); "
            f"`--dtype {dtype}` stores matrices as {name}"
        )


def _list_float32_matrices(source: CheckpointWeights, plan: ExternalDataPlan) -> list[str]:
    """Return the names of the matrices of `source` that are copied as float32."""
    shapes = {n: source.parameters[n].shape for n in plan.copied_tensors if n in source.parameters}
    return [
        name
        for name, shape in shapes.items()
        if len(shape) > 1 and plan.copied_tensors[name][1] == count_tensor_bytes(shape, "f32")
    ]
