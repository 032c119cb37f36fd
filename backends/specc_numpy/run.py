"""Run a graph: check what is given, find every length, evaluate the nodes in order."""

from collections.abc import Mapping

import numpy as np

from specc.ir.bind import bind
from specc.ir.graph import Graph, Value
from specc.ir.types import LETTER, Type
from specc.text.diagnostic import fail
from specc_numpy.table import Array
from specc_numpy.walk import After, walk

ACCEPTED = {"f": "fiu", "i": "iu", "b": "b", "q": "iu"}
"""NumPy kinds that an input of each IR kind takes."""

SAID = {
    "f": "numbers",
    "i": "whole numbers",
    "b": "true or false",
    "q": "whole numbers",
}


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    parameters: Mapping[str, Array],
    *,
    wanted: tuple[str, ...] | None = None,
    after: After | None = None,
) -> dict[str, Array]:
    """The outputs of `graph` by name, floats in float64.

    `wanted` picks outputs, or any value of `graph.names`; without it every output is
    computed. What `after` makes of a node's result is read in its place. Fails with
    E0907 and E0910 to E0913 on inputs that the graph cannot take.
    """
    given: dict[Value, Array] = {}
    sizes: list[tuple[str, Type, tuple[int, ...]]] = []
    _check_names(graph, inputs)
    for name, value in graph.inputs.items():
        if name not in inputs:
            continue
        array = np.asarray(inputs[name])
        _check_kind(name, value.type, array)
        given[value] = array
        sizes.append((name, value.type, array.shape))
    for name, value in graph.parameters.items():
        assert name in parameters, f"no values are given for the parameter `{name}`"
        given[value] = np.asarray(parameters[name])
        sizes.append((name, value.type, given[value].shape))
    env = bind(sizes, graph.facts, graph.least)

    asked = tuple(graph.outputs) if wanted is None else wanted
    named = {**graph.names, **graph.outputs}
    for name in asked:
        assert name in named, f"the graph has no value called `{name}`"
    found = walk(graph, given, env, [named[name] for name in asked], after)
    return {name: found[named[name]] for name in asked}


def _check_names(graph: Graph, inputs: Mapping[str, Array]) -> None:
    read = {a for node, _ in graph.nodes for a in node.args} | set(
        graph.outputs.values()
    )
    for name, value in graph.inputs.items():
        if name not in inputs and value in read:
            fail(
                "E0910",
                f"the input `{name}` is missing",
                helps=[f"give {_list(graph.inputs)}"],
            )
    for name in inputs:
        if name not in graph.inputs:
            fail(
                "E0910",
                f"the model has no input called `{name}`",
                helps=[f"it takes {_list(graph.inputs)}"],
            )


def _check_kind(name: str, type: Type, array: Array) -> None:
    letter = LETTER[type.dtype]
    if array.dtype.kind not in ACCEPTED[letter] and not (
        letter == "f" and array.dtype.kind == "V"
    ):
        fail(
            "E0907",
            f"the input `{name}` holds {array.dtype}, {SAID[letter]} are expected",
            helps=[f"give an array of {type.dtype}"],
        )


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(f"`{n}`" for n in names) or "nothing"
