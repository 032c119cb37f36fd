"""Infer the maximum and minimum sizes of dynamic axes from position embeddings, RoPE and windows.
Prove that the sizes of axes are non-negative.

A learned position embedding of size 1024 limits the sequence length to 1024, and `x[:, 0:3]` needs
three positions. If an axis size is outside these limits, ONNX Runtime fails at run time.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.dim import Atom, Dim, DimFunction
from specc.ir.graph import Graph, Node, Value, select_entries
from specc.ir.ir_verifier import list_nonnegative_dims
from specc.ir.ops.loop import iterate_all_nodes


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
        """The reason for the length limit, phrased for messages."""
        return format_limit_reason(self.table_name, self.max_length)


def format_limit_reason(table_name: str, max_length: int) -> str:
    """Format the reason for a length limit, phrased for messages."""
    if table_name != ROPE_TABLE:
        return f"the position embedding `{table_name}` has {max_length} positions"
    return (
        f"the RoPE frequencies were compiled for sequences of up to {max_length} tokens "
        "(`--context-length`)"
    )


@lru_cache(maxsize=8)
def find_length_limits(graph: Graph) -> Mapping[str, LengthLimit]:
    """Return the maximum of each symbolic dimension, with all other dimensions at their minimum."""
    limits: dict[str, LengthLimit] = {}
    for limit, length in _iterate_limits(graph):
        for symbol in sorted(length.symbols()):
            # the limit is largest if all other symbolic dimensions have their minimum sizes
            min_lengths = {s: graph.min_lengths.get(s, 0) for s in length.symbols()}
            max_length = compute_max_symbol_size(length, symbol, min_lengths, limit.max_length)
            if symbol not in limits or max_length < limits[symbol].max_length:
                limits[symbol] = replace(limit, symbol=symbol, max_length=max_length)
    return limits


def find_max_lengths(graph: Graph) -> dict[str, int]:
    """Return the maximum size of each symbolic dimension that has an upper bound."""
    return {symbol: limit.max_length for symbol, limit in find_length_limits(graph).items()}


def compute_max_symbol_size(
    length: Dim, symbol: str, other_sizes: Mapping[str, int], max_length: int
) -> int:
    """Return the largest size of `symbol` for which the expression `length` is at most `max_length`
    if all other symbolic dimensions have the sizes `other_sizes`. Return 0 if `length` exceeds
    `max_length` for every size.
    """
    # All expressions with a limit are monotone in each symbolic dimension (`_is_monotone`), so
    # bisection finds the first size at which the limit is exceeded.
    first_excess = bisect_left(
        range(MAX_WINDOW_LENGTH),
        True,
        key=lambda n: length.evaluate({**other_sizes, symbol: n}) > max_length,
    )
    return max(first_excess - 1, 0)


def find_length_sum_limits(graph: Graph) -> dict[str, LengthLimit]:
    """Return the upper bounds of sums of dimensions, keyed by the formatted sum (`m + seq`)."""
    limits: dict[str, LengthLimit] = {}
    for limit, length in _iterate_limits(graph):
        is_tighter = limits.get(limit.symbol, limit).max_length >= limit.max_length
        if len(length.symbols()) > 1 and is_tighter:
            limits[limit.symbol] = limit
    return limits


def _iterate_limits(graph: Graph) -> Iterator[tuple[LengthLimit, Dim]]:
    """Yield each length limit of a position embedding or RoPE, together with the size expression
    that it limits. Expressions that are not monotone in their symbolic dimensions are skipped.
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
    """Return True for a sum of symbolic dimensions and of floor divisions of them by constants."""
    monotone_parts = all(
        part.fn == "//" and _is_monotone(part.args[0]) and part.args[1].number
        for part in length.iterate_opaque_functions()
    )
    return monotone_parts and all(c >= 0 for monomial, c in length.terms if monomial)


def is_rope_scaled_for_length(context_length: int, graph: Graph) -> bool:
    """Return True if a rotary embedding of the graph or its loops is scaled for
    `context_length`.
    """
    return any(
        isinstance(node.op, ops.RopeAngles) and node.op.max_positions == context_length
        for node, _ in iterate_all_nodes(graph)
    )


@lru_cache(maxsize=8)
def find_min_lengths(graph: Graph) -> Mapping[str, int]:
    """Return the minimum size of each symbolic dimension. At or above these sizes, all indices are
    in range, no axis is shorter than a window over it, and no `argmax` is applied to an empty axis.
    Minimum axis sizes are cached for each graph.
    """
    min_lengths = _find_min_window_lengths(graph)
    for node, _ in iterate_all_nodes(graph):
        if isinstance(node.op, ops.ArgMax) and (operand := node.args[0]):
            length = operand.type.shape[node.op.axis].substitute(graph.length_equations)
            for symbol, minimum in _iterate_min_symbol(length):
                min_lengths[symbol] = max(min_lengths.get(symbol, 0), minimum)
        for dim in list_nonnegative_dims(node):
            match dim.substitute(graph.length_equations).terms:
                # `c·symbol + k` is nonnegative if `symbol` is at least -k / c, rounded up. For all
                # other expressions, the minimum value of the symbol is unknown.
                case ((((str() as symbol, 1),), c), ((), k)) if c > 0:
                    min_lengths[symbol] = max(min_lengths.get(symbol, 0), -(k // c))
    return min_lengths


def _find_min_window_lengths(graph: Graph) -> dict[str, int]:
    """Return the minimum size of each symbolic dimension for which no axis is shorter than a
    sliding window over it. Omit dimensions for which windows over an empty axis have a valid, empty
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
    """If `length` contains exactly one symbol, yield the symbol and its smallest valid value."""
    margin = length - 1  # an axis size of 0 is invalid, so the margin must be negative
    if len(margin.symbols()) == 1:
        (symbol,) = margin.symbols()
        # sizes such as the number of windows increase monotonically with the symbol
        is_valid = lambda n: not _is_below_zero(margin, symbol, n)
        yield symbol, bisect_left(range(MAX_WINDOW_LENGTH), True, key=is_valid)


def _is_below_zero(length: Dim, symbol: str, count: int) -> bool:
    """Return True if `length` contains only `symbol` and is negative for `symbol = count`."""
    return length.symbols() == {symbol} and length.evaluate({symbol: count}) < 0


MAX_WINDOW_LENGTH = 2**24
"""The largest axis size that the bisection considers."""


ROPE_TABLE = "--context-length"
"""The name of the RoPE length limit in messages, which is also the option that sets the limit."""


@immutable_dataclass
class PositionEmbeddingLimit:
    """The limit `length <= max_positions` that a position embedding imposes. `table` is None for
    RoPE.
    """

    node: Node
    length: Dim
    max_positions: int
    table: Value | None


def iterate_position_limits(graph: Graph) -> Iterator[PositionEmbeddingLimit]:
    """Yield the limits that position embeddings impose on dynamic axis sizes."""
    for node, _ in graph.nodes:
        limit = find_context_length_limit(node)
        if limit is None:
            continue
        length = limit.length.substitute(graph.length_equations)
        if length.symbols():
            yield PositionEmbeddingLimit(node, length, limit.max_positions, limit.table)


def find_context_length_limit(node: Node) -> PositionEmbeddingLimit | None:
    """Return the length limit that a node imposes if it is a position embedding, otherwise None."""
    match node:
        case Node(ops.Embedding(), (Value() as ids, Value() as table)):
            return _make_position_limit(node, ids, table.shape[0].number, table)
        case Node(ops.Gather(axis), (Value() as sliced_table, Value() as ids)):
            # the slice determines the limit, but the message names the table that is sliced
            table = sliced_table
            while isinstance(table.op, ops.Slice) and table.node and table.node.first_operand:
                table = table.node.first_operand
            return _make_position_limit(node, ids, sliced_table.shape[axis].number, table)
        case Node(ops.RopeAngles(max_positions=limit), (Value() as ids, *_)) if limit:
            return _make_position_limit(node, ids, limit, None)
    return None


def _make_position_limit(
    node: Node, ids: Value, max_positions: int | None, table: Value | None
) -> PositionEmbeddingLimit | None:
    """Return the limit that looking up `ids` in a position embedding imposes, or None."""
    maximum = _find_largest_index(ids)
    if max_positions is None or maximum is None:
        return None
    return PositionEmbeddingLimit(node, maximum + 1, max_positions, table)


def _find_largest_index(value: Value) -> Dim | None:
    """Return the largest index in `value` if it contains position ids, otherwise None."""
    match value.node:
        # position ids start at 0, so the largest position id is the axis size minus one
        case Node(ops.Extent(axis), (Value() as x,)):
            return x.shape[axis] - 1
        case Node(ops.Range(length), ()):
            return length - 1
        case Node(ops.Size(length), ()):
            return length
        # a cumulative count of valid positions is at most the axis size
        case Node(ops.CumSum(axis), (Value(node=Node(ops.Cast(), (Value() as keep,))) as x,)):
            return x.shape[axis] if keep.dtype == "bool" else None
        case Node(ops.Arith("add" | "sub" as fn), (Value() as x, Value() as y)):
            return _shift_largest_index(fn, _find_largest_index(x), y)
        # in position ids such as `max(cumsum(keep) - 1, 0)`, padded positions have small indices
        case (
            Node(ops.Arith("max"), (Value() as x, Value(node=Node(ops.Constant()))))
            | Node(ops.Insert() | ops.Expand() | ops.Transpose() | ops.Squeeze(), (Value() as x,))
            | Node(ops.Where(), (_, Value() as x, Value(node=Node(ops.Constant()))))
        ):
            return _find_largest_index(x)
        # a decode step processes the last positions, which have the largest position ids
        case Node(ops.Slice(axis=axis, stop=stop), (Value() as x,)):
            return _find_largest_index(x) if stop == x.shape[axis] else None
        case _:
            return None


def _shift_largest_index(fn: str, maximum: Dim | None, offset: Value) -> Dim | None:
    """Return the largest index after adding or subtracting a constant or size, None if unknown."""
    match offset.node:
        case _ if maximum is None:
            return None
        case Node(ops.Constant(c)):
            return maximum + int(c if fn == "add" else -c)
        case Node(ops.Size(length)):
            return maximum + length if fn == "add" else maximum - length
        case _:
            return None


MAX_BOUND_STEPS = 200


def is_provably_nonnegative(length: Dim, min_lengths: Mapping[str, int] | None = None) -> bool:
    """Return True if a dimension is provably non-negative for symbolic dimensions with the lower
    bounds `min_lengths` (default 0). Positive terms need a lower bound, and negative terms need an
    upper bound.
    """
    worklist, visited = [length], {length}
    while worklist and len(visited) < MAX_BOUND_STEPS:
        dim = worklist.pop()
        if _find_lower_bound(dim, min_lengths or {}) is not None:
            return True
        for bound in _iterate_relaxed_lengths(dim):
            if bound not in visited:
                visited.add(bound)
                worklist.append(bound)
    return False


def _find_lower_bound(length: Dim, min_lengths: Mapping[str, int]) -> int | None:
    """Return a non-negative lower bound of a dimension, or None if none is found."""
    total = 0
    for monomial, c in length.terms:
        if monomial and c < 0:
            return None
        for atom, power in monomial:
            if (factor_bound := _find_factor_bound(atom, min_lengths)) is None:
                return None
            c *= factor_bound**power
        total += c
    return total if total >= 0 else None


def _find_factor_bound(atom: Atom, min_lengths: Mapping[str, int]) -> int | None:
    """Return a non-negative lower bound of a factor, or None if none is found."""
    if isinstance(atom, str):
        return max(min_lengths.get(atom, 0), 0)
    a, b = (_find_lower_bound(d, min_lengths) for d in atom.args)
    match atom.fn:
        case "max":
            return max((n for n in (a, b) if n is not None), default=None)
        case "min":
            return None if a is None or b is None else min(a, b)
        case "%":
            return None if b is None else 0
    if a is None or b is None:
        return None
    # a floor division by an integer may have a lower bound above 0
    return a // b if atom.fn == "//" and atom.args[1].number else 0


def _iterate_relaxed_lengths(length: Dim) -> Iterator[Dim]:
    """Yield lower bounds of a dimension that replace one `min`, `max`, `//` or `%` by a bound."""
    for monomial, c in length.terms:
        # replace one function at a time, because the bound of a product requires bounds of all
        # factors
        match monomial:
            case ((DimFunction() as function, 1),):
                for bound in _bound_function(function, c):
                    yield length + (bound - Dim({monomial: 1})) * c


def _bound_function(function: DimFunction, count: int) -> tuple[Dim, ...]:
    """Return bounds of a function (`min`, `max`, `//` or `%`) with the coefficient `count`: lower
    bounds if the coefficient is positive, upper bounds if it is negative.
    """
    a, b = function.args
    if count > 0:
        return (a, b) if function.fn == "max" else ()
    match function.fn:
        case "min":
            return a, b
        # quotients and remainders have bounds only if both operands are non-negative
        case "//" | "%" if is_provably_nonnegative(a) and is_provably_nonnegative(b - 1):
            return (a,) if function.fn == "//" else (a, b - 1)
    return ()
