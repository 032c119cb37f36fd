"""Error of 16-bit computation, from the reference with rounded values."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specc import backend
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.verification.tolerance import relative_change

EXPLAINED = 4
"""A difference is put down to the roundings if it is at most so many times what they
make: kernels round inside of themselves too.
"""
DRAWS = 3


@dataclass(frozen=True)
class HalfFormat:
    """A type of 16 bits: binary digits of a number, the exponent of the least with all
    of them, and the largest.
    """

    digits: int
    least: int
    most: float

    def rounded(self, x: Array, nudge: Array | float = 0.0) -> Array:
        """The nearest numbers of this type, after `nudge` times a half of the distance
        to the next; infinite above the largest.
        """
        _, exponent = np.frexp(x)
        unit = np.ldexp(1.0, np.maximum(exponent, self.least) - self.digits)
        near = np.round(x / unit + 0.5 * nudge) * unit
        beyond = np.isfinite(x) & (np.abs(near) > self.most)
        made: Array = np.where(beyond, np.copysign(np.inf, x), near)
        return made


FORMS: Mapping[str, HalfFormat] = {
    "f16": HalfFormat(digits=11, least=-13, most=65504.0),
    "bf16": HalfFormat(digits=8, least=-125, most=float(2**128 - 2**120)),
}
"""IEEE 754 binary16, and the upper half of a binary32."""


def half_format_of(graph: Graph) -> str:
    """The type of 16 bits that a graph computes in; empty where it is none."""
    types = (v.type.dtype for _, results in graph.nodes for v in results)
    return next((dtype for dtype in types if dtype in FORMS), "")


@dataclass
class HalfRounding:
    """Rounds the 16-bit values of a graph: to a random side with `rng`, else to nearest.

    `over` is the first value in which an element became infinite, and that element.
    """

    rng: np.random.Generator | None = None
    over: tuple[Value, float] | None = None

    def __call__(self, value: Value, array: Array) -> Array:
        """Return the rounded result of a node."""
        form = FORMS.get(value.type.dtype)
        if form is None:
            return array
        nudge = 0.0 if self.rng is None else self.rng.uniform(-1, 1, array.shape)
        made = form.rounded(array, nudge)
        lost = np.isinf(made) & np.isfinite(array)
        if self.over is None and lost.any():
            self.over = value, float(array[lost].flat[0])
        return made


def half_rounding_error(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    want: Mapping[str, Array],
) -> dict[str, float]:
    """By how much of its largest value each result moves by the roundings of 16 bits.

    Fails with E0980 at a value that does not fit into them.
    """
    numpy = backend.load_reference()
    rng = np.random.default_rng(0)
    most = dict.fromkeys(want, 0.0)
    for n in range(DRAWS + 1):
        rounding = HalfRounding(rng if n else None)
        made = numpy.evaluate_graph(graph, inputs, weights, after=rounding)
        if rounding.over is not None:
            _too_large(graph, *rounding.over)
        for name, value in want.items():
            size = relative_change(np.asarray(made[name]), np.asarray(value))
            most[name] = max(most[name], size)
    return most


def _too_large(graph: Graph, value: Value, number: float) -> None:
    """E0980."""
    dtype = value.type.dtype
    known = graph.made.get(value.node) if value.node else None
    scopes = known.scopes if known else ()
    named = [n for n, v in graph.names.items() if v is value]
    where = next(iter((*named, *scopes)), graph.name)
    raise_error(
        "E0980",
        f"a number of `{escape_text(where)}` does not fit into {dtype}",
        notes=[f"it is {number:.4g}, and the largest of {dtype} is {FORMS[dtype].most:.5g}"],
        helps=[
            "compile with `--dtype bf16`, which reaches as far as f32",
            "or without `--dtype`, in f32",
        ],
    )
