"""Error bounds for float32 results, from the conditioning of the graph at its inputs; error of
16-bit computation, from the reference with rounded values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from specc import backend
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.verification.tolerance import count_unexplained, relative_change

UNIT_ROUNDOFF = 2.0**-24
"""Unit roundoff of float32."""
ROUNDING_PERTURBATIONS = 4
"""Number of rounding perturbations per value: more than one, so that a choice between nearly equal
values changes in some sample if kernels may choose differently."""
SAFETY_FACTOR = 8
"""Error bounds are this multiple of the largest change in any sample. Errors of compiled models
were 0.1 to 2.2 times the largest change (transformers, Mamba, RWKV, LSTM; weights times 1, 4 and
with outlier rows; up to 200 positions): kernels also round inside an inner product."""
SAMPLE_COUNT = 4
FURTHER_SAMPLES = 12
"""Number of samples that check the bounds before a difference is reported."""
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)

After = Callable[[Value, Array], Array]


def rounding_bounds(sample: "Sample", want: Mapping[str, Array]) -> dict[str, Array]:
    """Return bounds of the absolute float32 rounding error of each result, of its shape: equal
    along its last axis, infinite if the result is not stable.

    `want` are the exact results, `sample` is of `make_rounding_sample`.
    """
    bounds = bounds_of_samples(sample, want)
    return {name: _by_position(bound) for name, bound in bounds.items()}


def make_rounding_sample(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    after: After | None = None,
) -> "Sample":
    """Return the function that evaluates a graph with rounding errors; `after` replaces values
    as the reference does.
    """
    numpy = backend.load_reference()

    def run_rounded(errors: RoundingErrors) -> dict[str, Array]:
        errors.after = after
        given, changed = errors.add_errors(inputs), errors.add_errors(weights)
        return numpy.evaluate_graph(graph, given, changed, result_hook=errors)

    return run_rounded


def is_rounding_difference(
    sample: "Sample", name: str, got: Array, want: Array, bound: Array
) -> bool:
    """Return True if float32 rounding explains how the result `name` differs: each element is
    within its bound, or as few positions are outside as in further samples, those where
    rounding rarely decides.
    """
    if got.shape != want.shape:
        return False
    missed, flipped = count_unexplained(got, want, bound), 0
    for seed in range(SAMPLE_COUNT, SAMPLE_COUNT + FURTHER_SAMPLES):
        if flipped >= missed:
            return True
        made = sample(RoundingErrors(np.random.default_rng(seed)))[name]
        flipped += count_unexplained(np.asarray(made), want, bound)
    return flipped >= missed


Sample = Callable[["RoundingErrors"], Mapping[str, Array]]


def bounds_of_samples(sample: Sample, want: Mapping[str, Array]) -> dict[str, Array]:
    """Return bounds of the absolute error of results that `sample` perturbs."""
    bounds = {name: np.zeros(np.shape(value)) for name, value in want.items()}
    for seed in range(SAMPLE_COUNT):
        made = sample(RoundingErrors(np.random.default_rng(seed)))
        for name, value in want.items():
            moved = _movement(np.asarray(made[name]), np.asarray(value))
            bounds[name] = np.maximum(bounds[name], SAFETY_FACTOR * moved)
    return bounds


class RoundingErrors:
    """Changes values by random relative errors. Values of positions and constants alone
    are the same for all inputs and keep theirs: a position bucket is no rounding error.
    """

    def __init__(self, rng: np.random.Generator, after: After | None = None) -> None:
        self.rng, self.after = rng, after
        self.fixed = set[Value]()

    def __call__(self, value: Value, array: Array) -> Array:
        """Return the result of a node with its error."""
        array = self.after(value, array) if self.after else array
        if self._is_fixed(value):
            self.fixed.add(value)
            return array
        # moved elements keep their error
        if (value.node is not None and value.node.op.view) or array.dtype.kind in "iub":
            return array
        # values that float32 represents exactly are not perturbed: a bound of `clip`, a sum of
        # integers
        with np.errstate(over="ignore"):
            exact = array.astype(np.float32) == array
        # a rounded value is on the same side of 1, which is a float32, as the exact one
        inside = np.abs(array) <= 1
        changed = self.of(array)
        return np.where(exact, array, np.where(inside, np.clip(changed, -1, 1), changed))

    def _is_fixed(self, value: Value) -> bool:
        node = value.node
        if node is None or isinstance(node.op, ops.Extent):
            return node is not None
        return all(a is None or a in self.fixed for a in node.args)

    def add_errors(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return inputs or weights with errors."""
        return {name: self.of(np.asarray(array)) for name, array in arrays.items()}

    def of(self, array: Array) -> Array:
        """Return an array with errors; integers and booleans have none."""
        if array.dtype.kind in "iub":
            return array
        value = np.asarray(array, np.float64)
        sign = self.rng.choice([-1.0, 1.0], value.shape)
        changed = value * (1 + ROUNDING_PERTURBATIONS * UNIT_ROUNDOFF * sign)
        made: Array = np.where(np.abs(value) < SMALLEST_NORMAL, 0.0 * value, changed)
        return made


def _movement(after: Array, before: Array) -> Array:
    """Return the absolute elementwise change; infinite if a number, integer or boolean is lost."""
    if before.dtype.kind in "iub":
        return np.where(after != before, np.inf, 0.0)
    # NaN and infinities that do not change have no error
    same = (after == before) | (np.isnan(after) & np.isnan(before))
    with np.errstate(invalid="ignore"):
        moved = np.abs(after - before)
    made: Array = np.where(same, 0.0, np.where(np.isnan(moved), np.inf, moved))
    return made


def _by_position(bound: Array) -> Array:
    """Return the maximum bound along the last axis, as its features share the errors of one
    vector.
    """
    if bound.ndim < 2 or not bound.shape[-1]:
        return bound
    return np.broadcast_to(bound.max(-1, keepdims=True), bound.shape)


MAX_EXPLAINED_RATIO = 4
"""A difference of at most this multiple of the rounding effect is attributed to rounding: kernels
also round internally."""
RANDOM_DRAWS = 3


@dataclass(frozen=True)
class HalfFormat:
    """A 16-bit float type: its digits, the exponent of the smallest normal, and the maximum."""

    digits: int
    least: int
    most: float

    def rounded(self, x: Array, nudge: Array | float = 0.0) -> Array:
        """Round to this type, after adding `nudge` times half a unit in the last place; infinite
        above the maximum.
        """
        _, exponent = np.frexp(x)
        unit = np.ldexp(1.0, np.maximum(exponent, self.least) - self.digits)
        near = np.round(x / unit + 0.5 * nudge) * unit
        beyond = np.isfinite(x) & (np.abs(near) > self.most)
        made: Array = np.where(beyond, np.copysign(np.inf, x), near)
        return made


HALF_FORMATS: Mapping[str, HalfFormat] = {
    "f16": HalfFormat(digits=11, least=-13, most=65504.0),
    "bf16": HalfFormat(digits=8, least=-125, most=float(2**128 - 2**120)),
}
"""IEEE 754 binary16, and bfloat16."""


def half_format_of(graph: Graph) -> str:
    """Return the 16-bit type that a graph computes in, or ""."""
    types = (v.dtype for _, results in graph.nodes for v in results)
    return next((dtype for dtype in types if dtype in HALF_FORMATS), "")


@dataclass
class HalfRounding:
    """Rounds the 16-bit values of a graph: to a random side with `rng`, else to nearest.

    `over` is the first value in which an element became infinite, and that element.
    """

    rng: np.random.Generator | None = None
    over: tuple[Value, float] | None = None

    def __call__(self, value: Value, array: Array) -> Array:
        """Return the rounded result of a node."""
        form = HALF_FORMATS.get(value.dtype)
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
    """Return the relative error of each result due to 16-bit rounding. E0980 for a value out of
    range.
    """
    numpy = backend.load_reference()
    rng = np.random.default_rng(0)
    most = dict.fromkeys(want, 0.0)
    for n in range(RANDOM_DRAWS + 1):
        rounding = HalfRounding(rng if n else None)
        made = numpy.evaluate_graph(graph, inputs, weights, result_hook=rounding)
        if rounding.over is not None:
            _too_large(graph, *rounding.over)
        for name, value in want.items():
            size = relative_change(np.asarray(made[name]), np.asarray(value))
            most[name] = max(most[name], size)
    return most


def _too_large(graph: Graph, value: Value, number: float) -> None:
    """Raise E0980."""
    dtype = value.dtype
    named = [n for n, v in graph.names.items() if v is value]
    where = next(iter((*named, *graph.get_origin(value.node).scopes)), graph.name)
    raise_error(
        "E0980",
        f"a value of `{escape_text(where)}` overflows {dtype}",
        notes=[f"it is {number:.4g}, and the largest of {dtype} is {HALF_FORMATS[dtype].most:.5g}"],
        helps=[
            "compile with `--dtype bf16`, which has the range of f32",
            "or without `--dtype`, in f32",
        ],
    )
