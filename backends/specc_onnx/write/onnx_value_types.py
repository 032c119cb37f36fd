"""Types of ONNX values with concrete axis sizes. The verifier infers these types, checks them
against declared types, merges them, and joins the types of two branches.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import onnx
from onnx import OperatorSetIdProto, TensorProto, TypeProto, ValueInfoProto, helper

from specc.analysis.valid_axis_sizes import find_valid_dim_sizes
from specc.ir.array import Array
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.ir.ir_printer_and_lexer import parse_dim

MAX_FOLDED_ELEMENTS = 4096
"""The maximum number of elements of a constant-folded value."""
FOLDED_DTYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""The element types of constant-folded values."""

PartialShape: TypeAlias = tuple[int | None, ...]


class InvalidModelError(Exception):
    """The error for an invalid model (a bug in specc). The message names the value or node."""


class OperandMismatchError(Exception):
    """The error for a node whose operands have incompatible types or shapes."""


@dataclass(kw_only=True)
class InferredTypes:
    """The inferred types of a model's values at the concrete sizes `lengths`, and the small integer
    `constants`. The inferred types must agree with `declared_types`. `unknown_lengths` contains the
    declared dimensions (value, axis, formula) that have a symbol without a size in `lengths`.
    `is_reached` is False in a branch that may not run.
    """

    lengths: Mapping[str, int]
    opsets: Mapping[str, int]
    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    declared_types: dict[str, TypeProto] = field(default_factory=dict)
    unknown_lengths: list[tuple[str, int, str]] = field(default_factory=list)
    is_reached: bool = True
    _shapes: dict[str, PartialShape | None] = field(default_factory=dict, init=False)

    def add_value(self, name: str, type: TypeProto, constant_value: Array | None = None) -> None:
        """Record the inferred type of a value, and the elements of a small integer constant. Raise
        InvalidModelError if the type contradicts the declared type.
        """
        declared_type = self.declared_types.get(name)
        if declared_type is not None:
            if reason := describe_type_conflict(declared_type, type):
                raise InvalidModelError(f"`{name}`: {reason}")
            type = merge_types(declared_type, type)
        self.types[name], self._shapes[name] = type, read_shape(type)
        if (
            constant_value is not None
            and constant_value.size <= MAX_FOLDED_ELEMENTS
            and type.tensor_type.elem_type in FOLDED_DTYPES
        ):
            self.constants[name] = constant_value

    def add_declared_types(self, values: Iterable[ValueInfoProto]) -> None:
        """Record the declared types of `values`. `self.lengths` replaces symbolic dimensions."""
        for value in values:
            self.declared_types[value.name] = resolve_symbolic_dims(value.type, self.lengths)
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.dim_param and _evaluate_length(dim, self.lengths) is None:
                    self.unknown_lengths.append((value.name, axis, dim.dim_param))

    def check_unknown_lengths(self) -> None:
        """Raise InvalidModelError if a symbol has two sizes or a size contradicts its formula."""
        lengths = dict(self.lengths)
        formulas = []
        for name, axis, text in self.unknown_lengths:
            shape = self.get_shape(name) if name in self.types else None
            length = shape[axis] if shape else None
            if length is None:
                continue
            if _NAME_PATTERN.fullmatch(text):
                _check_equal_length(name, axis, text, lengths.setdefault(text, length), length)
            else:
                formulas.append((name, axis, text, length))
        for name, axis, text, length in formulas:
            # a symbol with a dot is the size of an axis of a loop-carried value, and occurs in no
            # formula
            is_carried_axis = "." in text
            if not is_carried_axis:
                _solve_formula(text, length, lengths)
            expected_length = _evaluate_formula(text, lengths)
            if expected_length is not None or is_carried_axis:
                _check_equal_length(name, axis, text, expected_length, length)

    def get_shape(self, name: str) -> PartialShape | None:
        """Return the axis sizes of a value, or None if its rank is unknown."""
        return self._shapes[name]

    @cached_property
    def opset_imports(self) -> list[OperatorSetIdProto]:
        """The opset imports of the model as ONNX protos."""
        return [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]

    def get_element_type(self, name: str) -> int:
        """Return the ONNX element type of a value."""
        code: int = self.types[name].tensor_type.elem_type
        return code

    def get_static_shape(self, name: str) -> list[int] | None:
        """Return the axis sizes of a value if all of them are known, otherwise None."""
        shape = self.get_shape(name)
        if shape is None or None in shape:
            return None
        return [d for d in shape if d is not None]


def choose_distinct_dim_sizes(
    dims: Iterable[Dim],
    graph: Graph,
    lower_limits: Mapping[str, int] | None = None,
    upper_limits: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return a size for every symbolic dimension of `dims`, by name. The sizes are distinct primes
    between `lower_limits` and `upper_limits`, or the nearest sizes that satisfy the length
    constraints of `graph`. Return {} if no sizes satisfy the constraints.
    """
    all_dims = list(dims)
    static_lengths = {d.number for d in all_dims if d.number is not None}
    symbols = sorted({s for d in all_dims for s in d.symbols()} - graph.length_equations.keys())
    primes = _choose_primes(symbols, static_lengths, graph, lower_limits or {}, upper_limits or {})
    lengths = find_valid_dim_sizes(graph, primes, excluded={*primes.values(), *static_lengths})
    if not lengths:
        # If `max_position_embeddings` is small, there may be fewer valid sizes than symbolic
        # dimensions.
        smallest_lengths = {
            s: max(n, graph.min_lengths.get(s, 0)) for n, s in enumerate(symbols, 1)
        }
        lengths = find_valid_dim_sizes(graph, smallest_lengths)
    if not lengths:
        return {}
    return lengths | {
        symbol: dim.evaluate(lengths) for symbol, dim in graph.length_equations.items()
    }


def _choose_primes(
    symbols: Sequence[str],
    excluded_lengths: set[int],
    graph: Graph,
    lower_limits: Mapping[str, int],
    upper_limits: Mapping[str, int],
) -> dict[str, int]:
    """Return ascending primes that are not in `excluded_lengths`, one per symbolic dimension."""
    primes: dict[str, int] = {}
    # Smaller primes are not used, because they often occur as feature sizes and numbers of heads.
    last_prime = 10
    for symbol in symbols:
        has_limit = symbol in lower_limits
        min_length = lower_limits[symbol] + 1 if has_limit else 0
        min_length = max(last_prime + 1, min_length, graph.min_lengths.get(symbol, 0))
        prime = _find_prime(min_length, excluded_lengths | {*primes.values()})
        primes[symbol] = min(prime, upper_limits.get(symbol, prime))
        # A high lower limit of one symbol must not increase the sizes of other symbols.
        last_prime = last_prime if has_limit else primes[symbol]
    return primes


def _find_prime(number: int, excluded_numbers: Collection[int]) -> int:
    """Return the smallest prime >= `number` that is not in `excluded_numbers`."""
    while number in excluded_numbers or any(number % n == 0 for n in range(2, number)):
        number += 1
    return number


def make_tensor_type(elem_type: int, shape: Sequence[int | None] | None) -> TypeProto:
    """Return a tensor type. None represents an unknown axis size or an unknown shape."""
    type_proto: TypeProto = helper.make_tensor_type_proto(elem_type, shape)
    return type_proto


def read_shape(type: TypeProto) -> PartialShape | None:
    """Return the axis sizes of a type, or None if its rank is unknown."""
    tensor = type.tensor_type
    if not tensor.HasField("shape"):
        return None
    # `dim_value` is 0 if the field is absent
    return tuple(
        [d.dim_value or (0 if d.HasField("dim_value") else None) for d in tensor.shape.dim]
    )


def has_unknown_length(type: TypeProto) -> bool:
    """Return True if an axis size or the rank of a type is unknown."""
    shape = read_shape(type)
    return shape is None or None in shape


def resolve_symbolic_dims(type: TypeProto, known_lengths: Mapping[str, int]) -> TypeProto:
    """Replace symbolic dimensions of a type by sizes in `known_lengths`, or by unknown sizes."""
    tensor = type.tensor_type
    if not tensor.HasField("shape"):
        return type
    lengths = [_evaluate_length(d, known_lengths) for d in tensor.shape.dim]
    return make_tensor_type(tensor.elem_type, lengths)


def _evaluate_length(dim: Any, lengths: Mapping[str, int]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return _evaluate_formula(dim.dim_param, lengths)


def _evaluate_formula(text: str, lengths: Mapping[str, int]) -> int | None:
    try:
        return _parse_formula(text).evaluate(lengths)
    except DimError:
        return None


def _check_equal_length(
    name: str, axis: int, text: str, expected_length: int | None, length: int
) -> None:
    if expected_length != length:
        value = "unknown" if expected_length is None else expected_length
        raise InvalidModelError(f"`{name}`: axis {axis} has length {length}; `{text}` is {value}")


def _solve_formula(text: str, length: int, lengths: dict[str, int]) -> None:
    """Solve a formula for its only symbolic dimension of unknown size, and add the size to
    `lengths`. For example, if `new` is 5 and `new + past` is 5, `past` is 0.
    """
    unknown_symbols = _collect_formula_symbols(text) - lengths.keys()
    if len(unknown_symbols) != 1:
        return
    (name,) = unknown_symbols
    value_at_zero, value_at_one = (_evaluate_formula(text, {**lengths, name: n}) for n in (0, 1))
    if value_at_zero is None or value_at_one is None or value_at_one == value_at_zero:
        return
    solution, remainder = divmod(length - value_at_zero, value_at_one - value_at_zero)
    if (
        solution >= 0
        and not remainder
        and _evaluate_formula(text, {**lengths, name: solution}) == length
    ):
        lengths[name] = solution


def _collect_formula_symbols(text: str) -> frozenset[str]:
    try:
        return frozenset(_parse_formula(text).symbols())
    except DimError:
        return frozenset()


_parse_formula = lru_cache(maxsize=1024)(parse_dim)
_NAME_PATTERN = re.compile(r"[A-Za-z_][\w.]*")
"""The regular expression of a symbolic dimension. An axis of a loop-carried value with a changing
size has a name with a dot, such as `state.2`.
"""


def describe_type_conflict(declared_type: TypeProto, inferred_type: TypeProto) -> str:
    """Describe the conflict of a declared and an inferred type, or return "" if they agree."""
    declared_element, inferred_element = (
        declared_type.tensor_type.elem_type,
        inferred_type.tensor_type.elem_type,
    )
    if inferred_element and declared_element != inferred_element:
        return f"declared element type {declared_element}, inferred {inferred_element}"
    declared_shape, inferred_shape = read_shape(declared_type), read_shape(inferred_type)
    if declared_shape is None or inferred_shape is None:
        return ""
    if len(declared_shape) != len(inferred_shape):
        return f"declared {len(declared_shape)} axes, inferred {len(inferred_shape)}"
    for axis, (x, y) in enumerate(zip(declared_shape, inferred_shape, strict=True)):
        if None not in (x, y) and x != y:
            return f"axis {axis}: declared length {x}, inferred {y}"
    return ""


def merge_types(a: TypeProto, b: TypeProto) -> TypeProto:
    """Merge two compatible types. An axis size is known if it is known in at least one type."""
    a_shape, b_shape = read_shape(a), read_shape(b)
    if a_shape is None or b_shape is None:
        return a if b_shape is None else b
    return make_tensor_type(
        a.tensor_type.elem_type,
        [y if x is None else x for x, y in zip(a_shape, b_shape, strict=True)],
    )


def join_branch_types(a: TypeProto, b: TypeProto) -> TypeProto:
    """Return the type of an `If` result, given its types in both branches. An axis size that
    differs between the two types is unknown. Raise OperandMismatchError if the element types
    differ.
    """
    element, a_shape, b_shape = a.tensor_type.elem_type, read_shape(a), read_shape(b)
    if element != b.tensor_type.elem_type:
        raise OperandMismatchError("branches have different element types")
    if a_shape is None or b_shape is None or len(a_shape) != len(b_shape):
        return make_tensor_type(element, None)
    return make_tensor_type(
        element, [x if x == y else None for x, y in zip(a_shape, b_shape, strict=True)]
    )


def format_value_type(value: ValueInfoProto) -> str:
    """Format the type of a value, such as `float[batch, 8]`."""
    tensor = value.type.tensor_type
    dims = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}[{dims}]"
