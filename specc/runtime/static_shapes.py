"""Specialize a compiled model to static sizes of its symbolic dimensions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.dim import DimError
from specc.ir.graph import Graph
from specc.runtime.single_model_file import LoadedModel


def specialize_to_static_shapes(model: LoadedModel, lengths: Mapping[str, int]) -> LoadedModel:
    """Specialize a model to static sizes of its symbolic dimensions, such as `{"batch": 1}`.

    Raise E0981 unless each symbolic dimension has an integer size. Raise E0832 for a standalone
    generator, because its output sizes are dynamic.
    """
    if model.manifest.decoding is not None:
        raise_error("E0832", "a standalone generator does not support static shapes")
    graph = model.manifest.graph
    _check_lengths(graph, lengths)
    try:
        equations = graph.length_equations.items()
        env = {**lengths, **{name: dim.evaluate(lengths) for name, dim in equations}}
        shapes = {
            name: tuple(d.evaluate(env) for d in value.shape)
            for name, value in (*graph.inputs.items(), *graph.outputs.items())
        }
    except DimError as error:
        _raise_invalid_lengths(f"the lengths are invalid for this model: {error}", graph)
    session = model.file.open_with_static_shapes(model.provider, lengths, shapes)
    return replace(model, session=session)


def _check_lengths(graph: Graph, lengths: Mapping[str, int]) -> None:
    """Raise E0981 if a symbolic dimension is unknown or if its size is invalid."""
    symbols = _list_dynamic_lengths(graph)
    for name, length in lengths.items():
        if name not in symbols:
            _raise_invalid_lengths(f"unknown length `{escape_text(name)}`", graph)
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            _raise_invalid_lengths(
                f"`{name}` must be a positive integer, got {escape_text(repr(length))[:40]}", graph
            )
    if missing := [f"`{name}`" for name in symbols if name not in lengths]:
        _raise_invalid_lengths(f"missing length of {', '.join(missing)}", graph)


def _list_dynamic_lengths(graph: Graph) -> list[str]:
    """Return the names of the inputs' symbolic dimensions, in order."""
    dims = (d for v in graph.inputs.values() for d in v.shape)
    symbols = dict.fromkeys(symbol for dim in dims for symbol in sorted(dim.symbols()))
    return [symbol for symbol in symbols if symbol not in graph.length_equations]


def _raise_invalid_lengths(title: str, graph: Graph) -> NoReturn:
    example = ", ".join(f"{name}=8" for name in _list_dynamic_lengths(graph))
    raise_error("E0981", title, helps=[f"set all of them: `model.with_static_shapes({example})`"])
