"""What `specc show --format json` says of a graph: the tree as plain values."""

from collections.abc import Mapping

from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.passes.measure.outline import Part, outline


def told_graph(graph: Graph, at: Mapping[str, int], own: Dim) -> dict[str, object]:
    """A graph with its inputs, results and parts; `own` is how many numbers its weights have.

    Lengths and counts that are known are numbers, others formulas such as `4*seq^2`.
    """
    return {
        "graph": graph.name,
        "inputs": [_typed(n, v.type, at) for n, v in graph.inputs.items()],
        "results": [_typed(n, v.type, at) for n, v in graph.outputs.items()],
        "parameters": own.number,
        "tree": _part(outline(graph, at), at),
    }


def _part(part: Part, at: Mapping[str, int]) -> dict[str, object]:
    """A scope; `times` layers like it are counted in its numbers."""
    work = part.all_work()
    return {
        "name": part.name,
        "op": part.op if not part.parts else "",
        "times": part.times,
        "shape": [_plain(d, at) for d in part.type.shape] if part.type else None,
        "weights": _plain(part.all_weights(), at),
        "multiply_adds": _plain(work - part.all_spared(), at),
        "all_at_once": _plain(work, at),
        "parts": [_part(inner, at) for inner in part.parts.values()],
    }


def _typed(name: str, type: Type, at: Mapping[str, int]) -> dict[str, object]:
    shape = [_plain(dim, at) for dim in type.shape]
    return {"name": name, "dtype": type.dtype, "shape": shape}


def _plain(dim: Dim, at: Mapping[str, int]) -> int | str:
    """A number, or a formula in the notation of the language."""
    dim = dim.substitute(at)
    return str(dim) if dim.number is None else dim.number
