"""Explain errors for mismatched shapes (E0301, E0302) and wrong types, and suggest fixes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_values import (
    AttentionFunction,
    BlockFunction,
    BuiltinFunction,
    MaskExpression,
    SpecValue,
    Tensor,
    format_type,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import KIND_BY_DTYPE, ShapeError, Type
from specc.syntax import ast

FOREIGN_TENSOR_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("long", "integer", "ids", "i64", "i32"), "write `int`"),
    **dict.fromkeys(("double", "half", "tensor", "f32", "f16", "real"), "write `float`"),
    **dict.fromkeys(("mask", "boolean"), "write `keep` for a padding mask, otherwise `bool`"),
}
"""The help messages for element types of other libraries, by lowercase name."""

FOREIGN_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("str", "string"), "write `text`"),
    **dict.fromkeys(("integer", "long"), "write `int`"),
    **dict.fromkeys(("double", "number", "real"), "write `float`"),
    "optional": "write `?` after the type: `int?`",
    **dict.fromkeys(("dict", "struct", "object"), "write `record { name: type = value }`"),
    **dict.fromkeys(("tuple", "sequence", "array"), "write `list[int]` or `pair[int]`"),
    "enum": "write `choice(a | b)`",
}
"""The help messages for type names from other languages, keyed by lowercase name."""


def make_undeclared_dim_error(dim: ast.Name, env: LexicalScope) -> Diagnostic:
    """Return the diagnostic E0202 for an undeclared dimension in a declared type."""
    declared_names = env.module.root.dims
    length_names = [*declared_names, *(n for n, v in env.config.items() if isinstance(v, Dim))]
    helps = (
        *suggest_similar_name(dim.path, length_names),
        f"declare dynamic lengths in `dims`: `dims {', '.join([*declared_names, dim.path])}`",
    )
    primary = Label.from_span(dim.span, "unknown length")
    title = f"the dimension `{dim.path}` is not declared"
    return Diagnostic("E0202", title, primary, helps=helps)


def suggest_tensor_expression(value: SpecValue, type: ast.TypeExpr) -> list[str]:
    """Suggest a tensor expression of the declared type in place of a value that is not a tensor."""
    match value:
        case AttentionFunction() | MaskExpression():
            return ["definitions such as masks are arguments of attention, not tensors"]
        case BlockFunction(name=name) | BuiltinFunction(name=name):
            return [f"call the function: `{name}(…)`"]
        case (Tensor(), *_):
            return ["`stack(xs, axis=0)` stacks the tensors of a list, and `xs[0]` selects one"]
        case str() if value.isidentifier():
            return [f"write a name without quotes: `{value}`"]
    texts = [dim.span.text if dim.span else "_" for dim in type.dims or ()]
    if "_" in texts or "..." in texts:
        return ["write an operation that returns a tensor of this type"]
    shape = ", ".join(texts)
    if isinstance(value, bool | float | Dim):
        constant = _format_constant_tensor(value, type.name, shape)
        return [f"for a tensor with this value in every element, write `{constant}`"]
    constant = _format_constant_tensor(0.0, type.name, shape)
    return [f"write an operation that returns a tensor of this type, such as `{constant}`"]


def _format_constant_tensor(value: bool | float | Dim, type_name: str, shape: str) -> str:
    """Return an expression for a tensor in which every element is `value`."""
    if type_name in ("bool", "keep"):
        return f"ones(shape=[{shape}]) {'>' if value else '<'} 0.0"
    number = value if isinstance(value, Dim) else float(value)
    if type_name == "int":
        number = number if isinstance(number, Dim) else int(number)
        return f"cast(zeros(shape=[{shape}]), to=int){f' + {number}' if number else ''}"
    if not number:
        return f"zeros(shape=[{shape}])"
    is_name = isinstance(number, Dim) and number.number is None
    text = f"float({number})" if is_name else f"{float(str(number))}"
    return f"zeros(shape=[{shape}]) + {text}"


def suggest_dtype_conversion(actual: Type, declared_name: str, span: Span | None) -> list[str]:
    """Suggest a conversion of a tensor to the declared element type."""
    name = span.text if span and span.text.isidentifier() else "x"
    match declared_name:
        case "float" | "int":
            return [f"convert it with `cast({name}, to={declared_name})`"]
        case "bool" | "keep":
            zero = "0.0" if KIND_BY_DTYPE[actual.dtype] == "f" else "0"
            return [f"compare it, for example `{name} != {zero}`"]
    return []


def suggest_length_correction(declared: str, actual: Dim, value: Span | None) -> tuple[str, ...]:
    """Suggest changing either the argument that determines the actual length or the declared
    length. Return no help if no argument in the expression `value` is the actual length.
    """
    origin = actual.origin.span if actual.origin else None
    if declared == str(actual) or origin is None or value is None:
        return ()
    if origin.source is not value.source or not value.start <= origin.start < value.end:
        return ()  # the length is set in a called block, outside the expression `value`
    text = origin.source.text
    argument = re.search(r"\w+=\Z", text[max(0, origin.start - 40) : origin.start])
    if argument is None or not text.startswith((",", ")"), origin.end):
        return ()
    return (f"write `{argument[0]}{declared}`, or declare the length as `{actual}`",)


@dataclass(frozen=True, slots=True)
class ShapeMismatch:
    """An op whose operands have mismatched shapes. `name` is the name of the op in the source."""

    op: Op
    operands: Sequence[Tensor | None]
    span: Span | None
    name: str
    dynamic_lengths: frozenset[str]


def explain_shape_mismatch(error: ShapeError, mismatch: ShapeMismatch) -> Diagnostic:
    """Return the diagnostic of a shape error: E0302 for different sizes, otherwise E0301."""
    operands, span = mismatch.operands, mismatch.span
    tensors = [o for n in error.operands if n < len(operands) and (o := operands[n]) is not None]
    # show the origins of both dimensions, because one of the two is probably wrong
    if len(error.dims) == 2 and len(tensors) == 2:
        return _explain_length_mismatch(error.dims, tensors, mismatch)
    return Diagnostic(
        "E0301",
        f"`{mismatch.name}`: {_insert_operand_names(error.title, operands)}",
        Label.from_span(span, "here"),
        tuple(
            Label(o.source_span, format_type(o.type))
            for o in tensors
            if o.source_span and o.source_span != span
        ),
        helps=(error.hint,) if error.hint else (),
    )


def _insert_operand_names(title: str, operands: Sequence[Tensor | None]) -> str:
    """Replace the operand indices in a title with the source text of the operands."""
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
    """Describe the type of an operand and, if it has one, its axis of size `dim`."""
    axes = [n for n, d in enumerate(operand.shape) if d == dim]
    axis_text = f"axis {axes[0]} is " if axes else ""
    origin = f", from {dim.origin.text}" if dim.origin and dim.origin.text else ""
    return f"{format_type(operand.type)} ({axis_text}`{dim}`{origin})"


def _describe_mismatch(dims: Sequence[Dim], op_name: str) -> tuple[str, str]:
    """Return the title and label of a size mismatch. Different symbols can be equal at run time."""
    a, b = dims
    if a.number is not None or b.number is not None:
        return f"lengths {a} and {b} do not match", f"`{op_name}` requires equal lengths"
    label = f"`{op_name}` requires equal lengths, but these two are independent"
    return f"lengths `{a}` and `{b}` do not match", label


def _suggest_shape_fixes(
    dims: Sequence[Dim], tensors: Sequence[Tensor], operation: ShapeMismatch
) -> list[str]:
    """Suggest fixes for a shape mismatch: a new axis, cross-attention, or a dimension equation."""
    equality_fixes = _suggest_equal_lengths(dims, operation.dynamic_lengths)
    # elementwise ops broadcast axes of size 1
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
    """Suggest inserting axes so that two tensors broadcast, or return "" if that is impossible."""
    for small, large in ((left, right), (right, left)):
        if small.source_span and (axes := _find_missing_axes(small.shape, large.shape)):
            return _suggest_inserted_axes(small.source_span, axes, "broadcasts it over the other")
    # for two vectors, such as position ids and one value per batch element, suggest inserting one
    # axis
    if len(left.shape) == len(right.shape) == 1:
        is_range = left.value.node and isinstance(left.value.node.op, ops.Extent)
        vector = right if is_range else left
        if vector.source_span:
            return _suggest_inserted_axes(
                vector.source_span, [1], "computes all pairs of their elements"
            )
    return ""


def _find_missing_axes(small: Sequence[Dim], large: Sequence[Dim]) -> list[int]:
    """Return the indices of axes to insert so that `small` matches `large`, or [] if none do."""
    index, axes = 0, []
    for axis, length in enumerate(large):
        if index < len(small) and small[index] == length:
            index += 1
        elif index:  # leading axes need not be inserted, because broadcasting adds them anyway
            axes.append(axis)
    # the index counts from the first axis of `small`
    first = next((n for n, d in enumerate(large) if small and d == small[0]), 0)
    return [n - first for n in axes] if index == len(small) else []


def _quote_source(span: Span | None) -> str:
    """Return the source text of a span for use in a suggestion, or `…` if the text is too long."""
    text = _truncate_source(span.text) if span else "…"
    return "…" if text.endswith("…") else text


def _suggest_inserted_axes(span: Span, axes: Sequence[int], effect: str) -> str:
    """Format a suggestion to insert axes. `effect` describes what the inserted axes achieve."""
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
