"""Find sizes of dynamic axes for which a graph is valid. Collect constraints on the sizes (lower
bounds, position tables, slices, exact divisions), and search for sizes that satisfy all
constraints.

A model must be run with valid axis sizes. For example, `x[:, 0:30]` and `split(x, into=[n / 2, 2],
axis=1)` are undefined for an axis of size 11.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from specc.analysis.length_limits import iterate_position_limits
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim, DimError, DimFunction, mod_dims
from specc.ir.graph import Graph
from specc.ir.ir_verifier import list_nonnegative_dims
from specc.ir.ops.loop import iterate_all_nodes

SEARCH_RADII = (4, 16, 64, 600)
"""The search radii (maximum distances from the preferred sizes), in search order."""

MAX_TRIES = 1_500
"""Maximum number of search steps per search radius."""


@immutable_dataclass
class DimConstraint:
    """A dimension whose value must be an integer for the graph to be valid. If the dimension is a
    number of positions, it must also be non-negative.
    """

    length: Dim
    is_position_count: bool

    def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
        """Return True if the constraint holds for the sizes of symbolic dimensions."""
        try:
            return self.length.evaluate(sizes) >= 0 or not self.is_position_count
        except DimError:
            return False


def find_valid_dim_sizes(
    graph: Graph,
    preferred_lengths: Mapping[str, int],
    max_lengths: Mapping[str, int] | None = None,
    excluded: Collection[int] = (),
) -> dict[str, int] | None:
    """Return sizes of the symbolic dimensions, near `preferred_lengths`, that satisfy `max_lengths`
    and all constraints of `graph`. Return None if the search fails. Sizes in `excluded` are
    returned only if they are preferred sizes.
    """
    constraints = [
        d for d in collect_dim_constraints(graph) if d.length.symbols() <= preferred_lengths.keys()
    ]
    if all(d.is_satisfied(preferred_lengths) for d in constraints):
        return dict(preferred_lengths)
    constrained_symbols = {s for d in constraints for s in d.length.symbols()}
    symbols = sorted(constrained_symbols, key=lambda s: (_is_coupled(s, constraints), s))
    # increase the search radius of all symbolic dimensions together to try sizes near the preferred
    # sizes first
    for radius in SEARCH_RADII:
        candidates = dict[str, list[int]]()
        for s in symbols:
            largest = (max_lengths or {}).get(s, preferred_lengths[s] + radius)
            nearby_lengths = _iterate_nearby_lengths(
                preferred_lengths[s], radius, graph.min_lengths.get(s, 1), largest
            )
            candidates[s] = [
                n for n in nearby_lengths if n == preferred_lengths[s] or n not in excluded
            ]
        if lengths := _search_lengths(symbols, candidates, constraints):
            return {**preferred_lengths, **lengths}
    return None


def find_total_strides(graph: Graph) -> dict[str, int]:
    """Return the total stride of each symbol, i.e. the largest divisor in its floor divisions."""
    strides: dict[str, int] = {}
    for quotient in _iterate_quotients(graph):
        dividend, divisor = quotient.args
        for symbol in dividend.symbols():
            strides[symbol] = max(strides.get(symbol, 1), divisor.number or 1)
    return strides


def _iterate_quotients(graph: Graph) -> Iterator[DimFunction]:
    """Yield the floor divisions in the shapes of all values of a graph."""
    values = (*graph.inputs.values(), *(r for _, results in graph.nodes for r in results))
    dims = (d for v in values for d in v.shape)
    return (
        function
        for dim in dims
        for function in dim.iterate_opaque_functions()
        if function.fn == "//"
    )


@lru_cache(maxsize=8)
def collect_dim_constraints(graph: Graph) -> frozenset[DimConstraint]:
    """Collect all constraints on the axis sizes of a graph, expressed in free symbolic dimensions.
    The result is cached, because the caller chooses sizes many times for the same graph.
    """
    counts = {*graph.length_equations.values()}
    counts |= {limit.max_positions - limit.length for limit in iterate_position_limits(graph)}
    # an attribute may be negative, but all divisions in it must be exact and have nonzero divisors
    attributes: set[Dim] = set()
    for node, results in iterate_all_nodes(graph):
        counts.update(list_nonnegative_dims(node), *(r.shape for r in results))
        attributes.update(node.op.iterate_attribute_dims())
    constraints = (
        DimConstraint(dim.substitute(graph.length_equations), is_position_count)
        for dims, is_position_count in ((counts, True), (attributes, False))
        for dim in dims
    )
    # integers and single symbols are not constraints
    return frozenset(d for d in constraints if d.length.number is None and d.length.name is None)


def _is_coupled(symbol: str, open_constraints: Iterable[DimConstraint]) -> bool:
    """Return True if a constraint combines `symbol` with other symbols."""
    symbol_sets = [d.length.symbols() for d in open_constraints]
    return any(symbol in symbols and len(symbols) > 1 for symbols in symbol_sets)


def _iterate_nearby_lengths(
    preferred_length: int, radius: int, min_length: int, max_length: int
) -> Iterator[int]:
    """Yield the preferred size, then larger sizes, then smaller sizes."""
    yield from range(preferred_length, min(preferred_length + radius, max_length) + 1)
    yield from range(preferred_length - 1, max(preferred_length - radius, min_length) - 1, -1)


def _search_lengths(
    symbols: list[str],
    candidate_lengths: Mapping[str, list[int]],
    open_constraints: Iterable[DimConstraint],
) -> dict[str, int] | None:
    """Return the first sizes found that satisfy all constraints, or None after MAX_TRIES steps."""
    # check a constraint as soon as all its symbols have sizes, to prune the search early
    constraints_by_index: list[list[DimConstraint]] = [[] for _ in symbols]
    for constraint in open_constraints:
        last_index = max(map(symbols.index, constraint.length.symbols()))
        constraints_by_index[last_index].append(constraint)
    sizes: dict[str, int] = {}
    stack, remaining_tries = [iter(candidate_lengths[symbols[0]])], MAX_TRIES
    while stack and remaining_tries:
        remaining_tries -= 1
        index = len(stack) - 1
        length = next(stack[-1], None)
        if length is None:
            stack.pop()
            continue
        sizes[symbols[index]] = length
        if all(d.is_satisfied(sizes) for d in constraints_by_index[index]):
            if index + 1 == len(symbols):
                return sizes
            stack.append(iter(candidate_lengths[symbols[index + 1]]))
    return None


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
