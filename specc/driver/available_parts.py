"""Which parts of a package a model has."""

from dataclasses import replace

from specc.diagnostics.diagnostic import Failed
from specc.driver.compile_job import CompileJob
from specc.driver.generation_graphs import (
    check_standalone,
    choose_settings,
    require_generation,
    vocabulary_size,
)


def drop_unavailable_parts(job: CompileJob) -> tuple[CompileJob, tuple[str, ...]]:
    """Return the job without the parts that cannot be made of its model, and a remark
    that says why, where there are some.

    A model that generates nothing has only `score`; a streaming model, one whose settings
    a graph cannot follow, and a target that cannot run loops have no `generate`.
    """
    model, parts = job.model, job.options.parts
    if model.generation is None and model.streaming is None:
        parts = tuple(part for part in parts if part == "score")
        why = f"`{model.name}` does not say what it generates"
    elif model.generation is None:
        why = f"`{model.name}` is streamed"
    elif not job.target.decodes:
        why = f"`{job.target.name}` cannot run a model that decodes by itself"
    elif not (why := _unavailable(job)):
        return job, ()
    parts = tuple(part for part in parts if part != "generate")
    left = [part for part in job.options.parts if part not in parts]
    remark = f"not written: {', '.join(left)}; {why}"
    return replace(job, options=replace(job.options, parts=parts)), (remark,)


def _unavailable(job: CompileJob) -> str:
    """Return why there can be no graph that decodes by itself; empty where there can."""
    try:
        vocabulary_size(job.model.graph, require_generation(job.model))
        check_standalone(choose_settings(job))
    except Failed as failed:
        return failed.diagnostics[0].title
    return ""
