"""Evaluate a graph: check inputs, bind lengths, run the rule of each op in order.

A rule is called as `rule(op, env, *operands)`: `env` says how long each symbol is, an
absent operand is None. Numbers with a fraction are float64 whatever their declared
type; whole numbers and booleans keep it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.evaluation import (
    check_index_range,
    iterate_live_nodes,
    raise_missing_input,
    raise_unknown_input,
)
from specc.ir.graph import Graph, Value
from specc.ir.op import OpRuleTable
from specc.ir.shape_binding import bind_symbols
from specc.ir.types import KIND_BY_DTYPE, KIND_DESCRIPTIONS, Type

LengthValues: TypeAlias = Mapping[str, int]
NumpyRule: TypeAlias = Callable[..., "Array | tuple[Array, ...]"]

evaluate: OpRuleTable[NumpyRule] = OpRuleTable("numpy")

NUMPY_DTYPES: Mapping[str, type[np.generic]] = {
    "i64": np.int64,
    "i32": np.int32,
    "bool": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i4": np.int8,
}


def get_numpy_dtype(dtype: str) -> type[np.generic]:
    """Return the NumPy dtype of an IR element type: float64 for every float."""
    return NUMPY_DTYPES.get(dtype, np.float64)


def check_indices(ids: Array, below: int, what: str) -> None:
    """Raise E0913 unless every id is an index of a table of `below` rows."""
    if ids.size:
        check_index_range(int(ids.min()), int(ids.max()), below, what)


ResultHook: TypeAlias = Callable[[Value, Array], Array]

_CURRENT_HOOK: ContextVar[ResultHook | None] = ContextVar("after", default=None)
"""The `after` callback of the running evaluation; it also applies inside bodies."""


def evaluate_nodes(
    graph: Graph,
    given: Mapping[Value, Array],
    env: LengthValues,
    wanted: Iterable[Value],
    after: ResultHook | None = None,
) -> dict[Value, Array]:
    """Return the `wanted` values; parameters are converted when first read. `after` may replace
    each result of a node, inside loops too.
    """
    after = after or _CURRENT_HOOK.get()
    token = _CURRENT_HOOK.set(after)
    try:
        return _evaluate_nodes(graph, given, env, list(wanted), after)
    finally:
        _CURRENT_HOOK.reset(token)


def _evaluate_nodes(
    graph: Graph,
    given: Mapping[Value, Array],
    env: LengthValues,
    wanted: list[Value],
    after: ResultHook | None,
) -> dict[Value, Array]:
    known: dict[Value, Array] = {}

    def read(value: Value) -> Array:
        if value not in known:
            known[value] = np.asarray(given[value]).astype(
                get_numpy_dtype(value.type.dtype), copy=False
            )
        return known[value]

    for node, results in iterate_live_nodes(graph, wanted, known):
        operands = [read(a) if a else None for a in node.args]
        # infinities and NaN propagate as in any runtime
        with np.errstate(all="ignore"):
            evaluated = evaluate[node.op](node.op, env, *operands)
        arrays = evaluated if isinstance(evaluated, tuple) else (evaluated,)
        for result, array in zip(results, arrays, strict=True):
            if result:
                made = np.asarray(array)
                known[result] = made if after is None else after(result, made)
    return {v: read(v) for v in wanted}


ACCEPTED_NUMPY_KINDS = {"f": "fiu", "i": "iu", "b": "b", "q": "iu"}
"""NumPy kinds that an input of each IR kind takes."""


def evaluate_graph(
    graph: Graph,
    inputs: Mapping[str, Array],
    parameters: Mapping[str, Array],
    *,
    wanted: tuple[str, ...] | None = None,
    after: ResultHook | None = None,
) -> dict[str, Array]:
    """Return the outputs of `graph`, or the named values `wanted`, floats in float64; `after` may
    replace each node's result. Raise E0907 and E0910 to E0913 for inputs that do not fit.
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
        assert name in parameters, f"no values for the parameter `{name}`"
        given[value] = np.asarray(parameters[name])
        sizes.append((name, value.type, given[value].shape))
    env = bind_symbols(sizes, graph.length_equations, graph.min_lengths)

    asked = tuple(graph.outputs) if wanted is None else wanted
    named = {**graph.names, **graph.outputs}
    for name in asked:
        assert name in named, f"the graph has no value called `{name}`"
    found = evaluate_nodes(graph, given, env, [named[name] for name in asked], after)
    return {name: found[named[name]] for name in asked}


def _check_names(graph: Graph, inputs: Mapping[str, Array]) -> None:
    read = {a for node, _ in graph.nodes for a in node.args} | set(graph.outputs.values())
    for name, value in graph.inputs.items():
        if name not in inputs and value in read:
            raise_missing_input(name, graph.inputs)
    for name in inputs:
        if name not in graph.inputs:
            raise_unknown_input(name, graph.inputs)


def _check_kind(name: str, type: Type, array: Array) -> None:
    letter = KIND_BY_DTYPE[type.dtype]
    if array.dtype.kind not in ACCEPTED_NUMPY_KINDS[letter] and not (
        letter == "f" and array.dtype.kind == "V"
    ):
        raise_error(
            "E0907",
            f"the input `{name}` is {array.dtype}, expected {KIND_DESCRIPTIONS[letter]}",
            helps=[f"pass an array of {type.dtype}"],
        )
