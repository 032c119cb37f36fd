"""Infer the maximum and minimum size of dynamic axes from position embeddings, RoPE and windows.

A learned position embedding of size 1024 limits the sequence length to 1024, and `x[:, 0:3]` needs
three positions. Without this analysis, ONNX Runtime would fail at run time.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from specc.diagnostics.source import Span
from specc.ir import ops
from specc.ir.dim import Dim, DimFunction, mod_dims
from specc.ir.graph import Graph, Value
from specc.ir.length_constraints import (
    ROPE_TABLE,
    collect_length_constraints,
    iterate_nested_nodes,
    iterate_position_limits,
    list_nonnegative_dims,
)


@dataclass(frozen=True)
class LengthLimit:
    """The upper bound `max_length` of a symbolic dimension, or of an expression of several, due to
    the position embedding `table_name` or RoPE frequencies (`ROPE_TABLE`).
    """

    symbol: str
    max_length: int
    table_name: str
    span: Span | None = None

    @property
    def reason(self) -> str:
        """The reason for the limit, for messages."""
        return format_limit_reason(self.table_name, self.max_length)


def format_limit_reason(table: str, max_length: int) -> str:
    """Format the reason for a length limit, for messages."""
    if table != ROPE_TABLE:
        return f"the position embedding `{table}` has {max_length} positions"
    return (
        f"the RoPE frequencies were compiled for sequences of up to {max_length} tokens "
        "(`--context-length`)"
    )


@lru_cache(maxsize=8)
def find_length_limits(graph: Graph) -> Mapping[str, LengthLimit]:
    """Return the tightest limit of each symbolic dimension that holds for all sizes of the others.
    The result is cached.
    """
    found: dict[str, LengthLimit] = {}
    for limit, length in _iterate_limits(graph):
        for symbol in sorted(length.symbols()):
            # the other symbolic dimensions have their minimum, which gives the largest limit
            least = {s: graph.min_lengths.get(s, 0) for s in length.symbols()}
            max_length = compute_max_length(length, symbol, least, limit.max_length)
            if symbol not in found or max_length < found[symbol].max_length:
                found[symbol] = replace(limit, symbol=symbol, max_length=max_length)
    return found


def find_max_lengths(graph: Graph) -> dict[str, int]:
    """Return the maximum of each limited symbolic dimension."""
    return {symbol: limit.max_length for symbol, limit in find_length_limits(graph).items()}


def find_divisibility_constraints(graph: Graph) -> dict[str, str]:
    """Return the remainders that must be 0 (such as `n % 2`), keyed by the formatted quotient (`n /
    2`).
    """
    found: dict[str, str] = {}
    for demand in collect_length_constraints(graph):
        for part in _iterate_dim_quotients(demand.length):
            left = mod_dims(*part.args)
            if left.number is None:
                found[str(left)] = str(part)
    return found


def _iterate_dim_quotients(length: Dim) -> Iterator[DimFunction]:
    """Yield the exact quotients in a size expression, including nested ones."""
    for part in length.iterate_functions():
        yield from (p for a in part.args for p in _iterate_dim_quotients(a))
        if part.fn == "/":
            yield part


def compute_max_length(
    length: Dim, symbol: str, other_lengths: Mapping[str, int], max_length: int
) -> int:
    """Return the largest size of `symbol` for which the expression `length` is at most
    `max_length`, given the sizes `other_lengths` of the other symbolic dimensions. Return 0 if
    there is none.
    """
    # Limited expressions are monotone in each symbolic dimension (`_is_monotone`), so bisection
    # finds the first size that exceeds the maximum.
    above = bisect_left(
        range(MAX_WINDOW_LENGTH),
        True,
        key=lambda n: length.evaluate({**other_lengths, symbol: n}) > max_length,
    )
    return max(above - 1, 0)


def find_joint_length_limits(graph: Graph) -> dict[str, LengthLimit]:
    """Return limits of sums of several symbolic dimensions, such as `m + seq`, keyed by the
    formatted sum.
    """
    found: dict[str, LengthLimit] = {}
    for limit, length in _iterate_limits(graph):
        tighter = found.get(limit.symbol, limit).max_length >= limit.max_length
        if len(length.symbols()) > 1 and tighter:
            found[limit.symbol] = limit
    return found


def _iterate_limits(graph: Graph) -> Iterator[tuple[LengthLimit, Dim]]:
    """Yield each limit with the expression that it bounds, which is monotone in its symbolic
    dimensions.
    """
    names = {value: name for name, value in graph.parameters.items()}
    for table_limit in iterate_position_limits(graph):
        if not _is_monotone(table_limit.length):
            continue
        span = next(iter(graph.get_origin(table_limit.node).spans), None)
        name = names.get(table_limit.table, "a table") if table_limit.table else ROPE_TABLE
        # an offset that is added to all position ids reduces the limit
        more = table_limit.length.evaluate(dict.fromkeys(table_limit.length.symbols(), 0))
        length = table_limit.length - more
        yield LengthLimit(str(length), table_limit.max_positions - more, name, span), length


def _is_monotone(length: Dim) -> bool:
    """Return True if an expression is a sum of symbolic dimensions and of their floor divisions by
    constants.
    """
    monotone_parts = all(
        part.fn == "//" and _is_monotone(part.args[0]) and part.args[1].number
        for part in length.iterate_functions()
    )
    return monotone_parts and all(c >= 0 for monomial, c in length.terms if monomial)


def has_context_length(context_length: int, graph: Graph) -> bool:
    """Return True if a rotary embedding in the graph or in a loop body is scaled for
    `context_length`.
    """
    found = (
        op.max_positions == context_length
        if isinstance(op, ops.RopeAngles)
        else isinstance(op, ops.Scan) and has_context_length(context_length, op.body)
        for op in (node.op for node, _ in graph.nodes)
    )
    return any(found)


@lru_cache(maxsize=8)
def find_min_lengths(graph: Graph) -> Mapping[str, int]:
    """Return the minimum of each symbolic dimension for which indices are in range, axes are not
    shorter than windows, and the axis of an `argmax` is not empty.
    """
    found = _find_min_window_lengths(graph)
    for node, _ in iterate_nested_nodes(graph):
        if isinstance(node.op, ops.ArgMax) and (operand := node.args[0]):
            length = operand.type.shape[node.op.axis].substitute(graph.length_equations)
            for symbol, least in _iterate_min_symbol(length):
                found[symbol] = max(found.get(symbol, 0), least)
        for wanted in list_nonnegative_dims(node):
            match wanted.substitute(graph.length_equations).terms:
                # `c·symbol + k` is nonnegative from -k / c on, rounded up; other expressions have
                # no known minimum
                case ((((str() as symbol, 1),), c), ((), k)) if c > 0:
                    found[symbol] = max(found.get(symbol, 0), -(k // c))
    return found


def _find_min_window_lengths(graph: Graph) -> dict[str, int]:
    """Return the minimum of each symbolic dimension for which no axis is shorter than a window
    after all strides. Dimensions for which a window over an empty axis has an empty result are
    omitted.
    """
    found: dict[str, int] = {}
    refused: set[str] = set()
    for node, results in iterate_nested_nodes(graph):
        if not isinstance(node.op, ops.SlidingWindowOp | ops.DownsamplePaddingMask):
            continue
        spare = [d.substitute(graph.length_equations) for d in list_nonnegative_dims(node)]
        refused |= {s for d in spare for s in d.symbols() if _is_below_zero(d, s, 0)}
        for symbol, least in _iterate_min_lengths(graph, results[0]):
            found[symbol] = max(found.get(symbol, 0), least)
    return {symbol: n for symbol, n in found.items() if symbol in refused}


def _iterate_min_lengths(graph: Graph, result: Value) -> Iterator[tuple[str, int]]:
    """Yield the symbolic dimension of each result axis that depends on exactly one, with its
    minimum.
    """
    for length in result.type.shape:
        yield from _iterate_min_symbol(length.substitute(graph.length_equations))


def _iterate_min_symbol(length: Dim) -> Iterator[tuple[str, int]]:
    """Yield the only symbolic dimension of an expression, with its smallest value for which the
    expression is not 0.
    """
    made = length - 1  # negative if the axis is empty
    if len(made.symbols()) == 1:
        (symbol,) = made.symbols()
        yield symbol, _solve_min_length(made, symbol)


def _solve_min_length(length: Dim, symbol: str) -> int:
    """Return the smallest value of the only symbolic dimension for which `length` is not negative.
    The number of windows is monotone in the axis size.
    """
    return bisect_left(
        range(MAX_WINDOW_LENGTH), True, key=lambda n: not _is_below_zero(length, symbol, n)
    )


def _is_below_zero(length: Dim, symbol: str, count: int) -> bool:
    """Return True if `symbol` is the only symbolic dimension of `length`, and `length` is negative
    if its size is `count`.
    """
    return length.symbols() == {symbol} and length.evaluate({symbol: count}) < 0


MAX_WINDOW_LENGTH = 2**24
"""The maximum size of a window."""
