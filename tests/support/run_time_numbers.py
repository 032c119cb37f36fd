"""What arithmetic of the language means when the model runs, in Python's own numbers: an oracle that knows no NumPy."""

import math
from collections.abc import Callable, Mapping

MOST, LEAST = 2**63 - 1, -(2**63)
HELD = 2**63 - 2**39
"""The greatest float32 below 2**63: a cast to whole numbers gives no more."""

WHOLE = (0, 1, -1, 2, -2, 3, -3, 7, -64, 63, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 + 5, 3 * 2**31,
         2**53 + 1, 2**62, -(2**62), MOST, LEAST, LEAST + 1)  # fmt: skip
FRACTIONS = (0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, -7.0, 0.99609375, 1e10, -1e10, 2.0**31, 2.0**62, 2.0**63, -(2.0**63),
             1e30, -1e30, math.inf, -math.inf, math.nan)  # fmt: skip
"""Numbers that a float32 holds exactly, but for those beyond 1e9, which it holds nearly."""


def wrapped(n: int) -> int:
    """A whole number in 64 bits."""
    return (n - LEAST) % 2**64 + LEAST


def by_zero(a: float) -> float:
    """`a / 0`."""
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def quotient(a: float, b: float) -> float:
    """`a // b`."""
    if b == 0:
        return by_zero(a)
    if not math.isfinite(a) or math.isnan(b):
        return math.nan
    if math.isinf(b):
        return 0.0 if a == 0 or (a > 0) == (b > 0) else -1.0
    return float(a // b)


def rest(a: float, b: float) -> float:
    """`a % b`, of the sign of b."""
    if b == 0 or not math.isfinite(a) or math.isnan(b):
        return math.nan
    return float(a % b)


def divided(a: float, b: float) -> float:
    """`a / b`."""
    return by_zero(a) if b == 0 else a / b


def power(a: float, b: float) -> float:
    """`a ** b` as IEEE 754 has it."""
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:  # 0 to a negative power; the root of a number below 0
        return math.inf if a == 0 else math.nan


def whole(a: float) -> int:
    """`cast(a, to=int)`: cut towards zero; what is no number is 0, what is too large the nearest there is."""
    if math.isnan(a):
        return 0
    return int(min(max(a, LEAST), HELD))


def extreme(choose: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """The greater or the smaller of two; what is no number stays."""
    return lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else choose(a, b)


OF_WHOLE: Mapping[str, Callable[[int, int], int]] = {
    "a + b": lambda a, b: wrapped(a + b),
    "a - b": lambda a, b: wrapped(a - b),
    "a * b": lambda a, b: wrapped(a * b),
    "a // b": lambda a, b: wrapped(a // b) if b else 0,
    "a % b": lambda a, b: a % b if b else 0,
    "min(a, b)": min,
    "max(a, b)": max,
    "clip(a, low=-5, high=5)": lambda a, b: min(max(a, -5), 5),
    "clip(a, low=b)": max,
    "abs(a)": lambda a, b: wrapped(abs(a)),
    "-a": lambda a, b: wrapped(-a),
    "sign(a)": lambda a, b: (a > 0) - (a < 0),
    "where(a < b, a, b - a)": lambda a, b: a if a < b else wrapped(b - a),
    "cast(cast(a, to=bool), to=int)": lambda a, b: int(a != 0),
    **{f"a // {n}": lambda a, b, n=n: wrapped(a // n) if n else 0 for n in (0, 1, -1, 2, 3, -3, -64, 2**40)},
    **{f"a % {n}": lambda a, b, n=n: a % n if n else 0 for n in (0, 1, -1, 2, 3, -3, -64, 2**40)},
    **{f"a ** {n}": lambda a, b, n=n: wrapped(a**n) for n in (0, 1, 2, 3, 5, 17, 40, 63)},
    **{f"cast(a {sign} b, to=int)": lambda a, b, sign=sign: int(eval(f"a {sign} b")) for sign in
       ("<", "<=", "==", "!=", ">", ">=")},
}  # fmt: skip
"""Expressions of two whole numbers."""

OF_FRACTIONS: Mapping[str, Callable[[float, float], float]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a / b": divided,
    "a // b": quotient,
    "a % b": rest,
    "a ** b": power,
    "min(a, b)": extreme(min),
    "max(a, b)": extreme(max),
    "abs(a)": lambda a, b: abs(a),
    "-a": lambda a, b: -a,
    "sign(a)": lambda a, b: math.nan if math.isnan(a) else float((a > 0) - (a < 0)),
    "relu(a)": lambda a, b: math.nan if math.isnan(a) else max(a, 0.0),
    "round(a)": lambda a, b: float(round(a)) if math.isfinite(a) else a,
    "floor(a)": lambda a, b: float(math.floor(a)) if math.isfinite(a) else a,
    "ceil(a)": lambda a, b: float(math.ceil(a)) if math.isfinite(a) else a,
    "reciprocal(a)": lambda a, b: divided(1.0, a),
    "sqrt(a)": lambda a, b: math.sqrt(a) if a >= 0 else math.nan,
    "float(cast(a, to=bool))": lambda a, b: float(a != 0),
    "float(cast(a, to=int))": lambda a, b: float(whole(a)),
    **{f"a {op} {n}": lambda a, b, f=f, n=n: f(a, n) for n in (0.0, 1.0, -2.5, 0.75) for op, f in
       (("//", quotient), ("%", rest), ("/", divided))},
    **{f"a ** {n}": lambda a, b, n=n: power(a, n) for n in (0.0, 0.5, 2.0, 3.0, -1.0, -0.5, -2.0)},
    **{f"float(a {sign} b)": lambda a, b, sign=sign: float(eval(f"a {sign} b")) for sign in
       ("<", "<=", "==", "!=", ">", ">=")},
}  # fmt: skip
"""Expressions of two numbers with a fraction."""

CAST: Mapping[str, Callable[[float, float], int]] = {
    "cast(a, to=int)": lambda a, b: whole(a),
    "cast(floor(a / 4.0), to=int)": lambda a, b: whole(
        float(math.floor(a / 4.0)) if math.isfinite(a) else a
    ),
}
"""Expressions that make a whole number of one with a fraction."""
