"""Whether padded rows can reach a result: the lint W0601.

Inputs declared `keep[batch, seq]` say which rows of an axis exist. Along each such axis this pass follows
one question: can a value at a row that exists depend on rows that do not? An op that reads other rows
is clean where what stands at the padded rows is surely zero (or, for a maximum, surely low), where a mask
that implies `keep` stands between, or where the declared side of the padding keeps them out of sight.
Row numbers count padded rows before them; only their differences are clean.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.reach import Link, links
from specc.passes.bands import ZERO_AT_ZERO
from specc.passes.causality import span_of, spoken
from specc.passes.flow import resolve
from specc.passes.row_numbers import Count, count_of, either, shows
from specc.text.diagnostic import Diagnostic, Label

LOW = -1e30
"""What is at most this is taken for minus infinity: no number a model computes in f32 with any accuracy left."""


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

    It is zero or false (`zero`), or very low (`low`), wherever its row along one of these axes is padded.
    `count`: it grows with the number of padded rows before. `turned`: its features were rotated by the
    angles of that value. `dirt`: padded rows have reached rows that exist.
    """

    zero: frozenset[int] = frozenset()
    low: frozenset[int] = frozenset()
    count: Count = ""
    turned: Value | None = None
    dirt: Dirt | None = None


def padding(graph: Graph) -> list[Diagnostic]:
    """A warning W0601 for each op that lets padded rows reach an output, in the graph's order."""
    faults: dict[tuple[Node, str], Diagnostic] = {}
    for name, facts in graph.input_facts.items():
        keep = graph.inputs[name]
        if facts.keep and keep.type.rank and keep.type.shape[-1].name:
            states = _Walk(keep, facts.keep).run(graph)
            for output, value in graph.outputs.items():
                if dirt := states.get(value, Rows()).dirt:
                    faults.setdefault((dirt.node, name), _warning(graph, dirt, output, name))
    return list(faults.values())


@dataclass(frozen=True)
class _Walk:
    """One padded axis: its `keep` and the side on which rows may be missing."""

    keep: Value
    side: str

    def run(self, graph: Graph) -> Mapping[Value, Rows]:
        """What is known of every value."""
        return self.states(graph, {self.keep: Rows(zero=frozenset({self.keep.type.rank - 1}))})

    def states(self, graph: Graph, known: Mapping[Value, Rows]) -> Mapping[Value, Rows]:
        """What is known of every value of a graph or of a loop's body, from what is `known` of its inputs."""
        states = dict(known)
        for node, results in graph.nodes:
            given = [states.get(a, Rows()) if a else Rows() for a in node.args]
            if isinstance(node.op, ops.Scan) and not self._along(node, node.op):
                states.update(zip(results, self._looped(node.op, given), strict=True))
                continue
            found = links(node, results)
            for r, value in enumerate(results):
                here = [k for k in found if k.result == r]
                states[value] = self.visit(node, value, given, here)
        return states

    def _along(self, node: Node, op: ops.Scan) -> bool:
        """Whether a loop runs along the padded axis."""
        row = node.args[1 if op.masked else 0]
        return row is not None and row.type.shape[op.axis] == self.length

    def _looped(self, op: ops.Scan, given: list[Rows]) -> list[Rows]:
        """What is known of the results of a loop along another axis, whatever the number of steps."""
        rest = given[1 if op.masked else 0 :]
        rows = [_moved(r, op.axis, -1) for r in rest[: op.scanned]]
        carries, captured = rest[op.scanned : op.scanned + op.carries], rest[op.scanned + op.carries :]
        inputs, outputs = list(op.body.inputs.values()), list(op.body.outputs.values())
        while True:
            found = self.states(op.body, dict(zip(inputs, (*rows, *carries, *captured), strict=True)))
            made = [found.get(v, Rows()) for v in outputs]
            after = [_either(old, new) for old, new in zip(carries, made[: op.carries], strict=True)]
            if after == carries:
                break
            carries = after
        outside = {r.dirt for r in given}
        collected = (_moved(r, op.axis, 1) for r in made[op.carries :])
        return [_placed(r, op.body, outside) for r in (*carries, *collected)]

    @property
    def length(self) -> Dim:
        """The padded axis."""
        return self.keep.type.shape[-1]

    def padded(self, node: Node, link: Link) -> bool:
        """Whether a link starts at the padded axis."""
        operand = node.args[link.operand]
        return operand is not None and operand.type.shape[link.operand_axis] == self.length

    def visit(self, node: Node, value: Value, given: list[Rows], here: list[Link]) -> Rows:
        """What is known of one result."""
        dirt = next((s.dirt for s in given if s.dirt), None)
        dirt = dirt or self._counted(node, given)
        if not dirt and isinstance(node.op, ops.Size) and node.op.length.symbols() & self.length.symbols():
            dirt = Dirt(node, counted=True)  # how many rows there are, padding included, as a number
        for link in here:
            if not dirt and self.padded(node, link) and not self.clean(node, link, given):
                dirt = Dirt(node)
        keeps = {k for k in here if k.kind == "same" and k.result_axis is not None and self.padded(node, k)}
        zero = frozenset(self._zero(node, value, given, keeps))
        low = frozenset(self._low(node, value, given, keeps))
        return Rows(zero, low, self._count(node, given), self._turned(node, given), dirt)

    def clean(self, node: Node, link: Link, given: list[Rows]) -> bool:
        """Whether the rows that exist in the result do not depend on padded rows through this link."""
        operand = given[link.operand]
        zero = link.operand_axis in operand.zero
        if _passes_over(node, given):
            return True
        match link.kind:
            case "same" | "extent":
                return True
            case "newest":
                masked = isinstance(node.op, ops.Scan) and node.op.masked
                return masked or (self.side == "left" and link.hi == 0)
            case "window":
                if self.side == "right" and link.lo >= 0:
                    return True
                return self._window(node, zero)
            case "band":
                return self._band(node, link, given)
        return self._all(node, link, given, zero)

    def _window(self, node: Node, zero: bool) -> bool:
        match node.op:
            case ops.Scan(masked=masked):
                return masked
            case ops.Delay(first=first):
                return zero and not first
            case ops.Conv1d() | ops.CumSum():
                return zero
        return False

    def _band(self, node: Node, link: Link, given: list[Rows]) -> bool:
        """Through a mask that is false, or weights or values that are zero, at padded keys."""
        _, reach = resolve(node, link)
        if self.side == "right" and reach.lo >= 0:
            return True
        if any(gate.key in given[gate.operand].zero for gate in link.gates):
            return True
        if isinstance(node.op, ops.Weigh | ops.MatMul | ops.Einsum):
            return self._product(node, link, given)
        return False

    def _product(self, node: Node, link: Link, given: list[Rows]) -> bool:
        """Whether one factor of a sum of products is zero at padded rows."""
        match node.op:
            case ops.Weigh() | ops.MatMul():
                left, right = node.args[0], node.args[1]
                assert left is not None
                assert right is not None
                return left.type.rank - 1 in given[0].zero or right.type.rank - 2 in given[1].zero
            case ops.Einsum(equation=equation):
                terms = [t.split() for t in equation.split("->")[0].split(",")]
                name = terms[link.operand][link.operand_axis]
                return any(n in given[o].zero for o, t in enumerate(terms) for n, x in enumerate(t) if x == name)
        return False

    def _all(self, node: Node, link: Link, given: list[Rows], zero: bool) -> bool:
        low = link.operand_axis in given[link.operand].low
        match node.op:
            case ops.Reduce(fn="sum" | "any"):
                return zero
            case ops.Reduce(fn="max") | ops.ArgMax() | ops.Softmax():
                return low
            case ops.Index(at=at):
                return self.side == "right" and at.number == 0
            case ops.Einsum() | ops.MatMul():
                return self._product(node, link, given)
        return False

    def _counted(self, node: Node, given: list[Rows]) -> Dirt | None:
        """Whether an op uses an absolute count, or what was turned by one, for more than a difference."""
        turned = [s.turned for s in given if s.turned]
        if shows(node, [s.count for s in given], self.length):
            return Dirt(node, counted=True)
        if turned:
            match node.op:
                case ops.Rotate() | ops.Concat() | ops.Extent():
                    pass
                case ops.Attend() if given[0].turned is given[1].turned and not given[2].turned:
                    pass
                case ops.MatMul() | ops.Einsum() if len(turned) == 2 and turned[0] is turned[1]:
                    pass
                case op if op.view or isinstance(op, ops.Arith | ops.Slice):
                    pass
                case _:
                    return Dirt(node, counted=True)
        return None

    def _count(self, node: Node, given: list[Rows]) -> Count:
        operand = node.args[0] if node.args else None
        match node.op:
            case ops.Extent(axis=axis):
                here = operand is not None and operand.type.shape[axis] == self.length
            case ops.Range(length=length):
                here = length == self.length
            case _:
                return count_of(node, [s.count for s in given], self.length)
        return "even" if here and self.side != "right" else ""

    def _turned(self, node: Node, given: list[Rows]) -> Value | None:
        if isinstance(node.op, ops.RopeAngles):
            return node.args[0] if given[0].count else None
        if node.op.view or isinstance(node.op, ops.Rotate | ops.Concat | ops.Arith | ops.Slice):
            return next((s.turned for s in given if s.turned), None)
        return None

    def _zero(self, node: Node, value: Value, given: list[Rows], keeps: set[Link]) -> Iterator[int]:
        """Axes of the result along which padded rows are zero."""
        axes = {k.result_axis for k in keeps}
        for axis in axes:
            assert axis is not None
            at = [self._stands(node, n, axis, given[n].zero, keeps) for n in range(len(given))]
            if _gives_zero(node, at):
                yield axis
        last = value.type.rank - 1
        match node.op:
            case ops.MaskedSoftmax() | ops.Hard() | ops.Share():
                if _mask_axis(node, 1) in given[1].zero:
                    yield last
            case ops.Attend() if len(node.args) > 3 and node.args[3] and value.type.shape[-1] == self.length:
                if 3 in given[3].zero:
                    yield last
            case ops.Softmax(axis=axis) if axis in given[0].low:
                yield axis
            case ops.Scan(masked=True, axis=axis) if node.args[0] is not None and 1 in given[0].zero:
                if value.type.rank > axis and value.type.shape[axis] == self.length:
                    yield axis
            case ops.Rnn() | ops.Gru() | ops.Lstm() if value.type.rank == 3 and _passes_over(node, given):
                yield 1

    def _stands(self, node: Node, n: int, axis: int, known: frozenset[int], keeps: set[Link]) -> bool:
        """Whether operand `n` is zero where the result's `axis` is padded."""
        return any(k.operand == n and k.result_axis == axis and k.operand_axis in known for k in keeps)

    def _low(self, node: Node, value: Value, given: list[Rows], keeps: set[Link]) -> Iterator[int]:
        """Axes of the result along which padded rows are very low."""
        for axis in {k.result_axis for k in keeps}:
            assert axis is not None
            condition = bool(given) and self._stands(node, 0, axis, given[0].zero, keeps)
            at = [self._stands(node, n, axis, given[n].low, keeps) for n in range(len(given))]
            match node.op:
                case ops.Where() if condition and len(node.args) == 3 and _is_low(node.args[2]):
                    yield axis
                case op if op.view and any(at):
                    yield axis


def _moved(rows: Rows, axis: int, by: int) -> Rows:
    """`rows` where an axis was taken out (-1) or put in (1) at `axis`."""

    def moved(known: frozenset[int]) -> frozenset[int]:
        return frozenset(a + by if a >= axis else a for a in known if by > 0 or a != axis)

    return replace(rows, zero=moved(rows.zero), low=moved(rows.low))


def _either(one: Rows, other: Rows) -> Rows:
    """What is known of a value that is one or the other."""
    return Rows(
        one.zero & other.zero,
        one.low & other.low,
        either(one.count, other.count),
        one.turned or other.turned,
        one.dirt or other.dirt,
    )


def _placed(rows: Rows, body: Graph, outside: set[Dirt | None]) -> Rows:
    """Dirt that came in inside a loop, with the loop's body."""
    if rows.dirt is None or rows.dirt in outside or rows.dirt.inside:
        return rows
    return replace(rows, dirt=replace(rows.dirt, inside=body))


def _passes_over(node: Node, given: list[Rows]) -> bool:
    """Whether a recurrent layer is told which rows are padded."""
    at = ops.recurrent.KEEP
    return isinstance(node.op, ops.Rnn | ops.Gru | ops.Lstm) and len(given) > at and 1 in given[at].zero


def _mask_axis(node: Node, operand: int) -> int:
    mask = node.args[operand]
    assert mask is not None
    return mask.type.rank - 1


def _is_low(value: Value | None) -> bool:
    """Whether a value is one very negative number."""
    while value and value.node and value.node.op.view and value.node.args:
        value = value.node.args[0]
    match value and value.node and value.node.op:
        case ops.Constant(value=number):
            return not isinstance(number, bool) and number <= LOW
    return False


def _constant_zero(value: Value | None) -> bool:
    while value and value.node and value.node.op.view and value.node.args:
        value = value.node.args[0]
    match value and value.node and value.node.op:
        case ops.Constant(value=number):
            return not number
    return False


def _gives_zero(node: Node, at: list[bool]) -> bool:
    """Whether zeros in the operands marked in `at` make a zero of the result."""
    zeros = [z or _constant_zero(a) for z, a in zip(at, node.args, strict=True)]
    match node.op:
        case ops.And() | ops.Arith(fn="mul"):
            return any(at)
        case ops.Or() | ops.Arith(fn="add" | "sub"):
            return all(zeros)
        case ops.Arith(fn="div" | "floordiv"):
            return at[0]
        case ops.Where():
            return (at[0] or zeros[1]) and zeros[2]
        case ops.Pointwise(fn=fn):
            return fn in ZERO_AT_ZERO and at[0]
        case ops.Linear():
            return at[0] and (len(node.args) < 3 or node.args[2] is None)
        case ops.Cast() | ops.Reduce(fn="sum" | "any" | "max" | "min" | "mean"):
            return at[0]
        case ops.Rotate():
            return at[0]
        case ops.MatMul() | ops.Einsum() | ops.Weigh():
            return any(at)
        case ops.Concat():
            return all(zeros)
    return node.op.view and any(at)


def _warning(graph: Graph, dirt: Dirt, output: str, keep: str) -> Diagnostic:
    span = span_of(dirt.inside or graph, dirt.node)
    if dirt.counted:
        title = f"padded rows reach `{output}`: a position is counted from the start of the row, padding included"
        what, mend = "this takes the number of a row, padding included", f"`positions({keep})`"
    else:
        title = f"padded rows reach `{output}`: `{spoken(dirt.node.op)}` reads them, no mask stands between"
        what, mend = "this reads padded rows", f"`& visible({keep})`"
    helps = [f"use {mend}"] if dirt.counted or not _pools(dirt.node) else [f"multiply by `{keep}` first"]
    if isinstance(dirt.node.op, ops.Rnn | ops.Gru | ops.Lstm | ops.Scan):
        helps = [f"add `keep={keep}`"] if not isinstance(dirt.node.op, ops.Scan) else [f"add `keep {keep}`"]
    return Diagnostic("W0601", title, Label(span, what) if span else None, (), (), tuple(helps), severity="warning")


def _pools(node: Node) -> bool:
    return isinstance(node.op, ops.Reduce | ops.CumSum | ops.Conv1d | ops.Delay)
