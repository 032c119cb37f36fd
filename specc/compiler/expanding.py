"""`specc expand`: a spec as one that stands alone, once it is known to mean the same."""

from collections.abc import Iterator

from specc.compiler.spec import Spec, open_spec, others
from specc.elaborate.check import check_symbolic
from specc.elaborate.standing_alone import merged, standing_alone, standing_apart
from specc.ir.graph import Graph
from specc.ir.write import write as as_text
from specc.lang import tree
from specc.lang.dsl.write import write
from specc.text.diagnostic import Failed
from specc.text.source import Source


def expanded(spec: Spec) -> tuple[tree.File, tuple[str, ...]]:
    """The spec alone in one file, and what is to be told of it. Its graphs are those of
    the spec, node for node. Where its names hide those that std means, one of the two is
    called otherwise; where that does not do, what it takes of std stays there. E0982 for
    values that only an instance can give.
    """
    wanted = _meant(spec)
    for file, told in _written(spec):
        if _meant_by(file, spec) == wanted:
            return file, told
    raise AssertionError(f"{spec.program.name} alone is another model")


def _written(spec: Spec) -> Iterator[tuple[tree.File, tuple[str, ...]]]:
    """Ways to write it down, the best first; the next is asked for where one will not do."""
    yield standing_alone(spec.program, spec.library), ()
    file, renamed = standing_apart(spec.program, spec.library)
    yield (
        file,
        tuple(
            f"the config value `{old}` is called `{new}` in it: std means another by that name"
            for old, new in renamed.items()
        ),
    )
    stays = "what it takes of std stays there: names would clash"
    yield merged(spec.program), (stays,)


def _meant(spec: Spec) -> list[str]:
    """Every graph that can be made, as text; where values of the config are missing, the
    graph with values that are tried in their place. Fails as a check does where none can.
    """
    if graphs := list(others(spec, "")):
        return [as_text(graph) for graph in graphs]
    trials = check_symbolic(spec.program, spec.library, "")
    return [_outline(trial.model.graph) for trial in trials]


def _outline(graph: Graph) -> str:
    """Operations, shapes and weights of a graph, not all of whose numbers are known."""
    weights = [f"{name} {value.type}" for name, value in graph.parameters.items()]
    nodes = [f"{n.op.name} {[str(r.type) for r in made]}" for n, made in graph.nodes]
    return "\n".join((*weights, *nodes))


def _meant_by(file: tree.File, spec: Spec) -> list[str]:
    """What a file means where the spec lies; nothing where it is none."""
    home = spec.program.module.path
    try:
        return _meant(open_spec(Source(home, write(file)), library=spec.library))
    except Failed:
        return []
