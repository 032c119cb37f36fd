"""Prove that batch elements are independent, i.e. that no op mixes values of different batch
elements.

An axis of size `batch * k` consists of *blocks* of `k` positions: position `r` belongs to batch
element `r // k`. For model inputs, the batch axis has k = 1. An op either preserves the blocks or
mixes batch elements:

    windows = merge(split(x, [n, 7]), axis=0)
                [batch, n * 7, d] → [batch * n, 7, d]       blocks of n
    merge(transpose(x), axis=0)
                [n, batch, d] → [n * batch, d]              mixed
"""

from collections.abc import Iterator
from dataclasses import dataclass

from specc.analysis.causality_messages import find_node_span, format_op_name
from specc.analysis.time_axis_prefix_and_chunks import collect_derived_symbols
from specc.analysis.value_ranges import is_zero_everywhere
from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly
from specc.ir.graph import Graph, Node, NodeResults, Value
from specc.ir.loop_dependence import find_dependences, get_operand_axis_size
from specc.ir.op import Op
from specc.ir.types import SAME_POSITION


def find_batch_symbol(graph: Graph) -> str | None:
    """Return the symbolic size of the first axis that all inputs of rank >= 1 share, or None."""
    names = {v.shape[0].name for v in graph.inputs.values() if v.rank}
    return names.pop() if len(names) == 1 else None


def check_batch_independence(graph: Graph, symbol: str) -> list[Diagnostic]:
    """Return W0602 for each op that mixes elements of the batch axis `symbol`, in graph order."""
    batch = _BatchAxis(Dim.symbol(symbol), collect_derived_symbols(graph.length_equations, symbol))
    mixed_values = {v for v in graph.inputs.values() if not batch.is_batched_input(v)}
    return [
        _make_warning(graph, containing_graph, node, symbol)
        for containing_graph, node in batch.iterate_mixing_nodes(graph, mixed_values)
    ]


@dataclass(frozen=True)
class _BatchAxis:
    """The batch axis's symbolic dimension, and all symbolic dimensions derived from it."""

    length: Dim
    dependent_symbols: frozenset[str]

    def is_batch_dependent(self, length: Dim) -> bool:
        """Return True if the batch size occurs in a size expression."""
        return bool(length.symbols() & self.dependent_symbols)

    def is_multiple_of_batch(self, length: Dim) -> bool:
        """Return True if a dimension is an integer multiple of the batch size."""
        try:
            factor = divide_dims_exactly(length, self.length)
        except DimError:
            return False
        other_symbols = self.dependent_symbols - {self.length.name}
        return self.length.name not in factor.symbols() and not length.symbols() & other_symbols

    def is_batched_input(self, value: Value) -> bool:
        """Return True if no input axis except the batch axis depends on the batch size."""
        batch_lengths = [d for d in value.shape if self.is_batch_dependent(d)]
        return not batch_lengths or batch_lengths == [self.length]

    def iterate_mixing_nodes(
        self, graph: Graph, mixed_values: set[Value]
    ) -> Iterator[tuple[Graph, Node]]:
        """Yield each node that mixes batch elements, with the graph or loop body that contains the
        node. Nodes that read `mixed_values` are skipped, and their results are added to
        `mixed_values`.
        """
        for node, results in graph.nodes:
            if not mixed_values.isdisjoint(node.operands):
                mixed_values.update(results)
                continue
            inner_node = (
                next(self.iterate_mixing_nodes(node.op.body, set()), None)
                if isinstance(node.op, ops.Scan)
                else None
            )
            if inner_node or self._mixes_elements(node, results):
                mixed_values.update(results)
                yield inner_node or (graph, node)

    def _mixes_elements(self, node: Node, results: NodeResults) -> bool:
        """Return True if a node passes values between different batch elements, or if its result
        depends on the batch size.
        """
        if any(map(self._has_mixed_axes, results)):
            return True
        match node.op:
            case ops.Merge(axis, count):
                # Blocks remain contiguous if the batch axis is the outermost merged axis.
                trailing_shape = node.get_operand().shape[axis + 1 : axis + count]
                return any(map(self.is_batch_dependent, trailing_shape))
            case ops.Split(sizes=sizes):
                return any(map(self.is_batch_dependent, sizes[1:]))
            case ops.Expand():
                return False  # all batch elements of the expanded value are equal
            case ops.Scan():
                return self._is_mixing_scan(node, node.op, results)
        return self._has_batch_attribute(node.op) or self._crosses_batch(node, results)

    def _has_mixed_axes(self, result: Value) -> bool:
        """Return True if several axes depend on the batch size, or if the size of an axis depends
        on the batch size but is not a multiple of the batch size.
        """
        batch_lengths = [d for d in result.shape if self.is_batch_dependent(d)]
        return len(batch_lengths) > 1 or not all(map(self.is_multiple_of_batch, batch_lengths))

    def _has_batch_attribute(self, op: Op) -> bool:
        """Return True if the batch size occurs in an attribute of an op."""
        return any(map(self.is_batch_dependent, op.iterate_attribute_dims()))

    def _crosses_batch(self, node: Node, results: NodeResults) -> bool:
        """Return True if a node mixes positions of the batch axis, or creates a batch axis."""
        return any(
            k.kind != "same"
            or k.offsets != SAME_POSITION
            or k.result_axis is None
            or not self.is_batch_dependent(results[k.result].shape[k.result_axis])
            for k in find_dependences(node, results)
            if self.is_batch_dependent(get_operand_axis_size(node, k))
        )

    def _is_mixing_scan(self, node: Node, op: ops.Scan, results: NodeResults) -> bool:
        """Return True if a loop mixes batch elements. A loop mixes batch elements if it runs along
        the batch axis, if its mask and a result have different batch axes, or if an early exit
        changes the results of unfinished batch elements. The ops of the loop body are checked
        separately.
        """
        if self.is_batch_dependent(
            op.get_first_scanned_operand(node).shape[op.axis]
        ) or not is_early_exit_safe(node, op):
            return True
        keep = op.split_operands(node.args).keep
        if keep is None or not self.is_batch_dependent(keep.shape[0]):
            return False
        first_lengths = [
            r.shape[n >= op.carry_count and op.axis == 0] for n, r in enumerate(results)
        ]
        return any(d != keep.shape[0] for d in first_lengths)


def is_early_exit_safe(node: Node, op: ops.Scan) -> bool:
    """Return True if a loop with early exit preserves the values of finished batch elements."""
    if op.end_condition_index == -1:
        return True
    initial_carries = op.split_body_inputs().initial_carries
    end_condition = initial_carries[op.end_condition_index]
    carried = zip(op.get_next_carries(), initial_carries, strict=True)
    outer_values = op.map_captured_inputs(node.args)
    frozen_outputs = op.get_scan_outputs()[: len(op.get_scan_outputs()) - op.unfrozen_output_count]
    finished_outputs = [_find_finished_value(value, end_condition) for value in frozen_outputs]
    return all(
        _find_finished_value(next_carry, end_condition) is carry for next_carry, carry in carried
    ) and all(
        value is not None and is_zero_everywhere(outer_values.get(value, value))
        for value in finished_outputs
    )


def _find_finished_value(value: Value, end_condition: Value) -> Value | None:
    """Return the operand that a `where` selects if `end_condition` is true, else None."""
    match value.node:
        case Node(ops.Where(), (Value() as mask, true_branch, _)):
            while mask.node and isinstance(mask.node.op, ops.Insert):
                mask = mask.node.get_operand()
            return true_branch if mask is end_condition else None
    return None


def _make_warning(graph: Graph, containing_graph: Graph, node: Node, symbol: str) -> Diagnostic:
    span = find_node_span(containing_graph, node)
    outputs = ", ".join(f"`{n}`" for n in graph.outputs)
    return Diagnostic(
        "W0602",
        f"`{format_op_name(node.op)}` mixes elements along `{symbol}`: each result depends on "
        f"the others",
        Label.from_span(span, "batch elements are mixed here"),
        notes=(f"{outputs} may differ between a batch of one and a larger batch",),
        helps=("apply the operation along another axis",),
        severity="warning",
    )
