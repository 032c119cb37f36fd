"""Walk over a graph that infers the facts of every value along one padded axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from specc.analysis.masked_scores import is_where_always_taken
from specc.analysis.padding_constants import (
    find_rank_counting_operands,
    has_mixed_ranks,
    is_gather_in_sort_order,
)
from specc.analysis.padding_facts import (
    NO_PADDING_FACTS,
    PaddedRead,
    PaddedResult,
    PaddingFacts,
    PaddingSource,
    attach_loop_body,
    find_exposed_roll,
    find_reversed_axes,
    find_rolled_axes,
    is_order_mixed,
    join_padding_facts,
    shift_fact_axes,
)
from specc.analysis.padding_invariance import can_keep_padding_facts, is_unaffected_by_padding
from specc.analysis.padding_offsets import PaddingOffsets, find_padded_lengths, find_padding_offsets
from specc.analysis.padding_positions import (
    EVERY_POSITION,
    NO_PADDING_COUNT,
    OrderedPositions,
    PaddedLength,
    PaddingCount,
    infer_padding_count,
    is_padding_exposed,
)
from specc.analysis.padding_rotation import RotationFact, infer_rotation
from specc.analysis.padding_values import infer_padding_facts
from specc.analysis.time_dataflow_facts import inline_loop_captures
from specc.ir import ops
from specc.ir.dependence import Dependence, find_dependences, get_read_length
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value


def make_padding_walk(graph: Graph, keep: Value, side: str) -> "PaddingWalk":
    """Return the walk along the axis of the padding mask `keep`."""
    places = find_padding_offsets(graph, keep, side)
    lengths = find_padded_lengths(graph, places)
    return PaddingWalk(keep=keep, side=side, lengths=lengths, places=places)


@dataclass(frozen=True, kw_only=True)
class PaddingWalk:
    """The walk along one padded axis: its mask `keep`, the `side` of the padding, and all
    `lengths` that the axis has after strides and next to other positions, where `places`
    gives their offsets. Masks that are `settled` are true. With `finite`, as if no value were
    NaN or infinite. `inside`: in the body of a loop along another axis.
    """

    keep: Value
    side: str
    lengths: frozenset[Dim]
    places: PaddingOffsets
    settled: frozenset[Value] = frozenset()
    finite: bool = False
    inside: bool = False

    def run(self, graph: Graph) -> Mapping[Value, PaddingFacts]:
        """Return the facts of every value."""
        return self.states(
            graph, {self.keep: replace(NO_PADDING_FACTS, zero=frozenset({self.keep.rank - 1}))}
        )

    def states(
        self, graph: Graph, known: Mapping[Value, PaddingFacts]
    ) -> Mapping[Value, PaddingFacts]:
        """Return the facts of every value of a graph or loop body, `known` those of its inputs."""
        states = dict(known)
        for node, results in graph.nodes:
            given = [states.get(a, NO_PADDING_FACTS) if a else NO_PADDING_FACTS for a in node.args]
            if isinstance(node.op, ops.Scan) and not self._runs_along_padding(node, node.op):
                looped = self._follow_loop(node, node.op, given, states)
                states.update(zip(results, looped, strict=True))
                continue
            found = find_dependences(node, results)
            for r, value in enumerate(results):
                links_here = (k for k in found if k.result == r)
                here = [k for x in links_here if (k := self.places.link(node, x))]
                states[value] = self.visit(node, value, given, here)
        return states

    def _runs_along_padding(self, node: Node, op: ops.Scan) -> bool:
        """Return True if a loop runs along the padded axis."""
        return op.get_first_scanned(node).shape[op.axis] in self.lengths

    def _follow_loop(
        self,
        node: Node,
        op: ops.Scan,
        given: list[PaddingFacts],
        outside_body: Mapping[Value, PaddingFacts],
    ) -> list[PaddingFacts]:
        """Return the facts of the results of a loop along another axis (a fixed point)."""
        parts, body = op.split_operands(given), inline_loop_captures(node, op)
        rows = [shift_fact_axes(r, op.axis, -1) for r in parts.scanned]
        carries = list(parts.initial_carries)
        inputs, outputs = list(body.inputs.values()), list(body.outputs.values())
        while True:
            own = dict(zip(inputs, (*rows, *carries), strict=True))
            found = replace(self, inside=True).states(body, {**outside_body, **own})
            made = [found.get(v, NO_PADDING_FACTS) for v in outputs]
            after = [
                join_padding_facts(old, new)
                for old, new in zip(carries, made[: op.carries], strict=True)
            ]
            if after == carries:
                break
            carries = after
        outside = {r.padding_source for r in given}
        collected = (shift_fact_axes(r, op.axis, 1) for r in made[op.carries :])
        return [attach_loop_body(r, body, outside) for r in (*carries, *collected)]

    @property
    def length(self) -> Dim:
        """The length of the padded axis."""
        return self.keep.shape[-1]

    @property
    def _has_equal_ranks(self) -> bool:
        """True if ranks of valid positions equal their indices: padding comes last."""
        return self.side == "right" and not self.places.concatenated_lengths

    def padded(self, node: Node, link: Dependence) -> bool:
        """Return True if a link reads a padded axis."""
        return get_read_length(node, link) in self.lengths

    def reading(self, node: Node, link: Dependence, given: Sequence[PaddingFacts]) -> PaddedRead:
        """Return how a link reads padded positions."""
        length = get_read_length(node, link)
        before = self.places.before.get(length, Dim.of(0))
        return PaddedRead(
            node=node,
            link=link,
            given=given,
            side=given[link.operand].get_side(link.operand_axis, self.side),
            merged=length in self.places.merged,
            is_separated=self.places.separates_valid_positions(length),
            ends=(before.number, self.places.behind(length).number),
            leads_to_separated=self.places.leads_to_separated_axis(node, link),
        )

    def visit(
        self, node: Node, value: Value, given: list[PaddingFacts], here: list[Dependence]
    ) -> PaddingFacts:
        """Return the facts of one result."""
        if isinstance(node.op, ops.Flip | ops.Roll):
            here = [replace(k, result_axis=k.operand_axis) for k in here]
        padded = [k for k in here if k.result_axis is not None and self.padded(node, k)]
        keeps = {k for k in padded if can_keep_padding_facts(self.reading(node, k, given))}
        padded_result = PaddedResult(
            node=node,
            value=value,
            given=given,
            keeps=keeps,
            keep=self.keep,
            settled=self.settled,
            lengths=self.lengths,
            joined=self.places.concatenated_lengths,
            after=self._has_equal_ranks and not any(r.reversed for r in given),
        )
        counts = _collect_padding_counts(padded_result)
        turned = infer_rotation(node, [s.turned for s in given], counts)
        padding_source = self._find_source(padded_result, here, counts, turned)
        count = self._count_padding(padded_result, counts)
        rows = infer_padding_facts(padded_result)
        if self.finite:
            rows = replace(rows, broken=False, infinite_signs=frozenset())
        return replace(
            rows,
            count=count,
            turned=None if padding_source else turned,
            points=rows.points or self._is_valid_index(node, count),
            reversed=find_reversed_axes(node, given, padded),
            rolled=self._find_rolled_axes(node, given, padded),
            padding_source=padding_source,
        )

    def _find_rolled_axes(
        self, node: Node, given: Sequence[PaddingFacts], padded: Sequence[Dependence]
    ) -> Mapping[int, PaddingSource]:
        """Return the axes of a result that `roll` rotated: this one, or one before it."""
        match node.op:
            case ops.Roll(axis):
                along = (k for k in padded if k.operand_axis == axis)
                return {
                    k.operand_axis: PaddingSource(node, reading=self.reading(node, k, given))
                    for k in along
                }
        return find_rolled_axes(given, padded)

    def _is_valid_index(self, node: Node, count: PaddingCount) -> bool:
        """Return True for an argmax that counts the padding before it, or has none before it."""
        if not isinstance(node.op, ops.ArgMax) or node.first is None:
            return False
        length = node.first.shape[node.op.axis]
        counted = length in self.lengths and length not in self.places.concatenated_lengths
        return count == EVERY_POSITION or (self.side == "right" and counted)

    def _find_source(
        self,
        padded_result: PaddedResult,
        here: list[Dependence],
        counts: list[PaddingCount],
        turned: RotationFact | None,
    ) -> PaddingSource | None:
        """Return the op that lets padded positions in: an earlier one, or this one."""
        node, given = padded_result.node, padded_result.given
        if (earlier := self._find_earlier_source(node, given)) is not None:
            return earlier
        padded = [k for k in here if self.padded(node, k)]
        if self._is_counted(node, given, counts) or (turned and turned.shown):
            return PaddingSource(node, counted=True)
        if is_order_mixed(node, given, padded, self.inside):
            return PaddingSource(node)
        for link in padded:  # dependences along other axes never reach a padded position
            reading = self.reading(node, link, given)
            if not is_unaffected_by_padding(reading):
                return PaddingSource(node, shifted=reading.shifted, reading=reading)
        return (
            None
            if self._has_equal_ranks or not has_mixed_ranks(padded_result)
            else PaddingSource(node)
        )

    def _find_earlier_source(
        self, node: Node, given: Sequence[PaddingFacts]
    ) -> PaddingSource | None:
        """Return the first op that leaked, as everything after it depends on padding; also a
        roll whose positions are told apart here.
        """
        for rows in given:
            if rows.padding_source:
                return rows.padding_source
        reads = (k for k in find_dependences(node) if self.padded(node, k))
        return find_exposed_roll(node, given, reads)

    def _is_counted(
        self, node: Node, given: Sequence[PaddingFacts], counts: list[PaddingCount]
    ) -> bool:
        """Return True if the result of an op depends on the number of padded positions."""
        match node.op:
            case ops.Gather(axis) if node.args[0] and (
                given[1].points or is_gather_in_sort_order(node, given)
            ):
                # A valid position that is indexed within the padded axis itself is the same one
                # wherever it is; in a table it is another one.
                elsewhere = node.args[0].shape[axis] not in self.lengths
                return bool(counts[0]) or counts[0] is None or elsewhere
            case ops.Scan() if self._runs_along_padding(node, node.op) and self._made_inside(
                node.op.body
            ):
                return True
        return is_padding_exposed(node, counts, self.length)

    def _made_inside(self, body: Graph) -> bool:
        """Return True if the body of a loop over the padded axis makes values with that axis."""
        return any(
            not self.lengths.isdisjoint(r.shape) for _, results in body.nodes for r in results
        )

    def _count_padding(
        self, padded_result: PaddedResult, counts: list[PaddingCount]
    ) -> PaddingCount:
        node, operand = padded_result.node, padded_result.node.first
        match node.op:
            case ops.Extent(axis) if axis in padded_result.given[0].ranked:
                return NO_PADDING_COUNT  # a rank does not depend on preceding padding
            case ops.Sort(axis) if padded_result.value.index and not self._has_equal_ranks:
                if operand and operand.shape[axis] in self.lengths:
                    return None  # which positions are where, masked ones included
                return infer_padding_count(node, counts, self.length)
            case ops.Extent(axis) | ops.ArgMax(axis) if operand:
                length = operand.shape[axis]
            case ops.Range(length):
                pass
            case ops.Size(length) if length.symbols() & self.length.symbols():
                # `size(n)` counts padded positions too.
                return {(PaddedLength(length),): Fraction(1)}
            case _:
                return infer_padding_count(node, counts, self.length)
        return self._count_of_rows(length)

    def _count_of_rows(self, length: Dim) -> PaddingCount:
        """Return what padding adds to the position ids of an axis."""
        if length not in self.lengths:
            return {}
        if length in self.places.merged:
            return None
        if length in self.places.concatenated_lengths and (
            self.side != "right" or self.places.separates_valid_positions(length)
        ):
            before = self.places.before[length]
            own = () if self.side == "right" else tuple((EVERY_POSITION or {}).items())
            rows = OrderedPositions(length, before, before + self.length, own)
            return {(rows,): Fraction(1)}
        if self.side == "right":
            return {}  # right padding comes after all positions: it moves none
        # Of other lengths, e.g. of repeated positions, each padded position moves several.
        return EVERY_POSITION if (length - self.length).number is not None else None


def _collect_padding_counts(padded_result: PaddedResult) -> list[PaddingCount]:
    """Return what padding adds to each operand, as the result uses it."""
    counts = [s.count for s in padded_result.given]
    if is_where_always_taken(padded_result):
        counts[2] = counts[1]  # no valid position depends on the other operand
    for operand in find_rank_counting_operands(padded_result):
        counts[operand] = NO_PADDING_COUNT  # combined with ranks they count ranks
    return counts
