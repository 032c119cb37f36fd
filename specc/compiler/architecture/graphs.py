"""The graphs of a model that writes, beside the whole: what is computed once, and a step."""

from specc.compiler.generating import derived_of
from specc.ir.graph import Graph
from specc.ir.model import Model

WHOLE = "whole"


def graphs_of(model: Model) -> dict[str, Graph]:
    """The graph of a spec, and those that are derived from it where it says `generate`.

    Fails with the proof's errors, E0711 to E0718, where it cannot be generated.
    """
    found = {WHOLE: model.graph}
    if model.generation is not None:
        derived = derived_of(model.graph, model.generation, defaults=model.defaults)
        if derived.encode is not None:
            found["encode"] = derived.encode
        found["step"] = derived.step
    return found
