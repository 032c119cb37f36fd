"""Sizes of weights and constants, refused while they are still numbers in a spec:
before any memory is touched.
"""

from collections.abc import Sequence
from math import prod

from specc.elaborate.budget import MOST_CELLS
from specc.elaborate.context import Context
from specc.ir.dim import LARGEST, Dim
from specc.text.diagnostic import Label, fail
from specc.text.source import Span


def check_length(context: Context, dim: Dim, name: str, at: Span | None) -> None:
    """E0308 for a weight without rows, or as long as an input decides. `at` is what
    decides the length.
    """
    # config values that are symbols pass: they are numbers when weights are made
    if context.late(dim.symbols()):
        helps = ["a weight has one size for every input: give it a config value"]
        fail(
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
    fail(
        "E0308",
        f"the weight `{name}` would be {dim} long",
        at,
        "this decides its size",
        others=others,
    )


def check_size(
    context: Context, shape: Sequence[Dim], name: str, at: Span | None
) -> None:
    """E0308 where one weight, or all of them, hold more numbers than can be counted exactly."""
    if any(d.number is None for d in shape):
        return
    count = prod(d.number or 0 for d in shape)
    # a weight that calls share counts once; a name that is asked for again replaces
    context.weight += count - context.weighed.get(name, 0)
    context.weighed[name] = count
    if count >= LARGEST:
        shown = " × ".join(str(d) for d in shape)
        fail(
            "E0308", f"the weight `{name}` would hold {shown} numbers, 2^53 or more", at
        )
    if context.weight >= LARGEST:
        fail(
            "E0308",
            "the weights of this model would hold 2^53 numbers or more",
            at,
            f"reached with `{name}`",
        )


def check_cells(shape: Sequence[Dim], word: str, at: Span | None) -> None:
    """E0224 where what follows from the spec alone holds more numbers than a constant
    may, run-time lengths being 1.
    """
    least = prod(_least(d) for d in shape)
    if least > MOST_CELLS:
        shown = " × ".join(str(d) for d in shape)
        title = (
            f"`{word}` makes {shown} numbers out of nothing; a constant holds at "
            f"most {MOST_CELLS}"
        )
        fail(
            "E0224",
            title,
            at,
            helps=[
                "lengths of 1 are repeated where they meet longer ones: make it smaller"
            ],
        )


def _least(dim: Dim) -> int:
    """A length where every symbol in it is 1; 1 where that is no length."""
    return max(1, sum(c for _, c in dim.terms))
