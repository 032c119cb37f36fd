"""The width that a model computes in: that of its stored matrices, where a target computes
in 16 bits at all.
"""

from typing import get_args

from specc.ir import ops
from specc.ir.derived import Derived, Generating
from specc.ir.graph import Graph
from specc.ir.precision import Plan
from specc.ir.target import Target
from specc.passes import pipeline
from specc.passes.narrow.narrow import Half
from specc.passes.quantize.layers import source
from specc.weights.fitting import Narrow


def half_of(dtype: str, target: Target) -> Half | None:
    """The type of 16 bits that `--dtype` asks `target` to compute in, if it can."""
    known: tuple[Half, ...] = get_args(Half)
    return next((h for h in known if h == dtype and h in target.computes), None)


def read_narrow(
    graph: Graph, plan: Plan, dtype: str, target: Target
) -> dict[str, Narrow]:
    """The parameters of f32 that a graph computes with in 16 bits, in whatever bits they
    are stored; of weights rounded by `plan` the scales, which the numbers are as large as.
    """
    half = half_of(dtype, target)
    if half is None:
        return {}
    graph = pipeline.quantize(pipeline.narrow(graph, half), plan)
    rounded = {form.scales(name): name for name, form in plan.items()}
    # 7 is the greatest of 4 bits, -8 the farthest from zero
    most = {4: 8.0, 8: 127.0}
    names = {value: name for name, value in graph.parameters.items()}
    found: dict[str, Narrow] = {}
    for node, _ in graph.nodes:
        read = source(node.args[0]) if node.op == ops.Cast(half) else None
        name = names.get(read) if read else None
        if name is None:
            continue
        weight = rounded.get(name, name)
        size = most[plan[weight].bits] if name in rounded else 1.0
        found[name] = Narrow(half, weight, size)
    return found


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
