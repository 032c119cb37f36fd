"""Compute rotary frequencies: linear, dynamic, llama3, yarn, longrope, proportional scaling."""

import math

from specc.frontend.spec_values import Rope, RopeNumber, RuntimeNumber
from specc.ir.dim import Dim

MAX_STRETCH = 1e30
"""How much greater theta may become: far beyond it nothing turns."""


def _find_not_positive(rope: Rope) -> str:
    for name, value in (("theta", rope.theta), *rope.numbers):
        for one in _list_numbers(value):
            if isinstance(one, float | int) and not _is_positive(one):
                return f"`{name}` is {one:g}, and must be above 0"
    return ""


def explain_invalid_rope(rope: Rope) -> str:
    """Why no frequencies come of these numbers, as the end of "the rotary settings: …";
    empty where they do.
    """
    if isinstance(rope.theta, RuntimeNumber) or _has_symbols(rope):
        return ""
    if why := _find_not_positive(rope):
        return why
    # its ramp divides by log(theta)
    if rope.kind == "yarn" and rope.theta <= 1:
        return f"`theta` is {rope.theta:g}, and `yarn` needs it above 1"
    numbers = _ScalingNumbers(rope)
    if rope.kind == "llama3" and numbers["low"] >= numbers["high"]:
        return "the low frequency factor must be less than the high one"
    if rope.kind == "proportional" and numbers["part"] > 1:
        return f"`part` is {numbers['part']:g}, more than the whole of a head"
    if rope.kind == "dynamic" and not 0 < _compute_theta_stretch(numbers) <= MAX_STRETCH:
        return f"a `factor` of {numbers['factor']:g} leaves no `theta` to turn by"
    return ""


def _is_positive(number: float) -> bool:
    """Whether it can be used; truths are no numbers, so that they always can."""
    return isinstance(number, bool) or (math.isfinite(number) and number > 0)


class _ScalingNumbers:
    """The numbers of a scaling rule, none of them a symbol."""

    def __init__(self, rope: Rope) -> None:
        self._all = dict(rope.numbers)

    def __getitem__(self, name: str) -> float:
        number = self._all[name]
        assert isinstance(number, float | int), f"every rule with `{name}` sets it"
        return number

    def holds(self, name: str) -> bool:
        """Whether the rule has a number of that name."""
        return name in self._all

    def given(self, name: str) -> float | None:
        """A number that may be none."""
        return None if self._all[name] is None else self[name]

    def each(self, name: str) -> tuple[float, ...]:
        """A number for each pair."""
        numbers = self._all[name]
        assert isinstance(numbers, tuple)
        return numbers

    def truth(self, name: str, usual: bool) -> bool:
        """Whether something holds, where the settings may be silent."""
        return bool(self._all.get(name, usual))


def compute_rope_frequencies(rope: Rope, dim: Dim) -> tuple[tuple[float, ...], float]:
    """`(frequencies, attention factor)`; no frequencies where they are plainly
    `theta^(-2n/dim)`.

    `linear` divides all by a factor (arXiv:2306.15595). `llama3` divides only long wave
    lengths, with a smooth passage. `yarn` blends by how often a pair turns in the
    original context (arXiv:2309.00071, eq. 23). `longrope` has a divisor for each pair
    (arXiv:2402.13753, eq. 3); there may be too few or too many, which the caller
    checks. `proportional` turns the first `part` of the pairs as they would turn in the
    whole head, and the others not at all (Gemma 4's files). Nothing is made of numbers
    that are not known yet, which a reading with symbols has.

    `dynamic` raises theta with the length of the text (arXiv:2309.00071, sec. 3.1 and
    3.3), `longrope` has other divisors where that is beyond the original length.
    Published code looks for the longest text of a batch while it runs, so that a text
    is not computed as it is by itself; here `longest` decides for all.
    """
    theta, d = rope.theta, dim.number
    if rope.kind == "default" or d is None:
        return (), 1.0
    if isinstance(theta, RuntimeNumber) or _has_symbols(rope):
        return (), 1.0
    numbers = _ScalingNumbers(rope)
    if rope.kind == "dynamic":
        theta *= _compute_theta_stretch(numbers) ** (d / (d - 2))
    if rope.kind == "longrope":
        return _compute_longrope(d, theta, numbers)
    plain = [theta ** (-2 * n / d) for n in range(d // 2)]
    if rope.kind == "proportional":
        turning = int(numbers["part"] * d // 2)
        still = [0.0] * (len(plain) - turning)
        return (*(f / numbers["factor"] for f in plain[:turning]), *still), 1.0
    if rope.kind != "yarn":
        return tuple(_scale_frequency(rope.kind, f, numbers) for f in plain), 1.0
    given = numbers.given("attention")
    usual = compute_yarn_scale(numbers["factor"])
    return _compute_yarn(plain, d, theta, numbers), given if given is not None else usual


def _scale_frequency(kind: str, frequency: float, numbers: _ScalingNumbers) -> float:
    """A frequency under a rule that looks at nothing else, and leaves cos and sin."""
    if kind == "linear":
        return frequency / numbers["factor"]
    return _scale_llama3(frequency, numbers) if kind == "llama3" else frequency


def _compute_longrope(
    d: int, theta: float, numbers: _ScalingNumbers
) -> tuple[tuple[float, ...], float]:
    """As many frequencies as there are divisors, and the attention factor."""
    divisors = numbers.each(_select_divisors(numbers))
    made = tuple(theta ** (-2 * n / d) / by for n, by in enumerate(divisors))
    given = numbers.given("attention")
    usual = _compute_longrope_factor(numbers["factor"], numbers["original"])
    return made, given if given is not None else usual


def get_max_rope_length(rope: Rope) -> int:
    """How long a text may be for which the frequencies are right; 0 where that is no
    question.
    """
    if "longest" not in dict(rope.numbers) or _has_symbols(rope):
        return 0
    return int(_ScalingNumbers(rope)["longest"])


def _compute_theta_stretch(numbers: _ScalingNumbers) -> float:
    """How much greater theta is than it was, for the dimension that turns slowest."""
    factor, original = numbers["factor"], numbers["original"]
    return factor * max(numbers["longest"], original) / original - (factor - 1)


def _select_divisors(numbers: _ScalingNumbers) -> str:
    """Which divisors count: those for texts beyond the original length, or the others."""
    beyond = numbers.holds("longest") and numbers["longest"] > numbers["original"]
    return "beyond" if beyond else "divisors"


def compute_yarn_scale(factor: float, by: float = 1.0) -> float:
    """How much sharper attention is made over longer texts, as a factor of cos and sin
    (arXiv:2309.00071, eq. 22).
    """
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def _has_symbols(rope: Rope) -> bool:
    """Whether a number of it hangs on config values that are still symbols."""
    numbers = [one for _, value in rope.numbers for one in _list_numbers(value)]
    return any(isinstance(number, RuntimeNumber) for number in numbers)


def _list_numbers(value: RopeNumber) -> tuple[RopeNumber, ...]:
    return value if isinstance(value, tuple) else (value,)


def _scale_llama3(frequency: float, numbers: _ScalingNumbers) -> float:
    wave = 2 * math.pi / frequency
    low, high, original = numbers["low"], numbers["high"], numbers["original"]
    # long waves are divided, short ones kept, those between blended
    if wave > original / low:
        return frequency / numbers["factor"]
    if wave < original / high:
        return frequency
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * frequency / numbers["factor"] + smooth * frequency


def _compute_longrope_factor(factor: float, original: float) -> float:
    """What keeps the entropy of attention over longer texts (arXiv:2402.13753, authors' code)."""
    if factor <= 1 or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _compute_yarn(
    plain: list[float], d: int, theta: float, numbers: _ScalingNumbers
) -> tuple[float, ...]:
    def pair_turning(turns: float) -> float:
        """Which pair turns so often over the original length, as a fraction."""
        wave = numbers["original"] / (turns * 2 * math.pi)
        return d * math.log(wave) / (2 * math.log(theta))

    first, last = pair_turning(numbers["fast"]), pair_turning(numbers["slow"])
    if numbers.truth("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, d - 1)
    # the published code divides by this where both ends are one pair
    span = high - low if high != low else 0.001
    ramp = [min(max((n - low) / span, 0.0), 1.0) for n in range(d // 2)]
    return tuple(f / numbers["factor"] * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True))
