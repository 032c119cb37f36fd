"""Data types of the padding analysis: properties of values at padded positions, and uses of padded
positions that affect valid positions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import isfinite
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from specc.analysis.padding_position_ids import NO_PADDING_COUNT, PaddingCount, merge_padding_counts
from specc.analysis.padding_rotary_embedding import RotaryEmbedding
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.loop_dependence import get_operand_axis_size
from specc.ir.op import Op


@immutable_dataclass
class PaddingSource:
    """The op through which padded positions affect valid positions. `is_count_only` is True if the
    result depends only on the number of padded positions. If `is_shifted` is True, the number of
    padded positions affects the result only by changing which positions a stride selects.
    `loop_body` is the body of the loop that contains the op, if any. `use` is the dependence that
    reads the padded positions.
    """

    node: Node
    is_count_only: bool = False
    is_shifted: bool = False
    loop_body: Graph | None = None
    use: "PaddedUse | None" = field(default=None, compare=False)


@immutable_dataclass(slots=True, kw_only=True)
class PaddingFacts:
    """Properties of a value along a padded axis.

    Four fields contain axes along which values at padded positions have a property: the values are
    zero or false (`zero_pad_axes`), a masked fill value of at most -1e30 (`masked_fill_axes`), or
    lower (`minimum_pad_axes`) or higher (`maximum_pad_axes`) than at every valid position. Along
    `finite_pad_axes` at least one valid position has a finite score. If `has_masked_fill` is False,
    no valid position holds a masked fill value, and if `has_masked_fill_at_padding` is False, no
    padded position holds one. At padded positions the value may be NaN (`can_be_nan`) or infinite,
    with one of `possible_infinity_signs`.

    `padding_count` is the amount that earlier padded positions add to the value. `rotary_embedding`
    is the rotation of the value's features by angles that depend on the number of padded positions.
    If `is_valid_index` is True, the value contains indices of valid positions. `padding_values` are
    the constants at padded positions, keyed by axis. `fill_values` are those constants that
    positions added by `pad` or `concat` also hold. `zero_padded_sides` maps an axis to the sides
    (`left`, `right`) on which padding is zero. Along `repeated_axes`, padded positions repeat the
    last valid position. `sorted_axes` are the axes in sorted order, with padded positions last.
    `reversed_axes` are the axes that `flip` reversed, including their padding. `rolled_axes` maps
    each axis that `roll` rotated, including its padding, to the source to report if a later op
    depends on the order of positions. `infinity_mask` is the condition of the `where` that inserted
    infinity, if no other op can cause NaN. `padding_source` is the op through which padded
    positions affect valid positions.
    """

    zero_pad_axes: frozenset[int] = frozenset()
    masked_fill_axes: frozenset[int] = frozenset()
    minimum_pad_axes: frozenset[int] = frozenset()
    maximum_pad_axes: frozenset[int] = frozenset()
    finite_pad_axes: frozenset[int] = frozenset()
    has_masked_fill: bool = False
    has_masked_fill_at_padding: bool = False
    possible_infinity_signs: frozenset[int] = frozenset()
    can_be_nan: bool = False
    padding_count: PaddingCount = None
    rotary_embedding: RotaryEmbedding | None = None
    is_valid_index: bool = False
    padding_values: Mapping[int, float] = field(default_factory=dict)
    fill_values: Mapping[int, float] = field(default_factory=dict)
    zero_padded_sides: Mapping[int, frozenset[str]] = field(default_factory=dict)
    repeated_axes: frozenset[int] = frozenset()
    sorted_axes: frozenset[int] = frozenset()
    reversed_axes: frozenset[int] = frozenset()
    rolled_axes: Mapping[int, PaddingSource] = field(default_factory=dict)
    infinity_mask: Value | None = None
    padding_source: PaddingSource | None = None

    @property
    def is_finite(self) -> bool:
        """True if the values at all padded positions are finite."""
        return not (self.can_be_nan or self.possible_infinity_signs)

    @property
    def depends_on_padding_amount(self) -> bool:
        """True if the value depends on the amount of padding, directly or through rotary angles."""
        return bool(self.padding_count or self.padding_count is None or self.rotary_embedding)

    @property
    def has_reordered_axis(self) -> bool:
        """True if an axis is reversed, sorted, rolled, or extended by copies of its ends."""
        return bool(self.reversed_axes or self.sorted_axes or self.rolled_axes)

    def get_padding_value(self, axis: int) -> float | None:
        """Return the constant at all padded positions of an axis, or None if it is unknown."""
        return 0.0 if axis in self.zero_pad_axes else self.padding_values.get(axis)

    def get_padding_side(self, axis: int, mask_side: str) -> str:
        """Return the padding side of `axis`: `mask_side` (the side of the mask), or the opposite
        side if `flip` reversed the axis.
        """
        right = {"left": "right", "right": "left"}
        return right.get(mask_side, mask_side) if axis in self.reversed_axes else mask_side

    def is_ignored_by_max(self, axis: int) -> bool:
        """Return True if padded positions do not affect a maximum along `axis`."""
        return axis in self.minimum_pad_axes or (
            axis in self.masked_fill_axes and axis in self.finite_pad_axes
        )


AxisFact: TypeAlias = Literal[
    "zero_pad_axes",
    "masked_fill_axes",
    "minimum_pad_axes",
    "maximum_pad_axes",
    "finite_pad_axes",
    "repeated_axes",
]
"""The name of a `PaddingFacts` field that is a set of axes with a property at padded positions."""

GUARANTEES = (*get_args(AxisFact), "is_valid_index")
HAZARDS = (
    "has_masked_fill",
    "has_masked_fill_at_padding",
    "possible_infinity_signs",
    "can_be_nan",
    "sorted_axes",
    "reversed_axes",
)
"""The fields of `PaddingFacts` that represent a hazard, such as a possible NaN. When the facts of
two values are merged, the result has a hazard if either value has it, and a guarantee
(`GUARANTEES`) only if both values have it.
"""

AXIS_SETS = (*get_args(AxisFact), "sorted_axes", "reversed_axes")
"""The fields of `PaddingFacts` that contain sets of axes."""

AXIS_MAPS = ("padding_values", "fill_values", "zero_padded_sides")
"""The fields of `PaddingFacts` that map axes to properties, except `rolled_axes`."""

T = TypeVar("T")

NO_PADDING_FACTS = PaddingFacts(padding_count=NO_PADDING_COUNT)
"""The properties of a value that does not depend on padding and has no other known property."""


def shift_fact_axes(facts: PaddingFacts, axis: int, shift: int) -> PaddingFacts:
    """Return the properties of a value after the axis `axis` is removed (`shift` is -1) or inserted
    (`shift` is 1).
    """

    def shift_keys(values: Mapping[int, T]) -> dict[int, T]:
        return {
            a + shift if a >= axis else a: n for a, n in values.items() if shift > 0 or a != axis
        }

    shifted: dict[str, Any] = {
        name: frozenset(shift_keys(dict.fromkeys(getattr(facts, name)))) for name in AXIS_SETS
    } | {name: shift_keys(getattr(facts, name)) for name in AXIS_MAPS}
    # The axis of rotated features is not tracked across the boundary of a loop body.
    rotary = facts.rotary_embedding
    rotary = replace(rotary, feature_axis=None) if rotary else None
    return replace(facts, **shifted, infinity_mask=None, rotary_embedding=rotary)


def merge_padding_facts(left: PaddingFacts, right: PaddingFacts) -> PaddingFacts:
    """Return the common properties of two values, e.g. of a value before and after a loop."""
    merged: dict[str, Any] = {
        name: getattr(left, name) & getattr(right, name) for name in GUARANTEES
    } | {name: getattr(left, name) | getattr(right, name) for name in HAZARDS}
    return PaddingFacts(
        # If the two values have different sorted axes, the padding count is unknown.
        padding_count=merge_padding_counts(left.padding_count, right.padding_count)
        if left.sorted_axes == right.sorted_axes
        else None,
        padding_values=dict(left.padding_values.items() & right.padding_values.items()),
        fill_values=dict(left.fill_values.items() & right.fill_values.items()),
        rotary_embedding=left.rotary_embedding or right.rotary_embedding,
        padding_source=left.padding_source or right.padding_source,
        **merged,
    )


@immutable_dataclass(kw_only=True)
class PaddedOpResult:
    """One result of a node, together with the padding properties of the node's operands.
    `dependences` are the elementwise dependences of the result along padded axes.

    `padding_mask` is the mask of the padded axis, `always_true_masks` are other masks that are
    assumed to be true, `padded_lengths` are the sizes of padded axes, and `concatenated_lengths`
    are the sizes of axes to which `pad` or `concat` added positions. `is_right_padded` is true if
    padding comes after all valid positions. `known_facts` are the properties of all values that are
    computed before the result.
    """

    node: Node
    value: Value
    operand_facts: Sequence[PaddingFacts]
    dependences: Iterable[Dependence]
    padding_mask: Value
    padded_lengths: frozenset[Dim]
    always_true_masks: frozenset[Value] = frozenset()
    concatenated_lengths: frozenset[Dim] = frozenset()
    is_right_padded: bool = False
    known_facts: Mapping[Value, PaddingFacts]

    @property
    def op(self) -> Op:
        """The op that computes the result."""
        return self.node.op

    def find_inherited_padded_axes(self) -> set[int]:
        """Return the axes of the result that correspond to a padded axis of an operand."""
        return {k.result_axis for k in self.dependences if k.result_axis is not None}

    def find_padded_axes(self) -> set[int]:
        """Return the axes of the result that have the size of a padded axis."""
        shape = self.value.shape
        return {n for n, length in enumerate(shape) if length in self.padded_lengths}

    def find_operands_with_fact(self, fact: AxisFact, axis: int) -> set[int]:
        """Return the indices of operands with the property `fact` along `axis` of the result."""
        return {
            k.operand
            for k in self.dependences
            if k.result_axis == axis
            and k.operand_axis in getattr(self.operand_facts[k.operand], fact)
        }

    def find_operands_with_axis(self, axis: int) -> set[int]:
        """Return the indices of operands that are not broadcast along `axis` of the result."""
        return {k.operand for k in self.dependences if k.result_axis == axis}


def attach_loop_body(
    facts: PaddingFacts, body: Graph, outer_sources: set[PaddingSource | None]
) -> PaddingFacts:
    """Return `facts` with `body` as the loop body of its padding source. If the source is one of
    `outer_sources`, i.e. outside the loop, return `facts` unchanged.
    """
    source = facts.padding_source
    if source is None or source in outer_sources or source.loop_body:
        return facts
    return replace(facts, padding_source=replace(source, loop_body=body))


@immutable_dataclass(kw_only=True)
class PaddedUse:
    """An op's use of a padded operand: the dependence through which a result may read padded
    positions, the padding facts of the operands, and the side of the padding.

    If `has_interior_padding` is True, padding lies between always-valid and other valid positions
    of the operand, with `valid_end_counts` positions before and after the padding.
    `result_has_interior_padding` states the same for the result. If `is_merged` is True, the
    position axis was merged with the batch axis, or copies of a tensor were concatenated along the
    position axis. Each padded position corresponds to `repeat_count` adjacent positions.
    """

    node: Node
    dependence: Dependence
    operand_facts: Sequence[PaddingFacts]
    padding_side: str
    is_merged: bool = False
    has_interior_padding: bool = False
    valid_end_counts: tuple[int | None, int | None] = (0, 0)
    result_has_interior_padding: bool = False
    repeat_count: int = 1

    @property
    def op(self) -> Op:
        """The op that reads the operand."""
        return self.node.op

    @property
    def axis(self) -> int:
        """The operand axis along which the op reads positions."""
        return self.dependence.operand_axis

    @property
    def axis_size(self) -> Dim:
        """The size of the operand axis."""
        return get_operand_axis_size(self.node, self.dependence)

    @property
    def fill_value(self) -> float | None:
        """The constant at padded positions and at positions added next to padding, if known."""
        return self.facts.fill_values.get(self.axis)

    @property
    def facts(self) -> PaddingFacts:
        """The padding properties of the operand."""
        return self.operand_facts[self.dependence.operand]

    @property
    def is_right_padded(self) -> bool:
        """True if padding follows all valid positions."""
        return self.padding_side == "right" and not self.has_interior_padding

    @property
    def is_left_padded(self) -> bool:
        """True if padding precedes all valid positions."""
        return self.padding_side == "left" and not self.has_interior_padding

    @property
    def can_be_left_padded(self) -> bool:
        """True if padding may come before valid positions."""
        return self.padding_side != "right"

    @property
    def can_be_right_padded(self) -> bool:
        """True if padding may come after valid positions."""
        return self.padding_side != "left"

    @property
    def is_zero_padded(self) -> bool:
        """True if the operand is zero at padded positions."""
        return self.axis in self.facts.zero_pad_axes

    @property
    def padding_value(self) -> float | None:
        """The constant at padded positions, or None if unknown."""
        return self.facts.get_padding_value(self.axis)

    @property
    def is_padding_finite(self) -> bool:
        """True if the operand is finite at padded positions."""
        if self.padding_value is not None:
            return isfinite(self.padding_value)
        return self.facts.is_finite

    @property
    def is_shifted(self) -> bool:
        """True if the amount of left padding determines which positions a stride selects."""
        is_strided = self.dependence.kind == "strided" and self.dependence.stride > 1
        is_aligned = self.repeat_count % self.dependence.stride == 0
        return is_strided and self.padding_side != "right" and not is_aligned
