"""ONNX value types at concrete lengths: inferred types, conflicts and merges."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from specc.ir.array import Array
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.ir.ir_text import parse_dim
from specc.ir.length_constraints import find_valid_lengths

MAX_FOLDED_ELEMENTS = 4096
"""Maximum number of elements of a constant-folded value."""
FOLDED_DTYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""The element types of constant-folded values."""

PartialShape: TypeAlias = tuple[int | None, ...]


class UnsoundModelError(Exception):
    """An invalid model, always a bug of specc; the message names the value."""


class OperandMismatchError(Exception):
    """The operands of a node are incompatible."""


@dataclass(kw_only=True)
class InferredTypes:
    """Inferred types of a model's values at the lengths `env`, and the values of small integer
    `constants`. They must agree with `declared` types; `unknown_lengths` are declared lengths that
    `env` lacks (value, axis, formula). `is_reached` is False in a branch that may not run.
    """

    env: Mapping[str, int]
    opsets: Mapping[str, int]
    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    declared: dict[str, TypeProto] = field(default_factory=dict)
    unknown_lengths: list[tuple[str, int, str]] = field(default_factory=list)
    is_reached: bool = True

    def add_value(self, name: str, type: TypeProto, numbers: Array | None = None) -> None:
        """Add a value. Raise UnsoundModelError if its type contradicts the declared one."""
        known = self.declared.get(name)
        if known is not None:
            if reason := find_type_conflict(known, type):
                raise UnsoundModelError(f"`{name}`: {reason}")
            type = merge_types(known, type)
        self.types[name] = type
        if (
            numbers is not None
            and numbers.size <= MAX_FOLDED_ELEMENTS
            and type.tensor_type.elem_type in FOLDED_DTYPES
        ):
            self.constants[name] = numbers

    def add_declared_types(self, values: Iterable[ValueInfoProto]) -> None:
        """Add the types that the model declares."""
        for value in values:
            self.declared[value.name] = substitute_type_lengths(value.type, self.env)
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.dim_param and _evaluate_length(dim, self.env) is None:
                    self.unknown_lengths.append((value.name, axis, dim.dim_param))

    def check_unknown_lengths(self) -> None:
        """Raise UnsoundModelError if an unknown symbol has two lengths or a formula is wrong."""
        env = dict(self.env)
        formulas = []
        for name, axis, text in self.unknown_lengths:
            shape = self.get_shape(name) if name in self.types else None
            length = shape[axis] if shape else None
            if length is None:
                continue
            if _NAME_PATTERN.fullmatch(text):
                _check_equal_length(name, axis, text, env.setdefault(text, length), length)
            else:
                formulas.append((name, axis, text, length))
        for name, axis, text, length in formulas:
            # a dotted name is an axis of one carry; no formula refers to it
            is_carry = "." in text
            if not is_carry:
                _solve_formula(text, length, env)
            known = _evaluate_formula(text, env)
            if known is not None or is_carry:
                _check_equal_length(name, axis, text, known, length)

    def get_shape(self, name: str) -> PartialShape | None:
        """Return the lengths of a value; None if its rank is unknown."""
        return read_shape(self.types[name])

    def get_element_type(self, name: str) -> int:
        """Return the ONNX element type of a value."""
        code: int = self.types[name].tensor_type.elem_type
        return code

    def get_static_shape(self, name: str) -> list[int] | None:
        """Return the lengths of a value if all are known, else None."""
        shape = self.get_shape(name)
        known = [d for d in shape or () if d is not None]
        return known if shape is not None and len(known) == len(shape) else None


# --- lengths and types ----------------------------------------------------------------


def choose_distinct_lengths(
    dims: Iterable[Dim],
    graph: Graph,
    lower_limits: Mapping[str, int] | None = None,
    upper_limits: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return a length for every symbol of `dims`: distinct primes, above `lower_limits` and at most
    `upper_limits`, or the nearest valid lengths; {} if there are none.
    """
    listed = list(dims)
    fixed = {d.number for d in listed if d.number is not None}
    symbols = sorted({s for d in listed for s in d.symbols()} - graph.length_equations.keys())
    env = _choose_primes(symbols, fixed, graph, lower_limits or {}, upper_limits or {})
    found = find_valid_lengths(graph, env, excluded={*env.values(), *fixed})
    if not found:
        # A short position table may leave too few lengths for distinct ones.
        small = {s: max(n, graph.min_lengths.get(s, 0)) for n, s in enumerate(symbols, 1)}
        found = find_valid_lengths(graph, small)
    if not found:
        return {}
    return found | {symbol: dim.evaluate(found) for symbol, dim in graph.length_equations.items()}


def _choose_primes(
    symbols: Sequence[str],
    fixed: set[int],
    graph: Graph,
    lower_limits: Mapping[str, int],
    upper_limits: Mapping[str, int],
) -> dict[str, int]:
    """Return ascending primes for the symbols, different from the `fixed` lengths."""
    env: dict[str, int] = {}
    # Smaller numbers are common as widths and head counts.
    number = 10
    for symbol in symbols:
        long = symbol in lower_limits
        low = lower_limits[symbol] + 1 if long else 0
        low = max(number + 1, low, graph.min_lengths.get(symbol, 0))
        prime = _find_prime(low, fixed | {*env.values()})
        env[symbol] = min(prime, upper_limits.get(symbol, prime))
        # Lengths are large only where required.
        number = number if long else env[symbol]
    return env


def _find_prime(low: int, excluded: Collection[int]) -> int:
    """Return the first prime from `low` on that is not in `excluded`."""
    while low in excluded or any(low % n == 0 for n in range(2, low)):
        low += 1
    return low


def make_tensor_type(element: int, shape: Sequence[int | None] | None) -> TypeProto:
    """Return a tensor type; None is an unknown length, or an unknown shape."""
    made: TypeProto = helper.make_tensor_type_proto(element, shape)
    return made


def read_shape(type: TypeProto) -> PartialShape | None:
    """Return the lengths of a type; None if its rank is unknown."""
    tensor = type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)


def has_unknown_length(type: TypeProto) -> bool:
    """Return whether a length or the rank of a type is unknown."""
    shape = read_shape(type)
    return shape is None or None in shape


def substitute_type_lengths(type: TypeProto, env: Mapping[str, int]) -> TypeProto:
    """Substitute the lengths known in `env` in a type."""
    tensor = type.tensor_type
    if not tensor.HasField("shape"):
        return type
    lengths = [_evaluate_length(d, env) for d in tensor.shape.dim]
    return make_tensor_type(tensor.elem_type, lengths)


def _evaluate_length(dim: Any, env: Mapping[str, int]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return _evaluate_formula(dim.dim_param, env)


def _evaluate_formula(text: str, env: Mapping[str, int]) -> int | None:
    try:
        return _parse_formula(text).evaluate(env)
    except DimError:
        return None


def _check_equal_length(name: str, axis: int, text: str, known: int | None, length: int) -> None:
    if known != length:
        raise UnsoundModelError(
            f"`{name}`: axis {axis} is {length} long; `{text}` is {known or 'unknown'}"
        )


def _solve_formula(text: str, length: int, env: dict[str, int]) -> None:
    """Solve a formula for the only symbol that `env` lacks, and add it to `env`: with 5 `new`
    positions and a length of 5, `new + past` gives 0 for `past`.
    """
    unknown = _collect_formula_symbols(text) - env.keys()
    if len(unknown) != 1:
        return
    (name,) = unknown
    at_zero, at_one = (_evaluate_formula(text, {**env, name: n}) for n in (0, 1))
    if at_zero is None or at_one is None or at_one == at_zero:
        return
    rows, rest = divmod(length - at_zero, at_one - at_zero)
    if rows >= 0 and not rest and _evaluate_formula(text, {**env, name: rows}) == length:
        env[name] = rows


def _collect_formula_symbols(text: str) -> frozenset[str]:
    try:
        return frozenset(_parse_formula(text).symbols())
    except DimError:
        return frozenset()


_parse_formula = lru_cache(maxsize=1024)(parse_dim)
_NAME_PATTERN = re.compile(r"[A-Za-z_][\w.]*")
"""A symbolic dimension; axes of carries whose length changes are dotted: `state.2`."""


def find_type_conflict(declared: TypeProto, found: TypeProto) -> str:
    """Return how a declared type contradicts the inferred one; "" if it does not."""
    a, b = declared.tensor_type.elem_type, found.tensor_type.elem_type
    if b and a != b:
        return f"element type {a} here, {b} computed"
    here, there = read_shape(declared), read_shape(found)
    if here is None or there is None:
        return ""
    if len(here) != len(there):
        return f"{len(here)} axes here, {len(there)} computed"
    for axis, (x, y) in enumerate(zip(here, there, strict=True)):
        if None not in (x, y) and x != y:
            return f"axis {axis} is {x} long here, {y} computed"
    return ""


def merge_types(a: TypeProto, b: TypeProto) -> TypeProto:
    """Return the combined knowledge of two types that do not conflict."""
    one, two = read_shape(a), read_shape(b)
    if one is None or two is None:
        return a if two is None else b
    return make_tensor_type(
        a.tensor_type.elem_type, [y if x is None else x for x, y in zip(one, two, strict=True)]
    )


def join_types(a: TypeProto, b: TypeProto) -> TypeProto:
    """Return the common type of two branches. Raise OperandMismatchError for element types."""
    element, one, two = a.tensor_type.elem_type, read_shape(a), read_shape(b)
    if element != b.tensor_type.elem_type:
        raise OperandMismatchError("branches have different element types")
    if one is None or two is None or len(one) != len(two):
        return make_tensor_type(element, None)
    return make_tensor_type(element, [x if x == y else None for x, y in zip(one, two, strict=True)])
