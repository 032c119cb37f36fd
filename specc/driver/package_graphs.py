"""The graphs of a package, each derived from the simplified graph of one spec."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.backend import ExtraFile, PackageGraph
from specc.diagnostics.diagnostic import raise_error
from specc.driver.generation_graphs import (
    build_generator_source,
    derive_graphs,
    generation_facts,
    require_generation,
    writes_tokens,
)
from specc.driver.lowering_job import LoweringJob
from specc.driver.model_manifest import describe_generator, describe_graph
from specc.driver.precision import convert_generator_dtype
from specc.driver.profiles.export_profile import ROWS, apply_profile
from specc.driver.quantize_option_checks import fail_no_int8_cache
from specc.driver.streaming_graphs import derive_streaming_graphs, streaming_facts
from specc.ir.derived_graphs import DerivedGraphs, KVBufferGraph, SelfDecodingGraph
from specc.ir.graph import Graph
from specc.ir.model import StreamSection
from specc.transforms import pass_pipeline


@dataclass(frozen=True)
class PackageContents:
    """Contents of a package: graphs by role, further files, and the generation metadata in
    `specc.json`.
    """

    graphs: Mapping[str, PackageGraph]
    extras: tuple[ExtraFile, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


def build_package_graphs(job: LoweringJob) -> PackageContents:
    """Build the requested graphs and what goes with them.

    Raise E0701 if the spec does not generate, E0711 to E0718 if it is not causal, E0977 for
    generation options of a streaming model.
    """
    wanted = job.options.parts
    graphs: dict[str, PackageGraph] = {}
    if "score" in wanted:
        about = describe_graph(job, job.documented, whole=True)
        graphs["score"] = PackageGraph(job.convert_dtype(job.simplified), "score.onnx", about)
    # the full forward alone needs no causality proof
    if wanted == ("score",):
        return PackageContents(graphs)
    if job.model.generation is None and job.model.streaming is not None:
        return _add_streaming_graphs(job, job.model.streaming, graphs)
    return _add_generation_graphs(job, graphs)


def build_generator(job: LoweringJob, derived: DerivedGraphs | None = None) -> SelfDecodingGraph:
    """Return a self-contained generator in the compute dtype of the target; `derived` are
    the derived graphs of the simplified graph if they exist already.
    """
    source = build_generator_source(job, job.simplified, derived)
    return convert_generator_dtype(source, job.options.dtype, job.target)


def _add_generation_graphs(job: LoweringJob, graphs: dict[str, PackageGraph]) -> PackageContents:
    """Add the graphs of a generative model."""
    wanted, ours = job.options.parts, job.options.names == "specc"
    generation = require_generation(job.model)
    derived = derive_graphs(
        job.simplified,
        generation,
        ROWS[job.options.names],
        bounded=ours,
        defaults=job.model.defaults,
        begins=ours,
    )
    extras: tuple[ExtraFile, ...] = ()
    buffers: tuple[str, ...] = ()
    if {"encode", "step"} & set(wanted):
        converted = job.convert_derived_dtype(derived)
        exported = apply_profile(job.options.names, job.model, converted)
        graphs |= {stem: _build_derived(job, stem, g) for stem, g in exported.graphs.items()}
        extras = tuple(ExtraFile.of_data(n, data) for n, data in exported.files.items())
        # only our runtime feeds preallocated buffers; others get caches that grow
        if ours:
            step = exported.graphs["step"]
            graphs["step"], buffers = _build_buffered_step(job, step, converted)
    facts = _build_runtime_metadata(job, derived, buffers) if ours else {}
    if "generate" in wanted:
        # other profiles need other logits, so their derived graphs are not those of `generate`
        source = build_generator(job, derived if ours else None)
        about = describe_generator(job, source)
        graphs["generate"] = PackageGraph(source, "generate.onnx", about)
    return PackageContents(graphs, extras, facts)


def _build_runtime_metadata(
    job: LoweringJob, derived: DerivedGraphs, buffers: tuple[str, ...]
) -> Mapping[str, object]:
    """Return the metadata for our generation runtime; empty if the model emits no tokens."""
    if not writes_tokens(job.model.graph, require_generation(job.model)):
        return {}
    converted = job.convert_derived_dtype(derived)
    return generation_facts(job, job.simplified, converted, buffers).dump()


def _add_streaming_graphs(
    job: LoweringJob, streaming: StreamSection, graphs: Mapping[str, PackageGraph]
) -> PackageContents:
    """Add the graphs of a streaming model, which only our runtime can feed. Raise E0977 for
    options that apply to generation alone.
    """
    other = job.options.names if job.options.names != "specc" else ""
    if other or "generate" in job.options.parts:
        asked = f"--io-names {other}" if other else "--graphs generate"
        raise_error(
            "E0977",
            f"`{asked}` is for generative models, and `{job.model.name}` is a streaming model",
            notes=[f"`{streaming.growing}` is an input stream, not generated"],
            helps=["compile it with `--graphs score,step`"],
        )
    stream = derive_streaming_graphs(job, streaming)
    derived = {"encode": stream.derived.encode, "step": stream.derived.step}
    added = {stem: _build_derived(job, stem, g) for stem, g in derived.items() if g is not None}
    return PackageContents({**graphs, **added}, facts=streaming_facts(job, stream).dump())


def _build_derived(job: LoweringJob, stem: str, graph: Graph) -> PackageGraph:
    return PackageGraph(graph, f"{stem}.onnx", describe_graph(job, graph, whole=False))


def _build_buffered_step(
    job: LoweringJob, step: Graph, derived: DerivedGraphs
) -> tuple[PackageGraph, tuple[str, ...]]:
    """Return the step graph with in-place KV buffers where the target supports them, and the
    names of these inputs.
    """
    caches = job.compiler.find_kv_buffers(step, derived.states, job.target, job.opset)
    # none: the target cannot write in place, or no attention matches its kernel
    if not caches:
        # the scales were calibrated on a package with default options, which had buffers
        if job.scales:
            why = "no attention writes into a KV buffer with these options"
            fail_no_int8_cache(why, job.quantize.cache.span)
        return _build_derived(job, "step", step), ()
    if job.scales:
        step = pass_pipeline.apply_int8_kv_cache(step, caches)
    source = KVBufferGraph(step, caches)
    about = describe_graph(job, step, whole=False)
    return PackageGraph(source, "step.onnx", about), source.names
