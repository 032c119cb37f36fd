"""Compute RoPE frequencies with scaling, such as linear, dynamic, llama3, yarn and longrope."""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from specc.frontend.spec_values import Rope, RopeNumber, RuntimeScalar
from specc.ir.dim import Dim

ScalingKind: TypeAlias = Literal[
    "default",
    "linear",
    "dynamic",
    "ntk_alpha",
    "llama3",
    "yarn",
    "longrope",
    "proportional",
    "axial",
]
"""The kinds of RoPE scaling."""
SCALING_KINDS: tuple[str, ...] = get_args(ScalingKind)
SCALING_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"beta_fast": 32.0, "beta_slow": 1.0},
    "proportional": {"factor": 1.0},
}
"""The default parameters of each scaling kind, as in transformers."""

MAX_STRETCH = 1e30
"""The maximum factor by which theta is scaled. Larger factors make the rotations negligible."""


def _explain_not_positive(rope: Rope) -> str:
    """Return an error message if `theta` or a parameter is not positive and finite, or ""."""
    for name, value in (("theta", rope.theta), *rope.parameters):
        for number in _list_numbers(value):
            if isinstance(number, bool) or not isinstance(number, float | int):
                continue
            if not 0 < number < math.inf:
                return f"`{name}` must be greater than 0, got {number:g}"
    return ""


def explain_invalid_rope_settings(rope: Rope) -> str:
    """Return an error message if RoPE settings are invalid, or ""."""
    if isinstance(rope.theta, RuntimeScalar) or _has_symbols(rope):
        return ""
    if reason := _explain_not_positive(rope):
        return reason
    # YaRN requires `theta` > 1, because the ramp divides by log(theta)
    if rope.kind == "yarn" and rope.theta <= 1:
        return f"`yarn` needs `theta` > 1, got {rope.theta:g}"
    return _explain_invalid_factor(rope)


def _explain_invalid_factor(rope: Rope) -> str:
    """Return an error message if the scaling parameters are invalid for their kind, or ""."""
    numbers = _get_scaling_numbers(rope)
    if rope.kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        return "`low_freq_factor` must be less than `high_freq_factor`"
    if rope.kind == "proportional" and numbers["part"] > 1:
        return f"`part` must be at most 1, got {numbers['part']:g}"
    if rope.kind == "dynamic" and not 0 < _compute_theta_stretch(numbers) <= MAX_STRETCH:
        return f"`theta` overflows with a `factor` of {numbers['factor']:g}"
    return ""


def _get_scaling_numbers(rope: Rope) -> dict[str, float]:
    """Return the RoPE scaling parameters that are single numbers without symbols."""
    return {name: value for name, value in rope.parameters if isinstance(value, float | int)}


def compute_rope_frequencies(rope: Rope, dim: Dim) -> tuple[tuple[float, ...], float]:
    """Return (frequencies, attention factor). The frequencies are () if they have the default
    values `theta^(-2n/dim)`, or if parameters are symbolic.

    `linear` divides all frequencies by a factor (arXiv:2306.15595). `llama3` divides only the
    frequencies of long wavelengths, with a smooth transition to the unscaled ones. `yarn`
    interpolates by the number of rotations over the original context (arXiv:2309.00071, eq. 23).
    `longrope` divides each frequency by a separate divisor (arXiv:2402.13753, eq. 3). The caller
    checks the number of divisors. `proportional` rotates only the first `part` of the pairs, with
    the frequencies of the whole head (Gemma 4). `ntk_alpha` multiplies theta by `alpha^(d/(d-2))`
    (Hunyuan).

    `dynamic` increases theta with the sequence length (arXiv:2309.00071, sec. 3.1 and 3.3).
    `longrope` uses separate divisors for sequences longer than the original length. In
    transformers, the length of the longest sequence in the batch determines the frequencies, so
    results depend on the batch. In specc, `longest` determines the frequencies at compile time.
    """
    theta, d = rope.theta, dim.number
    if rope.kind == "default" or d is None:
        return (), 1.0
    if isinstance(theta, RuntimeScalar) or _has_symbols(rope):
        return (), 1.0
    numbers = _get_scaling_numbers(rope)
    if rope.kind == "longrope":
        return _compute_longrope(d, theta, rope)
    if rope.kind == "dynamic":
        theta *= _compute_theta_stretch(numbers) ** (d / (d - 2))
    elif rope.kind == "ntk_alpha":
        theta *= numbers["alpha"] ** (d / (d - 2))
    unscaled = [theta ** (-2 * n / d) for n in range(d // 2)]
    if rope.kind == "yarn":
        return _compute_yarn(unscaled, d, theta, numbers)
    return _scale_frequencies(rope.kind, unscaled, d, numbers), 1.0


def _scale_frequencies(
    kind: str, unscaled: list[float], d: int, numbers: Mapping[str, float]
) -> tuple[float, ...]:
    """Scale the frequencies for a scaling kind without an attention factor."""
    match kind:
        case "proportional":
            return _compute_proportional(unscaled, d, numbers)
        case "llama3":
            return tuple(_scale_llama3(f, numbers) for f in unscaled)
        case "linear":
            return tuple(f / numbers["factor"] for f in unscaled)
    return tuple(unscaled)


def compute_axial_frequencies(rope: Rope, sections: tuple[int, ...]) -> tuple[float, ...]:
    """Return the concatenated frequencies of all position axes. The frequencies of an axis equal
    those of a head that has only this axis's feature pairs.
    """
    if isinstance(rope.theta, RuntimeScalar):
        return ()
    return tuple(rope.theta ** (-n / pairs) for pairs in sections for n in range(pairs))


def _compute_proportional(
    unscaled: list[float], d: int, numbers: Mapping[str, float]
) -> tuple[float, ...]:
    """Divide the frequencies of rotated feature pairs by the factor, and set the others to zero."""
    rotated_count = int(numbers["part"] * d // 2)
    zeros = [0.0] * (len(unscaled) - rotated_count)
    return (*(f / numbers["factor"] for f in unscaled[:rotated_count]), *zeros)


def _compute_longrope(d: int, theta: float, rope: Rope) -> tuple[tuple[float, ...], float]:
    """Return one frequency per divisor, and the attention factor."""
    numbers = _get_scaling_numbers(rope)
    exceeds_original = (numbers.get("longest") or 0) > numbers["original"]
    divisors = dict(rope.parameters)["beyond" if exceeds_original else "divisors"]
    assert isinstance(divisors, tuple)
    frequencies = tuple(theta ** (-2 * n / d) / divisor for n, divisor in enumerate(divisors))
    attention_factor = numbers.get("attention_factor")
    if attention_factor is None:
        attention_factor = _compute_longrope_factor(numbers["factor"], numbers["original"])
    return frequencies, attention_factor


def get_max_rope_length(rope: Rope) -> int:
    """Return the maximum sequence length that the frequencies support, or 0 if it is unlimited."""
    return 0 if _has_symbols(rope) else int(_get_scaling_numbers(rope).get("longest") or 0)


def _compute_theta_stretch(numbers: Mapping[str, float]) -> float:
    """Return the factor by which `dynamic` scaling multiplies the longest wavelength."""
    factor, original = numbers["factor"], numbers["original"]
    return factor * max(numbers["longest"], original) / original - (factor - 1)


def compute_yarn_mscale(factor: float, scale: float = 1.0) -> float:
    """Return the factor by which YaRN scales cos and sin for longer contexts (arXiv:2309.00071, eq.
    22).
    """
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


MSCALE_OPTIONS = ("mscale", "mscale_all_dim")


def fold_mscale(parameters: Mapping[str, RopeNumber]) -> dict[str, RopeNumber]:
    """Replace `mscale` and `mscale_all_dim` with their attention factor (arXiv:2405.04434)."""
    others = {name: value for name, value in parameters.items() if name not in MSCALE_OPTIONS}
    match [parameters.get(n) for n in ("factor", *MSCALE_OPTIONS)]:
        case [float(factor), float(scale), float(all_dim)]:
            ratio = compute_yarn_mscale(factor, scale) / compute_yarn_mscale(factor, all_dim)
            return others | {"attention_factor": ratio}
    return others


def _has_symbols(rope: Rope) -> bool:
    """Return True if a parameter depends on config values that are still symbols."""
    numbers = [n for _, value in rope.parameters for n in _list_numbers(value)]
    return any(isinstance(number, RuntimeScalar) for number in numbers)


def _list_numbers(value: RopeNumber) -> tuple[RopeNumber, ...]:
    return value if isinstance(value, tuple) else (value,)


def _scale_llama3(frequency: float, numbers: Mapping[str, float]) -> float:
    """Divide low frequencies by the factor, keep high ones, and interpolate between the two."""
    wavelength = 2 * math.pi / frequency
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    original = numbers["original"]
    if wavelength > original / low:
        return frequency / numbers["factor"]
    if wavelength < original / high:
        return frequency
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / numbers["factor"] + smooth * frequency


def _compute_longrope_factor(factor: float, original: float) -> float:
    """Return LongRoPE's attention factor, which preserves entropy (arXiv:2402.13753, code)."""
    if factor <= 1 or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _compute_yarn(
    unscaled: list[float], d: int, theta: float, numbers: Mapping[str, float]
) -> tuple[tuple[float, ...], float]:
    """Return YaRN's interpolated frequencies and its attention factor."""

    def find_pair(rotations: float) -> float:
        """Return the index of the pair that rotates `rotations` times over the original length."""
        wavelength = numbers["original"] / (rotations * 2 * math.pi)
        return d * math.log(wavelength) / (2 * math.log(theta))

    first, last = find_pair(numbers["beta_fast"]), find_pair(numbers["beta_slow"])
    truncate = numbers.get("truncate")
    if truncate is None or truncate:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, d - 1)
    # as in the published YaRN code, avoid a division by zero
    span = high - low if high != low else 0.001
    ramp = [min(max((n - low) / span, 0.0), 1.0) for n in range(d // 2)]
    factor, attention_factor = numbers["factor"], numbers.get("attention_factor")
    frequencies = (f / factor * r + f * (1 - r) for f, r in zip(unscaled, ramp, strict=True))
    if attention_factor is None:
        attention_factor = compute_yarn_mscale(factor)
    return tuple(frequencies), attention_factor
