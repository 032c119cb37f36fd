"""Count multiply-adds and parameters as formulas of symbolic dimensions.

A multiply-add counts as one operation. Elementwise ops are not counted, because they are
memory-bound.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from specc.analysis.local_attention_plan import BlockedAttentionPlan
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_thousands
from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node
from specc.ir.op import Op
from specc.ir.types import Type

CostFunction = Callable[[Any, list[Type]], Dim]


def _count_quantized_linear(op: ops.QuantizedLinear, types: list[Type]) -> Dim:
    # for every weight layout, the last axis of the result contains the output features
    (result_type, *_) = op.infer_result_types(*types)
    return multiply_dims(types[0].shape) * result_type.shape[-1]


def _count_matmul(op: ops.MatMul, types: list[Type]) -> Dim:
    a, b = types[0].shape, types[1].shape
    # An operand without leading axes is multiplied with every matrix of the other operand.
    leading_shape = max((a[:-2], b[:-2]), key=len)
    return multiply_dims(leading_shape) * multiply_dims(a[-2:]) * b[-1]


def _count_attention(op: ops.Attend, types: list[Type]) -> Dim:
    b, h, q, d = types[0].shape
    keys = types[1].shape[2]
    value_width = types[2].shape[3]
    # Each query-key pair costs one dot product over the key features, and one multiply-add for each
    # value feature.
    return b * h * q * keys * (d + value_width)


def _count_window_products(op: ops.PatchEmbedding | ops.Conv, types: list[Type]) -> Dim:
    """Count one dot product of a filter with the input per output element. The first axis of a
    convolution weight indexes the filters. Each filter reads the input channels of its group.
    """
    (result_type, *_) = op.infer_result_types(*types[:2], None)
    return multiply_dims(result_type.shape) * multiply_dims(types[1].shape[1:])


def _count_einsum(op: ops.Einsum, types: list[Type]) -> Dim:
    # an einsum iterates over every axis label, including summed labels
    sizes: dict[str, Dim] = {}
    operands = op.equation.split("->")[0].split(",")
    for names, type in zip(operands, types, strict=True):
        sizes.update(zip(names.split(), type.shape, strict=True))
    return multiply_dims(sizes.values())


def _count_scan(op: ops.Scan, types: list[Type]) -> Dim:
    iteration_count = op.split_operands(types).scanned[0].shape[op.axis]
    return iteration_count * sum_dims(count_multiply_adds(n) for n, _ in op.body.nodes)


def _count_mixture_of_experts(op: ops.MixtureOfExperts, types: list[Type]) -> Dim:
    """Count the multiply-adds of all (token, selected expert) pairs."""
    token_count = multiply_dims(op.split_operands(types).ids.shape)
    body_cost = sum_dims(count_multiply_adds(n) for n, _ in op.body.nodes)
    return body_cost.substitute({op.token_count_symbol: token_count})


def _count_recurrent(op: ops.RecurrentLayer, types: list[Type]) -> Dim:
    b, n, input_size = types[0].shape
    # The recurrent weight matrix contains the weights of all gates. In an LSTM with a projection,
    # the recurrent size is smaller than the gate size.
    gates, recurrent_size = types[2].shape
    return b * n * gates * (input_size + recurrent_size)


def _count_lstm(op: ops.Lstm, types: list[Type]) -> Dim:
    b, n, _ = types[0].shape
    hidden = divide_dims_exactly(types[1].shape[0], 4)
    projection = (types[2].shape[1], hidden)
    # `types` does not contain absent operands, so the projection is identified by its shape.
    projection_cost = (
        b * n * multiply_dims(projection) if types[-1].shape == projection else Dim.from_value(0)
    )
    return _count_recurrent(op, types) + projection_cost


COST_FUNCTIONS: Mapping[type[Op], CostFunction] = {
    ops.Linear: lambda op, t: multiply_dims(t[0].shape) * t[1].shape[0],
    ops.QuantizedLinear: _count_quantized_linear,
    ops.MatMul: _count_matmul,
    ops.WeightedSum: lambda op, t: multiply_dims(t[0].shape) * t[1].shape[-1],
    ops.Attend: _count_attention,
    ops.PatchEmbedding: _count_window_products,
    ops.Conv: _count_window_products,
    # In a transposed convolution, every input element is multiplied by all elements of one filter.
    ops.ConvTranspose: lambda op, t: multiply_dims((*t[0].shape, *t[1].shape[1:])),
    ops.Einsum: _count_einsum,
    ops.Scan: _count_scan,
    ops.MixtureOfExperts: _count_mixture_of_experts,
    ops.Rnn: _count_recurrent,
    ops.Gru: _count_recurrent,
    ops.Lstm: _count_lstm,
    ops.QuantizedLstm: lambda op, t: (
        multiply_dims(t[0].shape[:2]) * (multiply_dims(t[1].shape) + multiply_dims(t[2].shape))
    ),
}
"""The cost function of each op that performs multiply-adds. A test checks that none is missing."""


def count_blocked_multiply_adds(node: Node, plan: BlockedAttentionPlan) -> Dim:
    """Return the multiply-adds of an attention node that is computed as blocked attention."""
    assert isinstance(node.op, ops.Attend)
    query = node.op.query(node).shape
    keys = node.op.key(node).shape[2]
    width = query[3] + node.op.value(node).shape[3]
    return multiply_dims(query[:3]) * plan.compute_mean_keys_per_query(keys) * width


def count_multiply_adds(node: Node) -> Dim:
    """Return the multiply-adds of one node, or 0 for uncounted ops such as elementwise ops."""
    cost = COST_FUNCTIONS.get(type(node.op))
    return cost(node.op, [a.type for a in node.operands]) if cost else Dim.from_value(0)


def count_parameters(graph: Graph) -> Dim:
    """Return the number of parameters (elements of all weights) of the graph."""
    return sum_dims(multiply_dims(f.type.shape) for f in graph.parameter_facts.values())


def format_parameter_count(graph: Graph, count: Dim) -> str:
    """Format the parameter count, counting tied weights once. If there are tied weights, also
    format the count of all weights.
    """
    text, total = f"{format_thousands(count.number or 0)} parameters", count_parameters(graph)
    if total == count:
        return text
    return f"{text}, {format_thousands(total.number or 0)} counting tied weights twice"


MAGNITUDE_NAMES = (
    (10**15, "quadrillion"),
    (10**12, "trillion"),
    (10**9, "billion"),
    (10**6, "million"),
)


def format_large_number(number: int) -> str:
    """Format an integer, e.g. `137 billion`. Below one million, format all digits in groups."""
    for size, unit in MAGNITUDE_NAMES:
        # for example, 999.6 million is formatted as 1 billion, not as 1000 million
        if number >= size * 0.9995:
            return f"{number / size:.3g} {unit}"
    return format_thousands(number)


def format_type_with_sizes(type: Type, lengths: Mapping[str, int]) -> str:
    """Format a type with sizes substituted for symbolic dimensions, e.g. `f32[batch, 128, 768]`."""
    return f"{type.dtype}[{', '.join(format_dim_formula(d, lengths) for d in type.shape)}]"


def substitute_lengths(dim: Dim, lengths: Mapping[str, int]) -> Dim:
    """Substitute integers for symbolic dimensions. Raise E0407 if the model does not support these
    sizes.
    """
    try:
        return dim.substitute(lengths)
    except DimError as error:
        raise_error("E0407", f"unsupported lengths: {error}")


def format_dim_formula(dim: Dim, lengths: Mapping[str, int]) -> str:
    """Format an expression as a formula, e.g. `2·batch·seq²·768`, or as an integer."""
    dim = substitute_lengths(dim, lengths)
    if dim.number is not None:
        return format_thousands(dim.number)
    text = str(dim)
    for power, sign in (("^2", "²"), ("^3", "³")):
        text = text.replace(power, sign)
    return LONG_NUMBER_PATTERN.sub(lambda n: format_thousands(int(n[0])), text.replace("*", "·"))


LONG_NUMBER_PATTERN = re.compile(r"(?<!\w)\d{4,15}(?!\w)")
"""Matches a number with four or more digits that is not part of a name."""
