"""The table of lowering rules, and the function that lowers all nodes of a graph.

A rule's arguments are the op, the emitter, and one `Tensor` per operand (None for an absent
optional operand). The rule returns the results, with None for each unused result. The types of the
results are in `g.context`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import TypeAlias

from onnx import NodeProto

from specc.diagnostics.render import extract_docstring_summary
from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Input, Node, NodeOrigin, Value
from specc.ir.op import OpRuleTable
from specc_onnx.lower.emitter import Emitter, LoweringContext
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.sigmoid_precision import find_precision_sensitive_sigmoids

LoweringRule: TypeAlias = Callable[..., OnnxValue | tuple[OnnxValue | None, ...]]

lower: OpRuleTable[LoweringRule] = OpRuleTable("onnx")
"""The lowering rules, keyed by op. Importing `specc_onnx.write.onnx_graph` registers all rules."""


def lower_nodes(g: Emitter, graph: Graph, selected_nodes: Collection[Node] | None = None) -> None:
    """Lower the nodes of `graph`, or only `selected_nodes`. Add results to `g.values.tensors`."""
    outer_context = g.context
    use_counts = count_value_users(graph)
    # If values are recomputed in blocks, the use counts of the whole graph are kept.
    known_counts = g.analysis.use_counts
    known_counts.update({v: n for v, n in use_counts.items() if v not in known_counts})
    g.analysis.split_ends.update(_find_tilings(graph))
    accurate_sigmoids = find_precision_sensitive_sigmoids(graph)
    for node, results in graph.nodes:
        if selected_nodes is None or node in selected_nodes:
            g.context = LoweringContext(
                graph.node_origins.get(node, NodeOrigin()).scopes,
                tuple(r.type for r in results),
                tuple(r in use_counts for r in results),
                not accurate_sigmoids.isdisjoint(results),
            )
            _lower_node(g, node, results)
    g.context = outer_context


def _lower_node(g: Emitter, node: Node, results: Sequence[Value]) -> None:
    """Lower a node by its op's rule, and record the tensors and types of its results."""
    nodes = g.innermost_body.nodes
    node_count = len(nodes)
    operands = (None if a is None else g.values.tensors[a] for a in node.args)
    values = lower[node.op](node.op, g, *operands)
    if node.op.is_compute_intensive:
        summary = extract_docstring_summary(type(node.op).__doc__)
        _add_doc_string(nodes[node_count:], summary, g.scope_prefix)
    values = (values,) if isinstance(values, OnnxValue) else values
    for result, value in zip(results, values, strict=True):
        if value is not None:
            g.values.tensors[result] = value.with_type(result.type, result)
            g.innermost_body.types[value.name] = result.type


def lower_by_expansion(
    g: Emitter,
    args: Sequence[Tensor | None],
    add_nodes: Callable[[GraphBuilder, Sequence[Value | None]], Sequence[Value]],
) -> tuple[OnnxValue, ...]:
    """Lower the IR nodes to which `add_nodes` expands an op with the operands `args`."""
    b = GraphBuilder()
    inputs = [b.add_input(f"x{n}", Input(a.type)) if a else None for n, a in enumerate(args)]
    results = add_nodes(b, inputs)
    g.values.tensors.update((v, t) for v, t in zip(inputs, args, strict=True) if v and t)
    lower_nodes(g, b.build_graph("expansion", {f"y{n}": v for n, v in enumerate(results)}))
    return tuple(g.get_tensors(results))


def count_value_users(graph: Graph) -> Counter[Value]:
    """Count the users of each value. A graph output counts as a user."""
    counts = Counter(a for node, _ in graph.nodes for a in node.args if a is not None)
    counts.update(graph.outputs.values())
    return counts


def _add_doc_string(nodes: Sequence[NodeProto], doc: str, scope_prefix: str) -> None:
    """Set the doc string of a scope's first direct node, or of the first node if there is none."""
    scope_nodes = [n for n in nodes if n.name.rpartition("/")[0] == scope_prefix]
    for node in (scope_nodes or nodes)[:1]:
        node.doc_string = doc


def _find_tilings(graph: Graph) -> dict[Value, dict[int, tuple[int, ...]]]:
    """Map values and axes to the ascending ends of the static slices that partition the axis."""
    slices_by_axis: dict[tuple[Value, int], set[tuple[int, int]]] = defaultdict(set)
    for node, _ in graph.nodes:
        match node.op, node.args:
            case ops.Slice(axis=axis, start=start, stop=stop), (Value() as x,):
                start_index, stop_index = (
                    -1 if d.number is None else d.number for d in (start, stop)
                )
                slices_by_axis[x, axis].add((start_index, stop_index))
    tilings: dict[Value, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for (x, axis), intervals in slices_by_axis.items():
        stops = tuple(sorted(stop for _, stop in intervals))
        covers_axis = stops[-1] == x.type.shape[axis].number
        if covers_axis and len(stops) > 1 and intervals == {*pairwise((0, *stops))}:
            tilings[x][axis] = stops
    return tilings
