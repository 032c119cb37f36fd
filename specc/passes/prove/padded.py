"""What stands in a value where rows are padded: zeros, or numbers so low that a softmax
or a maximum skips them.

On entry: a node, and what is known of its operands along one padded axis. On leaving:
what is known of each result. All that is said is sure; what is not seen is not said.

Scores are filled with minus infinity where `keep` is false. There they are low, and
lower than at every row that exists (`floor`), and at least one row that exists holds an
ordinary number (`peaks`). So the softmax, which divides by a sum that is not zero, gives
zeros there, and what it weighs may hold anything:

    $ padded keep
    graph "g"
    input "x" %0: f32[b, n]
    input "keep" %1: bool[b, n] keep="right"
    %2: f32[] = constant() {value=-1e+38, dtype="f32"}
    %3: f32[b, n] = where(%1, %0, %2)
    %4: f32[b, n] = softmax(%3) {axis=1}
    %5: f32[b, n] = arith(%4, %0) {fn="mul"}
    %6: f32[b] = reduce(%5) {fn="sum", axis=1}
    output "y" %6
    end
    gives
    %1 zero along 1
    %2 wild, stained
    %3 low along 1, floor along 1, peaks along 1, stained
    %4 zero along 1
    %5 zero along 1
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from specc.ir import ops
from specc.ir.graph import Node
from specc.passes.prove.bands import ZERO_AT_ZERO
from specc.passes.prove.broken import behind, broken, endless, may_vanish, repeated
from specc.passes.prove.held import fill, held, ranked
from specc.passes.prove.row_numbers import NOTHING
from specc.passes.prove.rows import Rows
from specc.passes.prove.scores import floor, low, peaks, stained, wild
from specc.passes.prove.seen import zero_everywhere
from specc.passes.prove.standing import Standing

MASK_KEYS = 3
"""The axis of the keys in an attention's mask, [batch, head, query, key]."""

PRODUCTS = (ops.Arith, ops.MatMul, ops.Einsum, ops.Weigh)
"""Ops that may multiply a zero by what another operand holds."""

SUMS = ("sum", "any", "max", "min", "mean")
"""Reductions over another axis that make a zero of zeros; `all` of nothing is true."""


def stands(standing: Standing) -> Rows:
    """What stands at padded rows of a result, but for what padding adds to it."""
    axes = standing.axes()
    numbers = held(standing)
    zero = _zeros(standing, numbers)
    least = {a for a, n in numbers.items() if n == -inf}
    rows = Rows(
        zero=frozenset(zero),
        low=frozenset(least.union(a for a in axes if low(standing, a))),
        floor=frozenset(least.union(a for a in axes if floor(standing, a))),
        held=numbers,
        fill=fill(standing, {**dict.fromkeys(zero, 0.0), **numbers}),
        ranked=ranked(standing),
        repeated=repeated(standing),
        behind=behind(standing),
        peaks=frozenset(peaks(standing, axes)),
        wild=wild(standing),
        stained=stained(standing),
        endless=endless(standing),
        broken=broken(standing),
        count=NOTHING,
        # Numbers of rows that exist stay such wherever a view puts them.
        points=standing.node.op.view and any(r.points for r in standing.given),
    )
    if isinstance(standing.node.op, ops.Merge | ops.Split):
        # Of batch and positions on one axis neither order nor "at least one" is known.
        none = frozenset[int]()
        rows = replace(rows, ranked=none, repeated=none, peaks=none)
    return rows


def _zeros(standing: Standing, numbers: Mapping[int, float]) -> set[int]:
    """The axes along which a result is zero at padded positions."""
    zero = {a for a in standing.axes() if is_zero(standing, a)}
    if zero_everywhere(standing.value):
        zero |= standing.padded()
    return zero.union((a for a, n in numbers.items() if n == 0), _emptied(standing))


def _emptied(standing: Standing) -> Iterator[int]:
    """Axes along which an op itself leaves zeros where a mask, or `keep`, is false."""
    node, value, given = standing.node, standing.value, standing.given
    last = value.type.rank - 1
    match node.op:
        case ops.MaskedSoftmax() | ops.Hard() | ops.Share():
            # The keys are the last axis of a mask as of the weights, however many there
            # are before them.
            mask = node.op.mask
            if mask(node).type.rank - 1 in mask.of(given).zero:
                yield last
        case ops.Attend(mask=mask) if value.type.shape[-1] in standing.lengths:
            # The second result, the weights: the first ends in features, not in keys.
            hidden = mask.of(given)
            if mask(node) and hidden and MASK_KEYS in hidden.zero:
                yield last
        case ops.Softmax(axis=axis) if axis in given[0].low & given[0].peaks:
            # exp(-1e30 - max) is 0 where max is an ordinary number; without `peaks` all
            # rows might be low, and each of n would get 1/n.
            yield axis
        case ops.Pointwise(fn="exp"):
            yield from given[0].low
        case ops.Scan(masked=True, axis=axis) if 1 in given[0].zero:
            # What a masked loop collects is zero at rows that it passes over; a carry
            # has no such axis.
            if value.type.rank > axis and value.type.shape[axis] in standing.lengths:
                yield axis
        case ops.Route() as op if (keep := op.parts(given).keep) is not None:
            yield from keep.zero  # rows that are not kept go to no expert
        case ops.Rnn() | ops.Gru() | ops.Lstm() if value.type.rank == 3 and passes_over(
            node, given
        ):
            yield 1


def passes_over(node: Node, given: Sequence[Rows]) -> bool:
    """Whether a recurrent layer is told which rows are padded."""
    if not isinstance(node.op, ops.Rnn | ops.Gru | ops.Lstm):
        return False
    keep = node.op.keep.of(given)
    return keep is not None and 1 in keep.zero


def is_zero(standing: Standing, axis: int) -> bool:
    """Whether a result is zero where `axis` is padded."""
    zero, along = standing.at("zero", axis), standing.along(axis)
    if isinstance(standing.node.op, ops.Concat):
        # A part without padded rows has other rows of the axis.
        zero = [z or not there for z, there in zip(zero, along, strict=True)]
    if isinstance(standing.node.op, PRODUCTS):
        others = [r for r, z in zip(standing.given, zero, strict=True) if not z]
        if not all(r.finite for r in others):
            return False  # zero times infinity, or NaN, is NaN
    return _gives_zero(standing, zero, along)


def _gives_zero(standing: Standing, zero: list[bool], along: list[bool]) -> bool:
    """Whether what is zero makes a zero of the result: operands marked in `zero`, where
    rows are padded. `along` marks those with padded rows.
    """
    node = standing.node
    match node.op:
        case (
            ops.And() | ops.Arith(fn="mul") | ops.MatMul() | ops.Einsum() | ops.Weigh()
        ):
            return any(zero)  # one factor is enough
        case ops.Or() | ops.Concat() | ops.Where():
            return _all_zero(node, zero)
        case ops.Arith(fn="add" | "sub" | "min" | "max"):
            return _all_zero(node, zero)
        case ops.Arith(fn="div" | "floordiv"):
            # Zero by zero is NaN: a divisor that has padded positions too may be zero.
            return zero[0] and (not along[1] or not may_vanish(standing, 1))
        case ops.Pointwise(fn=fn):
            return fn in ZERO_AT_ZERO and zero[0]
        case ops.Linear():
            # A bias is added at padded rows too: nothing is zero behind it.
            return zero[0] and node.op.bias(node) is None
        case ops.Cast() | ops.Rotate() | ops.KeepRows():
            return zero[0]
        case ops.Stride() | ops.Slice() | ops.Pad():
            return zero[0]
        case ops.Reduce(fn=fn) if fn in SUMS:
            return zero[0]
    return node.op.view and any(zero)


def _all_zero(node: Node, zero: list[bool]) -> bool:
    """Whether all that a result may be made of is zero: where rows are padded, or, a
    plain 0 that was written down, everywhere.
    """
    zeros = [z or zero_everywhere(a) for z, a in zip(zero, node.args, strict=True)]
    if isinstance(node.op, ops.Where):
        # Where the condition is false at padded rows, only the other counts:
        # `where(keep, x, 0)`.
        hidden, yes, no = zero[0], zeros[1], zeros[2]
        return (hidden or yes) and no
    return all(zeros)
