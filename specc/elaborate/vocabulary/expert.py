"""The body of an expert: that it treats each row alone, and what it reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from specc.elaborate.values import show_type
from specc.elaborate.vocabulary.registry import Site
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Made, Node, Value, needed
from specc.ir.interval import SAME
from specc.ir.reach import Trace, trace
from specc.ir.verify import numbers_rows
from specc.text.diagnostic import Diagnostic, Failed, Label, fail


def check_alone(
    site: Site, body: Graph, captured: Sequence[Value], length: str
) -> None:
    """E0331 where a row looks at others or at how many there are, E0333 where something
    inside is as long as only an input tells. `length` is the number of rows.
    """
    made: Mapping[Node, Made] = {**site.context.builder.made, **body.made}
    # How many rows chose an expert is nobody's business but the loop's: it changes with
    # the batch.
    for node in _counting(body, captured, length):
        _not_alone(site, made, node, "counts the rows that it is given")
    for node in _mixing(body):
        _not_alone(site, made, node, "reads other rows than its own")
    for value in (*captured, *(r for _, results in body.nodes for r in results)):
        for dim in value.type.shape:
            if site.context.late(dim.symbols() - {length}):
                _late(site, made, value, dim)


def _counting(body: Graph, captured: Sequence[Value], length: str) -> Iterator[Node]:
    """The nodes that hold how many rows there are, inside or on the way to what the body
    captures.
    """
    yield from (node for node, _ in body.nodes if numbers_rows(node))
    for node in needed(captured):
        values = node.op.attributes().values()
        if any(isinstance(v, Dim) and length in v.symbols() for v in values):
            yield node


def _mixing(body: Graph) -> Iterator[Node]:
    """The nodes through which a row of the result reads more than the row it was."""
    rows = next(iter(body.inputs.values()))
    # Followed from the rows that are given to what is made of them; anything but the
    # same row is told.
    found = trace(body, {rows: Trace({rows.type.rank - 2: SAME})})
    for node, results in body.nodes:
        reads = [found[r] for r in results if r in found]
        if any(t.all or set(t.axes.values()) - {SAME} for t in reads):
            yield node


def _not_alone(
    site: Site, made: Mapping[Node, Made], node: Node, does: str
) -> NoReturn:
    """E0331 at an op of the block, and where experts are run."""
    known = made.get(node, Made()).spans
    at = known[-1] if known else site.span
    fn = node.op.attributes().get("fn")
    said = fn if isinstance(fn, str) else node.op.name
    there = Label(site.span, "experts are run here") if site.span else None
    raise Failed(
        Diagnostic(
            "E0331",
            f"an expert is given the rows that chose it, and {does}",
            Label(at, f"`{said}` does") if at else None,
            (there,) if there and at is not site.span else (),
            helps=("do this before `route`, on all rows",),
        )
    )


def _late(site: Site, made: Mapping[Node, Made], value: Value, dim: Dim) -> NoReturn:
    """E0333 for a length that only an input tells."""
    known = made.get(value.node, Made()).spans if value.node else ()
    fail(
        "E0333",
        f"an expert reads what is {dim} long, which only an input tells",
        known[-1] if known else site.span,
        f"this reads {show_type(value.type)}",
        helps=[
            "what belongs to a row goes with it, as `concat([x, …])`; a table has a "
            "length that the config says"
        ],
    )


def used(body: Graph, own: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """The body without weights that nothing in it reads, and the values that hold the
    others. Its inputs are the rows, then one for each of `own`, then captures.
    """
    # A weight that nothing reads would be asked of a checkpoint that has none.
    read = {a for n, _ in body.nodes for a in n.args} | {*body.outputs.values()}
    names = list(body.inputs)[1 : 1 + len(own)]
    unread = {name for name in names if body.inputs[name] not in read}
    inputs = {n: v for n, v in body.inputs.items() if n not in unread}
    facts = {n: f for n, f in body.input_facts.items() if n not in unread}
    kept = [v for n, v in zip(names, own, strict=True) if n not in unread]
    return replace(body, inputs=inputs, input_facts=facts), kept
