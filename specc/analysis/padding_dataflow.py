"""The dataflow analysis that infers the padding properties of all values along one padded axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from specc.analysis.padding_facts import (
    NO_PADDING_FACTS,
    PaddedOpResult,
    PaddedUse,
    PaddingFacts,
    PaddingSource,
    attach_loop_body,
    shift_fact_axes,
)
from specc.analysis.padding_loops import (
    InferBody,
    infer_loop_facts,
    is_masked_loop_padding_invariant,
    reads_loop_axis,
)
from specc.analysis.padding_masked_scores import is_condition_always_true
from specc.analysis.padding_offsets import (
    PaddingOffsets,
    find_padded_lengths,
    find_padding_offsets,
    is_position_embedding_shifted,
)
from specc.analysis.padding_order_and_windows import (
    copies_padded_edge,
    find_order_dependent_roll,
    find_reversed_axes,
    find_sorted_position_ids,
    gathers_by_argsort,
    has_mixed_axis_order,
    mixes_sorted_axes,
    preserves_padding,
    sorts_padding_first,
)
from specc.analysis.padding_position_ids import (
    EVERY_POSITION,
    NO_PADDING_COUNT,
    AxisSizePaddingCount,
    InteriorPaddingCount,
    PaddingCount,
    depends_on_absolute_position_ids,
    infer_padding_count,
    is_last_valid_index,
)
from specc.analysis.padding_rotary_embedding import RotaryEmbedding, infer_rotary_embedding
from specc.analysis.padding_safe_ops import is_unaffected_by_padding
from specc.analysis.padding_zeros import infer_padding_facts, infer_zero_padded_sides
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.loop_dependence import find_dependences, get_operand_axis_size


def make_padding_dataflow(
    graph: Graph,
    padding_mask: Value,
    padding_side: str,
    always_true_masks: frozenset[Value] = frozenset(),
    assumes_finite: bool = False,
) -> "PaddingDataflow":
    """Create the analysis of a padding mask's axis, for "left", "right" or "any" padding."""
    offsets = find_padding_offsets(graph, padding_mask, padding_side)
    return PaddingDataflow(
        padding_mask=padding_mask,
        padding_side=padding_side,
        padded_lengths=find_padded_lengths(graph, offsets),
        offsets=offsets,
        always_true_masks=always_true_masks,
        assumes_finite=assumes_finite,
    )


@dataclass(frozen=True, kw_only=True)
class PaddingDataflow:
    """The dataflow analysis along one padded axis. `padding_mask` is the mask of the axis.
    `padded_lengths` are the sizes of the axis after strides and concatenations, and `offsets` are
    the offsets of the padded positions. `always_true_masks` are masks that are assumed to be true
    everywhere. If `assumes_finite` is True, all values are assumed to be finite. `is_in_loop` is
    true in the body of a loop along another axis.
    """

    padding_mask: Value
    padding_side: str
    padded_lengths: frozenset[Dim]
    offsets: PaddingOffsets
    always_true_masks: frozenset[Value] = frozenset()
    assumes_finite: bool = False
    is_in_loop: bool = False

    def infer_graph_facts(self, graph: Graph) -> Mapping[Value, PaddingFacts]:
        """Return the padding properties of every value in `graph`."""
        axes = frozenset({self.padding_mask.rank - 1})
        mask_facts = replace(NO_PADDING_FACTS, zero_pad_axes=axes, finite_pad_axes=axes)
        return self.infer_value_facts(graph, {self.padding_mask: mask_facts})

    def infer_value_facts(
        self, graph: Graph, input_facts: Mapping[Value, PaddingFacts]
    ) -> Mapping[Value, PaddingFacts]:
        """Infer the padding properties of all values in a graph from those of its inputs."""
        states = dict(input_facts)
        for node, results in graph.nodes:
            operand_facts = _list_operand_facts(node, states)
            if isinstance(node.op, ops.Scan) and not self._is_padded_loop(node, node.op):
                loop_facts = self._follow_loop(node, node.op, operand_facts, states)
                states.update(zip(results, loop_facts, strict=True))
                continue
            dependences = find_dependences(node, results)
            restricted = [self.offsets.restrict_dependence_to_padding(node, k) for k in dependences]
            for index, value in enumerate(results):
                links = [k for k in restricted if k and k.result == index]
                states[value] = self.infer_result(node, value, links, states)
        return states

    def _is_padded_loop(self, node: Node, op: ops.Scan) -> bool:
        """Return True if a loop runs along the padded axis."""
        return op.get_first_scanned_operand(node).shape[op.axis] in self.padded_lengths

    def _follow_loop(
        self,
        node: Node,
        op: ops.Scan,
        operand_facts: list[PaddingFacts],
        outside_body: Mapping[Value, PaddingFacts],
    ) -> list[PaddingFacts]:
        """Return the padding properties of the results of a loop along an axis without padding. The
        properties of loop-carried values are computed as a fixpoint.
        """
        infer_body = self._make_body_inference(outside_body)
        body, carries, output_facts = infer_loop_facts(node, op, operand_facts, infer_body)
        outer_sources = {r.padding_source for r in operand_facts}
        stacked_facts = (shift_fact_axes(r, op.axis, 1) for r in output_facts[op.carry_count :])
        return [attach_loop_body(r, body, outer_sources) for r in (*carries, *stacked_facts)]

    def _make_body_inference(self, outside_body: Mapping[Value, PaddingFacts]) -> InferBody:
        """Return a function that infers the padding properties of a loop body's values."""
        body_flow = replace(self, is_in_loop=True)
        return lambda body, facts: body_flow.infer_value_facts(body, {**outside_body, **facts})

    @property
    def padded_length(self) -> Dim:
        """The size of the padded axis."""
        return self.padding_mask.shape[-1]

    @property
    def _has_equal_sort_order(self) -> bool:
        """True if padding is last, so that indices remain valid after a sort with padding last."""
        return self.padding_side == "right" and not self.offsets.concatenated_lengths

    def reads_padded_axis(self, node: Node, dependence: Dependence) -> bool:
        """Return True if a dependence reads a padded axis."""
        return get_operand_axis_size(node, dependence) in self.padded_lengths

    def make_padded_use(
        self,
        node: Node,
        value: Value,
        dependence: Dependence,
        operand_facts: Sequence[PaddingFacts],
    ) -> PaddedUse:
        """Return a `PaddedUse`: a dependence on padded positions and the layout of the axis."""
        length = get_operand_axis_size(node, dependence)
        offset = self.offsets.offsets.get(length, Dim.from_value(0))
        facts = operand_facts[dependence.operand]
        return PaddedUse(
            node=node,
            dependence=dependence,
            operand_facts=operand_facts,
            padding_side=facts.get_padding_side(dependence.operand_axis, self.padding_side),
            is_merged=length in self.offsets.merged_lengths,
            has_interior_padding=self.offsets.has_interior_padding(length),
            valid_end_counts=(offset.number, self.offsets.count_appended_positions(length).number),
            result_has_interior_padding=self.offsets.result_has_interior_padding(value, dependence),
            repeat_count=self.offsets.count_position_repeats(length) or 1,
        )

    def _list_padded_uses(
        self,
        node: Node,
        value: Value,
        dependences: Sequence[Dependence],
        operand_facts: Sequence[PaddingFacts],
    ) -> list[PaddedUse]:
        """Return the dependences of a node's result `value` on padded positions."""
        if isinstance(node.op, ops.Flip | ops.Roll):
            dependences = [replace(k, result_axis=k.operand_axis) for k in dependences]
        padded = [k for k in dependences if self.reads_padded_axis(node, k)]
        return [self.make_padded_use(node, value, k, operand_facts) for k in padded]

    def infer_result(
        self,
        node: Node,
        value: Value,
        dependences: list[Dependence],
        known_facts: Mapping[Value, PaddingFacts],
    ) -> PaddingFacts:
        """Return the padding properties of a result, given `dependences` on padded positions."""
        operand_facts = _list_operand_facts(node, known_facts)
        all_uses = self._list_padded_uses(node, value, dependences, operand_facts)
        uses = [use for use in all_uses if use.dependence.result_axis is not None]
        result = PaddedOpResult(
            node=node,
            value=value,
            operand_facts=operand_facts,
            known_facts=known_facts,
            dependences={u.dependence for u in uses if preserves_padding(u)},
            padding_mask=self.padding_mask,
            always_true_masks=self.always_true_masks,
            padded_lengths=self.padded_lengths,
            concatenated_lengths=self.offsets.concatenated_lengths,
            is_right_padded=self._has_equal_sort_order
            and not any(r.reversed_axes for r in operand_facts),
        )
        counts = _collect_padding_counts(result)
        rotary = infer_rotary_embedding(node, [f.rotary_embedding for f in operand_facts], counts)
        padding_source = self._find_source(result, all_uses, counts, rotary)
        count = self._count_padding(result, counts)
        facts = infer_padding_facts(result)
        if self.assumes_finite:
            facts = replace(facts, can_be_nan=False, possible_infinity_signs=frozenset())
        return replace(
            facts,
            zero_padded_sides=infer_zero_padded_sides(result, uses),
            padding_count=count,
            rotary_embedding=None if padding_source else rotary,
            is_valid_index=facts.is_valid_index or self._is_valid_index(node, count),
            reversed_axes=find_reversed_axes(uses),
            rolled_axes=self._find_rolled_axes(node, operand_facts, uses),
            padding_source=padding_source,
        )

    def _find_rolled_axes(
        self, node: Node, operand_facts: Sequence[PaddingFacts], uses: Sequence[PaddedUse]
    ) -> Mapping[int, PaddingSource]:
        """Return the axes of a result that were rolled, or sorted with padded positions first, each
        with the padding source to report.
        """
        rolled_axes = {
            axis: source
            for u in uses
            if (axis := u.dependence.result_axis) is not None
            and (source := u.facts.rolled_axes.get(u.axis)) is not None
        }
        match node.op:
            case ops.Sort(axis) if sorts_padding_first(node, operand_facts[0]):
                if node.get_operand().shape[axis] in self.padded_lengths:
                    rolled_axes[axis] = PaddingSource(node)
            case (ops.Roll(axis) | ops.Pad(axis, mode="edge")) as op:
                for use in (u for u in uses if u.dependence.operand_axis == axis):
                    if isinstance(op, ops.Roll) or copies_padded_edge(use, op):
                        rolled_axes[axis] = PaddingSource(node, use=use)
        return rolled_axes

    def _is_valid_index(self, node: Node, count: PaddingCount) -> bool:
        """Return True if a node computes the index of a valid position, by an argmax that ignores
        padding or, with right padding, by `sum(keep) - 1`.
        """
        if self.padding_side == "right" and is_last_valid_index(node, self.padding_mask):
            return True
        if not isinstance(node.op, ops.ArgMax):
            return False
        length = node.get_operand().shape[node.op.axis]
        is_padded = length in self.padded_lengths - self.offsets.concatenated_lengths
        return is_padded and (self.padding_side == "right" or bool(count))

    def _find_source(
        self,
        result: PaddedOpResult,
        uses: list[PaddedUse],
        counts: list[PaddingCount],
        rotary: RotaryEmbedding | None,
    ) -> PaddingSource | None:
        """Return the op, this op or an earlier op, through which padding affects a result."""
        node, operand_facts = result.node, result.operand_facts
        if (earlier := self._find_earlier_source(node, operand_facts)) is not None:
            return earlier
        affecting_uses = uses
        if self._has_padded_body(node):
            infer_body = self._make_body_inference(result.known_facts)
            lengths = self.padded_lengths
            if not is_masked_loop_padding_invariant(node, operand_facts, lengths, infer_body):
                return PaddingSource(node, is_count_only=True)
            affecting_uses = [*filter(reads_loop_axis, uses)]  # the body is checked above
        is_counted = self._is_counted(node, operand_facts, counts)
        if is_counted or (rotary and rotary.depends_on_absolute_angles):
            return PaddingSource(node, is_count_only=True)
        if has_mixed_axis_order(uses, self.is_in_loop):
            return PaddingSource(node)
        for use in affecting_uses:  # dependences along other axes read no padded position
            if not is_unaffected_by_padding(use):
                return PaddingSource(node, is_shifted=use.is_shifted, use=use)
        is_mixed = not self._has_equal_sort_order and mixes_sorted_axes(result)
        return PaddingSource(node) if is_mixed else None

    def _find_earlier_source(
        self, node: Node, operand_facts: Sequence[PaddingFacts]
    ) -> PaddingSource | None:
        """Return the padding source of the first affected operand, or of a rolled axis if `node`
        depends on the order of positions.
        """
        sources = (f.padding_source for f in operand_facts if f.padding_source)
        if source := next(sources, None):
            return source
        if not any(facts.rolled_axes for facts in operand_facts):
            return None
        uses = (k for k in find_dependences(node) if self.reads_padded_axis(node, k))
        return find_order_dependent_roll(node, operand_facts, uses)

    def _is_counted(
        self, node: Node, operand_facts: Sequence[PaddingFacts], counts: list[PaddingCount]
    ) -> bool:
        """Return True if a node's result depends on the number of padded positions. `counts` are
        the padding counts of the operands.
        """
        match node.op:
            case ops.Gather(axis) if operand_facts[1].is_valid_index or gathers_by_argsort(
                node, operand_facts
            ):
                length = node.get_operand().shape[axis]
                is_same_position = self._is_indexed_by_position(length, counts[1])
                return counts[0] != NO_PADDING_COUNT or not is_same_position
        return depends_on_absolute_position_ids(node, counts, self.padded_length)

    def _is_indexed_by_position(self, length: Dim, count: PaddingCount) -> bool:
        """Return True if indexing an axis of size `length` by a valid position selects an element
        that does not depend on the preceding padding. `count` is the index's padding count.
        """
        if length not in self.padded_lengths or self.padding_side == "right":
            return length in self.padded_lengths
        is_after_others = self.offsets.offsets.get(length, Dim.from_value(0)) != 0
        return not is_after_others and bool(count) and count == self._count_axis_padding(length)

    def _has_padded_body(self, node: Node) -> bool:
        """Return True for a loop along the padded axis whose body has values with this axis."""
        if not isinstance(node.op, ops.Scan) or not self._is_padded_loop(node, node.op):
            return False
        shapes = (r.shape for _, results in node.op.body.nodes for r in results)
        return any(not self.padded_lengths.isdisjoint(shape) for shape in shapes)

    def _count_padding(self, result: PaddedOpResult, counts: list[PaddingCount]) -> PaddingCount:
        node, operand = result.node, result.node.first_operand
        if is_position_embedding_shifted(node, result.value, self.padded_lengths, self.offsets):
            return None
        match node.op:
            case ops.Extent(axis) if axis in result.operand_facts[0].sorted_axes:
                return NO_PADDING_COUNT  # a sort index does not count the padding before it
            case ops.Sort(axis) if result.value.index and not self._has_equal_sort_order:
                if operand and operand.shape[axis] in self.padded_lengths:
                    return None  # all indices count padding, even at masked positions
                return infer_padding_count(node, counts, self.padded_length)
            case ops.Extent(axis) | ops.ArgMax(axis) if operand:
                length = operand.shape[axis]
            case ops.Range(length):
                pass
            case ops.Size(length) if length.symbols() & self.padded_length.symbols():
                # `size(n)` includes padded positions.
                return {(AxisSizePaddingCount(length),): Fraction(1)}
            case _:
                return infer_padding_count(node, counts, self.padded_length)
        return self._count_axis_padding(length)

    def _count_axis_padding(self, length: Dim) -> PaddingCount:
        """Return the padding count of the position ids of an axis of size `length`."""
        if length not in self.padded_lengths:
            return {}
        if length in self.offsets.merged_lengths:
            return None
        is_right = self.padding_side == "right"
        if length in self.offsets.concatenated_lengths and (
            not is_right or self.offsets.has_interior_padding(length)
        ):
            start, terms = self.offsets.offsets[length], () if is_right else EVERY_POSITION.items()
            ids = InteriorPaddingCount(length, start, start + self.padded_length, tuple(terms))
            return {(ids,): Fraction(1)}
        if is_right:
            return {}  # right padding comes after all valid positions and does not shift them
        count = self.offsets.count_position_repeats(length)
        return {(): Fraction(count)} if count else None


def _list_operand_facts(
    node: Node, known_facts: Mapping[Value, PaddingFacts]
) -> list[PaddingFacts]:
    return [known_facts.get(a, NO_PADDING_FACTS) if a else NO_PADDING_FACTS for a in node.args]


def _collect_padding_counts(result: PaddedOpResult) -> list[PaddingCount]:
    """Return for each operand the padding count that it adds to the result's padding count."""
    counts = [s.padding_count for s in result.operand_facts]
    if is_condition_always_true(result):
        counts[2] = counts[1]  # results at valid positions depend only on the branch `then`
    for operand in find_sorted_position_ids(result):
        # position ids that are combined with sort indices are also sort indices
        counts[operand] = NO_PADDING_COUNT
    return counts
