"""Evaluate a graph: check the inputs, bind dimensions, and run the rule of each op in order. A rule
is called as `rule(op, lengths, *operands)`. `lengths` maps each symbolic dimension to its size. An
absent operand is None. All floats are computed in float64. Integers and booleans keep their type.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TypeAlias

import numpy as np

from specc.ir.array import Array
from specc.ir.graph import Graph, Node, Value
from specc.ir.graph_interpreter import bind_inputs, check_input_dtype, evaluate_live_nodes
from specc.ir.op import OpRuleTable

LengthValues: TypeAlias = Mapping[str, int]
NumpyRule: TypeAlias = Callable[..., "Array | tuple[Array, ...]"]

evaluate: OpRuleTable[NumpyRule] = OpRuleTable("numpy")
"""The evaluation rule of each op."""

NUMPY_DTYPES: Mapping[str, type[np.generic]] = {
    "i64": np.int64,
    "i32": np.int32,
    "bool": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i4": np.int8,
}


def get_numpy_dtype(dtype: str) -> type[np.generic]:
    """Return the NumPy dtype for an IR element type (float64 for all float types)."""
    return NUMPY_DTYPES.get(dtype, np.float64)


ResultHook: TypeAlias = Callable[[Value, Array], Array]
"""A callable that maps a node result (IR value and array) to its replacement array."""

_CURRENT_HOOK: ContextVar[ResultHook | None] = ContextVar("result_hook", default=None)
"""The result hook of the current evaluation, which is also called in loop bodies."""


def evaluate_nodes(
    graph: Graph,
    known_values: Mapping[Value, Array],
    lengths: LengthValues,
    requested_values: Iterable[Value],
    result_hook: ResultHook | None = None,
) -> dict[Value, Array]:
    """Return the arrays of `requested_values`, computed from `known_values` (inputs and parameters,
    converted on first use). `result_hook` may replace each node result, including results inside
    loops.
    """
    active_hook = result_hook or _CURRENT_HOOK.get()

    def convert_array(value: Value, array: Array) -> Array:
        dtype = get_numpy_dtype(value.type.dtype)
        return array if array.dtype.type is dtype else np.asarray(array).astype(dtype)

    def evaluate_node(node: Node, operands: list[Array | None]) -> Array | tuple[Array, ...]:
        pairs = zip(node.args, operands, strict=True)
        arrays = [convert_array(a, x) if a and x is not None else None for a, x in pairs]
        return evaluate[node.op](node.op, lengths, *arrays)

    def replace_result(value: Value, array: Array) -> Array:
        return np.asarray(array) if active_hook is None else active_hook(value, np.asarray(array))

    token = _CURRENT_HOOK.set(active_hook)
    try:
        # infinities and NaN propagate without warnings, as in ONNX Runtime
        with np.errstate(all="ignore"):
            results = evaluate_live_nodes(
                graph, known_values, requested_values, evaluate_node, replace_result
            )
        return {value: convert_array(value, array) for value, array in results.items()}
    finally:
        _CURRENT_HOOK.reset(token)


NUMERIC_KINDS = {"u": "i", "V": "f"}
"""The IR element kind for each NumPy dtype kind whose letter differs. `V` is bfloat16."""


def evaluate_graph(
    graph: Graph,
    inputs: Mapping[str, Array],
    parameters: Mapping[str, Array],
    *,
    value_names: tuple[str, ...] | None = None,
    result_hook: ResultHook | None = None,
) -> dict[str, Array]:
    """Run a graph on `inputs` and `parameters`, which are keyed by name. Return the outputs or
    named values in `value_names` (default: all outputs). Floats are float64. `result_hook` may
    replace each node result. Raise E0907 or one of E0910 to E0913 for invalid inputs.
    """
    for name, array in inputs.items():
        dtype = np.asarray(array).dtype
        check_input_dtype(graph, name, NUMERIC_KINDS.get(dtype.kind, dtype.kind), dtype)
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    values_by_name = {**graph.names, **graph.outputs}
    requested_values = {
        n: values_by_name[n] for n in (graph.outputs if value_names is None else value_names)
    }
    known_values, lengths = bind_inputs(graph, arrays, parameters, requested_values.values())
    results = evaluate_nodes(graph, known_values, lengths, requested_values.values(), result_hook)
    return {name: results[value] for name, value in requested_values.items()}
