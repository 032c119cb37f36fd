"""Find the attention nodes of a graph, and compute their attention weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from specc import backend
from specc.diagnostics.render import format_repr, render_html_table
from specc.ir import ops
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Node, Value, collect_required_nodes, select_entries
from specc.ir.op import Op


@dataclass(frozen=True)
class AttentionNode:
    """The attention weights `value` [… query, key] and their enclosing `loops`, outermost loop
    first.
    """

    value: Value
    query_dim: Dim
    key_dim: Dim
    loops: tuple[Node, ...] = ()
    mask: Value | None = None
    """The attention mask, or None if the attention has no mask."""


def find_attention_nodes(graph: Graph) -> dict[str, AttentionNode]:
    """Return the attention nodes of a graph, keyed by scope, in graph order. If a scope has several
    attention nodes, they are numbered: `self.attn`, `self.attn 2`.
    """
    locations: dict[str, AttentionNode] = {}
    for scope, location in _iterate_locations(graph, ()):
        name, number = scope, 1
        while name in locations:
            number += 1
            name = f"{scope} {number}"
        locations[name] = location
    return locations


def _get_weights_and_mask(
    node: Node, results: Sequence[Value | None]
) -> tuple[Value | None, Value | None]:
    """Return the attention weights and the mask of a node; a value that the node lacks is None."""
    if isinstance(node.op, ops.Attend):
        return results[1], node.op.mask(node)
    if not isinstance(node.op, ops.WeightedSum):
        return None, None
    softmax = node.first_operand.node if node.first_operand else None
    if softmax is None or not isinstance(softmax.op, ops.AttentionNormalizer):
        return node.first_operand, None
    return node.first_operand, softmax.op.mask(softmax)


def _iterate_locations(
    graph: Graph, loops: tuple[Node, ...]
) -> Iterator[tuple[str, AttentionNode]]:
    for node, results in graph.nodes:
        if isinstance(node.op, ops.Scan):
            yield from _iterate_locations(node.op.body, (*loops, node))
            continue
        value, mask = _get_weights_and_mask(node, results)
        if value is None:
            continue
        query_dim, key_dim = value.shape[-2:]
        # Each iteration processes one query, so the number of queries is the number of iterations.
        if loops and query_dim.number == 1:
            query_dim = _get_iteration_count(loops[-1])
        origin = graph.node_origins.get(node)
        for scope in (origin.scopes if origin else ()) or ("attention",):
            yield scope, AttentionNode(value, query_dim, key_dim, loops, mask)


def _get_iteration_count(loop: Node) -> Dim:
    """Return the trip count of a loop as a symbolic dimension."""
    op = loop.op
    assert isinstance(op, ops.Scan)
    scanned = op.get_first_scanned_operand(loop)
    assert scanned is not None, "a scan node has no optional operands"
    return scanned.shape[op.axis]


def compute_attention_weights(
    graph: Graph, inputs: Arrays, output_weights: Arrays, get_parameters: Callable[[], Arrays]
) -> Arrays:
    """Compute the attention weights [batch, heads, query, key] of every layer, keyed by scope.
    `inputs` are prepared inputs, and `output_weights` are attention weights that the compiled model
    outputs. `get_parameters` loads the parameters of the model. It is called only if
    `output_weights` lacks attention weights that depend on parameters.
    """
    locations = find_attention_nodes(graph)
    weights_by_scope = {
        n: output_weights[n]
        for n, p in locations.items()
        if _is_returned(n, p, output_weights, locations)
    }
    remaining = {n: (p.loops, p.value) for n, p in locations.items() if n not in weights_by_scope}
    computed = _evaluate_values(graph, remaining, inputs, get_parameters)
    weights_by_scope |= {n: np.asarray(weights, np.float32) for n, weights in computed.items()}
    shaped = {
        name: _reshape_weights(weights_by_scope[name], location)
        for name, location in locations.items()
    }
    return {n: w for name, weights in shaped.items() for n, w in _split_iterations(name, weights)}


def compute_masked_positions(
    graph: Graph,
    inputs: Arrays,
    shapes: Mapping[str, tuple[int, ...]],
    get_parameters: Callable[[], Arrays],
) -> Arrays:
    """Return the masked-out positions of each attention layer by scope, bool [batch, heads, query,
    key]. `shapes` are the shapes of the attention weights. Layers without a mask are omitted.
    """
    locations = find_attention_nodes(graph)
    masks = {n: (p.loops, p.mask) for n, p in locations.items() if p.mask is not None}
    masked_positions: dict[str, Array] = {}
    for name, mask in _evaluate_values(graph, masks, inputs, get_parameters).items():
        is_masked = _reshape_weights(~np.asarray(mask, np.bool_), locations[name])
        for iteration, is_masked_in_iteration in _split_iterations(name, is_masked):
            if iteration in shapes:
                masked_positions[iteration] = np.broadcast_to(
                    is_masked_in_iteration, shapes[iteration]
                )
    return masked_positions


ITERATION_SEPARATOR = " turn "
"""Separator between the scope of an attention layer in a loop and the iteration number."""


def _split_iterations(name: str, weights: Array) -> Iterator[tuple[str, Array]]:
    """Split weights [batch, heads, iteration, query, key] into one map per iteration (1, 2, …)."""
    if weights.ndim != 5:
        yield name, weights
        return
    for number in range(weights.shape[2]):
        yield f"{name}{ITERATION_SEPARATOR}{number + 1}", weights[:, :, number]


def _reshape_weights(weights: Array, location: AttentionNode) -> Array:
    """Move the iteration axes of the enclosing loops before the query axis, and drop a query axis
    of size 1. If the weights have no head axis, insert a head axis of size 1 after the batch axis.
    """
    iterations = len(location.loops)
    # the iteration axis of the outermost loop was added last
    for loop_index, loop in enumerate(location.loops):
        assert isinstance(loop.op, ops.Scan)
        weights = np.moveaxis(weights, loop_index + loop.op.axis, loop_index)
    for _ in range(iterations):
        weights = np.moveaxis(weights, 0, -3)
    if iterations and weights.shape[-2] == 1:
        weights = weights[..., 0, :]
    return weights[:, None] if weights.ndim == 3 else weights


NestedValues: TypeAlias = Mapping[str, tuple[tuple[Node, ...], Value]]
"""Graph values by name, each with its enclosing loops, outermost loop first."""


def _evaluate_values(
    graph: Graph, requested: NestedValues, inputs: Arrays, parameters: Callable[[], Arrays]
) -> Arrays:
    """Evaluate values in a graph and in its loop bodies. Values of a loop body are stacked over the
    iterations. `parameters` is called only if a value depends on parameters.
    """
    if not requested:
        return {}
    extended_graph, added_outputs = _add_outputs(graph, requested)
    used_values = {
        a for node in collect_required_nodes(added_outputs.values()) for a in node.args
    } | {*added_outputs.values()}
    used_parameters = {n: v for n, v in extended_graph.parameters.items() if v in used_values}
    extended_graph = replace(
        extended_graph, parameters=used_parameters, outputs=added_outputs, names={}
    )
    return backend.load_reference_backend().evaluate_graph(
        extended_graph, inputs, parameters() if used_parameters else {}
    )


def _is_returned(
    name: str, location: AttentionNode, returned: Arrays, locations: Mapping[str, AttentionNode]
) -> bool:
    """Return True if the model output `name` contains the attention weights of `location`."""
    # Inside a loop, an output of the model contains one slice per iteration. If a scope has two
    # attention nodes, a model compiled by another version may output either node.
    if location.loops or name not in returned or {f"{name} 2"} & {*returned, *locations}:
        return False
    return np.ndim(returned[name]) == location.value.rank


def _add_outputs(graph: Graph, requested: NestedValues) -> tuple[Graph, dict[str, Value]]:
    """Return a copy of the graph with the requested values as additional outputs, and these
    outputs.
    """
    builder = GraphBuilder()
    copies = builder.copy_inputs_and_parameters(graph)
    added_outputs: dict[str, Value] = {}
    for node, results in graph.nodes:
        body_values = {
            n: (loops[1:], v) for n, (loops, v) in requested.items() if loops and loops[0] is node
        }
        op, names = _add_loop_outputs(node.op, body_values) if body_values else (node.op, ())
        copied_results = builder.copy_node(graph, node, copies, op)
        copies.update(zip(results, copied_results, strict=False))
        added_outputs.update(zip(names, copied_results[len(results) :], strict=True))
    added_outputs.update({n: copies[value] for n, (loops, value) in requested.items() if not loops})
    outputs = {n: copies[v] for n, v in graph.outputs.items()}
    return builder.clone_graph(graph, copies, {**outputs, **added_outputs}), added_outputs


def _add_loop_outputs(op: Op, body_values: NestedValues) -> tuple[Op, tuple[str, ...]]:
    """Return a copy of the loop with additional scan outputs for `body_values`, and the names of
    these outputs. The copy computes the same results, but has no early exit: it runs all
    iterations.
    """
    assert isinstance(op, ops.Scan)
    body, added_outputs = _add_outputs(op.body, body_values)
    outputs = select_entries(body.outputs, op.body.outputs)
    return replace(
        op,
        body=replace(
            body, outputs={**outputs, **{f"weights of {n}": v for n, v in added_outputs.items()}}
        ),
        end_condition_index=-1,
    ), tuple(added_outputs)


class AttentionWeights(dict[str, Array]):
    """Attention weights [batch, heads, query, key], keyed by scope, in execution order."""

    def __repr__(self) -> str:
        first = ", ".join(f"{scope} {list(x.shape)}" for scope, x in self.items())
        return format_repr(f"attention of {len(self)} scopes: {first}")

    def _repr_html_(self) -> str:
        """Return the scopes and shapes of the attention weights as an HTML table for notebooks."""
        shapes = [(scope, str(list(x.shape))) for scope, x in self.items()]
        return render_html_table("attention: batch, heads, query, key", shapes)
