"""Rotary frequencies under the scaling rules of published models."""

import math

from specc.elaborate.values import Rope, Unknown
from specc.ir.dim import Dim


def fault(rope: Rope) -> str:
    """Why no frequencies come of these numbers, as the end of "the rotary settings: …"; empty where they do."""
    numbers = dict(rope.numbers)
    if _undecided(rope):
        return ""
    for name, value in (("theta", rope.theta), *numbers.items()):
        for one in value if isinstance(value, tuple) else (value,):
            if one is not None and not isinstance(one, bool) and not (math.isfinite(one) and one > 0):
                return f"`{name}` is {one:g}, and must be above 0"
    if rope.kind == "yarn" and rope.theta <= 1:
        return f"`theta` is {rope.theta:g}, and `yarn` needs it above 1"
    if rope.kind == "llama3" and numbers["low"] >= numbers["high"]:
        return "the low frequency factor must be less than the high one"
    return ""


def frequencies(rope: Rope, dim: Dim) -> tuple[tuple[float, ...], float]:
    """`(frequencies, attention factor)`; no frequencies where they are plainly `theta^(-2n/dim)`.

    `linear` divides all by a factor (arXiv:2306.15595). `llama3` divides only long wave lengths, with a
    smooth passage. `yarn` blends by how often a pair turns in the original context (arXiv:2309.00071, eq. 23).
    `longrope` has a divisor for each pair (arXiv:2402.13753, eq. 3); there may be too few or too many, which the
    caller checks. Nothing is made of numbers that are not known yet, which a reading with symbols has.
    """
    numbers = dict(rope.numbers)
    if rope.kind == "default" or dim.number is None or _undecided(rope):
        return (), 1.0
    d = dim.number
    plain = [rope.theta ** (-2 * n / d) for n in range(d // 2)]
    factor = numbers["factor"]
    if rope.kind == "linear":
        return tuple(f / factor for f in plain), 1.0
    if rope.kind == "llama3":
        return tuple(_llama3(f, numbers) for f in plain), 1.0
    given = numbers["attention"]
    if rope.kind == "longrope":
        divided = tuple(rope.theta ** (-2 * n / d) / divisor for n, divisor in enumerate(numbers["divisors"]))
        return divided, given if given is not None else _long_factor(factor, numbers["original"])
    return _yarn(plain, d, rope.theta, numbers), given if given is not None else yarn_scale(factor)


def yarn_scale(factor: float, by: float = 1.0) -> float:
    """How much sharper attention is made over longer texts, as a factor of cos and sin (arXiv:2309.00071, eq. 22)."""
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def _undecided(rope: Rope) -> bool:
    """Whether a number of it hangs on config values that are still symbols."""
    given = [rope.theta, *(v for _, value in rope.numbers for v in (value if isinstance(value, tuple) else (value,)))]
    return any(isinstance(v, Unknown) for v in given)


def _llama3(frequency: float, numbers: dict[str, float]) -> float:
    wave = 2 * math.pi / frequency
    low, high, original = numbers["low"], numbers["high"], numbers["original"]
    if wave > original / low:
        return frequency / numbers["factor"]
    if wave < original / high:
        return frequency
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * frequency / numbers["factor"] + smooth * frequency


def _long_factor(factor: float, original: int) -> float:
    """What keeps the entropy of attention over longer texts (arXiv:2402.13753, authors' code)."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0


def _yarn(plain: list[float], d: int, theta: float, numbers: dict[str, float]) -> tuple[float, ...]:
    def pair_turning(turns: float) -> float:
        return d * math.log(numbers["original"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_turning(numbers["fast"]), pair_turning(numbers["slow"])
    if numbers.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, d - 1)
    span = high - low if high != low else 0.001
    ramp = [min(max((n - low) / span, 0.0), 1.0) for n in range(d // 2)]
    return tuple(f / numbers["factor"] * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True))
