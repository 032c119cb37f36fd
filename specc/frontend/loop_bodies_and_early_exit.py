"""Extract loop and expert bodies as graphs, hoist position ids, and lower early exits (`until`)."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from specc.diagnostics.diagnostic import Label, Span, raise_error
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import Tensor, format_type
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Node, NodeOrigin, Value
from specc.syntax import ast

Key = TypeVar("Key")


def hoist_position_ids(
    builder: GraphBuilder, body_nodes: Iterable[Node], outputs: Mapping[Key, Value]
) -> dict[Key, Value]:
    """Replace position ids of a dynamic axis in `outputs` with equivalent `Range` ops, which do not
    depend on the loop. `body_nodes` contains the nodes that depend on the loop, in creation order.
    """
    replacements: dict[Value, Value] = {}
    for node in body_nodes:
        if (length := _get_counted_length(node)) is not None:
            results = builder.add_node(ops.Range(length))
        elif any(a in replacements for a in node.args if a):
            results = builder.add_node(node.op, *(a and replacements.get(a, a) for a in node.args))
        else:
            continue
        replacements.update(zip(builder.nodes[node], results, strict=True))
        if (origin := builder.node_origins.get(node)) and results[0].node:
            builder.node_origins.setdefault(results[0].node, origin)
    if replacements:
        builder.names = _replace_values(builder.names, replacements)
    return _replace_values(outputs, replacements)


def _replace_values(
    values: Mapping[Key, Value], replacements: Mapping[Value, Value]
) -> dict[Key, Value]:
    return {name: replacements.get(v, v) for name, v in values.items()}


def _get_counted_length(node: Node) -> Dim | None:
    """Return the size of the dynamic axis if `node` computes its position ids, otherwise None."""
    match node:
        case Node(ops.Extent(axis=axis), (Value() as x,)) if x.type.shape[axis].number is None:
            return x.type.shape[axis]
    return None


def extract_body_graph(
    builder: GraphBuilder,
    inputs: dict[str, Value],
    outputs: dict[str, Value],
    start_index: int,
    length_symbol: str = "",
) -> tuple[Graph, list[Value]]:
    """Return the nodes between the loop inputs and outputs as a graph, and the captured values.

    Nodes with an axis of the symbolic size `length_symbol`, which exists only in the body, also
    belong to the body. `start_index` is the number of nodes that existed before the body was
    elaborated.
    """
    body_nodes = _find_dependent_nodes(builder, inputs.values(), start_index, length_symbol)
    outputs = hoist_position_ids(builder, body_nodes, outputs)
    # find the nodes of the body again, because hoisting has removed the position ids from it
    body_nodes = _find_dependent_nodes(builder, inputs.values(), start_index, length_symbol)
    required_nodes, captured = _find_reachable_nodes(body_nodes, inputs.values(), outputs.values())
    # sort captures in graph order, for deterministic bodies
    captures = _sort_captures(builder, captured)
    input_values = {**inputs, **{f"outer {n}": Value(v.type) for n, v in enumerate(captures)}}
    copied_values = dict(zip([*inputs.values(), *captures], input_values.values(), strict=True))
    originals = [node for node in body_nodes if node in required_nodes]
    copies, origins = _copy_nodes(builder, originals, copied_values)
    body = Graph(
        name="body",
        inputs=input_values,
        input_facts={name: Input(v.type) for name, v in input_values.items()},
        parameters={},
        parameter_facts={},
        nodes=tuple(copies),
        outputs={name: copied_values[v] for name, v in outputs.items()},
        node_origins=origins,
    )
    return body, captures


def _copy_nodes(
    builder: GraphBuilder, originals: Iterable[Node], copied_values: dict[Value, Value]
) -> tuple[list[tuple[Node, tuple[Value, ...]]], dict[Node, NodeOrigin]]:
    """Copy nodes, and record their results in `copied_values`. Return the copies and origins."""
    copies: list[tuple[Node, tuple[Value, ...]]] = []
    origins: dict[Node, NodeOrigin] = {}
    for original in originals:
        results = builder.nodes[original]
        node = Node(original.op, tuple(copied_values[a] if a else None for a in original.args))
        copies.append((node, tuple(Value(r.type, node, r.index) for r in results)))
        copied_values.update(zip(results, copies[-1][1], strict=True))
        # nodes of the body keep their scope and source location for messages
        if original in builder.node_origins:
            origins[node] = builder.node_origins[original]
    return copies, origins


def _find_reachable_nodes(
    body_nodes: Container[Node], inputs: Iterable[Value], outputs: Iterable[Value]
) -> tuple[set[Node], dict[Value, None]]:
    """Return the nodes on which the outputs depend, and the outer values that these nodes read."""
    required_nodes: set[Node] = set()
    captured: dict[Value, None] = {}
    input_values = set(inputs)
    worklist = list(outputs)
    while worklist:
        value = worklist.pop()
        if value in input_values:
            continue
        if value.node is None or value.node not in body_nodes:
            captured[value] = None
        elif value.node not in required_nodes:
            required_nodes.add(value.node)
            worklist += [a for a in value.node.args if a]
    return required_nodes, captured


def _sort_captures(builder: GraphBuilder, captured: Iterable[Value]) -> list[Value]:
    """Sort values in graph order: unregistered values, then inputs, parameters and node results."""
    leaves = (*builder.inputs.values(), *builder.parameters.values())
    indices = {value: n for n, value in enumerate(leaves)}

    def get_graph_position(value: Value) -> tuple[int, int]:
        if value.node is None:
            return indices.get(value, -1), 0
        return len(indices) + builder.node_indices[value.node], value.index

    return sorted(captured, key=get_graph_position)


def _find_dependent_nodes(
    builder: GraphBuilder, leaves: Iterable[Value], start_index: int, length: str
) -> dict[Node, None]:
    """Return, in graph order, every node that depends on `leaves` or has an axis of size `length`.

    The leaves are created with the body, so only nodes after the first `start_index` nodes can
    depend on them. A node that depends only on `length` may precede the body, because equal nodes
    in different bodies are merged.
    """
    dependent_values, length_values = set(leaves), set[Value]()
    dependent_nodes: dict[Node, None] = {}
    earlier_nodes = builder.nodes_by_symbolic_length.setdefault(length, {})
    new_nodes = dict.fromkeys(islice(builder.nodes, start_index, None))
    # nodes of earlier bodies with an axis of size `length` precede the new nodes in graph order
    for node in (*(node for node in earlier_nodes if node not in new_nodes), *new_nodes):
        results = builder.nodes[node]
        if any(a in dependent_values for a in node.args):
            dependent_values.update(results)
        elif _has_length(results[0], length) or any(a in length_values for a in node.args):
            length_values.update(results)
            earlier_nodes[node] = None
        else:
            continue
        dependent_nodes[node] = None
    return dependent_nodes


def _has_length(value: Value, length: str) -> bool:
    """Return True if any axis size of the value contains the symbolic dimension `length`."""
    return bool(length) and any(length in d.symbols() for d in value.type.shape)


ZEROS_BY_DTYPE: Mapping[str, float | int | bool] = {"bool": False, "i64": 0, "i32": 0}
"""A scan output's value in a skipped iteration, keyed by element type (0.0 for other types)."""


@dataclass(frozen=True)
class EarlyExit:
    """The early exit of a loop. `carry_index` and `name` are the index and name of the flag, a
    loop-carried boolean tensor that marks finished batch elements.
    """

    carry_index: int
    name: str
    span: Span | None

    def freeze_finished_carries(
        self, builder: NodeBuilder, previous_carries: Sequence[Value], next_carries: Sequence[Value]
    ) -> list[Value]:
        """Return the next loop-carried values, with the previous values for finished elements."""
        # a batch element is still updated in the iteration that sets its flag
        finished_flags = previous_carries[self.carry_index]
        return [
            _select_per_element(builder, finished_flags, previous, updated)
            for previous, updated in zip(previous_carries, next_carries, strict=True)
        ]

    def zero_finished_outputs(
        self,
        builder: NodeBuilder,
        previous_carries: Sequence[Value],
        scan_outputs: Mapping[str, Value],
    ) -> dict[str, Value]:
        """Return the scan outputs, which are zero for batch elements that finished in an earlier
        iteration. Raise E0730 if a scan output lacks the leading axes of the flag.
        """
        finished_flags = previous_carries[self.carry_index]
        self.check_leading_axes_match(
            Tensor(finished_flags), {n: Tensor(v) for n, v in scan_outputs.items()}, "collected"
        )
        zeroed_outputs = {}
        for name, value in scan_outputs.items():
            dtype = value.type.dtype
            zero = builder.context.builder.add_op(
                ops.Constant(ZEROS_BY_DTYPE.get(dtype, 0.0), dtype)
            )
            zeroed_outputs[name] = _select_per_element(builder, finished_flags, zero, value)
        return zeroed_outputs

    def check_leading_axes_match(
        self, finished: Tensor, other_tensors: Mapping[str, Tensor], role: str
    ) -> None:
        """Raise E0730 if a tensor, described by `role`, lacks leading axes of `finished`."""
        rank = finished.type.rank
        for name, value in other_tensors.items():
            if value.shape[:rank] == finished.shape:
                continue
            title = f"`{name}` is {role}, so its first axes must be the axes of `{self.name}`"
            flag_label = f"`{self.name}` is {format_type(finished.type)}"
            value_label = f"`{name}` is {format_type(value.type)}"
            raise_error(
                "E0730",
                title,
                self.span,
                flag_label,
                related_labels=Label.tuple_from_span(value.source_span, value_label),
                notes=("the number of iterations depends on every element",),
                helps=[
                    f"begin the axes of `{name}` with those of `{self.name}`: an iteration "
                    f"count is `int[{', '.join(map(str, finished.shape))}]`"
                ],
            )


def _select_per_element(
    nodes: NodeBuilder, is_finished: Value, finished: Value, unfinished: Value
) -> Value:
    """Select `finished` for batch elements whose flag is set, and `unfinished` for all others."""
    mask = Tensor(is_finished, nodes.span)
    # broadcast the flag of each batch element over the features of the element
    for axis in range(is_finished.type.rank, unfinished.type.rank):
        mask = nodes.add_op(ops.Insert(axis), mask)
    return nodes.add_op(ops.Where(), mask, Tensor(finished), Tensor(unfinished)).value


def find_early_exit(
    statement: ast.ScanLoop, initial_carries: Mapping[str, Tensor]
) -> EarlyExit | None:
    """Return the early exit of a loop with `until`, or None. `initial_carries` are the initial
    loop-carried values.

    Raise E0729 unless the condition is `all(name)` of a loop-carried boolean tensor, and E0730 if
    another loop-carried value lacks the axes of this tensor.
    """
    match statement.until:
        case None:
            return None
        case ast.Call(function=ast.Name(path="all"), args=(ast.Name(path=name),), options=()):
            pass
        case _:
            name = ""
    span = statement.until.span
    # a condition that does not change would end the loop immediately or never
    if name not in initial_carries:
        title = "`until` expects `all(…)` of a boolean tensor that the loop carries"
        label = f"`{name}` is not carried" if name else "expected the name of a loop-carried value"
        help_ = (
            f"write `carry {next(iter(statement.carry), 'h')}, done until all(done)`, set `done` "
            "before the loop and update it in the body"
        )
        raise_error("E0729", title, span, label, helps=[help_])
    finished_flags = initial_carries[name]
    if finished_flags.type.dtype != "bool":
        title = f"`until` expects a boolean tensor, but `{name}` is not boolean"
        label = f"this is {format_type(finished_flags.type)}"
        raise_error("E0729", title, span, label, helps=["carry a comparison: `done = p > 0.99`"])
    early_exit = EarlyExit(list(initial_carries).index(name), name, span)
    early_exit.check_leading_axes_match(finished_flags, initial_carries, "carried")
    return early_exit
