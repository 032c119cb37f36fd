"""Equations between lengths (`where total = past + seq`), and lengths that no input determines
(E0311).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.frontend.context import Context, Env
from specc.frontend.expressions import evaluate_expression
from specc.frontend.spec_values import describe_value, take_first_result
from specc.ir.dim import Dim, DimError, DimLimitError
from specc.ir.graph import Graph, Node
from specc.ir.length_constraints import iterate_nested_nodes, list_nonnegative_dims
from specc.ir.shape_binding import find_length_sources
from specc.syntax import ast


def read_equations(context: Context, block: ast.Block, env: Env) -> dict[str, Dim]:
    """Return the lengths that have an equation, with the expression they are equal to."""
    found: dict[str, Dim] = {}
    for equation in block.where:
        value = take_first_result(evaluate_expression(context, equation.value, env))
        if not isinstance(value, Dim):
            raise_error(
                "E0303",
                f"`{equation.name}` must be a length, not {describe_value(value)}",
                equation.span,
            )
        found[equation.name] = value
    return _expand_equations(block.where, found)


def _expand_equations(
    equations: Sequence[ast.Equation], lengths: Mapping[str, Dim]
) -> dict[str, Dim]:
    """Substitute lengths that have an equation in the equations of others. Raise E0210 for
    a circular equation, E0309 and E0310 for one without a result.
    """
    found = dict(lengths)
    for _ in equations:
        found = {e.name: _substitute(found[e.name], found, e) for e in equations}
    for equation in equations:
        if found[equation.name].symbols() & found.keys():
            raise_error(
                "E0210",
                f"the length `{equation.name}` is defined by itself",
                equation.span,
                "this depends on it",
                helps=["use lengths that have no equation of their own"],
            )
    return found


def _substitute(length: Dim, by: Mapping[str, Dim], equation: ast.Equation) -> Dim:
    try:
        return length.substitute(by)
    except DimError as error:
        code = "E0309" if isinstance(error, DimLimitError) else "E0310"
        raise_error(code, f"`{equation.name}`: {error}", equation.span)


def check_lengths_known(graph: Graph, dims: Collection[str], span: Span | None) -> None:
    """Raise E0311 if an operation needs a length of `dims` that no input determines."""
    types = {name: value.type for name, value in graph.inputs.items()}
    known = find_length_sources(types, graph.facts).keys()
    unknown = {*dims} - known
    if not unknown:
        return
    axes = {d for t in types.values() for d in t.shape}
    for node, results in iterate_nested_nodes(graph):
        made = (d for r in results for d in r.type.shape)
        read = (*list_nonnegative_dims(node), *_lengths_in(node.op.attributes().values()))
        for length in (*made, *read):
            missing = sorted(length.symbols() & unknown)
            if missing and length not in axes:
                _fail_unknown(graph, node, length, missing[0], span)


def _fail_unknown(graph: Graph, node: Node, length: Dim, symbol: str, span: Span | None) -> None:
    made = graph.made.get(node)
    axes = {d for v in graph.inputs.values() for d in v.type.shape}
    inside = sorted(str(d) for d in axes if symbol in d.symbols())
    notes = [f"`{symbol}` cannot be computed from the axis `{d}`" for d in inside]
    raise_error(
        "E0311",
        f"no input determines the length `{symbol}`",
        made.spans[0] if made and made.spans else span,
        f"this needs `{length}`",
        notes=notes,
        helps=[
            f"give an input an axis `{symbol}`, make it a config value, or define it: "
            f"`where {symbol} = …`"
        ],
    )


def _lengths_in(attributes: Collection[object]) -> Iterator[Dim]:
    for value in attributes:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from _lengths_in(value)
