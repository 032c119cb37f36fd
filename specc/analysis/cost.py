"""Count multiply-adds and parameters as formulas over symbolic lengths, and format them.

A multiply-add counts as one. Elementwise ops are not counted: they are bound by memory traffic.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from specc.analysis.local_attention import LocalAttention
from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node
from specc.ir.op import Op
from specc.ir.types import Type

CostFunction = Callable[[Any, list[Type]], Dim]


def _linear_q(op: ops.LinearQ, t: list[Type]) -> Dim:
    # Quantized weights have one of several layouts: the op knows the output width.
    (made, *_) = op.infer(*t)
    return multiply_dims(t[0].shape) * made.shape[-1]


def _matmul(op: ops.MatMul, t: list[Type]) -> Dim:
    a, b = t[0].shape, t[1].shape
    # One operand may have no leading axes; then it is multiplied with every matrix of the other.
    lead = max((a[:-2], b[:-2]), key=len)
    return multiply_dims(lead) * multiply_dims(a[-2:]) * b[-1]


def _attend(op: ops.Attend, t: list[Type]) -> Dim:
    b, h, q, d = t[0].shape
    keys = t[1].shape[2]
    value_width = t[2].shape[3]
    # A query-key pair costs one score of the key width, and one multiply-add per value feature.
    return b * h * q * keys * (d + value_width)


def _count_window_products(op: ops.Patches | ops.Conv, t: list[Type]) -> Dim:
    """Count one dot product with a filter per output element. The weight's first axis counts
    filters; each has the input channels of its group.
    """
    (made, *_) = op.infer(*t[:2], None)
    return multiply_dims(made.shape) * multiply_dims(t[1].shape[1:])


def _einsum(op: ops.Einsum, t: list[Type]) -> Dim:
    # Every named axis is one loop, whether it is kept or summed.
    sizes: dict[str, Dim] = {}
    operands = op.equation.split("->")[0].split(",")
    for names, type in zip(operands, t, strict=True):
        sizes.update(zip(names.split(), type.shape, strict=True))
    return multiply_dims(sizes.values())


def _scan(op: ops.Scan, t: list[Type]) -> Dim:
    turns = op.split_operands(t).scanned[0].shape[op.axis]
    return turns * sum_dims(count_multiply_adds(n) for n, _ in op.body.nodes)


def _route(op: ops.Route, t: list[Type]) -> Dim:
    """Count each token once per expert that it selects."""
    sent = multiply_dims(op.split_operands(t).ids.shape)
    inside = sum_dims(count_multiply_adds(n) for n, _ in op.body.nodes)
    return inside.substitute({op.token_count_symbol: sent})


def _recurrent(op: ops.RecurrentLayer, t: list[Type]) -> Dim:
    b, n, i = t[0].shape
    # The recurrent matrix holds all gates. An LSTM with a projection feeds back fewer features than
    # a gate has.
    gates, fed_back = t[2].shape
    return b * n * gates * (i + fed_back)


def _lstm(op: ops.Lstm, t: list[Type]) -> Dim:
    b, n, _ = t[0].shape
    hidden = divide_dims_exactly(t[1].shape[0], 4)
    projection = (t[2].shape[1], hidden)
    # Omitted operands have no type here, so positions are ambiguous: the projection is the last
    # operand, and the one with this shape.
    mapped = b * n * multiply_dims(projection) if t[-1].shape == projection else Dim.of(0)
    return _recurrent(op, t) + mapped


COST_FUNCTIONS: Mapping[type[Op], CostFunction] = {
    ops.Linear: lambda op, t: multiply_dims(t[0].shape) * t[1].shape[0],
    ops.LinearQ: _linear_q,
    ops.MatMul: _matmul,
    ops.Weigh: lambda op, t: multiply_dims(t[0].shape) * t[1].shape[-1],
    ops.Attend: _attend,
    ops.Patches: _count_window_products,
    ops.Conv: _count_window_products,
    # Transposed: every input element is multiplied by one filter.
    ops.ConvTranspose: lambda op, t: multiply_dims((*t[0].shape, *t[1].shape[1:])),
    ops.Einsum: _einsum,
    ops.Scan: _scan,
    ops.Route: _route,
    ops.Rnn: _recurrent,
    ops.Gru: _recurrent,
    ops.Lstm: _lstm,
    ops.LstmQ: lambda op, t: (
        multiply_dims(t[0].shape[:2]) * (multiply_dims(t[1].shape) + multiply_dims(t[2].shape))
    ),
}
"""The cost function of each expensive op; a test checks that none is missing."""


def count_blocked_multiply_adds(node: Node, local: LocalAttention) -> Dim:
    """Return the multiply-adds of blocked attention."""
    assert isinstance(node.op, ops.Attend)
    query = node.op.query(node).type.shape
    keys = node.op.key(node).type.shape[2]
    width = query[3] + node.op.values(node).type.shape[3]
    return multiply_dims(query[:3]) * local.count_keys_per_query(keys) * width


def count_multiply_adds(node: Node) -> Dim:
    """Return the multiply-adds of one node; 0 for cheap ops."""
    cost = COST_FUNCTIONS.get(type(node.op))
    return cost(node.op, [a.type for a in node.args if a]) if cost else Dim.of(0)


def count_parameters(graph: Graph) -> Dim:
    """Return the number of parameters (elements of all weights) of the graph."""
    return sum_dims(multiply_dims(f.type.shape) for f in graph.parameter_facts.values())


MAGNITUDE_NAMES = (
    (10**15, "quadrillion"),
    (10**12, "trillion"),
    (10**9, "billion"),
    (10**6, "million"),
)


def format_magnitude(number: int) -> str:
    """`137 billion`; a small number as it is."""
    for size, unit in MAGNITUDE_NAMES:
        # a value that rounds to a thousand uses the next unit
        if number >= size * 0.9995:
            return f"{number / size:.3g} {unit}"
    return group_digits(number)


def format_type_with_sizes(type: Type, at: Mapping[str, int]) -> str:
    """`f32[batch, 128, 768]`."""
    return f"{type.dtype}[{', '.join(format_dim_formula(d, at) for d in type.shape)}]"


def evaluate_dim_at(dim: Dim, at: Mapping[str, int]) -> Dim:
    """Substitute numbers for lengths. Raise E0407 if they do not fit the model."""
    try:
        return dim.substitute(at)
    except DimError as error:
        raise_error("E0407", f"these lengths do not fit the model: {error}")


def format_dim_formula(dim: Dim, at: Mapping[str, int]) -> str:
    """Format a length as `2·batch·seq²·768`, or as a number if all lengths are known."""
    dim = evaluate_dim_at(dim, at)
    if dim.number is not None:
        return group_digits(dim.number)
    text = str(dim)
    for power, sign in (("^2", "²"), ("^3", "³")):
        text = text.replace(power, sign)
    return LONG_NUMBER_PATTERN.sub(lambda n: group_digits(int(n[0])), text.replace("*", "·"))


LONG_NUMBER_PATTERN = re.compile(r"(?<!\w)\d{4,15}(?!\w)")
"""A factor with four or more digits, but not digits within a name."""


def group_digits(number: int) -> str:
    """`124 439 808`."""
    return f"{number:,}".replace(",", " ")
