"""Find where the value of each symbolic length comes from at run time."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from specc.ir.dim import Dim
from specc.ir.types import Type


@dataclass(frozen=True, slots=True)
class AxisSource:
    """A symbol read off an axis of an input: `(length - rest) / factor`. With an input
    `[batch, 2 * past + new]` and `new` known, `past` is (that input, 1, 2, new).
    """

    input: str
    axis: int
    factor: int
    rest: Dim


LengthSource: TypeAlias = AxisSource | Dim
"""An axis of an input, or other lengths that have sources."""


def find_length_sources(
    inputs: Mapping[str, Type], facts: Mapping[str, Dim] | None = None, known: Collection[str] = ()
) -> dict[str, LengthSource]:
    """Return a source for every symbol that has one. A symbol that is an axis by itself
    is read off the first such axis; others follow from `facts`, then from what remains of
    an axis such as `past + new` when the rest is known. `known` symbols need no input.
    """
    found: dict[str, LengthSource] = {s: Dim.symbol(s) for s in known}
    axes = [(n, a, d) for n, t in inputs.items() for a, d in enumerate(t.shape)]
    for name, axis, length in axes:
        if length.name is not None:
            found.setdefault(length.name, AxisSource(name, axis, 1, Dim.of(0)))
    while more := _find_next_source(axes, facts or {}, found):
        found |= [more]
    return found


def _find_next_source(
    axes: list[tuple[str, int, Dim]], facts: Mapping[str, Dim], found: Mapping[str, LengthSource]
) -> tuple[str, LengthSource] | None:
    """Return one more symbol that follows from those found, with its source."""
    for symbol, length in facts.items():
        if symbol not in found and length.symbols() <= found.keys():
            return symbol, length
    for name, axis, length in axes:
        for symbol, factor, rest in _iterate_linear_terms(length):
            if symbol not in found and rest.symbols() <= found.keys():
                return symbol, AxisSource(name, axis, factor, rest)
    return None


def _iterate_linear_terms(length: Dim) -> Iterator[tuple[str, int, Dim]]:
    """Yield the symbols of which `length` is `factor * symbol + rest`."""
    for monomial, factor in length.terms:
        match monomial:
            case ((str() as symbol, 1),):
                rest = length - Dim({monomial: factor})
                if symbol not in rest.symbols():
                    yield symbol, factor, rest
