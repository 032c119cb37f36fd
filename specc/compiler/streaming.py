"""From a graph whose input comes row by row to what a program that streams needs: the
step, what is computed once before it, and the facts beside them.
"""

from dataclasses import dataclass

from specc.artifact.facts import Chunks, Facts
from specc.compiler.generating import chance_of, lengths_of, limit_of, signature_of
from specc.compiler.job import Job
from specc.ir.derived import Derived
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.interval import SAME
from specc.ir.model import Generation, Streaming
from specc.passes import pipeline
from specc.passes.prove.causality import growing_symbol
from specc.passes.prove.flow import flow


@dataclass(frozen=True)
class Stream:
    """A graph taken apart, whose step takes `chunk` rows of `streaming.growing`, or
    several times as many.
    """

    streaming: Streaming
    derived: Derived
    chunk: int


def streamed(job: Job, streaming: Streaming) -> Stream:
    """The step for the results that are streamed, and for those that can be had beside
    them.

    Fails with the proof's errors, E0711 to E0718, where a row of them waits for rows
    that come later.
    """
    work = pipeline.run(
        pipeline.Work(
            graph=job.simplified,
            defaults=job.model.defaults,
            streaming=streaming,
            rows="new",
        ),
        pipeline.DERIVE,
    )
    assert work.derived is not None, "`encode` is the last pass"
    return Stream(streaming, work.derived, work.chunk)


def stream_facts(job: Job, stream: Stream) -> Facts:
    """What the program that streams has to know."""
    growing, derived, graph = stream.streaming.growing, stream.derived, job.simplified
    limit = limit_of(job, graph)
    return Facts(
        generation=Generation(job.model.name, growing, stream.streaming.sources[0]),
        signature=signature_of(job, graph),
        defaults=job.model.defaults,
        reading=job.reading,
        states=derived.states,
        handed=derived.handed,
        whole=derived.whole,
        context=limit.most if limit else None,
        table=limit.table if limit else "",
        chance=chance_of(job),
        bounds=lengths_of(job, graph),
        chunks=Chunks(
            stream.chunk,
            _made(graph, growing, derived.step),
            _alone(job.model.defaults, growing),
        ),
    )


def _alone(defaults: Graph | None, growing: str) -> tuple[str, ...]:
    """The inputs whose default for a row follows from that row alone: of a piece of a
    stream it is what it is of all.
    """
    if defaults is None or growing not in defaults.inputs:
        return ()
    symbol = growing_symbol(defaults, growing)
    if symbol is None:
        return ()
    states = flow(defaults, symbol)
    return tuple(
        name
        for name, value in defaults.outputs.items()
        if [*states.state(value).axes.values()] == [SAME]
    )


def _made(graph: Graph, growing: str, step: Graph) -> dict[str, Dim]:
    """How many rows the whole graph makes of each result that a step gives, where that
    depends on how many come in.
    """
    symbol = growing_symbol(graph, growing)
    lengths = {name: value.type.shape for name, value in graph.outputs.items()}
    return {
        name: next(d for d in lengths[name] if symbol in d.symbols())
        for name in step.outputs
        if name in lengths and any(symbol in d.symbols() for d in lengths[name])
    }
