"""Faults in a used spec, shown with the place that uses it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from specc.elaborate.context import Context
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.source import Span


@contextmanager
def blamed(use: tree.Use) -> Iterator[None]:
    """While a used spec is read: what is wrong there is shown with the `use` too."""
    try:
        yield
    except Failed as failed:
        said = f"`{use.name}` is used here"
        found = [beside(d, use.span, said) for d in failed.diagnostics]
        raise Failed(*found) from None


@contextmanager
def entered(context: Context, span: Span | None, name: str) -> Iterator[None]:
    """While a block of a used file runs, which is called at `span`; what it notes and
    goes on behind is shown with that place as well.
    """
    before, said = len(context.diagnostics), f"`{name}` is called here"
    try:
        yield
    except Failed as failed:
        raise Failed(*[beside(d, span, said) for d in failed.diagnostics]) from None
    finally:
        noted = context.diagnostics[before:]
        context.diagnostics[before:] = [beside(d, span, said) for d in noted]


def beside(fault: Diagnostic, span: Span | None, said: str) -> Diagnostic:
    """A fault with one more place, unless it is in that file, or shows the place already."""
    if span is None or (fault.primary and fault.primary.span.source is span.source):
        return fault
    if any(label.span == span for label in fault.others):
        return fault
    return replace(fault, others=(*fault.others, Label(span, said)))
