"""Adding nodes on behalf of the user's text, and saying in his terms why one does not fit."""

import math
from collections.abc import Sequence

from specc.elaborate.clash import Meeting, clash
from specc.elaborate.context import MOST_NODES, Context
from specc.elaborate.sizes import check_cells
from specc.elaborate.values import Tensor
from specc.ir import ops
from specc.ir.dim import DimLimit
from specc.ir.graph import Value
from specc.ir.op import Op
from specc.ir.types import ShapeError
from specc.text.diagnostic import Failed, fail
from specc.text.source import Span


def add(
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
    if len(context.builder.nodes) >= MOST_NODES:
        fail("E0109", f"this spec expands to more than {MOST_NODES} operations", span)
    called = word or op.name
    values = [o.value if o else None for o in operands]
    # the outermost scope has an empty name, which is one all the same
    under = context.scope if scope is None else scope
    try:
        results = context.builder.add(op, *values, scope=under, span=context.at(span))
    except ShapeError as error:
        meeting = Meeting(op, operands, at or span, called, context.lengths)
        raise Failed(clash(error, meeting)) from None
    except DimLimit as error:
        fail("E0309", f"`{called}`: {error}", span)
    _check_lengths(results, called, span)
    if isinstance(op, ops.Sort):
        context.sorted.add(results[0].type.shape[op.axis])
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
    scope: str | None = None,
) -> Tensor:
    """The first result of `op`."""
    return add(context, op, operands, span, scope)[0]


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
