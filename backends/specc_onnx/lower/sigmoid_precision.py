"""Find the sigmoids that must have a small relative error.

ONNX Runtime's `Sigmoid` kernel has an absolute error of about 1e-7. Therefore, the relative error
is up to 24 % at -10, and the result is 0 below -18. A gate of an MLP or of a convolution may use
the `Sigmoid` kernel, because the gated values are added to values of moderate magnitude. All other
sigmoids are computed as `1 / (1 + exp(-x))`, which has a small relative error. The other sigmoids
are normalized, returned, used as divisors, broadcast over several elements, or multiplied by the
result of a loop or of attention, which may have any magnitude.
"""

from collections.abc import Collection, Mapping

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import DTYPES_BY_KIND

SIGMOID_FUNCTIONS = ("sigmoid", "silu", "quick_gelu")
SUMMING_OPS = (
    *(ops.Linear, ops.QuantizedLinear, ops.Conv, ops.ConvTranspose, ops.MixtureOfExperts),
    *(ops.Softmax, ops.MaskedSoftmax, ops.Lstm, ops.Gru, ops.Rnn, ops.QuantizedLstm),
)
"""Ops that add their operands to other values, or use their operands as exponents."""
ELEMENT_OPS = (
    *(ops.Where, ops.Cast, ops.Concat, ops.Slice, ops.StridedSlice, ops.Index, ops.Last),
    *(ops.Dropout, ops.Delay, ops.Pad, ops.MaxPool, ops.AveragePool, ops.Reduce),
)
"""Ops whose results are elements of their operands or have the same magnitude."""
ORDINARY_OPS = (
    *(ops.Linear, ops.QuantizedLinear, ops.Conv, ops.ConvTranspose, ops.Embedding),
    *(ops.QuantizedEmbedding, ops.LayerNorm, ops.RMSNorm, ops.GroupNorm, ops.PatchEmbedding),
)
"""Ops whose results have a moderate magnitude (linear layers, embeddings, norms)."""


def find_precision_sensitive_sigmoids(graph: Graph) -> set[Value]:
    """Return the f32 sigmoid, SiLU and quick GELU results that require a small relative error."""
    sigmoids = {results[0] for node, results in graph.nodes if _is_sigmoid(node)}
    if not sigmoids:
        return sigmoids
    ordinary_values, users = _find_ordinary_values(graph), graph.collect_users()
    is_tolerant = {node: True for node, _ in graph.nodes}
    outputs = {v for v in graph.outputs.values() if not _is_concat_buffer(graph, v)}
    for node, results in reversed(graph.nodes):
        is_tolerant[node] = outputs.isdisjoint(results) and all(
            _is_error_small(user, index, ordinary_values, is_tolerant)
            for result in results
            for user, index in users.get(result, ())
        )
    return {v for v in sigmoids if v.dtype == "f32" and v.node and not is_tolerant[v.node]}


def _is_concat_buffer(graph: Graph, value: Value) -> bool:
    """Return True if a graph output is a state that appends to an input of the graph. The state is
    not treated as an output, because the next step uses the state in the same ops in which the
    current step uses the concatenation. Therefore, a decode step and the full graph compute the
    same sigmoids accurately.
    """
    node = value.node
    while node and isinstance(node.op, (ops.Slice, ops.StridedSlice)):
        value = node.args[0] or value
        node = value.node
    inputs = graph.inputs.values()
    return (
        node is not None and isinstance(node.op, ops.Concat) and any(a in inputs for a in node.args)
    )


def _is_sigmoid(node: Node) -> bool:
    return isinstance(node.op, ops.Pointwise) and node.op.fn in SIGMOID_FUNCTIONS


def _find_ordinary_values(graph: Graph) -> set[Value]:
    """Return parameters, results of `ORDINARY_OPS`, and values computed elementwise from them."""
    ordinary_values = set(graph.parameters.values())
    for node, results in graph.nodes:
        float_operands = [a for a in node.args if a is not None and a.dtype in DTYPES_BY_KIND["f"]]
        is_elementwise = isinstance(node.op, (*ELEMENT_OPS, ops.Pointwise, ops.Arith))
        if isinstance(node.op, ORDINARY_OPS) or (
            (node.op.is_view or is_elementwise) and ordinary_values.issuperset(float_operands)
        ):
            ordinary_values.update(results)
    return ordinary_values


def _is_error_small(
    user: Node, index: int, ordinary_values: Collection[Value], is_tolerant: Mapping[Node, bool]
) -> bool:
    """Return True if a small absolute error of operand `index` remains small in all graph
    outputs.
    """
    op = user.op
    if isinstance(op, ops.Arith) and op.fn == "mul":
        gate, gated_value = user.args[index], user.args[1 - index]
        return (
            gated_value in ordinary_values
            and is_tolerant[user]
            and not _is_broadcast(gate, gated_value)
        )
    if isinstance(op, (*SUMMING_OPS, ops.Arith)):
        return not isinstance(op, ops.Arith) or op.fn in ("add", "sub", "min", "max")
    return (op.is_view or isinstance(op, ELEMENT_OPS)) and is_tolerant[user]


def _is_broadcast(gate: Value | None, gated_value: Value | None) -> bool:
    """Return True if one element of `gate` multiplies several elements of `gated_value`. An error
    in such a gate affects many results, and computing the gate accurately is cheap.
    """
    if gate is None or gated_value is None:
        return False
    shapes = zip(reversed(gate.shape), reversed(gated_value.shape), strict=False)
    return gate.rank < gated_value.rank or any(a == 1 != b for a, b in shapes)
