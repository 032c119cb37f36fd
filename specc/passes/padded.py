"""What stands in a value where rows are padded: zeros, or numbers so low that a softmax or a maximum skips them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.reach import Link
from specc.passes.bands import ZERO_AT_ZERO, Grid, aligned, band_of, through
from specc.passes.rotation import Turned
from specc.passes.row_numbers import NOTHING, Count, either, number_of

LOW = -1e30
"""What is at most this is taken for minus infinity: no number a model computes in f32 with any accuracy left."""

TAMED = (ops.Softmax, ops.MaskedSoftmax, ops.Hard, ops.Share, ops.Compare, ops.ArgMax)
"""Ops whose results are ordinary numbers whatever they are given; so are these functions of `Pointwise`."""

TAMING = ("exp", "sigmoid", "tanh")


@dataclass(frozen=True, slots=True)
class Dirt:
    """The op through which padded rows came in. `counted`: by their number, not by their values.

    `inside` is the body of the loop that the op stands in, if it stands in one.
    """

    node: Node
    counted: bool = False
    inside: Graph | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of a value along a padded axis.

    It is zero or false (`zero`), very low (`low`), or lower than at every row that exists (`floor`), wherever its
    row along one of these axes is padded. Along `peaks` at least one row that exists holds an ordinary number; unless
    `wild`, all do, and unless `stained`, padded ones too. Where rows are padded it may hold no number at all
    (`broken`), infinity (`endless`), or zero because nothing was left to sum (`hollow`).

    `count`: it grows with the number of padded rows before. `turned`: its features were rotated by angles that do.
    `points`: it holds numbers of rows that exist. `dirt`: padded rows have reached rows that exist.
    """

    zero: frozenset[int] = frozenset()
    low: frozenset[int] = frozenset()
    floor: frozenset[int] = frozenset()
    peaks: frozenset[int] = frozenset()
    wild: bool = False
    stained: bool = False
    endless: bool = False
    hollow: bool = False
    broken: bool = False
    count: Count = None
    turned: Turned | None = None
    points: bool = False
    dirt: Dirt | None = None

    def covered(self, axis: int) -> bool:
        """Whether a maximum along an axis passes over padded rows."""
        return axis in self.floor or (axis in self.low and axis in self.peaks)


PLAIN = Rows(count=NOTHING)
"""A value of which nothing is known, and that has not to do with padding."""


def moved(rows: Rows, axis: int, by: int) -> Rows:
    """`rows` where an axis was taken out (-1) or put in (1) at `axis`."""

    def changed(known: frozenset[int]) -> frozenset[int]:
        return frozenset(a + by if a >= axis else a for a in known if by > 0 or a != axis)

    turned = replace(rows.turned, axis=None) if rows.turned else None
    made = replace(rows, zero=changed(rows.zero), low=changed(rows.low), turned=turned)
    return replace(made, floor=changed(rows.floor), peaks=changed(rows.peaks))


def one_of(one: Rows, other: Rows) -> Rows:
    """What is known of a value that is one or the other."""
    return Rows(
        one.zero & other.zero,
        one.low & other.low,
        one.floor & other.floor,
        one.peaks & other.peaks,
        one.wild or other.wild,
        one.stained or other.stained,
        one.endless or other.endless,
        one.hollow or other.hollow,
        one.broken or other.broken,
        either(one.count, other.count),
        one.turned or other.turned,
        one.points and other.points,
        one.dirt or other.dirt,
    )


@dataclass(frozen=True)
class Standing:
    """One result of a node, and what is known of its operands; `keeps` are its links along padded axes, row for row."""

    node: Node
    value: Value
    given: Sequence[Rows]
    keeps: Iterable[Link]
    keep: Value
    length: Dim

    def rows(self) -> Rows:
        """What stands at padded rows of the result."""
        axes = {k.result_axis for k in self.keeps if k.result_axis is not None}
        zero = frozenset(a for a in axes if self._zero(a))
        low = frozenset(a for a in axes if self._low(a))
        floor = frozenset(a for a in axes if self._floor(a))
        peaks = frozenset(self._peaks(axes))
        points = self.node.op.view and any(r.points for r in self.given)
        zero |= frozenset(self._emptied())
        made = Rows(zero, low, floor, peaks, self._wild(), self._stained(), count=NOTHING, points=points)
        return replace(made, endless=self._endless(), hollow=self._hollow(), broken=self._broken())

    def _stands(self, n: int, axis: int, known: frozenset[int]) -> bool:
        """Whether operand `n` is known of where the result's `axis` is padded."""
        return any(k.operand == n and k.result_axis == axis and k.operand_axis in known for k in self.keeps)

    def _at(self, what: str, axis: int) -> list[bool]:
        return [self._stands(n, axis, getattr(r, what)) for n, r in enumerate(self.given)]

    def _along(self, axis: int) -> list[bool]:
        """The operands that have the axis."""
        return [any(k.operand == n and k.result_axis == axis for k in self.keeps) for n in range(len(self.given))]

    def _emptied(self) -> Iterator[int]:
        """Axes along which an op itself leaves zeros where a mask, or `keep`, is false."""
        node, value, given = self.node, self.value, self.given
        last = value.type.rank - 1
        match node.op:
            case ops.MaskedSoftmax() | ops.Hard() | ops.Share():
                mask = node.args[1]
                if mask and mask.type.rank - 1 in given[1].zero:
                    yield last
            case ops.Attend() if len(node.args) > 3 and node.args[3] and value.type.shape[-1] == self.length:
                if 3 in given[3].zero:
                    yield last
            case ops.Softmax(axis=axis) if axis in given[0].low & given[0].peaks:
                yield axis
            case ops.Pointwise(fn="exp"):
                yield from given[0].low
            case ops.Scan(masked=True, axis=axis) if node.args[0] is not None and 1 in given[0].zero:
                if value.type.rank > axis and value.type.shape[axis] == self.length:
                    yield axis
            case ops.Rnn() | ops.Gru() | ops.Lstm() if value.type.rank == 3 and passes_over(node, given):
                yield 1

    def _zero(self, axis: int) -> bool:
        """Whether it is zero where `axis` is padded."""
        at = self._at("zero", axis)
        if isinstance(self.node.op, ops.Arith | ops.MatMul | ops.Einsum | ops.Weigh):
            others = [n for n, z in enumerate(at) if not z]
            if any(self.given[n].broken for n in others):
                return False  # zero times what is no number is no number
        return _gives_zero(self.node, at, self._along(axis))

    def _endless(self) -> bool:
        """Whether it may hold infinity."""
        match self.node.op:
            case ops.Constant(value=value):
                return abs(value) == float("inf")
            case ops.Pointwise() | ops.Softmax() | ops.Compare() | ops.MaskedSoftmax() | ops.Hard() | ops.ArgMax():
                return False
        return any(r.endless for r in self.given)

    def _hollow(self) -> bool:
        """Whether it may be zero because no row was left to sum."""
        given, node = self.given, self.node
        match node.op:
            case ops.Reduce(fn="sum", axis=axis):
                left = self.length in self.value.type.shape
                return left and axis in given[0].zero and not _topped(node.args[0], axis)
            case ops.Arith(fn="max" | "add"):
                return all(r.hollow or not (number_of(a) or 0) > 0 for r, a in zip(given, node.args, strict=True))
            case ops.Arith(fn="mul" | "div") | ops.Cast() | ops.Pointwise(fn="sqrt" | "abs" | "relu"):
                return any(r.hollow for r in given)
        return node.op.view and any(r.hollow for r in given)

    def _broken(self) -> bool:
        """Whether it may be no number where rows are padded: infinity less infinity, or zero by zero."""
        given, node = self.given, self.node
        match node.op:
            case ops.Where() if given[0].zero >= {k.result_axis for k in self.keeps}:
                return given[2].broken
            case ops.Arith(fn="div") if given[1].hollow or given[1].zero:
                return True
            case ops.Pointwise(fn="log" | "reciprocal") if given[0].hollow or given[0].zero:
                return True
            case ops.Compare() | ops.ArgMax():
                return False
        passes = node.op.view or isinstance(node.op, ops.Where | ops.Pointwise | ops.Cast | ops.MaskedSoftmax)
        passes = passes or node.op == ops.Arith("max") or (isinstance(node.op, ops.Reduce) and node.op.fn == "max")
        return any(r.broken for r in given) or (not passes and any(r.endless for r in given))

    def _low(self, axis: int) -> bool:
        """Whether it is very low where `axis` is padded."""
        at = self._at("low", axis)
        match self.node.op:
            case ops.Where():
                filled = number_or_infinity(self.node.args[2])
                return self._at("zero", axis)[0] and filled is not None and filled <= LOW
            case ops.Arith(fn="sub"):
                return at[0] and self._plain(1, axis)
            case ops.Arith(fn="add"):
                return (at[0] and self._plain(1, axis)) or (at[1] and self._plain(0, axis))
            case ops.Cast(to=to):
                return at[0] and to.startswith(("f", "bf"))
        return self.node.op.view and any(at)

    def _plain(self, n: int, axis: int) -> bool:
        """Whether an operand holds ordinary numbers, where `axis` is padded too."""
        rows = self.given[n]
        return not (rows.wild or rows.broken or (rows.stained and self._along(axis)[n]))

    def _floor(self, axis: int) -> bool:
        """Whether what stands where `axis` is padded is less than at every row that exists, or equal to what hides."""
        if isinstance(self.node.op, ops.Where):
            filled, x = number_or_infinity(self.node.args[2]), self.node.args[1]
            least = least_of(x)
            below = filled is not None and (filled <= LOW or (least is not None and filled < least))
            return self._at("zero", axis)[0] and below and not self.given[1].wild
        return self.node.op.view and any(self._at("floor", axis))

    def _peaks(self, axes: Iterable[int]) -> Iterator[int]:
        """Axes along which at least one row that exists surely holds an ordinary number."""
        match self.node.op:
            case ops.Where() if not self.given[1].wild:
                yield from self._shown(axes)
            case ops.Arith(fn="add" | "sub"):
                wild = [r.wild for r in self.given]
                if not all(wild):
                    yield from (a for a in axes if self._at("peaks", a)[wild.index(True) if any(wild) else 0])
            case op if op.view or isinstance(op, ops.Cast):
                yield from (a for a in axes if any(self._at("peaks", a)))

    def _shown(self, axes: Iterable[int]) -> Iterator[int]:
        """Axes along which the condition of a `where` shows at least one row that exists, itself if no other."""
        found = sorted(axes)
        if self.shows_all or (len(found) == 2 and self._condition(found[0], found[1])):
            yield from found

    @property
    def shows_all(self) -> bool:
        """Whether it is what a `where` takes at every row that exists."""
        return isinstance(self.node.op, ops.Where) and self._condition(None, None)

    def _condition(self, query: int | None, key: int | None) -> bool:
        condition = self.node.args[0]
        return condition is not None and self._surely(aligned(Grid(self.value, query, key), condition))

    def _surely(self, grid: Grid) -> bool:
        """Whether a mask is surely true at rows that exist, between a row and itself if it compares rows."""
        node = grid.value.node
        if grid.value is self.keep:
            return True
        if node is None or grid.spent():
            return False
        if (inner := through(grid)) is not None:
            return self._surely(inner)
        operands = [aligned(grid, a) for a in node.args if a]
        match node.op:
            case ops.Constant(value=value):
                return bool(value)
            case ops.And():
                return self._surely(operands[0]) and self._surely(operands[1])
            case ops.Or():
                return self._surely(operands[0]) or self._surely(operands[1])
            case ops.Compare(fn="eq" | "le" | "ge") if _mirrored(*operands):
                return True
        return grid.query is not None and grid.key is not None and 0 not in band_of(grid, negated=True)

    def _wild(self) -> bool:
        """Whether rows that exist may hold numbers that are low on purpose."""
        match self.node.op:
            case ops.Where():
                return self.given[1].wild or (self.given[2].wild and not self.shows_all)
            case ops.Reduce(fn="max", axis=axis):
                return self.given[0].wild and axis not in self.given[0].peaks
        return self._low_itself() or (not self._tamed() and any(r.wild for r in self.given))

    def _stained(self) -> bool:
        """Whether any row may hold such numbers."""
        return self._low_itself() or (not self._tamed() and any(r.stained for r in self.given))

    def _low_itself(self) -> bool:
        return isinstance(self.node.op, ops.Constant) and abs(self.node.op.value) >= -LOW

    def _tamed(self) -> bool:
        op = self.node.op
        return isinstance(op, TAMED) or (isinstance(op, ops.Pointwise) and op.fn in TAMING)


def _topped(value: Value | None, axis: int) -> bool:
    """Whether a value is `exp(x - max(x))` along an axis: one at its greatest, so that it never sums to zero."""
    match value:
        case Value(node=Node(ops.Pointwise(fn="exp"), (Value(node=Node(ops.Arith(fn="sub"), (x, most))),))):
            while most and most.node and most.node.op.view and most.node.args:
                most = most.node.args[0]
            return most is not None and most.node == Node(ops.Reduce("max", axis), (x,))
    return False


def _mirrored(left: Grid, right: Grid) -> bool:
    """Whether two sides are one value, seen at the query's row and at the key's."""
    a, b = _within(left), _within(right)
    apart = (a.query is None) != (a.key is None)
    return a.value is b.value and (a.query, a.key) == (b.key, b.query) and apart


def _within(grid: Grid) -> Grid:
    while (inner := through(grid)) is not None:
        grid = inner
    return grid


def passes_over(node: Node, given: Sequence[Rows]) -> bool:
    """Whether a recurrent layer is told which rows are padded."""
    at = ops.recurrent.KEEP
    return isinstance(node.op, ops.Rnn | ops.Gru | ops.Lstm) and len(given) > at and 1 in given[at].zero


def number_or_infinity(value: Value | None) -> float | None:
    """The number that a value is everywhere, if it is seen to be one; infinity too."""
    if (found := number_of(value)) is not None:
        return float(found)
    while value and value.node and value.node.args and value.node.op.view and not isinstance(value.node.op, ops.Extent):
        value = value.node.args[0]
    match value and value.node and value.node.op:
        case ops.Constant(value=number) if not isinstance(number, bool):
            return float(number)
    return None


def least_of(value: Value | None) -> float | None:
    """A number that no element of a value is below, where one is seen."""
    while value and value.node:
        op = value.node.op
        if isinstance(op, ops.Extent | ops.Range):
            return 0.0
        if isinstance(op, ops.Constant):
            return number_or_infinity(value)
        if not value.node.args or not (op.view or isinstance(op, ops.Cast)):
            return None
        value = value.node.args[0]
    return 0.0 if value is not None and value.type.dtype == "bool" else None


def _zero_everywhere(value: Value | None) -> bool:
    while value and value.node and value.node.op.view and value.node.args:
        value = value.node.args[0]
    match value and value.node and value.node.op:
        case ops.Constant(value=number):
            return not number
    return False


def _gives_zero(node: Node, at: list[bool], along: list[bool]) -> bool:
    """Whether zeros in the operands marked in `at` make a zero of the result; `along` marks those with padded rows."""
    zeros = [z or _zero_everywhere(a) for z, a in zip(at, node.args, strict=True)]
    match node.op:
        case ops.And() | ops.Arith(fn="mul"):
            return any(at)
        case ops.Or() | ops.Arith(fn="add" | "sub"):
            return all(zeros)
        case ops.Arith(fn="div" | "floordiv"):
            return at[0] and (not along[1] or bool(number_of(node.args[1])))  # zero by zero is no number
        case ops.Where():
            return (at[0] or zeros[1]) and zeros[2]
        case ops.Pointwise(fn=fn):
            return fn in ZERO_AT_ZERO and at[0]
        case ops.Linear():
            return at[0] and (len(node.args) < 3 or node.args[2] is None)
        case ops.Cast() | ops.Reduce(fn="sum" | "any" | "max" | "min" | "mean") | ops.Rotate():
            return at[0]
        case ops.MatMul() | ops.Einsum() | ops.Weigh():
            return any(at)
        case ops.Concat():
            return all(zeros)
    return node.op.view and any(at)
