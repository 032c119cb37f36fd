"""Compute RoPE frequencies: linear, dynamic, llama3, yarn, longrope, proportional scaling."""

import math

from specc.frontend.spec_values import Rope, RopeNumber, RuntimeNumber
from specc.ir.dim import Dim

MAX_STRETCH = 1e30
"""The maximum factor of theta; far beyond it no feature rotates."""


def _find_not_positive(rope: Rope) -> str:
    for name, value in (("theta", rope.theta), *rope.numbers):
        for one in _list_numbers(value):
            if isinstance(one, float | int) and not _is_positive(one):
                return f"`{name}` is {one:g}, expected above 0"
    return ""


def explain_invalid_rope(rope: Rope) -> str:
    """Return why the settings are invalid, to follow "invalid RoPE settings: ", or ""."""
    if isinstance(rope.theta, RuntimeNumber) or _has_symbols(rope):
        return ""
    if why := _find_not_positive(rope):
        return why
    # YaRN's ramp divides by log(theta)
    if rope.kind == "yarn" and rope.theta <= 1:
        return f"`theta` is {rope.theta:g}, but `yarn` needs it above 1"
    numbers = _ScalingNumbers(rope)
    if rope.kind == "llama3" and numbers["low"] >= numbers["high"]:
        return "the low frequency factor must be below the high one"
    if rope.kind == "proportional" and numbers["part"] > 1:
        return f"`part` is {numbers['part']:g}, expected at most 1"
    if rope.kind == "dynamic" and not 0 < _compute_theta_stretch(numbers) <= MAX_STRETCH:
        return f"`theta` overflows with a `factor` of {numbers['factor']:g}"
    return ""


def _is_positive(number: float) -> bool:
    """Return whether a number is valid; bools always are."""
    return isinstance(number, bool) or (math.isfinite(number) and number > 0)


class _ScalingNumbers:
    """The known numbers of a scaling kind."""

    def __init__(self, rope: Rope) -> None:
        self._all = dict(rope.numbers)

    def __getitem__(self, name: str) -> float:
        number = self._all[name]
        assert isinstance(number, float | int), f"every kind with `{name}` sets it"
        return number

    def has_number(self, name: str) -> bool:
        """Return whether the kind has a number of that name."""
        return name in self._all

    def given(self, name: str) -> float | None:
        """Return a number, or None if it is not given."""
        return None if self._all[name] is None else self[name]

    def read_list(self, name: str) -> tuple[float, ...]:
        """Return a list of one number per pair."""
        numbers = self._all[name]
        assert isinstance(numbers, tuple)
        return numbers

    def read_bool(self, name: str, usual: bool) -> bool:
        """Return a bool, or `usual` if it is not given."""
        return bool(self._all.get(name, usual))


def compute_rope_frequencies(rope: Rope, dim: Dim) -> tuple[tuple[float, ...], float]:
    """Return (frequencies, attention factor); without frequencies if they are
    `theta^(-2n/dim)`, or if numbers are not known yet.

    `linear` divides all frequencies by a factor (arXiv:2306.15595). `llama3` divides only
    long wavelengths, with a smooth transition. `yarn` interpolates by the number of
    rotations over the original context (arXiv:2309.00071, eq. 23). `longrope` has one
    divisor per pair (arXiv:2402.13753, eq. 3), whose number the caller checks.
    `proportional` rotates only the first `part` of the pairs, with the frequencies of the
    whole head (Gemma 4). `ntk_alpha` multiplies theta by `alpha^(d/(d-2))` (Hunyuan).

    `dynamic` increases theta with the sequence length (arXiv:2309.00071, sec. 3.1 and
    3.3), and `longrope` has other divisors beyond the original length. transformers uses
    the longest sequence of the batch at run time, so that results depend on the batch;
    here `longest` decides at compile time.
    """
    theta, d = rope.theta, dim.number
    if rope.kind == "default" or d is None:
        return (), 1.0
    if isinstance(theta, RuntimeNumber) or _has_symbols(rope):
        return (), 1.0
    numbers = _ScalingNumbers(rope)
    if rope.kind == "dynamic":
        theta *= _compute_theta_stretch(numbers) ** (d / (d - 2))
    if rope.kind == "ntk_alpha":
        theta *= numbers["alpha"] ** (d / (d - 2))
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


def compute_axial_frequencies(rope: Rope, sections: tuple[int, ...]) -> tuple[float, ...]:
    """Return, for each position axis, the frequencies of a head with the pairs of its section."""
    if isinstance(rope.theta, RuntimeNumber):
        return ()
    return tuple(rope.theta ** (-n / pairs) for pairs in sections for n in range(pairs))


def _scale_frequency(kind: str, frequency: float, numbers: _ScalingNumbers) -> float:
    """Scale a frequency by a kind that needs nothing else."""
    if kind == "linear":
        return frequency / numbers["factor"]
    return _scale_llama3(frequency, numbers) if kind == "llama3" else frequency


def _compute_longrope(
    d: int, theta: float, numbers: _ScalingNumbers
) -> tuple[tuple[float, ...], float]:
    """Return one frequency per divisor, and the attention factor."""
    divisors = numbers.read_list(_select_divisors(numbers))
    made = tuple(theta ** (-2 * n / d) / by for n, by in enumerate(divisors))
    given = numbers.given("attention")
    usual = _compute_longrope_factor(numbers["factor"], numbers["original"])
    return made, given if given is not None else usual


def get_max_rope_length(rope: Rope) -> int:
    """Return the maximum sequence length for which the frequencies are valid; 0 if there is
    none.
    """
    if "longest" not in dict(rope.numbers) or _has_symbols(rope):
        return 0
    return int(_ScalingNumbers(rope)["longest"])


def _compute_theta_stretch(numbers: _ScalingNumbers) -> float:
    """Return the factor of theta for the slowest dimension."""
    factor, original = numbers["factor"], numbers["original"]
    return factor * max(numbers["longest"], original) / original - (factor - 1)


def _select_divisors(numbers: _ScalingNumbers) -> str:
    """Return which divisors apply: those beyond the original length, or the others."""
    beyond = numbers.has_number("longest") and numbers["longest"] > numbers["original"]
    return "beyond" if beyond else "divisors"


def compute_yarn_scale(factor: float, by: float = 1.0) -> float:
    """Return the factor of cos and sin that sharpens attention over longer contexts
    (arXiv:2309.00071, eq. 22).
    """
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def _has_symbols(rope: Rope) -> bool:
    """Return whether a number depends on config values that are still symbols."""
    numbers = [one for _, value in rope.numbers for one in _list_numbers(value)]
    return any(isinstance(number, RuntimeNumber) for number in numbers)


def _list_numbers(value: RopeNumber) -> tuple[RopeNumber, ...]:
    return value if isinstance(value, tuple) else (value,)


def _scale_llama3(frequency: float, numbers: _ScalingNumbers) -> float:
    wave = 2 * math.pi / frequency
    low, high, original = numbers["low"], numbers["high"], numbers["original"]
    # long wavelengths are divided, short ones kept, those in between interpolated
    if wave > original / low:
        return frequency / numbers["factor"]
    if wave < original / high:
        return frequency
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * frequency / numbers["factor"] + smooth * frequency


def _compute_longrope_factor(factor: float, original: float) -> float:
    """Return the factor that preserves attention entropy (arXiv:2402.13753, authors' code)."""
    if factor <= 1 or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _compute_yarn(
    plain: list[float], d: int, theta: float, numbers: _ScalingNumbers
) -> tuple[float, ...]:
    def find_pair(rotations: float) -> float:
        """Return the (fractional) pair with this many rotations over the original length."""
        wave = numbers["original"] / (rotations * 2 * math.pi)
        return d * math.log(wave) / (2 * math.log(theta))

    first, last = find_pair(numbers["fast"]), find_pair(numbers["slow"])
    if numbers.read_bool("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, d - 1)
    # the published code divides by this if both ends are one pair
    span = high - low if high != low else 0.001
    ramp = [min(max((n - low) / span, 0.0), 1.0) for n in range(d // 2)]
    return tuple(f / numbers["factor"] * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True))
