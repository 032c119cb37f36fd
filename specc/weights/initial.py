"""How parameters start when no checkpoint gives them: a small closed set, each with a
text form.

The text form is what a spec says and what the IR carries: `zeros`, `ones`,
`constant(0.5)`, `normal(0.02)`, `uniform(0.1)`, `fan_in(1.0)`, and of weights that
lie in one, `fan_in_each(1.0)`. `parse` and `str` are inverses.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from specc.text.diagnostic import fail
from specc.text.source import Span


@dataclass(frozen=True, slots=True)
class Zeros:
    """Every element 0."""

    def __str__(self) -> str:
        return "zeros"


@dataclass(frozen=True, slots=True)
class Ones:
    """Every element 1."""

    def __str__(self) -> str:
        return "ones"


@dataclass(frozen=True, slots=True)
class Constant:
    """Every element `value`."""

    value: float

    def __str__(self) -> str:
        return f"constant({self.value!r})"


@dataclass(frozen=True, slots=True)
class Normal:
    """Mean 0, standard deviation `std`."""

    std: float

    def __str__(self) -> str:
        return f"normal({self.std!r})"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Between -`bound` and `bound`."""

    bound: float

    def __str__(self) -> str:
        return f"uniform({self.bound!r})"


@dataclass(frozen=True, slots=True)
class FanIn:
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


Initializer: TypeAlias = Zeros | Ones | Constant | Normal | Uniform | FanIn

_PLAIN: dict[str, Initializer] = {"zeros": Zeros(), "ones": Ones()}
_WITH_NUMBER: dict[str, Callable[[float], Initializer]] = {
    "constant": Constant,
    "normal": Normal,
    "uniform": Uniform,
    "fan_in": FanIn,
    "fan_in_each": lambda gain: FanIn(gain, each=True),
}
_FORM = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*([-+0-9.eE]+)\s*\))?\s*", re.ASCII)


def parse(text: str, span: Span | None = None) -> Initializer:
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
    return fail(
        "E0516",
        f"`{text}` is no way to start a parameter",
        span,
        helps=[
            "write one of zeros, ones, constant(0.5), normal(0.02), uniform(0.1), fan_in(1.0)"
        ],
    )
