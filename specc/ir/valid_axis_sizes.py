"""Find sizes of dynamic axes for which a graph is valid: constraints on the sizes (lower bounds,
position tables, slices, exact divisions), and a search for sizes that satisfy the constraints.

Code that chooses the axis sizes with which it runs a model needs valid sizes. For example, `x[:,
0:30]` and `split(x, into=[n / 2, 2], axis=1)` are undefined for an axis of size 11.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.dim import DIM_FUNCTIONS, Atom, Dim, DimError, DimFunction, min_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.ops.loop import iterate_all_nodes

ROPE_TABLE = "--context-length"
"""The name of the RoPE length limit in messages, which is the option that sets the limit."""


@immutable_dataclass
class PositionLimit:
    """The limit `length <= max_positions` that a position embedding imposes. `table` is None for
    RoPE.
    """

    node: Node
    length: Dim
    max_positions: int
    table: Value | None


def iterate_position_limits(graph: Graph) -> Iterator[PositionLimit]:
    """Yield the limits that position embeddings impose on dynamic axis sizes."""
    for node, _ in graph.nodes:
        limit = find_position_limit(node)
        if limit is None:
            continue
        length = limit.length.substitute(graph.length_equations)
        if length.symbols():
            yield PositionLimit(node, length, limit.max_positions, limit.table)


def find_position_limit(node: Node) -> PositionLimit | None:
    """Return the limit that a node imposes if it is a position embedding, otherwise None."""
    match node:
        case Node(ops.Embedding(), (Value() as ids, Value() as table)):
            return _make_position_limit(node, ids, table.shape[0].number, table)
        case Node(ops.Gather(axis), (Value() as sliced_table, Value() as ids)):
            # the slice determines the limit, but the message names the table
            table = sliced_table
            while isinstance(table.op, ops.Slice) and table.node and table.node.first_operand:
                table = table.node.first_operand
            return _make_position_limit(node, ids, sliced_table.shape[axis].number, table)
        case Node(ops.RopeAngles(max_positions=limit), (Value() as ids, *_)) if limit:
            return _make_position_limit(node, ids, limit, None)
    return None


def _make_position_limit(
    node: Node, ids: Value, max_positions: int | None, table: Value | None
) -> PositionLimit | None:
    """Return the limit that a lookup of `ids` in a position table imposes, or None if unknown."""
    maximum = _find_largest_index(ids)
    if max_positions is None or maximum is None:
        return None
    return PositionLimit(node, maximum + 1, max_positions, table)


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
    """Return the largest index after adding or subtracting a constant or an axis size, or None."""
    match offset.node:
        case _ if maximum is None:
            return None
        case Node(ops.Constant(c)):
            return maximum + int(c if fn == "add" else -c)
        case Node(ops.Size(length)):
            return maximum + length if fn == "add" else maximum - length
        case _:
            return None


SEARCH_RADII = (4, 16, 64, 600)
"""The maximum distances from the preferred sizes, in the order in which the search tries them."""

MAX_TRIES = 1_500
"""Maximum number of search steps per radius."""


@immutable_dataclass
class DimConstraint:
    """A dimension whose value must be an integer, and non-negative if it counts positions."""

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
    and all constraints of `graph`. Return None if the search fails. A size that differs from its
    preferred size is never one of `excluded`.
    """
    constraints = [
        d for d in collect_dim_constraints(graph) if d.length.symbols() <= preferred_lengths.keys()
    ]
    if all(d.is_satisfied(preferred_lengths) for d in constraints):
        return dict(preferred_lengths)
    constrained_symbols = {s for d in constraints for s in d.length.symbols()}
    symbols = sorted(constrained_symbols, key=lambda s: (_is_coupled(s, constraints), s))
    # increase the radius of all symbolic dimensions together, so that sizes near the preferred
    # sizes are tried first
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
    """Return each symbol's total stride, which is the largest divisor of its floor divisions."""
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
    The result is cached, because sizes are chosen many times for the same graph.
    """
    counts = {*graph.length_equations.values()}
    counts |= {limit.max_positions - limit.length for limit in iterate_position_limits(graph)}
    # an attribute may be negative, but must not contain a division by zero or with a remainder
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


def list_nonnegative_dims(node: Node) -> tuple[Dim, ...]:
    """Return the dimensions that must be non-negative so that `node` reads no invalid position."""
    if not node.args or node.args[0] is None:
        return ()
    shape = node.args[0].shape
    match node.op:
        case ops.Index(axis=axis, start=start, stop=stop):
            return start, shape[axis] - stop
        case ops.Slice(axis, start, stop):
            return start, stop - start, shape[axis] - stop
        case ops.StridedSlice(axis, start, stop, step):
            return start, stop - start, shape[axis] - stop, step - 1
        case ops.TopK(axis, k):
            return k, shape[axis] - k
        case ops.Pad(axis) as op:
            return op.list_nonnegative_lengths(shape[axis])
        case ops.Resize(axis, sizes):
            return tuple(d - 1 for d in (*sizes, *shape[axis : axis + len(sizes)]))
        case ops.GridSample():
            return tuple(d - 1 for d in shape[2:])
        case ops.Conv() | ops.MaxPool() | ops.AveragePool() as op:
            # the window axes are axis 1 of a sequence, and axes 2 and 3 of an image
            rank = len(op.kernel)
            lengths = shape[rank : 2 * rank]
            return tuple(op.compute_length_slack(length, n) for n, length in enumerate(lengths))
        case ops.DownsamplePaddingMask() as op:
            length = shape[1]
            return (op.compute_length(length) - min_dims(length, 1),)
    return ()


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
    """Return the first sizes that satisfy all constraints, or None after MAX_TRIES steps."""
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


MAX_BOUND_STEPS = 200


def is_never_negative(length: Dim, min_lengths: Mapping[str, int] | None = None) -> bool:
    """Return True if a dimension is provably non-negative for symbolic dimensions with the lower
    bounds `min_lengths` (default 0). Positive terms are bounded from below, and negative terms from
    above.
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
    """Return a non-negative lower bound of a dimension, or None."""
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
    """Return a non-negative lower bound of a factor, or None."""
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
    # the floor division by an integer may have a lower bound above 0
    return a // b if atom.fn == "//" and atom.args[1].number else 0


def _iterate_relaxed_lengths(length: Dim) -> Iterator[Dim]:
    """Yield lower bounds of a dimension, made by replacing one opaque function with a bound."""
    for monomial, c in length.terms:
        # replace one function at a time, because the bound of a product requires bounds of all
        # factors
        match monomial:
            case ((DimFunction() as function, 1),):
                for bound in _bound_function(function, c):
                    yield length + (bound - Dim({monomial: 1})) * c


def _bound_function(function: DimFunction, count: int) -> tuple[Dim, ...]:
    """Return bounds of an opaque function with the coefficient `count`: lower bounds if the
    coefficient is positive, upper bounds if it is negative.
    """
    a, b = function.args
    if count > 0:
        return (a, b) if function.fn == "max" else ()
    match function.fn:
        case "min":
            return a, b
        # quotients and remainders have bounds only if both operands are non-negative
        case "//" | "%" if is_never_negative(a) and is_never_negative(b - 1):
            return (a,) if function.fn == "//" else (a, b - 1)
    return ()


def replace_exact_division(length: Dim) -> Dim:
    """Replace each exact quotient `a / b` with `a // b`. Both are equal if `a / b` is defined."""

    def replace_atom(atom: Atom) -> Dim:
        if isinstance(atom, str):
            return Dim.symbol(atom)
        fn = "//" if atom.fn == "/" else atom.fn
        return DIM_FUNCTIONS[fn](*(replace_exact_division(a) for a in atom.args))

    return length.map_atoms(replace_atom)
