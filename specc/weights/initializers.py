"""Parse parameter initializers such as `normal(0.02)`."""

import math
import re
from dataclasses import dataclass

from specc.diagnostics.diagnostic import Span, raise_error

PLAIN_KINDS = ("zeros", "ones")
NUMBER_KINDS = ("constant", "normal", "uniform", "fan_in", "fan_in_each")
_INITIALIZER_PATTERN = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*([-+0-9.eE]+)\s*\))?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Initializer:
    """A parameter initializer. `zeros`, `ones` and `constant` set every element to 0, 1 or `value`.
    `normal` has mean 0 and standard deviation `value`. `uniform` is uniform within ±`value`.
    `fan_in` is uniform within ±value * sqrt(3 / fan_in), so that the output of a linear layer has
    variance value².

    LeCun et al. 1998, "Efficient BackProp", section 4.6. The fan-in is the product of all axis
    sizes except the first, because weights are stored as [out, in, …], and 1 for a vector.
    `fan_in_each` excludes the first axis, along which several weights are stacked.
    """

    kind: str
    value: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind in PLAIN_KINDS else f"{self.kind}({self.value!r})"

    def compute_bound(self, shape: tuple[int, ...]) -> float:
        """Return the bound b of the uniform distribution within ±b for a parameter of shape
        `shape`.
        """
        if self.kind == "uniform":
            return self.value
        weight = shape[1:] if self.kind == "fan_in_each" else shape
        return self.value * math.sqrt(3 / max(1, math.prod(weight[1:])))


def parse_initializer(text: str, span: Span | None = None) -> Initializer:
    """Parse an initializer such as `normal(0.02)`. Raise E0516 at `span` if the initializer is
    invalid.
    """
    match = _INITIALIZER_PATTERN.fullmatch(text)
    kind, number = match.groups() if match else ("", None)
    if kind in PLAIN_KINDS and number is None:
        return Initializer(kind)
    if kind in NUMBER_KINDS and number is not None:
        value = _parse_number(number)
        if math.isfinite(value) and (value >= 0 or kind == "constant"):
            return Initializer(kind, value)
    return raise_error(
        "E0516",
        f"`{text}` is not an initializer",
        span,
        helps=["write one of zeros, ones, constant(0.5), normal(0.02), uniform(0.1), fan_in(1.0)"],
    )


def _parse_number(text: str) -> float:
    """Parse a number, or return NaN if the text is not a number."""
    try:
        return float(text)
    except ValueError:  # the regular expression also matches invalid numbers such as `1e` and `+-`
        return math.nan
