"""The width that a model computes in: that of its stored matrices, where a target computes
in 16 bits at all.
"""

from typing import get_args

from specc.ir.derived import Derived, Generating
from specc.ir.graph import Graph
from specc.ir.target import Target
from specc.passes import pipeline
from specc.passes.narrow.narrow import Half


def half_of(dtype: str, target: Target) -> Half | None:
    """The type of 16 bits that `--dtype` asks `target` to compute in, if it can."""
    known: tuple[Half, ...] = get_args(Half)
    return next((h for h in known if h == dtype and h in target.computes), None)


def graph_in(graph: Graph, dtype: str, target: Target) -> Graph:
    """A graph in that width; itself where the target computes in f32 whatever is stored."""
    half = half_of(dtype, target)
    return graph if half is None else pipeline.narrow(graph, half)


def derived_in(derived: Derived, dtype: str, target: Target) -> Derived:
    """A graph taken apart in that width, keys and values between its steps too."""
    half = half_of(dtype, target)
    return derived if half is None else pipeline.derived_narrow(derived, half)


def generating_in(source: Generating, dtype: str, target: Target) -> Generating:
    """What decodes by itself, in that width."""
    return Generating(
        graph_in(source.graph, dtype, target),
        derived_in(source.derived, dtype, target),
        source.decoding,
        source.defaults,
    )
