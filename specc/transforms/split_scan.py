"""Move loop-invariant and vectorizable nodes out of a `Scan` (loop fission).

    scan x in xs carry s collect y {          u = linear(xs, w)            all positions at once
      u = linear(x, w)                        scan u in us carry s collect s_before {
      y = linear(concat([s, x]), v)     →       s = tanh(u + linear(s, r))
      s = tanh(u + linear(s, r))              }
    }                                         y = linear(concat([s_before, xs]), v)

If at least one contraction can be moved, nodes that depend only on scanned values are moved before
the loop. Nodes on which no loop-carried value depends are moved after the loop. Loop-invariant
operands keep their shape if they can be broadcast. Loop-invariant operands that cannot be broadcast
are expanded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import (
    Graph,
    GraphBuilder,
    Input,
    Node,
    NodeOperands,
    NodeResults,
    Value,
    collect_required_nodes,
)
from specc.ir.op import Op

LEADING_AXES_OPS = (ops.Linear, ops.Embedding, ops.LayerNorm, ops.RMSNorm, ops.OneHot)
"""Ops whose first operand has the shape `[*s, …]` and whose other operands are weights."""

SINGLE_AXIS_OPS = (
    *(ops.Softmax, ops.Slice, ops.StridedSlice, ops.Roll, ops.Index, ops.Reduce, ops.ArgMax),
    *(ops.Squeeze, ops.Expand, ops.Split, ops.Merge),
)
"""Ops with a single operand and an `axis` attribute."""


def can_vectorize_op(op: Op, args: NodeOperands, is_scanned: Sequence[bool], axis: int) -> bool:
    """Return True if `vectorize_op` can compute an op for all iterations of a loop at once, with
    the scan axis at `axis`. `is_scanned` is true for operands that vary between iterations.
    """
    present_args = [
        (a, scanned) for a, scanned in zip(args, is_scanned, strict=True) if a is not None
    ]
    if any(a.rank < axis for a, scanned in present_args if scanned):
        return False
    match op:
        case ops.Insert(op_axis) | ops.Concat(op_axis):
            return op_axis >= axis
        case ops.Transpose(order):
            # The axes before the time axis must not change.
            return order[:axis] == tuple(range(axis))
    if isinstance(op, SINGLE_AXIS_OPS):
        # The transform increments only axis attributes that are at least `axis`, so an op along an
        # earlier axis would use the wrong axis.
        return op.axis >= axis
    if isinstance(op, LEADING_AXES_OPS):
        return _can_add_leading_axis(op, args, is_scanned, axis)
    if op.is_elementwise:
        return _have_moving_operands_full_rank(present_args)
    return False


def _have_moving_operands_full_rank(operands: Sequence[tuple[Value, bool]]) -> bool:
    """Return True if all operands that vary along the scan axis have the rank of the result.
    Broadcasting aligns axes from the right, so the time axis of an operand of lower rank would be
    aligned with another axis.
    """
    rank = max(a.rank for a, _ in operands)
    return all(a.rank == rank for a, scanned in operands if scanned)


def _can_add_leading_axis(
    op: Op, args: NodeOperands, is_scanned: Sequence[bool], axis: int
) -> bool:
    """Return True if the scan axis can become a leading axis of the first operand. No other operand
    may vary along the scan axis, and the feature axis must remain the last axis.
    """
    x, is_only_first_scanned = args[0], is_scanned[0] and not any(is_scanned[1:])
    has_feature_axis = not isinstance(op, ops.Embedding | ops.OneHot)
    return is_only_first_scanned and x is not None and x.rank >= has_feature_axis + axis


def _align_operands(
    b: GraphBuilder, args: NodeOperands, is_scanned: Sequence[bool], axis: int
) -> list[Value | None]:
    """Return an elementwise op's operands. Invariant operands broadcast along the scan axis."""
    # The rank does not count the time axis, which scanned operands already have.
    rank = max(a.rank - scanned for a, scanned in zip(args, is_scanned, strict=True) if a)
    return [
        a if scanned or a is None else _insert_broadcast_axis(b, a, rank, axis)
        for a, scanned in zip(args, is_scanned, strict=True)
    ]


def vectorize_op(
    b: GraphBuilder, op: Op, args: NodeOperands, is_scanned: Sequence[bool], axis: int, length: Dim
) -> Value:
    """Add an op that computes `op` for all iterations of a loop at once. Operands that vary between
    iterations (`is_scanned`) have a scan axis of size `length` at index `axis`.
    """
    assert not isinstance(op, ops.Scan)
    if isinstance(op, ops.Concat):
        return b.add_op(_shift_op_axis(op), *_expand_parts(b, args, is_scanned, axis, length))
    if isinstance(op, ops.Transpose):
        # `can_vectorize_op` has verified that the axes before the time axis are unchanged.
        order = (*range(axis + 1), *(n + 1 for n in op.order[axis:]))
        return b.add_op(ops.Transpose(order), *args)
    if isinstance(op, (ops.Insert, *SINGLE_AXIS_OPS)):
        return b.add_op(_shift_op_axis(op), *args)
    if isinstance(op, LEADING_AXES_OPS):
        return b.add_op(op, *args)
    return b.add_op(op, *_align_operands(b, args, is_scanned, axis))


def _expand_parts(
    b: GraphBuilder, args: NodeOperands, is_scanned: Sequence[bool], axis: int, length: Dim
) -> list[Value]:
    """Return a concatenation's operands. Invariant operands are repeated along the scan axis."""
    return [
        a if scanned else b.add_op(ops.Expand(axis, length), b.add_op(ops.Insert(axis), a))
        for a, scanned in zip(args, is_scanned, strict=True)
        if a
    ]


def vectorize_nodes(
    b: GraphBuilder,
    op: ops.Scan,
    nodes: Iterable[Node],
    stacked_values: dict[Value, Value],
    captured_values: Mapping[Value, Value],
) -> None:
    """Add `nodes` from the body of `op` in a form that computes them for all iterations at once.

    `stacked_values` maps values of the body to values of all iterations. The results of `nodes` are
    added to `stacked_values`. `captured_values` maps values that the body captures to outer values.
    """
    results = dict(op.body.nodes)
    length = next(iter(stacked_values.values())).shape[op.axis]
    for node in nodes:
        is_scanned = [a is not None and a not in captured_values for a in node.args]
        args = [
            a and (stacked_values[a] if scanned else captured_values[a])
            for a, scanned in zip(node.args, is_scanned, strict=True)
        ]
        (result,) = results[node]
        stacked_values[result] = vectorize_op(b, node.op, args, is_scanned, op.axis, length)


def _shift_op_axis(op: Any) -> Op:
    shifted: Op = replace(op, axis=op.axis + 1)
    return shifted


def _insert_broadcast_axis(b: GraphBuilder, operand: Value, rank: int, axis: int) -> Value:
    """Insert an axis of size 1 at `axis` into a loop-invariant operand of an elementwise op."""
    # An operand of low rank, such as [o] with [b, t, o], requires no new axis, because broadcasting
    # aligns axes from the right.
    insert_axis = axis - (rank - operand.rank)
    return b.add_op(ops.Insert(insert_axis), operand) if insert_axis > 0 else operand


ZERO_BY_KIND: dict[str, float | int | bool] = {"f": 0.0, "i": 0, "b": False}


def split_scan(b: GraphBuilder, op: Op, args: NodeOperands) -> NodeResults | None:
    """Move nodes out of a `Scan` (rewrite rule), or return None if no contraction can move."""
    if not isinstance(op, ops.Scan):
        return None
    parts = _BodyParts.from_op(op)
    # Moving only cheap ops is not worthwhile, because their results must be stored for all time
    # steps.
    if not any(
        n.op.is_compute_intensive for n in (*parts.nodes_before_loop, *parts.nodes_after_loop)
    ):
        return None
    return _ScanRebuilder(b, op, [a for a in args if a is not None], parts).build_results()


@dataclass
class _BodyParts:
    """The nodes of a loop body, split into three parts: before the loop, in the loop and after the
    loop. The nodes of each part are in graph order.
    """

    nodes_before_loop: list[Node] = field(default_factory=list)
    loop_nodes: list[Node] = field(default_factory=list)
    nodes_after_loop: list[Node] = field(default_factory=list)

    @classmethod
    def from_op(cls, op: ops.Scan) -> "_BodyParts":
        body = op.body
        inner = op.split_body_inputs()
        captured = set(inner.captured)
        before_loop = find_vectorizable_nodes(body, set(inner.scanned), captured, op.axis)
        # Nodes on which the loop-carried values depend remain in the loop.
        settled = before_loop | collect_required_nodes(op.get_next_carries())
        # If the loop has an early exit, no node moves after the loop, because skipped iterations
        # have no values.
        ends_early = op.end_condition_index != -1
        remaining = [n for n, _ in body.nodes if n not in settled and not ends_early]
        after_loop = _find_trailing_nodes(body, remaining, captured, op.axis)
        parts = cls()
        # Each part is in graph order, so operands come before their users.
        for node, _ in body.nodes:
            if node in before_loop:
                parts.nodes_before_loop.append(node)
            elif node in after_loop:
                parts.nodes_after_loop.append(node)
            else:
                parts.loop_nodes.append(node)
        return parts


def find_vectorizable_nodes(
    body: Graph, scanned_values: set[Value], captured_values: set[Value], axis: int
) -> set[Node]:
    """Return the nodes of a loop body that can be computed for all iterations at once before the
    loop. These nodes depend on `scanned_values` and loop-invariant `captured_values`, but not on
    loop-carried values. `axis` is the scan axis.
    """
    nodes: set[Node] = set()
    known_values = set(scanned_values)
    for node, results in body.nodes:
        operands = set(node.operands)
        if operands.isdisjoint(known_values) or not operands <= known_values | captured_values:
            continue
        # Results must be the same whether positions are computed one at a time or all at once.
        if _can_vectorize_node(node, captured_values, axis):
            nodes.add(node)
            known_values.update(results)
    return nodes


def _can_vectorize_node(node: Node, captured_values: set[Value], axis: int) -> bool:
    """Return True if a body node can be computed for all iterations at once."""
    is_scanned = [a is not None and a not in captured_values for a in node.args]
    return can_vectorize_op(node.op, node.args, is_scanned, axis)


def _find_trailing_nodes(
    body: Graph, remaining_nodes: list[Node], captured_values: set[Value], axis: int
) -> set[Node]:
    """Return remaining nodes that can be computed, with all their users, after the loop."""
    results = dict(body.nodes)
    loop_nodes = [n for n in remaining_nodes if not _can_vectorize_node(n, captured_values, axis)]
    # Nodes that cannot be vectorized remain in the loop, with all nodes on which they depend. A
    # value is either stacked or recomputed after the loop.
    required = collect_required_nodes(r for n in loop_nodes for r in results[n])
    return {*remaining_nodes} - {*loop_nodes} - required


class _ScanRebuilder:
    """A builder for the remaining loop and for the moved nodes outside the loop."""

    def __init__(self, b: GraphBuilder, op: ops.Scan, args: list[Value], parts: _BodyParts) -> None:
        self.b, self.op, self.parts = b, op, parts
        operands, inner = op.split_operands(args), op.split_body_inputs()
        self.keep, self.initial_carries = operands.keep, operands.initial_carries
        self.scanned, self.carries = list(inner.scanned), list(inner.initial_carries)
        self.captures = dict(zip(inner.captured, operands.captured, strict=True))
        self.stacked = dict(zip(self.scanned, operands.scanned, strict=True))
        results = dict(op.body.nodes)
        self.loop_values = {r for n in parts.loop_nodes for r in results[n]} | {*self.carries}

    def build_results(self) -> NodeResults:
        """Build the loop and the moved nodes. Return the final loop-carried values and the scan
        outputs, in the order of the original scan.
        """
        vectorize_nodes(self.b, self.op, self.parts.nodes_before_loop, self.stacked, self.captures)
        scan_outputs = list(self.op.get_scan_outputs())
        # The remaining loop returns the values that the caller or the nodes after the loop use.
        read_values = [a for n in self.parts.nodes_after_loop for a in n.operands] + scan_outputs
        stacked = list(dict.fromkeys(v for v in read_values if v in self.loop_values))
        final_carries = self._build_loop(stacked)
        vectorize_nodes(self.b, self.op, self.parts.nodes_after_loop, self.stacked, self.captures)
        # Scan outputs are already zero at masked positions.
        return *final_carries, *(
            self.stacked[v]
            if v in stacked
            else zero_masked_positions(self.b, self.stacked[v], self.keep)
            for v in scan_outputs
        )

    def _build_loop(self, stacked_values: list[Value]) -> NodeResults:
        """Build the remaining loop, if any node remains. Return the final loop-carried values."""
        # If all nodes have moved out of the loop, no loop remains.
        if not self.carries and not stacked_values:
            return ()
        read_values = dict.fromkeys(
            (
                *(a for n in self.parts.loop_nodes for a in n.operands),
                *self.op.get_next_carries(),
                *stacked_values,
            )
        )
        # A loop must have at least one scanned operand, which determines its trip count.
        scanned = [v for v in read_values if v in self.stacked and v not in self.loop_values]
        scanned = scanned or self.scanned[:1]
        captured = [v for v in read_values if v in self.captures]
        body = self._build_body(stacked_values, scanned, captured)
        carry_count = len(self.carries)
        op = replace(self.op, body=body, scanned_count=len(scanned), carry_count=carry_count)
        keep = [self.keep] if self.keep else []
        scanned_values = [self.stacked[v] for v in scanned]
        captured_values = [self.captures[v] for v in captured]
        results = self.b.add_node(
            op, *keep, *scanned_values, *self.initial_carries, *captured_values
        )
        self.stacked.update(zip(stacked_values, results[carry_count:], strict=True))
        return results[:carry_count]

    def _build_body(
        self, stacked_values: list[Value], scanned: list[Value], captured: list[Value]
    ) -> Graph:
        """Build the body of the remaining loop, with its scanned values and captures."""
        builder, new_values = GraphBuilder(), dict[Value, Value]()
        inputs_by_kind = {"row": scanned, "carry": self.carries, "outer": captured}
        for kind, values in inputs_by_kind.items():
            for n, v in enumerate(values):
                new_values[v] = builder.add_input(f"{kind} {n}", Input(v.type))
        builder.copy_nodes(self.op.body, new_values, frozenset(self.parts.loop_nodes))
        outputs = {f"next {n}": new_values[v] for n, v in enumerate(self.op.get_next_carries())}
        outputs |= {f"out {n}": new_values[v] for n, v in enumerate(stacked_values)}
        return builder.build_graph("body", outputs)


def zero_masked_positions(b: GraphBuilder, x: Value, keep: Value | None) -> Value:
    """Return `x`, [b, n, …], with zeros where `keep` is false."""
    if keep is None:
        return x
    for axis in range(2, x.rank):
        keep = b.add_op(ops.Insert(axis), keep)
    zero = b.add_op(ops.Constant(ZERO_BY_KIND[x.dtype[0]], x.dtype))
    return b.add_op(ops.Where(), keep, x, zero)
