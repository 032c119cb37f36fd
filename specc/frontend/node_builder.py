"""Add graph nodes with their source spans, and check the sizes of weights and constants."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from specc.diagnostics.diagnostic import Label, Span, SpeccError, raise_error
from specc.frontend.elaboration_context import MAX_GRAPH_NODES, ElaborationContext
from specc.frontend.elaboration_limits_and_errors import MAX_CONSTANT_ELEMENTS
from specc.frontend.shape_and_type_errors import ShapeMismatch, explain_shape_mismatch
from specc.frontend.spec_values import Tensor
from specc.ir import ops
from specc.ir.dim import MAX_DIM_INTEGER, Dim, DimLimitError
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.types import ShapeError


def check_weight_dim(context: ElaborationContext, dim: Dim, name: str, span: Span | None) -> None:
    """Raise E0308 at `span` if a weight dimension is 0 or depends on an input."""
    # symbols for config values are allowed, because these values are known when weights are created
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


def check_weight_size(
    context: ElaborationContext, shape: Sequence[Dim], name: str, span: Span | None
) -> None:
    """Raise E0308 if a weight, or all weights together, have 2^53 or more elements."""
    if any(d.number is None for d in shape):
        return
    count = prod(d.number or 0 for d in shape)
    # sizes are recorded by weight name, so that a shared weight is counted only once
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
    """Raise E0224 if a constant has too many elements. Dynamic dimensions are counted as 1."""
    # compute the number of elements under the assumption that every symbol is 1
    minimum = prod(max(1, sum(c for _, c in d.terms)) for d in shape)
    if minimum > MAX_CONSTANT_ELEMENTS:
        shape_text = " × ".join(str(d) for d in shape)
        title = (
            f"the constant of `{name}` has {shape_text} elements, more than {MAX_CONSTANT_ELEMENTS}"
        )
        raise_error(
            "E0224", title, span, helps=["reduce its shape: axes of length 1 are broadcast"]
        )


@dataclass(slots=True)
class NodeBuilder:
    """A builder of graph nodes for the source code at `span`. The weight scope of the nodes is
    `scope`, by default the scope of the current statement.
    """

    context: ElaborationContext
    span: Span | None = None
    scope: str | None = None

    def add_node(
        self,
        op: Op,
        operands: Sequence[Tensor | None],
        name: str = "",
        operator_span: Span | None = None,
    ) -> tuple[Tensor, ...]:
        """Add a node with `op` and return its results. Raise E0301 or E0302, located at the
        operands, if the operands are invalid.

        `name` is the name of the operation in the source. `operator_span` is the span of the
        operator, if it is smaller than `span`.
        """
        context, span = self.context, self.span
        if len(context.builder.nodes) >= MAX_GRAPH_NODES:
            title = f"this spec expands to more than {MAX_GRAPH_NODES} operations"
            raise_error("E0109", title, span)
        op_name = name or op.name
        values = [o.value if o else None for o in operands]
        # test for None, because "" is a valid scope: the outermost one
        node_scope = context.scope if self.scope is None else self.scope
        try:
            results = context.builder.add_node(
                op, *values, scope=node_scope, span=context.errors.add_call_site_to_span(span)
            )
        except ShapeError as error:
            operation = ShapeMismatch(
                op, operands, operator_span or span, op_name, context.symbols.dynamic_names
            )
            raise SpeccError(explain_shape_mismatch(error, operation)) from None
        except DimLimitError as error:
            raise_error("E0309", f"`{op_name}`: {error}", span)
        is_constant = _record_value_facts(context, op, values, results)
        for value in results:
            _check_result(value, op_name, span, is_constant=is_constant)
        return tuple(Tensor(v, span) for v in results)

    def add_op(self, op: Op, *operands: Tensor | None) -> Tensor:
        """Add a node with `op` and return its first result."""
        return self.add_node(op, operands)[0]

    def add_constant(self, value: float | int | bool, dtype: str) -> Tensor:
        """Return a scalar constant. Raise E0417 for a value out of range for float32."""
        if dtype == "f32":
            check_float32_range(value, self.span)
        number: float | int | bool
        if dtype == "bool":
            number = bool(value)
        elif dtype.startswith(("f", "b")):
            number = float(value) or 0.0  # replace -0.0 with 0.0, because equal nodes are merged
        else:
            number = int(value)
        return self.add_op(ops.Constant(number, dtype))


def _record_value_facts(
    context: ElaborationContext, op: Op, operands: Sequence[Value | None], results: Sequence[Value]
) -> bool:
    """Record constant results and sorted axes of a new node. Return True for constant results."""
    if isinstance(op, ops.Sort):
        context.facts.sorted_lengths.add(results[0].type.shape[op.axis])
    is_constant = all(v is None or v in context.facts.constant_values for v in operands)
    if is_constant:
        context.facts.constant_values.update(results)
    return is_constant


def _check_result(value: Value, name: str, span: Span | None, *, is_constant: bool) -> None:
    """Raise E0303 if an axis size is negative, as in `x[:, 3:1]`. Raise E0224 if a value that is
    computed only from constants is too large for constant folding.
    """
    for dim in value.type.shape:
        if dim.number is not None and dim.number < 0:
            title = f"`{name}` would have the negative length {dim}"
            raise_error("E0303", title, span, "here")
    if is_constant:
        check_constant_size(value.type.shape, name, span)


def try_fuse_log_sigmoid(builder: NodeBuilder, operand: Tensor) -> Tensor | None:
    """Return the logarithm of an operand `sigmoid(x)`, computed as -softplus(-x), or None for any
    other operand.

    The sigmoid of ONNX Runtime is 0 for x below -18, where the logarithm of the sigmoid is about x.
    """
    match operand.value.node:
        case Node(ops.Pointwise(fn="sigmoid"), (Value() as x,)):
            result = Tensor(x, builder.span)
        case _:
            return None
    for fn in ("neg", "softplus", "neg"):
        result = builder.add_op(ops.Pointwise(fn), result)
    return result


MAX_FLOAT32, MIN_FLOAT32 = 2.0**128 - 2.0**103, 2.0**-150
"""The smallest number that float32 rounds to infinity, and the largest one that it rounds to 0."""


def check_float32_range(value: float, span: Span | None) -> None:
    """Raise E0417 if a nonzero finite number overflows or underflows in float32."""
    if abs(value) >= MAX_FLOAT32 and math.isfinite(value):
        title = f"{value:g} is out of range for float32, whose maximum is 3.4e38"
        fix = "write -inf to mask a score" if value < 0 else "write inf"
    elif 0 < abs(value) <= MIN_FLOAT32:
        title = f"{value:g} would be rounded to 0 in float32, whose minimum is 1.4e-45"
        fix = "write a larger number, or 0.0"
    else:
        return
    raise_error("E0417", title, span, helps=[fix])
