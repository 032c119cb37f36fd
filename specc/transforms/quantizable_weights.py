"""Collect the uses of each weight, to determine whether the weight can be quantized.

    linear(x, w, b)                        w is [out, in]
    matmul(x, w)                           w is [in, out]
    einsum("b n i, i o -> b n o", x, w)    the axis names determine the layout of w

A weight can be quantized if only linear layers and token embeddings use it, possibly transposed or
sliced along its output features. A stacked weight can be quantized if each expert uses one matrix.
Position embeddings are small and are not quantized.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op


class MatMulOperandIndices(NamedTuple):
    """Operand indices of a MatMul's activations and matrix (`[in, out]` if `is_transposed`)."""

    activation_index: int
    matrix_index: int
    is_transposed: bool


LINEAR_PRODUCT = MatMulOperandIndices(activation_index=0, matrix_index=1, is_transposed=False)


def match_matmul(node: Node) -> MatMulOperandIndices | None:
    """Match a MatMul of activations and a single matrix. Return the operand indices, or None."""
    match node.op:
        case ops.Linear():
            return LINEAR_PRODUCT
        case ops.MatMul():
            right = node.args[1]
            # an operand of rank greater than 2 is a batch of matrices
            is_matrix = right is not None and right.rank == 2
            return (
                MatMulOperandIndices(activation_index=0, matrix_index=1, is_transposed=True)
                if is_matrix
                else None
            )
        case ops.Einsum(equation):
            return _parse_einsum_matmul(equation)
    return None


def _parse_einsum_matmul(equation: str) -> MatMulOperandIndices | None:
    """Match an einsum of two operands that computes a MatMul. Return the operand indices of the
    activations and the matrix, or None. The einsum must contract the last axis of the activations.
    In the result, all other axes of the activations must precede the axis of the matrix, in their
    original order.
    """
    inputs, result = equation.split("->")
    terms = [term.split() for term in inputs.split(",")]
    for activations, matrix in ((0, 1), (1, 0)) if len(terms) == 2 else ():
        if len(terms[matrix]) == 2 and terms[activations]:
            is_transposed = _match_transposed_matrix(
                terms[activations], terms[matrix], result.split()
            )
            if is_transposed is not None:
                return MatMulOperandIndices(activations, matrix, is_transposed)
    return None


def _match_transposed_matrix(
    activation_axes: list[str], matrix_axes: list[str], result_axes: list[str]
) -> bool | None:
    """Return True if an einsum's matrix is `[out, in]`, and None if the einsum is not a MatMul."""
    *leading_axes, contracted_axis = activation_axes
    first, second = matrix_axes
    is_transposed = first == contracted_axis
    other = second if is_transposed else first
    is_product = contracted_axis in (first, second) and other not in activation_axes
    return is_transposed if is_product and result_axes == [*leading_axes, other] else None


TOKEN_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll, ops.Concat, ops.StridedSlice),
    *(ops.Delay, ops.Where, ops.Arith, ops.Pad),
)
"""Ops whose integer results are token ids if one of their operands contains token ids."""


STACKED_RANK = 3
"""The rank of a stack of matrices."""


@dataclass(kw_only=True)
class WeightUses:
    """The uses of a weight, grouped by scope.

    `linear_scopes` contains the scopes of linear layers that use the weight. `orientations`
    contains True if a layer uses the weight as `[in, out]`, and False if a layer uses it as `[out,
    in]`. `embedding_scopes` contains the scopes of embedding lookups in the weight. `is_in_loop`,
    `is_read_by_experts` and `is_sliced` are true if a loop body, an expert or a slice uses the
    weight. `unquantizable_uses` contains the ops that use the weight but do not support quantized
    weights.
    """

    linear_scopes: list[str] = field(default_factory=list)
    orientations: set[bool] = field(default_factory=set)
    embedding_scopes: list[str] = field(default_factory=list)
    is_in_loop: bool = False
    is_read_by_experts: bool = False
    is_sliced: bool = False
    unquantizable_uses: list[str] = field(default_factory=list)

    @property
    def scopes(self) -> list[str]:
        """Return all scopes in which the weight is used."""
        return list(
            dict.fromkeys(scope for scope in (*self.linear_scopes, *self.embedding_scopes) if scope)
        )

    def merge_uses(self, other_uses: "WeightUses") -> "WeightUses":
        """Merge the uses of a weight with the uses of the same weight under another name."""
        fields, other_fields = vars(self), vars(other_uses)
        merged = {
            k: v + other_fields[k] if isinstance(v, list) else v | other_fields[k]
            for k, v in fields.items()
        }
        return WeightUses(**merged)


@dataclass(frozen=True)
class WeightView:
    """A transposed or sliced view of a weight, with one matrix per expert if `is_stacked`."""

    name: str
    is_transposed: bool = False
    sliced_axes: frozenset[int] = frozenset()
    is_stacked: bool = False


WeightViews: TypeAlias = Mapping[Value, WeightView]


def collect_weight_uses(graph: Graph) -> dict[str, WeightUses]:
    """Return the uses of each parameter that is an f32 matrix or a stack of f32 matrices."""
    collector = _WeightUseCollector(
        {n: WeightUses() for n, v in graph.parameters.items() if is_weight_matrix(v)}
    )
    views = {
        v: WeightView(n, is_stacked=v.rank == STACKED_RANK)
        for n, v in graph.parameters.items()
        if n in collector.uses_by_weight
    }
    # inputs that contain token ids are integers that are smaller than a vocabulary size
    bounded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.upper_bound is not None]
    collector.collect_graph(graph, views, filter(is_integer_value, bounded), "")
    # other weights of rank 3, such as convolution weights, are not stacks of matrices
    return {
        n: uses
        for n, uses in collector.uses_by_weight.items()
        if graph.parameters[n].rank != STACKED_RANK or uses.is_read_by_experts
    }


def is_weight_matrix(value: Value) -> bool:
    """Return True for a float32 matrix or stack of matrices with a static, nonempty shape."""
    lengths = [d.number for d in value.shape]
    return value.dtype == "f32" and len(lengths) in (2, STACKED_RANK) and all(lengths)


@dataclass
class _WeightUseCollector:
    """A visitor that collects weight uses in a graph and its bodies. The depths count the loop
    bodies and expert bodies that enclose the current graph.
    """

    uses_by_weight: dict[str, WeightUses]
    loop_depth: int = 0
    expert_depth: int = 0

    def collect_graph(
        self, graph: Graph, views: WeightViews, tokens: Iterable[Value], outer_scope: str
    ) -> None:
        """Record how the nodes of a graph use the weights in `views`."""
        known_views, token_ids = dict(views), set(tokens)
        for node, results in graph.nodes:
            scope = graph.get_scope(node) or outer_scope
            if isinstance(node.op, TOKEN_PRESERVING_OPS) and not token_ids.isdisjoint(node.args):
                token_ids.update(filter(is_integer_value, results))
            if isinstance(node.op, ops.Scan | ops.MixtureOfExperts):
                self._collect_body(node, node.op, known_views, token_ids, scope)
                continue
            for operand_index, value in enumerate(node.args):
                if value is not None and value in known_views:
                    view = self._record_read(
                        node, operand_index, known_views[value], token_ids, scope
                    )
                    known_views |= {results[0]: view} if view else {}
        self._record_outputs(graph, known_views)

    def _record_outputs(self, graph: Graph, views: WeightViews) -> None:
        """Record weights that are outputs of a graph as unquantizable."""
        for value in graph.outputs.values():
            if value in views:
                self.uses_by_weight[views[value].name].unquantizable_uses.append("a result")

    def _record_read(
        self, node: Node, operand_index: int, view: WeightView, tokens: set[Value], scope: str
    ) -> WeightView | None:
        """Record that a node uses the weight of `view` as the operand `operand_index`, and return
        None. If the node only transposes or slices the weight, return the new view instead.
        """
        uses = self.uses_by_weight[view.name]
        # A stack of weights has an additional axis, so only experts can use it.
        if view.is_stacked:
            uses.unquantizable_uses.append(format_op_location(node.op, scope))
            return None
        if (new_view := propagate_weight_view(node, view)) is not None:
            return new_view
        product = match_matmul(node)
        match node.op:
            case _ if (
                product
                and operand_index == product.matrix_index
                # the weight must not be sliced along its input features
                and view.sliced_axes <= {int(view.is_transposed != product.is_transposed)}
            ):
                uses.linear_scopes.append(scope)
                uses.orientations.add(view.is_transposed != product.is_transposed)
            case ops.Embedding() if (
                operand_index == 1
                and node.args[0] in tokens
                and not (view.is_transposed or view.sliced_axes)
            ):
                uses.embedding_scopes.append(scope)
                uses.orientations.add(False)
            case _:
                uses.unquantizable_uses.append(format_op_location(node.op, scope))
        uses.is_in_loop |= self.loop_depth > 0
        uses.is_read_by_experts |= self.expert_depth > 0
        uses.is_sliced |= bool(view.sliced_axes)
        return None

    def _collect_body(
        self,
        node: Node,
        op: ops.Scan | ops.MixtureOfExperts,
        views: WeightViews,
        tokens: set[Value],
        scope: str,
    ) -> None:
        """Record how the body of a loop or of experts uses weights that are inputs of the body."""
        operands = op.split_operands(node.operands)
        body_values = dict(zip(op.body.inputs.values(), operands.body_operands, strict=True))
        captured, stacked = set(operands.captured), set(operands.stacked_operands)
        body_views = _map_body_views(body_values, views, captured, stacked)
        for value in node.operands:
            # Scanned values, such as slices of a stacked weight, and loop-carried values change in
            # each iteration, so they are not weights.
            if value not in views or value in captured:
                continue
            if not (value in stacked and views[value].is_stacked):
                self.uses_by_weight[views[value].name].unquantizable_uses.append(
                    format_op_location(op, scope)
                )
        is_routed = isinstance(op, ops.MixtureOfExperts)
        self.loop_depth += not is_routed
        self.expert_depth += is_routed
        body_tokens = {inner for inner, a in body_values.items() if a in tokens}
        self.collect_graph(op.body, body_views, body_tokens, scope)
        self.loop_depth -= not is_routed
        self.expert_depth -= is_routed


def _map_body_views(
    body_values: Mapping[Value, Value],
    views: WeightViews,
    captured_values: set[Value],
    stacked_values: set[Value],
) -> dict[Value, WeightView]:
    """Return the weight views that are inputs of a body: captured weights and slices of stacked
    weights. `body_values` maps the inputs of the body to the operands of the loop.
    """
    return {
        inner: replace(views[outer], is_stacked=False) if outer in stacked_values else views[outer]
        for inner, outer in body_values.items()
        if outer in views
        and (outer in captured_values or (views[outer].is_stacked and outer in stacked_values))
    }


def propagate_weight_view(node: Node, view: WeightView) -> WeightView | None:
    """Return the view that a transpose or slice of a weight creates, or None for other ops."""
    match node.op:
        case ops.Transpose((1, 0)):
            return WeightView(view.name, not view.is_transposed, view.sliced_axes)
        case ops.Slice(axis):
            # a slice of a transposed view slices the other axis of the stored weight
            sliced_axes = view.sliced_axes | {axis ^ int(view.is_transposed)}
            return WeightView(view.name, view.is_transposed, sliced_axes)
    return None


def format_op_location(op: Op, scope: str) -> str:
    """Format an op with its scope, such as `embedding` in `wpe`."""
    return f"`{op.name}` in `{scope}`" if scope else f"`{op.name}`"


def is_integer_value(value: Value) -> bool:
    """Return True if the elements of a value are integers."""
    return value.dtype in ("i64", "i32")


def find_underlying_weight(value: Value | None) -> Value | None:
    """Return the weight from which `value` is sliced or transposed, or `value` itself."""
    while value is not None and value.node is not None:
        if not isinstance(value.node.op, ops.Slice | ops.Transpose):
            break
        value = value.node.args[0]
    return value
