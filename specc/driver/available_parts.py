"""Select which graphs of a package can be built for a model."""

from dataclasses import replace

from specc.diagnostics.diagnostic import Failed
from specc.driver.compile_job import CompileJob
from specc.driver.compile_options import PACKAGE_GRAPHS
from specc.driver.generation_graphs import (
    check_standalone,
    choose_settings,
    require_generation,
    vocabulary_size,
)


def drop_unavailable_parts(job: CompileJob) -> tuple[CompileJob, tuple[str, ...]]:
    """Return the job of `--graphs all` without the graphs that its model does not support,
    and a remark that says which were skipped and why.

    A model without a `generate` section has only `score`. A streaming model has no
    `generate`, nor has a model whose generation settings cannot be exported, or a target
    that cannot run loops.
    """
    model, parts = job.model, job.options.parts
    # generation settings given as options need the `generate` graph
    if parts != PACKAGE_GRAPHS or job.options.settings:
        return job, ()
    if model.generation is None and model.streaming is None:
        parts = tuple(part for part in parts if part == "score")
        why = f"`{model.name}` has no `generate` section"
    elif model.generation is None:
        why = f"`{model.name}` is a streaming model"
    elif not job.target.decodes:
        why = f"`{job.target.name}` cannot run a generation loop inside a graph"
    elif not (why := _explain_no_generate_graph(job)):
        return job, ()
    parts = tuple(part for part in parts if part != "generate")
    left = [part for part in job.options.parts if part not in parts]
    remark = f"not exported: {', '.join(left)}; {why}"
    return replace(job, options=replace(job.options, parts=parts)), (remark,)


def _explain_no_generate_graph(job: CompileJob) -> str:
    """Return why the self-contained `generate` graph cannot be built; empty if it can."""
    try:
        vocabulary_size(job.model.graph, require_generation(job.model))
        check_standalone(choose_settings(job))
    except Failed as failed:
        return failed.diagnostics[0].title
    return ""
