"""Compile one spec to an ONNX model file."""

from collections.abc import Mapping

from specc.artifact.manifest import DOC, KEY
from specc.backend import EmittedModel
from specc.driver.calibrate_weights import calibrate_job
from specc.driver.compile_job import (
    CompileJob,
    CompileOptions,
    build_manifest,
    job_input_files,
    open_job,
    report_compiled,
)
from specc.driver.compile_package import write_package_directory
from specc.driver.compile_report import CompileReport
from specc.driver.spec_loader import OpenedSpec
from specc.io.atomic_write import sanitize_file_stem
from specc.io.output_paths import MODEL_OUTPUT, resolve_output_path
from specc.preprocessing.tokenizer_files import SUFFIX


def compile_spec(spec: OpenedSpec, options: CompileOptions) -> CompileReport:
    """Compile a spec: elaborate it, bind its weights, run the passes, lower and write.

    Raise Failed with the diagnostics of the first stage that fails.
    """
    with open_job(spec, options) as job, calibrate_job(job, write_package_directory) as ready:
        return _compile_graph(ready)


def _compile_graph(job: CompileJob) -> CompileReport:
    path = resolve_output_path(
        job.options.output, MODEL_OUTPUT, inputs=job_input_files(job), force=job.options.force
    )
    job = job.with_reading(job.reading.placed(sanitize_file_stem(path.stem)))
    # a file without a span has no source text to embed; it is still listed
    sources = {**dict.fromkeys(_input_paths(job), ""), **job.sources}

    def texts(emitted: EmittedModel) -> Mapping[str, str]:
        told = build_manifest(job, job.told, emitted, sources=sources)
        return {KEY: told.dump(), DOC: told.doc}

    written = job.compiler.write_model(
        job.rounded(job.computed(job.simplified)),
        path,
        job.numbers,
        target=job.target,
        opset=job.opset,
        weights_as=job.weights_as,
        dtype=job.options.dtype,
        metadata=texts,
        load=job.options.try_load,
        beside=[(SUFFIX, file.content) for file in job.reading.files if file.name],
    )
    return report_compiled(job, written)


def _input_paths(job: CompileJob) -> list[str]:
    return [module.path for module in job.spec.library.modules.values()]
