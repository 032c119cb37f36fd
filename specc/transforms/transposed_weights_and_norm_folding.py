"""Store weights of linear layers as `[in, out]`, as some checkpoints do, and find norms whose
weights can be folded into the following linear layers (`--fold-norms`).

    y = linear(x, w:[out, in])    →    y = linear(x, transpose(w:[in, out]))

MatMul supports both layouts, so weights that a checkpoint stores as `[in, out]` need not be
transposed or copied.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Node, NodeOperands, NodeResults, Value
from specc.ir.op import Op
from specc.ir.ops.quantized import FoldedNorm
from specc.ir.types import Type
from specc.transforms.graph_rewrite import rewrite_graph_into_builder
from specc.transforms.quantizable_weights import find_underlying_weight

MATRIX_TRANSPOSE = ops.Transpose((1, 0))


def find_linear_weights(graph: Graph) -> frozenset[str]:
    """Return the names of parameters that are used only by linear layers."""
    users, outputs = graph.collect_users(), set(graph.outputs.values())
    return frozenset(
        name
        for name, value in graph.parameters.items()
        if value not in outputs
        and all(_find_matrix_operand(node) == n for node, n in users.get(value, ()))
    )


def _find_matrix_operand(node: Node) -> int | None:
    """Return the index of the linear layer operand that may be stored transposed, or None."""
    return 1 if isinstance(node.op, ops.Linear) else None


def transpose_stored_weights(graph: Graph, names: Collection[str]) -> Graph:
    """Return `graph` with matrices `names` stored as `[in, out]`, each followed by a transpose."""
    builder = GraphBuilder()
    facts = {
        name: replace(f, type=Type(f.type.dtype, f.type.shape[::-1])) if name in names else f
        for name, f in graph.parameter_facts.items()
    }
    new_values = builder.copy_inputs_and_parameters(replace(graph, parameter_facts=facts))
    for name, value in graph.parameters.items():
        if name in names:
            new_values[value] = builder.add_op(MATRIX_TRANSPOSE, new_values[value])
    return rewrite_graph_into_builder(graph, builder, new_values)


def restore_weight_layout(graph: Graph) -> Graph:
    """Undo `transpose_stored_weights`: return `graph` with the layout `[out, in]` for weights that
    only linear layers use. Architectures are compared in the layout `[out, in]`, regardless of the
    checkpoint's layout.
    """
    types = _find_transposed_types(graph)
    if not types:
        return graph
    new_builder = GraphBuilder()
    parameters = {
        n: replace(facts, type=types.get(n, facts.type))
        for n, facts in graph.parameter_facts.items()
    }
    new_values = new_builder.copy_inputs_and_parameters(replace(graph, parameter_facts=parameters))
    stored_weights = {new_values[graph.parameters[name]] for name in types}

    def restore_layout(builder: GraphBuilder, op: Op, args: NodeOperands) -> NodeResults | None:
        first = args[0] if args else None
        return (first,) if op == MATRIX_TRANSPOSE and first in stored_weights else None

    return rewrite_graph_into_builder(graph, new_builder, new_values, [restore_layout])


def _find_transposed_types(graph: Graph) -> dict[str, Type]:
    """Return the `[out, in]` type of each weight that only linear layers use, always transposed."""
    transposes = {n.args[0]: r[0] for n, r in graph.nodes if n.op == MATRIX_TRANSPOSE}
    other_reads: set[Value | None] = {*graph.outputs.values()}
    for node, _ in graph.nodes:
        other_reads.update(_iterate_other_operands(node, transposes))
    only_transposed = {v: r for v, r in transposes.items() if not other_reads & {v, r}}
    return {n: only_transposed[v].type for n, v in graph.parameters.items() if v in only_transposed}


def _iterate_other_operands(
    node: Node, transposed: Container[Value | None]
) -> Iterator[Value | None]:
    """Yield the operands of a node, except the matrix of a transpose or of a linear layer."""
    is_transpose = node.op == MATRIX_TRANSPOSE
    # If a linear layer also uses a weight without a transpose, the weight is also yielded.
    matrix_index = 0 if is_transpose else _find_matrix_operand(node)
    for n, operand in enumerate(node.args):
        if n != matrix_index or (operand in transposed and not is_transpose):
            yield operand


def find_foldable_norms(
    graph: Graph, ties: Mapping[str, str], quantized_names: Container[str]
) -> tuple[FoldedNorm, ...]:
    """Return the norms that can be folded into linear layers. Every user of the norm must be a
    linear layer whose weight is in `quantized_names` and has no other user. Norms in front of tied
    weights (`ties`) are excluded, because the fold would also change the tied parameter.
    """
    users = _ValueUsers(graph, frozenset(ties) | frozenset(ties.values()), quantized_names)
    folds = (users.find_norm_fold(node, result) for node, (result, *_) in graph.nodes)
    return tuple(fold for fold in folds if fold)


class _ValueUsers:
    """The users of each value of a graph, and the weights into which norms may be folded."""

    def __init__(self, graph: Graph, tied: frozenset[str], quantized_names: Container[str]) -> None:
        self.quantized_names = quantized_names
        users = graph.collect_users().items()
        self.users_by_value = {value: [node for node, _ in uses] for value, uses in users}
        self.outputs = set(graph.outputs.values())
        self.names = {v: n for n, v in graph.parameters.items() if n not in tied}
        self.results = {node: result for node, (result, *_) in graph.nodes}

    def find_norm_fold(self, norm: Node, result: Value) -> FoldedNorm | None:
        """Return how to fold a norm's weight into linear layers, or None if that is impossible."""
        if not isinstance(norm.op, ops.LayerNorm | ops.RMSNorm) or result in self.outputs:
            return None
        # a norm without a weight cannot be folded, even if it has a bias
        parameters = [a for a in norm.args[1:] if a is not None]
        if not parameters or norm.args[1] is None:
            return None
        if not self._has_only_reader(parameters, norm):
            return None
        weights = self._find_linear_weights(result)
        if not weights:
            return None
        names = [self.names[a] for a in parameters]
        return FoldedNorm(names[0], "".join(names[1:]), tuple(weights.items()))

    def _has_only_reader(self, parameters: Sequence[Value], norm: Node) -> bool:
        """Return True if only `norm` uses `parameters`, so that folding affects no other node."""
        return all(a in self.names and self.users_by_value[a] == [norm] for a in parameters)

    def _find_linear_weights(self, result: Value) -> dict[str, bool] | None:
        """Return the names of the weights by which linear layers multiply `result`, each with a
        flag that is True for a transposed weight. Return None if `result` has other users or a
        weight is used in both layouts.
        """
        weights: dict[str, bool] = {}
        for user in self.users_by_value.get(result, ()):
            weight = self._get_weight(user, result)
            if weight is None:
                return None
            name, is_transposed = weight
            if weights.setdefault(name, is_transposed) != is_transposed:
                return None
        return weights

    def _get_weight(self, user: Node, result: Value) -> tuple[str, bool] | None:
        """Return the name of the weight by which a linear layer multiplies `result`, and a flag
        that is True if the weight is transposed. Return None for unquantized weights, other kinds
        of users, and weights that have additional users.
        """
        if not isinstance(user.op, ops.Linear) or user.args[0] is not result:
            return None
        value = find_underlying_weight(user.args[1])
        # a product of `result` with itself is not linear
        if value is None or value not in self.names or result in user.args[1:]:
            return None
        if self.names[value] not in self.quantized_names:
            return None
        is_transposed = self._match_transposed_view(user.args[1])
        if is_transposed is None or not self._is_only_reader(value, result):
            return None
        return self.names[value], is_transposed

    def _match_transposed_view(self, view: Value | None) -> bool | None:
        """Return True for a transposed weight, False for an untransposed weight, otherwise None."""
        is_transposed = False
        while view is not None and view.node is not None:
            # a slice of a weight is neither a weight nor a transposed weight
            if not isinstance(view.node.op, ops.Transpose) or view in self.outputs:
                return None
            is_transposed, view = not is_transposed, view.node.args[0]
        return is_transposed

    def _is_only_reader(self, weight: Value, result: Value) -> bool:
        """Return True if only linear layers with the input `result` use `weight`."""
        for user in self.users_by_value.get(weight, ()):
            if isinstance(user.op, ops.Transpose):
                if not self._is_only_reader(self.results[user], result):
                    return False
            elif not isinstance(user.op, ops.Linear) or user.args[0] is not result:
                return False
        return weight not in self.outputs
