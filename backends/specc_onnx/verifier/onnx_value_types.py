"""ONNX value types at given lengths: inferred types, conflicts and merges."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from specc.ir.array import Array
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.ir.ir_lexer import parse_dim
from specc.ir.length_constraints import find_valid_lengths

MAX_FOLDED_ELEMENTS = 4096
"""Maximum number of elements of a constant-folded value; no shape is longer."""
FOLDED_DTYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""The element types of constant-folded values."""

PartialShape: TypeAlias = tuple[int | None, ...]


class UnsoundModelError(Exception):
    """An invalid model: always a bug of specc; the text names the value."""


class OperandMismatchError(Exception):
    """The operands of a node are incompatible."""


@dataclass(kw_only=True)
class InferredTypes:
    """Types of a model's values, and the `numbers` of small integer ones. `declared` types, at the
    lengths `env`, must agree; `unknown_types` are declared lengths that `env` does not know
    (value, axis, text). `taken` is False inside a branch that may not run.
    """

    env: Mapping[str, int]
    opsets: Mapping[str, int]
    types: dict[str, TypeProto] = field(default_factory=dict)
    numbers: dict[str, Array] = field(default_factory=dict)
    declared: dict[str, TypeProto] = field(default_factory=dict)
    unknown_types: list[tuple[str, int, str]] = field(default_factory=list)
    taken: bool = True

    def add_value(self, name: str, type: TypeProto, numbers: Array | None = None) -> None:
        """A value by its name. Unsound where it contradicts what is declared."""
        known = self.declared.get(name)
        if known is not None:
            if why := find_type_conflict(known, type):
                raise UnsoundModelError(f"`{name}`: {why}")
            type = merge_types(known, type)
        self.types[name] = type
        if (
            numbers is not None
            and numbers.size <= MAX_FOLDED_ELEMENTS
            and type.tensor_type.elem_type in FOLDED_DTYPES
        ):
            self.numbers[name] = numbers

    def add_declared_types(self, values: Iterable[ValueInfoProto]) -> None:
        """Types as they are written down."""
        for value in values:
            self.declared[value.name] = substitute_type_lengths(value.type, self.env)
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.dim_param and _evaluate_length(dim, self.env) is None:
                    self.unknown_types.append((value.name, axis, dim.dim_param))

    def check_unknown_lengths(self) -> None:
        """Check that each unknown symbol is one length everywhere, and that formulas hold.
        UnsoundModelError otherwise.
        """
        env = dict(self.env)
        formulas = []
        for name, axis, text in self.unknown_types:
            shape = self.shape(name) if name in self.types else None
            length = shape[axis] if shape else None
            if length is None:
                continue
            if _NAME_PATTERN.fullmatch(text):
                _check_equal_length(name, axis, text, env.setdefault(text, length), length)
            else:
                formulas.append((name, axis, text, length))
        for name, axis, text, length in formulas:
            # a dotted name is that of one carry's axis, from which nothing is computed
            of_carry = "." in text
            if not of_carry:
                _solve_formula(text, length, env)
            known = _evaluate_formula(text, env)
            if known is not None or of_carry:
                _check_equal_length(name, axis, text, known, length)

    def shape(self, name: str) -> PartialShape | None:
        """The lengths of a value; None where not even their number is known."""
        return read_shape(self.types[name])

    def get_element_type(self, name: str) -> int:
        """The element type of a value."""
        code: int = self.types[name].tensor_type.elem_type
        return code

    def sizes(self, name: str) -> list[int] | None:
        """The lengths of a value where all are known."""
        shape = self.shape(name)
        if shape is None:
            return None
        known = [d for d in shape if d is not None]
        return known if len(known) == len(shape) else None


# --- lengths and types ----------------------------------------------------------------


def choose_distinct_lengths(
    dims: Iterable[Dim],
    graph: Graph,
    beyond: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return a number for every symbol of `dims`: distinct primes, above those in `beyond` and at
    most those in `most`, or the nearest valid lengths; {} if there are none.
    """
    given = list(dims)
    fixed = {d.number for d in given if d.number is not None}
    symbols = sorted({s for d in given for s in d.symbols()} - graph.facts.keys())
    env = _choose_primes(symbols, fixed, graph, beyond or {}, most or {})
    found = find_valid_lengths(graph, env, apart={*env.values(), *fixed})
    if not found:
        # A short position table leaves few lengths: then some equal those of other axes.
        few = enumerate(symbols, 1)
        found = find_valid_lengths(graph, {s: max(n, graph.least.get(s, 0)) for n, s in few})
    if not found:
        return {}
    # Lengths that follow from others are not chosen.
    return found | {symbol: dim.at(found) for symbol, dim in graph.facts.items()}


def _choose_primes(
    symbols: Sequence[str],
    fixed: set[int],
    graph: Graph,
    beyond: Mapping[str, int],
    most: Mapping[str, int],
) -> dict[str, int]:
    """A prime for each symbol, rising, apart from the lengths that are `fixed`."""
    env: dict[str, int] = {}
    # Small numbers are widths and head counts in many models.
    number = 10
    for symbol in symbols:
        long = symbol in beyond
        low = beyond[symbol] + 1 if long else 0
        low = max(number + 1, low, graph.least.get(symbol, 0))
        chosen = _find_prime(low, fixed | {*env.values()})
        env[symbol] = min(chosen, most.get(symbol, chosen))
        # Lengths are large only where required.
        number = number if long else env[symbol]
    return env


def _find_prime(low: int, apart: Collection[int]) -> int:
    """The first from `low` on that is none of those."""
    while low in apart or any(low % n == 0 for n in range(2, low)):
        low += 1
    return low


def make_tensor_type(element: int, shape: Sequence[int | None] | None) -> TypeProto:
    """A type; None is a length that is not known, or a number of axes that is not."""
    made: TypeProto = helper.make_tensor_type_proto(element, shape)
    return made


def read_shape(type: TypeProto) -> PartialShape | None:
    """The lengths in a type."""
    tensor = type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)


def has_unknown_length(type: TypeProto) -> bool:
    """Whether a length in it is not known, or how many there are."""
    shape = read_shape(type)
    return shape is None or None in shape


def substitute_type_lengths(type: TypeProto, env: Mapping[str, int]) -> TypeProto:
    """Substitute the lengths known in `env` in a type."""
    tensor = type.tensor_type
    if not tensor.HasField("shape"):
        return type
    return make_tensor_type(
        tensor.elem_type, tuple(_evaluate_length(d, env) for d in tensor.shape.dim)
    )


def _evaluate_length(dim: Any, env: Mapping[str, int]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return _evaluate_formula(dim.dim_param, env)


def _evaluate_formula(text: str, env: Mapping[str, int]) -> int | None:
    try:
        return _parse_formula(text).at(env)
    except DimError:
        return None


def _check_equal_length(name: str, axis: int, text: str, known: int | None, length: int) -> None:
    if known != length:
        raise UnsoundModelError(
            f"`{name}`: axis {axis} is {length} long; `{text}` is {known or 'unknown'}"
        )


def _solve_formula(text: str, length: int, env: dict[str, int]) -> None:
    """Put the one name of a formula that `env` lacks into it, if a number of rows gives
    this length: 0 for `past` where 5 are `new`, and `new + past` is 5.
    """
    unknown = _collect_formula_symbols(text) - env.keys()
    if len(unknown) != 1:
        return
    (name,) = unknown
    none, one = (_evaluate_formula(text, {**env, name: n}) for n in (0, 1))
    if none is None or one is None or one == none:
        return
    rows, rest = divmod(length - none, one - none)
    if rows >= 0 and not rest and _evaluate_formula(text, {**env, name: rows}) == length:
        env[name] = rows


def _collect_formula_symbols(text: str) -> frozenset[str]:
    try:
        return frozenset(_parse_formula(text).symbols())
    except DimError:
        return frozenset()


_parse_formula = lru_cache(maxsize=1024)(parse_dim)
_NAME_PATTERN = re.compile(r"[A-Za-z_][\w.]*")
"""A symbolic dimension. Those of carries whose length changes are dotted: `state.2`."""


def find_type_conflict(declared: TypeProto, found: TypeProto) -> str:
    """How a type contradicts the one that was found; "" where it does not."""
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
    """What two types that do not contradict each other know together."""
    one, two = read_shape(a), read_shape(b)
    if one is None or two is None:
        return a if two is None else b
    return make_tensor_type(
        a.tensor_type.elem_type, [y if x is None else x for x, y in zip(one, two, strict=True)]
    )


def join_types(a: TypeProto, b: TypeProto) -> TypeProto:
    """What holds of a value that has one of two types."""
    element, one, two = a.tensor_type.elem_type, read_shape(a), read_shape(b)
    if element != b.tensor_type.elem_type:
        raise OperandMismatchError("branches have different element types")
    if one is None or two is None or len(one) != len(two):
        return make_tensor_type(element, None)
    return make_tensor_type(element, [x if x == y else None for x, y in zip(one, two, strict=True)])
