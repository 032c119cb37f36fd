"""Plan the rounds of `specc verify`: the axis sizes and random inputs of each round, and further
rounds for branches and loop bodies that no round has executed. A session counts how often each
branch and loop body is executed.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from specc.analysis.value_ranges import find_op_behind_views
from specc.backend import Executable, Session, SubgraphInfo, TensorSpec
from specc.io.memory_check import get_free_memory
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.ir.ops.loop import iterate_all_nodes
from specc.runtime.index_ranges import find_valid_id_ranges
from specc.runtime.random_inputs import (
    BOOLEAN_DENSITIES,
    DEFAULT_DENSITY,
    SampleInputs,
    choose_dim_sizes,
    make_random_inputs,
)
from specc.runtime.single_model_file import LoadedModel
from specc.verification.length_coverage import (
    POSITIONS_BEYOND_THRESHOLD,
    SHORT_AXIS_LENGTH,
    Sizes,
    add_derived_axis_sizes,
    find_nearby_lengths,
    find_skipped_lengths,
    is_within_cost_limit,
    iterate_lengths_above_thresholds,
)
from specc.verification.result_comparison import VerificationRound, make_skipped_verification_round
from specc.verification.rounding_errors_and_overflow import find_half_precision_dtype

MIXED_BATCH_SIZE = 5
"""Batch size for branches that run only if the elements of a batch differ from each other."""
SHORT_ROUNDS = 12
"""Number of rounds with minimum axis sizes. These rounds execute branches whose conditions depend
on input values.
"""


@dataclass
class SubgraphCoverage:
    """The subgraphs of a model, and how often each subgraph was executed in all previous rounds.
    `session` is None if there are no subgraphs, or if there is not enough memory for a second copy
    of the model.
    """

    subgraphs: SubgraphInfo
    session: Executable | None = None
    execution_counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def from_model(cls, model: LoadedModel) -> "SubgraphCoverage":
        """Open a copy of the model that counts executions of its subgraphs."""
        coverage = cls(model.file.collect_subgraphs())
        coverage.execution_counts = np.zeros(len(coverage.subgraphs.names), np.int64)
        weight_sizes, free_memory = model.file.compute_weight_footprint(), get_free_memory()
        if coverage.execution_counts.size and (
            free_memory is None or weight_sizes.memory_bytes <= free_memory
        ):
            coverage.session = model.open_with_execution_counters(
                lambda s: _CountingSession(s, coverage)
            )
        return coverage

    def record_run(self, inputs: Mapping[str, Array]) -> bool:
        """Run the model and count executions. Return True if a subgraph ran for the first time."""
        if self.session is None:
            return False
        missing_count = len(self.uncovered_subgraphs)
        self.session.run(inputs)
        return len(self.uncovered_subgraphs) < missing_count

    def iterate_uncovered_cases(
        self, graph: Graph, compared_sizes: Iterable[Sizes], max_lengths: Sizes | None
    ) -> Iterator[VerificationRound]:
        """Yield an entry with the subgraphs and axis sizes that no round covered, if there are any.
        `compared_sizes` are the axis sizes of all rounds.
        """
        skipped_lengths = find_skipped_lengths(graph, compared_sizes, max_lengths)
        if self.uncovered_subgraphs or skipped_lengths:
            yield make_skipped_verification_round(
                uncovered_subgraphs=self.uncovered_subgraphs, skipped_lengths=skipped_lengths
            )

    @property
    def uncovered_subgraphs(self) -> tuple[str, ...]:
        """The names of the subgraphs that have not been executed yet."""
        pairs = zip(self.subgraphs.names, self.execution_counts, strict=True)
        return tuple(name for name, count in pairs if not count)


@dataclass(frozen=True)
class _CountingSession:
    """A session that records execution counts in `coverage` and returns only the model outputs."""

    session: Session
    coverage: SubgraphCoverage

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The outputs of the model, without the execution counts."""
        outputs = self.session.outputs
        return {n: s for n, s in outputs.items() if n != self._execution_counts_output}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The required inputs of the model."""
        return self.session.inputs

    @property
    def optional_inputs(self) -> Mapping[str, TensorSpec]:
        """The optional inputs of the model."""
        return self.session.optional_inputs

    def run_interruptibly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its results, without the execution counts."""
        return self.run(inputs)

    @property
    def _execution_counts_output(self) -> str:
        return self.coverage.subgraphs.execution_counts_output

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its results, without the execution counts."""
        results = self.session.run(inputs)
        self.coverage.execution_counts = self.coverage.execution_counts + results.pop(
            self._execution_counts_output
        )
        return results


MAX_ROUNDS = 200
"""Maximum number of rounds that try to execute subgraphs that have not run yet."""
LONG_AXIS_LENGTHS = (40, 20)
"""Sizes of all axes in rounds that test discrete decisions (argmax, rounding), in order of
preference. Long axes are more likely to contain values close to a decision boundary.
"""
CLIPPING_CONSTANT_RANGE = (2.0, 64.0)
"""Range of constants that may clip values, such as 6 in `relu6`. Larger constants are ignored."""
INPUT_SCALE_FACTOR = 2.0
"""Float inputs are scaled so that they exceed the largest clipping constant by this factor."""

INTEGER_DTYPES = ("i64", "i32")
SCALING_FUNCTIONS = ("mul", "floordiv", "mod")
LARGE_BATCH_SIZE = 200
"""Batch size for models that compute table indices from several integer inputs. Only a few
combinations of small integers, such as two zeros, expose an error.
"""

MASK_BATCH_SIZE = 32
"""Batch size for models that have a multidimensional boolean input, such as a pixel mask. After
masks are resized to few positions, few random masks have different numbers of valid rows and
columns.
"""


@dataclass(frozen=True)
class _RoundPlan:
    """Parameters of random inputs: axis sizes, probability of True in masks, scale of floats."""

    sizes: dict[str, int]
    true_fraction: float = DEFAULT_DENSITY
    float_scale: float = 1.0


def iterate_verification_inputs(
    model: LoadedModel,
    coverage: SubgraphCoverage,
    seed: int = 0,
    rounds: int = 3,
    sample_inputs: SampleInputs | None = None,
    max_lengths: Sizes | None = None,
) -> Iterator[tuple[dict[str, int], dict[str, Array]]]:
    """Yield the axis sizes and inputs of each round: first `rounds` rounds of different sizes and
    further planned rounds, then rounds that execute a subgraph for the first time. `sample_inputs`
    replaces the random inputs, and `max_lengths` limits axis sizes.
    """
    graph, sample_random = model.manifest.graph, sample_inputs or make_random_inputs
    rng = np.random.default_rng(seed)
    planner = _RoundPlanner(graph, coverage.subgraphs, rounds, max_lengths)
    plans = [*planner.plan_lengths(), *planner.plan_densities()]
    if sample_inputs is None:
        plans += planner.plan_decisions()
    for planned_round in plans:
        inputs = _scale_floats(
            sample_random(graph, planned_round.sizes, rng, planned_round.true_fraction),
            planned_round.float_scale,
        )
        coverage.record_run(inputs)
        yield planned_round.sizes, inputs
    affordable = (
        plan for plan in planner.iterate_candidates() if is_within_cost_limit(plan.sizes, graph)
    )
    for plan in islice(affordable, MAX_ROUNDS):
        if coverage.session is None or not coverage.uncovered_subgraphs:
            break
        inputs = sample_random(graph, plan.sizes, rng, plan.true_fraction)
        if coverage.record_run(inputs):
            yield plan.sizes, inputs


@dataclass(frozen=True)
class _RoundPlanner:
    """A planner of axis sizes and random inputs for the rounds of `graph` with the given
    `subgraphs`. `max_lengths` limits axis sizes that the graph does not limit.
    """

    graph: Graph
    subgraphs: SubgraphInfo
    rounds: int
    max_lengths: Sizes | None

    @cached_property
    def typical_sizes(self) -> dict[str, int]:
        """The axis sizes of the last regular round, i.e. round `rounds`."""
        return choose_dim_sizes(self.graph, self.rounds - 1, self.max_lengths)

    def plan_lengths(self) -> Iterator[_RoundPlan]:
        """Yield plans for `rounds` rounds, then plans with axis sizes within the cost limit that
        exceed the constants in masks, caches and attention blocks.
        """
        graph, max_lengths = self.graph, self.max_lengths
        for round_index in range(self.rounds):
            yield _RoundPlan(choose_dim_sizes(graph, round_index, max_lengths))
        for sizes in iterate_lengths_above_thresholds(
            graph, lambda sizes: is_within_cost_limit(sizes, graph), max_lengths
        ):
            yield _RoundPlan(sizes)

    def plan_densities(self) -> Iterator[_RoundPlan]:
        """If the model has boolean inputs or subgraphs, yield one plan for each other probability
        of True. If the model has masks over several axes, yield a plan with a large batch.
        """
        masks = _list_boolean_inputs(self.graph)
        if self.subgraphs.names or masks:
            for density in BOOLEAN_DENSITIES[1:]:
                yield _RoundPlan(self.typical_sizes, density)
        yield from self._plan_large_batch([v for v in masks if v.rank > 2], MASK_BATCH_SIZE)

    def plan_decisions(self) -> Iterator[_RoundPlan]:
        """Yield plans for rounds that test discrete decisions. The axes are long for integer
        results, integer inputs that are not ids, or top-k. The batch is large if table indices are
        computed from integers. The inputs are large if the model clips values to constants or
        compares values with constants.
        """
        graph, typical_sizes = self.graph, self.typical_sizes
        long_sizes = self._choose_long_sizes()
        scaled = _find_scaled_inputs(graph, typical_sizes)
        if scaled or _has_decisions(graph, typical_sizes):
            yield _RoundPlan(long_sizes)
        yield from self._plan_large_batch(scaled, LARGE_BATCH_SIZE)
        if not find_half_precision_dtype(graph) and (bound := _find_largest_bound(graph)):
            yield _RoundPlan(long_sizes, float_scale=INPUT_SCALE_FACTOR * bound)

    def iterate_candidates(self) -> Iterator[_RoundPlan]:
        """Yield plans of rounds that may execute further subgraphs."""
        # with few tokens, the router may not select some experts
        yield from [_RoundPlan(choose_dim_sizes(self.graph, 0, self.max_lengths))] * SHORT_ROUNDS
        tried_sizes = list[dict[str, int]]()
        for sizes in self._iterate_candidate_lengths():
            if sizes not in tried_sizes:
                tried_sizes.append(sizes)
                yield from (_RoundPlan(sizes, density) for density in BOOLEAN_DENSITIES)

    def _find_sizes(self, preferred_lengths: Sizes, fallback_length: int) -> dict[str, int] | None:
        return find_nearby_lengths(self.graph, preferred_lengths, fallback_length, self.max_lengths)

    def _iterate_candidate_lengths(self) -> Iterator[dict[str, int]]:
        """Yield typical sizes, sizes with an empty axis, then sizes above constants in branches."""
        symbols = choose_dim_sizes(self.graph, 2, self.max_lengths)
        yield symbols
        for symbol in symbols:
            sizes = self._find_sizes({symbol: 0}, SHORT_AXIS_LENGTH)
            if sizes is not None and not sizes[symbol]:
                yield sizes
        yield from iterate_lengths_above_thresholds(self.graph, lambda _: True, self.max_lengths)
        lengths = [n + POSITIONS_BEYOND_THRESHOLD for n in self.subgraphs.compared_constants]
        preferences = [
            ({symbol: length}, fallback_length)
            for length in lengths
            for fallback_length in (SHORT_AXIS_LENGTH, MIXED_BATCH_SIZE)
            for symbol in symbols
        ]
        preferences += [(dict.fromkeys(symbols, n), SHORT_AXIS_LENGTH) for n in lengths]
        for preference in preferences:
            if sizes := self._find_sizes(*preference):
                yield sizes

    def _plan_large_batch(self, inputs: Iterable[Value], batch_size: int) -> Iterator[_RoundPlan]:
        """Yield a plan with a large batch if `inputs` have a symbolic batch size and if the batch
        is within the cost limit.
        """
        batch = {s: batch_size for v in inputs for d in v.shape[:1] for s in d.symbols()}
        sizes = self._find_sizes(self.typical_sizes | batch, 1) if batch else None
        if sizes and is_within_cost_limit(sizes, self.graph):
            yield _RoundPlan(sizes)

    def _choose_long_sizes(self) -> dict[str, int]:
        """Return large axis sizes whose cost is within the limit. If there are none, return the
        typical sizes.
        """
        for length in LONG_AXIS_LENGTHS:
            sizes = self._find_sizes(dict.fromkeys(self.typical_sizes, length), length)
            if sizes and is_within_cost_limit(sizes, self.graph):
                return sizes
        return self.typical_sizes


def _has_decisions(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Return True if the graph has an integer result, an integer input that is not a table index, a
    top-k or an argmax.
    """
    if any(isinstance(node.op, ops.TopK | ops.ArgMax) for node, _ in iterate_all_nodes(graph)):
        return True
    index_inputs = _find_index_inputs(graph, sizes)
    other_inputs = [
        value
        for name, value in graph.inputs.items()
        if value not in index_inputs and graph.input_facts[name].upper_bound is None
    ]
    return any(v.dtype in INTEGER_DTYPES for v in (*other_inputs, *graph.outputs.values()))


def _find_index_inputs(graph: Graph, sizes: Mapping[str, int]) -> Set[Value]:
    """Return the integer inputs from which table indices are computed."""
    return find_valid_id_ranges(graph, add_derived_axis_sizes(graph, sizes)).keys()


def _find_scaled_inputs(graph: Graph, sizes: Mapping[str, int]) -> set[Value]:
    """Return the integer inputs that are scaled before they index a table, such as image sizes."""
    sources_by_value = {v: {v} for v in graph.inputs.values() if v.dtype in INTEGER_DTYPES}
    scaled_inputs = set[Value]()
    for node, results in graph.nodes:
        sources = set[Value]().union(*(sources_by_value.get(a, ()) for a in node.operands))
        if isinstance(node.op, ops.Arith) and node.op.fn in SCALING_FUNCTIONS:
            scaled_inputs |= sources
        sources_by_value |= {r: sources for r in results if r.dtype in INTEGER_DTYPES}
    return scaled_inputs & _find_index_inputs(graph, sizes)


def _list_boolean_inputs(graph: Graph) -> list[Value]:
    """Return the boolean inputs that are not padding masks."""
    facts = graph.input_facts
    inputs = graph.inputs.items()
    return [v for n, v in inputs if v.dtype == "bool" and not facts[n].padding_side]


def _find_largest_bound(graph: Graph) -> float:
    """Return the largest constant that floats are clipped to or compared with, or 0 if none."""
    largest = 0.0
    for node, _ in iterate_all_nodes(graph):
        match node.op:
            case ops.Compare() | ops.Arith("min" | "max"):
                for value in node.args:
                    match find_op_behind_views(value, ops.Cast):
                        case ops.Constant(float(number)) if (
                            CLIPPING_CONSTANT_RANGE[0] < abs(number) <= CLIPPING_CONSTANT_RANGE[1]
                        ):
                            largest = max(largest, abs(number))
    return largest


def _scale_floats(inputs: dict[str, Array], scale: float) -> dict[str, Array]:
    """Multiply all floating-point inputs by `scale`."""
    if scale == 1.0:
        return inputs
    return {
        name: (value * scale).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }
