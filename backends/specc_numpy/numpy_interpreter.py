"""Evaluate a graph: check inputs, bind lengths, run the rule of each op in order.

A rule is called as `rule(op, env, *operands)`: `env` is the length of each symbol, an absent
operand is None. Floats are float64 whatever their declared type; integers and booleans keep it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TypeAlias

import numpy as np

from specc.ir.array import Array
from specc.ir.evaluation import (
    bind_inputs,
    check_index_range,
    check_input_kind,
    evaluate_live_nodes,
)
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import OpRuleTable

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
    hook = after or _CURRENT_HOOK.get()

    def convert(value: Value, array: Array) -> Array:
        return np.asarray(array).astype(get_numpy_dtype(value.type.dtype), copy=False)

    def evaluate_node(node: Node, operands: list[Array | None]) -> Array | tuple[Array, ...]:
        pairs = zip(node.args, operands, strict=True)
        converted = (convert(a, x) if a and x is not None else None for a, x in pairs)
        # infinities and NaN propagate as in any runtime
        with np.errstate(all="ignore"):
            return evaluate[node.op](node.op, env, *converted)

    def replace_result(value: Value, array: Array) -> Array:
        return np.asarray(array) if hook is None else hook(value, np.asarray(array))

    token = _CURRENT_HOOK.set(hook)
    try:
        found = evaluate_live_nodes(graph, given, wanted, evaluate_node, replace_result)
        return {value: convert(value, array) for value, array in found.items()}
    finally:
        _CURRENT_HOOK.reset(token)


NUMERIC_KINDS = {"u": "i", "V": "f"}
"""The IR kind of NumPy kinds that have another letter; `V` is bfloat16."""


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
    for name, array in inputs.items():
        dtype = np.asarray(array).dtype
        check_input_kind(graph, name, NUMERIC_KINDS.get(dtype.kind, dtype.kind), dtype)
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    named = {**graph.names, **graph.outputs}
    requested = {n: named[n] for n in (graph.outputs if wanted is None else wanted)}
    given, env = bind_inputs(graph, arrays, parameters, requested.values())
    found = evaluate_nodes(graph, given, env, requested.values(), after)
    return {name: found[value] for name, value in requested.items()}
