"""Emit nodes that compute the sizes of dynamic dimensions from input shapes. The size of a symbolic
dimension is read from the first input that has this dimension. If the size of the axis is a sum
such as `past + new`, the known terms are subtracted. Sizes are computed once in the main graph as
i64[1] tensors, which are then concatenated into shapes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING

from specc.analysis.length_limits import is_provably_nonnegative
from specc.ir.dim import Atom, Dim, DimFunction, DimLike, Monomial
from specc.ir.input_shapes_and_defaults import LengthSource, find_symbolic_dim_sources
from specc.ir.types import Type
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES
from specc_onnx.lower.onnx_values import OnnxValue, UnrankedTensor

if TYPE_CHECKING:
    from specc_onnx.lower.emitter import Emitter


@dataclass
class DimResolver:
    """A resolver that computes a graph's dimensions from input shapes and dimension equations.
    `length_inputs` maps symbolic dimensions to scalar inputs that contain the sizes of these
    dimensions. `nonzero` dimensions are known to be nonzero in the current context.
    """

    inputs: Mapping[str, Type]
    length_equations: Mapping[str, Dim] = field(default_factory=dict)
    lower_bounds: Mapping[str, int] = field(default_factory=dict)
    length_inputs: Mapping[str, str] = field(default_factory=dict)
    nonzero: frozenset[Dim] = frozenset()

    @cached_property
    def length_sources(self) -> Mapping[str, LengthSource]:
        """Return the axis, expression or input from which each symbolic dimension is computed."""
        return find_symbolic_dim_sources(self.inputs, self.length_equations, self.length_inputs)

    def emit_dim_scalar(self, g: "Emitter", dim: DimLike) -> OnnxValue:
        """Emit a dimension as i64[]."""
        number = Dim.from_value(dim).number
        if number is not None:
            return g.emit_constant(number, "i64")
        vector = self.emit_dim(g, Dim.from_value(dim))
        with g.hoist_nodes("lengths"):
            return vector.squeeze(0)

    def emit_dim_vector(self, g: "Emitter", dims: Sequence[DimLike]) -> OnnxValue:
        """Emit several dimensions as a vector, i64[n]."""
        # Adjacent constants are merged into one vector, because ONNX's shape inference can evaluate
        # a vector.
        parts: list[OnnxValue] = []
        for is_static, group in groupby(map(Dim.from_value, dims), lambda d: d.number is not None):
            if is_static:
                parts.append(g.emit_constant([d.number for d in group], "i64"))
            else:
                parts += [self.emit_dim(g, d) for d in group]
        if len(parts) < 2:
            return parts[0] if parts else g.emit_constant([], "i64")
        with g.hoist_nodes("lengths"):
            return g.emit_node("Concat", *parts, axis=0)

    def emit_dim(self, g: "Emitter", dim: Dim) -> OnnxValue:
        """Emit a dimension as i64[1]."""
        if dim.number is not None:
            return g.emit_constant([dim.number], "i64")
        with g.hoist_nodes("lengths"):
            if dim.name is not None:
                return self._emit_symbol(g, dim.name)
            if not dim.symbols() <= self.length_sources.keys():
                return self._emit_dim_from_axis(g, dim)
            # Positive terms are added before negative terms, so that no intermediate sum is
            # negative.
            terms = sorted(dim.terms, key=lambda term: term[1] < 0)
            if not terms or terms[0][1] < 0:
                terms.insert(0, ((), 0))
            total = self._emit_term(g, *terms[0])
            for monomial, coefficient in terms[1:]:
                term = self._emit_term(g, monomial, abs(coefficient))
                total = total + term if coefficient > 0 else total - term
            return total

    def get_lower_bound(self, length: Dim) -> int:
        """Return a lower bound of a dimension, or 0 if the dimension may be negative."""
        # A dimension such as `past - window` may be negative.
        if any(coefficient < 0 for _, coefficient in length.terms):
            return 0
        return sum(
            coefficient
            * prod(_find_atom_lower_bound(self, atom) ** power for atom, power in monomial)
            for monomial, coefficient in length.terms
        )

    def emit_nonnegative_check(self, g: "Emitter", size: OnnxValue, *lengths: Dim) -> OnnxValue:
        """Emit `size`, i64[1], with a run-time check that fails if one of `lengths` is negative.
        ONNX has no assertions, so an index that is out of range makes the model fail.
        """
        with g.hoist_nodes("lengths"):
            for length in lengths:
                if not is_provably_nonnegative(
                    length.substitute(self.length_equations), self.lower_bounds
                ):
                    # Index 1 of a vector of size 1 is invalid in every runtime.
                    is_negative = self.emit_dim(g, length) < [0]
                    index = is_negative.apply_op("Cast", to=ONNX_TYPE_CODES["i64"])
                    size = size.gather(index, 0)
        return size

    def is_positive(self, length: Dim) -> bool:
        """Return True if a dimension is known to be at least 1."""
        return length in self.nonzero or self.get_lower_bound(length) > 0

    def _emit_term(self, g: "Emitter", monomial: Monomial, coefficient: int) -> OnnxValue:
        """Emit `coefficient` times a product of symbolic dimensions as a tensor i64[1]."""
        factors = [
            self._emit_symbol(g, atom)
            if isinstance(atom, str)
            else self._emit_length_function(g, atom)
            for atom, power in monomial
            for _ in range(power)
        ]
        if coefficient != 1 or not factors:
            factors.append(g.emit_constant([coefficient], "i64"))
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return product

    def _emit_length_function(self, g: "Emitter", function: DimFunction) -> OnnxValue:
        """Emit a minimum, maximum, quotient or remainder of dimensions, i64[1]. Division by 0
        crashes, so a divisor of 0 is replaced by 1. In this case, no result depends on the quotient
        or the remainder.
        """
        left, right = (self.emit_dim(g, d) for d in function.args)
        # `Min` and `Max` are exact up to 2**53, which is larger than any dimension.
        if function.fn in ("min", "max"):
            return left.apply_op(function.fn.capitalize(), right)
        if not (function.args[1].number or self.is_positive(function.args[1])):
            right = right.equals([0]).where([1], right)
        if function.fn == "/":
            return emit_exact_quotient(left, right)
        remainder = left % right
        return remainder if function.fn == "%" else (left - remainder) / right

    def _emit_symbol(self, g: "Emitter", symbol: str) -> OnnxValue:
        if symbol in self.length_inputs:
            length_input = UnrankedTensor(g, self.length_inputs[symbol], "i64")
            return length_input.unsqueeze(0)
        source = self.length_sources.get(symbol)
        assert source is not None, f"no input determines the length {symbol}"
        if isinstance(source, Dim):
            return self.emit_dim(g, source)
        axis_length = _emit_input_length(g, source.input, source.axis)
        if source.offset != 0:
            axis_length = axis_length - self.emit_dim(g, source.offset)
        if source.factor == 1:
            return axis_length
        return emit_exact_quotient(axis_length, [source.factor])

    def _emit_dim_from_axis(self, g: "Emitter", length: Dim) -> OnnxValue:
        """Read a size i64[1] with unknown factors, such as `a * b`, from an axis of an input."""
        for name, type in self.inputs.items():
            if length in type.shape:
                return _emit_input_length(g, name, type.shape.index(length))
        raise AssertionError(f"no input determines the length {length}")


def _emit_input_length(g: "Emitter", name: str, axis: int) -> OnnxValue:
    """Emit the size of an axis of an input, i64[1]."""
    return UnrankedTensor(g, name, "").apply_op("Shape", start=axis, end=axis + 1)


def _find_atom_lower_bound(lengths: DimResolver, atom: Atom) -> int:
    """Return a lower bound of a symbolic dimension or of a function of dimensions."""
    if isinstance(atom, str):
        if atom in lengths.length_equations and atom not in lengths.lower_bounds:
            return lengths.get_lower_bound(lengths.length_equations[atom])
        return max(lengths.lower_bounds.get(atom, 0), 0)
    a, b = (lengths.get_lower_bound(d) for d in atom.args)
    if atom.fn == "//" and (divisor := atom.args[1].number or 0) > 0:
        return a // divisor
    return {"max": max(a, b), "min": min(a, b)}.get(atom.fn, 0)


def emit_exact_quotient(dividend: OnnxValue, divisor: OnnxValue | list[int]) -> OnnxValue:
    """Emit `dividend / divisor`, i64[1]. The model fails at run time if the remainder is not 0."""
    return (dividend / divisor).gather(dividend % divisor, 0)


@contextmanager
def assume_nonzero_dims(g: "Emitter", *dims: Dim) -> Iterator[None]:
    """Treat the dimensions `dims` as nonzero inside a `with` block."""
    outer_lengths = g.lengths
    g.lengths = replace(outer_lengths, nonzero=outer_lengths.nonzero | {*dims})
    try:
        yield
    finally:
        g.lengths = outer_lengths


@contextmanager
def bind_dim_size(g: "Emitter", dim: Dim, size: OnnxValue) -> Iterator[None]:
    """Bind the symbolic dimension `dim` to `size`, i64[] > 0, inside a `with` block."""
    length_inputs = {**g.lengths.length_inputs, str(dim): size.name}
    nonzero = g.lengths.nonzero | {dim}
    with g.enter_graph(replace(g.lengths, length_inputs=length_inputs, nonzero=nonzero)):
        yield
