"""Compute dynamic lengths in the ONNX graph from input shapes.

A symbol is the length of an axis of the first input that has it; inside a sum such as
`past + new` the known terms are subtracted. Lengths are computed once in the main graph, as
i64[1], which shapes concatenate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import prod
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
    """Lengths that a graph can compute from its inputs' types and facts. `length_inputs` are scalar
    inputs that hold a symbol; `nonzero` lengths are known to be nonzero in the current context.
    """

    inputs: Mapping[str, Type]
    facts: Mapping[str, Dim] = field(default_factory=dict)
    lower_bounds: Mapping[str, int] = field(default_factory=dict)
    length_inputs: Mapping[str, str] = field(default_factory=dict)
    nonzero: frozenset[Dim] = frozenset()

    @cached_property
    def sources(self) -> Mapping[str, LengthSource]:
        """The axis, expression or input from which each symbol is computed."""
        return find_length_sources(self.inputs, self.facts, self.length_inputs)

    def emit_scalar(self, g: "Emitter", length: DimLike) -> str:
        """Emit a length as i64[]."""
        number = Dim.of(length).number
        if number is not None:
            return g.constant(number, "i64")
        vector = self.emit_length(g, Dim.of(length))
        with g.outside("lengths"):
            return g.node("Squeeze", vector, [0])

    def vector(self, g: "Emitter", dims: Sequence[DimLike]) -> str:
        """Emit several lengths as i64[n]."""
        # Adjacent constants are one vector, which ONNX's shape inference can evaluate.
        parts: list[str] = []
        for is_static, group in groupby(map(Dim.of, dims), lambda d: d.number is not None):
            if is_static:
                parts.append(g.constant([d.number for d in group], "i64"))
            else:
                parts += [self.emit_length(g, d) for d in group]
        if len(parts) < 2:
            return parts[0] if parts else g.constant([], "i64")
        with g.outside("lengths"):
            return g.node("Concat", *parts, axis=0)

    def emit_length(self, g: "Emitter", length: Dim) -> str:
        """Emit a length as i64[1]."""
        if length.number is not None:
            return g.constant([length.number], "i64")
        with g.outside("lengths"):
            if length.name is not None:
                return self._emit_symbol(g, length.name)
            if not length.symbols() <= self.sources.keys():
                return _read_whole_axis(g, self.inputs, length)
            # Additions come first, so that no intermediate value is negative.
            terms = sorted(length.terms, key=lambda term: term[1] < 0)
            if not terms or terms[0][1] < 0:
                terms.insert(0, ((), 0))
            total = self._emit_term(g, *terms[0])
            for monomial, c in terms[1:]:
                term = self._emit_term(g, monomial, abs(c))
                total = g.node("Add" if c > 0 else "Sub", total, term)
            return total

    def get_lower_bound(self, length: Dim) -> int:
        """Return a lower bound of the length."""
        # `past - window` may be negative.
        if any(c < 0 for _, c in length.terms):
            return 0
        return sum(
            c * prod(_find_atom_lower_bound(self, atom) ** power for atom, power in monomial)
            for monomial, c in length.terms
        )

    def emit_length_check(self, g: "Emitter", number: str, *lengths: Dim) -> str:
        """Emit `number`, i64[1]; the model fails at run time if a length is negative. ONNX has no
        assertion, so an index out of range is read instead.
        """
        with g.outside("lengths"):
            for length in lengths:
                if not is_never_negative(length.substitute(self.facts), self.lower_bounds):
                    # Index 1 of a vector of length 1 makes every runtime fail.
                    below = g.node("Less", self.emit_length(g, length), [0])
                    number = g.node(
                        "Gather", number, g.node("Cast", below, to=ONNX_TYPE_CODES["i64"]), axis=0
                    )
        return number

    def is_positive(self, length: Dim) -> bool:
        """Return whether the length is known to be at least 1."""
        return length in self.nonzero or self.get_lower_bound(length) > 0

    def _emit_term(self, g: "Emitter", monomial: Monomial, c: int) -> str:
        factors = [
            self._emit_symbol(g, atom) if isinstance(atom, str) else self._emit_part(g, atom)
            for atom, power in monomial
            for _ in range(power)
        ]
        if c != 1 or not factors:
            factors.append(g.constant([c], "i64"))
        total = factors[0]
        for factor in factors[1:]:
            total = g.node("Mul", total, factor)
        return total

    def _emit_part(self, g: "Emitter", part: DimFunction) -> str:
        """Emit a function of lengths. A divisor of 0, whose quotient is unused, becomes 1, since a
        division by 0 crashes.
        """
        left, right = (self.emit_length(g, d) for d in part.args)
        # Lengths are far below 2**53, up to which `Min` and `Max` are exact.
        if part.fn in ("min", "max"):
            return g.node(part.fn.capitalize(), left, right)
        if not (part.args[1].number or self.is_positive(part.args[1])):
            right = g.node("Where", g.node("Equal", right, [0]), [1], right)
        if part.fn == "/":
            return emit_exact_quotient(g, left, right)
        rest = g.node("Mod", left, right)
        return rest if part.fn == "%" else g.node("Div", g.node("Sub", left, rest), right)

    def _emit_symbol(self, g: "Emitter", symbol: str) -> str:
        if symbol in self.length_inputs:
            return g.node("Unsqueeze", self.length_inputs[symbol], [0])
        source = self.sources.get(symbol)
        assert source is not None, f"no input determines the length {symbol}"
        if isinstance(source, Dim):
            return self.emit_length(g, source)
        return _read_axis(g, self, source)


def _read_axis(g: "Emitter", lengths: LengthResolver, source: AxisSource) -> str:
    """Emit a symbol computed from an axis of an input, i64[1]."""
    whole = g.node("Shape", source.input, start=source.axis, end=source.axis + 1)
    if source.rest != 0:
        whole = g.node("Sub", whole, lengths.emit_length(g, source.rest))
    if source.factor == 1:
        return whole
    return emit_exact_quotient(g, whole, [source.factor])


def _read_whole_axis(g: "Emitter", inputs: Mapping[str, Type], length: Dim) -> str:
    """Emit the axis length that equals `length`, such as `a * b` without sources, i64[1]."""
    name, axis = next(
        (name, type.shape.index(length)) for name, type in inputs.items() if length in type.shape
    )
    return g.node("Shape", name, start=axis, end=axis + 1)


def _find_atom_lower_bound(lengths: LengthResolver, atom: Atom) -> int:
    """Return a lower bound of a symbol or of a function of lengths."""
    if isinstance(atom, str):
        if atom in lengths.facts and atom not in lengths.lower_bounds:
            return lengths.get_lower_bound(lengths.facts[atom])
        return max(lengths.lower_bounds.get(atom, 0), 0)
    a, b = (lengths.get_lower_bound(d) for d in atom.args)
    if atom.fn == "//" and (divisor := atom.args[1].number or 0) > 0:
        return a // divisor
    return {"max": max(a, b), "min": min(a, b)}.get(atom.fn, 0)


def emit_exact_quotient(g: "Emitter", above: str, below: str | list[int]) -> str:
    """Emit `above / below`, i64[1]; the model fails at run time on a remainder."""
    return g.node("Gather", g.node("Div", above, below), g.node("Mod", above, below), axis=0)
