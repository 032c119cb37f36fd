"""Accumulate Gram matrices of activations, and quantize (GPTQ) the weights that multiply these
activations.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.backend import Computation
from specc.calibration.activation_taps import (
    CalibrationTargets,
    WeightInputs,
    WeightMatrix,
    count_input_features,
    find_padding_mask,
)
from specc.diagnostics.diagnostic import raise_error
from specc.io.output_paths import raise_os_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph, GraphBuilder, Input, Node, Value, collect_required_nodes
from specc.weights.int_quantization import compute_cholesky_factor
from specc.weights.quantized_weights import GetFactor, PrequantizedWeight

STAGE_WEIGHT_BYTES = 256 << 20
"""Maximum size of the weights of a calibration stage in float32; a single larger operation is a
separate stage."""
STAGE_GRAM_BYTES = 512 << 20
"""Maximum size of the Gram matrices of a calibration stage; a single larger weight is a separate
stage."""
NodeResults: TypeAlias = tuple[Node, tuple[Value, ...]]


@dataclass(frozen=True)
class CalibrationStage:
    """A calibration stage, which loads a limited part of the weights. `graph` computes the
    activations named in `activations_of` and the values for later stages (`stage_outputs`) from the
    model's inputs and from the outputs of earlier stages (`stage_inputs`). `released` are the
    values that no later stage reads.
    """

    graph: Graph
    activations_of: Mapping[str, Value]
    stage_inputs: tuple[str, ...]
    stage_outputs: tuple[str, ...]
    released_values: tuple[str, ...]


def split_stages(readers: CalibrationTargets) -> Iterator[CalibrationStage]:
    """Yield the calibration stages that compute the values of `readers`, in order."""
    whole = _StagedGraph(readers)
    groups = list(whole.iterate_groups()) or [[]]
    first, last = _find_lifetimes(whole, groups)
    names = _name_kept_values(first, last)
    for n, group in enumerate(groups):
        # values that depend on no weight are computed in the first stage
        here = [v for v in readers.values if first.get(v, 0) == n]
        activations_of = {f"met {k}": v for k, v in enumerate(here)}
        takes = {names[v]: v for v in whole.list_heavy_operands(group) if first[v] < n}
        gives = {name: v for v, name in names.items() if first[v] == n}
        yield CalibrationStage(
            graph=whole.build_stage_graph(group, takes, {**activations_of, **gives}),
            activations_of=activations_of,
            stage_inputs=tuple(takes),
            stage_outputs=tuple(gives),
            released_values=tuple(name for v, name in names.items() if last[v] == n),
        )


def _name_kept_values(
    first_stages: Mapping[Value, int], last_stages: Mapping[Value, int]
) -> dict[Value, str]:
    """Assign names to the values that a later stage reads."""
    later = [v for v, n in last_stages.items() if first_stages[v] < n]
    return {v: f"kept {n}" for n, v in enumerate(later)}


def _find_lifetimes(
    staged_graph: "_StagedGraph", groups: list[list[NodeResults]]
) -> tuple[dict[Value, int], dict[Value, int]]:
    """Return the first stage that computes each value, and the last stage that reads it."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for n, group in enumerate(groups):
        first |= {v: n for _, results in group for v in results}
        last |= dict.fromkeys(staged_graph.list_heavy_operands(group), n)
    return first, last


@dataclass
class _StagedGraph:
    """The full-forward graph divided into stages; its `heavy` nodes depend on both inputs and
    weights.
    """

    readers: CalibrationTargets

    @property
    def graph(self) -> Graph:
        """The full-forward graph."""
        return self.readers.graph

    @cached_property
    def _dependencies(self) -> dict[Value, frozenset[str]]:
        """The weights that each value depends on; `""` represents the inputs."""
        found = {v: frozenset([""]) for v in self.graph.inputs.values()}
        found |= {v: frozenset([n]) for n, v in self.graph.parameters.items()}
        for node, results in self.graph.nodes:
            read: frozenset[str] = frozenset().union(*(found[a] for a in node.args if a))
            # a value that is already computed counts as an input
            made = frozenset(["", "…"]) if "" in read and len(read) > 1 else read
            found |= dict.fromkeys(results, made)
        return found

    def _is_heavy(self, value: Value) -> bool:
        kinds = self._dependencies[value]
        return "" in kinds and len(kinds) > 1

    def iterate_groups(self) -> Iterator[list[NodeResults]]:
        """Yield groups of the required heavy nodes in topological order; each group is as large as
        the size limits allow.
        """
        live = collect_required_nodes(self.readers.values)
        # size of the float64 Gram matrix [inputs, inputs], allocated at the first activation
        begins = {
            activations[0]: 8 * count_input_features(activations) ** 2
            for activations in self.readers.tap_points
        }
        group: list[NodeResults] = []
        weight_names: set[str] = set()
        sums = 0
        for node, results in self.graph.nodes:
            if node not in live or not any(map(self._is_heavy, results)):
                continue
            read, begun = self._collect_weights(node), sum(begins.get(v, 0) for v in results)
            # a single operation that exceeds the limit is a separate stage
            full = self._count_bytes(weight_names | read) > STAGE_WEIGHT_BYTES or (
                sums and sums + begun > STAGE_GRAM_BYTES
            )
            if group and full:
                yield group
                group, weight_names, sums = [], set(), 0
            group.append((node, results))
            weight_names |= read
            sums += begun
        if group:
            yield group

    def _collect_weights(self, node: Node) -> set[str]:
        """Return the weights that a node depends on, except through heavy values."""
        light = [a for a in node.args if a and not self._is_heavy(a)]
        return {name for a in light for name in self._dependencies[a]} - {""}

    def _count_bytes(self, names: Iterable[str]) -> int:
        shapes = (self.graph.parameters[name].type.shape for name in names)
        return sum(4 * prod(d.number or 0 for d in shape) for shape in shapes)

    def list_heavy_operands(self, group: Iterable[NodeResults]) -> list[Value]:
        """Return the heavy values that the nodes of a group read."""
        read = dict.fromkeys(a for node, _ in group for a in node.args if a)
        return [a for a in read if self._is_heavy(a)]

    def build_stage_graph(
        self,
        group: list[NodeResults],
        takes: Mapping[str, Value],
        group_results: Mapping[str, Value],
    ) -> Graph:
        """Return the graph of a group of heavy nodes, with the light nodes that they depend on."""
        graph, made = self.graph, GraphBuilder()
        # building the graph drops unused parameters
        now = made.copy_inputs_and_parameters(graph)
        now |= {value: made.add_input(name, Input(value.type)) for name, value in takes.items()}
        here = self._add_light_nodes(group, group_results.values())
        made.copy_nodes(graph, now, here)
        return made.finish_copy(
            graph, now, {name: now[value] for name, value in group_results.items()}
        )

    def _add_light_nodes(
        self, group: list[NodeResults], group_results: Iterable[Value]
    ) -> set[Node]:
        """Return the nodes of a group, and the light nodes that the group and its results depend
        on.
        """
        read = (a for node, _ in group for a in node.args if a)
        light = [v for v in (*read, *group_results) if not self._is_heavy(v)]
        return {node for node, _ in group} | collect_required_nodes(light)


class GramCholeskyFactors:
    """An iterable that accumulates Gram matrices stage by stage and yields the Cholesky factors of
    all weights in `tap_points`.
    """

    def __init__(
        self, tap_points: Mapping[WeightInputs, tuple[WeightMatrix, ...]], directory: Path
    ) -> None:
        every = [
            (matrix, activations) for activations, names in tap_points.items() for matrix in names
        ]
        self.tap_points = tap_points
        self.directory = directory
        self.spot_of = dict(every)
        self.count = Counter(matrix.name for matrix, _ in every)
        self.complete_counts: Counter[str] = Counter()
        self.paths: dict[WeightInputs, Path] = {}
        self.readers = {
            activations: {m.name for m in names} for activations, names in tap_points.items()
        }

    def quantize_group(
        self, activations: WeightInputs, factor: Array
    ) -> Iterator[tuple[str, GetFactor]]:
        """Quantize the weights that multiply `activations`. Raise E0810 to E0815 if writing a file
        fails.
        """
        names = dict.fromkeys(matrix.name for matrix in self.tap_points[activations])
        for name in names:
            self.complete_counts[name] += sum(m.name == name for m in self.tap_points[activations])
        if any(self.count[name] > 1 for name in names):
            self.paths[activations] = self.directory / f"factor {len(self.paths)}.npy"
            _save_array(self.paths[activations], factor)
        for name in names:
            if self.count[name] == 1:
                yield name, lambda _: factor
            elif self.complete_counts[name] == self.count[name]:
                yield name, partial(self._load_factor, name)
                self._remove_files(name)

    def _load_factor(self, name: str, expert: int) -> Array:
        """Return the stored factor of one expert."""
        path = self.paths[self.spot_of[WeightMatrix(name, expert)]]
        found: Array = np.load(path, allow_pickle=False)
        return found

    def _remove_files(self, name: str) -> None:
        """Remove the stored factors that no later weight reads."""
        for activations, names in self.readers.items():
            if name in names:
                names.remove(name)
                if not names:
                    self.paths[activations].unlink()


Sample: TypeAlias = Mapping[str, Array]
RestartSamples: TypeAlias = Callable[[], Iterable[Sample]]
"""A function that restarts the iteration over the calibration samples."""
OpenSession: TypeAlias = Callable[[Graph], AbstractContextManager[Computation]]
"""A function that opens a session of a graph with the given weights; leaving the context releases
both."""
QuantizeWeight: TypeAlias = Callable[[str, GetFactor, Path], PrequantizedWeight]
"""A function that quantizes a weight with the Cholesky factors of its Gram matrices (one per
stacked matrix) and writes the result to the named files."""


def quantize_with_calibration(
    open_session: OpenSession,
    readers: CalibrationTargets,
    samples: RestartSamples,
    directory: Path,
    quantize_weight: QuantizeWeight,
) -> dict[str, PrequantizedWeight]:
    """Quantize the weights of `readers` with the activations on the samples, and write them to
    files in `directory`. Raise E0859 if a value is not finite, and E0810 to E0815 if writing a file
    fails.
    """
    quantized: dict[str, PrequantizedWeight] = {}
    sums, factors = _GramMatrixSums(readers), GramCholeskyFactors(readers.tap_points, directory)
    for stage in split_stages(readers):
        _run_stage(stage, open_session, samples(), directory, sums)
        for activations, total in sums.pop_complete_sums(stage.activations_of.values()):
            factor = compute_cholesky_factor(total)
            # frees the sum, which is as large as the factor and no longer needed
            del total
            for name, get_factor in factors.quantize_group(activations, factor):
                quantized[name] = quantize_weight(name, get_factor, directory / f"{len(quantized)}")
    return quantized


def _run_stage(
    stage: CalibrationStage,
    open_session: OpenSession,
    samples: Iterable[Sample],
    directory: Path,
    sums: "_GramMatrixSums",
) -> None:
    """Run a stage on all samples, and release the weights of its session."""
    with open_session(stage.graph) as session:
        for number, sample in enumerate(samples):
            results = session.run({**sample, **_load_stage_inputs(directory, stage, number)})
            sums.add_sample({v: results[name] for name, v in stage.activations_of.items()}, sample)
            for name in stage.stage_outputs:
                _save_array(_get_value_path(directory, name, number), results[name])


@dataclass
class _GramMatrixSums:
    """Accumulates the Gram matrix of the input activations of each weight."""

    readers: CalibrationTargets

    def __post_init__(self) -> None:
        self.totals: dict[WeightInputs, Array] = {}
        self.pending = {activations: set(activations) for activations in self.readers.tap_points}

    def add_sample(self, activations_of: Mapping[Value, Array], sample: Sample) -> None:
        """Add the activations of a sample, excluding padding."""
        for activations, names in self.readers.tap_points.items():
            for value in activations:
                if value not in activations_of:
                    continue
                if activations not in self.totals:
                    self.totals[activations] = np.zeros(2 * (count_input_features(activations),))
                keep = find_padding_mask(self.readers.graph, value)
                rows = activations_of[value][sample[keep]] if keep else activations_of[value]
                self.totals[activations] += _compute_gram(rows, names[0].name)

    def pop_complete_sums(
        self, activations_of: Iterable[Value]
    ) -> Iterator[tuple[WeightInputs, Array]]:
        """Yield and remove the Gram matrices that are complete once the activations
        `activations_of` are added.
        """
        seen = set(activations_of)
        for activations, left in self.pending.items():
            left -= seen
            if not left and activations in self.totals:
                yield activations, self.totals.pop(activations)


def _load_stage_inputs(directory: Path, stage: CalibrationStage, number: int) -> dict[str, Array]:
    """Load the stage inputs that earlier stages stored for a sample, and remove each file after its
    last use.
    """
    found = {}
    for name in stage.stage_inputs:
        path = _get_value_path(directory, name, number)
        found[name] = np.load(path, allow_pickle=False)
        if name in stage.released_values:
            path.unlink()
    return found


def _save_array(path: Path, array: Array) -> None:
    """Write an array to a file. Raise E0810 to E0815 if writing fails."""
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise_os_error(error, path)


def _get_value_path(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name} {number}.npy"


def _compute_gram(x: Array, name: str) -> Array:
    """Return the Gram matrix `XᵀX` of a value. Raise E0859 if it is not finite."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    if not np.isfinite(rows).all():
        raise_error(
            "E0859",
            f"activations of `{escape_text(name)}` are NaN or infinite on the calibration data",
            notes=["weights are quantized to minimize the error on these activations"],
            helps=[
                "use other calibration inputs: `--calibration-data FILE`",
                "or quantize without calibration: `--calibration-samples 0`",
            ],
        )
    made: Array = rows.T @ rows
    return made
