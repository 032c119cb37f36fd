"""Equations between lengths (`where total = past + seq`), and lengths that no input has."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from specc.elaborate.context import Context, Env
from specc.elaborate.expressions import evaluate
from specc.elaborate.values import describe, first
from specc.ir.dim import Dim, DimError, DimLimit
from specc.ir.fitting import nodes_within, rows_of
from specc.ir.graph import Graph, Node
from specc.ir.length_sources import find_length_sources
from specc.lang import tree
from specc.text.diagnostic import fail
from specc.text.source import Span


def read_equations(context: Context, block: tree.Block, env: Env) -> dict[str, Dim]:
    """Return the lengths that have an equation, as what they are equal to."""
    found: dict[str, Dim] = {}
    for equation in block.where:
        value = first(evaluate(context, equation.value, env))
        if not isinstance(value, Dim):
            fail(
                "E0303",
                f"`{equation.name}` is a length, not {describe(value)}",
                equation.span,
            )
        found[equation.name] = value
    return _expand_equations(block.where, found)


def _expand_equations(
    equations: Sequence[tree.Equation], lengths: Mapping[str, Dim]
) -> dict[str, Dim]:
    """Return the lengths with those that have an equation themselves replaced by what
    they are equal to. E0210 for one that is defined by itself, E0309 and E0310 for one
    that has no value.
    """
    found = dict(lengths)
    for _ in equations:
        found = {e.name: _substitute(found[e.name], found, e) for e in equations}
    for equation in equations:
        if found[equation.name].symbols() & found.keys():
            fail(
                "E0210",
                f"the length `{equation.name}` is defined by itself",
                equation.span,
                "this follows from it",
                helps=["write it with lengths that have no equation of their own"],
            )
    return found


def _substitute(length: Dim, by: Mapping[str, Dim], equation: tree.Equation) -> Dim:
    try:
        return length.substitute(by)
    except DimError as error:
        code = "E0309" if isinstance(error, DimLimit) else "E0310"
        fail(code, f"`{equation.name}`: {error}", equation.span)


def check_lengths_known(graph: Graph, dims: Collection[str], span: Span | None) -> None:
    """Raise E0311 where an operation needs a length of `dims` that no input tells."""
    types = {name: value.type for name, value in graph.inputs.items()}
    known = find_length_sources(types, graph.facts).keys()
    unknown = {*dims} - known
    if not unknown:
        return
    axes = {d for t in types.values() for d in t.shape}
    for node, results in nodes_within(graph):
        made = (d for r in results for d in r.type.shape)
        read = (*rows_of(node), *_lengths_in(node.op.attributes().values()))
        for length in (*made, *read):
            missing = sorted(length.symbols() & unknown)
            if missing and length not in axes:
                _fail_unknown(graph, node, length, missing[0], span)


def _fail_unknown(
    graph: Graph, node: Node, length: Dim, symbol: str, span: Span | None
) -> None:
    made = graph.made.get(node)
    axes = {d for v in graph.inputs.values() for d in v.type.shape}
    inside = sorted(str(d) for d in axes if symbol in d.symbols())
    notes = [f"`{symbol}` cannot be computed from an axis `{d}`" for d in inside]
    fail(
        "E0311",
        f"no input tells the length `{symbol}`",
        made.spans[0] if made and made.spans else span,
        f"this needs `{length}`",
        notes=notes,
        helps=[
            f"give an input an axis `{symbol}`, make it a config value, or say what it "
            f"is equal to: `where {symbol} = …`"
        ],
    )


def _lengths_in(attributes: Collection[object]) -> Iterator[Dim]:
    for value in attributes:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from _lengths_in(value)
