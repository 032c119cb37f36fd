"""Adding nodes on behalf of the user's text, and saying in his terms why one does not fit."""

import math
from collections.abc import Sequence

from specc.elaborate.context import MOST_NODES, Context
from specc.elaborate.sizes import check_cells
from specc.elaborate.values import Tensor, show_type
from specc.ir import ops
from specc.ir.dim import Dim, DimLimit
from specc.ir.graph import Value
from specc.ir.op import Op
from specc.ir.types import ShapeError
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Span


def add(
    context: Context,
    op: Op,
    operands: Sequence[Tensor | None],
    span: Span | None,
    scope: str = "",
    word: str = "",
    at: Span | None = None,
) -> tuple[Tensor, ...]:
    """The results of `op`, or E0301/E0302 under the text of the operands. `word` is
    what the user called it, `at` the sign or word itself where that is less than
    `span`.
    """
    if len(context.builder.nodes) >= MOST_NODES:
        fail("E0109", f"this spec expands to more than {MOST_NODES} operations", span)
    called = word or op.name
    values = [o.value if o else None for o in operands]
    try:
        results = context.builder.add(
            op, *values, scope=scope or context.scope, span=context.at(span)
        )
    except ShapeError as error:
        raise Failed(clash(error, operands, at or span, called)) from None
    except DimLimit as error:
        fail("E0309", f"`{called}`: {error}", span)
    _check_lengths(results, called, span)
    # what is made of nothing but constants follows from the spec alone: it may be
    # worked out while compiling, and then takes memory there
    if all(v is None or v in context.fixed for v in values):
        context.fixed.update(results)
        for value in results:
            check_cells(value.type.shape, called, span)
    return tuple(Tensor(v, span) for v in results)


def _check_lengths(results: Sequence[Value], word: str, span: Span | None) -> None:
    """E0303 for `x[:, 3:1]` and the like, which the algebra of lengths lets through."""
    for value in results:
        for dim in value.type.shape:
            if dim.number is not None and dim.number < 0:
                title = f"`{word}` would give a length of {dim}"
                fail("E0303", title, span, "here")


def one(
    context: Context,
    op: Op,
    *operands: Tensor | None,
    span: Span | None = None,
    scope: str = "",
) -> Tensor:
    """The first result of `op`."""
    return add(context, op, operands, span, scope)[0]


def clash(
    error: ShapeError, operands: Sequence[Tensor | None], span: Span | None, word: str
) -> Diagnostic:
    """The diagnostic of a shape error: two lengths that meet, or an operand that does not fit."""
    given = [
        o
        for n in error.operands
        if n < len(operands) and (o := operands[n]) is not None
    ]
    # the usual fault: two lengths that should be one, each with a story of its own
    if len(error.dims) == 2 and len(given) == 2:
        return _two_lengths(error.dims, given, span, word)
    others = tuple(
        Label(o.span, show_type(o.type)) for o in given if o.span and o.span != span
    )
    title = error.title
    for n, operand in enumerate(operands):
        # the op knows its operands by number, the user by what he wrote
        if operand is not None and operand.span and f"operand {n + 1}" in title:
            title = title.replace(f"operand {n + 1}", f"`{_short(operand.span.text)}`")
    primary = Label(span, "here") if span else None
    return Diagnostic(
        "E0301",
        f"`{word}`: {title}",
        primary,
        others,
        helps=(error.hint,) if error.hint else (),
    )


def _two_lengths(
    dims: Sequence[Dim], given: Sequence[Tensor], span: Span | None, word: str
) -> Diagnostic:
    a, b = dims
    labels, notes = [], []
    for dim, operand in zip(dims, given, strict=True):
        axes = [n for n, d in enumerate(operand.shape) if d == dim]
        where = (
            f" (axis {axes[0]} is `{dim}`{_source(dim)})"
            if axes
            else f" (`{dim}`{_source(dim)})"
        )
        text = show_type(operand.type) + where
        if operand.span and operand.span != span:
            # the text that the user would look at; where both are one text, a note
            # tells it
            labels.append(Label(operand.span, text))
        else:
            notes.append(text)
    for dim in dims:
        if dim.origin and dim.origin.span:
            labels.append(Label(dim.origin.span, f"`{dim}` comes from here"))
    # two symbols may be equal by chance, two numbers cannot
    if a.number is None and b.number is None:
        title = f"`{a}` and `{b}` meet on the same axis"
        text = (
            f"these two lengths are independent, so `{word}` is defined only when "
            "they happen to be equal"
        )
    else:
        title, text = (
            f"a length of {a} meets one of {b}",
            f"`{word}` needs them to be equal",
        )
    helps = []
    if a.name and b.name:
        helps.append(
            "to let one look at the other use attend(…); if they are always equal "
            f"write `where {b} = {a}` on the graph"
        )
    primary = Label(span, text) if span else None
    return Diagnostic(
        "E0302", title, primary, _distinct(labels), tuple(notes), tuple(helps)
    )


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


def constant(
    context: Context, value: float | int | bool, dtype: str, span: Span | None = None
) -> Tensor:
    """A number as a tensor without axes. E0417 for one that single precision has not."""
    if dtype == "f32":
        check_single(value, span)
    number: float | int | bool
    if dtype == "bool":
        number = bool(value)
    elif dtype.startswith(("f", "b")):
        number = float(value) or 0.0  # no -0.0: as it equals 0.0, the two are one node
    else:
        number = int(value)
    return one(context, ops.Constant(number, dtype), span=span)


GREATEST, LEAST = 2.0**128 - 2.0**103, 2.0**-150
"""What single precision rounds to infinity begins with the one, what it rounds to zero
ends with the other.
"""


def check_single(value: float, span: Span | None) -> None:
    """E0417 for a number that would become infinite, or zero, in the model."""
    if abs(value) >= GREATEST and math.isfinite(value):
        title = f"{value:g} is more than the model's numbers hold, which end at 3.4e38"
        helps = ["write -inf to hide a score" if value < 0 else "write inf"]
        fail("E0417", title, span, helps=helps)
    if 0 < abs(value) <= LEAST:
        title = f"{value:g} would be 0 in the model, whose numbers begin at 1.4e-45"
        fail("E0417", title, span, helps=["write a greater number, or 0.0"])
