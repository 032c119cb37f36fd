"""Calibrate int4 weights and int8 KV caches on samples from a file or on generated samples."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

from specc import backend
from specc.backend import Executable
from specc.calibration.calibration_activations import (
    CalibrationTargets,
    count_input_features,
    find_calibration_targets,
)
from specc.calibration.calibration_samples_and_kv_cache_scales import (
    ModelInputs,
    build_model_inputs,
    generate_samples,
    measure_kv_cache_scales,
    raise_not_generative_error,
    read_calibration_samples,
)
from specc.calibration.calibration_stages_and_gram_matrices import (
    GetSamples,
    Sample,
    quantize_with_gptq,
)
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.driver.compile_job import LoweringJob, copy_job_with_options, prepare_lowering
from specc.driver.output_files_and_compile_report import write_package
from specc.driver.quantize_option_errors import raise_int8_kv_cache_error
from specc.driver.quantize_section import UNQUANTIZED, CalibrationSource, QuantizeOptions
from specc.io.atomic_write import check_free_disk_space, create_temporary_directory
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.transforms.graph_quantization import KV_SCALE_SUFFIX
from specc.weights.parameter_sources import RandomInitWeights, find_tied_parameters
from specc.weights.quantized_weights import (
    GetFactor,
    QuantizedWeightFiles,
    QuantizedWeights,
    quantize_weight_to_files,
)

DEFAULT_SAMPLES = 64
"""Default number of self-generated calibration samples."""
LARGE_WEIGHT_BYTES = 8 << 30
"""Maximum size in bytes of the float32 weights of a model that generates calibration data. For
larger models, the quantized model generates the calibration data to save memory.
"""


@contextmanager
def calibrate_job(job: LoweringJob) -> Iterator[LoweringJob]:
    """A context manager that yields the job after calibration of int4 weights and int8 KV caches.
    Calibration runs only if the spec or an option requests it, or if the quantization kind
    calibrates by default.

    Raise E0753 if an option has no effect, E0854 or E0859 if calibration data is invalid, and E0951
    if no KV cache can be quantized to int8.
    """
    calibration = job.quantize.calibration
    # do not calibrate weights that the checkpoint already stores in quantized form
    plan = {} if job.int4_method else job.quantization_decision.plan
    targets = find_calibration_targets(
        job.simplified_graph, plan, find_tied_parameters(job.parameter_source)
    )
    cache_option = job.quantize.kv_cache
    obstacle = explain_missing_int8_kv_cache(job) if cache_option.dtype else ""
    if obstacle and cache_option.span is None:
        raise_int8_kv_cache_error(obstacle, cache_option.span)
    has_int8_cache = bool(cache_option.dtype) and not obstacle
    is_calibrated = bool(targets.tap_points) or has_int8_cache
    remarks = () if is_calibrated else _explain_unused_calibration(calibration)
    if obstacle:
        remarks = (*remarks, f"`kv_cache` in the spec has no effect here: {obstacle}")
    job = replace(job, remarks=(*job.remarks, *remarks))
    if not is_calibrated:
        yield job
        return
    with create_temporary_directory() as directory:
        if targets.tap_points:
            job = _quantize_calibrated(job, targets, directory)
        yield _calibrate_kv_cache(job, directory) if has_int8_cache else job


def _quantize_calibrated(
    job: LoweringJob, targets: CalibrationTargets, directory: Path
) -> LoweringJob:
    """Quantize weights to int4 with GPTQ or, without samples, by rounding to nearest."""
    samples, remark = _choose_samples(job, directory)
    if samples is None:
        return replace(job, int4_method=remark)
    quantized_weights = _quantize_weights(job, targets, samples, directory)
    values = QuantizedWeights(
        job.unquantized_weights, job.quantization_decision.plan, quantized_weights
    )
    return replace(job, quantized=values, int4_method=remark)


def _calibrate_kv_cache(job: LoweringJob, directory: Path) -> LoweringJob:
    """Return the job with KV cache scales, measured on calibration data or self-generated
    sequences. Raise E0951 if no KV cache can be quantized.
    """
    calibration = job.quantize.calibration
    path, inputs = _write_generator(job, directory), _build_calibration_inputs(job)
    if calibration.data_file:
        samples: Iterable[Sample] = _read_calibration_data(calibration, inputs)
        remark = f"`{escape_text(Path(calibration.data_file).name)}`"
    else:
        count = calibration.num_samples or DEFAULT_SAMPLES
        samples = generate_samples(path, inputs, count)
        remark = f"{count} self-generated samples"
    scales = measure_kv_cache_scales(path, samples)
    if not scales:
        reason = "no attention of this model updates a KV buffer in place; see --explain"
        raise_int8_kv_cache_error(reason, job.quantize.kv_cache.span)
    cache_remark = f"KV cache in int8, scales calibrated on {remark}"
    scales_by_parameter = {name + KV_SCALE_SUFFIX: array for name, array in scales.items()}
    return replace(job, kv_cache_scales=scales_by_parameter, remarks=(*job.remarks, cache_remark))


def explain_missing_int8_kv_cache(job: LoweringJob) -> str:
    """Return the reason why no compiled graph has an int8 KV cache, or "" if one has."""
    options = job.options
    if job.model.generation is None:
        return "only a generative model has a KV cache"
    if "step" not in options.graphs:
        return "only a step graph has a KV cache: add `--graphs step`"
    if options.io_names != "specc":
        return f"`--io-names {options.io_names}` has no names for int8 caches"
    # the CUDA kernel does not support a mask together with int8 keys
    if "f32" not in job.target.in_place_cache_dtypes:
        return f"`{job.target.name}` has no attention kernel with an int8 KV cache"
    calibration = job.quantize.calibration
    # a model that cannot generate calibration data requires a calibration data file
    if (
        calibration.num_samples == 0
        and (calibration.flag or calibration.span)
        and not calibration.data_file
    ):
        setting = "--calibration-samples 0" if calibration.flag else "calibration_samples = 0"
        return f"its scales require calibration samples, but `{setting}` disables them"
    return ""


def _explain_unused_calibration(calibration: CalibrationSource) -> tuple[str, ...]:
    """Return a remark that calibration has no effect because no linear layer is int4.

    Raise E0753 if an option requests calibration. A request in the spec is not an error, because
    other graphs may have int4 layers.
    """
    # add no remark if `samples = 0` disables calibration
    if not calibration.num_samples and not calibration.data_file:
        return ()
    option = calibration.flag or (
        "calibration_data" if calibration.data_file else "calibration_samples"
    )
    remark = f"`{option}` calibrates int4 weights, but no linear layer is int4"
    if not calibration.flag:
        return (remark,)
    helps = ["with `--quantize int4`, `--quantize-all` includes small layers"]
    raise_error("E0753", remark, helps=helps)


def _read_calibration_data(
    calibration: CalibrationSource, input_signature: ModelInputs
) -> Iterator[Sample]:
    """Yield the model inputs in the calibration data. Raise E0802 if the data cannot be read. If
    the spec names the file, the error points to the entry in the spec.
    """
    if calibration.span and not Path(calibration.data_file).is_file():
        name = escape_text(Path(calibration.data_file).name)
        raise_error(
            "E0802",
            f"the calibration data file `{name}` of the spec does not exist",
            calibration.span,
            "file not found next to the spec",
            helps=["pass another file: --calibration-data FILE", "or remove `calibration_data`"],
        )
    return read_calibration_samples(calibration.data_file, input_signature)


def _choose_samples(job: LoweringJob, directory: Path) -> tuple[GetSamples | None, str]:
    """Return the calibration samples (None for round-to-nearest) and a remark for the report."""
    calibration, input_signature = job.quantize.calibration, _build_calibration_inputs(job)
    fallback = "int4 weights: round-to-nearest"
    if calibration.data_file:
        # omit the directory, because the remark is stored in the model
        name = escape_text(Path(calibration.data_file).name)
        remark = f"int4 weights: GPTQ, calibrated on `{name}`"
        return lambda: _read_calibration_data(calibration, input_signature), remark
    if calibration.num_samples == 0:
        return None, fallback
    if calibration.num_samples is None and isinstance(job.parameter_source, RandomInitWeights):
        return None, f"{fallback}: the weights are random"
    if job.model.generation is None and calibration.num_samples is None:
        return None, f"{fallback}; `--calibration-data FILE` calibrates them (GPTQ)"
    count = DEFAULT_SAMPLES if calibration.num_samples is None else calibration.num_samples
    try:
        path = _write_generator(job, directory)
        samples = list(generate_samples(path, input_signature, count))
    except SpeccError:
        # raise the error if an option or the spec explicitly requests samples
        if calibration.num_samples is not None:
            raise
        return None, f"{fallback}: the model cannot generate calibration data"
    remark = f"int4 weights: GPTQ, calibrated on {count} self-generated samples"
    # mention that a quantized model generated the samples, because this reduces their quality
    precision_note = ", generated with round-to-nearest weights" if _has_large_weights(job) else ""
    return lambda: samples, remark + precision_note


def _write_generator(job: LoweringJob, directory: Path) -> Path:
    """Write the package that generates the calibration samples, unless the package already exists.
    Return its path.

    The weights of the package are float32, or quantized if the model is large. Raise E0859 if the
    model is not generative.
    """
    if job.model.generation is None:
        raise_not_generative_error()
    path = directory / "generator"
    if path.exists():
        return path
    options = replace(
        job.options,
        output=str(path),
        graphs=("encode", "step"),
        io_names="specc",
        dtype="",
        taps=(),
        generation_config={},
        target="ort-cpu",
        opset=0,
        weights_as="",
        precision=_choose_generator_precision(job),
    )
    write_package(prepare_lowering(copy_job_with_options(job, options)))
    return path


def _choose_generator_precision(job: LoweringJob) -> QuantizeOptions:
    """Return the quantization options of the model that generates the calibration samples."""
    if not _has_large_weights(job):
        return QuantizeOptions(quantize=UNQUANTIZED)
    return replace(job.options.precision, calibration_samples=0, calibration_data="", kv_cache="")


def _has_large_weights(job: LoweringJob) -> bool:
    """Return True if the size of the weights in float32 exceeds `LARGE_WEIGHT_BYTES`."""
    weight_count = sum(
        prod(parameter.shape) for parameter in job.parameter_source.parameters.values()
    )
    return 4 * weight_count > LARGE_WEIGHT_BYTES


def _quantize_weights(
    job: LoweringJob, targets: CalibrationTargets, samples: GetSamples, directory: Path
) -> dict[str, QuantizedWeightFiles]:
    """Quantize the weights in `targets` with GPTQ, using layer inputs computed from `samples`."""
    plan, shapes = job.quantization_decision.plan, job.parameter_source.parameters
    weight_count = sum(prod(shapes[n].shape) for n in targets.expert_counts)
    # codes take 0.5 bytes per weight, and scales at most 0.25 bytes (at the smallest group size)
    check_free_disk_space(directory, weight_count * 3 // 4 + _estimate_factor_bytes(targets))

    def quantize_weight(name: str, factor: GetFactor, stem: Path) -> QuantizedWeightFiles:
        return quantize_weight_to_files(job.unquantized_weights, name, plan[name], factor, stem)

    open_submodel = partial(_open_submodel, job)
    return quantize_with_gptq(open_submodel, targets, samples, directory, quantize_weight)


def _estimate_factor_bytes(targets: CalibrationTargets) -> int:
    """Return the peak memory of the Cholesky factors of a stacked weight's experts, in bytes."""
    factor_bytes = Counter[str]()
    for tap_point, matrices in targets.tap_points.items():
        for name in {m.name for m in matrices if targets.expert_counts[m.name] > 1}:
            factor_bytes[name] += 8 * count_input_features(tap_point) ** 2
    return max(factor_bytes.values(), default=0)


@contextmanager
def _open_submodel(job: LoweringJob, graph: Graph) -> Iterator[Executable]:
    """A context manager that yields a runnable float32 submodel and deletes its file on exit."""
    with create_temporary_directory() as directory:
        path = directory / "part.onnx"
        job.compiler.write_model(
            graph,
            path,
            job.unquantized_weights,
            target=job.compiler.get_target("ort-cpu"),
            opset=job.compiler.get_default_opset(),
            weights_as="copy",
            dtype="",
            metadata=None,
            verify_load=False,
            sidecar_files=(),
        )
        yield backend.load_runner().read_model(path).open("cpu")


def _build_calibration_inputs(job: LoweringJob) -> ModelInputs:
    """Return the inputs of the full-forward graph that a calibration sample may provide."""
    generation = job.model.generation
    return build_model_inputs(
        job.graph,
        job.preprocessing,
        None if job.options.inline_defaults else job.model.defaults,
        generation.sequence_input if generation else "",
    )
