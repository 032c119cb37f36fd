"""`route`: rows sent to a few of many experts, whose block is elaborated once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specc.elaborate.bodies import cut_body
from specc.elaborate.context import Poisoned
from specc.elaborate.kinds import Applied
from specc.elaborate.stacked import Stack
from specc.elaborate.values import POISON, Tensor, describe, first, show_type
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.interval import SAME
from specc.ir.reach import Trace, trace
from specc.ir.types import Type
from specc.ir.verify import numbers_rows
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail

ROWS = "routed"
"""What the number of rows is called that one expert is given."""


@word(weights=True)
def route(
    site: Site,
    x: Tensor,
    ids: Tensor,
    gates: Tensor,
    *,
    to: Applied,
    experts: Dim,
    keep: Tensor | None = None,
) -> Tensor:
    """The sum of what the experts named in `ids` make of a row, each times its gate: a
    mixture of experts (arXiv:1701.06538, eq. 1). `to` is the block of one expert; its
    weights lie in the model with an axis of length `experts` in front. `ids` and `gates`
    are [… k], `x` is [… d], `keep` […] says which rows exist: the others go to nobody
    and give zeros. Only experts that somebody chose are run.
    """
    _fitting(site, x, ids, gates, experts, keep)
    return _Expert(site, x, ids, gates, to, experts, keep).routed()


def _fitting(
    site: Site,
    x: Tensor,
    ids: Tensor,
    gates: Tensor,
    experts: Dim,
    keep: Tensor | None,
) -> None:
    """E0330 and E0332 for rows, numbers and gates that do not belong together."""
    if len(x.shape) < 2:
        helps = ["a tensor of one row has an axis of 1 in front: insert(x, axis=0)"]
        title = f"`route` sends rows of a tensor, and {describe(x)} has none"
        site.fail("E0332", title, "x", helps=helps)
    rows = x.shape[:-1]
    _of_rows(site, "ids", ids, "i", rows, 1)
    _of_rows(site, "gates", gates, "f", rows, 1)
    if keep is not None:
        _of_rows(site, "keep", keep, "b", rows, 0)
    k, many = ids.shape[-1], gates.shape[-1]
    if k != many:
        helps = []
        if many == experts:
            helps = ["take those of the experts that were chosen: gather(…, ids)"]
        title = f"each row has {k} experts and {many} gates"
        site.fail("E0332", title, "gates", describe(gates), helps=helps)
    if (
        k.number is not None
        and experts.number is not None
        and k.number > experts.number
    ):
        title = f"each row is sent to {k} experts, and there are {experts}"
        site.fail("E0330", title, "ids", describe(ids))
    if site.context.late(experts.symbols()):
        title = f"there would be {experts} experts, which only an input tells"
        helps = ["their weights are of one size for every input: give a config value"]
        site.fail("E0333", title, "experts", helps=helps)
    if experts.number is not None and experts.number < 1:
        site.fail("E0330", f"rows are sent to one of {experts} experts", "experts")


KINDS = {
    "i": ("whole numbers", ("i64", "i32")),
    "f": ("numbers with a fraction", ("f32", "f16", "bf16", "f64")),
    "b": ("true or false", ("bool",)),
}


def _of_rows(
    site: Site, name: str, value: Tensor, kind: str, rows: Sequence[Dim], more: int
) -> None:
    """E0332 unless a tensor has these rows, and `more` axes behind them."""
    words, dtypes = KINDS[kind]
    if value.type.dtype not in dtypes:
        title = f"`{name}` of `route` holds {words}, not {describe(value)}"
        site.fail("E0332", title, name)
    if value.shape[: len(rows)] != tuple(rows) or len(value.shape) != len(rows) + more:
        shown = ", ".join(map(str, (*rows, *["k"] * more)))
        title = f"`{name}` of `route` has the rows of what is routed: [{shown}]"
        site.fail("E0332", title, name, f"this is {describe(value)}")


@dataclass(frozen=True)
class _Expert:
    """One call of `route`, and the block of its experts."""

    site: Site
    x: Tensor
    ids: Tensor
    gates: Tensor
    to: Applied
    experts: Dim
    keep: Tensor | None

    def routed(self) -> Tensor:
        """The sum of what experts make of the rows."""
        site, length = self.site, self._length()
        stack = Stack(self.experts)
        ones = (Dim.of(1),) * (len(self.x.shape) - 2)
        shape = (*ones, Dim.symbol(length), self.x.shape[-1])
        rows = Value(Type(self.x.type.dtype, shape))
        made = self._made(rows, stack, length)
        weights = {f"own {name}": value for name, value in stack.inside.items()}
        builder = site.context.builder
        body, captured = cut_body(
            builder, {"rows": rows, **weights}, {"y": made.value}, length
        )
        self._alone(body, captured, length)
        body, own = _used(body, list(stack.outside.values()))
        masked = self.keep is not None
        op = ops.Route(body, self.experts, len(own), masked)
        given = [self.x, self.ids, self.gates, *([self.keep] if self.keep else [])]
        return site.one(op, *given, *(Tensor(v) for v in (*own, *captured)))

    def _length(self) -> str:
        """A name for the number of rows that nothing else in sight has."""
        site, name = self.site, ROWS
        taken = {*site.env.module.dims, *site.env.dims, *site.context.lengths}
        taken |= {s for d in self.x.shape for s in d.symbols()}
        while name in taken:
            name += "_again"
        return name

    def _made(self, rows: Value, stack: Stack, length: str) -> Tensor:
        """What the block gives for rows that stand for those an expert is sent."""
        context, call = self.site.context, self.site.call
        names = {"to": self.to, "x": Tensor(rows, self.site.spans.get("x"))}
        function = tree.Name("to", span=call.function.span)
        inner = tree.Call(function, (tree.Name("x", span=call.span),), span=call.span)
        lengths, context.lengths = context.lengths, context.lengths | {length}
        context.stacks.append(stack)
        try:
            there = replace(self.site.env, names=names)
            made = first(context.evaluator.call(context, inner, there))
        finally:
            context.stacks.pop()
            context.lengths = lengths
        if made is POISON:
            raise Poisoned
        wanted = rows.type.shape[:-1]
        if not isinstance(made, Tensor) or made.shape[:-1] != wanted:
            title = f"an expert gives {describe(made)} for {show_type(rows.type)}"
            helps = ["give a row for each row, […, out] for […, in]"]
            self.site.fail("E0331", title, "to", helps=helps)
        if not made.type.dtype.startswith(("f", "b")) or made.type.dtype == "bool":
            title = f"what experts give is summed: it cannot be {describe(made)}"
            self.site.fail("E0331", title, "to")
        return made

    def _alone(self, body: Graph, captured: Sequence[Value], length: str) -> None:
        """E0331 where a row looks at others or at how many there are, E0333 where there
        is something inside that is as long as only an input tells.
        """
        counted = [n for n, _ in body.nodes if numbers_rows(n)]
        counted += [n for n in needed(captured) if _says(n, length)]
        if counted:
            self._wrong(counted[0], body, "counts the rows that it is given")
        value = next(iter(body.inputs.values()))
        start = {value: Trace({value.type.rank - 2: SAME})}
        found = trace(body, start)
        for node, results in body.nodes:
            reads = [found[r] for r in results if r in found]
            if any(t.all or set(t.axes.values()) - {SAME} for t in reads):
                self._wrong(node, body, "reads other rows than its own")
        context = self.site.context
        for value in (*captured, *(r for _, rs in body.nodes for r in rs)):
            for dim in value.type.shape:
                if context.late(dim.symbols() - {length}):
                    self._late(dim, value, body)

    def _wrong(self, node: Node, body: Graph, does: str) -> None:
        """E0331 at an op of the block."""
        context = self.site.context
        made = body.made.get(node) or context.builder.made.get(node)
        at = made.spans[-1] if made and made.spans else None
        title = f"an expert is given the rows that chose it, and {does}"
        others = (
            (Label(self.site.span, "experts are run here"),)
            if at and self.site.span
            else ()
        )
        primary = at or self.site.span
        raise Failed(
            Diagnostic(
                "E0331",
                f"{title}",
                Label(primary, f"`{node.op.name}` does") if primary else None,
                others,
                helps=("do this before `route`, on all rows",),
            )
        )

    def _late(self, dim: Dim, value: Value, body: Graph) -> None:
        """E0333 for a length inside an expert that only an input tells."""
        title = (
            f"an expert is the same for all rows, and this one has {dim} of something"
        )
        node = value.node
        made = body.made.get(node) if node else None
        at = made.spans[-1] if made and made.spans else self.site.span
        fail(
            "E0333",
            title,
            at,
            f"this is {show_type(value.type)}",
            helps=["what a row brings along goes to `route` with it: concat([x, …])"],
        )


def _says(node: Node, length: str) -> bool:
    """Whether an attribute of a node follows from this length."""
    values = node.op.attributes().values()
    return any(isinstance(v, Dim) and length in v.symbols() for v in values)


def _used(body: Graph, own: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """The body without weights that nothing in it reads, and the values that hold the others."""
    read = {a for n, _ in body.nodes for a in n.args} | {*body.outputs.values()}
    names = list(body.inputs)
    unread = {name for name in names[1 : 1 + len(own)] if body.inputs[name] not in read}
    inputs = {n: v for n, v in body.inputs.items() if n not in unread}
    facts = {n: f for n, f in body.input_facts.items() if n not in unread}
    kept = [v for n, v in zip(names[1:], own, strict=False) if n not in unread]
    return replace(body, inputs=inputs, input_facts=facts), kept
