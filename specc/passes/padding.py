"""Whether padded rows can reach a result: the lint W0601.

Inputs declared `keep[batch, seq]` say which rows of an axis exist. Along each such axis this pass follows
one question: can a value at a row that exists depend on rows that do not? An op that reads other rows
is clean where what stands at the padded rows is surely zero (or, for a maximum, surely low), where a mask
that implies `keep` stands between, or where the declared side of the padding keeps them out of sight.
Row numbers count padded rows before them; only their differences are clean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.reach import Link, links
from specc.passes.causality import span_of, spoken
from specc.passes.flow import resolve
from specc.passes.padded import PLAIN, Dirt, Rows, Standing, moved, one_of, passes_over
from specc.passes.rotation import turned_of
from specc.passes.row_numbers import EVERY_ROW, Count, count_of, shows
from specc.text.diagnostic import Diagnostic, Label


def padding(graph: Graph) -> list[Diagnostic]:
    """A warning W0601 for each op that lets padded rows reach an output, in the graph's order."""
    faults: dict[tuple[Node, str], Diagnostic] = {}
    for name, facts in graph.input_facts.items():
        keep = graph.inputs[name]
        if facts.keep and keep.type.rank and keep.type.shape[-1].name:
            states = _Walk(keep, facts.keep).run(graph)
            for output, value in graph.outputs.items():
                rows = states.get(value, PLAIN)
                dirt = rows.dirt
                if not dirt and value.node and (rows.count or rows.count is None or rows.turned):
                    dirt = Dirt(value.node, counted=True)
                if dirt:
                    faults.setdefault((dirt.node, name), _warning(graph, dirt, output, name))
    return list(faults.values())


@dataclass(frozen=True)
class _Walk:
    """One padded axis: its `keep` and the side on which rows may be missing."""

    keep: Value
    side: str

    def run(self, graph: Graph) -> Mapping[Value, Rows]:
        """What is known of every value."""
        return self.states(graph, {self.keep: replace(PLAIN, zero=frozenset({self.keep.type.rank - 1}))})

    def states(self, graph: Graph, known: Mapping[Value, Rows]) -> Mapping[Value, Rows]:
        """What is known of every value of a graph or of a loop's body, from what is `known` of its inputs."""
        states = dict(known)
        for node, results in graph.nodes:
            given = [states.get(a, PLAIN) if a else PLAIN for a in node.args]
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
        rows = [moved(r, op.axis, -1) for r in rest[: op.scanned]]
        carries, captured = rest[op.scanned : op.scanned + op.carries], rest[op.scanned + op.carries :]
        inputs, outputs = list(op.body.inputs.values()), list(op.body.outputs.values())
        while True:
            found = self.states(op.body, dict(zip(inputs, (*rows, *carries, *captured), strict=True)))
            made = [found.get(v, PLAIN) for v in outputs]
            after = [one_of(old, new) for old, new in zip(carries, made[: op.carries], strict=True)]
            if after == carries:
                break
            carries = after
        outside = {r.dirt for r in given}
        collected = (moved(r, op.axis, 1) for r in made[op.carries :])
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
        keeps = {k for k in here if k.kind == "same" and k.result_axis is not None and self.padded(node, k)}
        standing = Standing(node, value, given, keeps, self.keep, self.length)
        stands = standing.rows()
        counts = [s.count for s in given]
        if standing.shows_all:
            counts[2] = counts[1]  # what the other is, no row that exists shows
        turned = turned_of(node, [s.turned for s in given], counts)
        dirt = next((s.dirt for s in given if s.dirt), None)
        if not dirt and (self._counted(node, given, counts) or (turned and turned.shown)):
            dirt = Dirt(node, counted=True)
        for link in here:
            if not dirt and self.padded(node, link) and not self.clean(node, link, given):
                dirt = Dirt(node)
        count = self._count(node, counts)
        points = stands.points or (isinstance(node.op, ops.ArgMax) and count == EVERY_ROW)
        return replace(stands, count=count, turned=None if dirt else turned, points=points, dirt=dirt)

    def clean(self, node: Node, link: Link, given: list[Rows]) -> bool:
        """Whether the rows that exist in the result do not depend on padded rows through this link."""
        operand = given[link.operand]
        zero = link.operand_axis in operand.zero
        if passes_over(node, given):
            return True
        match link.kind:
            case "same" | "extent":
                return True
            case "newest":
                return self._skipped(node, given) or (self.side == "left" and link.hi == 0)
            case "window":
                if self.side == "right" and link.lo >= 0:
                    return True
                return self._skipped(node, given) or self._window(node, zero)
            case "band":
                return self._band(node, link, given)
        return self._all(node, link, given, zero)

    def _skipped(self, node: Node, given: list[Rows]) -> bool:
        """Whether a loop passes over every padded row: what it is told to keep implies that a row exists."""
        return isinstance(node.op, ops.Scan) and node.op.masked and 1 in given[0].zero

    def _window(self, node: Node, zero: bool) -> bool:
        match node.op:
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
            values = not isinstance(node.op, ops.MaskedSoftmax | ops.Hard | ops.Share)
            return not (values and given[link.operand].broken)  # zero times what is no number is no number
        if isinstance(node.op, ops.Weigh | ops.MatMul | ops.Einsum):
            return self._product(node, link, given)
        return False

    def _product(self, node: Node, link: Link, given: list[Rows]) -> bool:
        """Whether one factor of a sum of products is zero at padded rows, and the others are numbers."""
        match node.op:
            case ops.Weigh() | ops.MatMul():
                axes = [[a.type.rank - 1 - n for n in (at,)] for a, at in zip(node.args, (0, 1), strict=True) if a]
            case ops.Einsum(equation=equation):
                terms = [t.split() for t in equation.split("->")[0].split(",")]
                name = terms[link.operand][link.operand_axis]
                axes = [[n for n, x in enumerate(t) if x == name] for t in terms]
            case _:
                return False
        zero = {o for o, own in enumerate(axes) if given[o].zero & {*own}}
        return bool(zero) and not any(r.broken for o, r in enumerate(given) if o not in zero)

    def _all(self, node: Node, link: Link, given: list[Rows], zero: bool) -> bool:
        rows, axis = given[link.operand], link.operand_axis
        match node.op:
            case ops.Reduce(fn="sum" | "any"):
                return zero
            case ops.Reduce(fn="max"):
                return rows.covered(axis)
            case ops.Softmax():
                return axis in rows.low and axis in rows.peaks
            case ops.ArgMax():
                return rows.covered(axis) and (self.side == "right" or axis in rows.peaks)
            case ops.Gather():
                return given[1].points
            case ops.Index(at=at):
                return self.side == "right" and at.number == 0
            case ops.Einsum() | ops.MatMul():
                return self._product(node, link, given)
        return False

    def _counted(self, node: Node, given: list[Rows], counts: list[Count]) -> bool:
        """Whether an op shows how many padded rows there are."""
        match node.op:
            case ops.Gather(axis=axis) if node.args[0] and given[1].points:
                elsewhere = node.args[0].type.shape[axis] != self.length
                return bool(counts[0]) or counts[0] is None or elsewhere
            case ops.Size(length=length):
                return bool(length.symbols() & self.length.symbols())
            case ops.Scan() if self._along(node, node.op) and self._made_inside(node.op.body):
                return True
        return shows(node, counts, self.length)

    def _made_inside(self, body: Graph) -> bool:
        """Whether a loop over the padded axis makes as many rows again in its body."""
        return any(self.length in r.type.shape for _, results in body.nodes for r in results)

    def _count(self, node: Node, counts: list[Count]) -> Count:
        operand = node.args[0] if node.args else None
        match node.op:
            case ops.Extent(axis=axis) | ops.ArgMax(axis=axis):
                here = operand is not None and operand.type.shape[axis] == self.length
            case ops.Range(length=length):
                here = length == self.length
            case _:
                return count_of(node, counts, self.length)
        return EVERY_ROW if here and self.side != "right" else {}


def _placed(rows: Rows, body: Graph, outside: set[Dirt | None]) -> Rows:
    """Dirt that came in inside a loop, with the loop's body."""
    if rows.dirt is None or rows.dirt in outside or rows.dirt.inside:
        return rows
    return replace(rows, dirt=replace(rows.dirt, inside=body))


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
