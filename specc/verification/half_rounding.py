"""Estimate errors due to 16-bit rounding, by evaluating the graph with rounded values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specc import backend
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Node, Value
from specc.verification.rounding_errors import (
    EXTRA_SAMPLE_COUNT,
    HALF_FORMATS,
    SAMPLE_COUNT,
    find_half_dtype,
    raise_overflow,
)
from specc.verification.tolerance import RELATIVE_TOLERANCE, compute_position_changes

MAX_EXPLAINED_RATIO = 4
"""Differences up to this multiple of the rounding error are attributed to rounding, because kernels
also round intermediate values."""


@dataclass
class HalfRounding:
    """A result hook that rounds the 16-bit values of a graph: stochastically, or to nearest if
    `rng` is None.

    `overflow` is the first value that became infinite, with the element before rounding.
    `exact_scores` are the scores that select indices. The rounding errors of `exact_scores` are
    multiplied by `MAX_EXPLAINED_RATIO`, because a router may choose other experts.
    """

    rng: np.random.Generator | None = None
    overflow: tuple[Value, float] | None = None
    exact_scores: Mapping[Value, Array] = field(default_factory=dict)
    scores: dict[Value, Array] = field(default_factory=dict)

    def __call__(self, value: Value, array: Array) -> Array:
        """Return the rounded result of a node."""
        if value in self.exact_scores:
            self.scores[value] = array
        if value.node is not None and (score := find_selection_scores(value.node)) in self.scores:
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


def find_selection_scores(node: Node) -> Value | None:
    """Return the float operand of an `argmax`, `sort` or `top_k` node, or None for other nodes."""
    if not isinstance(node.op, ops.ArgMax | ops.Sort | ops.TopK):
        return None
    operand = node.get_operand()
    is_static = not isinstance(node.op, ops.TopK) or node.op.k.number is not None
    return operand if is_static and operand.dtype in ("f32", *HALF_FORMATS) else None


@dataclass(kw_only=True)
class HalfRoundingErrors:
    """The effect of 16-bit rounding on the results `expected` of a graph, estimated by evaluating
    the graph with rounded values: to nearest, then stochastically.

    `changes` are the largest changes of each result in any sample, by position (all axes but the
    last), relative to the largest value of the result.
    """

    graph: Graph
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    expected: Mapping[str, Array]
    changes: dict[str, Array] = field(default_factory=dict)
    sample_count: int = 0

    def explain_result(self, name: str, result: Array) -> str:
        """Return "" if 16-bit rounding explains the difference of the result `name` from the
        reference, otherwise a note for the error.

        A few positions have much larger errors than all others, because a router selects a
        different expert or a norm divides by a value close to zero. Rounding determines which
        positions have large errors, so differences and changes are compared by rank: rounding
        explains the k-th largest difference if it is at most `MAX_EXPLAINED_RATIO` times the k-th
        largest change.
        """
        if result.shape != self.expected[name].shape:
            return "rounding does not change shapes"
        differences = np.sort(compute_position_changes(result, self.expected[name]))[::-1]
        for sample_count in (SAMPLE_COUNT, SAMPLE_COUNT + EXTRA_SAMPLE_COUNT):
            while self.sample_count < sample_count:
                self._add_sample()
            changes = np.sort(self.changes[name])[::-1]
            # a position that is exact in all samples has no smaller bound than other positions
            changes = np.maximum(changes, np.median(changes)) if changes.size else changes
            max_differences = np.maximum(MAX_EXPLAINED_RATIO * changes, RELATIVE_TOLERANCE)
            unexplained = np.flatnonzero(differences > max_differences)
            if not unexplained.size:
                return ""
        rank = int(unexplained[0])
        positions = "1 position differs" if not rank else f"{rank + 1} positions differ"
        return (
            f"{positions} by at least {differences[rank]:.1e}; rounding to "
            f"{find_half_dtype(self.graph)} explains up to {changes[rank]:.1e} there"
        )

    @cached_property
    def _exact_scores(self) -> dict[Value, Array]:
        """The exact values of the scores that select indices."""
        scores = {score for node, _ in self.graph.nodes if (score := find_selection_scores(node))}
        exact_values: dict[Value, Array] = {}

        def record_score(value: Value, array: Array) -> Array:
            if value in scores:
                exact_values[value] = array
            return array

        backend.load_reference().evaluate_graph(
            self.graph, self.inputs, self.weights, result_hook=record_score
        )
        return exact_values

    def _add_sample(self) -> None:
        """Evaluate the graph with rounded values; update `changes`. Raise E0980 on overflow."""
        seed = self.sample_count
        rounding = HalfRounding(np.random.default_rng(seed) if seed else None)
        if seed >= SAMPLE_COUNT:
            rounding.exact_scores = self._exact_scores
        rounded = backend.load_reference().evaluate_graph(
            self.graph, self.inputs, self.weights, result_hook=rounding
        )
        if rounding.overflow is not None:
            raise_overflow(self.graph, *rounding.overflow)
        for name, value in self.expected.items():
            changes = compute_position_changes(np.asarray(rounded[name]), np.asarray(value))
            self.changes[name] = np.maximum(self.changes.get(name, 0.0), changes)
        self.sample_count += 1
