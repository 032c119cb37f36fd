"""Compile a spec to a model file or a package directory."""

from contextlib import closing
from dataclasses import replace

from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.driver.compile_job import (
    CompileJob,
    get_generate_section,
    merge_generation_settings,
    open_compile_job,
    prepare_lowering,
)
from specc.driver.compile_options import PACKAGE_GRAPHS, CompileOptions
from specc.driver.genai_config_and_export_profiles import check_export_profile
from specc.driver.generation_graphs import check_generator_settings, get_vocabulary_size
from specc.driver.model_calibration import calibrate_job
from specc.driver.output_files_and_compile_report import (
    CompileReport,
    write_model_file,
    write_package,
)
from specc.driver.spec_check_and_elaboration import SpecCheckResult, is_default_graph
from specc.driver.spec_loader import LoadedSpec
from specc.driver.weight_sources import WeightSources, get_checkpoint_warnings, load_parameters
from specc.io.safe_read import quote_argument
from specc.weights.checkpoint_files import NO_WEIGHTS_HELP


def drop_unsupported_graphs(job: CompileJob) -> tuple[CompileJob, tuple[str, ...]]:
    """Drop the graphs that `--graphs all` requests but the model does not support. Return the job,
    and a remark with the reason for each dropped graph.

    A model without a `generate` section has only a `score` graph. There is no `generate` graph if
    the model is a streaming model, if its generation settings cannot be exported, or if the target
    does not support loops.
    """
    model, graphs = job.model, job.options.graphs
    # do not drop the `generate` graph if the options contain generation settings
    if graphs != PACKAGE_GRAPHS or job.options.generation_config:
        return job, ()
    if model.generation is None and model.streaming is None:
        graphs = tuple(graph for graph in graphs if graph == "score")
    if not (reason := _explain_no_generate_graph(job)):
        return job, ()
    graphs = tuple(graph for graph in graphs if graph != "generate")
    dropped = [graph for graph in job.options.graphs if graph not in graphs]
    remark = f"not exported: {', '.join(dropped)}; {reason}"
    return replace(job, options=replace(job.options, graphs=graphs)), (remark,)


def _explain_no_generate_graph(job: CompileJob) -> str:
    """Return the reason why the `generate` graph cannot be built, or "" if it can be built."""
    model = job.model
    if model.generation is None and model.streaming is None:
        return (
            f"`{model.graph.name}` is not a generative graph, because it has no `generate` section"
        )
    if model.generation is None:
        return f"`{model.name}` is a streaming model"
    if not job.target.supports_decode_loop:
        return f"`{job.target.name}` cannot run a generation loop inside a graph"
    try:
        get_vocabulary_size(job.model.graph, get_generate_section(job.model))
        check_generator_settings(merge_generation_settings(job))
    except SpeccError as failed:
        return failed.diagnostics[0].title
    return ""


def compile_model(spec: LoadedSpec, options: CompileOptions) -> CompileReport:
    """Compile a spec to `options.output`: an ONNX file, or a package directory if `options.graphs`
    is not empty.

    1. Elaborate the spec with its config, and open its weights.
    2. Drop graphs that the model or the target does not support.
    3. Simplify the graph; plan the quantization of weights and the use of 16-bit compute dtypes.
    4. Calibrate int4 weights (GPTQ) and the scales of an int8 KV cache.
    5. Derive the encoder and the decode step, lower and verify each graph, and write the files.

    Raise SpeccError with the diagnostics of the first stage that fails. No file is written if a
    stage fails.
    """
    check_export_profile(options.io_names)
    with open_compile_job(spec, options) as requested_job:
        job, skipped = drop_unsupported_graphs(requested_job)
        _check_decode_loop_support(job)
        lowering_job = prepare_lowering(job)
        with calibrate_job(lowering_job) as calibrated_job:
            write = write_package if options.writes_package else write_model_file
            report = write(calibrated_job)
    return replace(report, remarks=(*report.remarks, *skipped))


def _check_decode_loop_support(job: CompileJob) -> None:
    """Raise E0934 if the target silently computes wrong results for decode loops."""
    if "generate" not in job.options.graphs or job.target.supports_decode_loop:
        return
    others = [graph for graph in job.options.graphs if graph != "generate"] or ["step"]
    raise_error(
        "E0934",
        f"`{job.target.name}` cannot run a generation loop inside a graph",
        notes=["it does not support caches that grow inside a loop"],
        helps=[
            f"compile with `--graphs {','.join(others)}` and run the decoding loop in your program",
            "or use `--target onnx`, which any ONNX Runtime can run",
        ],
    )


MATCHING_WEIGHTS = "names and shapes of the weights match the checkpoint"
MATCHING_BASE_WEIGHTS = (
    f"{MATCHING_WEIGHTS}, which has no weights for the head: compile with `--init-missing 0` "
    "(in Python `init_missing=0`)"
)


def check_checkpoint_weights(spec: LoadedSpec, check_result: SpecCheckResult) -> SpecCheckResult:
    """Check the names and shapes of the weights in a checkpoint directory that is passed as the
    spec. Add warnings and a remark to `check_result`. Only the headers of the weight files are
    read, unless a tied parameter is stored twice. If the selected graph is not the default graph,
    the checkpoint may lack the weights of its head.

    Raise the same errors as `specc compile`.
    """
    if check_result.model is None:
        raise SpeccError(*check_result.missing)
    graph = check_result.model.graph
    sources = WeightSources(init_missing=None if is_default_graph(spec, graph.name) else 0)
    try:
        values = load_parameters(spec, graph, sources)
    except SpeccError as failed:
        raise _suggest_check_of_config(failed, spec.checkpoint) from None
    with closing(values):
        warnings = get_checkpoint_warnings(values)
    mismatches = [warning for warning in warnings if warning.code != "W0528"]
    remark = MATCHING_WEIGHTS if len(mismatches) == len(warnings) else MATCHING_BASE_WEIGHTS
    return replace(
        check_result,
        warnings=(*check_result.warnings, *mismatches),
        remarks=(*check_result.remarks, remark),
    )


def _suggest_check_of_config(error: SpeccError, directory: str) -> SpeccError:
    """Return the error. If the directory has no weights, suggest `specc check --config` instead of
    `specc compile`.
    """
    command = f"specc check SPEC --config {quote_argument(directory)}"
    fix = f"to check only its config.json, write `{command}`"
    return SpeccError(
        *(
            replace(d, helps=(fix,)) if d.helps == (NO_WEIGHTS_HELP,) else d
            for d in error.diagnostics
        )
    )
