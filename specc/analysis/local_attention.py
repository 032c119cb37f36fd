"""Decompose attention masks into a band and global tokens, and choose block sizes for local
(sliding-window) attention.

Decomposition. `window | global tokens` has no band, because global tokens attend to all positions,
and all positions attend to them. Such a mask is decomposed into a band, global keys (to which every
query may attend), and global queries (which may attend to every key):

    abs(i - j) < 64 | first[j] | first[i]     [-63, 63], first[j], first[i]
    (i - j < 64 & j <= i | j < 4) & keep[j]   [0, 63], j < 4
    first[i] & keep[j]                        no band, first[i]

The decomposition covers all visible pairs and possibly more: of a conjunction, only the condition
with fewer visible pairs is kept.

Blocks. If the band of a mask is bounded, a block of consecutive queries attends only to consecutive
keys: with a window of 64, queries 64 to 95 attend to keys 1 to 95. A loop over such blocks costs
`n · w` instead of `n · n`. Because of the overhead of the loop, it is used only above a threshold
length, which was measured on ONNX Runtime (`benchmarks/local.py`).
"""

from collections.abc import Collection, Generator
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from specc.analysis.mask_bands import ATTENTION_AXES, find_band_interval, find_query_key_band
from specc.analysis.query_key_tensors import (
    QueryKeyTensor,
    TraversalBudget,
    make_query_key_tensor,
    solve_memoized,
    unwrap_view,
)
from specc.ir import ops
from specc.ir.dim import Dim, floor_divide_dims
from specc.ir.graph import Node, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Interval


@dataclass(frozen=True, slots=True)
class GlobalTokenCondition:
    """A boolean condition along `axis` that selects global tokens: true for them, or false for them
    if `is_negated`.
    """

    value: Value
    axis: int
    is_negated: bool


@dataclass(frozen=True, slots=True)
class MaskDecomposition:
    """The decomposition of a mask: it is true only where `q - k` is in `band`, or where one of the
    `key_conditions` or `query_conditions` holds.
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
        return min(self, other, key=lambda parts: parts.sort_key)

    @property
    def condition_count(self) -> int:
        """The number of conditions that select global tokens."""
        return len(self.key_conditions) + len(self.query_conditions)

    @property
    def sort_key(self) -> tuple[int, bool, int]:
        """Return a sort key that is smaller for a mask with fewer visible keys. It compares first
        the number of infinite ends of the band, then the number of conditions that select global
        keys (which usually come from padding masks).
        """
        ends = (self.band.low, self.band.high)
        open_ = 0 if self.band.is_empty else sum(abs(end) == inf for end in ends)
        return open_, self.band.is_empty and bool(self.key_conditions), self.condition_count


def decompose_mask(
    value: Value, query: int, key: int, padding_masks: Collection[Value] = ()
) -> MaskDecomposition:
    """Decompose a mask with query axis `query` and key axis `key` into a band and global tokens.

    Padding masks are not treated as global tokens, because most of their positions are visible.
    """
    question = _DecompositionKey(make_query_key_tensor(value, query, key), False)
    return solve_memoized(
        question,
        _MaskDecomposer(padding_masks).decompose,
        {},
        TraversalBudget(),
        MaskDecomposition(FULL_INTERVAL),
    )


class _DecompositionKey(NamedTuple):
    """A memo key: the mask to decompose, or its negation if `negated`."""

    qk: QueryKeyTensor
    is_negated: bool


@dataclass(frozen=True, slots=True)
class _MaskDecomposer:
    padding_masks: Collection[Value]

    def decompose(
        self, question: _DecompositionKey
    ) -> Generator[_DecompositionKey, MaskDecomposition, MaskDecomposition]:
        """Return the decomposition of a mask, computed from those of its operands."""
        qk, negated = question
        node = qk.value.node
        if qk.query_axis is None or qk.key_axis is None:
            return self._find_global_tokens(qk, negated)
        if node is None:
            return MaskDecomposition(FULL_INTERVAL)
        if (inner := unwrap_view(qk)) is not None:
            return (yield _DecompositionKey(inner, negated))
        operands = qk.align_operands()
        match node.op:
            case ops.Not():
                return (yield _DecompositionKey(operands[0], not negated))
            case ops.And() | ops.Or():
                left = yield _DecompositionKey(operands[0], negated)
                right = yield _DecompositionKey(operands[1], negated)
                # by De Morgan's laws
                both = isinstance(node.op, ops.And) != negated
                return left & right if both else left | right
            case ops.Where() if qk.value.dtype == "bool":
                condition, yes, no = operands
                taken = yield _DecompositionKey(condition, False)
                taken = taken & (yield _DecompositionKey(yes, negated))
                left = yield _DecompositionKey(condition, True)
                return taken | (left & (yield _DecompositionKey(no, negated)))
        return MaskDecomposition(find_query_key_band(qk, negated=negated))

    def _find_global_tokens(self, qk: QueryKeyTensor, negated: bool) -> MaskDecomposition:
        """Return the decomposition of a condition that does not compare queries with keys: its true
        positions are global tokens.
        """
        inner: QueryKeyTensor | None = qk
        while inner is not None and not negated:
            if inner.value in self.padding_masks:
                return MaskDecomposition(FULL_INTERVAL)
            inner = unwrap_view(inner)
        if qk.value.dtype != "bool":
            return MaskDecomposition(find_query_key_band(qk, negated=negated))
        if qk.key_axis is not None:
            return MaskDecomposition(
                EMPTY_INTERVAL,
                key_conditions=(GlobalTokenCondition(qk.value, qk.key_axis, negated),),
            )
        if qk.query_axis is not None:
            return MaskDecomposition(
                EMPTY_INTERVAL,
                query_conditions=(GlobalTokenCondition(qk.value, qk.query_axis, negated),),
            )
        # the value is the same for all pairs: a constant, or a function of an input
        return MaskDecomposition(find_query_key_band(qk, negated=negated))


MIN_QUERY_BLOCK, MAX_QUERY_BLOCK = 16, 128
"""Range of the number of queries per block. Smaller blocks have more overhead; larger blocks are
not faster."""

MIN_BLOCKED_LENGTH = 128
"""Sequence length up to which dense attention is as fast as blocked attention."""

MIN_SPANS = 3
"""Multiple of the window size up to which dense attention is as fast as blocked attention."""

MIN_CAUSAL_LENGTH = 512
"""Sequence length above which blocked attention is faster for a mask that masks out only half of
the query-key pairs, such as a causal mask.
"""

MAX_FIXED_SPAN = 256
"""Window size up to which all blocks read the same number of keys."""


EMPTY_MASK = MaskDecomposition(EMPTY_INTERVAL)
GLOBAL_TOKEN_RATIO = 4
"""Minimum ratio of sequence length to global tokens for which blocked attention is faster."""


@dataclass(frozen=True, slots=True)
class LocalAttentionPlan:
    """Blocked attention with `block_size` queries per block, for sequences longer than
    `length_threshold`.

    `band` is the interval of visible `q - k`; `parts` contains the conditions that select global
    keys and queries. Every block attends to `keys_per_block` keys, which is None if the number
    depends on the block.
    """

    band: Interval
    block_size: int
    keys_per_block: int | None
    length_threshold: int
    parts: MaskDecomposition = EMPTY_MASK

    @property
    def window(self) -> int | None:
        """The number of keys that a query can attend to (the window size), or None if it increases
        with the sequence length.
        """
        span = self.band.high - self.band.low + 1
        return None if span == inf else int(span)

    def count_keys_per_query(self, length: Dim) -> Dim:
        """Return the average number of keys per query in a sequence of `length` positions, without
        global tokens.
        """
        if self.band.is_empty:
            return Dim.from_value(0)
        if self.window is None:
            # Blocks at one end of the sequence attend to few positions, blocks at the other end to
            # all.
            return floor_divide_dims(length + self.block_size, 2)
        return Dim.from_value(self.block_size + self.window - 1)

    def __str__(self) -> str:
        """Describe the blocks for messages."""
        if self.band.is_empty:
            return f"above {self.length_threshold} positions only global queries attend to keys"
        band = f"a query attends to {self.window} keys"
        if self.window is None:
            band = "a query attends to one side"
        beside = ", besides global tokens" if self.parts.condition_count else ""
        return (
            f"above {self.length_threshold} positions blocked: "
            f"{self.block_size} queries per block, "
            f"{band}{beside}"
        )


def plan_local_attention(
    node: Node, padding_masks: Collection[Value] = ()
) -> LocalAttentionPlan | None:
    """Plan blocked attention for an attention node; return None if it has no bounded band or if
    blocks would be slower.
    """
    match node.op:
        case ops.Attend():
            q, k = (x.shape[2] for x in (node.op.query(node), node.op.key(node)))
            return plan_mask_blocks(node.op.mask(node), q, k, padding_masks)
    return None


def plan_mask_blocks(
    mask: Value | None, queries: Dim, keys: Dim, padding_masks: Collection[Value] = ()
) -> LocalAttentionPlan | None:
    """Plan blocked attention for a mask [b, h, q, k] with `queries` queries and `keys` keys, or
    return None.
    """
    # a decode step is excluded: its positions have an offset, and its caches contain only the
    # window
    if mask is None or queries != keys:
        return None
    # The band of a disjunction is unbounded if an operand's is: `near | first[j]` is unbounded on
    # both sides.
    found = _plan_band(find_band_interval(mask, *ATTENTION_AXES))
    if found is None or found.window is None:
        apart = _plan_parts(decompose_mask(mask, *ATTENTION_AXES, padding_masks))
        closed = apart is not None and (apart.band.is_empty or apart.window is not None)
        found = apart if closed or found is None else found
    return None if found is None or _is_too_short(queries, found) else found


def _is_too_short(queries: Dim, local_attention: LocalAttentionPlan) -> bool:
    return queries.number is not None and queries.number <= local_attention.length_threshold


def plan_attention_weight_blocks(weights: Value) -> LocalAttentionPlan | None:
    """Plan blocks for weights […, q, k] that are zero outside a band, or return None."""
    queries, keys = weights.shape[-2:]
    last = weights.rank - 1
    found = None if queries != keys else _plan_band(find_band_interval(weights, last - 1, last))
    return None if found is None or _is_too_short(queries, found) else found


def _plan_parts(parts: MaskDecomposition) -> LocalAttentionPlan | None:
    """Plan blocks for a mask whose band is bounded once its global tokens are removed."""
    if parts.band.is_empty and parts.query_conditions:
        # only global queries have visible keys, and they are computed separately
        return LocalAttentionPlan(EMPTY_INTERVAL, 0, None, MIN_BLOCKED_LENGTH, parts)
    found = _plan_band(parts.band)
    # the number of keys of a block depends on the number of global keys
    return None if found is None else replace(found, keys_per_block=None, parts=parts)


def _plan_band(band: Interval) -> LocalAttentionPlan | None:
    back, ahead = band.high, -band.low
    if band.is_empty or back == ahead == inf:
        return None
    # The end of the band that is farther from 0; the other end may be 0.
    far = max(back, ahead)
    half = min(back, ahead) <= 0
    if far == inf:
        above = MIN_CAUSAL_LENGTH + 2 * max(0, int(min(back, ahead)))
        return LocalAttentionPlan(band, MAX_QUERY_BLOCK, None, above)
    span = int(back + ahead) + 1
    block = min(max(MIN_QUERY_BLOCK, int(far + 1) // 2), MAX_QUERY_BLOCK)
    keys = block + span - 1
    above = max(MIN_SPANS * span, keys, MIN_BLOCKED_LENGTH)
    if half and span > MAX_FIXED_SPAN:
        # up to this sequence length, a wide window is equivalent to a causal mask
        return LocalAttentionPlan(band, block, None, min(above, MIN_CAUSAL_LENGTH))
    return LocalAttentionPlan(band, block, keys, above)
