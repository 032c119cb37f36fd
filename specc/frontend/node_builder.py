"""Add graph nodes for a span of the spec: weight and constant size limits, and shape
mismatches explained in the terms of the spec.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.context import MAX_GRAPH_NODES, Context
from specc.frontend.spec_values import Tensor, format_type
from specc.frontend.step_budget import MAX_CONSTANT_ELEMENTS
from specc.ir import ops
from specc.ir.dim import MAX_DIM_INTEGER, Dim, DimLimitError
from specc.ir.graph import Value
from specc.ir.op import Op
from specc.ir.types import ShapeError


def check_weight_length(context: Context, dim: Dim, name: str, at: Span | None) -> None:
    """E0308 for a weight without rows, or as long as an input decides. `at` is what
    decides the length.
    """
    # config values that are symbols pass: they are numbers when weights are made
    if context.late(dim.symbols()):
        helps = ["a weight has one size for every input: give it a config value"]
        raise_error(
            "E0308",
            f"the weight `{name}` would be {dim} long",
            at,
            "only an input tells this",
            helps=helps,
        )
    if dim.number is None or dim.number >= 1:
        return
    source = dim.origin.span if dim.origin else None
    others = [Label(source, "which comes from here")] if source and source != at else []
    raise_error(
        "E0308",
        f"the weight `{name}` would be {dim} long",
        at,
        "this decides its size",
        others=others,
    )


def check_weight_size(context: Context, shape: Sequence[Dim], name: str, at: Span | None) -> None:
    """E0308 where one weight, or all of them, hold more numbers than can be counted exactly."""
    if any(d.number is None for d in shape):
        return
    count = prod(d.number or 0 for d in shape)
    # a weight that calls share counts once; a name that is asked for again replaces
    context.used.weights += count - context.used.weight_sizes.get(name, 0)
    context.used.weight_sizes[name] = count
    if count >= MAX_DIM_INTEGER:
        shown = " × ".join(str(d) for d in shape)
        raise_error("E0308", f"the weight `{name}` would hold {shown} numbers, 2^53 or more", at)
    if context.used.weights >= MAX_DIM_INTEGER:
        raise_error(
            "E0308",
            "the weights of this model would hold 2^53 numbers or more",
            at,
            f"reached with `{name}`",
        )


def check_constant_size(shape: Sequence[Dim], word: str, at: Span | None) -> None:
    """E0224 where what follows from the spec alone holds more numbers than a constant
    may, run-time lengths being 1.
    """
    least = prod(_get_min_length(d) for d in shape)
    if least > MAX_CONSTANT_ELEMENTS:
        shown = " × ".join(str(d) for d in shape)
        title = (
            f"`{word}` makes {shown} numbers out of nothing; a constant holds at "
            f"most {MAX_CONSTANT_ELEMENTS}"
        )
        raise_error(
            "E0224",
            title,
            at,
            helps=["lengths of 1 are repeated where they meet longer ones: make it smaller"],
        )


def _get_min_length(dim: Dim) -> int:
    """A length where every symbol in it is 1; 1 where that is no length."""
    return max(1, sum(c for _, c in dim.terms))


@dataclass(frozen=True, slots=True)
class FailedOperation:
    """Operands of `word`, which stands at `span` and means `op`. `lengths` are those
    that only an input tells.
    """

    op: Op
    operands: Sequence[Tensor | None]
    span: Span | None
    word: str
    lengths: frozenset[str]

    @property
    def each(self) -> bool:
        """Whether it is done number by number, so that an axis of 1 is repeated."""
        return isinstance(self.op, ops.Arith | ops.Compare | ops.And | ops.Or | ops.Where)


def explain_shape_mismatch(error: ShapeError, meeting: FailedOperation) -> Diagnostic:
    """The diagnostic of a shape error: two lengths that meet, or an operand that does not fit."""
    operands, span = meeting.operands, meeting.span
    given = [o for n in error.operands if n < len(operands) and (o := operands[n]) is not None]
    # the usual fault: two lengths that should be one, each with a story of its own
    if len(error.dims) == 2 and len(given) == 2:
        return _explain_length_mismatch(error.dims, given, meeting)
    others = tuple(Label(o.span, format_type(o.type)) for o in given if o.span and o.span != span)
    title = error.title
    for n, operand in enumerate(operands):
        # the op knows its operands by number, the user by what he wrote
        if operand is not None and operand.span and f"operand {n + 1}" in title:
            title = title.replace(f"operand {n + 1}", f"`{_truncate_source(operand.span.text)}`")
    return Diagnostic(
        "E0301",
        f"`{meeting.word}`: {title}",
        Label(span, "here") if span else None,
        others,
        helps=(error.hint,) if error.hint else (),
    )


def _explain_length_mismatch(
    dims: Sequence[Dim], given: Sequence[Tensor], meeting: FailedOperation
) -> Diagnostic:
    labels, notes = [], []
    for dim, operand in zip(dims, given, strict=True):
        text = _describe_axis(operand, dim)
        if operand.span and operand.span != meeting.span:
            # the text that the user would look at; where both are one text, a note
            # tells it
            labels.append(Label(operand.span, text))
        else:
            notes.append(text)
    for dim in dims:
        if dim.origin and dim.origin.span:
            labels.append(Label(dim.origin.span, f"`{dim}` comes from here"))
    title, text = _describe_mismatch(dims, meeting.word)
    return Diagnostic(
        "E0302",
        title,
        Label(meeting.span, text) if meeting.span else None,
        _drop_duplicate_labels(labels),
        tuple(notes),
        tuple(_suggest_shape_fixes(dims, given, meeting)),
    )


def _describe_axis(operand: Tensor, dim: Dim) -> str:
    """A type, and which of its axes has a length; none where the op made it of several."""
    axes = [n for n, d in enumerate(operand.shape) if d == dim]
    which = f"axis {axes[0]} is " if axes else ""
    return f"{format_type(operand.type)} ({which}`{dim}`{_format_length(dim)})"


def _describe_mismatch(dims: Sequence[Dim], word: str) -> tuple[str, str]:
    """Title and label: two symbols may be equal by chance, two numbers cannot."""
    a, b = dims
    if a.number is not None or b.number is not None:
        return f"a length of {a} meets one of {b}", f"`{word}` needs them to be equal"
    label = (
        f"these two lengths are independent, so `{word}` is defined only "
        "when they happen to be equal"
    )
    return f"`{a}` and `{b}` meet on the same axis", label


def _suggest_shape_fixes(
    dims: Sequence[Dim], given: Sequence[Tensor], meeting: FailedOperation
) -> list[str]:
    """What to write so that two tensors fit: an axis for the smaller, attention between
    sequences, or that the lengths are one.
    """
    equal = _suggest_equal_lengths(dims, meeting.lengths)
    if not meeting.each:
        return equal
    left, right = given
    for small, large in ((left, right), (right, left)):
        if small.span and (axes := _find_missing_axes(small.shape, large.shape)):
            return [_suggest_inserted_axes(small.span, axes, "gives it the axes of the other")]
    # row numbers beside one number for each sample, or any two vectors
    if len(left.shape) == len(right.shape) == 1:
        made = left.value.node
        alone = right if made and isinstance(made.op, ops.Extent) else left
        if alone.span:
            why = "pairs each with each"
            return [_suggest_inserted_axes(alone.span, [1], why)]
    texts = [_quote_source(x.span) for x in given]
    sequences = len(left.shape) == len(right.shape) in (3, 4)
    if sequences and all(texts) and left.shape[-1] == right.shape[-1]:
        q, k = texts
        look = f"to let one look at the other write `attend({q}, {k}, {k}, mask=all)`"
        return [look, *equal]
    return equal


def _find_missing_axes(small: Sequence[Dim], large: Sequence[Dim]) -> list[int]:
    """Where `small` needs new axes to lie beside `large`, axis for axis; empty where
    that would not help.
    """
    at, axes = 0, []
    for axis, length in enumerate(large):
        if at < len(small) and small[at] == length:
            at += 1
        elif at:  # axes before the first are there by themselves
            axes.append(axis)
    # counted from the first axis that `small` has
    first = next((n for n, d in enumerate(large) if small and d == small[0]), 0)
    return [n - first for n in axes] if at == len(small) else []


def _quote_source(span: Span | None) -> str:
    """A text to be written again; `…` for one that is too long for that."""
    text = _truncate_source(span.text) if span else "…"
    return "…" if text.endswith("…") else text


def _suggest_inserted_axes(span: Span, axes: Sequence[int], why: str) -> str:
    """The help to insert axes."""
    made = _quote_source(span)
    for axis in axes:
        made = f"insert({made}, axis={axis})"
    return f"`{made}` {why}"


def _suggest_equal_lengths(dims: Sequence[Dim], lengths: frozenset[str]) -> list[str]:
    """How to say that two lengths are one."""
    a, b = (d.name for d in dims)
    if not a or not b:
        return []
    if b in lengths:
        return [f"if they are always equal write `where {b} = {a}` on the graph"]
    if a in lengths:
        return [f"if they are always equal write `where {a} = {b}` on the graph"]
    return [f"if they are always equal write `require {a} == {b}`"]


def _format_length(dim: Dim) -> str:
    return f", from {dim.origin.text}" if dim.origin and dim.origin.text else ""


def _drop_duplicate_labels(labels: list[Label]) -> tuple[Label, ...]:
    seen: dict[Span, Label] = {}
    for label in labels:
        seen.setdefault(label.span, label)
    return tuple(seen.values())


def _truncate_source(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 40 else flat[:37] + "…"


def add_node(
    context: Context,
    op: Op,
    operands: Sequence[Tensor | None],
    span: Span | None,
    scope: str | None = None,
    word: str = "",
    at: Span | None = None,
) -> tuple[Tensor, ...]:
    """The results of `op`, or E0301/E0302 under the text of the operands. `scope` is
    that of the statement where none is given, `word` what the user called it, `at` the
    sign or word itself where that is less than `span`.
    """
    if len(context.builder.nodes) >= MAX_GRAPH_NODES:
        raise_error("E0109", f"this spec expands to more than {MAX_GRAPH_NODES} operations", span)
    called = word or op.name
    values = [o.value if o else None for o in operands]
    # the outermost scope has an empty name, which is one all the same
    under = context.scope if scope is None else scope
    try:
        results = context.builder.add(op, *values, scope=under, span=context.at(span))
    except ShapeError as error:
        meeting = FailedOperation(op, operands, at or span, called, context.symbols.runtime)
        raise Failed(explain_shape_mismatch(error, meeting)) from None
    except DimLimitError as error:
        raise_error("E0309", f"`{called}`: {error}", span)
    _check_lengths(results, called, span)
    if isinstance(op, ops.Sort):
        context.facts.reordered.add(results[0].type.shape[op.axis])
    # what is made of nothing but constants follows from the spec alone: it may be
    # worked out while compiling, and then takes memory there
    if all(v is None or v in context.facts.constant for v in values):
        context.facts.constant.update(results)
        for value in results:
            check_constant_size(value.type.shape, called, span)
    return tuple(Tensor(v, span) for v in results)


def _check_lengths(results: Sequence[Value], word: str, span: Span | None) -> None:
    """E0303 for `x[:, 3:1]` and the like, which the algebra of lengths lets through."""
    for value in results:
        for dim in value.type.shape:
            if dim.number is not None and dim.number < 0:
                title = f"`{word}` would give a length of {dim}"
                raise_error("E0303", title, span, "here")


def add_node_with_one_result(
    context: Context,
    op: Op,
    *operands: Tensor | None,
    span: Span | None = None,
    scope: str | None = None,
) -> Tensor:
    """The first result of `op`."""
    return add_node(context, op, operands, span, scope)[0]


def add_constant(
    context: Context, value: float | int | bool, dtype: str, span: Span | None = None
) -> Tensor:
    """A number as a tensor without axes. E0417 for one that single precision has not."""
    if dtype == "f32":
        check_float32_range(value, span)
    number: float | int | bool
    if dtype == "bool":
        number = bool(value)
    elif dtype.startswith(("f", "b")):
        number = float(value) or 0.0  # no -0.0: as it equals 0.0, the two are one node
    else:
        number = int(value)
    return add_node_with_one_result(context, ops.Constant(number, dtype), span=span)


MAX_FLOAT32, MIN_FLOAT32 = 2.0**128 - 2.0**103, 2.0**-150
"""What single precision rounds to infinity begins with the one, what it rounds to zero
ends with the other.
"""


def check_float32_range(value: float, span: Span | None) -> None:
    """E0417 for a number that would become infinite, or zero, in the model."""
    if abs(value) >= MAX_FLOAT32 and math.isfinite(value):
        title = f"{value:g} is more than the model's numbers hold, which end at 3.4e38"
        helps = ["write -inf to hide a score" if value < 0 else "write inf"]
        raise_error("E0417", title, span, helps=helps)
    if 0 < abs(value) <= MIN_FLOAT32:
        title = f"{value:g} would be 0 in the model, whose numbers begin at 1.4e-45"
        raise_error("E0417", title, span, helps=["write a greater number, or 0.0"])
