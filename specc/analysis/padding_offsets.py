"""Find the offset of padded positions on axes that also contain prefix or memory positions, and
find the total stride of padding masks.

    concat([memory, x])          offset m: after the positions of `memory`, which are always valid
    concat([prompt, x])          offset 0, for padding of `prompt`
    concat([memory, x])[:, m:]   offset 0

The offset is stored per axis size: all axes of size `m + n` have the same offset. If two axes of
the same size have different offsets, no offset is recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from specc.analysis.length_limits import is_provably_nonnegative
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.loop_dependence import find_dependences, get_operand_axis_size
from specc.ir.op import Op
from specc.ir.ops.loop import iterate_all_nodes
from specc.ir.types import SAME_POSITION, Interval

MAX_UPSAMPLING_FACTOR = 32
"""Exclusive upper bound of the integer upsampling factors `k` for which a nearest-neighbor `resize`
is exact in float32, i.e. for which `k * (1 / k)` is not rounded below 1."""


@dataclass(frozen=True)
class PaddingOffsets:
    """The offset of the padded positions, i.e. the number of positions before them, keyed by axis
    size. `padded_length` is the size of the padding mask, `padding_side` is "left", "right" or
    "any", and `min_lengths` maps symbolic dimensions to lower bounds.
    """

    padded_length: Dim
    min_lengths: Mapping[str, int]
    padding_side: str
    offsets: Mapping[Dim, Dim] = field(default_factory=dict)
    merged_lengths: Mapping[Dim, tuple[Dim, ...]] = field(default_factory=dict)
    """Maps the size of a merged axis to the sizes of the axes from which it was merged."""

    @cached_property
    def concatenated_lengths(self) -> frozenset[Dim]:
        """The sizes of axes that contain the padded sequence and other positions."""
        return frozenset(self.offsets) - {self.padded_length}

    def count_appended_positions(self, length: Dim) -> Dim:
        """Return the number of positions after the padded sequence on an axis of size `length`."""
        return self._counts_after.get(length, Dim.from_value(0))

    @cached_property
    def _counts_after(self) -> Mapping[Dim, Dim]:
        return {
            length: length - self.padded_length - offset for length, offset in self.offsets.items()
        }

    def has_interior_padding(self, length: Dim) -> bool:
        """Return True if padding may be between always-valid positions and valid positions."""
        if length in self.merged_lengths:
            return True
        has_positions_before = self.offsets.get(length, 0) != 0
        has_positions_after = self.count_appended_positions(length) != 0
        return (has_positions_before and self.padding_side != "right") or (
            has_positions_after and self.padding_side != "left"
        )

    def result_has_interior_padding(self, value: Value, dependence: Dependence) -> bool:
        """Return True if the result axis may have padding between valid positions."""
        if dependence.result_axis is None or dependence.kind == "all":
            return False
        return self.has_interior_padding(value.shape[dependence.result_axis])

    def restrict_dependence_to_padding(
        self, node: Node, dependence: Dependence
    ) -> Dependence | None:
        """Restrict a dependence to padded positions. Return None if no padded position is read."""
        if dependence.kind != "all":
            return dependence
        length = get_operand_axis_size(node, dependence)
        if self.is_nearest_upsampling(node, dependence.operand_axis):
            return replace(dependence, kind="same", result_axis=dependence.operand_axis)
        if isinstance(node.op, ops.Merge | ops.Split):
            result_axis = self._regroup_offsets(node, dependence.operand_axis)
            is_tracked = result_axis is not None
            same = replace(dependence, kind="same", result_axis=result_axis)
            return same if is_tracked else dependence
        if _is_transposed_conv_axis(node.op, dependence):
            axis = dependence.operand_axis
            return replace(dependence, kind="strided", result_axis=axis, offsets=SAME_POSITION)
        if (joined_dependence := _follow_joined_positions(self, node, dependence)) is not None:
            return joined_dependence
        if _get_op_axis(node.op) != dependence.operand_axis:
            return dependence
        if length in self.offsets:
            if self._is_outside_padding(node, self.offsets[length]):
                return None
            result = _find_result_axis(node, dependence.operand, self.offsets[length])
            if result is not None and self.offsets.get(result[0]) == result[1]:
                return replace(dependence, kind="same", result_axis=dependence.operand_axis)
        return make_shift_dependence(node, dependence) or dependence

    def is_nearest_upsampling(self, node: Node, axis: int) -> bool:
        """Return True for a nearest-neighbor `resize` by an integer factor, if no concatenated or
        merged axis has the size of the result.
        """
        match node.op:
            case ops.Resize(first, sizes) if 0 <= axis - first < len(sizes):
                length = sizes[axis - first]
                is_ambiguous = length in self.offsets or length in self.merged_lengths
                return not is_ambiguous and get_upsampling_factor(node, axis) is not None
        return False

    def _regroup_offsets(self, node: Node, axis: int) -> int | None:
        """Return the output axis of a reshape that leaves padding contiguous, otherwise None."""
        shape = node.get_operand().shape
        match node.op:
            case ops.Merge(first, count) if first <= axis < first + count:
                lengths = shape[first : first + count]
                is_single = multiply_dims(lengths) == shape[axis]
                is_outermost = first == axis and self._is_outermost(lengths)
                is_known_merge = self.merged_lengths.get(multiply_dims(lengths)) == lengths
                return first if is_single or is_outermost or is_known_merge else None
            case ops.Split(first, sizes) if first == axis:
                if shape[axis] in sizes:
                    return first + sizes.index(shape[axis])
                if self._is_outermost(sizes):
                    return first
                if self.merged_lengths.get(shape[axis]) != sizes:
                    return None
                return first + next(n for n, d in enumerate(sizes) if d in self.offsets)
        return None

    def _is_outermost(self, lengths: tuple[Dim, ...]) -> bool:
        """Return True if padded positions of the first axis remain adjacent when axes of the sizes
        `lengths` are merged. This is the case if all other axes have constant sizes.
        """
        merged_length = multiply_dims(lengths)
        ambiguous_lengths = {merged_length, lengths[0]} & (
            self.concatenated_lengths | self.merged_lengths.keys()
        )
        has_constant_rest = all(d.number is not None for d in lengths[1:])
        return (
            not ambiguous_lengths
            and has_constant_rest
            and bool(self.count_position_repeats(lengths[0]))
        )

    def count_position_repeats(self, length: Dim) -> int | None:
        """Return the number of adjacent positions per mask position, or None if unknown."""
        return _count_position_repeats(length, self.padded_length)

    def _is_outside_padding(self, node: Node, offset: Dim) -> bool:
        """Return True if a node selects positions by constant indices and selects no padding."""
        match node.op:
            case ops.Slice(start=start, stop=stop) | ops.Index(start=start, stop=stop):
                pass
            case _:
                return False
        # The last position is valid with left padding, and the first position is valid with right
        # padding.
        first, last = int(self.padding_side == "right"), int(self.padding_side == "left")
        margins = offset + first - stop, start - offset - self.padded_length + last
        return any(is_provably_nonnegative(d, self.min_lengths) for d in margins)


def _follow_joined_positions(
    offsets: PaddingOffsets, node: Node, dependence: Dependence
) -> Dependence | None:
    """Return the dependence on padded positions of an op that extends an axis: a `pad` that copies
    the ends of the axis, or a concatenation of axes of equal size. Return None for other ops.
    """
    match node.op:
        case ops.Pad(axis=axis, mode="edge") if axis == dependence.operand_axis:
            return make_shift_dependence(node, dependence)
        case ops.Concat(axis) if axis == dependence.operand_axis:
            lengths = _find_merged_lengths(node, offsets.offsets, offsets.padded_length)
            if lengths and offsets.merged_lengths.get(multiply_dims(lengths)) == lengths:
                return replace(dependence, kind="same", result_axis=axis)
    return None


def find_padded_lengths(graph: Graph, offsets: PaddingOffsets) -> frozenset[Dim]:
    """Return the sizes of padded axes, including axes that result from windows and slices."""
    padded_lengths = {offsets.padded_length, *offsets.concatenated_lengths, *offsets.merged_lengths}
    for node, results in iterate_all_nodes(graph):
        for dependence in find_dependences(node, results):
            reads_all = dependence.kind == "all"
            if reads_all:
                dependence = offsets.restrict_dependence_to_padding(node, dependence) or dependence
            if dependence.kind == "strided" or (reads_all and dependence.kind == "same"):
                assert dependence.result_axis is not None, "a window has a result axis"
                if get_operand_axis_size(node, dependence) in padded_lengths:
                    padded_lengths.add(results[0].shape[dependence.result_axis])
    return frozenset(padded_lengths)


@lru_cache(maxsize=4096)
def _count_position_repeats(length: Dim, padded_length: Dim) -> int | None:
    """Return the number of axis positions per position of the padding mask, or None if the ratio is
    not a small integer. The function is cached, because many axes have the same size.
    """
    for count in range(1, MAX_UPSAMPLING_FACTOR):
        if (length - padded_length * count).number is not None:
            return count
    return None


def get_upsampling_factor(node: Node, axis: int) -> int | None:
    """Return the factor of an exact nearest-neighbor upsampling, or None for other ops."""
    match node.op:
        case ops.Resize(axis=first, sizes=sizes, factors=scales) as op if not op.is_interpolating:
            length, result_length = node.get_operand().shape[axis], sizes[axis - first]
            for factor in range(1, MAX_UPSAMPLING_FACTOR):
                if length * factor == result_length:
                    return factor if set(scales) <= {factor} else None
    return None


def _is_transposed_conv_axis(op: Op, dependence: Dependence) -> bool:
    """Return True if a dependence reads a window axis of a transposed convolution."""
    if not isinstance(op, ops.ConvTranspose) or dependence.operand != ops.ConvTranspose.x.index:
        return False
    return 0 <= dependence.operand_axis - len(op.kernel) < len(op.kernel)


def make_shift_dependence(node: Node, dependence: Dependence) -> Dependence | None:
    """Return the dependence of an op that drops or adds a constant number of positions at the ends
    of an axis. The dependence is a window of one position. Return None for other ops.
    """
    axis = dependence.operand_axis
    added_counts = _count_added_positions(node, dependence.operand, axis) or ()
    numbers = [d.number for d in added_counts if d.number is not None]
    if len(numbers) < 2:
        return None
    shift = Interval(numbers[0], numbers[0])
    return replace(dependence, kind="strided", result_axis=axis, offsets=shift, stride=1)


def _count_added_positions(node: Node, operand: int, axis: int) -> tuple[Dim, Dim] | None:
    """Return the numbers of positions that an op adds before and after an operand's positions."""
    lengths = [a.shape[axis] for a in node.operands]
    match node.op:
        case ops.Slice(start=start, stop=stop):
            return -start, stop - lengths[operand]
        case ops.Pad(padding_before=before, padding_after=after):
            return before, after
        case ops.Concat():
            return sum_dims(lengths[:operand]), sum_dims(lengths[operand + 1 :])
    return None


def find_padding_offsets(graph: Graph, padding_mask: Value, side: str) -> PaddingOffsets:
    """Return the offsets of padding on all axes derived from the axis of `padding_mask`."""
    padded_length = padding_mask.shape[-1]
    offsets, ambiguous_lengths = {padded_length: Dim.from_value(0)}, set[Dim]()
    merged: dict[Dim, tuple[Dim, ...]] = {}
    for node, _ in iterate_all_nodes(graph):
        if (lengths := _find_merged_lengths(node, offsets, padded_length)) is not None:
            merged_length = multiply_dims(lengths)
            if merged.setdefault(merged_length, lengths) != lengths:
                ambiguous_lengths.add(merged_length)
            continue
        for length, offset in _iterate_result_axes(node, offsets, padded_length, graph.min_lengths):
            if offsets.setdefault(length, offset) != offset:
                ambiguous_lengths.add(length)
    ambiguous_lengths |= offsets.keys() & merged.keys()
    unique_offsets = {d: p for d, p in offsets.items() if d not in ambiguous_lengths}
    unique_merges = {
        d: lengths
        for d, lengths in merged.items()
        if d not in ambiguous_lengths and any(length in unique_offsets for length in lengths)
    }
    return PaddingOffsets(padded_length, graph.min_lengths, side, unique_offsets, unique_merges)


def _find_merged_lengths(
    node: Node, offsets: Mapping[Dim, Dim], padded_length: Dim
) -> tuple[Dim, ...] | None:
    """Return the sizes of the axes that a node merges if exactly one of these axes is padded.
    Return None for other nodes, or if the merge leaves the padding contiguous. This is the case if
    all other axes have size 1, or if the padded axis is the outermost axis and all other sizes are
    constant. A concatenation of `k` values along the padded axis is treated like a merge of an axis
    of size `k` with the padded axis.
    """
    match node.op:
        case ops.Concat(axis) if {a.shape[axis] for a in node.operands} == {padded_length}:
            count = len(node.operands)
            return (Dim.from_value(count), padded_length) if count > 1 else None
        case ops.Merge(axis, count):
            lengths = node.get_operand().shape[axis : axis + count]
            is_single = multiply_dims(lengths) in lengths
            if is_single or (lengths[0] == padded_length and all(d.number for d in lengths[1:])):
                return None
            return lengths if sum(d in offsets for d in lengths) == 1 else None
    return None


def _iterate_result_axes(
    node: Node, offsets: Mapping[Dim, Dim], padded_length: Dim, min_lengths: Mapping[str, int]
) -> Iterator[tuple[Dim, Dim]]:
    """Yield the sizes of the axes that result from a padded axis, each with its padding offset."""
    axis = _get_op_axis(node.op)
    if axis is None:
        return
    for operand_index, operand in enumerate(node.operands):
        offset = offsets.get(operand.shape[axis])
        result = None if offset is None else _find_result_axis(node, operand_index, offset)
        # Skip a result axis from which positions that may be padded have been dropped.
        if result:
            margins = result[1], result[0] - result[1] - padded_length
            if all(is_provably_nonnegative(margin, min_lengths) for margin in margins):
                yield result


def _find_result_axis(node: Node, operand: int, offset: Dim) -> tuple[Dim, Dim] | None:
    """Return the size of the result axis and its padding offset, or None if unknown."""
    axis = _get_op_axis(node.op)
    added_counts = None if axis is None else _count_added_positions(node, operand, axis)
    if axis is None or added_counts is None:
        return None
    length = node.get_operand(operand).shape[axis]
    return added_counts[0] + length + added_counts[1], offset + added_counts[0]


def _get_op_axis(op: Op) -> int | None:
    match op:
        case ops.Concat(axis) | ops.Pad(axis, mode="constant") | ops.Slice(axis) | ops.Index(axis):
            return axis
    return None


def is_position_embedding_shifted(
    node: Node, value: Value, padded_lengths: frozenset[Dim], offsets: PaddingOffsets
) -> bool:
    """Return True if an op computes a padded axis of its result `value` from an axis without
    padding, and the values at valid positions depend on the number of padded positions.

    Positions of an axis without padding are absolute: the first entry of `table[:, :n]` belongs to
    the first position, even if the first position is padded.
    """
    return isinstance(node.op, ops.Slice | ops.Concat | ops.Pad | ops.Resize) and any(
        length in padded_lengths
        and padded_lengths.isdisjoint(a.shape[axis] for a in node.operands)
        and not _is_right_padded_table(node, axis, length, offsets)
        for axis, length in enumerate(value.shape)
    )


def _is_right_padded_table(node: Node, axis: int, length: Dim, offsets: PaddingOffsets) -> bool:
    """Return True if padding comes after all valid positions and the start of the slice of a table
    does not depend on the size of the axis.
    """
    is_last = offsets.padding_side == "right" and not offsets.has_interior_padding(length)
    return is_last and _has_static_start(node, axis, length)


def _has_static_start(node: Node, axis: int, length: Dim) -> bool:
    """Return True if no result position depends on the size of the axis."""
    match node.op:
        case ops.Slice(start=start) | ops.Pad(padding_before=start):
            return start.number is not None
        case ops.Concat():
            return (length - node.get_operand(-1).shape[axis]).number is not None
    return False


def find_padding_mask_strides(graph: Graph) -> dict[str, int]:
    """Return the total stride of each padding mask whose total stride exceeds 1, keyed by input
    name. The total stride is the number of mask positions per position after all strides.
    """
    strides = {
        name: _find_largest_stride(graph, graph.inputs[name])
        for name, facts in graph.input_facts.items()
        if facts.padding_side and graph.inputs[name].rank
    }
    return {name: stride for name, stride in strides.items() if stride > 1}


def _find_largest_stride(graph: Graph, padding_mask: Value) -> int:
    """Return the largest total stride of axes that are derived from the axis of `padding_mask`."""
    strides = {padding_mask.shape[-1]: 1}
    for node, results in graph.nodes:
        if not isinstance(
            node.op, ops.SlidingWindowOp | ops.DownsamplePaddingMask | ops.StridedSlice
        ):
            continue
        for dependence in find_dependences(node, results):
            stride = strides.get(get_operand_axis_size(node, dependence))
            if dependence.kind == "strided" and dependence.result_axis is not None and stride:
                length = results[dependence.result].shape[dependence.result_axis]
                strides[length] = max(strides.get(length, 1), stride * dependence.stride)
    return max(strides.values())
