"""`specc compile`: a spec to an ONNX model on disk, with its weights and its manifest,
all of it or nothing.
"""

from collections.abc import Mapping

from specc.artifact.manifest import DOC, KEY
from specc.backend import Emitted
from specc.compiler.calibrating import calibrated
from specc.compiler.compiled import Compiled
from specc.compiler.job import (
    Job,
    Options,
    files_read,
    manifest_of,
    open_job,
    report_of,
)
from specc.compiler.package import write_folder
from specc.compiler.spec import Spec
from specc.data.tokenizer import SUFFIX
from specc.files.place import MODEL, place
from specc.files.write import plain_stem


def compile_spec(spec: Spec, options: Options) -> Compiled:
    """Elaborate, bind the weights, lower, write. Fails with a diagnostic of the stage
    that cannot go on.
    """
    with open_job(spec, options) as job, calibrated(job, write_folder) as ready:
        return _compiled(ready)


def _compiled(job: Job) -> Compiled:
    path = place(
        job.options.output, MODEL, inputs=files_read(job), force=job.options.force
    )
    job = job.with_reading(job.reading.placed(plain_stem(path.stem)))
    # a file without a span has no text to keep, and is listed all the same
    sources = {**dict.fromkeys(_paths(job), ""), **job.sources}

    def texts(emitted: Emitted) -> Mapping[str, str]:
        told = manifest_of(job, job.told, emitted, sources=sources)
        return {KEY: told.dump(), DOC: told.doc}

    written = job.compiler.package(
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
    return report_of(job, written)


def _paths(job: Job) -> list[str]:
    return [module.path for module in job.spec.library.modules.values()]
