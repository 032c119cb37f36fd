"""Accumulate the Gram matrices of activations on calibration samples. GPTQ uses these matrices to
quantize the weights that the activations are multiplied with. The model is run in stages to limit
memory use: only the weights and Gram matrices of one stage are in memory at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specc.backend import Executable
from specc.calibration.calibration_activations import (
    CalibrationTargets,
    WeightInputs,
    WeightMatrixRef,
    count_input_features,
    find_padding_mask,
)
from specc.diagnostics.diagnostic import raise_error
from specc.io.output_paths import raise_os_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph, GraphBuilder, Input, Node, Value, collect_required_nodes
from specc.weights.int_quantization import compute_inverse_cholesky_factor
from specc.weights.quantized_weights import GetFactor, QuantizedWeightFiles

STAGE_WEIGHT_BYTES = 256 << 20
"""Maximum size in bytes of the float32 weights in one calibration stage. A node with larger weights
is a separate stage."""
STAGE_GRAM_BYTES = 512 << 20
"""Maximum size in bytes of the Gram matrices in one calibration stage. A node whose Gram matrix is
larger is a separate stage."""
NodeResults: TypeAlias = tuple[Node, tuple[Value, ...]]
"""A graph node together with the values that it computes."""


@dataclass(frozen=True)
class CalibrationStage:
    """A stage of the forward pass that reads only some of the model's weights.

    `graph` computes `stage_outputs` for later stages. The inputs of `graph` are the model inputs
    and `stage_inputs`, the outputs of earlier stages. `activations_by_output` maps the remaining
    outputs of `graph` to the activations of the model that they contain. `released_values` are
    stage outputs that no later stage reads.
    """

    graph: Graph
    activations_by_output: Mapping[str, Value]
    stage_inputs: tuple[str, ...]
    stage_outputs: tuple[str, ...]
    released_values: tuple[str, ...]


def iterate_calibration_stages(targets: CalibrationTargets) -> Iterator[CalibrationStage]:
    """Yield the calibration stages that compute the activations of `targets`, in run order."""
    staged_graph = _StagedGraph(targets)
    groups = list(staged_graph.iterate_groups()) or [[]]
    first, last = _find_lifetimes(staged_graph, groups)
    # name each value that a later stage reads
    later = [v for v, n in last.items() if first[v] < n]
    names = {v: f"kept {n}" for n, v in enumerate(later)}
    for n, group in enumerate(groups):
        # the first stage also computes all activations that do not depend on weights
        tapped = [v for v in targets.activations if first.get(v, 0) == n]
        activations_by_output = {f"met {k}": v for k, v in enumerate(tapped)}
        operands = staged_graph.list_heavy_operands(group)
        stage_inputs = {names[v]: v for v in operands if first[v] < n}
        stage_outputs = {name: v for v, name in names.items() if first[v] == n}
        outputs = {**activations_by_output, **stage_outputs}
        yield CalibrationStage(
            graph=staged_graph.build_stage_graph(group, stage_inputs, outputs),
            activations_by_output=activations_by_output,
            stage_inputs=tuple(stage_inputs),
            stage_outputs=tuple(stage_outputs),
            released_values=tuple(name for v, name in names.items() if last[v] == n),
        )


def _find_lifetimes(
    staged_graph: "_StagedGraph", groups: list[list[NodeResults]]
) -> tuple[dict[Value, int], dict[Value, int]]:
    """Map each heavy value to the indices of two stages: the stage that computes the value, and the
    last stage that reads it.
    """
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for n, group in enumerate(groups):
        first |= {v: n for _, results in group for v in results}
        last |= dict.fromkeys(staged_graph.list_heavy_operands(group), n)
    return first, last


@dataclass
class _StagedGraph:
    """The full-forward graph, whose heavy nodes are divided among stages. A node or value is heavy
    if it depends on both model inputs and weights. All other nodes are cheap to recompute (light),
    and are recomputed in each stage that uses them.
    """

    targets: CalibrationTargets

    @property
    def graph(self) -> Graph:
        """The full-forward graph."""
        return self.targets.graph

    @cached_property
    def _dependencies(self) -> dict[Value, frozenset[str]]:
        """Maps each value to the set of weight names that it depends on. The set also contains `""`
        if the value depends on inputs. A heavy value has the set `{"", "…"}`, because later stages
        load the value instead of its weights.
        """
        dependencies = {v: frozenset([""]) for v in self.graph.inputs.values()}
        dependencies |= {v: frozenset([n]) for n, v in self.graph.parameters.items()}
        for node, results in self.graph.nodes:
            names: frozenset[str] = frozenset().union(*(dependencies[a] for a in node.args if a))
            is_compute_intensive = "" in names and len(names) > 1
            dependencies |= dict.fromkeys(
                results, frozenset(["", "…"]) if is_compute_intensive else names
            )
        return dependencies

    def _is_heavy(self, value: Value) -> bool:
        """Return True if a value depends on both inputs and weights."""
        names = self._dependencies[value]
        return "" in names and len(names) > 1

    def iterate_groups(self) -> Iterator[list[NodeResults]]:
        """Yield groups of the heavy nodes on which the activations of `targets` depend, in
        topological order. Each group is as large as `STAGE_WEIGHT_BYTES` and `STAGE_GRAM_BYTES`
        allow.
        """
        live_nodes = collect_required_nodes(self.targets.activations)
        # the float64 Gram matrix [inputs, inputs] is allocated at the first activation
        gram_bytes = {
            activations[0]: 8 * count_input_features(activations) ** 2
            for activations in self.targets.tap_points
        }
        group: list[NodeResults] = []
        weight_names: set[str] = set()
        total_bytes = 0
        for node, results in self.graph.nodes:
            if node not in live_nodes or not any(map(self._is_heavy, results)):
                continue
            read_names = self._collect_weights(node)
            new_bytes = sum(gram_bytes.get(v, 0) for v in results)
            # a single node that exceeds the limit becomes a separate stage
            is_full = self._count_bytes(weight_names | read_names) > STAGE_WEIGHT_BYTES or (
                total_bytes and total_bytes + new_bytes > STAGE_GRAM_BYTES
            )
            if group and is_full:
                yield group
                group, weight_names, total_bytes = [], set(), 0
            group.append((node, results))
            weight_names |= read_names
            total_bytes += new_bytes
        if group:
            yield group

    def _collect_weights(self, node: Node) -> set[str]:
        """Return the names of the weights that a node depends on, except through heavy values."""
        light = [a for a in node.args if a and not self._is_heavy(a)]
        return {name for a in light for name in self._dependencies[a]} - {""}

    def _count_bytes(self, names: Iterable[str]) -> int:
        """Return the total size in bytes of the weights `names` in float32."""
        shapes = (self.graph.parameters[name].type.shape for name in names)
        return sum(4 * prod(d.number or 0 for d in shape) for shape in shapes)

    def list_heavy_operands(self, group: Iterable[NodeResults]) -> list[Value]:
        """Return the heavy values that the nodes of a group read, without duplicates."""
        operands = dict.fromkeys(a for node, _ in group for a in node.args if a)
        return [a for a in operands if self._is_heavy(a)]

    def build_stage_graph(
        self,
        group: list[NodeResults],
        stage_inputs: Mapping[str, Value],
        group_results: Mapping[str, Value],
    ) -> Graph:
        """Return a graph with a group of heavy nodes and the light nodes that they depend on. The
        graph has the additional inputs `stage_inputs` and the additional outputs `group_results`.
        """
        graph, builder = self.graph, GraphBuilder()
        # the graph builder drops unused parameters at the end
        copies = builder.copy_inputs_and_parameters(graph)
        copies |= {v: builder.add_input(n, Input(v.type)) for n, v in stage_inputs.items()}
        builder.copy_nodes(graph, copies, self._add_light_nodes(group, group_results.values()))
        outputs = {name: copies[value] for name, value in group_results.items()}
        return builder.clone_graph(graph, copies, outputs)

    def _add_light_nodes(
        self, group: list[NodeResults], group_results: Iterable[Value]
    ) -> set[Node]:
        """Return the nodes of a group, and the light nodes on which the group and `group_results`
        depend.
        """
        operands = (a for node, _ in group for a in node.args if a)
        light = [v for v in (*operands, *group_results) if not self._is_heavy(v)]
        return {node for node, _ in group} | collect_required_nodes(light)


class _FactorFiles:
    """The inverse Cholesky factors of the Gram matrices for `tap_points`. The factors of a stacked
    weight are stored in `directory` until those of all its experts are available. The weight is
    then quantized.
    """

    def __init__(
        self, tap_points: Mapping[WeightInputs, tuple[WeightMatrixRef, ...]], directory: Path
    ) -> None:
        self.tap_points = tap_points
        self.directory = directory
        self.activations_by_weight: dict[str, dict[int, WeightInputs]] = {}
        for activations, matrices in tap_points.items():
            for name, expert in matrices:
                self.activations_by_weight.setdefault(name, {})[expert] = activations
        self.paths: dict[WeightInputs, Path] = {}
        self.finished_names: set[str] = set()

    def add_factor(
        self, activations: WeightInputs, factor: Array
    ) -> Iterator[tuple[str, GetFactor]]:
        """Add the factor for `activations`. Yield the names of the weights whose factors are now
        complete, each with a function that returns an expert's factor. Raise E0810 to E0815 if
        writing a file fails.
        """
        names = dict.fromkeys(matrix.name for matrix in self.tap_points[activations])
        if any(len(self.activations_by_weight[name]) > 1 for name in names):
            self.paths[activations] = self.directory / f"factor {len(self.paths)}.npy"
            _save_array(self.paths[activations], factor)
        for name in names:
            activations_by_expert = self.activations_by_weight[name]
            if len(activations_by_expert) == 1:
                yield name, lambda _: factor
                self.finished_names.add(name)
            elif self.paths.keys() >= set(activations_by_expert.values()):
                yield name, partial(self._load_factor, activations_by_expert)
                self.finished_names.add(name)
                self._remove_files(set(activations_by_expert.values()))

    def _load_factor(self, activations_by_expert: Mapping[int, WeightInputs], expert: int) -> Array:
        """Load the stored factor of one of a weight's experts."""
        path = self.paths[activations_by_expert[expert]]
        factor: Array = np.load(path, allow_pickle=False)
        return factor

    def _remove_files(self, used: Iterable[WeightInputs]) -> None:
        """Remove the files of those factors for `used` that no other unquantized weight needs."""
        for activations in used:
            if {matrix.name for matrix in self.tap_points[activations]} <= self.finished_names:
                self.paths[activations].unlink()


Sample: TypeAlias = Mapping[str, Array]
"""The input arrays of one model run, keyed by input name."""
GetSamples: TypeAlias = Callable[[], Iterable[Sample]]
"""A function that returns a new iterator over the calibration samples."""
OpenSession: TypeAlias = Callable[[Graph], AbstractContextManager[Executable]]
"""A function that opens a session for a graph and loads the graph's weights. The session and its
weights are released when the `with` block ends.
"""
QuantizeWeight: TypeAlias = Callable[[str, GetFactor, Path], QuantizedWeightFiles]
"""A function that quantizes a weight. The arguments are the weight's name, a function that returns
the inverse Cholesky factor for each expert, and the path prefix of the files to write."""


def quantize_with_gptq(
    open_session: OpenSession,
    targets: CalibrationTargets,
    get_samples: GetSamples,
    directory: Path,
    quantize_weight: QuantizeWeight,
) -> dict[str, QuantizedWeightFiles]:
    """Quantize the weights of `targets` with GPTQ, calibrated on their input activations for the
    samples. Write the quantized weights to files in `directory` and return them by name. Raise
    E0859 if an activation is not finite, and E0810 to E0815 if writing a file fails.
    """
    quantized: dict[str, QuantizedWeightFiles] = {}
    sums, factors = _GramMatrixSums(targets), _FactorFiles(targets.tap_points, directory)
    for stage in iterate_calibration_stages(targets):
        _run_stage(stage, open_session, get_samples(), directory, sums)
        for activations, total in sums.pop_complete_sums(stage.activations_by_output.values()):
            factor = compute_inverse_cholesky_factor(total)
            del total  # release the Gram matrix, because it is as large as the factor
            for name, get_inverse_cholesky_factor in factors.add_factor(activations, factor):
                quantized[name] = quantize_weight(
                    name, get_inverse_cholesky_factor, directory / f"{len(quantized)}"
                )
    return quantized


def _run_stage(
    stage: CalibrationStage,
    open_session: OpenSession,
    samples: Iterable[Sample],
    directory: Path,
    sums: "_GramMatrixSums",
) -> None:
    """Run a stage on all samples. Add the activations of the stage to `sums`, and store the outputs
    that later stages read in `directory`.
    """
    with open_session(stage.graph) as session:
        for number, sample in enumerate(samples):
            results = session.run({**sample, **_load_stage_inputs(directory, stage, number)})
            sums.add_sample(
                {v: results[name] for name, v in stage.activations_by_output.items()}, sample
            )
            for name in stage.stage_outputs:
                _save_array(_get_value_path(directory, name, number), results[name])


@dataclass
class _GramMatrixSums:
    """The Gram matrices of the activations of `targets`, accumulated over all samples."""

    targets: CalibrationTargets

    def __post_init__(self) -> None:
        self.totals: dict[WeightInputs, Array] = {}
        self.pending = {activations: set(activations) for activations in self.targets.tap_points}

    def add_sample(self, arrays: Mapping[Value, Array], sample: Sample) -> None:
        """Add the activations for a sample, excluding padding positions."""
        for activations, names in self.targets.tap_points.items():
            for value in activations:
                if value not in arrays:
                    continue
                if activations not in self.totals:
                    self.totals[activations] = np.zeros(2 * (count_input_features(activations),))
                mask_name, x = (find_padding_mask(self.targets.graph, value), arrays[value])
                x = x[sample[mask_name]] if mask_name else x
                self.totals[activations] += _compute_gram(x, names[0].name)

    def pop_complete_sums(
        self, added_values: Iterable[Value]
    ) -> Iterator[tuple[WeightInputs, Array]]:
        """Remove and yield the Gram matrices that are complete after adding
        `added_values`.
        """
        added = set(added_values)
        for activations, pending_values in self.pending.items():
            pending_values -= added
            if not pending_values and activations in self.totals:
                yield activations, self.totals.pop(activations)


def _load_stage_inputs(directory: Path, stage: CalibrationStage, number: int) -> dict[str, Array]:
    """Load the stage inputs of a sample from files, and remove files after their last use."""
    arrays = {}
    for name in stage.stage_inputs:
        path = _get_value_path(directory, name, number)
        arrays[name] = np.load(path, allow_pickle=False)
        if name in stage.released_values:
            path.unlink()
    return arrays


def _save_array(path: Path, array: Array) -> None:
    """Write an array to a file in the .npy format. Raise E0810 to E0815 if writing fails."""
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise_os_error(error, path)


def _get_value_path(directory: Path, name: str, number: int) -> Path:
    """Return the path of the file with the stage output `name` for the sample `number`."""
    return directory / f"{name} {number}.npy"


def _compute_gram(x: Array, name: str) -> Array:
    """Return the Gram matrix `XᵀX`, float64 [features, features], of activations `x` [...,
    features]. Raise E0859 if an activation is not finite. `name` is the name of the weight in the
    message.
    """
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
    gram: Array = rows.T @ rows
    return gram
