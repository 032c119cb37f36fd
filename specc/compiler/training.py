"""A spec with numbers to be trained: its graph as PyTorch is to compute it, where each
parameter starts, and how its inputs and results are read.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from specc.compiler import reading as readings
from specc.compiler.generation_file import as_published
from specc.compiler.rules import own_weights
from specc.compiler.spec import Spec, elaborated
from specc.compiler.weights import Sources, values_of
from specc.data.reading import Reading
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.model import Generation
from specc.passes import pipeline
from specc.text.diagnostic import Diagnostic, Failed
from specc.weights.values import Binding, Seeded, array_of


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """What is trained. `values` holds numbers of parameters that share no other's, `ties`
    which other's the rest share. `defaults` computes inputs that may be left out.
    """

    graph: Graph
    values: Mapping[str, Array]
    ties: Mapping[str, str]
    defaults: Graph | None
    reading: Reading
    generation: Generation | None
    warnings: tuple[Diagnostic, ...] = ()


def trainee(spec: Spec, sources: Sources, graph: str = "") -> Trainee:
    """The spec to be trained, from a checkpoint, its own weights or a seed; where nothing
    says which, from the seed 0. Fails as `compile` does.
    """
    weights = sources.path or spec.checkpoint
    folders = readings.folders_of(weights, spec.config_file)
    model = as_published(elaborated(spec, graph), folders).model
    if sources.init is None and not weights and not own_weights(spec.program):
        # to be trained, a model need not know anything yet
        sources = replace(sources, init=0)
    with closing(_numbers(spec, model.graph, sources)) as values:
        partners = {name: values.tied_to(name) for name in model.graph.parameters}
        ties = {name: other for name, other in partners.items() if other is not None}
        own = [name for name in partners if name not in ties]
        numbers = {name: array_of(values, name, "f32") for name in own}
        warnings = values.warnings if isinstance(values, Binding) else ()
    return Trainee(
        # what no step of a loop needs leaves the loop, as in a compiled model
        graph=pipeline.simplify(model.graph, fused=False),
        values=numbers,
        ties=ties,
        defaults=model.defaults,
        reading=readings.reading_of(spec.program, model, folders),
        generation=model.generation,
        warnings=(*spec.warnings, *warnings, *model.warnings),
    )


def _numbers(spec: Spec, graph: Graph, sources: Sources) -> Binding | Seeded:
    """The numbers; where a spec names weights that are still to be learned, E0802 says
    how to begin without.
    """
    try:
        return values_of(spec, graph, sources)
    except Failed as failed:
        first, *others = failed.diagnostics
        if first.code != "E0802" or sources.path or spec.checkpoint:
            raise
        mend = "to learn them from the beginning, give a seed: module(…, init=0)"
        helps = (mend, *first.helps)
        raise Failed(replace(first, helps=helps), *others) from None
