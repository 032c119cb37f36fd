"""Summarize a graph as a tree of scopes with shapes, weights and cost.

Scopes are the prefixes of parameter names: `h.3.attn.c_proj` is part of `h.3.attn`, which is
part of `h.3`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from specc.analysis.cost import count_blocked_multiply_adds, count_multiply_adds
from specc.analysis.length_limits import find_length_limits
from specc.analysis.local_attention import LocalAttention, plan_local_attention
from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import Type


@dataclass(kw_only=True)
class SummaryNode:
    """One scope: its name, result type, weights, multiply-adds and inner scopes.

    `saved_work` are the multiply-adds that blocked attention saves. `members` are the names of the
    equal scopes that this one stands for.
    """

    name: str
    type: Type | None = None
    op: str = ""
    weights: Dim = field(default_factory=lambda: Dim.of(0))
    work: Dim = field(default_factory=lambda: Dim.of(0))
    saved_work: Dim = field(default_factory=lambda: Dim.of(0))
    parts: dict[str, "SummaryNode"] = field(default_factory=dict)
    repeats: int = 1
    members: tuple[str, ...] = ()

    def all_weights(self) -> Dim:
        """Number of weights in this scope and its children."""
        return (
            self.weights + sum_dims(p.all_weights() for p in self.parts.values())
        ) * self.repeats

    def all_work(self) -> Dim:
        """Multiply-adds of this scope and its children."""
        return (self.work + sum_dims(p.all_work() for p in self.parts.values())) * self.repeats

    def all_spared(self) -> Dim:
        """Multiply-adds saved in this scope and its children."""
        return (
            self.saved_work + sum_dims(p.all_spared() for p in self.parts.values())
        ) * self.repeats

    def get_comparison_key(self) -> tuple[object, ...]:
        """Return what must be equal for two scopes to be shown as one, inner scopes sorted."""
        inner = tuple((n, self.parts[n].get_comparison_key()) for n in sorted(self.parts))
        own = (self.weights, self.work, self.saved_work, self.repeats)
        return (str(self.type), self.op, *own, inner)


def _get_parameter_scope(parameter: str) -> str:
    """Return the scope that a parameter is counted for."""
    scope, _, leaf = parameter.rpartition(".")
    return scope if leaf in ("weight", "bias") else parameter


def summarize_graph(graph: Graph, at: Mapping[str, int] | None = None) -> SummaryNode:
    """Return the tree of scopes of a graph. With lengths in `at`, attention counts as blocked only
    if the sequence is long enough.
    """
    root = SummaryNode(name=graph.name)
    padded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.keep]
    # The number of positions if known, or its maximum.
    rows = {s: limit.most for s, limit in find_length_limits(graph).items()} | dict(at or {})
    _order_parts(graph, root)
    for node, results in graph.nodes:
        _add_node(graph, root, node, results[0].type).saved_work += _count_saved_work(
            node, padded, rows
        )
    for name, facts in graph.parameter_facts.items():
        part = _get_or_add_part(root, _get_parameter_scope(name))
        part.weights = part.weights + multiply_dims(facts.type.shape)
    # A call's result is named by its path, not by the last op inside; names with a colon are
    # internal values.
    for name, value in graph.names.items():
        if ":" not in name and (found := _find_part(root, name)):
            found.type = value.type
    # The last node of the graph is not a result of the whole model.
    root.type = None
    _merge_equal_parts(root)
    return root


def _order_parts(graph: Graph, root: SummaryNode) -> None:
    """Order parts by the first weight that they read. Parts without weights, such as masks, do not
    affect the order.
    """
    weights = set(graph.parameters.values())
    for node, _ in graph.nodes:
        if node.op.heavy or weights.intersection(node.args):
            _get_or_add_part(root, _get_node_scope(graph, node))


def _get_node_scope(graph: Graph, node: Node) -> str:
    """Return the scope that a node was first built under."""
    scopes = graph.node_origins[node].scopes if node in graph.node_origins else ()
    return scopes[0] if scopes else ""


def _add_node(graph: Graph, root: SummaryNode, node: Node, type: Type) -> SummaryNode:
    """Add a node to its part."""
    part = _get_or_add_part(root, _get_node_scope(graph, node))
    part.work = part.work + count_multiply_adds(node)
    part.type = type
    # A part is named after its most expensive op, not after the reshapes around it.
    if node.op.heavy or not part.op:
        part.op = node.op.name
    return part


def _count_saved_work(node: Node, padded: Collection[Value], most: Mapping[str, int]) -> Dim:
    """Return the multiply-adds that blocked attention saves at a node."""
    local = _find_local_attention(node, padded, most)
    return (
        count_multiply_adds(node) - count_blocked_multiply_adds(node, local) if local else Dim.of(0)
    )


def _find_local_attention(
    node: Node, padded: Collection[Value], most: Mapping[str, int]
) -> LocalAttention | None:
    found = plan_local_attention(node, padded)
    if found is None or node.args[0] is None:
        return None
    rows = most.get(node.args[0].type.shape[2].name or "")
    # If a length is unlimited, the input can be long enough.
    return found if rows is None or rows > found.above else None


def _get_or_add_part(root: SummaryNode, scope: str) -> SummaryNode:
    part = root
    for name in scope.split(".") if scope else []:
        part = part.parts.setdefault(name, SummaryNode(name=name))
    return part


def _find_part(root: SummaryNode, scope: str) -> SummaryNode | None:
    part: SummaryNode | None = root
    for name in scope.split("."):
        part = part.parts.get(name) if part else None
    return part


def _merge_equal_parts(part: SummaryNode) -> None:
    """Merge equal numbered parts, also with others between them: `0 … 11`, `0, 2 … 24`."""
    for inner in part.parts.values():
        _merge_equal_parts(inner)
    alike: dict[object, list[SummaryNode]] = {}
    for inner in part.parts.values():
        # Named parts are not merged, even if equal: `query` and `key` are not layers.
        kind = inner.get_comparison_key() if inner.name.isdecimal() else inner.name
        alike.setdefault(kind, []).append(inner)
    part.parts = {}
    for run in alike.values():
        # sorted by number: a layer may be read before those below it
        run.sort(key=lambda p: int(p.name) if p.name.isdecimal() else 0)
        first = run[0]
        first.members = tuple(p.name for p in run)
        if len(run) > 1:
            first.name = format_number_runs([int(p.name) for p in run])
            first.repeats = len(run)
        part.parts[first.name] = first


MAX_LISTED_RUNS = 3
"""Maximum number of runs of equal layers that a list names."""


def format_number_runs(numbers: Sequence[int]) -> str:
    """Format increasing numbers, at least two: `0 … 11`, `1, 3 … 25`, `0 … 2, 4 … 6, …`."""
    steps = {b - a for a, b in pairwise(numbers)}
    if steps == {1}:
        return f"{numbers[0]} … {numbers[-1]}"
    if len(steps) == 1 and len(numbers) > 2:
        return f"{numbers[0]}, {numbers[1]} … {numbers[-1]}"
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]} … {r[-1]}" for r in _split_runs(numbers)]
    more = ["…"] if len(texts) > MAX_LISTED_RUNS else []
    return ", ".join([*texts[:MAX_LISTED_RUNS], *more])


def _split_runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split increasing numbers into runs of consecutive ones."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def walk_summary(part: SummaryNode, depth: int = 0) -> Iterator[tuple[int, SummaryNode]]:
    """Yield parts from the root down. A scope with a single child is merged with it: `h.0 … 11`."""
    shown = part
    while depth and len(shown.parts) == 1 and not shown.weights.terms and not shown.work.terms:
        (inner,) = shown.parts.values()
        shown = replace(
            inner, name=f"{shown.name}.{inner.name}", repeats=shown.repeats * inner.repeats
        )
    yield depth, shown
    for inner in shown.parts.values():
        yield from walk_summary(inner, depth + 1)
