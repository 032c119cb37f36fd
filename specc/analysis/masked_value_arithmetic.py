"""Arithmetic on constants at masked positions.

Only constants that every dtype represents exactly are tracked (integers up to 256, and
infinity), so that the facts hold in the compiled model, too.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import ceil, floor, inf, isinf, isnan, nan
from operator import and_, or_
from typing import TypeAlias

from specc.ir.interval import FULL_INTERVAL, Interval

MaskedValues: TypeAlias = Mapping[float, Interval]
"""For each number the interval outside of which a grid holds it everywhere."""

NO_MASKED_VALUES: MaskedValues = {}


def map_masked_values(
    function: Callable[[float], float] | None, given: MaskedValues
) -> MaskedValues:
    """Return the constants after a unary function."""
    if function is None:
        return NO_MASKED_VALUES
    # One by one, for several numbers may become the same: then it stands wherever any
    # of them stood. What is no number is forgotten.
    made = [{function(n): i} for n, i in given.items()]
    return intersect_masked_values({n: i for n, i in pair.items() if not isnan(n)} for pair in made)


def combine_masked_values(
    function: Callable[[float, float], float], one: MaskedValues, other: MaskedValues
) -> MaskedValues:
    """Return the constants after a binary function, outside of both intervals."""
    return intersect_masked_values(
        {made: i | j}
        for n, i in one.items()
        for m, j in other.items()
        if _is_exact_in_all_dtypes(made := float(function(n, m)), n, m)
    )


def intersect_masked_values(found: Iterable[MaskedValues]) -> MaskedValues:
    """Merge several facts: a constant holds outside of the intersection of its intervals."""
    joined: dict[float, Interval] = {}
    for pairs in found:
        for number, reach in pairs.items():
            joined[number] = joined.get(number, FULL_INTERVAL) & reach
    return joined


def find_common_values(parts: list[MaskedValues]) -> MaskedValues:
    """Return the constants that all parts of a value hold."""
    if not parts:
        return NO_MASKED_VALUES
    common = reduce(and_, (set(p) for p in parts))
    # outside of all their intervals, for in one of them a part may hold another number
    return {n: reduce(or_, (p[n] for p in parts)) for n in common}


def is_reduction_fixed_point(fn: str, number: float, length: int) -> bool:
    """Return True if reducing `length` elements equal to `number` gives `number`; length 0 stands
    for an unknown length, which may be empty.
    """
    nothing = {"sum": 0.0, "max": -inf, "min": inf, "any": 0.0, "all": 1.0}.get(fn)
    if number == nothing:
        return True
    # A sum of so many of a number is another one, but for infinity.
    return length > 0 and (fn != "sum" or isinf(number))


def _is_exact_in_all_dtypes(*numbers: float) -> bool:
    """Return True if every dtype represents the numbers exactly."""
    return all(isinf(n) or (n.is_integer() and abs(n) <= 256) for n in numbers)


def truncate_masked_value(number: float) -> float:
    """Truncate a float to an integer; infinity gives NaN."""
    return nan if isinf(number) else float(int(number))


def _divide(a: float, b: float) -> float:
    return a / b if b else nan


def _raise_to_power(a: float, b: float) -> float:
    # Other powers are rounded, each element type in its own way.
    return a**b if b in (1, 2) and not isinf(a) else nan


ARITHMETIC_FUNCTIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "min": min,
    "max": max,
    "pow": _raise_to_power,
    "floordiv": lambda a, b: nan,
    "mod": lambda a, b: nan,
}
COMPARISON_FUNCTIONS: Mapping[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}

EXACT_UNARY_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": lambda x: x if isinf(x) else float(ceil(x)),
    # below about -745 even float64 has no number above 0 for it
    "exp": lambda x: {0.0: 1.0, inf: inf}.get(x, 0.0 if x < -1000 else nan),
    "expm1": lambda x: {0.0: 0.0, inf: inf}.get(x, -1.0 if x < -1000 else nan),
    "floor": lambda x: x if isinf(x) else float(floor(x)),
    "log": lambda x: {0.0: -inf, 1.0: 0.0, inf: inf}.get(x, nan),
    "log1p": lambda x: {-1.0: -inf, 0.0: 0.0, inf: inf}.get(x, nan),
    "neg": lambda x: -x,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: {-inf: 0.0, inf: 1.0}.get(x, nan),
    "sign": lambda x: float((x > 0) - (x < 0)),
    "sqrt": lambda x: x if x in (0.0, 1.0, inf) else nan,
    "tanh": lambda x: {-inf: -1.0, 0.0: 0.0, inf: 1.0}.get(x, nan),
    **dict.fromkeys(
        ("erf", "gelu", "gelu_tanh", "quick_gelu", "relu2", "silu", "sin"),
        lambda x: 0.0 if x == 0 else nan,
    ),
}
"""Functions of the numbers of which every element type holds the result as it is."""
