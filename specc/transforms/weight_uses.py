"""Collect how each weight is used: in matrix products, as embedding table, in loops.

    linear(x, w, b)                        w lies as [out, in]
    matmul(x, w)                           as [in, out]
    einsum("b n i, i o -> b n o", x, w)    as its letters say

A weight can be quantized where only linear layers and token embeddings read it, transposed or
sliced along its output features, and a stack of matrices where experts take one each.
Position tables are small and stay as they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op


class MatrixProduct(NamedTuple):
    """Operand numbers of activations and matrix, and whether that is `[in, out]`."""

    rows: int
    matrix: int
    is_transposed: bool


LINEAR_PRODUCT = MatrixProduct(rows=0, matrix=1, is_transposed=False)


def find_matrix_product(node: Node) -> MatrixProduct | None:
    """Return the matrix product that a node computes, or None."""
    match node.op:
        case ops.Linear():
            return LINEAR_PRODUCT
        case ops.MatMul():
            right = node.args[1]
            # with more axes it is a separate matrix for each of these
            flat = right is not None and right.rank == 2
            return MatrixProduct(rows=0, matrix=1, is_transposed=True) if flat else None
        case ops.Einsum(equation):
            return _parse_einsum_product(equation)
    return None


def _parse_einsum_product(equation: str) -> MatrixProduct | None:
    """Return the matrix product that an einsum of two operands computes: over the last axis of
    the activations, whose other axes precede the matrix's in the result.
    """
    left, right = equation.split("->")
    terms = [term.split() for term in left.split(",")]
    for rows, matrix in ((0, 1), (1, 0)) if len(terms) == 2 else ():
        if len(terms[matrix]) == 2 and terms[rows]:
            is_transposed = _is_matrix_transposed(terms[rows], terms[matrix], right.split())
            if is_transposed is not None:
                return MatrixProduct(rows, matrix, is_transposed)
    return None


def _is_matrix_transposed(rows: list[str], matrix: list[str], result: list[str]) -> bool | None:
    """Return whether a product reads its matrix transposed; None if it is no such product."""
    *lead, summed = rows
    first, second = matrix
    is_transposed = first == summed
    other = second if is_transposed else first
    fits = summed in (first, second) and other not in rows
    return is_transposed if fits and result == [*lead, other] else None


TOKEN_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll, ops.Concat, ops.StridedSlice),
    *(ops.Delay, ops.Where, ops.Arith, ops.Pad),
)
"""Ops whose results are token ids if one operand is."""


STACKED_RANK = 3
"""Rank of stacked matrices."""


@dataclass(kw_only=True)
class WeightUses:
    """The places where a weight is read, by scope.

    `linear` are linear layers; `is_transposed` says whether they read the weight as `[in, out]`,
    or not. `table` are embedding lookups. With `looped` it is read in a loop body, with `routed`
    in experts, with `cut` in part. `other` are ops that need it unquantized.
    """

    linear: list[str] = field(default_factory=list)
    is_transposed: set[bool] = field(default_factory=set)
    table: list[str] = field(default_factory=list)
    looped: bool = False
    routed: bool = False
    cut: bool = False
    other: list[str] = field(default_factory=list)

    @property
    def scopes(self) -> list[str]:
        """Return every scope that reads the weight."""
        return list(dict.fromkeys(scope for scope in (*self.linear, *self.table) if scope))

    def merge_uses(self, also: "WeightUses") -> "WeightUses":
        """Return the uses of a weight under both of its names."""
        own, other = vars(self), vars(also)
        merged = {k: v + other[k] if isinstance(v, list) else v | other[k] for k, v in own.items()}
        return WeightUses(**merged)


@dataclass(frozen=True)
class WeightView:
    """A weight as seen through transposes and slices, or a `stack` of one per expert."""

    name: str
    flipped: bool = False
    cut: frozenset[int] = frozenset()
    stack: bool = False


WeightViews: TypeAlias = Mapping[Value, WeightView]


def collect_weight_uses(graph: Graph) -> dict[str, WeightUses]:
    """Return the uses of each f32 matrix, and stack of matrices, among the parameters."""
    walk = _WeightUseCollector(
        {n: WeightUses() for n, v in graph.parameters.items() if is_weight_matrix(v)}
    )
    seen = {
        v: WeightView(n, stack=v.rank == STACKED_RANK)
        for n, v in graph.parameters.items()
        if n in walk.found
    }
    walk.graph(graph, seen, _find_token_inputs(graph), "")
    stacks = {sight.name for sight in seen.values() if sight.stack}
    # other weights of rank 3, such as those of convolutions, are not matrices
    return {n: u for n, u in walk.found.items() if n not in stacks or u.routed}


def _find_token_inputs(graph: Graph) -> set[Value]:
    """Return the inputs with token ids: integers below a vocabulary size."""
    below = [n for n, facts in graph.input_facts.items() if facts.upper_bound is not None]
    return {graph.inputs[n] for n in below if is_integer_value(graph.inputs[n])}


def is_weight_matrix(value: Value) -> bool:
    """Return True for an f32 matrix, or a stack of them, of static nonzero shape."""
    lengths = [d.number for d in value.shape]
    return value.dtype == "f32" and len(lengths) in (2, STACKED_RANK) and all(lengths)


@dataclass
class _WeightUseCollector:
    """One walk over a graph and its bodies; `depth` counts open loops, `routes` experts'."""

    found: dict[str, WeightUses]
    depth: int = 0
    routes: int = 0

    def graph(self, graph: Graph, seen: WeightViews, tokens: Iterable[Value], around: str) -> None:
        """Record how the nodes of a graph use the weights in `seen`."""
        here, known = dict(seen), set(tokens)
        for node, results in graph.nodes:
            scope = graph.get_scope(node) or around
            if isinstance(node.op, TOKEN_PRESERVING_OPS) and not known.isdisjoint(node.args):
                known.update(filter(is_integer_value, results))
            if isinstance(node.op, ops.Scan | ops.MixtureOfExperts):
                self._collect_body(node, node.op, here, known, scope)
                continue
            for place, value in enumerate(node.args):
                if value is not None and value in here:
                    shown = self._record_read(node, place, here[value], known, scope)
                    here |= {results[0]: shown} if shown else {}
        self._record_outputs(graph, here)

    def _record_outputs(self, graph: Graph, here: WeightViews) -> None:
        """Record the weights that a graph returns."""
        for value in graph.outputs.values():
            if value in here:
                self.found[here[value].name].other.append("a result")

    def _record_read(
        self, node: Node, place: int, sight: WeightView, tokens: set[Value], scope: str
    ) -> WeightView | None:
        """Return the view that a node makes of a weight; None if it reads, and records, it."""
        uses = self.found[sight.name]
        # The axes of a stack differ: only experts read them.
        if sight.stack:
            uses.other.append(format_op_location(node.op, scope))
            return None
        if (shown := view_weight(node, sight)) is not None:
            return shown
        product = find_matrix_product(node)
        match node.op:
            case _ if product and place == product.matrix and _has_whole_rows(product, sight):
                uses.linear.append(scope)
                uses.is_transposed.add(sight.flipped != product.is_transposed)
            case ops.Embedding() if place == 1 and _is_token_lookup(node, sight, tokens):
                uses.table.append(scope)
                uses.is_transposed.add(False)
            case _:
                uses.other.append(format_op_location(node.op, scope))
        uses.looped |= self.depth > 0
        uses.routed |= self.routes > 0
        uses.cut |= bool(sight.cut)
        return None

    def _collect_body(
        self,
        node: Node,
        op: ops.Scan | ops.MixtureOfExperts,
        here: WeightViews,
        tokens: set[Value],
        scope: str,
    ) -> None:
        """Visit a loop, with captures under their names inside."""
        given = op.split_operands(node.operands)
        inside = dict(zip(op.body.inputs.values(), given.body_operands, strict=True))
        fixed, stacked = set(given.captured), set(given.stacked)
        shown = _map_body_views(inside, here, fixed, stacked)
        for value in node.operands:
            # Scanned and carried values change per iteration: no weight there. An element of a
            # stack is not a weight of its own either.
            if value not in here or value in fixed:
                continue
            if not (value in stacked and here[value].stack):
                self.found[here[value].name].other.append(format_op_location(op, scope))
        routed = isinstance(op, ops.MixtureOfExperts)
        self.depth += not routed
        self.routes += routed
        tokens_in = {inner for inner, a in inside.items() if a in tokens}
        self.graph(op.body, shown, tokens_in, scope)
        self.depth -= not routed
        self.routes -= routed


def _map_body_views(
    inside: Mapping[Value, Value], here: WeightViews, fixed: set[Value], stacked: set[Value]
) -> dict[Value, WeightView]:
    """Return the views of weights that a body reads as captures or as elements of stacks."""
    return {
        inner: replace(here[outer], stack=False) if outer in stacked else here[outer]
        for inner, outer in inside.items()
        if outer in here and (outer in fixed or (here[outer].stack and outer in stacked))
    }


def view_weight(node: Node, sight: WeightView) -> WeightView | None:
    """Return the view of a weight after a transpose or slice; None for other ops."""
    match node.op:
        case ops.Transpose((1, 0)):
            return WeightView(sight.name, not sight.flipped, sight.cut)
        case ops.Slice(axis):
            # the axis of the weight itself, which is the other one if it is transposed
            cut = sight.cut | {axis ^ int(sight.flipped)}
            return WeightView(sight.name, sight.flipped, cut)
    return None


def format_op_location(op: Op, scope: str) -> str:
    """Format an op with its scope: `embedding` in `wpe`."""
    return f"`{op.name}` in `{scope}`" if scope else f"`{op.name}`"


def is_integer_value(value: Value) -> bool:
    """Return True for integer values."""
    return value.dtype in ("i64", "i32")


def _has_whole_rows(product: MatrixProduct, sight: WeightView) -> bool:
    """Return True if a matrix is sliced along its output features only."""
    return sight.cut <= {int(sight.flipped != product.is_transposed)}


def _is_token_lookup(node: Node, sight: WeightView, tokens: set[Value]) -> bool:
    return node.args[0] in tokens and not sight.flipped and not sight.cut
