"""Copy a compiled model with additional outputs: attention weights, or execution counts.

The `Attention` operator returns the attention weights only as the fourth output, with
`qk_matmul_output_mode=3`. In the copy, an `If` that guards an `Attention` against empty inputs is
replaced with the branch that contains the `Attention`, so the copy requires nonempty inputs.
Blocked attention is replaced by dense attention.

A copy with execution counts also returns i64[n], which contains the number of executions of each
`If` branch and of each `Loop` or `Scan` body. Each branch gets an additional output, and each loop
body gets an additional loop-carried value.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from specc.backend import SubgraphInfo
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES, PROBABILITIES_OUTPUT_MODE
from specc_onnx.lower.subgraphs import iterate_node_subgraphs

EXECUTION_COUNTS_OUTPUT = "specc.executions"
"""The name of the output that contains execution counts."""
MAX_SEARCH_DEPTH = 16
"""The maximum number of nodes between a branch condition and the constants that it compares."""
MAX_COMPARED_CONSTANT = 2**16
MAX_CONSTANT_ELEMENTS = 64
"""The maximum number of elements of a constant in a branch condition."""


def collect_subgraphs(model: ModelProto) -> SubgraphInfo:
    """Return the names of all subgraphs, and the integer constants in branch conditions."""
    copy = ModelProto()
    # only small constants are copied, because weights would be large
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MAX_CONSTANT_ELEMENTS:
            copy.graph.initializer.append(tensor)
    copy.graph.node.extend(model.graph.node)
    names = tuple(_iterate_subgraph_names(copy.graph))
    return SubgraphInfo(EXECUTION_COUNTS_OUTPUT, names, list_branch_condition_constants(copy))


def list_branch_condition_constants(model: ModelProto) -> tuple[int, ...]:
    """Return the integer constants above 1 from which branch conditions are computed."""
    constants = set[int]()
    for graph, producers in _iterate_graph_scopes(model.graph, {}):
        for node in graph.node:
            if node.op_type == "If":
                constants |= set(
                    _iterate_source_constants(node.input[0], producers, MAX_SEARCH_DEPTH)
                )
    return tuple(sorted(n for n in constants if 1 < n <= MAX_COMPARED_CONSTANT))


_Producers = dict[str, NodeProto | TensorProto]


def _iterate_graph_scopes(
    graph: GraphProto, outer_producers: _Producers
) -> Iterator[tuple[GraphProto, _Producers]]:
    """Yield each graph together with a map from value names to the nodes and initializers that are
    visible in the graph.
    """
    producers: _Producers = {**outer_producers, **{t.name: t for t in graph.initializer}}
    producers |= {name: node for node in graph.node for name in node.output}
    yield graph, producers
    for node in graph.node:
        for body in iterate_node_subgraphs(node):
            yield from _iterate_graph_scopes(body, producers)


def _iterate_source_constants(name: str, producers: _Producers, depth: int) -> Iterator[int]:
    """Yield the integer constants from which the value `name` is computed."""
    source = producers.get(name)
    if isinstance(source, NodeProto):
        if source.op_type == "Constant":
            source = next((a.t for a in source.attribute if a.HasField("t")), None)
        elif depth and source.op_type not in ("If", "Loop", "Scan"):
            for operand in source.input:
                yield from _iterate_source_constants(operand, producers, depth - 1)
    integer_types = (TensorProto.INT64, TensorProto.INT32)
    if isinstance(source, TensorProto) and source.data_type in integer_types:
        if source.data_location == TensorProto.EXTERNAL:
            return
        yield from map(int, numpy_helper.to_array(source).reshape(-1)[:16])


def add_execution_count_output(model: ModelProto) -> tuple[str, ...]:
    """Add the output `EXECUTION_COUNTS_OUTPUT` i64[n] with the execution count of each subgraph, if
    there are subgraphs. Return the names of the subgraphs in the order of their execution counts.
    """
    names = tuple(_iterate_subgraph_names(model.graph))
    if names:
        counter = _ExecutionCounter(len(names))
        counts = counter.add_counts(model.graph, [])
        model.graph.node.append(helper.make_node("Identity", [counts], [EXECUTION_COUNTS_OUTPUT]))
        model.graph.output.append(counter.make_counts_value_info(EXECUTION_COUNTS_OUTPUT))
    return names


def _iterate_subgraph_names(graph: GraphProto) -> Iterator[str]:
    """Yield a name for every subgraph. Parents come first."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                node_name = node.name or node.output[0]
                yield f"{attribute.name} of {node.op_type} `{node_name}`"
                yield from _iterate_subgraph_names(attribute.g)


@dataclass
class _ExecutionCounter:
    """A helper that adds nodes that count the executions of a model's `size` subgraphs."""

    size: int
    subgraph_index: int = 0
    name_count: int = 0

    def make_counts_value_info(self, name: str) -> Any:
        """Return the value info of a tensor i64[size]."""
        return helper.make_tensor_value_info(name, TensorProto.INT64, [self.size])

    def add_counts(self, graph: GraphProto, terms: list[str]) -> str:
        """Add nodes that sum `terms` and all subgraphs' execution counts. Return the sum's name."""
        nodes = list[NodeProto]()
        for node in graph.node:
            if any(True for _ in iterate_node_subgraphs(node)):
                terms = [*terms, self._add_node_counts(node, nodes)]
            nodes.append(node)
        if not terms:
            terms = [self._make_constant(None, nodes)]
        sum_name, *other_terms = terms
        for term in other_terms:
            nodes.append(helper.make_node("Add", [sum_name, term], [self._make_name()]))
            sum_name = nodes[-1].output[0]
        _replace_nodes(graph, nodes)
        return sum_name

    def _add_node_counts(self, node: NodeProto, nodes: list[NodeProto]) -> str:
        """Add an output to `node` that contains the execution counts of the node's subgraphs, and
        append constants to `nodes`.
        """
        result = self._make_name()
        if node.op_type == "If":
            for body in iterate_node_subgraphs(node):
                body.output.append(self.make_counts_value_info(self._add_body_counts(body, [])))
            node.output.append(result)
            return result
        (body,) = iterate_node_subgraphs(node)
        # the inputs of a `Loop` are the trip count, the condition, and the loop-carried values
        counter_count, scan_input_count = 2, 0
        if node.op_type == "Scan":
            counter_count, scan_input_count = (
                0,
                next(a.i for a in node.attribute if a.name == "num_scan_inputs"),
            )
        carry_count = len(body.input) - counter_count - scan_input_count
        carry = self._make_name()
        counts = self._add_body_counts(body, [carry])
        zeros = self._make_constant(None, nodes)
        _insert_repeated(node.input, counter_count + carry_count, zeros)
        _insert_repeated(
            body.input, counter_count + carry_count, self.make_counts_value_info(carry)
        )
        _insert_repeated(
            body.output, carry_count + (node.op_type == "Loop"), self.make_counts_value_info(counts)
        )
        _insert_repeated(node.output, carry_count, result)
        return result

    def _add_body_counts(self, body: GraphProto, terms: list[str]) -> str:
        """Add nodes that sum `terms` and all counts inside `body`. Return the sum's name."""
        new_nodes = list[NodeProto]()
        execution_count = self._make_constant(self.subgraph_index, new_nodes)
        self.subgraph_index += 1
        counts = self.add_counts(body, [*terms, execution_count])
        _replace_nodes(body, [*new_nodes, *body.node])
        return counts

    def _make_constant(self, index: int | None, nodes: list[NodeProto]) -> str:
        """Add a constant i64[size] that is 1 at `index`, and 0 elsewhere. Return its name."""
        counts = np.zeros(self.size, np.int64)
        if index is not None:
            counts[index] = 1
        name = self._make_name()
        value = numpy_helper.from_array(counts)
        nodes.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def _make_name(self) -> str:
        self.name_count += 1
        return f"{EXECUTION_COUNTS_OUTPUT}.{self.name_count}"


def _replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace a graph's nodes with copies of `nodes`, because deleting a node clears it."""
    copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _insert_repeated(field: Any, index: int, value: Any) -> None:
    """Insert an element into a repeated protobuf field, which has no method `insert`."""
    values = [v if isinstance(v, str) else type(v).FromString(v.SerializeToString()) for v in field]
    del field[:]
    field.extend([*values[:index], value, *values[index:]])


PROVIDERS_WITHOUT_WEIGHTS = frozenset({"cuda"})
"""Providers whose `Attention` kernel never returns attention weights (ONNX Runtime 1.31)."""


def add_attention_outputs(
    model: ModelProto, locations: Iterable[Mapping[str, str]]
) -> dict[str, str]:
    """Add an output with attention weights `[b, h, q, k]` for each attention layer in `locations`
    that the model contains. Return the output names, keyed by scope. If several layers have the
    same scope, the scopes are numbered.
    """
    names: dict[str, str] = {}
    for location in locations:
        for name in ("mask", "added", "blocks"):
            _inline_branch(model, location.get(name, ""), "else_branch")
        value = location.get("weights") or _expose_weights_output(model, location)
        if value is None:
            continue
        if value not in {o.name for o in model.graph.output}:
            type_code = ONNX_TYPE_CODES.get(location.get("dtype", "f32"), ONNX_TYPE_CODES["f32"])
            model.graph.output.append(helper.make_tensor_value_info(value, type_code, None))
        scope, n = location.get("scope", ""), 1
        while (name := scope if n == 1 else f"{scope} {n}") in names:
            n += 1
        names[name] = value
    return names


def _expose_weights_output(model: ModelProto, location: Mapping[str, str]) -> str | None:
    """Expose the attention weights of a layer as a value of the model. Return the value's name, or
    None if the model does not contain the layer.
    """
    # If a branch was inlined, the value in the branch has the name of the `If` result.
    value = location.get("blocks") or location.get("guard") or location.get("node", "")
    if "guard" in location:
        _inline_branch(model, value, "then_branch")
    node = _find_producer(model, value)
    if node is None or node.op_type != "Attention":
        return None
    if len(node.output) < 4 or not node.output[3]:
        _add_weights_output(node, f"{value}:weights")
    name: str = node.output[3]
    return name


def _add_weights_output(node: NodeProto, name: str) -> None:
    """Add the attention weights (softmax output) as the fourth output of an `Attention` node."""
    del node.output[1:]
    node.output.extend(["", "", name])
    mode = "qk_matmul_output_mode"
    for attribute in [a for a in node.attribute if a.name == mode]:
        node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(mode, PROBABILITIES_OUTPUT_MODE))


def _inline_branch(model: ModelProto, guard: str, branch: str) -> None:
    """Replace the `If` that computes `guard` with the nodes of one branch."""
    node = _find_producer(model, guard)
    if node is None or node.op_type != "If":
        return
    body = next(a.g for a in node.attribute if a.name == branch)
    names = {
        body_output.name: node_output
        for body_output, node_output in zip(body.output, node.output, strict=True)
    }
    index = list(model.graph.node).index(node)
    del model.graph.node[index]
    for offset, body_node in enumerate(body.node):
        copy = NodeProto.FromString(body_node.SerializeToString())
        copy.output[:] = [names.get(o, o) for o in body_node.output]
        model.graph.node.insert(index + offset, copy)


def _find_producer(model: ModelProto, value: str) -> NodeProto | None:
    return next((n for n in model.graph.node if value and value in n.output), None)
