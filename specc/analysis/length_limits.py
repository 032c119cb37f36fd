"""Infer the maximum and minimum size of dynamic axes from position embeddings, RoPE and windows.

A learned position embedding of size 1024 limits the sequence length to 1024, and `x[:, 0:3]` needs
three positions. For sizes outside the limits, ONNX Runtime would fail at run time.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from specc.diagnostics.diagnostic import Span
from specc.ir import ops
from specc.ir.dim import Dim, DimFunction, mod_dims
from specc.ir.graph import Graph, select_entries
from specc.ir.ops.loop import iterate_all_nodes
from specc.ir.valid_axis_sizes import (
    ROPE_TABLE,
    collect_dim_constraints,
    iterate_position_limits,
    list_nonnegative_dims,
)


@dataclass(frozen=True)
class LengthLimit:
    """An upper bound `max_length` of `symbol`, a symbolic dimension or a sum of symbolic
    dimensions.

    The limit is the size of the position embedding `table_name`. If `table_name` is `ROPE_TABLE`,
    the limit is the context length for which RoPE frequencies were computed. `span` is the source
    location of the lookup.
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
    """Return the maximum of each symbolic dimension if all other dimensions have their minimum."""
    limits: dict[str, LengthLimit] = {}
    for limit, length in _iterate_limits(graph):
        for symbol in sorted(length.symbols()):
            # the limit is largest if all other symbolic dimensions have their minimum
            min_lengths = {s: graph.min_lengths.get(s, 0) for s in length.symbols()}
            max_length = compute_max_length(length, symbol, min_lengths, limit.max_length)
            if symbol not in limits or max_length < limits[symbol].max_length:
                limits[symbol] = replace(limit, symbol=symbol, max_length=max_length)
    return limits


def find_max_lengths(graph: Graph) -> dict[str, int]:
    """Return the maximum size of each symbolic dimension that has an upper bound."""
    return {symbol: limit.max_length for symbol, limit in find_length_limits(graph).items()}


def find_divisibility_constraints(graph: Graph) -> dict[str, str]:
    """Return the divisibility constraints of a graph: the remainder that must be 0, such as
    `n % 2`, for each exact quotient in a size expression, such as `n / 2`. The keys are formatted
    quotients, and the values are formatted remainders.
    """
    constraints: dict[str, str] = {}
    for constraint in collect_dim_constraints(graph):
        for quotient in _iterate_dim_quotients(constraint.length):
            remainder = mod_dims(*quotient.args)
            if remainder.number is None:
                constraints[str(remainder)] = str(quotient)
    return constraints


def _iterate_dim_quotients(length: Dim) -> Iterator[DimFunction]:
    """Yield the exact quotients in a size expression, including nested quotients."""
    for part in length.iterate_opaque_functions():
        yield from (p for a in part.args for p in _iterate_dim_quotients(a))
        if part.fn == "/":
            yield part


def compute_max_length(
    length: Dim, symbol: str, other_lengths: Mapping[str, int], max_length: int
) -> int:
    """Return the largest size of `symbol` for which the expression `length` is at most `max_length`
    if all other symbolic dimensions have the sizes `other_lengths`. Return 0 if `length` exceeds
    `max_length` for every size.
    """
    # Limited expressions are monotone in each symbolic dimension (`_is_monotone`), so bisection
    # finds the first size that exceeds the maximum.
    first_excess = bisect_left(
        range(MAX_WINDOW_LENGTH),
        True,
        key=lambda n: length.evaluate({**other_lengths, symbol: n}) > max_length,
    )
    return max(first_excess - 1, 0)


def find_joint_length_limits(graph: Graph) -> dict[str, LengthLimit]:
    """Return the upper bounds of sums of dimensions, keyed by the formatted sum (`m + seq`)."""
    limits: dict[str, LengthLimit] = {}
    for limit, length in _iterate_limits(graph):
        is_tighter = limits.get(limit.symbol, limit).max_length >= limit.max_length
        if len(length.symbols()) > 1 and is_tighter:
            limits[limit.symbol] = limit
    return limits


def _iterate_limits(graph: Graph) -> Iterator[tuple[LengthLimit, Dim]]:
    """Yield each length limit of a position embedding or RoPE, with the size expression that it
    bounds. Expressions that are not monotone in their symbolic dimensions are skipped.
    """
    names = {value: name for name, value in graph.parameters.items()}
    for table_limit in iterate_position_limits(graph):
        if not _is_monotone(table_limit.length):
            continue
        span = next(iter(graph.get_origin(table_limit.node).spans), None)
        name = names.get(table_limit.table, "a table") if table_limit.table else ROPE_TABLE
        # an offset that is added to all position ids reduces the limit
        offset = table_limit.length.evaluate(dict.fromkeys(table_limit.length.symbols(), 0))
        length = table_limit.length - offset
        yield LengthLimit(str(length), table_limit.max_positions - offset, name, span), length


def _is_monotone(length: Dim) -> bool:
    """Return True for a sum of symbolic dimensions and their floor divisions by constants."""
    monotone_parts = all(
        part.fn == "//" and _is_monotone(part.args[0]) and part.args[1].number
        for part in length.iterate_opaque_functions()
    )
    return monotone_parts and all(c >= 0 for monomial, c in length.terms if monomial)


def has_rope_context_length(context_length: int, graph: Graph) -> bool:
    """Return True if a rotary embedding of the graph or its loops is scaled for
    `context_length`.
    """
    return any(
        isinstance(node.op, ops.RopeAngles) and node.op.max_positions == context_length
        for node, _ in iterate_all_nodes(graph)
    )


@lru_cache(maxsize=8)
def find_min_lengths(graph: Graph) -> Mapping[str, int]:
    """Return the minimum size of each symbolic dimension for which all indices are in range, no
    axis is shorter than a window over it, and no `argmax` reads an empty axis. The minimum sizes of
    a graph are cached.
    """
    min_lengths = _find_min_window_lengths(graph)
    for node, _ in iterate_all_nodes(graph):
        if isinstance(node.op, ops.ArgMax) and (operand := node.args[0]):
            length = operand.type.shape[node.op.axis].substitute(graph.length_equations)
            for symbol, minimum in _iterate_min_symbol(length):
                min_lengths[symbol] = max(min_lengths.get(symbol, 0), minimum)
        for dim in list_nonnegative_dims(node):
            match dim.substitute(graph.length_equations).terms:
                # `c·symbol + k` is nonnegative if `symbol` is at least -k / c, rounded up; the
                # minimum of any other expression is unknown
                case ((((str() as symbol, 1),), c), ((), k)) if c > 0:
                    min_lengths[symbol] = max(min_lengths.get(symbol, 0), -(k // c))
    return min_lengths


def _find_min_window_lengths(graph: Graph) -> dict[str, int]:
    """Return the minimum size of each symbolic dimension for which no axis is shorter than a
    sliding window over it. Omit dimensions for which a window over an empty axis has an empty
    result.
    """
    min_lengths: dict[str, int] = {}
    nonempty_symbols: set[str] = set()
    for node, results in iterate_all_nodes(graph):
        if not isinstance(node.op, ops.SlidingWindowOp | ops.DownsamplePaddingMask):
            continue
        margins = [d.substitute(graph.length_equations) for d in list_nonnegative_dims(node)]
        nonempty_symbols |= {s for d in margins for s in d.symbols() if _is_below_zero(d, s, 0)}
        for length in results[0].shape:
            for symbol, minimum in _iterate_min_symbol(length.substitute(graph.length_equations)):
                min_lengths[symbol] = max(min_lengths.get(symbol, 0), minimum)
    return select_entries(min_lengths, nonempty_symbols)


def _iterate_min_symbol(length: Dim) -> Iterator[tuple[str, int]]:
    """Yield the symbol of `length` and its smallest valid value, if `length` has one symbol."""
    margin = length - 1  # a size of 0 is invalid, so the margin is negative
    if len(margin.symbols()) == 1:
        (symbol,) = margin.symbols()
        # sizes such as the number of windows are monotone in the symbol
        is_valid = lambda n: not _is_below_zero(margin, symbol, n)
        yield symbol, bisect_left(range(MAX_WINDOW_LENGTH), True, key=is_valid)


def _is_below_zero(length: Dim, symbol: str, count: int) -> bool:
    """Return True if `length` has only the symbol `symbol` and is negative for `symbol = count`."""
    return length.symbols() == {symbol} and length.evaluate({symbol: count}) < 0


MAX_WINDOW_LENGTH = 2**24
"""The axis size below which bisection searches."""
