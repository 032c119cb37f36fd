"""Weights of 4 bits rounded by what the model does with inputs, where there are any: those
of a file, or texts of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from specc import backend
from specc.calibrate.given import Entrance, entrance_of, given_samples
from specc.calibrate.own import no_texts, own_samples
from specc.calibrate.products import Factors, Sample, Samples, factors_of
from specc.calibrate.readers import Readers, readers_of, tapped
from specc.compiler.compiled import Compiled
from specc.compiler.job import Job
from specc.compiler.rounding import NONE, Asked, By
from specc.files.read import shown
from specc.files.scratch import scratch
from specc.text.diagnostic import Failed, fail
from specc.weights.values import Seeded, ties_of

USUAL = 64
"""Texts that a model writes to be rounded by."""
Package = Callable[[Job], Compiled]
"""Writes the package of a job."""


@contextmanager
def calibrated(job: Job, package: Package) -> Iterator[Job]:
    """The job, its weights of 4 bits rounded by samples where that is asked for, or is
    usual. `package` writes a model that writes.

    Fails with E0753 for options that mean nothing here, E0854 and E0859 for samples.
    """
    plan, by = job.precision.plan, job.rounding.by
    readers = readers_of(job.simplified, plan, ties_of(job.values))
    if not readers.spots:
        yield replace(job, remarks=(*job.remarks, *_idle(by)))
        return
    with scratch() as folder:
        samples, told = _samples(job, package, folder)
        if samples is None:
            yield replace(job, recipe=told)
            return
        factors = _factors(job, readers, samples, folder)
        yield replace(job, factors=factors, recipe=told)


def _idle(by: By) -> tuple[str, ...]:
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
    fail(
        "E0753",
        told,
        helps=["add `--quantize int4`", "small maps have them by `--quantize-all`"],
    )


def _samples(job: Job, package: Package, folder: Path) -> tuple[Samples | None, str]:
    """What the model is run on, and a line that says so; None where weights are rounded
    by themselves.
    """
    by, entrance = job.rounding.by, _entrance(job)
    nearest = "weights of 4 bits are rounded to the nearest"
    if by.calibrate:
        # its name alone: this line is kept in the model, which may go elsewhere
        name = shown(Path(by.calibrate).name)
        told = f"weights of 4 bits are rounded by `{name}` (GPTQ)"
        return lambda: given_samples(by.calibrate, entrance), told
    if by.samples == 0:
        return None, nearest
    if by.samples is None and isinstance(job.values, Seeded):
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
    return lambda: texts, told


def _texts(job: Job, package: Package, folder: Path, count: int) -> list[Sample]:
    """What the model writes with all its bits."""
    if job.model.generation is None:
        no_texts()
    options = replace(
        job.options,
        output=str(folder / "writes"),
        parts=("encode", "step"),
        names="specc",
        dtype="",
        taps=(),
        settings={},
        target="ort-cpu",
        opset=0,
        weights_as="",
        precision=Asked(kind=NONE),
    )
    package(replace(job, options=options, forms=[]))
    return list(own_samples(folder / "writes", _entrance(job), count))


def _factors(job: Job, readers: Readers, samples: Samples, folder: Path) -> Factors:
    """What the samples say of each weight."""
    path = folder / "reads.onnx"
    job.compiler.package(
        tapped(job.simplified, readers.values),
        path,
        job.values,
        target=job.compiler.target("ort-cpu"),
        opset=job.compiler.USUAL,
        weights_as="copy",
        dtype="",
        metadata=None,
        load=False,
        beside=(),
    )
    session = backend.runner().read_model(path).open("cpu")
    return factors_of(session, readers, samples, folder)


def _entrance(job: Job) -> Entrance:
    """What may be given to the whole graph, before it is compiled."""
    generation = job.model.generation
    return entrance_of(
        job.graph,
        job.reading,
        None if job.options.defaults_inside else job.model.defaults,
        generation.growing if generation else "",
    )
