"""Messages for shape mismatches, with fixes such as an inserted axis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specc.diagnostics.diagnostic import Diagnostic, Label
from specc.diagnostics.source import Span
from specc.frontend.spec_values import Tensor, format_type
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import ShapeError


@dataclass(frozen=True, slots=True)
class MismatchedOperation:
    """An op whose operand shapes do not match; `name` is its name in the source at `span`."""

    op: Op
    operands: Sequence[Tensor | None]
    span: Span | None
    name: str
    dynamic_lengths: frozenset[str]


def explain_shape_mismatch(error: ShapeError, operation: MismatchedOperation) -> Diagnostic:
    """Return the diagnostic of a shape error, which is a size mismatch or an invalid operand."""
    operands, span = operation.operands, operation.span
    tensors = [o for n in error.operands if n < len(operands) and (o := operands[n]) is not None]
    # the most common error is two dimensions that should be equal; each is shown with its origin
    if len(error.dims) == 2 and len(tensors) == 2:
        return _explain_length_mismatch(error.dims, tensors, operation)
    return Diagnostic(
        "E0301",
        f"`{operation.name}`: {_insert_operand_names(error.title, operands)}",
        Label.from_span(span, "here"),
        _label_other_operands(tensors, span),
        helps=(error.hint,) if error.hint else (),
    )


def _label_other_operands(tensors: Iterable[Tensor], span: Span | None) -> tuple[Label, ...]:
    """Return labels with the types of the operands whose spans differ from the span of the
    operation.
    """
    return tuple(Label(o.span, format_type(o.type)) for o in tensors if o.span and o.span != span)


def _insert_operand_names(title: str, operands: Sequence[Tensor | None]) -> str:
    """Replace the indices of operands in a title by their source text."""
    for n, operand in enumerate(operands, 1):
        if operand is not None and operand.span:
            title = title.replace(f"operand {n}", f"`{_truncate_source(operand.span.text)}`")
    return title


def _explain_length_mismatch(
    dims: Sequence[Dim], tensors: Sequence[Tensor], operation: MismatchedOperation
) -> Diagnostic:
    """Return E0302 for two axis sizes that should be equal, with the type and the origin of
    both.
    """
    labels: dict[Span, Label] = {}
    notes: list[str] = []
    for dim, operand in zip(dims, tensors, strict=True):
        text = _describe_axis(operand, dim)
        if operand.span and operand.span != operation.span:
            # a label if the operand has another span than the call, otherwise a note
            labels.setdefault(operand.span, Label(operand.span, text))
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
    """Describe the type of an operand, and the axis of this size if there is one."""
    axes = [n for n, d in enumerate(operand.shape) if d == dim]
    axis_text = f"axis {axes[0]} is " if axes else ""
    origin = f", from {dim.origin.text}" if dim.origin and dim.origin.text else ""
    return f"{format_type(operand.type)} ({axis_text}`{dim}`{origin})"


def _describe_mismatch(dims: Sequence[Dim], op_name: str) -> tuple[str, str]:
    """Return the title and the label. Two symbols may be equal at run time, two numbers cannot."""
    a, b = dims
    if a.number is not None or b.number is not None:
        return f"lengths {a} and {b} do not match", f"`{op_name}` needs equal lengths"
    label = f"`{op_name}` needs equal lengths, but these two are independent"
    return f"lengths `{a}` and `{b}` do not match", label


def _suggest_shape_fixes(
    dims: Sequence[Dim], tensors: Sequence[Tensor], operation: MismatchedOperation
) -> list[str]:
    """Suggest how to make two shapes match: an inserted axis, attention between sequences, or an
    equation of the dimensions.
    """
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
        q, k = (_quote_source(x.span) for x in tensors)
        return [
            f"for attention between them write `attend({q}, {k}, {k}, mask=all)`",
            *equality_fixes,
        ]
    return equality_fixes


def _suggest_broadcast(left: Tensor, right: Tensor) -> str:
    """Suggest the axes to insert so that two tensors broadcast, or return ""."""
    for small, large in ((left, right), (right, left)):
        if small.span and (axes := _find_missing_axes(small.shape, large.shape)):
            return _suggest_inserted_axes(small.span, axes, "broadcasts it over the other")
    # for example, position ids and one value per batch element
    if len(left.shape) == len(right.shape) == 1:
        is_range = left.value.node and isinstance(left.value.node.op, ops.Extent)
        vector = right if is_range else left
        if vector.span:
            return _suggest_inserted_axes(vector.span, [1], "computes all pairs of their elements")
    return ""


def _find_missing_axes(small: Sequence[Dim], large: Sequence[Dim]) -> list[int]:
    """Return the indices at which `small` needs new axes to match `large`, or [] if new axes do not
    help.
    """
    index, axes = 0, []
    for axis, length in enumerate(large):
        if index < len(small) and small[index] == length:
            index += 1
        elif index:  # leading axes broadcast without an insertion
            axes.append(axis)
    # the index is relative to the first axis of `small`
    first = next((n for n, d in enumerate(large) if small and d == small[0]), 0)
    return [n - first for n in axes] if index == len(small) else []


def _quote_source(span: Span | None) -> str:
    """Return a source text for use in a suggestion, or `…` if it is too long."""
    text = _truncate_source(span.text) if span else "…"
    return "…" if text.endswith("…") else text


def _suggest_inserted_axes(span: Span, axes: Sequence[int], effect: str) -> str:
    """Return a suggestion to insert axes, with its effect."""
    text = _quote_source(span)
    for axis in axes:
        text = f"insert({text}, axis={axis})"
    return f"`{text}` {effect}"


def _suggest_equal_lengths(dims: Sequence[Dim], dynamic_lengths: frozenset[str]) -> list[str]:
    """Return the help text that suggests declaring two dimensions as equal."""
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
