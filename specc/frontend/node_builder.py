"""Add graph nodes with their source spans. Limit the sizes of weights and constants, and report
shape mismatches.
"""

import math
from collections.abc import Sequence
from math import prod

from specc.diagnostics.diagnostic import Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.elaboration_context import MAX_GRAPH_NODES, Context
from specc.frontend.elaboration_state import MAX_CONSTANT_ELEMENTS
from specc.frontend.shape_mismatch import MismatchedOperation, explain_shape_mismatch
from specc.frontend.spec_values import Tensor
from specc.ir import ops
from specc.ir.dim import MAX_DIM_INTEGER, Dim, DimLimitError
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.types import ShapeError


def check_weight_length(context: Context, dim: Dim, name: str, span: Span | None) -> None:
    """Raise E0308 if a weight dimension is 0 or depends on an input. `span` is the source of the
    dimension.
    """
    # symbolic config values pass, because they are numbers when weights are created
    if context.has_dynamic_symbol(dim.symbols()):
        helps = ["weights must have a static shape: use a config value"]
        raise_error(
            "E0308",
            f"the weight `{name}` would have the dynamic length {dim}",
            span,
            "depends on an input",
            helps=helps,
        )
    if dim.number is None or dim.number >= 1:
        return
    source = dim.origin.span if dim.origin else None
    related_labels = [Label(source, "defined here")] if source and source != span else []
    raise_error(
        "E0308",
        f"the weight `{name}` would have the length {dim}, expected at least 1",
        span,
        "determines its size",
        related_labels=related_labels,
    )


def check_weight_size(context: Context, shape: Sequence[Dim], name: str, span: Span | None) -> None:
    """Raise E0308 if one weight or all weights together have 2^53 elements or more."""
    if any(d.number is None for d in shape):
        return
    count = prod(d.number or 0 for d in shape)
    # a shared weight counts once: its name replaces the earlier entry
    context.resources.weight_element_count += count - context.resources.weight_sizes.get(name, 0)
    context.resources.weight_sizes[name] = count
    if count >= MAX_DIM_INTEGER:
        shape_text = " × ".join(str(d) for d in shape)
        raise_error(
            "E0308", f"the weight `{name}` would have {shape_text} elements, 2^53 or more", span
        )
    if context.resources.weight_element_count >= MAX_DIM_INTEGER:
        raise_error(
            "E0308",
            "the weights of this model would have 2^53 elements or more",
            span,
            f"exceeded by `{name}`",
        )


def check_constant_size(shape: Sequence[Dim], name: str, span: Span | None) -> None:
    """Raise E0224 if a value that depends only on the spec has too many elements for a constant.
    Dynamic dimensions count as 1.
    """
    # the value of each dimension if every symbol is 1
    minimum = prod(max(1, sum(c for _, c in d.terms)) for d in shape)
    if minimum > MAX_CONSTANT_ELEMENTS:
        shape_text = " × ".join(str(d) for d in shape)
        title = (
            f"the constant of `{name}` has {shape_text} elements, more than {MAX_CONSTANT_ELEMENTS}"
        )
        raise_error(
            "E0224", title, span, helps=["reduce its shape: axes of length 1 are broadcast"]
        )


def add_node(
    context: Context,
    op: Op,
    operands: Sequence[Tensor | None],
    span: Span | None,
    scope: str | None = None,
    name: str = "",
    operator_span: Span | None = None,
) -> tuple[Tensor, ...]:
    """Add a node with `op` and return its results. Raise E0301 or E0302, located at the operands,
    if the operands are invalid.

    `scope` defaults to the scope of the statement; `name` is the name of the operation in the
    source; `operator_span` is the span of the operator itself if that is smaller than `span`.
    """
    if len(context.builder.nodes) >= MAX_GRAPH_NODES:
        raise_error("E0109", f"this spec expands to more than {MAX_GRAPH_NODES} operations", span)
    op_name = name or op.name
    values = [o.value if o else None for o in operands]
    # "" is the outermost scope, not a missing scope
    node_scope = context.scope if scope is None else scope
    try:
        results = context.builder.add_node(
            op, *values, scope=node_scope, span=context.locate_at_user_call(span)
        )
    except ShapeError as error:
        operation = MismatchedOperation(
            op, operands, operator_span or span, op_name, context.symbols.dynamic_names
        )
        raise Failed(explain_shape_mismatch(error, operation)) from None
    except DimLimitError as error:
        raise_error("E0309", f"`{op_name}`: {error}", span)
    is_constant = _record_value_facts(context, op, values, results)
    for value in results:
        _check_result(value, op_name, span, is_constant=is_constant)
    return tuple(Tensor(v, span) for v in results)


def _record_value_facts(
    context: Context, op: Op, operands: Sequence[Value | None], results: Sequence[Value]
) -> bool:
    """Record the facts of a new node's results, and return whether they are constant."""
    if isinstance(op, ops.Sort):
        context.facts.sorted_lengths.add(results[0].type.shape[op.axis])
    is_constant = all(v is None or v in context.facts.constant_values for v in operands)
    if is_constant:
        context.facts.constant_values.update(results)
    return is_constant


def _check_result(value: Value, name: str, span: Span | None, *, is_constant: bool) -> None:
    """Raise E0303 if an axis size is negative, as in `x[:, 3:1]`. Also check the size of values
    that are computed only from constants, because constant folding needs memory.
    """
    for dim in value.type.shape:
        if dim.number is not None and dim.number < 0:
            title = f"`{name}` would have the negative length {dim}"
            raise_error("E0303", title, span, "here")
    if is_constant:
        check_constant_size(value.type.shape, name, span)


def add_op(
    context: Context,
    op: Op,
    *operands: Tensor | None,
    span: Span | None = None,
    scope: str | None = None,
) -> Tensor:
    """Add a node with `op` and return its first result."""
    return add_node(context, op, operands, span, scope)[0]


def add_log_sigmoid(context: Context, operand: Tensor, span: Span | None) -> Tensor | None:
    """Return the logarithm of an operand sigmoid(x), computed as -softplus(-x), or None for any
    other operand.

    The sigmoid of ONNX Runtime is 0 below -18, where its logarithm is about x.
    """
    match operand.value.node:
        case Node(ops.Pointwise(fn="sigmoid"), (Value() as x,)):
            result = Tensor(x, span)
        case _:
            return None
    for fn in ("neg", "softplus", "neg"):
        result = add_op(context, ops.Pointwise(fn), result, span=span)
    return result


def add_constant(
    context: Context, value: float | int | bool, dtype: str, span: Span | None = None
) -> Tensor:
    """Return a scalar constant. Raise E0417 if it is out of range for float32."""
    if dtype == "f32":
        check_float32_range(value, span)
    number: float | int | bool
    if dtype == "bool":
        number = bool(value)
    elif dtype.startswith(("f", "b")):
        number = float(value) or 0.0  # replaces -0.0, which equals 0.0: equal nodes are shared
    else:
        number = int(value)
    return add_op(context, ops.Constant(number, dtype), span=span)


MAX_FLOAT32, MIN_FLOAT32 = 2.0**128 - 2.0**103, 2.0**-150
"""Rounding to float32 turns numbers at or above the first limit into infinity, and numbers up to
the second limit into zero.
"""


def check_float32_range(value: float, span: Span | None) -> None:
    """Raise E0417 if a nonzero finite number would become infinite or zero in float32."""
    if abs(value) >= MAX_FLOAT32 and math.isfinite(value):
        title = f"{value:g} is out of range for float32, whose maximum is 3.4e38"
        fix = "write -inf to mask a score" if value < 0 else "write inf"
    elif 0 < abs(value) <= MIN_FLOAT32:
        title = f"{value:g} would be rounded to 0 in float32, whose minimum is 1.4e-45"
        fix = "write a larger number, or 0.0"
    else:
        return
    raise_error("E0417", title, span, helps=[fix])
