"""Tensors that do not fit an operation, said in the words of the user's text."""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.elaborate.values import Tensor, show_type
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import ShapeError
from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span


@dataclass(frozen=True, slots=True)
class Meeting:
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
        return isinstance(
            self.op, ops.Arith | ops.Compare | ops.And | ops.Or | ops.Where
        )


def clash(error: ShapeError, meeting: Meeting) -> Diagnostic:
    """The diagnostic of a shape error: two lengths that meet, or an operand that does not fit."""
    operands, span = meeting.operands, meeting.span
    given = [
        o
        for n in error.operands
        if n < len(operands) and (o := operands[n]) is not None
    ]
    # the usual fault: two lengths that should be one, each with a story of its own
    if len(error.dims) == 2 and len(given) == 2:
        return _two_lengths(error.dims, given, meeting)
    others = tuple(
        Label(o.span, show_type(o.type)) for o in given if o.span and o.span != span
    )
    title = error.title
    for n, operand in enumerate(operands):
        # the op knows its operands by number, the user by what he wrote
        if operand is not None and operand.span and f"operand {n + 1}" in title:
            title = title.replace(f"operand {n + 1}", f"`{_short(operand.span.text)}`")
    return Diagnostic(
        "E0301",
        f"`{meeting.word}`: {title}",
        Label(span, "here") if span else None,
        others,
        helps=(error.hint,) if error.hint else (),
    )


def _two_lengths(
    dims: Sequence[Dim], given: Sequence[Tensor], meeting: Meeting
) -> Diagnostic:
    labels, notes = [], []
    for dim, operand in zip(dims, given, strict=True):
        text = _with_length(operand, dim)
        if operand.span and operand.span != meeting.span:
            # the text that the user would look at; where both are one text, a note
            # tells it
            labels.append(Label(operand.span, text))
        else:
            notes.append(text)
    for dim in dims:
        if dim.origin and dim.origin.span:
            labels.append(Label(dim.origin.span, f"`{dim}` comes from here"))
    title, text = _told_of(dims, meeting.word)
    return Diagnostic(
        "E0302",
        title,
        Label(meeting.span, text) if meeting.span else None,
        _distinct(labels),
        tuple(notes),
        tuple(_mends(dims, given, meeting)),
    )


def _with_length(operand: Tensor, dim: Dim) -> str:
    """A type, and which of its axes has a length; none where the op made it of several."""
    axes = [n for n, d in enumerate(operand.shape) if d == dim]
    which = f"axis {axes[0]} is " if axes else ""
    return f"{show_type(operand.type)} ({which}`{dim}`{_source(dim)})"


def _told_of(dims: Sequence[Dim], word: str) -> tuple[str, str]:
    """Title and label: two symbols may be equal by chance, two numbers cannot."""
    a, b = dims
    if a.number is not None or b.number is not None:
        return f"a length of {a} meets one of {b}", f"`{word}` needs them to be equal"
    label = (
        f"these two lengths are independent, so `{word}` is defined only "
        "when they happen to be equal"
    )
    return f"`{a}` and `{b}` meet on the same axis", label


def _mends(dims: Sequence[Dim], given: Sequence[Tensor], meeting: Meeting) -> list[str]:
    """What to write so that two tensors fit: an axis for the smaller, attention between
    sequences, or that the lengths are one.
    """
    equal = _equal(dims, meeting.lengths)
    if not meeting.each:
        return equal
    left, right = given
    for small, large in ((left, right), (right, left)):
        if small.span and (axes := _missing(small.shape, large.shape)):
            return [_inserted(small.span, axes, "gives it the axes of the other")]
    # row numbers beside one number for each sample, or any two vectors
    if len(left.shape) == len(right.shape) == 1:
        made = left.value.node
        alone = right if made and isinstance(made.op, ops.Extent) else left
        if alone.span:
            why = "pairs each with each"
            return [_inserted(alone.span, [1], why)]
    texts = [_whole(x.span) for x in given]
    sequences = len(left.shape) == len(right.shape) in (3, 4)
    if sequences and all(texts) and left.shape[-1] == right.shape[-1]:
        q, k = texts
        look = f"to let one look at the other write `attend({q}, {k}, {k}, mask=all)`"
        return [look, *equal]
    return equal


def _missing(small: Sequence[Dim], large: Sequence[Dim]) -> list[int]:
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


def _whole(span: Span | None) -> str:
    """A text to be written again; `…` for one that is too long for that."""
    text = _short(span.text) if span else "…"
    return "…" if text.endswith("…") else text


def _inserted(span: Span, axes: Sequence[int], why: str) -> str:
    """The help to insert axes."""
    made = _whole(span)
    for axis in axes:
        made = f"insert({made}, axis={axis})"
    return f"`{made}` {why}"


def _equal(dims: Sequence[Dim], lengths: frozenset[str]) -> list[str]:
    """How to say that two lengths are one."""
    a, b = (d.name for d in dims)
    if not a or not b:
        return []
    if b in lengths:
        return [f"if they are always equal write `where {b} = {a}` on the graph"]
    if a in lengths:
        return [f"if they are always equal write `where {a} = {b}` on the graph"]
    return [f"if they are always equal write `require {a} == {b}`"]


def _source(dim: Dim) -> str:
    return f", from {dim.origin.text}" if dim.origin and dim.origin.text else ""


def _distinct(labels: list[Label]) -> tuple[Label, ...]:
    seen: dict[Span, Label] = {}
    for label in labels:
        seen.setdefault(label.span, label)
    return tuple(seen.values())


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 40 else flat[:37] + "…"
