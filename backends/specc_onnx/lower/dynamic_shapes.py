"""Compute dynamic lengths in the ONNX graph from input shapes.

A symbol is read off the first input with that axis; one inside a sum, such as
`past + new`, is what remains when the rest is known. All is computed once in the main graph,
as vectors of one element, of which shapes are concatenations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from specc.ir.dim import Atom, Dim, DimFunction, DimLike, Monomial
from specc.ir.length_constraints import is_never_negative
from specc.ir.shape_binding import AxisSource, LengthSource, find_length_sources
from specc.ir.types import Type
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES

if TYPE_CHECKING:
    from specc_onnx.lower.emitter import Emitter


@dataclass
class LengthResolver:
    """The lengths that a graph knows from its inputs' types, facts and lower bounds. `numbers` are
    symbols given by an input i64[], `sure` lengths known to be nonzero here.
    """

    inputs: Mapping[str, Type]
    facts: Mapping[str, Dim] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    sure: frozenset[Dim] = frozenset()

    @cached_property
    def sources(self) -> Mapping[str, LengthSource]:
        """Source of the value of each symbol."""
        return find_length_sources(self.inputs, self.facts, self.numbers)

    def emit_scalar(self, g: "Emitter", length: DimLike) -> str:
        """Emit a length as i64[]."""
        number = Dim.of(length).number
        if number is not None:
            return g.constant(number, "i64")
        one = self.one(g, Dim.of(length))
        with g.outside("lengths"):
            return g.node("Squeeze", one, g.vector(0))

    def vector(self, g: "Emitter", dims: Sequence[DimLike]) -> str:
        """Emit several lengths as i64[n]."""
        numbers = [Dim.of(d).number for d in dims]
        if None not in numbers:
            return g.constant([n for n in numbers if n is not None], "i64")
        # Adjacent constants are merged into one: fewer nodes, and shapes that ONNX's inference can
        # evaluate.
        parts: list[str] = []
        run: list[int] = []
        for length, number in zip(dims, numbers, strict=True):
            if number is not None:
                run.append(number)
                continue
            if run:
                parts.append(g.vector(*run))
                run = []
            parts.append(self.one(g, Dim.of(length)))
        if run:
            parts.append(g.vector(*run))
        with g.outside("lengths"):
            return parts[0] if len(parts) == 1 else g.node("Concat", *parts, axis=0)

    def one(self, g: "Emitter", length: Dim) -> str:
        """Emit a length as i64[1]."""
        if length.number is not None:
            return g.vector(length.number)
        with g.outside("lengths"):
            if length.name is not None:
                return self._emit_symbol(g, length.name)
            if not length.symbols() <= self.sources.keys():
                return _read_whole_axis(g, self.inputs, length)
            # Additions come first, so that no intermediate value is negative.
            plus = [(m, c) for m, c in length.terms if c > 0]
            minus = [(m, -c) for m, c in length.terms if c < 0]
            if not plus:
                plus = [((), 0)]
            total = self._emit_term(g, *plus[0])
            for monomial, c in plus[1:]:
                total = g.node("Add", total, self._emit_term(g, monomial, c))
            for monomial, c in minus:
                total = g.node("Sub", total, self._emit_term(g, monomial, c))
            return total

    def floor_of(self, length: Dim) -> int:
        """Return a lower bound of the length."""
        total = 0
        for monomial, c in length.terms:
            # `past - window` may be negative.
            if c < 0:
                return 0
            product = c
            for atom, power in monomial:
                product *= _find_atom_lower_bound(self, atom) ** power
            total += product
        return total

    def emit_length_check(self, g: "Emitter", number: str, *lengths: Dim) -> str:
        """Emit `number`, i64[1], so that the model stops if a length is below 0, by reading a
        position that does not exist: ONNX has no assertion.
        """
        with g.outside("lengths"):
            for length in lengths:
                if not is_never_negative(length.substitute(self.facts), self.least):
                    # With length 1, row 0 exists and row 1 does not: the cast of `below` would
                    # select the latter for a negative length, which every runtime refuses.
                    below = g.node("Less", self.one(g, length), g.vector(0))
                    number = g.node(
                        "Gather", number, g.node("Cast", below, to=ONNX_TYPE_CODES["i64"]), axis=0
                    )
        return number

    def positive(self, length: Dim) -> bool:
        """Return whether the length is known to be at least 1."""
        return length in self.sure or self.floor_of(length) > 0

    def _emit_term(self, g: "Emitter", monomial: Monomial, c: int) -> str:
        factors = [self._emit_atom(g, atom) for atom, power in monomial for _ in range(power)]
        if c != 1 or not factors:
            factors.append(g.vector(c))
        total = factors[0]
        for factor in factors[1:]:
            total = g.node("Mul", total, factor)
        return total

    def _emit_atom(self, g: "Emitter", atom: Atom) -> str:
        return self._emit_symbol(g, atom) if isinstance(atom, str) else self._emit_part(g, atom)

    def _emit_part(self, g: "Emitter", part: DimFunction) -> str:
        """Emit one part of a length. Divisors are at least 1, since a division by 0 crashes; that
        quotient is never used.
        """
        left, right = (self.one(g, d) for d in part.args)
        # Lengths are far below 2**53, up to which `Min` and `Max` are exact.
        if part.fn in ("min", "max"):
            return g.node(part.fn.capitalize(), left, right)
        if not (part.args[1].number or self.positive(part.args[1])):
            right = g.node("Where", g.node("Equal", right, g.vector(0)), g.vector(1), right)
        if part.fn == "/":
            return emit_exact_quotient(g, left, right)
        rest = g.node("Mod", left, right)
        return rest if part.fn == "%" else g.node("Div", g.node("Sub", left, rest), right)

    def _emit_symbol(self, g: "Emitter", symbol: str) -> str:
        if symbol in self.numbers:
            return g.node("Unsqueeze", self.numbers[symbol], g.vector(0))
        source = self.sources.get(symbol)
        assert source is not None, f"no input determines the length {symbol}"
        if isinstance(source, Dim):
            return self.one(g, source)
        return _read_axis(g, self, source)


def _read_axis(g: "Emitter", lengths: LengthResolver, source: AxisSource) -> str:
    """Compute a symbol from an axis of an input, i64[1]."""
    whole = g.node("Shape", source.input, start=source.axis, end=source.axis + 1)
    if source.rest != 0:
        whole = g.node("Sub", whole, lengths.one(g, source.rest))
    if source.factor == 1:
        return whole
    return emit_exact_quotient(g, whole, g.vector(source.factor))


def _read_whole_axis(g: "Emitter", inputs: Mapping[str, Type], length: Dim) -> str:
    """Read off an input a length such as `a * b` whose symbols have no source, i64[1]."""
    name, axis = next(
        (name, type.shape.index(length)) for name, type in inputs.items() if length in type.shape
    )
    return g.node("Shape", name, start=axis, end=axis + 1)


def _find_atom_lower_bound(lengths: LengthResolver, atom: Atom) -> int:
    """Return a lower bound of a symbol or of a function of lengths."""
    if isinstance(atom, str):
        # bounds from an equation apply if no stronger ones are declared
        if atom in lengths.facts and atom not in lengths.least:
            return lengths.floor_of(lengths.facts[atom])
        return max(lengths.least.get(atom, 0), 0)
    a, b = (lengths.floor_of(d) for d in atom.args)
    if atom.fn == "//" and (divisor := atom.args[1].number or 0) > 0:
        return a // divisor
    return {"max": max(a, b), "min": min(a, b)}.get(atom.fn, 0)


def emit_exact_quotient(g: "Emitter", above: str, below: str) -> str:
    """Emit `above / below`, i64[1]; the model stops where that leaves a remainder."""
    return g.node("Gather", g.node("Div", above, below), g.node("Mod", above, below), axis=0)
