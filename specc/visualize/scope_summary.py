"""Summarize a graph as a tree of scopes with shapes, weights and costs (`specc show`). Equal layers
are merged.

Scopes are the prefixes of parameter names: `h.3.attn.c_proj` is part of `h.3.attn`, which is part
of `h.3`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from specc.analysis.length_limits import find_max_lengths
from specc.analysis.local_attention_plan import plan_blocked_attention
from specc.analysis.model_cost import count_blocked_multiply_adds, count_multiply_adds
from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import Type


@dataclass(kw_only=True)
class ScopeSummary:
    """A scope: its name, output type, parameters, multiply-adds and child scopes.

    `saved_multiply_adds` are the multiply-adds that blocked attention saves. `members` are the
    names of the equal scopes that this node represents.
    """

    name: str
    type: Type | None = None
    op: str = ""
    parameter_count: Dim = Dim.from_value(0)
    multiply_adds: Dim = Dim.from_value(0)
    saved_multiply_adds: Dim = Dim.from_value(0)
    children: dict[str, "ScopeSummary"] = field(default_factory=dict)
    repeats: int = 1
    members: tuple[str, ...] = ()

    def sum_over_subtree(self, field_name: str) -> Dim:
        """Return the sum of the field `field_name` over this scope and its descendants."""
        node_value: Dim = getattr(self, field_name)
        return (
            node_value + sum_dims(p.sum_over_subtree(field_name) for p in self.children.values())
        ) * self.repeats

    def get_comparison_key(self) -> tuple[object, ...]:
        """Return a key that is equal for scopes that differ only in name."""
        children = tuple((n, self.children[n].get_comparison_key()) for n in sorted(self.children))
        costs = (self.parameter_count, self.multiply_adds, self.saved_multiply_adds, self.repeats)
        return (str(self.type), self.op, *costs, children)


def _get_parameter_scope(parameter: str) -> str:
    """Return the scope of a parameter: the parent for a `weight` or `bias`, otherwise the
    parameter.
    """
    scope, _, leaf = parameter.rpartition(".")
    return scope if leaf in ("weight", "bias") else parameter


def summarize_graph(graph: Graph, lengths: Mapping[str, int] | None = None) -> ScopeSummary:
    """Return the tree of scopes of a graph, with types, parameter counts and multiply-adds.

    `lengths` maps symbolic dimensions to sizes. Attention is counted as dense if the sequence
    length does not exceed the threshold of blocked attention.
    """
    root = ScopeSummary(name=graph.name)
    padding_masks = [graph.inputs[n] for n, f in graph.input_facts.items() if f.padding_side]
    # The sizes in `lengths` replace the maximum sizes of the graph.
    max_lengths = find_max_lengths(graph) | dict(lengths or {})
    _create_ordered_children(graph, root)
    for node, results in graph.nodes:
        child = _add_node(graph, root, node, results[0].type)
        child.saved_multiply_adds += _count_saved_multiply_adds(node, padding_masks, max_lengths)
    for name, facts in graph.parameter_facts.items():
        child = _get_or_add_child(root, _get_parameter_scope(name))
        child.parameter_count = child.parameter_count + multiply_dims(facts.type.shape)
    # The output of a call is named after the path of the call, not after the path of its last op.
    # Names with a colon are internal values.
    for name, value in graph.names.items():
        if ":" not in name and (scope := _find_child(root, name)):
            scope.type = value.type
    # the last node of the graph may not be an output of the model
    root.type = None
    _merge_equal_children(root)
    return root


def _create_ordered_children(graph: Graph, root: ScopeSummary) -> None:
    """Create the child scopes in the order in which the graph first uses their weights. Scopes
    without weights, such as masks, do not affect the order.
    """
    weights = set(graph.parameters.values())
    for node, _ in graph.nodes:
        if node.op.is_compute_intensive or weights.intersection(node.args):
            _get_or_add_child(root, graph.get_scope(node))


def _add_node(graph: Graph, root: ScopeSummary, node: Node, type: Type) -> ScopeSummary:
    """Add the cost and the type of a node to its scope."""
    child = _get_or_add_child(root, graph.get_scope(node))
    child.multiply_adds = child.multiply_adds + count_multiply_adds(node)
    child.type = type
    # The type of a scope is the result type of its most expensive op. A reshape does not determine
    # the type.
    if node.op.is_compute_intensive or not child.op:
        child.op = node.op.spec_name
    return child


def _count_saved_multiply_adds(
    node: Node, padding_masks: Collection[Value], max_lengths: Mapping[str, int]
) -> Dim:
    """Return the multiply-adds that blocked attention saves at a node."""
    blocks = plan_blocked_attention(node, padding_masks)
    # If there is no maximum length, a sequence may be longer than the threshold.
    max_length = max_lengths.get(node.get_operand().shape[2].name or "", inf) if blocks else 0
    if blocks is None or max_length <= blocks.length_threshold:
        return Dim.from_value(0)
    return count_multiply_adds(node) - count_blocked_multiply_adds(node, blocks)


def _get_or_add_child(root: ScopeSummary, scope: str) -> ScopeSummary:
    child = root
    for name in scope.split(".") if scope else []:
        child = child.children.setdefault(name, ScopeSummary(name=name))
    return child


def _find_child(root: ScopeSummary, scope: str) -> ScopeSummary | None:
    child: ScopeSummary | None = root
    for name in scope.split("."):
        child = child.children.get(name) if child else None
    return child


def _merge_equal_children(parent: ScopeSummary) -> None:
    """Merge child scopes that differ only in their number, under a name such as `0, 2 … 24`."""
    for child in parent.children.values():
        _merge_equal_children(child)
    equal_children: dict[object, list[ScopeSummary]] = {}
    for child in parent.children.values():
        # Scopes with different names, such as `query` and `key`, are not merged even if they are
        # equal.
        kind = child.get_comparison_key() if child.name.isdecimal() else child.name
        equal_children.setdefault(kind, []).append(child)
    parent.children = {}
    for group in equal_children.values():
        # sort by number, because a layer may be used before layers with lower numbers
        group.sort(key=lambda p: int(p.name) if p.name.isdecimal() else 0)
        first = group[0]
        first.members = tuple(p.name for p in group)
        if len(group) > 1:
            first.name = format_number_ranges([int(p.name) for p in group])
            first.repeats = len(group)
        parent.children[first.name] = first


MAX_LISTED_RUNS = 3
"""Maximum number of ranges in the name of a merged scope."""


def format_number_ranges(numbers: Sequence[int]) -> str:
    """Format at least two increasing integers as ranges: `0 … 11`, `1, 3 … 25`, `0 … 2, 4 … 6`."""
    steps = {b - a for a, b in pairwise(numbers)}
    if steps == {1}:
        return f"{numbers[0]} … {numbers[-1]}"
    if len(steps) == 1 and len(numbers) > 2:
        return f"{numbers[0]}, {numbers[1]} … {numbers[-1]}"
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]} … {r[-1]}" for r in _split_runs(numbers)]
    ellipsis = ["…"] if len(texts) > MAX_LISTED_RUNS else []
    return ", ".join([*texts[:MAX_LISTED_RUNS], *ellipsis])


def _split_runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split increasing integers into ranges of consecutive integers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def iterate_scope_summaries(
    node: ScopeSummary, depth: int = 0
) -> Iterator[tuple[int, ScopeSummary]]:
    """Yield each scope with its depth. Parents precede their children. A scope that contains only
    one child is merged with the child: `h.0 … 11`.
    """
    merged = node
    while (
        depth
        and len(merged.children) == 1
        and not merged.parameter_count.terms
        and not merged.multiply_adds.terms
    ):
        (child,) = merged.children.values()
        merged = replace(
            child, name=f"{merged.name}.{child.name}", repeats=merged.repeats * child.repeats
        )
    yield depth, merged
    for child in merged.children.values():
        yield from iterate_scope_summaries(child, depth + 1)


def graph_to_json(
    graph: Graph, sizes: Mapping[str, int], parameter_count: Dim
) -> dict[str, object]:
    """Convert a graph with `parameter_count` parameters to a JSON object: inputs, results and
    scopes.

    Static dimensions and counts are integers, and symbolic values are formulas such as `4*seq^2`.
    """
    return {
        "graph": graph.name,
        "inputs": [_format_typed(n, v.type, sizes) for n, v in graph.inputs.items()],
        "results": [_format_typed(n, v.type, sizes) for n, v in graph.outputs.items()],
        "parameters": parameter_count.number,
        "tree": _scope_to_json(summarize_graph(graph, sizes), sizes),
    }


def _scope_to_json(scope: ScopeSummary, sizes: Mapping[str, int]) -> dict[str, object]:
    """Convert a scope to a JSON object. The totals of the scope include all `repeats` layers."""
    multiply_adds = scope.sum_over_subtree("multiply_adds")
    saved = scope.sum_over_subtree("saved_multiply_adds")
    return {
        "name": scope.name,
        "op": scope.op if not scope.children else "",
        "repeats": scope.repeats,
        "shape": [_format_dim(d, sizes) for d in scope.type.shape] if scope.type else None,
        "weights": _format_dim(scope.sum_over_subtree("parameter_count"), sizes),
        "multiply_adds": _format_dim(multiply_adds - saved, sizes),
        "dense_multiply_adds": _format_dim(multiply_adds, sizes),
        "children": [_scope_to_json(part, sizes) for part in scope.children.values()],
    }


def _format_typed(name: str, type: Type, sizes: Mapping[str, int]) -> dict[str, object]:
    shape = [_format_dim(dim, sizes) for dim in type.shape]
    return {"name": name, "dtype": type.dtype, "shape": shape}


def _format_dim(dim: Dim, sizes: Mapping[str, int]) -> int | str:
    """Convert a dimension to an integer, or to a formula in the syntax of the spec language."""
    dim = dim.substitute(sizes)
    return str(dim) if dim.number is None else dim.number
