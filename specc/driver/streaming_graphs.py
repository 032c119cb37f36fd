"""Step graph of streaming inference and its metadata."""

from dataclasses import dataclass

from specc.analysis.causality import find_time_symbol
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.artifact.generation_facts import GenerationFacts, StreamChunks
from specc.driver.generation_graphs import (
    fixed_lengths,
    position_limit,
    random_weights_of,
    spec_signature,
)
from specc.driver.lowering_job import LoweringJob
from specc.ir.derived_graphs import DerivedGraphs
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.interval import SAME_POSITION
from specc.ir.model import GenerateSection, StreamSection
from specc.transforms import pass_pipeline


@dataclass(frozen=True)
class StreamGraphs:
    """Derived graphs of a streaming model.

    One step takes `chunk` time steps of `streaming.growing`, or a multiple of that.
    """

    streaming: StreamSection
    derived: DerivedGraphs
    chunk: int


def derive_streaming_graphs(job: LoweringJob, streaming: StreamSection) -> StreamGraphs:
    """Derive the step graph that computes the streamed outputs chunk by chunk.

    Raise E0711 to E0718 if an output depends on later time steps.
    """
    work = pass_pipeline.run_passes(
        pass_pipeline.PassState(
            graph=job.simplified, defaults=job.model.defaults, streaming=streaming, rows="new"
        ),
        pass_pipeline.DERIVE_PASSES,
    )
    assert work.derived is not None, "`encode` is the last pass"
    return StreamGraphs(streaming, work.derived, work.chunk)


def streaming_facts(job: LoweringJob, stream: StreamGraphs) -> GenerationFacts:
    """Return the metadata that the streaming runtime needs."""
    growing, derived, graph = stream.streaming.growing, stream.derived, job.simplified
    limit = position_limit(job, graph)
    return GenerationFacts(
        generation=GenerateSection(job.model.name, growing, stream.streaming.sources[0]),
        signature=spec_signature(job, graph),
        defaults=job.model.defaults,
        reading=job.reading,
        states=derived.states,
        handed=derived.handed,
        whole=derived.whole,
        context=limit.most if limit else None,
        table=limit.table if limit else "",
        chance=random_weights_of(job),
        bounds=fixed_lengths(job, graph),
        chunks=StreamChunks(
            stream.chunk,
            _output_lengths(graph, growing, derived.step),
            _pointwise_defaults(job.model.defaults, growing),
        ),
    )


def _pointwise_defaults(defaults: Graph | None, growing: str) -> tuple[str, ...]:
    """Return the inputs whose default at a time step depends on that time step alone, so
    that the default of a chunk is a slice of the default of the whole input.
    """
    if defaults is None or growing not in defaults.inputs:
        return ()
    symbol = find_time_symbol(defaults, growing)
    if symbol is None:
        return ()
    states = trace_time_dataflow(defaults, symbol)
    return tuple(
        name
        for name, value in defaults.outputs.items()
        if [*states.state(value).axes.values()] == [SAME_POSITION]
    )


def _output_lengths(graph: Graph, growing: str, step: Graph) -> dict[str, Dim]:
    """Return the output length as a function of the input length, for each output of the
    step whose length depends on it.
    """
    symbol = find_time_symbol(graph, growing)
    lengths = {name: value.type.shape for name, value in graph.outputs.items()}
    return {
        name: next(d for d in lengths[name] if symbol in d.symbols())
        for name in step.outputs
        if name in lengths and any(symbol in d.symbols() for d in lengths[name])
    }
