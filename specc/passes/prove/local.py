"""Which attentions look at a neighborhood, and in what blocks such a one is computed.

On entry: a mask and the lengths of its two axes. Where its band has an end, a block of
neighboring queries reads neighboring keys alone: rows 64 to 95 of a window of 64 read
keys 1 to 95. A loop over such blocks costs `n · w` where one product costs `n · n`. It
has a price of its own, so it is taken above a length only; the numbers were measured on
ONNX Runtime, `benchmarks/local.py` measures them again.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf

from specc.ir import ops
from specc.ir.dim import Dim, floor
from specc.ir.graph import Node, Value
from specc.ir.interval import EMPTY, Interval
from specc.passes.prove.bands import ATTENDED, band
from specc.passes.prove.parts import Parts, parts_of

LEAST_BLOCK, MOST_BLOCK = 16, 128
"""Queries of a block: fewer do not pay for its turn, more do not make it faster."""

SHORTEST = 128
"""Up to so many rows one product is as fast, whatever the window."""

SPANS = 3
"""Up to so many times its span a window is as fast in one product."""

HALF_FROM = 512
"""Above so many rows a mask that hides one half alone pays."""

FIXED_UP_TO = 256
"""Up to this span every block looks at equally many keys."""


NO_PARTS = Parts(EMPTY)
SHARE = 4
"""Keys and queries apart may be one in so many rows; above that one product is as fast."""


@dataclass(frozen=True, slots=True)
class Local:
    """An attention in blocks of `block` queries, for more than `above` rows.

    `band` is where `q - k` lies for what is seen, apart from `parts`: keys that all
    queries may see, and queries that may see all. With `keys` every block looks at that
    many; without, as many as the band and the ends of the axis leave.
    """

    band: Interval
    block: int
    keys: int | None
    above: int
    parts: Parts = NO_PARTS

    @property
    def window(self) -> int | None:
        """How many keys a query may see; None where that grows with the text."""
        span = self.band.hi - self.band.lo + 1
        return None if span == inf else int(span)

    def reads(self, rows: Dim) -> Dim:
        """How many keys a query is compared with, on average, where there are so many
        rows; keys and queries that stand apart are not counted.
        """
        if self.band.empty:
            return Dim.of(0)
        if self.window is None:
            # The blocks at one end see one another alone, those at the other all rows.
            return floor(rows + self.block, 2)
        return Dim.of(self.block + self.window - 1)

    def __str__(self) -> str:
        """How it is done, and why, for people."""
        if self.band.empty:
            return (
                f"above {self.above} rows some queries alone, for no other sees a key"
            )
        seen = f"a query sees {self.window} keys"
        if self.window is None:
            seen = "a query sees those on one side"
        beside = ", besides rows that stand apart" if self.parts.alone else ""
        return (
            f"above {self.above} rows in blocks of {self.block} queries: {seen}{beside}"
        )


def local_of(node: Node, padded: Collection[Value] = ()) -> Local | None:
    """How an attention is computed in blocks; None where it looks at everything, or at
    as many rows as it would be faster without. `padded` are inputs that say which rows
    exist.
    """
    match node.op:
        case ops.Attend():
            q, k = (x.type.shape[2] for x in (node.op.query(node), node.op.key(node)))
            return blocks_of(node.op.mask(node), q, k, padded)
    return None


def blocks_of(
    mask: Value | None, queries: Dim, keys: Dim, padded: Collection[Value] = ()
) -> Local | None:
    """The blocks for a mask `[b, h, q, k]` over axes of these lengths."""
    # Rows of a step follow others, whose numbers begin elsewhere; its caches keep no
    # more than the window as it is.
    if mask is None or queries != keys:
        return None
    # Of a union the band has an open end where a part of it has none: `first[j]` in
    # `near | first[j]` has neither.
    found = _of_band(band(mask, *ATTENDED))
    if found is None or found.window is None:
        apart = _of_parts(parts_of(mask, *ATTENDED, padded))
        closed = apart is not None and (apart.band.empty or apart.window is not None)
        found = apart if closed or found is None else found
    if found is None or (queries.number is not None and queries.number <= found.above):
        return None
    return found


def blocks_of_weights(weights: Value) -> Local | None:
    """The blocks for weights `[…, q, k]` by any score, which are zero outside a band."""
    queries, keys = weights.type.shape[-2:]
    last = weights.type.rank - 1
    found = None if queries != keys else _of_band(band(weights, last - 1, last))
    if found is None or (queries.number is not None and queries.number <= found.above):
        return None
    return found


def _of_parts(parts: Parts) -> Local | None:
    """A mask that has no band as a whole."""
    if parts.band.empty and parts.queries:
        # Nothing is seen but by some queries, which are done by themselves.
        return Local(EMPTY, 0, None, SHORTEST, parts)
    found = _of_band(parts.band)
    # How many keys a block sees depends on the keys apart.
    return None if found is None else replace(found, keys=None, parts=parts)


def _of_band(seen: Interval) -> Local | None:
    back, ahead = seen.hi, -seen.lo
    if seen.empty or back == ahead == inf:
        return None
    # The side on which it reaches farther; the other may be cut off entirely.
    far = max(back, ahead)
    half = min(back, ahead) <= 0
    if far == inf:
        above = HALF_FROM + 2 * max(0, int(min(back, ahead)))
        return Local(seen, MOST_BLOCK, None, above)
    span = int(back + ahead) + 1
    block = min(max(LEAST_BLOCK, int(far + 1) // 2), MOST_BLOCK)
    keys = block + span - 1
    above = max(SPANS * span, keys, SHORTEST)
    if half and span > FIXED_UP_TO:
        # Up to that length a wide window is a mask that hides one half.
        return Local(seen, block, None, min(above, HALF_FROM))
    return Local(seen, block, keys, above)
