"""A compiled model for inputs of one length alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from specc.files.read import shown
from specc.ir.dim import DimError
from specc.ir.graph import Graph
from specc.run.loaded import Loaded
from specc.text.diagnostic import fail


def fixed(model: Loaded, lengths: Mapping[str, int]) -> Loaded:
    """`model` for these lengths of its inputs alone: `fixed(model, {"batch": 1})`.

    E0981 unless each length has one whole number; E0832 for a model that decodes by
    itself, whose results are as long as they become.
    """
    if model.manifest.decodes is not None:
        fail("E0832", "a model that decodes by itself has no results of fixed length")
    graph = model.manifest.graph
    _check(graph, lengths)
    env = {**lengths}
    try:
        env |= {name: dim.at(env) for name, dim in graph.facts.items()}
        shapes = {
            name: tuple(d.at(env) for d in value.type.shape)
            for name, value in (*graph.inputs.items(), *graph.outputs.items())
        }
    except DimError as error:
        _refuse(f"the model has no such lengths: {error}", graph)
    session = model.file.open_fixed(model.provider, lengths, shapes)
    return replace(model, session=session)


def _check(graph: Graph, lengths: Mapping[str, int]) -> None:
    """E0981."""
    known = _lengths(graph)
    for name, length in lengths.items():
        if name not in known:
            _refuse(f"the model has no length called `{shown(name)}`", graph)
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            _refuse(
                f"`{name}` is a whole number from 1 on, not {shown(repr(length))[:40]}",
                graph,
            )
    if absent := [name for name in known if name not in lengths]:
        listed = ", ".join(f"`{name}`" for name in absent)
        _refuse(f"nothing says how long {listed} will be", graph)


def _lengths(graph: Graph) -> list[str]:
    """The lengths that only inputs tell, in their order."""
    dims = (d for v in graph.inputs.values() for d in v.type.shape)
    found = dict.fromkeys(symbol for dim in dims for symbol in sorted(dim.symbols()))
    return [symbol for symbol in found if symbol not in graph.facts]


def _refuse(title: str, graph: Graph) -> NoReturn:
    example = ", ".join(f"{name}=8" for name in _lengths(graph))
    fail("E0981", title, helps=[f"name all of them: `model.fixed({example})`"])
