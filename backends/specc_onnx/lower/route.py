"""Lowering of `Route`: a `Loop` over the experts that somebody chose.

    ids, n·k of them ─ Unique ─► the experts there are, each once
    Loop over these:  rows that chose it ─► Gather ─► its body ─► ScatterND, added

Nothing is as large as rows times experts, an expert that nobody chose is not run, and
of the weights only its own are read. Rows that are not kept are given a number that is
no expert's before that, and so is every number that is none.

The weights of all experts are one tensor each, from which a turn takes its part. Where
they are stored in fewer bits than they are computed with, that part alone is widened.
"""

from dataclasses import dataclass

from onnx import GraphProto

from specc.ir import ops
from specc.ir.dim import Dim, product
from specc.ir.ops.route import Routed
from specc.ir.types import Type
from specc_onnx.lower.arrange import (
    cast,
    flatten,
    full,
    reduce,
    reshape,
    unsqueeze,
    where,
)
from specc_onnx.lower.emitter import Emitter, Tensor, declare, graph_of
from specc_onnx.lower.lengths import Lengths
from specc_onnx.lower.table import lower, lower_nodes


@lower(ops.Route)
def route(op: ops.Route, g: Emitter, *operands: Tensor) -> str:
    """One `Loop` node, and before it which experts it has to run."""
    (made,) = g.site.types
    given = op.parts(operands)
    *lead, width = made.shape
    count = product(lead)
    ids = _named(op, g, given)
    # sorted, so that the sums of a row come in one order whoever else is there, and
    # those that are no experts last
    chosen = g.node("Unique", ids, sorted=1)
    theirs = g.node("Less", chosen, g.dim(op.experts))
    turns = reduce(g, "ReduceSum", cast(g, theirs, "bool", "i64"), 0)
    sums = Type(made.dtype, (count, width))
    start = full(g, 0, made.dtype, sums.shape)
    turn = _Turn(
        op=op,
        g=g,
        given=given,
        rows=flatten(g, given.x.name, given.x.type.shape),
        gates=flatten(g, given.gates.name, given.gates.type.shape),
        ids=ids,
        chosen=chosen,
    )
    total = g.node("Loop", turns, None, start, body=turn.graph(sums))
    return reshape(g, total, sums.shape, made.shape)


def _named(op: ops.Route, g: Emitter, given: Routed[Tensor]) -> str:
    """The experts of each row, i64[n, k]: below `experts`, or that number for nobody."""
    nobody, dtype = g.dim(op.experts), given.ids.type.dtype
    ids = cast(g, flatten(g, given.ids.name, given.ids.type.shape), dtype, "i64")
    theirs = g.node("Less", ids, nobody)
    negative = g.node("Less", ids, g.constant(0, "i64"))
    theirs = g.node("And", theirs, g.node("Not", negative))
    if given.keep is not None:
        shape = given.keep.type.shape
        keep = reshape(g, given.keep.name, shape, (product(shape), Dim.of(1)))
        theirs = g.node("And", theirs, keep)
    return where(g, "i64", theirs, ids, nobody)


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """One expert at work: what it is given, by the names that the turn reads from
    outside.

    `rows` [n, d], `gates` and `ids` [n, k] are all there are; `chosen` are the experts.
    """

    op: ops.Route
    g: Emitter
    given: Routed[Tensor]
    rows: str
    gates: str
    ids: str
    chosen: str

    def graph(self, sums: Type) -> GraphProto:
        """The body of the loop: which turn it is, whether to go on, and the sums so far."""
        g, site = self.g, self.g.site
        with g.body() as opened:
            number, going, before = (
                Tensor(g.unique(g.place(n)), t)
                for n, t in (
                    ("turn", Type("i64", ())),
                    ("go", Type("bool", ())),
                    ("sums", sums),
                )
            )
            expert = g.node("Gather", self.chosen, number.name, axis=0)
            here = g.node("Equal", self.ids, expert)
            at, share = self._rows_of(here)
            made = self._body(at, expert)
            g.site = site
            added = g.node("Mul", made, share)
            after = g.node(
                "ScatterND", before.name, unsqueeze(g, at, 1), added, reduction="add"
            )
            results = [g.alias(going.name, g.place("going")), after]
        return graph_of(
            g.place("experts"),
            opened,
            results,
            [going.type, sums],
            [declare(t.name, t.type) for t in (number, going, before)],
        )

    def _rows_of(self, here: str) -> tuple[str, str]:
        """The numbers of the rows that chose this expert, i64[m], and its weight in
        each, [m, 1]. A row is there once, however often it named the expert: two parts
        of a sum are never added at the same time.
        """
        g, dtype = self.g, self.given.gates.type.dtype
        some = reduce(g, "ReduceMax", cast(g, here, "bool", "i64"), 1)
        found = g.node("NonZero", some)
        at = g.node("Squeeze", found, g.vector(0))
        gates = where(g, dtype, here, self.gates, g.constant(0, dtype))
        share = reduce(g, "ReduceSum", gates, 1, keep=True)
        return at, g.node("Gather", share, at, axis=0)

    def _body(self, at: str, expert: str) -> str:
        """What the expert makes of the rows with these numbers, [m, o]."""
        op, g = self.op, self.g
        value, *others = op.inner()
        ones = value.type.rank - 2
        name = g.node("Gather", self.rows, at, axis=0)
        x = Tensor(unsqueeze(g, name, *range(ones)), value.type, value)
        own = [self._own(t, expert) for t in self.given.stacked]
        g.tensors[value] = x
        g.tensors.update(zip(others, [*own, *self.given.captured], strict=True))
        # the rows are counted in here, and there is at least one
        with g.rooted(Lengths({x.name: x.type}, {}, {op.rows: 1})):
            lower_nodes(g, op.body)
        made = g.tensors[op.result()]
        if not ones:
            return made.name
        return g.node("Squeeze", made.name, g.vector(*range(ones)))

    def _own(self, stacked: Tensor, expert: str) -> Tensor:
        """The expert's part of a stacked tensor, [1 …] of [experts, 1 …]."""
        g, type = self.g, stacked.type
        stored = g.narrow.get(stacked.name)
        name = g.node("Gather", stored or stacked.name, expert, axis=0)
        if stored is not None:
            name = cast(g, name, g.stored[stored].dtype, type.dtype)
        return Tensor(name, Type(type.dtype, type.shape[1:]))
