"""Add graph nodes with spans, check the sizes of weights and constants, and report shape errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.frontend.elaboration_context import MAX_GRAPH_NODES, ElaborationContext
from specc.frontend.elaboration_state import MAX_CONSTANT_ELEMENTS
from specc.frontend.spec_values import Tensor, format_type
from specc.ir import ops
from specc.ir.dim import MAX_DIM_INTEGER, Dim, DimLimitError
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.types import ShapeError


def check_weight_dim(context: ElaborationContext, dim: Dim, name: str, span: Span | None) -> None:
    """Raise E0308 at `span` if a weight dimension is 0 or depends on an input."""
    # symbolic config values are allowed, because they are numbers when weights are created
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
    # sizes are recorded by weight name, so a shared weight counts only once
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
    """Raise E0224 if a constant has too many elements. Dynamic dimensions count as 1."""
    # evaluate each dimension with every symbol equal to 1
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
        operator if this span is smaller than `span`.
        """
        context, span = self.context, self.span
        if len(context.builder.nodes) >= MAX_GRAPH_NODES:
            title = f"this spec expands to more than {MAX_GRAPH_NODES} operations"
            raise_error("E0109", title, span)
        op_name = name or op.name
        values = [o.value if o else None for o in operands]
        # the empty scope "" is the outermost scope, not a missing scope
        node_scope = context.scope if self.scope is None else self.scope
        try:
            results = context.builder.add_node(
                op, *values, scope=node_scope, span=context.add_call_site_to_span(span)
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
    """Record facts about the results of a new node. Return True if the results are constant."""
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


def try_fuse_log_sigmoid(nodes: NodeBuilder, operand: Tensor) -> Tensor | None:
    """Return the logarithm of an operand `sigmoid(x)`, computed as -softplus(-x), or None for any
    other operand.

    The sigmoid of ONNX Runtime is 0 for x below -18, where the logarithm of the sigmoid is about x.
    """
    match operand.value.node:
        case Node(ops.Pointwise(fn="sigmoid"), (Value() as x,)):
            result = Tensor(x, nodes.span)
        case _:
            return None
    for fn in ("neg", "softplus", "neg"):
        result = nodes.add_op(ops.Pointwise(fn), result)
    return result


MAX_FLOAT32, MIN_FLOAT32 = 2.0**128 - 2.0**103, 2.0**-150
"""The smallest float that float32 rounds to infinity, and the largest that it rounds to 0."""


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


@dataclass(frozen=True, slots=True)
class ShapeMismatch:
    """An op whose operand shapes do not match. `name` is the name of the op in the source."""

    op: Op
    operands: Sequence[Tensor | None]
    span: Span | None
    name: str
    dynamic_lengths: frozenset[str]


def explain_shape_mismatch(error: ShapeError, operation: ShapeMismatch) -> Diagnostic:
    """Return the diagnostic of a shape error: E0302 for different sizes, otherwise E0301."""
    operands, span = operation.operands, operation.span
    tensors = [o for n in error.operands if n < len(operands) and (o := operands[n]) is not None]
    # show the origins of both dimensions, because usually they should be equal
    if len(error.dims) == 2 and len(tensors) == 2:
        return _explain_length_mismatch(error.dims, tensors, operation)
    return Diagnostic(
        "E0301",
        f"`{operation.name}`: {_insert_operand_names(error.title, operands)}",
        Label.from_span(span, "here"),
        tuple(
            Label(o.source_span, format_type(o.type))
            for o in tensors
            if o.source_span and o.source_span != span
        ),
        helps=(error.hint,) if error.hint else (),
    )


def _insert_operand_names(title: str, operands: Sequence[Tensor | None]) -> str:
    """Replace the indices of operands in a title with the source text of the operands."""
    for n, operand in enumerate(operands, 1):
        if operand is not None and operand.source_span:
            title = title.replace(f"operand {n}", f"`{_truncate_source(operand.source_span.text)}`")
    return title


def _explain_length_mismatch(
    dims: Sequence[Dim], tensors: Sequence[Tensor], operation: ShapeMismatch
) -> Diagnostic:
    """Return E0302 for two axis sizes that should be equal, with the type and origin of both."""
    labels: dict[Span, Label] = {}
    notes: list[str] = []
    for dim, operand in zip(dims, tensors, strict=True):
        text = _describe_axis(operand, dim)
        if operand.source_span and operand.source_span != operation.span:
            # add a label, or a note if the operand and the call have equal spans
            labels.setdefault(operand.source_span, Label(operand.source_span, text))
        else:
            notes.append(text)
    for dim in dims:
        if dim.origin and (span := dim.origin.span):
            labels.setdefault(span, Label(span, f"`{dim}` comes from here"))
    title, text = _describe_mismatch(dims, operation.name)
    return Diagnostic(
        "E0302",
        title,
        Label.from_span(operation.span, text),
        tuple(labels.values()),
        tuple(notes),
        tuple(_suggest_shape_fixes(dims, tensors, operation)),
    )


def _describe_axis(operand: Tensor, dim: Dim) -> str:
    """Describe the type of an operand, and its axis with the size `dim` if such an axis exists."""
    axes = [n for n, d in enumerate(operand.shape) if d == dim]
    axis_text = f"axis {axes[0]} is " if axes else ""
    origin = f", from {dim.origin.text}" if dim.origin and dim.origin.text else ""
    return f"{format_type(operand.type)} ({axis_text}`{dim}`{origin})"


def _describe_mismatch(dims: Sequence[Dim], op_name: str) -> tuple[str, str]:
    """Return the title and label of a size mismatch. Two symbols may be equal at run time."""
    a, b = dims
    if a.number is not None or b.number is not None:
        return f"lengths {a} and {b} do not match", f"`{op_name}` needs equal lengths"
    label = f"`{op_name}` needs equal lengths, but these two are independent"
    return f"lengths `{a}` and `{b}` do not match", label


def _suggest_shape_fixes(
    dims: Sequence[Dim], tensors: Sequence[Tensor], operation: ShapeMismatch
) -> list[str]:
    """Suggest fixes for a shape mismatch: a new axis, cross-attention, or an equation."""
    equality_fixes = _suggest_equal_lengths(dims, operation.dynamic_lengths)
    # in elementwise ops, axes of size 1 broadcast
    if not isinstance(operation.op, ops.Arith | ops.Compare | ops.And | ops.Or | ops.Where):
        return equality_fixes
    left, right = tensors
    if fix := _suggest_broadcast(left, right):
        return [fix]
    has_sequence_rank = len(left.shape) == len(right.shape) in (3, 4)
    is_mask = isinstance(operation.op, ops.And | ops.Or)
    if has_sequence_rank and not is_mask and left.shape[-1] == right.shape[-1]:
        q, k = (_quote_source(x.source_span) for x in tensors)
        return [
            f"for attention between them write `attend({q}, {k}, {k}, mask=all)`",
            *equality_fixes,
        ]
    return equality_fixes


def _suggest_broadcast(left: Tensor, right: Tensor) -> str:
    """Suggest axes whose insertion allows two tensors to broadcast, or return ""."""
    for small, large in ((left, right), (right, left)):
        if small.source_span and (axes := _find_missing_axes(small.shape, large.shape)):
            return _suggest_inserted_axes(small.source_span, axes, "broadcasts it over the other")
    # for two vectors, e.g. position ids and one value per batch element, suggest one new axis
    if len(left.shape) == len(right.shape) == 1:
        is_range = left.value.node and isinstance(left.value.node.op, ops.Extent)
        vector = right if is_range else left
        if vector.source_span:
            return _suggest_inserted_axes(
                vector.source_span, [1], "computes all pairs of their elements"
            )
    return ""


def _find_missing_axes(small: Sequence[Dim], large: Sequence[Dim]) -> list[int]:
    """Return the indices of new axes that make `small` match `large`, or [] if no axes do."""
    index, axes = 0, []
    for axis, length in enumerate(large):
        if index < len(small) and small[index] == length:
            index += 1
        elif index:  # leading axes need no insertion, because they are broadcast
            axes.append(axis)
    # the index is relative to the first axis of `small`
    first = next((n for n, d in enumerate(large) if small and d == small[0]), 0)
    return [n - first for n in axes] if index == len(small) else []


def _quote_source(span: Span | None) -> str:
    """Return the source text of a span for use in a suggestion, or `…` if the text is too long."""
    text = _truncate_source(span.text) if span else "…"
    return "…" if text.endswith("…") else text


def _suggest_inserted_axes(span: Span, axes: Sequence[int], effect: str) -> str:
    """Format a suggestion to insert axes. `effect` describes the effect of the insertion."""
    text = _quote_source(span)
    for axis in axes:
        text = f"insert({text}, axis={axis})"
    return f"`{text}` {effect}"


def _suggest_equal_lengths(dims: Sequence[Dim], dynamic_lengths: frozenset[str]) -> list[str]:
    """Return the help message that suggests declaring two dimensions as equal, or []."""
    a, b = (d.name for d in dims)
    if not a or not b:
        return []
    declaration = f"`require {a} == {b}`"
    if b in dynamic_lengths:
        declaration = f"`where {b} = {a}` on the graph"
    elif a in dynamic_lengths:
        declaration = f"`where {a} = {b}` on the graph"
    return [f"if they are always equal write {declaration}"]


def _truncate_source(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "…"
