"""Costs and shapes as people read them: formulas in the lengths of a model, or numbers."""

import re
from collections.abc import Mapping

from specc.ir.dim import Dim, DimError
from specc.ir.types import Type
from specc.text.diagnostic import fail

UNITS = (
    (10**15, "quadrillion"),
    (10**12, "trillion"),
    (10**9, "billion"),
    (10**6, "million"),
)


def rounded(number: int) -> str:
    """`137 billion`; a small number as it is."""
    for size, unit in UNITS:
        # what would be rounded to a thousand is one of the next unit
        if number >= size * 0.9995:
            return f"{number / size:.3g} {unit}"
    return grouped(number)


def type_at(type: Type, at: Mapping[str, int]) -> str:
    """`f32[batch, 128, 768]`."""
    return f"{type.dtype}[{', '.join(formula(d, at) for d in type.shape)}]"


def substituted(dim: Dim, at: Mapping[str, int]) -> Dim:
    """A dim with numbers for lengths. E0407 where they do not fit."""
    try:
        return dim.substitute(at)
    except DimError as error:
        fail("E0407", f"these lengths do not fit the model: {error}")


def formula(dim: Dim, at: Mapping[str, int]) -> str:
    """A dim as mathematics writes it: `2·batch·seq²·768`, or a number where all is known."""
    dim = substituted(dim, at)
    if dim.number is not None:
        return grouped(dim.number)
    text = str(dim)
    for power, sign in (("^2", "²"), ("^3", "³")):
        text = text.replace(power, sign)
    return LONG_NUMBER.sub(lambda n: grouped(int(n[0])), text.replace("*", "·"))


LONG_NUMBER = re.compile(r"(?<!\w)\d{4,15}(?!\w)")
"""A factor of four digits and more, not digits in the name of a length."""


def grouped(number: int) -> str:
    """`124 439 808`."""
    return f"{number:,}".replace(",", " ")
