"""Decompose attention masks into a band and global tokens, and choose block sizes for local
(sliding-window) attention.

A mask such as `window | global tokens` has no bounded band, because global tokens attend to all
positions and all positions attend to global tokens. A mask with global tokens is decomposed into a
band, global keys (to which every query may attend), and global queries (which may attend to every
key):

    abs(i - j) < 64 | first[j] | first[i]     [-63, 63], first[j], first[i]
    (i - j < 64 & j <= i | j < 4) & keep[j]   [0, 63], j < 4
    first[i] & keep[j]                        no band, first[i]

The decomposition covers all visible query-key pairs and possibly also masked pairs. For a
conjunction, only one operand's decomposition is used: the one with fewer visible pairs.

If the band of a mask is bounded, a block of consecutive queries attends only to a range of
consecutive keys: with a window of 64, queries 64 to 95 attend to keys 1 to 95. For `n` positions
and the window size `w`, a loop over blocks of queries costs O(n · w) instead of O(n²). Because of
its overhead, the loop is used only above a threshold length, which was measured on ONNX Runtime
(`benchmarks/local.py`).
"""

from collections.abc import Collection, Generator
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from specc.analysis.attention_matrices import (
    AttentionMatrix,
    TraversalBudget,
    make_attention_matrix,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.mask_bands import ATTENTION_AXES, find_band_interval, find_query_key_band
from specc.ir import ops
from specc.ir.dim import Dim, floor_divide_dims
from specc.ir.graph import Node, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Interval


@dataclass(frozen=True, slots=True)
class GlobalTokenCondition:
    """A condition along `axis` that is true (false if `is_negated`) for global tokens."""

    value: Value
    axis: int
    is_negated: bool


@dataclass(frozen=True, slots=True)
class MaskDecomposition:
    """The decomposition of a mask into a band and global tokens. The mask is true only where `q -
    k` is in `band`, or where one of the `key_conditions` or `query_conditions` is true.
    """

    band: Interval
    key_conditions: tuple[GlobalTokenCondition, ...] = ()
    query_conditions: tuple[GlobalTokenCondition, ...] = ()

    def __or__(self, other: "MaskDecomposition") -> "MaskDecomposition":
        keys = dict.fromkeys((*self.key_conditions, *other.key_conditions))
        queries = dict.fromkeys((*self.query_conditions, *other.query_conditions))
        return MaskDecomposition(self.band | other.band, tuple(keys), tuple(queries))

    def __and__(self, other: "MaskDecomposition") -> "MaskDecomposition":
        if not (self.condition_count or other.condition_count):
            return MaskDecomposition(self.band & other.band)
        return min(self, other, key=lambda d: d.sort_key)

    @property
    def condition_count(self) -> int:
        """The number of conditions that select global keys or global queries."""
        return len(self.key_conditions) + len(self.query_conditions)

    @property
    def sort_key(self) -> tuple[int, bool, int]:
        """Return a sort key that is smaller for a mask with fewer visible keys. The key compares
        first the number of infinite ends of the band, then the number of conditions that select
        global keys (usually padding masks).
        """
        ends = (self.band.low, self.band.high)
        unbounded_end_count = 0 if self.band.is_empty else sum(abs(end) == inf for end in ends)
        return (
            unbounded_end_count,
            self.band.is_empty and bool(self.key_conditions),
            self.condition_count,
        )


def decompose_mask(
    value: Value, query_axis: int, key_axis: int, padding_masks: Collection[Value] = ()
) -> MaskDecomposition:
    """Decompose the boolean mask `value` into a band and global tokens.

    `query_axis` and `key_axis` are the axis indices of queries and keys in the mask.
    `padding_masks` are not treated as global tokens, because most of their positions are visible.
    """
    subproblem = _DecompositionKey(make_attention_matrix(value, query_axis, key_axis), False)
    return solve_memoized(
        subproblem,
        _MaskDecomposer(padding_masks).decompose,
        {},
        TraversalBudget(),
        MaskDecomposition(FULL_INTERVAL),
    )


class _DecompositionKey(NamedTuple):
    """A memo key: the mask to decompose, or the negation of the mask if `is_negated` is True."""

    qk: AttentionMatrix
    is_negated: bool


@dataclass(frozen=True, slots=True)
class _MaskDecomposer:
    padding_masks: Collection[Value]

    def decompose(
        self, subproblem: _DecompositionKey
    ) -> Generator[_DecompositionKey, MaskDecomposition, MaskDecomposition]:
        """Decompose a mask or its negation. Yield the subproblems to `solve_memoized`."""
        qk, is_negated = subproblem
        node = qk.value.node
        if qk.query_axis is None or qk.key_axis is None:
            return self._find_global_tokens(qk, is_negated)
        if node is None:
            return MaskDecomposition(FULL_INTERVAL)
        if (operand := unwrap_view(qk)) is not None:
            return (yield _DecompositionKey(operand, is_negated))
        operands = qk.align_operands()
        match node.op:
            case ops.Not():
                return (yield _DecompositionKey(operands[0], not is_negated))
            case ops.And() | ops.Or():
                left = yield _DecompositionKey(operands[0], is_negated)
                right = yield _DecompositionKey(operands[1], is_negated)
                # a negated conjunction is a disjunction, and vice versa (De Morgan's laws)
                is_conjunction = isinstance(node.op, ops.And) != is_negated
                return left & right if is_conjunction else left | right
            case ops.Where() if qk.value.dtype == "bool":
                condition, yes, no = operands
                true_parts = yield _DecompositionKey(condition, False)
                true_parts = true_parts & (yield _DecompositionKey(yes, is_negated))
                false_parts = yield _DecompositionKey(condition, True)
                return true_parts | (false_parts & (yield _DecompositionKey(no, is_negated)))
        return MaskDecomposition(find_query_key_band(qk, is_negated=is_negated))

    def _find_global_tokens(self, qk: AttentionMatrix, is_negated: bool) -> MaskDecomposition:
        """Return the decomposition of a condition on one axis that selects global tokens."""
        matrix: AttentionMatrix | None = qk
        while matrix is not None and not is_negated:
            if matrix.value in self.padding_masks:
                return MaskDecomposition(FULL_INTERVAL)
            matrix = unwrap_view(matrix)
        is_condition = qk.value.dtype == "bool"
        if is_condition and qk.key_axis is not None:
            return MaskDecomposition(
                EMPTY_INTERVAL,
                key_conditions=(GlobalTokenCondition(qk.value, qk.key_axis, is_negated),),
            )
        if is_condition and qk.query_axis is not None:
            return MaskDecomposition(
                EMPTY_INTERVAL,
                query_conditions=(GlobalTokenCondition(qk.value, qk.query_axis, is_negated),),
            )
        # the value is numeric, or is a mask that is constant over all query-key pairs
        return MaskDecomposition(find_query_key_band(qk, is_negated=is_negated))


MIN_QUERY_BLOCK, MAX_QUERY_BLOCK = 16, 128
"""Minimum and maximum number of queries per block. Smaller blocks have more overhead. Blocks larger
than the maximum are not faster.
"""

MIN_BLOCKED_LENGTH = 128
"""Sequence length up to which dense attention is as fast as blocked attention."""

MIN_WINDOW_MULTIPLE = 3
"""Ratio of sequence length to window size up to which dense attention is as fast as blocked
attention."""

MIN_CAUSAL_LENGTH = 512
"""Minimum length at which blocked attention is faster than dense attention for a band that is
unbounded on one side (causal)."""

MAX_FIXED_WINDOW = 256
"""Maximum size of a one-sided window up to which all blocks read the same number of keys."""


EMPTY_MASK = MaskDecomposition(EMPTY_INTERVAL)
GLOBAL_TOKEN_RATIO = 4
"""Minimum ratio of sequence length to the number of global tokens at which blocked attention is
faster than dense attention."""


@dataclass(frozen=True, slots=True)
class BlockedAttentionPlan:
    """Blocked attention with `block_size` queries per block, for sequences longer than
    `length_threshold`.

    `band` is the interval of offsets `q - k` at which keys are visible. `decomposition` contains
    the conditions that select global tokens. Every block attends to `keys_per_block` keys, or
    `keys_per_block` is None if the number differs between blocks.
    """

    band: Interval
    block_size: int
    keys_per_block: int | None
    length_threshold: int
    decomposition: MaskDecomposition = EMPTY_MASK

    @property
    def window_size(self) -> int | None:
        """The number of keys that a query can attend to, or None if this number grows with the
        sequence.
        """
        span = self.band.high - self.band.low + 1
        return None if span == inf else int(span)

    def compute_mean_keys_per_query(self, length: Dim) -> Dim:
        """Return the mean number of keys per query at a sequence length, without global tokens."""
        if self.band.is_empty:
            return Dim.from_value(0)
        if self.window_size is None:
            # If the band is bounded on one side, blocks at one end of the sequence attend to few
            # positions, and blocks at the other end attend to all positions.
            return floor_divide_dims(length + self.block_size, 2)
        return Dim.from_value(self.block_size + self.window_size - 1)

    def __str__(self) -> str:
        """Format the sequence length threshold, the block size and the window size."""
        if self.band.is_empty:
            return f"above {self.length_threshold} positions, only global queries attend to keys"
        band = f"a query attends to {self.window_size} keys"
        if self.window_size is None:
            band = "the window is unbounded on one side"
        suffix = ", besides global tokens" if self.decomposition.condition_count else ""
        return (
            f"above {self.length_threshold} positions blocked: "
            f"{self.block_size} queries per block, "
            f"{band}{suffix}"
        )


def plan_blocked_attention(
    node: Node, padding_masks: Collection[Value] = ()
) -> BlockedAttentionPlan | None:
    """Plan blocked attention for an attention node. Return None if its mask has no bounded band or
    if blocks would be slower.
    """
    if not isinstance(node.op, ops.Attend):
        return None
    q, k = (x.shape[2] for x in (node.op.query(node), node.op.key(node)))
    return plan_blocked_attention_from_mask(node.op.mask(node), q, k, padding_masks)


def plan_blocked_attention_from_mask(
    mask: Value | None, query_length: Dim, key_length: Dim, padding_masks: Collection[Value] = ()
) -> BlockedAttentionPlan | None:
    """Plan blocked attention for a mask [b, h, q, k], where `query_length` and `key_length` are the
    sizes of the last two axes. Return None if the mask has no bounded band or if blocks would be
    slower.
    """
    # Decode steps are excluded, because their positions have an offset and their caches contain
    # only the positions in the window.
    if mask is None or query_length != key_length:
        return None
    # A disjunction has an unbounded band if one operand has an unbounded band, e.g.
    # `near | first[j]`.
    plan = _plan_band(find_band_interval(mask, *ATTENTION_AXES))
    if plan is None or plan.window_size is None:
        local = _plan_decomposed_mask(decompose_mask(mask, *ATTENTION_AXES, padding_masks))
        is_bounded = local is not None and (local.band.is_empty or local.window_size is not None)
        plan = local if is_bounded or plan is None else plan
    return None if plan is None or _is_too_short(query_length, plan) else plan


def _is_too_short(queries: Dim, local_attention: BlockedAttentionPlan) -> bool:
    return queries.number is not None and queries.number <= local_attention.length_threshold


def plan_blocked_attention_from_weights(weights: Value) -> BlockedAttentionPlan | None:
    """Plan blocked attention for attention weights […, q, k] that are zero outside a band. Return
    None if the band is unbounded on both sides, or if blocks would be slower.
    """
    queries, keys = weights.shape[-2:]
    key_axis = weights.rank - 1
    plan = (
        None if queries != keys else _plan_band(find_band_interval(weights, key_axis - 1, key_axis))
    )
    return None if plan is None or _is_too_short(queries, plan) else plan


def _plan_decomposed_mask(decomposition: MaskDecomposition) -> BlockedAttentionPlan | None:
    """Plan blocked attention for a mask with a bounded band and global tokens."""
    if decomposition.band.is_empty and decomposition.query_conditions:
        # only global queries have visible keys, and global queries are computed separately
        return BlockedAttentionPlan(EMPTY_INTERVAL, 0, None, MIN_BLOCKED_LENGTH, decomposition)
    plan = _plan_band(decomposition.band)
    # the number of keys per block depends on the number of global keys
    return None if plan is None else replace(plan, keys_per_block=None, decomposition=decomposition)


def _plan_band(band: Interval) -> BlockedAttentionPlan | None:
    look_back, look_ahead = band.high, -band.low
    if band.is_empty or look_back == look_ahead == inf:
        return None
    max_distance = max(look_back, look_ahead)
    is_one_sided = min(look_back, look_ahead) <= 0
    if max_distance == inf:
        length_threshold = MIN_CAUSAL_LENGTH + 2 * max(0, int(min(look_back, look_ahead)))
        return BlockedAttentionPlan(band, MAX_QUERY_BLOCK, None, length_threshold)
    window = int(look_back + look_ahead) + 1
    block_size = min(max(MIN_QUERY_BLOCK, int(max_distance + 1) // 2), MAX_QUERY_BLOCK)
    keys_per_block = block_size + window - 1
    length_threshold = max(MIN_WINDOW_MULTIPLE * window, keys_per_block, MIN_BLOCKED_LENGTH)
    if is_one_sided and window > MAX_FIXED_WINDOW:
        # up to `MIN_CAUSAL_LENGTH` positions, a wide window is equivalent to a causal mask
        return BlockedAttentionPlan(
            band, block_size, None, min(length_threshold, MIN_CAUSAL_LENGTH)
        )
    return BlockedAttentionPlan(band, block_size, keys_per_block, length_threshold)
