"""Functions that the graph interpreters share: bind inputs, evaluate live nodes, run loops."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value, collect_needed_nodes
from specc.ir.shape_binding import bind_symbols
from specc.ir.types import KIND_BY_DTYPE, KIND_DESCRIPTIONS

T = TypeVar("T")


class HasShape(Protocol):
    """The protocol of arrays and tensors: an object with a shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the length of each axis."""


S = TypeVar("S", bound=HasShape)


def evaluate_live_nodes(
    graph: Graph,
    known_values: Mapping[Value, T],
    requested: Iterable[Value],
    evaluate_node: Callable[[Node, list[T | None]], T | tuple[T, ...]],
    replace_result: Callable[[Value, T], T] = lambda value, result: result,
) -> dict[Value, T]:
    """Compute the `requested` values from `known_values` (inputs and parameters). `replace_result`
    may replace each used result of a node. A value is dropped after its last use.
    """
    known, requested = dict(known_values), list(requested)
    live = collect_needed_nodes(requested)
    nodes = [(node, results) for node, results in graph.nodes if node in live]
    last = _map_last_uses([node for node, _ in nodes], requested)
    for n, (node, results) in enumerate(nodes):
        evaluated = evaluate_node(node, [known[a] if a else None for a in node.args])
        made = evaluated if isinstance(evaluated, tuple) else (evaluated,)
        known |= {r: replace_result(r, x) for r, x in zip(results, made, strict=True) if r in last}
        for operand in node.args:
            if operand and last[operand] == n:
                known.pop(operand, None)
    return {v: known[v] for v in requested}


def _map_last_uses(nodes: Sequence[Node], requested: Iterable[Value]) -> dict[Value | None, int]:
    """Map each value to the index of the last node that reads it. Requested values count as read at
    the end.
    """
    last = {a: n for n, node in enumerate(nodes) for a in node.args}
    return last | dict.fromkeys(requested, len(nodes))


def bind_inputs(
    graph: Graph, inputs: Mapping[str, S], parameters: Mapping[str, S], requested: Iterable[Value]
) -> tuple[dict[Value, S], dict[str, int]]:
    """Return the arrays of inputs and parameters, and the length of each symbol. Raise E0910 if a
    required input is missing, and E0911 or E0912 if shapes do not match.
    """
    _check_no_input_missing(graph, inputs, requested)
    given = {value: inputs[name] for name, value in graph.inputs.items() if name in inputs}
    given |= {value: parameters[name] for name, value in graph.parameters.items()}
    named = (*graph.inputs.items(), *graph.parameters.items())
    sizes = [(name, v.type, tuple(given[v].shape)) for name, v in named if v in given]
    return given, bind_symbols(sizes, graph.length_equations, graph.min_lengths)


def _check_no_input_missing(
    graph: Graph, inputs: Container[str], requested: Iterable[Value]
) -> None:
    """Raise E0910 if a required input is missing."""
    read = {a for node, _ in graph.nodes for a in node.args}.union(requested)
    for name, value in graph.inputs.items():
        if name not in inputs and value in read:
            names = _format_quoted(graph.inputs)
            raise_error("E0910", f"missing model input `{name}`", helps=[f"pass {names}"])


def check_input_kind(graph: Graph, name: str, kind: str, dtype: object) -> None:
    """Raise E0910 if `graph` has no input `name`, and E0907 if the input has a different element
    kind (`f`, `i` or `b`).
    """
    if name not in graph.inputs:
        helps = [f"expected one of {_format_quoted(graph.inputs)}"]
        raise_error("E0910", f"unknown model input `{name}`", helps=helps)
    wanted = graph.inputs[name].dtype
    expected = KIND_BY_DTYPE[wanted]
    if kind != expected and (kind, expected) not in (("i", "f"), ("i", "q")):
        raise_error(
            "E0907",
            f"the input `{name}` is {dtype}, expected {KIND_DESCRIPTIONS[expected]}",
            helps=[f"pass an array of {wanted}"],
        )


def run_scan(
    op: ops.Scan,
    operands: Sequence[T],
    steps: int,
    *,
    slice_position: Callable[[T, int], T],
    evaluate_body: Callable[[dict[Value, T], list[Value]], Mapping[Value, T]],
    select_value: Callable[[int, T, T | None], T],
    is_all_true: Callable[[T], bool],
) -> tuple[list[T], list[list[T]]]:
    """Run a loop. Return the final carries, and the scan outputs of each executed iteration.
    `select_value` returns the new value, or at padded positions the old value (zeros if the old
    value is None).
    """
    given, results = op.split_operands(operands), list(op.body.outputs.values())
    inputs = list(op.body.inputs.values())
    carries = list(given.initial_carries)
    collected: list[list[T]] = [[] for _ in results[op.carry_count :]]
    old: list[T | None] = [None] * len(collected)
    for t in reversed(range(steps)) if op.reverse else range(steps):
        # all batch elements are finished
        if (
            op.end_condition_index != -1
            and not op.unfrozen_output_count
            and is_all_true(carries[op.end_condition_index])
        ):
            break
        rows = [slice_position(x, t) for x in given.scanned]
        made = evaluate_body(
            dict(zip(inputs, (*rows, *carries, *given.captured), strict=True)), results
        )
        pairs = zip(results, (*carries, *old), strict=True)
        after = [select_value(t, made[value], before) for value, before in pairs]
        carries = after[: op.carry_count]
        for stack, x in zip(collected, after[op.carry_count :], strict=True):
            stack.append(x)
    return carries, collected


def _format_quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names) or "none"
