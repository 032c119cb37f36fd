"""Expand a spec to a standalone one with the same graphs (`specc expand`)."""

from collections.abc import Iterator

from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Source
from specc.driver.spec_loader import OpenedSpec, elaborate_other_graphs, open_spec
from specc.frontend.standalone_spec import (
    build_renamed_standalone_spec,
    build_standalone_spec,
    merge_extends_chain,
)
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.ir.graph import Graph
from specc.ir.ir_printer import format_ir as as_text
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import print_dsl


def expand_spec(spec: OpenedSpec) -> tuple[ast.File, tuple[str, ...]]:
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


def _written(spec: OpenedSpec) -> Iterator[tuple[ast.File, tuple[str, ...]]]:
    """Ways to write it down, the best first; the next is asked for where one will not do."""
    yield build_standalone_spec(spec.program, spec.library), ()
    file, renamed = build_renamed_standalone_spec(spec.program, spec.library)
    yield (
        file,
        tuple(
            f"the config value `{old}` is called `{new}` in it: std means another by that name"
            for old, new in renamed.items()
        ),
    )
    stays = "what it takes of std stays there: names would clash"
    yield merge_extends_chain(spec.program), (stays,)


def _meant(spec: OpenedSpec) -> list[str]:
    """Every graph that can be made, as text; where values of the config are missing, the
    graph with values that are tried in their place. Fails as a check does where none can.
    """
    if graphs := list(elaborate_other_graphs(spec, "")):
        return [as_text(graph) for graph in graphs]
    trials = check_spec_symbolically(spec.program, spec.library, "")
    return [_outline(trial.model.graph) for trial in trials]


def _outline(graph: Graph) -> str:
    """Operations, shapes and weights of a graph, not all of whose numbers are known."""
    weights = [f"{name} {value.type}" for name, value in graph.parameters.items()]
    nodes = [f"{n.op.name} {[str(r.type) for r in made]}" for n, made in graph.nodes]
    return "\n".join((*weights, *nodes))


def _meant_by(file: ast.File, spec: OpenedSpec) -> list[str]:
    """What a file means where the spec lies; nothing where it is none."""
    home = spec.program.module.path
    try:
        return _meant(open_spec(Source(home, print_dsl(file)), library=spec.library))
    except Failed:
        return []
