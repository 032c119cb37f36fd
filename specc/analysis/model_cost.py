"""Count multiply-adds and parameters as formulas of symbolic dimensions, and summarize a graph as a
tree of scopes with shapes, weights and cost.

A multiply-add counts as one operation. Elementwise ops are not counted, because they are
memory-bound. Scopes are the prefixes of parameter names: `h.3.attn.c_proj` is part of `h.3.attn`,
which is part of `h.3`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any

from specc.analysis.blocked_attention_plan import LocalAttentionPlan, plan_local_attention
from specc.analysis.length_limits import find_max_lengths
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_thousands
from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.ir.types import Type

CostFunction = Callable[[Any, list[Type]], Dim]


def _count_quantized_linear(op: ops.QuantizedLinear, types: list[Type]) -> Dim:
    # in every weight layout, the last axis of the result contains the output features
    (result_type, *_) = op.infer_result_types(*types)
    return multiply_dims(types[0].shape) * result_type.shape[-1]


def _count_matmul(op: ops.MatMul, types: list[Type]) -> Dim:
    a, b = types[0].shape, types[1].shape
    # An operand without leading axes is multiplied with every matrix of the other operand.
    leading_shape = max((a[:-2], b[:-2]), key=len)
    return multiply_dims(leading_shape) * multiply_dims(a[-2:]) * b[-1]


def _count_attention(op: ops.Attend, types: list[Type]) -> Dim:
    b, h, q, d = types[0].shape
    keys = types[1].shape[2]
    value_width = types[2].shape[3]
    # Each query-key pair costs one dot product over the key features, and one multiply-add per
    # value feature.
    return b * h * q * keys * (d + value_width)


def _count_window_products(op: ops.PatchEmbedding | ops.Conv, types: list[Type]) -> Dim:
    """Count one dot product per output element, between a filter and the input. The first axis of
    the weight contains the filters. Each filter reads the input channels of its group.
    """
    (result_type, *_) = op.infer_result_types(*types[:2], None)
    return multiply_dims(result_type.shape) * multiply_dims(types[1].shape[1:])


def _count_einsum(op: ops.Einsum, types: list[Type]) -> Dim:
    # an einsum loops over every axis label, kept or summed
    sizes: dict[str, Dim] = {}
    operands = op.equation.split("->")[0].split(",")
    for names, type in zip(operands, types, strict=True):
        sizes.update(zip(names.split(), type.shape, strict=True))
    return multiply_dims(sizes.values())


def _count_scan(op: ops.Scan, types: list[Type]) -> Dim:
    iteration_count = op.split_operands(types).scanned[0].shape[op.axis]
    return iteration_count * sum_dims(count_multiply_adds(n) for n, _ in op.body.nodes)


def _count_mixture_of_experts(op: ops.MixtureOfExperts, types: list[Type]) -> Dim:
    """Count the multiply-adds of each token, once per selected expert."""
    token_count = multiply_dims(op.split_operands(types).ids.shape)
    body_cost = sum_dims(count_multiply_adds(n) for n, _ in op.body.nodes)
    return body_cost.substitute({op.token_count_symbol: token_count})


def _count_recurrent(op: ops.RecurrentLayer, types: list[Type]) -> Dim:
    b, n, input_size = types[0].shape
    # The recurrent matrix contains all gates. The recurrent size of an LSTM with a projection is
    # smaller than its gate size.
    gates, recurrent_size = types[2].shape
    return b * n * gates * (input_size + recurrent_size)


def _count_lstm(op: ops.Lstm, types: list[Type]) -> Dim:
    b, n, _ = types[0].shape
    hidden = divide_dims_exactly(types[1].shape[0], 4)
    projection = (types[2].shape[1], hidden)
    # `types` does not contain absent operands, so the projection is identified by its shape.
    projection_cost = (
        b * n * multiply_dims(projection) if types[-1].shape == projection else Dim.from_value(0)
    )
    return _count_recurrent(op, types) + projection_cost


COST_FUNCTIONS: Mapping[type[Op], CostFunction] = {
    ops.Linear: lambda op, t: multiply_dims(t[0].shape) * t[1].shape[0],
    ops.QuantizedLinear: _count_quantized_linear,
    ops.MatMul: _count_matmul,
    ops.WeightedSum: lambda op, t: multiply_dims(t[0].shape) * t[1].shape[-1],
    ops.Attend: _count_attention,
    ops.PatchEmbedding: _count_window_products,
    ops.Conv: _count_window_products,
    # In a transposed convolution, every input element is multiplied by one filter.
    ops.ConvTranspose: lambda op, t: multiply_dims((*t[0].shape, *t[1].shape[1:])),
    ops.Einsum: _count_einsum,
    ops.Scan: _count_scan,
    ops.MixtureOfExperts: _count_mixture_of_experts,
    ops.Rnn: _count_recurrent,
    ops.Gru: _count_recurrent,
    ops.Lstm: _count_lstm,
    ops.QuantizedLstm: lambda op, t: (
        multiply_dims(t[0].shape[:2]) * (multiply_dims(t[1].shape) + multiply_dims(t[2].shape))
    ),
}
"""The cost functions of the ops that have multiply-adds. A test checks that no op is missing."""


def count_blocked_multiply_adds(node: Node, blocks: LocalAttentionPlan) -> Dim:
    """Return the multiply-adds of an attention node that is computed as blocked attention."""
    assert isinstance(node.op, ops.Attend)
    query = node.op.query(node).shape
    keys = node.op.key(node).shape[2]
    width = query[3] + node.op.values(node).shape[3]
    return multiply_dims(query[:3]) * blocks.count_keys_per_query(keys) * width


def count_multiply_adds(node: Node) -> Dim:
    """Return the multiply-adds of one node, or 0 for uncounted ops such as elementwise ops."""
    cost = COST_FUNCTIONS.get(type(node.op))
    return cost(node.op, [a.type for a in node.operands]) if cost else Dim.from_value(0)


def count_parameters(graph: Graph) -> Dim:
    """Return the number of parameters (elements of all weights) of the graph."""
    return sum_dims(multiply_dims(f.type.shape) for f in graph.parameter_facts.values())


def format_parameter_count(graph: Graph, count: Dim) -> str:
    """Format a parameter count in which tied weights count once. If there are tied weights, also
    format the count of all weights.
    """
    text, total = f"{format_thousands(count.number or 0)} parameters", count_parameters(graph)
    if total == count:
        return text
    return f"{text}, {format_thousands(total.number or 0)} counting tied weights twice"


MAGNITUDE_NAMES = (
    (10**15, "quadrillion"),
    (10**12, "trillion"),
    (10**9, "billion"),
    (10**6, "million"),
)


def format_large_number(number: int) -> str:
    """Format an integer, e.g. `137 billion`. Below one million, format all digits in groups."""
    for size, unit in MAGNITUDE_NAMES:
        # for example, 999.6 million is formatted as 1 billion, not as 1000 million
        if number >= size * 0.9995:
            return f"{number / size:.3g} {unit}"
    return format_thousands(number)


def format_type_with_sizes(type: Type, lengths: Mapping[str, int]) -> str:
    """Format a type with sizes substituted for symbolic dimensions, e.g. `f32[batch, 128, 768]`."""
    return f"{type.dtype}[{', '.join(format_dim_formula(d, lengths) for d in type.shape)}]"


def substitute_lengths(dim: Dim, lengths: Mapping[str, int]) -> Dim:
    """Substitute integers for dimensions. Raise E0407 if the model does not support the sizes."""
    try:
        return dim.substitute(lengths)
    except DimError as error:
        raise_error("E0407", f"unsupported lengths: {error}")


def format_dim_formula(dim: Dim, lengths: Mapping[str, int]) -> str:
    """Format an expression as a formula, e.g. `2·batch·seq²·768`, or as an integer."""
    dim = substitute_lengths(dim, lengths)
    if dim.number is not None:
        return format_thousands(dim.number)
    text = str(dim)
    for power, sign in (("^2", "²"), ("^3", "³")):
        text = text.replace(power, sign)
    return LONG_NUMBER_PATTERN.sub(lambda n: format_thousands(int(n[0])), text.replace("*", "·"))


LONG_NUMBER_PATTERN = re.compile(r"(?<!\w)\d{4,15}(?!\w)")
"""Matches a number with four or more digits that is not part of a name."""


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
    parts: dict[str, "ScopeSummary"] = field(default_factory=dict)
    repeats: int = 1
    members: tuple[str, ...] = ()

    def sum_over_subtree(self, field_name: str) -> Dim:
        """Return the count `field_name` summed over this scope and its children."""
        node_value: Dim = getattr(self, field_name)
        return (
            node_value + sum_dims(p.sum_over_subtree(field_name) for p in self.parts.values())
        ) * self.repeats

    def get_comparison_key(self) -> tuple[object, ...]:
        """Return a merge key: it is equal for scopes that differ only in their names."""
        children = tuple((n, self.parts[n].get_comparison_key()) for n in sorted(self.parts))
        costs = (self.parameter_count, self.multiply_adds, self.saved_multiply_adds, self.repeats)
        return (str(self.type), self.op, *costs, children)


def _get_parameter_scope(parameter: str) -> str:
    """Return the scope of a parameter: the parent of a `weight` or `bias`, else the parameter."""
    scope, _, leaf = parameter.rpartition(".")
    return scope if leaf in ("weight", "bias") else parameter


def summarize_graph(graph: Graph, lengths: Mapping[str, int] | None = None) -> ScopeSummary:
    """Return the tree of scopes of a graph, with types, parameter counts and multiply-adds.

    `lengths` maps symbolic dimensions to sizes. If a sequence does not exceed the threshold of
    blocked attention, its attention is counted as dense.
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
    # A call's output is named by the call's path, not by the path of its last op. Names with a
    # colon are internal values.
    for name, value in graph.names.items():
        if ":" not in name and (scope := _find_child(root, name)):
            scope.type = value.type
    # the last node of the graph may not be an output of the model
    root.type = None
    _merge_equal_children(root)
    return root


def _create_ordered_children(graph: Graph, root: ScopeSummary) -> None:
    """Create the child scopes in the order in which the graph first reads one of their weights.
    Scopes without weights, such as masks, do not affect the order.
    """
    weights = set(graph.parameters.values())
    for node, _ in graph.nodes:
        if node.op.is_heavy or weights.intersection(node.args):
            _get_or_add_child(root, graph.get_scope(node))


def _add_node(graph: Graph, root: ScopeSummary, node: Node, type: Type) -> ScopeSummary:
    """Add the cost and the type of a node to its scope."""
    child = _get_or_add_child(root, graph.get_scope(node))
    child.multiply_adds = child.multiply_adds + count_multiply_adds(node)
    child.type = type
    # The type of a scope is the type of its most expensive op, not of a reshape.
    if node.op.is_heavy or not child.op:
        child.op = node.op.spec_name
    return child


def _count_saved_multiply_adds(
    node: Node, padding_masks: Collection[Value], max_lengths: Mapping[str, int]
) -> Dim:
    """Return the multiply-adds that blocked attention saves at a node."""
    blocks = plan_local_attention(node, padding_masks)
    # Without a maximum length, some sequences exceed the threshold.
    max_length = max_lengths.get(node.get_operand().shape[2].name or "", inf) if blocks else 0
    if blocks is None or max_length <= blocks.length_threshold:
        return Dim.from_value(0)
    return count_multiply_adds(node) - count_blocked_multiply_adds(node, blocks)


def _get_or_add_child(root: ScopeSummary, scope: str) -> ScopeSummary:
    child = root
    for name in scope.split(".") if scope else []:
        child = child.parts.setdefault(name, ScopeSummary(name=name))
    return child


def _find_child(root: ScopeSummary, scope: str) -> ScopeSummary | None:
    child: ScopeSummary | None = root
    for name in scope.split("."):
        child = child.parts.get(name) if child else None
    return child


def _merge_equal_children(parent: ScopeSummary) -> None:
    """Merge numbered child scopes that differ only in their names: `0 … 11`, `0, 2 … 24`."""
    for child in parent.parts.values():
        _merge_equal_children(child)
    equal_children: dict[object, list[ScopeSummary]] = {}
    for child in parent.parts.values():
        # Scopes with different names are not merged, even if they are equal: `query` and `key` are
        # not layers.
        kind = child.get_comparison_key() if child.name.isdecimal() else child.name
        equal_children.setdefault(kind, []).append(child)
    parent.parts = {}
    for group in equal_children.values():
        # sorted by number, because a layer may be read before layers with lower numbers
        group.sort(key=lambda p: int(p.name) if p.name.isdecimal() else 0)
        first = group[0]
        first.members = tuple(p.name for p in group)
        if len(group) > 1:
            first.name = format_number_ranges([int(p.name) for p in group])
            first.repeats = len(group)
        parent.parts[first.name] = first


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


def iterate_summary_nodes(node: ScopeSummary, depth: int = 0) -> Iterator[tuple[int, ScopeSummary]]:
    """Yield each scope with its depth, parents before children. A scope whose only content is a
    single child is merged with it: `h.0 … 11`.
    """
    merged = node
    while (
        depth
        and len(merged.parts) == 1
        and not merged.parameter_count.terms
        and not merged.multiply_adds.terms
    ):
        (child,) = merged.parts.values()
        merged = replace(
            child, name=f"{merged.name}.{child.name}", repeats=merged.repeats * child.repeats
        )
    yield depth, merged
    for child in merged.parts.values():
        yield from iterate_summary_nodes(child, depth + 1)
