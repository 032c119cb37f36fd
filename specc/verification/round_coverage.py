"""Plan the rounds of `specc verify`: the axis sizes and random inputs of each round, and further
rounds for branches and loop bodies that no round has executed. Execution counts of branches and
loop bodies are recorded.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from specc.analysis.value_ranges import get_viewed_op
from specc.backend import Computation, Session, Subgraphs, TensorSpec
from specc.io.memory_check import get_free_memory
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.ir.length_constraints import iterate_all_nodes
from specc.runtime.index_ranges import find_valid_id_ranges
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import (
    BOOLEAN_DENSITIES,
    DEFAULT_DENSITY,
    SampleInputs,
    choose_axis_sizes,
    make_random_inputs,
)
from specc.verification.length_coverage import (
    POSITIONS_BEYOND_THRESHOLD,
    SHORT_AXIS_LENGTH,
    Sizes,
    find_nearby_lengths,
    is_within_cost_limit,
    iterate_lengths_above_thresholds,
)
from specc.verification.rounding_errors import find_half_dtype

MIXED_BATCH_SIZE = 5
"""Batch size for branches that run only if the elements of a batch differ."""
SHORT_ROUNDS = 12
"""Number of rounds with minimum axis sizes, for branches whose conditions depend on values."""


@dataclass
class SubgraphCoverage:
    """The subgraphs of a model, and the number of executions of each subgraph in all previous
    rounds. `session` is None if there are no subgraphs, or if there is not enough memory for a
    second copy of the model.
    """

    subgraphs: Subgraphs
    session: Computation | None = None
    execution_counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def from_model(cls, model: LoadedModel) -> "SubgraphCoverage":
        """Open a copy of the model that counts executions of its subgraphs."""
        coverage = cls(model.file.collect_subgraphs())
        coverage.execution_counts = np.zeros(len(coverage.subgraphs.names), np.int64)
        weight_sizes, free_memory = model.file.measure_weights(), get_free_memory()
        if coverage.execution_counts.size and (
            free_memory is None or weight_sizes.memory_bytes <= free_memory
        ):
            coverage.session = model.open_with_execution_counts(
                lambda s: _CountingSession(s, coverage)
            )
        return coverage

    def run(self, inputs: Mapping[str, Array]) -> bool:
        """Run the model and count executions. Return True if a subgraph ran for the first time."""
        if self.session is None:
            return False
        missing_count = len(self.unexecuted_subgraphs)
        self.session.run(inputs)
        return len(self.unexecuted_subgraphs) < missing_count

    @property
    def unexecuted_subgraphs(self) -> tuple[str, ...]:
        """The names of the subgraphs that have not been executed."""
        pairs = zip(self.subgraphs.names, self.execution_counts, strict=True)
        return tuple(name for name, count in pairs if not count)


@dataclass(frozen=True)
class _CountingSession:
    """A session that records execution counts in `coverage`, and only returns outputs."""

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


def iterate_candidate_sizes(
    graph: Graph, constants: tuple[int, ...], max_lengths: Sizes | None = None
) -> Iterator[tuple[dict[str, int], float]]:
    """Yield axis sizes and probabilities of true booleans that may execute further subgraphs."""
    tried_sizes = list[dict[str, int]]()
    # with few tokens, some experts may not be selected
    yield from [(choose_axis_sizes(graph, 0, max_lengths), DEFAULT_DENSITY)] * SHORT_ROUNDS
    for sizes in _iterate_candidate_lengths(graph, constants, max_lengths):
        if sizes in tried_sizes:
            continue
        tried_sizes.append(sizes)
        for density in BOOLEAN_DENSITIES:
            yield sizes, density


def _iterate_candidate_lengths(
    graph: Graph, constants: tuple[int, ...], max_lengths: Sizes | None
) -> Iterator[dict[str, int]]:
    """Yield typical sizes, sizes with an empty axis, then sizes above constants of branches."""
    typical_sizes = choose_axis_sizes(graph, 2, max_lengths)
    yield typical_sizes
    for symbol in typical_sizes:
        yield from _iterate_if_found(
            find_nearby_lengths(graph, {symbol: 0}, SHORT_AXIS_LENGTH, max_lengths), symbol
        )
    yield from iterate_lengths_above_thresholds(graph, lambda _: True, max_lengths)
    for constant in constants:
        for other_length in (SHORT_AXIS_LENGTH, MIXED_BATCH_SIZE):
            for symbol in typical_sizes:
                preferred_lengths = {symbol: constant + POSITIONS_BEYOND_THRESHOLD}
                yield from _iterate_if_found(
                    find_nearby_lengths(graph, preferred_lengths, other_length, max_lengths), ""
                )
    for constant in constants:
        preferred_lengths = dict.fromkeys(typical_sizes, constant + POSITIONS_BEYOND_THRESHOLD)
        yield from _iterate_if_found(
            find_nearby_lengths(graph, preferred_lengths, SHORT_AXIS_LENGTH, max_lengths), ""
        )


def _iterate_if_found(sizes: dict[str, int] | None, empty_symbol: str) -> Iterator[dict[str, int]]:
    if sizes is not None and not (empty_symbol and sizes[empty_symbol]):
        yield sizes


MAX_ROUNDS = 200
"""Maximum number of rounds that try to execute subgraphs that have not run yet."""
LONG_AXIS_LENGTHS = (40, 20)
"""Sizes of all axes in rounds that test discrete decisions (argmax, rounding), in order of
preference. The axes are long because only values close to a decision boundary can produce a
difference.
"""
CLIPPING_CONSTANT_RANGE = (2.0, 64.0)
"""Range of constants that clip values, such as 6 in `relu6`. Larger constants are ignored."""
INPUT_SCALE_FACTOR = 2.0
"""Float inputs are scaled so that they exceed the largest clipping constant by this factor."""

INTEGER_DTYPES = ("i64", "i32")
SCALING_FUNCTIONS = ("mul", "floordiv", "mod")
LARGE_BATCH_SIZE = 200
"""Batch size for models that compute indices from several integer inputs. Only a few combinations
of small integers, such as two zeros, reveal an error.
"""

MASK_BATCH_SIZE = 32
"""Batch size for models with a boolean input with several axes, such as a pixel mask, because few
random masks differ in their numbers of valid rows and columns after resizing to few positions.
"""


@dataclass(frozen=True)
class _RoundPlan:
    """The settings of random inputs: axis sizes, probability of True in masks, scale of floats."""

    sizes: dict[str, int]
    true_fraction: float = DEFAULT_DENSITY
    float_scale: float = 1.0


def iterate_round_inputs(
    model: LoadedModel,
    coverage: SubgraphCoverage,
    seed: int = 0,
    rounds: int = 3,
    sample_inputs: SampleInputs | None = None,
    max_lengths: Mapping[str, int] | None = None,
) -> Iterator[tuple[dict[str, int], dict[str, Array]]]:
    """Yield the axis sizes and inputs of each round: first `rounds` rounds of different sizes and
    further planned rounds, then rounds that execute a subgraph for the first time. `sample_inputs`
    replaces the random inputs, and `max_lengths` limits axis sizes.
    """
    graph, sample_random = model.manifest.graph, sample_inputs or make_random_inputs
    rng = np.random.default_rng(seed)
    plans = [_RoundPlan(sizes) for sizes in _plan_lengths(graph, rounds, max_lengths)]
    typical_sizes = choose_axis_sizes(graph, rounds - 1, max_lengths)
    plans += _plan_densities(graph, coverage, typical_sizes, max_lengths)
    if sample_inputs is None:
        plans += _plan_decisions(graph, typical_sizes, max_lengths)
    for planned_round in plans:
        inputs = _scale_floats(
            sample_random(graph, planned_round.sizes, rng, planned_round.true_fraction),
            planned_round.float_scale,
        )
        coverage.run(inputs)
        yield planned_round.sizes, inputs
    candidates = iterate_candidate_sizes(graph, coverage.subgraphs.compared_constants, max_lengths)
    affordable = ((s, d) for s, d in candidates if is_within_cost_limit(s, graph))
    for sizes, density in islice(affordable, MAX_ROUNDS):
        if coverage.session is None or not coverage.unexecuted_subgraphs:
            break
        inputs = sample_random(graph, sizes, rng, density)
        if coverage.run(inputs):
            yield sizes, inputs


def _plan_densities(
    graph: Graph,
    coverage: SubgraphCoverage,
    typical_sizes: dict[str, int],
    max_lengths: Mapping[str, int] | None,
) -> Iterator[_RoundPlan]:
    """Yield a round for each further probability of true booleans if the model has boolean inputs
    or subgraphs, and a round with a large batch if it has masks over several axes.
    """
    masks = _list_boolean_inputs(graph)
    if coverage.subgraphs.names or masks:
        for density in BOOLEAN_DENSITIES[1:]:
            yield _RoundPlan(typical_sizes, density)
    batch = {s: MASK_BATCH_SIZE for v in masks if v.rank > 2 for s in v.type.shape[0].symbols()}
    sizes = find_nearby_lengths(graph, typical_sizes | batch, 1, max_lengths) if batch else None
    if sizes and is_within_cost_limit(sizes, graph):
        yield _RoundPlan(sizes)


def _plan_lengths(
    graph: Graph, rounds: int, max_lengths: Mapping[str, int] | None
) -> Iterator[dict[str, int]]:
    """Yield the axis sizes of `rounds` rounds, then sizes within the cost limit that exceed the
    constants in masks, caches and attention blocks.
    """
    yield from (choose_axis_sizes(graph, round_index, max_lengths) for round_index in range(rounds))
    yield from iterate_lengths_above_thresholds(
        graph, lambda sizes: is_within_cost_limit(sizes, graph), max_lengths
    )


def _plan_decisions(
    graph: Graph, typical_sizes: dict[str, int], max_lengths: Mapping[str, int] | None
) -> Iterator[_RoundPlan]:
    """Yield rounds for discrete decisions. The axes are long for integer results, integer inputs
    that are not ids, or top-k. The batch is large if table indices are computed from integers. The
    inputs are large if values are clipped to or compared with constants.
    """
    long_sizes = _choose_long_sizes(graph, typical_sizes, max_lengths)
    scaled = _find_scaled_inputs(graph, typical_sizes)
    if scaled or _has_decisions(graph, typical_sizes):
        yield _RoundPlan(long_sizes)
    large_batch_sizes = _choose_large_batch_sizes(graph, scaled, typical_sizes, max_lengths)
    if large_batch_sizes and is_within_cost_limit(large_batch_sizes, graph):
        yield _RoundPlan(large_batch_sizes)
    if not find_half_dtype(graph) and (bound := _find_largest_bound(graph)):
        yield _RoundPlan(long_sizes, float_scale=INPUT_SCALE_FACTOR * bound)


def _choose_long_sizes(
    graph: Graph, typical_sizes: dict[str, int], max_lengths: Mapping[str, int] | None
) -> dict[str, int]:
    """Return large axis sizes within the cost limit, or `typical_sizes`."""
    candidates = (
        find_nearby_lengths(graph, dict.fromkeys(typical_sizes, n), n, max_lengths)
        for n in LONG_AXIS_LENGTHS
    )
    return next(
        (sizes for sizes in candidates if sizes and is_within_cost_limit(sizes, graph)),
        typical_sizes,
    )


def _choose_large_batch_sizes(
    graph: Graph,
    scaled_inputs: Set[Value],
    typical_sizes: dict[str, int],
    max_lengths: Mapping[str, int] | None,
) -> dict[str, int] | None:
    """Return sizes with a large batch, or None if it is unnecessary or exceeds the cost limit."""
    batch = {
        s: LARGE_BATCH_SIZE for v in scaled_inputs for d in v.type.shape[:1] for s in d.symbols()
    }
    return find_nearby_lengths(graph, typical_sizes | batch, 1, max_lengths) if batch else None


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
    return any(v.type.dtype in INTEGER_DTYPES for v in (*other_inputs, *graph.outputs.values()))


def _find_index_inputs(graph: Graph, sizes: Mapping[str, int]) -> Set[Value]:
    """Return the integer inputs from which table indices are computed."""
    env = {**sizes, **{name: dim.evaluate(sizes) for name, dim in graph.length_equations.items()}}
    return find_valid_id_ranges(graph, env).keys()


def _find_scaled_inputs(graph: Graph, sizes: Mapping[str, int]) -> set[Value]:
    """Return the integer inputs that are scaled before they index a table, such as image sizes."""
    sources_by_value = {v: {v} for v in graph.inputs.values() if v.type.dtype in INTEGER_DTYPES}
    scaled_inputs = set[Value]()
    for node, results in graph.nodes:
        sources = set[Value]().union(*(sources_by_value.get(a, ()) for a in node.args if a))
        if isinstance(node.op, ops.Arith) and node.op.fn in SCALING_FUNCTIONS:
            scaled_inputs |= sources
        sources_by_value |= {r: sources for r in results if r.type.dtype in INTEGER_DTYPES}
    return scaled_inputs & _find_index_inputs(graph, sizes)


def _list_boolean_inputs(graph: Graph) -> list[Value]:
    """Return the boolean inputs that are not padding masks."""
    facts = graph.input_facts
    inputs = graph.inputs.items()
    return [v for n, v in inputs if v.type.dtype == "bool" and not facts[n].padding_side]


def _find_largest_bound(graph: Graph) -> float:
    """Return the largest constant that floats are clipped to or compared with, or 0."""
    largest = 0.0
    for node, _ in iterate_all_nodes(graph):
        match node.op:
            case ops.Compare() | ops.Arith("min" | "max"):
                for value in node.args:
                    match get_viewed_op(value, ops.Cast):
                        case ops.Constant(float(number)) if (
                            CLIPPING_CONSTANT_RANGE[0] < abs(number) <= CLIPPING_CONSTANT_RANGE[1]
                        ):
                            largest = max(largest, abs(number))
    return largest


def _scale_floats(inputs: dict[str, Array], scale: float) -> dict[str, Array]:
    """Multiply the floating-point inputs by `scale`."""
    if scale == 1.0:
        return inputs
    return {
        name: (value * scale).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }
