"""Run-time scalar arithmetic of the language as an oracle in plain Python, without NumPy."""

import math
from collections.abc import Callable, Mapping

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
HELD = 2**63 - 2**39
"""The largest float32 below 2**63: a cast to int returns at most this value."""

INTEGERS = (0, 1, -1, 2, -2, 3, -3, 7, -64, 63, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 + 5, 3 * 2**31,
         2**53 + 1, 2**62, -(2**62), INT64_MAX, INT64_MIN, INT64_MIN + 1)  # fmt: skip
FLOATS = (0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, -7.0, 0.99609375, 1e10, -1e10, 2.0**31, 2.0**62, 2.0**63, -(2.0**63),
             1e30, -1e30, math.inf, -math.inf, math.nan)  # fmt: skip
"""Values that float32 represents exactly, except those above 1e9."""


def wrap_int64(n: int) -> int:
    """Return an integer wrapped to 64 bits."""
    return (n - INT64_MIN) % 2**64 + INT64_MIN


def divide_by_zero(a: float) -> float:
    """Return `a / 0`."""
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def floor_divide(a: float, b: float) -> float:
    """Return `a // b`."""
    if b == 0:
        return divide_by_zero(a)
    if not math.isfinite(a) or math.isnan(b):
        return math.nan
    if math.isinf(b):
        return 0.0 if a == 0 or (a > 0) == (b > 0) else -1.0
    return float(a // b)


def compute_remainder(a: float, b: float) -> float:
    """Return `a % b`, with the sign of b."""
    if b == 0 or not math.isfinite(a) or math.isnan(b):
        return math.nan
    return float(a % b)


def divide_floats(a: float, b: float) -> float:
    """Return `a / b`."""
    return divide_by_zero(a) if b == 0 else a / b


def raise_to_power(a: float, b: float) -> float:
    """Return `a ** b` as defined by IEEE 754."""
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:  # 0 to a negative power; the root of a negative value
        return math.inf if a == 0 else math.nan


def cast_to_int(a: float) -> int:
    """Return `cast(a, to=int)`: truncated; NaN is 0, values out of range are clamped."""
    if math.isnan(a):
        return 0
    return int(min(max(a, INT64_MIN), HELD))


def make_extremum(choose: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """Return maximum or minimum of two values; NaN propagates."""
    return lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else choose(a, b)


INTEGER_OPS: Mapping[str, Callable[[int, int], int]] = {
    "a + b": lambda a, b: wrap_int64(a + b),
    "a - b": lambda a, b: wrap_int64(a - b),
    "a * b": lambda a, b: wrap_int64(a * b),
    "a // b": lambda a, b: wrap_int64(a // b) if b else 0,
    "a % b": lambda a, b: a % b if b else 0,
    "min(a, b)": min,
    "max(a, b)": max,
    "clip(a, low=-5, high=5)": lambda a, b: min(max(a, -5), 5),
    "clip(a, low=b)": max,
    "abs(a)": lambda a, b: wrap_int64(abs(a)),
    "-a": lambda a, b: wrap_int64(-a),
    "sign(a)": lambda a, b: (a > 0) - (a < 0),
    "where(a < b, a, b - a)": lambda a, b: a if a < b else wrap_int64(b - a),
    "cast(cast(a, to=bool), to=int)": lambda a, b: int(a != 0),
    **{f"a // {n}": lambda a, b, n=n: wrap_int64(a // n) if n else 0 for n in (0, 1, -1, 2, 3, -3, -64, 2**40)},
    **{f"a % {n}": lambda a, b, n=n: a % n if n else 0 for n in (0, 1, -1, 2, 3, -3, -64, 2**40)},
    **{f"a ** {n}": lambda a, b, n=n: wrap_int64(a**n) for n in (0, 1, 2, 3, 5, 17, 40, 63)},
    **{f"cast(a {sign} b, to=int)": lambda a, b, sign=sign: int(eval(f"a {sign} b")) for sign in
       ("<", "<=", "==", "!=", ">", ">=")},
}  # fmt: skip
"""Expressions of two integers."""

FLOAT_OPS: Mapping[str, Callable[[float, float], float]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a / b": divide_floats,
    "a // b": floor_divide,
    "a % b": compute_remainder,
    "a ** b": raise_to_power,
    "min(a, b)": make_extremum(min),
    "max(a, b)": make_extremum(max),
    "abs(a)": lambda a, b: abs(a),
    "-a": lambda a, b: -a,
    "sign(a)": lambda a, b: math.nan if math.isnan(a) else float((a > 0) - (a < 0)),
    "relu(a)": lambda a, b: math.nan if math.isnan(a) else max(a, 0.0),
    "round(a)": lambda a, b: float(round(a)) if math.isfinite(a) else a,
    "floor(a)": lambda a, b: float(math.floor(a)) if math.isfinite(a) else a,
    "ceil(a)": lambda a, b: float(math.ceil(a)) if math.isfinite(a) else a,
    "reciprocal(a)": lambda a, b: divide_floats(1.0, a),
    "sqrt(a)": lambda a, b: math.sqrt(a) if a >= 0 else math.nan,
    "float(cast(a, to=bool))": lambda a, b: float(a != 0),
    "float(cast(a, to=int))": lambda a, b: float(cast_to_int(a)),
    **{f"a {op} {n}": lambda a, b, f=f, n=n: f(a, n) for n in (0.0, 1.0, -2.5, 0.75) for op, f in
       (("//", floor_divide), ("%", compute_remainder), ("/", divide_floats))},
    **{f"a ** {n}": lambda a, b, n=n: raise_to_power(a, n) for n in (0.0, 0.5, 2.0, 3.0, -1.0, -0.5, -2.0)},
    **{f"float(a {sign} b)": lambda a, b, sign=sign: float(eval(f"a {sign} b")) for sign in
       ("<", "<=", "==", "!=", ">", ">=")},
}  # fmt: skip
"""Expressions of two floats."""

CASTS: Mapping[str, Callable[[float, float], int]] = {
    "cast(a, to=int)": lambda a, b: cast_to_int(a),
    "cast(floor(a / 4.0), to=int)": lambda a, b: cast_to_int(
        float(math.floor(a / 4.0)) if math.isfinite(a) else a
    ),
}
"""Expressions that cast a float to an integer."""
