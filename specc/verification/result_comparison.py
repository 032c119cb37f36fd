"""Compare results, including int8 KV caches, with the reference within a float32 tolerance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value

RELATIVE_TOLERANCE = 1e-5
"""Maximum difference of a float32 result, relative to the largest magnitude of the reference."""
MAX_INFORMATIVE_BOUND = 1e-2
"""Maximum error bound at which a comparison is useful, relative to the largest magnitude of the
reference. Larger bounds would hide errors.
"""


@dataclass(frozen=True)
class ResultDifference:
    """The difference between a result and the reference, relative to the largest magnitude of the
    reference. `description` is "" if the result agrees with the reference.
    """

    relative_size: float
    description: str = ""
    notes: tuple[str, ...] = ()


def compare_result(name: str, result: Array, expected: Array) -> ResultDifference:
    """Compare the result `name` of a model with `expected`, the reference. Integers and booleans
    must be equal. Floats may differ by `RELATIVE_TOLERANCE`.
    """
    if result.shape != expected.shape:
        return ResultDifference(
            np.inf, f"`{name}` has the shape {list(result.shape)}, expected {list(expected.shape)}"
        )
    if expected.dtype.kind in "ib":
        mismatch_count = int((result != expected).sum())
        description = (
            f"`{name}` differs from the reference at {mismatch_count} positions"
            if mismatch_count
            else ""
        )
        return ResultDifference(mismatch_count / max(expected.size, 1), description)
    expected = _clip_to_dtype_range(expected, result.dtype)
    result = np.asarray(result, np.float64)
    if nonfinite_difference := _describe_nonfinite_difference(result, expected):
        return ResultDifference(
            np.inf,
            f"`{name}` differs from the reference in NaN or infinity",
            (nonfinite_difference,),
        )
    distances, largest = _compute_distances(result, expected)
    size = float(distances.max(initial=0)) / largest
    if size <= RELATIVE_TOLERANCE:
        return ResultDifference(size)
    position = np.unravel_index(int(np.argmax(distances)), expected.shape)
    position_text = ", ".join(map(str, position))
    return ResultDifference(
        size,
        f"`{name}` differs from the reference by {size:.1e} of its largest value, "
        f"more than {RELATIVE_TOLERANCE:g}",
        (
            f"largest difference at [{position_text}]: got {float(result[position]):.7g}, "
            f"expected {float(expected[position]):.7g}",
        ),
    )


def compare_results(
    results: Mapping[str, Array], expected: Mapping[str, Array]
) -> tuple[dict[str, ResultDifference], float]:
    """Return how much each result differs from `expected`, and the largest relative difference."""
    differences = {n: compare_result(n, np.asarray(results[n]), x) for n, x in expected.items()}
    return differences, max((d.relative_size for d in differences.values()), default=0.0)


def _clip_to_dtype_range(expected: Array, dtype: DTypeLike) -> Array:
    """Replace reference values outside the range of the result dtype by infinity."""
    max_value = np.finfo(dtype).max if np.dtype(dtype).kind == "f" else np.inf
    return np.where(np.abs(expected) > max_value, np.copysign(np.inf, expected), expected)


def _describe_nonfinite_difference(result: Array, expected: Array) -> str:
    """Describe the first position where only one of the values is finite, or where the infinities
    differ. Return "" if there is no such position.
    """
    both_finite = np.isfinite(result) & np.isfinite(expected)
    differs = ~(both_finite | find_equal_elements(result, expected))
    if not differs.any():
        return ""
    position = tuple(int(n) for n in np.argwhere(differs)[0])
    position_text = ", ".join(map(str, position))
    count_text = f"at {int(differs.sum())} positions" if differs.sum() > 1 else "at one position"
    value, reference = float(result[position]), float(expected[position])
    return f"{count_text}, first at [{position_text}]: got {value}, expected {reference}"


def find_equal_elements(a: Array, b: Array) -> Array:
    """Return a boolean array that is True where elements are equal or both NaN."""
    equal: Array = (a == b) | (np.isnan(a) & np.isnan(b))
    return equal


def _compute_distances(a: Array, b: Array) -> tuple[Array, float]:
    """Return the absolute difference of `a` and `b`, together with the maximum magnitude of `b`."""
    both_finite = np.isfinite(a) & np.isfinite(b)
    distances = np.abs(np.where(both_finite, a, 0) - np.where(both_finite, b, 0))
    return distances, float(np.abs(np.where(both_finite, b, 0)).max(initial=0)) or 1.0


def compute_relative_differences(values: Array, baseline: Array) -> Array:
    """Return the maximum difference at each position (the index on all axes except the last),
    relative to the largest magnitude of the baseline. The difference is infinite where only one of
    the values is finite.

    For integers, return 1 at positions where an element differs, and 0 elsewhere.
    """
    if baseline.dtype.kind in "iub":
        differences: Array = np.asarray(values != baseline, np.float64)
    else:
        baseline = _clip_to_dtype_range(baseline, values.dtype)
        values = np.asarray(values, np.float64)
        differences, largest = _compute_distances(values, baseline)
        both_finite = np.isfinite(values) & np.isfinite(baseline)
        is_comparable = both_finite | find_equal_elements(values, baseline)
        differences = np.where(is_comparable, differences / largest, np.inf)
    if differences.ndim > 1:
        differences = differences.max(-1, initial=0)
    return differences.reshape(-1)


def is_within_rounding_error(result: Array, expected: Array, error_bound: Array) -> bool:
    """Return True if each element that differs by more than the tolerance differs by at most its
    absolute rounding error bound in `error_bound`.
    """
    return result.shape == expected.shape and not count_mismatched_positions(
        result, expected, error_bound
    )


def count_mismatched_positions(result: Array, expected: Array, error_bound: Array) -> int:
    """Return the number of positions (indices of all axes but the last) with an element that
    differs by more than the tolerance and more than `error_bound`.
    """
    if expected.dtype.kind in "iub":
        is_unexplained = (result != expected) & ~np.isinf(error_bound)
    else:
        expected = _clip_to_dtype_range(expected, result.dtype)
        with np.errstate(invalid="ignore"):
            distances = np.abs(np.asarray(result, np.float64) - expected)
        is_equal = find_equal_elements(result, expected)
        max_distances = np.maximum(error_bound, RELATIVE_TOLERANCE * get_max_magnitude(expected))
        is_unexplained = ~(is_equal | np.isinf(error_bound) | (distances <= max_distances))
    return int(is_unexplained.any(-1).sum() if is_unexplained.ndim > 1 else is_unexplained.sum())


def is_error_bound_tight(expected: Array, error_bound: Array) -> bool:
    """Return True if at least half of the error bounds are small relative to the largest value."""
    allowed = MAX_INFORMATIVE_BOUND * get_max_magnitude(expected)
    return not error_bound.size or float((error_bound <= allowed).mean()) >= 0.5


def get_max_magnitude(x: Array) -> float:
    """Return the largest finite magnitude in a tensor, or 1 if it has no nonzero finite element."""
    return float(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0)) or 1.0


@dataclass(frozen=True, kw_only=True)
class VerificationRound:
    """The comparison of a graph with its reference for one set of axis sizes.

    `is_within_tolerance` is None if no result was compared (`is_compared` is false) or if a result
    is too sensitive to rounding. `max_error` is the largest difference of `result_count` results,
    each relative to the maximum of its result. `note` is appended to the printed line of the round.
    `uncovered_subgraphs` are the branches and loop bodies that no round executed, and
    `skipped_lengths` are the axis sizes that exceed the cost limit of the reference.
    `uncovered_subgraphs` and `skipped_lengths` are set after the last round.
    """

    graph: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    is_compared: bool = True
    is_within_tolerance: bool | None = True
    result_count: int = 0
    max_error: float = 0.0
    note: str = ""
    uncovered_subgraphs: tuple[str, ...] = ()
    skipped_lengths: tuple[str, ...] = ()

    @property
    def uncovered_cases(self) -> tuple[str, ...]:
        """Texts that describe the subgraphs and axis sizes that no verification round covered."""
        skipped = " and ".join(self.skipped_lengths)
        lengths = f"lengths {skipped}, too long for the float64 reference of this graph"
        return (*self.uncovered_subgraphs, *([lengths] if skipped else []))

    def __str__(self) -> str:
        graph = f"{self.graph}: " if self.graph else ""
        if self.uncovered_cases:
            return f"{graph}not covered: {', '.join(self.uncovered_cases)}"
        lengths = f"{format_axis_sizes(self.sizes)}: " if self.is_compared else ""
        return f"{graph}{lengths}{self._format_agreement()}{self.note}"

    def _format_agreement(self) -> str:
        """Format the number of results and their largest difference, or "" if they do not agree."""
        if not (self.is_compared and self.is_within_tolerance):
            return ""
        is_single = self.result_count == 1
        agreement = "1 result agrees" if is_single else f"{self.result_count} results agree"
        return f"{agreement}, worst difference {self.max_error:.1e} of the largest value"

    def to_json(self) -> dict[str, object]:
        """Return the round as JSON values. The leading separator of the note is removed."""
        return {
            "graph": self.graph,
            "sizes": dict(self.sizes),
            "compared": self.is_compared,
            "agrees": self.is_within_tolerance,
            "results": self.result_count,
            "max_error": self.max_error,
            "note": self.note.lstrip("; ,"),
            "uncovered_subgraphs": list(self.uncovered_subgraphs),
            "skipped_lengths": list(self.skipped_lengths),
        }


def make_skipped_verification_round(
    reason: str = "",
    *,
    graph: str = "",
    uncovered_subgraphs: tuple[str, ...] = (),
    skipped_lengths: tuple[str, ...] = (),
) -> VerificationRound:
    """Return an entry without a comparison. The entry contains a graph and the reason why it is not
    compared, or the subgraphs and axis sizes that no round covered.
    """
    return VerificationRound(
        graph=graph,
        is_compared=False,
        is_within_tolerance=None,
        note=f"not compared, because {reason}" if reason else "",
        uncovered_subgraphs=uncovered_subgraphs,
        skipped_lengths=skipped_lengths,
    )


def format_axis_sizes(sizes: Mapping[str, int]) -> str:
    """Format axis sizes by symbolic dimension, e.g. `batch=2, seq=3`."""
    return ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"


ResultHook = Callable[[Value, Array], Array]


def make_kv_cache_rounding_hook(
    graph: Graph, results: Mapping[str, Array], weights: Mapping[str, Array]
) -> ResultHook | None:
    """Return a hook that replaces quantized KV cache entries of the reference by those of the model
    (`results`) if the entries differ only at rounding ties. Return None if the graph has no
    quantized KV cache.
    """
    model_codes = {v: results[name] for v, name in _find_quantized_cache_outputs(graph).items()}
    if not model_codes:
        return None
    names = {value: name for name, value in graph.parameters.items()}
    unquantized_entries = {v.node.args[0] for v in model_codes if v.node}
    exact: dict[Value, Array] = {}

    def replace_codes(value: Value, array: Array) -> Array:
        if value in unquantized_entries:
            exact[value] = array
        codes, node = model_codes.get(value), value.node
        if codes is None or node is None:
            return array
        x, scale = node.operands
        # the cache contains the earlier positions, followed by the new positions
        new_codes = codes[:, :, codes.shape[2] - array.shape[2] :]
        return resolve_rounding_ties(array, new_codes, exact[x], weights[names[scale]])

    return replace_codes


def resolve_rounding_ties(
    reference_codes: Array, model_codes: Array, x: Array, scale: Array
) -> Array:
    """Return the quantized codes of `x` for the scale `scale`. If a code of the model differs from
    the reference by 1 and `x / scale` is a rounding tie within float32 accuracy, return the code of
    the model. Otherwise, return the code of the reference.
    """
    units = x / scale.astype(np.float64)
    tie_distance = np.abs(np.abs(units - np.rint(units)) - 0.5)
    tolerance = RELATIVE_TOLERANCE * np.abs(x).max(initial=0.0) / scale
    code_difference = np.abs(model_codes.astype(np.int16) - reference_codes)
    codes: Array = np.where(
        (code_difference == 1) & (tie_distance <= tolerance), model_codes, reference_codes
    )
    return codes


def _find_quantized_cache_outputs(graph: Graph) -> dict[Value, str]:
    """Map the new entries of each quantized KV cache to the name of the cache output."""
    output_names = {}
    for name, value in graph.outputs.items():
        if value.node and isinstance(value.op, ops.Concat):
            entries = value.node.operands[-1]
            if isinstance(entries.op, ops.Quantize):
                output_names[entries] = name
    return output_names
