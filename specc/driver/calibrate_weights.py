"""Calibrate int4 weights and int8 KV caches with given or self-generated samples."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NoReturn

from specc import backend
from specc.backend import Computation
from specc.calibration.calibration_data import (
    ModelInputs,
    fail_no_generated_text,
    generate_samples,
    model_inputs_of,
    read_calibration_samples,
)
from specc.calibration.gram_matrices import Sample, Samples, quantize_calibrated
from specc.calibration.kv_cache_scales import measure_cache_scales
from specc.calibration.weight_readers import WeightReaders, find_weight_readers, input_width
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.driver.compile_job import CompileJob
from specc.driver.compile_report import CompileReport
from specc.driver.quantize_section import NONE, CacheOption, CalibrationSource, QuantizeOptions
from specc.io.atomic_write import check_free_disk_space
from specc.io.safe_read import escape_text
from specc.io.temporary_files import create_temporary_directory
from specc.ir.graph import Graph
from specc.transforms.quantize_kv_cache import STATE_SCALE_SUFFIX
from specc.weights.parameter_values import SeededValues, find_ties
from specc.weights.quantized_values import FactorOf, PrequantizedWeight, quantize_to_files

USUAL = 64
"""Texts that a model writes to be rounded by."""
LARGE = 8 << 30
"""Bytes of weights in float32: a model of more writes with them rounded to the nearest, as
it is to be rounded, so that it fits where the result does.
"""
Package = Callable[[CompileJob], CompileReport]
"""Writes the package of a job."""


@contextmanager
def calibrate_job(job: CompileJob, package: Package) -> Iterator[CompileJob]:
    """The job, its weights of 4 bits and its states of 8 rounded by samples where that is
    asked for, or is usual. `package` writes a model that writes.

    Fails with E0753 for options that mean nothing here, E0854 and E0859 for samples,
    E0951 where no state can have 8 bits.
    """
    plan, by = job.precision.plan, job.rounding.by
    readers = find_weight_readers(job.simplified, plan, find_ties(job.values))
    cached = job.rounding.cache
    why = explain_no_int8_cache(job) if cached.kind else ""
    if why and cached.span is None:
        fail_no_int8_cache(why, cached)
    if not readers.spots and (why or not cached.kind):
        yield replace(job, remarks=(*job.remarks, *_idle(by), *_unkept(why)))
        return
    with create_temporary_directory() as folder:
        if readers.spots:
            job = _by_inputs(job, readers, package, folder)
        if why or not cached.kind:
            yield replace(job, remarks=(*job.remarks, *_unkept(why)))
        else:
            yield _with_scales(job, package, folder)


def _by_inputs(
    job: CompileJob, readers: WeightReaders, package: Package, folder: Path
) -> CompileJob:
    """The job with weights of 4 bits rounded by what they are multiplied by."""
    samples, told = _samples(job, package, folder)
    if samples is None:
        return replace(job, recipe=told)
    ready = _rounded(job, readers, samples, folder)
    return replace(job, ready=ready, recipe=told)


def _with_scales(job: CompileJob, package: Package, folder: Path) -> CompileJob:
    """The job with the scales of states, measured on inputs that are given or on texts of
    its own. E0951 where no state can be kept by them.
    """
    by = job.rounding.by
    path = _writes(job, package, folder)
    if by.calibrate:
        samples: Iterable[Sample] = _given(by, _entrance(job))
        told = f"`{escape_text(Path(by.calibrate).name)}`"
    else:
        count = by.samples or USUAL
        samples = generate_samples(path, _entrance(job), count)
        told = f"{count} texts of the model's own"
    scales = measure_cache_scales(path, samples)
    if not scales:
        why = "no attention of this model writes into buffers; --explain says why"
        fail_no_int8_cache(why, job.rounding.cache)
    line = f"keys and values are kept in 8 bits, by scales of {told}"
    named = {name + STATE_SCALE_SUFFIX: array for name, array in scales.items()}
    return replace(job, scales=named, remarks=(*job.remarks, line))


def explain_no_int8_cache(job: CompileJob) -> str:
    """Why nothing of what is made keeps keys and values in 8 bits; empty where it does."""
    options = job.options
    if job.model.generation is None:
        return "only what writes texts keeps any"
    if "step" not in options.parts:
        return "only a step keeps any: add `--for step`"
    if options.names != "specc":
        return f"programs that read `--names {options.names}` know no such states"
    # a card's kernel takes no mask beside keys of 8 bits
    if "f32" not in job.target.in_place:
        return f"`{job.target.name}` has no attention that reads them"
    by = job.rounding.by
    # without texts there may still be inputs in a file
    if by.samples == 0 and (by.option or by.span) and not by.calibrate:
        said = "--samples 0" if by.option else "samples = 0"
        return f"their scales are measured on texts, and `{said}` writes none"
    return ""


def _unkept(why: str) -> tuple[str, ...]:
    """That a spec's word about keys and values is for other graphs than are made now."""
    return (f"`cache` in the spec: they stay as they are; {why}",) if why else ()


def fail_no_int8_cache(why: str, cached: CacheOption) -> NoReturn:
    """E0951, at the spec's word where it asked for it."""
    mend = "compile with `--cache none`" if cached.span else "leave out `--cache`"
    raise_error(
        "E0951",
        "keys and values cannot be kept in 8 bits",
        cached.span,
        "asked for here" if cached.span else "",
        notes=[why],
        helps=[mend],
    )


def _idle(by: CalibrationSource) -> tuple[str, ...]:
    """That what is to be rounded by is of no use, where no linear map has 4 bits. E0753
    where an option asks for it; a spec may be compiled with fewer bits another time.
    """
    # no texts at all are no reason to complain
    if not by.samples and not by.calibrate:
        return ()
    word = by.option or ("calibrate" if by.calibrate else "samples")
    told = f"`{word}` is for weights of 4 bits, and no linear map has any"
    if not by.option:
        return (told,)
    raise_error(
        "E0753", told, helps=["add `--quantize int4`", "small maps have them by `--quantize-all`"]
    )


def _given(by: CalibrationSource, entrance: ModelInputs) -> Iterator[Sample]:
    """Runs of the inputs in a file. E0802, at its line where the spec names it."""
    if by.span and not Path(by.calibrate).is_file():
        name = escape_text(Path(by.calibrate).name)
        raise_error(
            "E0802",
            f"the inputs `{name}` that the spec names are not there",
            by.span,
            "no such file beside the spec",
            helps=["name others: --calibrate FILE", "or leave out `calibrate`"],
        )
    return read_calibration_samples(by.calibrate, entrance)


def _samples(job: CompileJob, package: Package, folder: Path) -> tuple[Samples | None, str]:
    """What the model is run on, and a line that says so; None where weights are rounded
    by themselves.
    """
    by, entrance = job.rounding.by, _entrance(job)
    nearest = "weights of 4 bits are rounded to the nearest"
    if by.calibrate:
        # its name alone: this line is kept in the model, which may go elsewhere
        name = escape_text(Path(by.calibrate).name)
        told = f"weights of 4 bits are rounded by `{name}` (GPTQ)"
        return lambda: _given(by, entrance), told
    if by.samples == 0:
        return None, nearest
    if by.samples is None and isinstance(job.values, SeededValues):
        return None, f"{nearest}: they are drawn, and nothing was learned"
    writes = job.model.generation is not None
    if not writes and by.samples is None:
        return None, f"{nearest}; `--calibrate FILE` rounds them by inputs"
    count = USUAL if by.samples is None else by.samples
    try:
        texts = _texts(job, package, folder, count)
    except Failed:
        # whoever asks for texts is told why there are none
        if by.samples is not None:
            raise
        return None, f"{nearest}: it cannot write one token after another"
    told = f"weights of 4 bits are rounded by {count} texts of the model's own (GPTQ)"
    # so many numbers are written by what they become, which a reader may want to know
    low = ", which it wrote with weights rounded to the nearest" if _large(job) else ""
    return lambda: texts, told + low


def _texts(job: CompileJob, package: Package, folder: Path, count: int) -> list[Sample]:
    """What the model writes."""
    path = _writes(job, package, folder)
    return list(generate_samples(path, _entrance(job), count))


def _writes(job: CompileJob, package: Package, folder: Path) -> Path:
    """The package that writes, with all its bits unless it is large; it is written once.
    E0859 where the model does not write.
    """
    if job.model.generation is None:
        fail_no_generated_text()
    path = folder / "writes"
    if path.exists():
        return path
    options = replace(
        job.options,
        output=str(path),
        parts=("encode", "step"),
        names="specc",
        dtype="",
        taps=(),
        settings={},
        target="ort-cpu",
        opset=0,
        weights_as="",
        precision=_writing(job),
    )
    package(replace(job, options=options, forms=[]))
    return path


def _writing(job: CompileJob) -> QuantizeOptions:
    """How the weights of the model that writes are rounded."""
    if not _large(job):
        return QuantizeOptions(kind=NONE)
    return replace(job.options.precision, samples=0, calibrate="", cache="")


def _large(job: CompileJob) -> bool:
    """Whether a model with all its bits takes more than many machines have."""
    shapes = {n: wanted.shape for n, wanted in job.values.wanted.items()}
    return 4 * sum(map(prod, shapes.values())) > LARGE


def _rounded(
    job: CompileJob, readers: WeightReaders, samples: Samples, folder: Path
) -> dict[str, PrequantizedWeight]:
    """The weights that meet values of the samples, rounded by these."""
    plan, shapes = job.precision.plan, job.values.wanted
    numbers = sum(prod(shapes[n].shape) for n in readers.experts)
    # half a byte each, and of the smallest blocks a quarter of one for the scale
    check_free_disk_space(folder, numbers * 3 // 4 + _of_stacks(readers))

    def round_one(name: str, factor: FactorOf, stem: Path) -> PrequantizedWeight:
        return quantize_to_files(job.full, name, plan[name], factor, stem)

    def open_part(graph: Graph) -> AbstractContextManager[Computation]:
        return _opened(job, graph)

    return quantize_calibrated(open_part, readers, samples, folder, round_one)


def _of_stacks(readers: WeightReaders) -> int:
    """The most bytes of factors that the experts of one stack wait for together."""
    waiting = Counter[str]()
    for spot, matrices in readers.spots.items():
        for name in {m.name for m in matrices if readers.experts[m.name] > 1}:
            waiting[name] += 8 * input_width(spot) ** 2
    return max(waiting.values(), default=0)


@contextmanager
def _opened(job: CompileJob, graph: Graph) -> Iterator[Computation]:
    """A part of the model with all its bits, ready to run; its file is gone afterwards."""
    with create_temporary_directory() as folder:
        path = folder / "part.onnx"
        job.compiler.write_model(
            graph,
            path,
            job.full,
            target=job.compiler.get_target("ort-cpu"),
            opset=job.compiler.DEFAULT_OPSET,
            weights_as="copy",
            dtype="",
            metadata=None,
            load=False,
            beside=(),
        )
        yield backend.load_runner().read_model(path).open("cpu")


def _entrance(job: CompileJob) -> ModelInputs:
    """What may be given to the whole graph, before it is compiled."""
    generation = job.model.generation
    return model_inputs_of(
        job.graph,
        job.reading,
        None if job.options.defaults_inside else job.model.defaults,
        generation.growing if generation else "",
    )
