"""Locate the attention layers of a graph and compute their attention weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from specc import backend
from specc.diagnostics.render import format_repr, render_html_table
from specc.ir import ops
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Node, Value, collect_required_nodes
from specc.ir.op import Op


@dataclass(frozen=True)
class AttentionNode:
    """The location of attention weights [… query, key] in a graph: a `value` inside the nested
    `loops`, outermost first.
    """

    value: Value
    query_dim: Dim
    key_dim: Dim
    loops: tuple[Node, ...] = ()
    mask: Value | None = None
    """The attention mask, if known."""


def locate_attention_nodes(graph: Graph) -> dict[str, AttentionNode]:
    """Return all attention nodes by scope, in graph order; repeated scopes are numbered."""
    found: dict[str, AttentionNode] = {}
    for scope, location in _iterate_locations(graph, ()):
        name, n = scope, 1
        while name in found:
            n += 1
            name = f"{scope} {n}"
        found[name] = location
    return found


def _get_weights_and_mask(
    node: Node, results: Sequence[Value | None]
) -> tuple[Value | None, Value | None]:
    """Return the attention weights and the mask of an attention node, each None if missing."""
    if isinstance(node.op, ops.Attend):
        return results[1], node.op.mask(node)
    if not isinstance(node.op, ops.WeightedSum):
        return None, None
    softmax = node.first_operand.node if node.first_operand else None
    if softmax is None or not isinstance(softmax.op, ops.MaskedWeights):
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
        queries, keys = value.type.shape[-2:]
        # Each iteration has one query, so the number of queries is the number of iterations.
        if loops and queries.number == 1:
            queries = _get_iteration_count(loops[-1])
        made = graph.node_origins.get(node)
        for scope in (made.scopes if made else ()) or ("attention",):
            yield scope, AttentionNode(value, queries, keys, loops, mask)


def _get_iteration_count(loop: Node) -> Dim:
    """Return the trip count of a loop, as a symbolic dimension."""
    op = loop.op
    assert isinstance(op, ops.Scan)
    row = op.get_first_scanned(loop)
    assert row is not None, "a scan has no optional operands"
    return row.type.shape[op.axis]


def compute_attention_weights(
    graph: Graph, inputs: Arrays, returned: Arrays, parameters: Callable[[], Arrays]
) -> Arrays:
    """Compute the attention weights [batch, heads, query, key] of every layer, by scope, for
    prepared inputs. `returned` are the attention weights that the compiled model outputs.
    `parameters` loads the model's parameters; it is called only if the remaining attention weights
    depend on them.
    """
    locations = locate_attention_nodes(graph)
    found = {
        n: returned[n] for n, p in locations.items() if _is_returned(n, p, returned, locations)
    }
    rest = {n: (p.loops, p.value) for n, p in locations.items() if n not in found}
    computed = _evaluate_values(graph, rest, inputs, parameters)
    found |= {n: np.asarray(weights, np.float32) for n, weights in computed.items()}
    shaped = {name: _reshape_weights(found[name], location) for name, location in locations.items()}
    return {n: w for name, each in shaped.items() for n, w in _split_iterations(name, each)}


def find_masked_positions(
    graph: Graph,
    inputs: Arrays,
    shapes: Mapping[str, tuple[int, ...]],
    parameters: Callable[[], Arrays],
) -> Arrays:
    """Compute the masked-out positions by scope, bool [batch, heads, query, key], for layers whose
    attention weights have these `shapes`. Layers without a mask are omitted.
    """
    locations = locate_attention_nodes(graph)
    masks = {n: (p.loops, p.mask) for n, p in locations.items() if p.mask is not None}
    found: dict[str, Array] = {}
    for name, mask in _evaluate_values(graph, masks, inputs, parameters).items():
        hidden = _reshape_weights(~np.asarray(mask, np.bool_), locations[name])
        for iteration, each in _split_iterations(name, hidden):
            if iteration in shapes:
                found[iteration] = np.broadcast_to(each, shapes[iteration])
    return found


ITERATION_SEPARATOR = " turn "
"""Separator between the scope of an attention layer in a loop and the iteration number."""


def _split_iterations(name: str, weights: Array) -> Iterator[tuple[str, Array]]:
    """Split attention weights [batch, heads, iteration, query, key] into one map per loop
    iteration, numbered from 1.
    """
    if weights.ndim != 5:
        yield name, weights
        return
    for number in range(weights.shape[2]):
        yield f"{name}{ITERATION_SEPARATOR}{number + 1}", weights[:, :, number]


def _reshape_weights(weights: Array, location: AttentionNode) -> Array:
    """Merge loop axes into the query axis, and insert a head axis after the batch axis if there is
    none.
    """
    iterations = len(location.loops)
    for at, loop in enumerate(location.loops):  # the outermost loop was stacked last
        assert isinstance(loop.op, ops.Scan)
        weights = np.moveaxis(weights, at + loop.op.axis, at)
    for _ in range(iterations):
        weights = np.moveaxis(weights, 0, -3)
    if iterations and weights.shape[-2] == 1:
        weights = weights[..., 0, :]
    return weights[:, None] if weights.ndim == 3 else weights


NestedValues: TypeAlias = Mapping[str, tuple[tuple[Node, ...], Value]]
"""Values by name, each with its enclosing loops, outermost first."""


def _evaluate_values(
    graph: Graph, requested: NestedValues, inputs: Arrays, parameters: Callable[[], Arrays]
) -> Arrays:
    """Evaluate values inside loops, stacked over the iterations. `parameters` is called if a value
    depends on parameters.
    """
    if not requested:
        return {}
    tapped, taps = _add_outputs(graph, requested)
    read = {a for node in collect_required_nodes(taps.values()) for a in node.args} | {
        *taps.values()
    }
    needed = {n: v for n, v in tapped.parameters.items() if v in read}
    tapped = replace(tapped, parameters=needed, outputs=taps, names={})
    return backend.load_reference().evaluate_graph(tapped, inputs, parameters() if needed else {})


def _is_returned(
    name: str, location: AttentionNode, returned: Arrays, locations: Mapping[str, AttentionNode]
) -> bool:
    """Return True if the model output `name` contains the attention weights at this location."""
    # A loop outputs one slice per iteration. If a scope has two attention nodes, either of them may
    # be the output of a model that another version compiled.
    if location.loops or name not in returned or {f"{name} 2"} & {*returned, *locations}:
        return False
    return np.ndim(returned[name]) == location.value.type.rank


def _add_outputs(graph: Graph, requested: NestedValues) -> tuple[Graph, dict[str, Value]]:
    """Return a copy of the graph in which loops also output the requested values, and these outputs
    by name.
    """
    builder = GraphBuilder()
    copied = builder.copy_inputs_and_parameters(graph)
    taps: dict[str, Value] = {}
    for node, results in graph.nodes:
        inner = {
            n: (loops[1:], v) for n, (loops, v) in requested.items() if loops and loops[0] is node
        }
        op, names = _add_loop_outputs(node.op, inner) if inner else (node.op, ())
        results_of_copy = builder.copy_node(graph, node, copied, op)
        copied.update(zip(results, results_of_copy, strict=False))
        taps.update(zip(names, results_of_copy[len(results) :], strict=True))
    taps.update({n: copied[value] for n, (loops, value) in requested.items() if not loops})
    outputs = {n: copied[v] for n, v in graph.outputs.items()}
    return builder.finish_copy(graph, copied, {**outputs, **taps}), taps


def _add_loop_outputs(op: Op, inner: NestedValues) -> tuple[Op, tuple[str, ...]]:
    """Return the loop with scan outputs for the wanted body values, and their names in order. A
    loop with an early exit then runs all iterations, which does not change its results.
    """
    assert isinstance(op, ops.Scan)
    body, taps = _add_outputs(op.body, inner)
    outputs = {n: v for n, v in body.outputs.items() if n in op.body.outputs}
    return replace(
        op,
        body=replace(body, outputs={**outputs, **{f"weights of {n}": v for n, v in taps.items()}}),
        end_condition_index=-1,
    ), tuple(taps)


class AttentionWeights(dict[str, Array]):
    """Attention weights [batch, heads, query, key] by scope, in the order of the model."""

    def __repr__(self) -> str:
        first = ", ".join(f"{scope} {list(x.shape)}" for scope, x in self.items())
        return format_repr(f"attention of {len(self)} scopes: {first}")

    def _repr_html_(self) -> str:
        """Return scopes and shapes as an HTML table for notebooks."""
        shapes = [(scope, str(list(x.shape))) for scope, x in self.items()]
        return render_html_table("attention: batch, heads, query, key", shapes)
