"""Initializers of parameters: the forms that a spec may write, parsed."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span


@dataclass(frozen=True, slots=True)
class ZerosInit:
    """Every element 0."""

    def __str__(self) -> str:
        return "zeros"


@dataclass(frozen=True, slots=True)
class OnesInit:
    """Every element 1."""

    def __str__(self) -> str:
        return "ones"


@dataclass(frozen=True, slots=True)
class ConstantInit:
    """Every element `value`."""

    value: float

    def __str__(self) -> str:
        return f"constant({self.value!r})"


@dataclass(frozen=True, slots=True)
class NormalInit:
    """Mean 0, standard deviation `std`."""

    std: float

    def __str__(self) -> str:
        return f"normal({self.std!r})"


@dataclass(frozen=True, slots=True)
class UniformInit:
    """Between -`bound` and `bound`."""

    bound: float

    def __str__(self) -> str:
        return f"uniform({self.bound!r})"


@dataclass(frozen=True, slots=True)
class FanInInit:
    """Uniform within ±gain * sqrt(3 / fan_in): keeps the variance of a linear map's
    result at gain².

    LeCun et al. 1998, "Efficient BackProp", section 4.6. `fan_in` is the product of all
    lengths but the first: weights are stored `[out, in, …]`. A vector has fan_in 1.
    """

    gain: float
    each: bool = False
    """Whether the first axis counts weights, as many in one parameter."""

    def __str__(self) -> str:
        return f"fan_in{'_each' if self.each else ''}({self.gain!r})"

    def bound(self, shape: tuple[int, ...]) -> float:
        """Half the width of the range, for a parameter of that shape."""
        weight = shape[1:] if self.each else shape
        return self.gain * math.sqrt(3 / max(1, math.prod(weight[1:])))


Initializer: TypeAlias = ZerosInit | OnesInit | ConstantInit | NormalInit | UniformInit | FanInInit

_PLAIN: dict[str, Initializer] = {"zeros": ZerosInit(), "ones": OnesInit()}
_WITH_NUMBER: dict[str, Callable[[float], Initializer]] = {
    "constant": ConstantInit,
    "normal": NormalInit,
    "uniform": UniformInit,
    "fan_in": FanInInit,
    "fan_in_each": lambda gain: FanInInit(gain, each=True),
}
_FORM = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*([-+0-9.eE]+)\s*\))?\s*", re.ASCII)


def parse_initializer(text: str, span: Span | None = None) -> Initializer:
    """The initializer a text names. Fails with E0516."""
    found = _FORM.fullmatch(text)
    name, number = found.groups() if found else ("", None)
    if name in _PLAIN and number is None:
        return _PLAIN[name]
    if name in _WITH_NUMBER and number is not None:
        try:
            value = float(number)
        except ValueError:  # the form lets `1e` and `+-` through
            value = math.nan
        if math.isfinite(value) and (value >= 0 or name == "constant"):
            return _WITH_NUMBER[name](value)
    return raise_error(
        "E0516",
        f"`{text}` is no way to start a parameter",
        span,
        helps=["write one of zeros, ones, constant(0.5), normal(0.02), uniform(0.1), fan_in(1.0)"],
    )
