"""Estimate the effect of float32 and 16-bit rounding errors on results, and report values that
overflow. For this estimate, the reference is evaluated with perturbed or rounded values.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import numpy as np

from specc import backend
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Node, Value
from specc.verification.result_comparison import (
    RELATIVE_TOLERANCE,
    ResultHook,
    compute_relative_differences,
    count_mismatched_positions,
    find_equal_elements,
)

UNIT_ROUNDOFF = 2.0**-24
"""Unit roundoff of float32 (half a unit in the last place of 1)."""
ROUNDING_PERTURBATIONS = 4
"""Magnitude of a perturbation in multiples of the unit roundoff. The size is larger than 1, so that
at least one sample changes each discrete decision (argmax, comparison) between nearly equal values.
"""
SAFETY_FACTOR = 8
"""Ratio of an error bound to the largest change of a result among all perturbed samples. The errors
of compiled models were between 0.1 and 2.2 times the largest change, because kernels also round
within an inner product. This was measured for transformers, Mamba, RWKV and LSTM with up to 200
positions, weights scaled by 1 and 4, and outlier rows.
"""
SAMPLE_COUNT = 4
"""Number of perturbed evaluations from which error bounds are estimated."""
EXTRA_SAMPLE_COUNT = 12
"""Number of samples that verify the bounds before a difference is reported."""
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
MAX_FLOAT32 = float(np.finfo(np.float32).max)


def compute_position_error_bounds(
    run_perturbed: "PerturbedRun", expected: Mapping[str, Array]
) -> dict[str, Array]:
    """Return an upper bound for the absolute float32 rounding error of each result element.

    All error bounds along the last axis are equal. A bound is infinite if a perturbation changes
    the result to NaN or changes an integer. `expected` are the exact results, and `run_perturbed`
    is a function from `make_perturbed_evaluator`.
    """
    bounds = compute_error_bounds(run_perturbed, expected)
    return {name: _take_max_per_position(bound) for name, bound in bounds.items()}


def make_perturbed_evaluator(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    result_hook: ResultHook | None = None,
) -> "PerturbedRun":
    """Return a function that evaluates `graph` on `inputs` with perturbed values. The argument of
    the function is the perturbation. As in the reference run, `result_hook` replaces results before
    they are perturbed.
    """
    numpy = backend.load_reference_backend()

    def run_rounded(errors: RoundingPerturbation) -> dict[str, Array]:
        errors.result_hook = result_hook
        arrays = errors.perturb_arrays(inputs), errors.perturb_arrays(weights)
        return numpy.evaluate_graph(graph, *arrays, result_hook=errors)

    return run_rounded


def is_rounding_difference(
    run_perturbed: "PerturbedRun", name: str, result: Array, expected: Array, bound: Array
) -> bool:
    """Return True if float32 rounding errors explain the difference of the result `name`. Either
    each element must be within its bound, or the number of positions outside their bounds must not
    exceed the number in additional perturbed samples.
    """
    if result.shape != expected.shape:
        return False
    unexplained_count, perturbed_count = count_mismatched_positions(result, expected, bound), 0
    for seed in range(SAMPLE_COUNT, SAMPLE_COUNT + EXTRA_SAMPLE_COUNT):
        if perturbed_count >= unexplained_count:
            return True
        perturbed = run_perturbed(RoundingPerturbation(np.random.default_rng(seed)))[name]
        perturbed_count += count_mismatched_positions(np.asarray(perturbed), expected, bound)
    return perturbed_count >= unexplained_count


PerturbedRun = Callable[["RoundingPerturbation"], Mapping[str, Array]]
"""A function that evaluates a graph with perturbed values and returns its results by name."""


def compute_error_bounds(
    run_perturbed: PerturbedRun,
    expected: Mapping[str, Array],
    seeds: Iterable[int] = range(SAMPLE_COUNT),
) -> dict[str, Array]:
    """Estimate absolute error bounds of each result from evaluations with perturbed values."""
    bounds = {name: np.zeros(np.shape(value)) for name, value in expected.items()}
    for seed in seeds:
        perturbed = run_perturbed(RoundingPerturbation(np.random.default_rng(seed)))
        for name, value in expected.items():
            change = _compute_change(np.asarray(perturbed[name]), np.asarray(value))
            bounds[name] = np.maximum(bounds[name], SAFETY_FACTOR * change)
    return bounds


class RoundingPerturbation:
    """A result hook that multiplies values by random relative errors. Values that depend only on
    constants and positions are not perturbed, because a change of a relative position bucket is not
    a rounding error.
    """

    def __init__(self, rng: np.random.Generator, result_hook: ResultHook | None = None) -> None:
        self.rng, self.result_hook = rng, result_hook
        self.input_independent_values = set[Value]()

    def __call__(self, value: Value, array: Array) -> Array:
        """Return the perturbed result of a node."""
        array = self.result_hook(value, array) if self.result_hook else array
        if self._is_input_independent(value):
            self.input_independent_values.add(value)
            return array
        # the results of view ops are elements of values that are already perturbed
        if (value.node is not None and value.node.op.is_view) or array.dtype.kind in "iub":
            return array
        # values that float32 represents exactly are not perturbed, e.g. clipped values or sums of
        # integers
        with np.errstate(over="ignore"):
            is_exact = array.astype(np.float32) == array
        # rounding never moves a value across 1, because float32 represents 1 exactly
        is_small = np.abs(array) <= 1
        perturbed = self.perturb_array(array)
        if value.op in GELU_OPS:
            perturbed = np.where(array < 0, perturbed + self._draw_errors(array.shape), perturbed)
        return np.where(is_exact, array, np.where(is_small, np.clip(perturbed, -1, 1), perturbed))

    def _is_input_independent(self, value: Value) -> bool:
        node = value.node
        if node is None or isinstance(node.op, ops.Extent):
            return node is not None
        return all(a is None or a in self.input_independent_values for a in node.args)

    def perturb_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs or weights after multiplying floats by random relative errors."""
        return {name: self.perturb_array(np.asarray(array)) for name, array in arrays.items()}

    def perturb_array(self, array: Array) -> Array:
        """Return floats with random relative errors, and integers and booleans unchanged."""
        if array.dtype.kind in "iub":
            return array
        value = np.asarray(array, np.float64)
        scaled = value * (1 + self._draw_errors(value.shape))
        perturbed: Array = np.where(np.abs(value) < SMALLEST_NORMAL, 0.0 * value, scaled)
        return perturbed

    def _draw_errors(self, shape: tuple[int, ...]) -> Array:
        """Return a tensor of random relative errors with the magnitude of a perturbation."""
        signs = 2.0 * self.rng.integers(2, size=shape) - 1
        return ROUNDING_PERTURBATIONS * UNIT_ROUNDOFF * signs


GELU_OPS = (ops.Pointwise("gelu"), ops.Pointwise("gelu_tanh"))
"""The ops that compute `x/2 · (1 + erf(x / √2))` or its tanh approximation.

For x < 0, the sum suffers from cancellation, as in PyTorch. The error of the product is the error
of the sum (one unit roundoff) times `|x|/2`. This error is less than three unit roundoffs, because
the sum is 0 for `x < -5.9`.
"""


def _compute_change(perturbed: Array, exact: Array) -> Array:
    """Return absolute changes, or infinity where NaN is new or an integer or bool has changed."""
    if exact.dtype.kind in "iub":
        return np.where(perturbed != exact, np.inf, 0.0)
    is_equal = find_equal_elements(perturbed, exact)
    with np.errstate(invalid="ignore"):
        change = np.abs(perturbed - exact)
    result: Array = np.where(is_equal, 0.0, np.where(np.isnan(change), np.inf, change))
    return result


def _take_max_per_position(bound: Array) -> Array:
    """Return the maximum along the last axis, because all features share rounding errors."""
    if bound.ndim < 2 or not bound.shape[-1]:
        return bound
    return np.broadcast_to(bound.max(-1, keepdims=True), bound.shape)


@dataclass(frozen=True)
class HalfPrecisionFormat:
    """A 16-bit float type, with its significand bits, minimum exponent and maximum value."""

    significand_bits: int
    min_normal_exponent: int
    max_value: float

    def round_array(self, x: Array, offset: Array | float = 0.0) -> Array:
        """Add `offset` times half a ulp, and round. Overflow becomes infinite."""
        _, exponent = np.frexp(x)
        unit = np.ldexp(1.0, np.maximum(exponent, self.min_normal_exponent) - self.significand_bits)
        nearest: Array = np.rint(x / unit + 0.5 * offset) * unit
        has_overflowed = np.abs(nearest) > self.max_value
        if not has_overflowed.any():
            return nearest
        return np.where(has_overflowed, np.copysign(np.inf, x), nearest)


HALF_FORMATS: Mapping[str, HalfPrecisionFormat] = {
    "f16": HalfPrecisionFormat(significand_bits=11, min_normal_exponent=-13, max_value=65504.0),
    "bf16": HalfPrecisionFormat(
        significand_bits=8, min_normal_exponent=-125, max_value=float(2**128 - 2**120)
    ),
}
"""The 16-bit float types float16 (IEEE 754 binary16) and bfloat16."""


def find_half_precision_dtype(graph: Graph) -> str:
    """Return the dtype of the first 16-bit float value in a graph, or "" if there is none."""
    types = (v.dtype for _, results in graph.nodes for v in results)
    return next((dtype for dtype in types if dtype in HALF_FORMATS), "")


def raise_overflow_error(graph: Graph, value: Value, element: float, note: str = "") -> NoReturn:
    """Raise E0980 because a value exceeds the range of its dtype."""
    dtype = value.dtype
    names = [n for n, v in graph.names.items() if v is value]
    location = next(iter((*names, *graph.get_origin(value.node).scopes)), graph.name)
    format, helps = (HALF_FORMATS.get(dtype), ["check the weights of earlier layers for outliers"])
    if format:
        helps = [
            "compile with `--dtype bf16`, which has the range of f32",
            "compile in f32, without `--dtype`",
        ]
    raise_error(
        "E0980",
        f"a value of `{escape_text(location)}` overflows {dtype}",
        notes=[
            f"the value is {element:.4g}{note}, but the maximum of {dtype} is "
            f"{format.max_value if format else MAX_FLOAT32:.5g}"
        ],
        helps=helps,
    )


MAX_EXPLAINED_RATIO = 4
"""Differences up to this multiple of the rounding error are attributed to rounding, because kernels
also round intermediate values."""


@dataclass
class HalfPrecisionRounding:
    """A result hook that rounds the 16-bit values of a graph: stochastically, or to nearest if
    `rng` is None.

    `overflow` is the first value that became infinite, with the element before rounding.
    `exact_scores` are the scores that select indices. The rounding errors of `exact_scores` are
    multiplied by `MAX_EXPLAINED_RATIO`, because a router may select other experts.
    """

    rng: np.random.Generator | None = None
    overflow: tuple[Value, float] | None = None
    exact_scores: Mapping[Value, Array] = field(default_factory=dict)
    scores: dict[Value, Array] = field(default_factory=dict)

    def __call__(self, value: Value, array: Array) -> Array:
        """Return the result of a node after rounding."""
        if value in self.exact_scores:
            self.scores[value] = array
        if value.node is not None and (score := find_ranking_scores(value.node)) in self.scores:
            array = self._select_indices(value, self.scores[score], self.exact_scores[score])
        format = HALF_FORMATS.get(value.dtype)
        if format is None:
            return array
        offset = 0.0 if self.rng is None else self.rng.uniform(-1, 1, array.shape)
        rounded = format.round_array(array, offset)
        if self.overflow is None and (is_infinite := np.isinf(rounded)).any():
            overflowing = array[is_infinite & np.isfinite(array)]
            self.overflow = (value, float(overflowing.flat[0])) if overflowing.size else None
        return rounded

    def _select_indices(self, result: Value, scores: Array, exact_scores: Array) -> Array:
        """Return a result of `argmax`, `top_k` or `sort` for scores with amplified errors."""
        op = result.node.op if result.node is not None else None
        with np.errstate(invalid="ignore"):
            amplified = exact_scores + MAX_EXPLAINED_RATIO * (scores - exact_scores)
        amplified = np.where(np.isfinite(exact_scores) & np.isfinite(scores), amplified, scores)
        if isinstance(op, ops.ArgMax):
            return np.asarray(amplified.argmax(op.axis))
        assert isinstance(op, ops.Sort | ops.TopK), "an op that selects indices"
        descending = op.descending if isinstance(op, ops.Sort) else op.largest
        order = np.argsort(-amplified if descending else amplified, axis=op.axis, kind="stable")
        if isinstance(op, ops.TopK):
            order = np.take(order, np.arange(result.shape[op.axis].number or 0), axis=op.axis)
        return order if result.index else np.take_along_axis(scores, order, op.axis)


def find_ranking_scores(node: Node) -> Value | None:
    """Return the float operand of an `argmax`, `sort` or `top_k` node, or None for other nodes."""
    if not isinstance(node.op, ops.ArgMax | ops.Sort | ops.TopK):
        return None
    operand = node.get_operand()
    is_static = not isinstance(node.op, ops.TopK) or node.op.k.number is not None
    return operand if is_static and operand.dtype in ("f32", *HALF_FORMATS) else None


@dataclass(kw_only=True)
class HalfPrecisionErrorEstimator:
    """The estimated effect of 16-bit rounding on a graph's results, which are `expected`. The graph
    is evaluated with values that are rounded to nearest, then with stochastic rounding.

    `changes` are the largest changes of each result in any sample, by position (all axes but the
    last), relative to the largest value of the result.
    """

    graph: Graph
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    expected: Mapping[str, Array]
    changes: dict[str, Array] = field(default_factory=dict)
    num_samples: int = 0

    def describe_excess_error(self, name: str, result: Array) -> str:
        """Return "" if 16-bit rounding explains the difference between the result `name` and the
        reference. Otherwise, return a note for the error message.

        A few positions have much larger errors than all others, because a router selects a
        different expert or a norm divides by a value close to zero. The positions with large errors
        vary, so differences and changes are compared by rank: rounding explains the k-th largest
        difference if it is at most `MAX_EXPLAINED_RATIO` times the k-th largest change.
        """
        if result.shape != self.expected[name].shape:
            return "rounding does not change shapes"
        differences = np.sort(compute_relative_differences(result, self.expected[name]))[::-1]
        for num_samples in (SAMPLE_COUNT, SAMPLE_COUNT + EXTRA_SAMPLE_COUNT):
            while self.num_samples < num_samples:
                self._add_sample()
            changes = np.sort(self.changes[name])[::-1]
            # use at least the median, because a position without errors in all samples may still
            # have errors
            changes = np.maximum(changes, np.median(changes)) if changes.size else changes
            max_differences = np.maximum(MAX_EXPLAINED_RATIO * changes, RELATIVE_TOLERANCE)
            unexplained = np.flatnonzero(differences > max_differences)
            if not unexplained.size:
                return ""
        rank = int(unexplained[0])
        positions = "1 position differs" if not rank else f"{rank + 1} positions differ"
        return (
            f"{positions} by at least {differences[rank]:.1e}; rounding to "
            f"{find_half_precision_dtype(self.graph)} explains up to {changes[rank]:.1e} there"
        )

    @cached_property
    def _exact_scores(self) -> dict[Value, Array]:
        """The exact values of the scores that select indices."""
        scores = {score for node, _ in self.graph.nodes if (score := find_ranking_scores(node))}
        exact_values: dict[Value, Array] = {}

        def record_score(value: Value, array: Array) -> Array:
            if value in scores:
                exact_values[value] = array
            return array

        backend.load_reference_backend().evaluate_graph(
            self.graph, self.inputs, self.weights, result_hook=record_score
        )
        return exact_values

    def _add_sample(self) -> None:
        """Evaluate the graph with rounded values, and update `changes`. Raise E0980 on overflow."""
        seed = self.num_samples
        rounding = HalfPrecisionRounding(np.random.default_rng(seed) if seed else None)
        if seed >= SAMPLE_COUNT:
            rounding.exact_scores = self._exact_scores
        rounded = backend.load_reference_backend().evaluate_graph(
            self.graph, self.inputs, self.weights, result_hook=rounding
        )
        if rounding.overflow is not None:
            raise_overflow_error(self.graph, *rounding.overflow)
        for name, value in self.expected.items():
            changes = compute_relative_differences(np.asarray(rounded[name]), np.asarray(value))
            self.changes[name] = np.maximum(self.changes.get(name, 0.0), changes)
        self.num_samples += 1
