"""Mutants of compiled models, and whether `specc verify` detects them: constants ±1, comparisons
with and without equality, `And` for `Or`, negated conditions of branches, swapped operands.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import specc
from specc import backend
from specc.analysis.length_limits import find_length_limits
from specc.analysis.valid_axis_sizes import find_valid_dim_sizes
from specc.ir.array import Array
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.verification.result_comparison import compare_result
from specc.verification.round_coverage import SubgraphCoverage, iterate_verification_inputs
from specc.verification.rounding_errors_and_overflow import (
    PerturbedRun,
    compute_position_error_bounds,
    is_rounding_difference,
    make_perturbed_evaluator,
)
from specc_onnx.denormals_and_huge_pages import flush_denormals

SWAPS = {
    "Less": "LessOrEqual",
    "LessOrEqual": "Less",
    "Greater": "GreaterOrEqual",
    "GreaterOrEqual": "Greater",
    "And": "Or",
    "Or": "And",
}
OPERANDS = {
    **dict.fromkeys(("Sub", "Div", "Mod", "Pow", "MatMul", "Concat"), (0, 1)),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), (0, 1)),
    "Where": (1, 2),
}
"""Operands that a mutant swaps, of operators that do not commute."""
INTEGER_TYPES = (TensorProto.INT64, TensorProto.INT32)
MAX_ELEMENTS = 8
"""Maximum number of elements of a mutated constant."""


@dataclass(frozen=True)
class ModelMutant:
    """A change of a model.

    `graph` and `node` are indices, `node` is -1 for initializers; `element` is an element, an
    initializer and an element, or two operands.
    """

    kind: str
    graph: int
    node: int
    element: tuple[int, ...] = ()
    delta: int = 0

    def apply(self, model: ModelProto) -> ModelProto:
        """Return a copy of the model with this change."""
        made = ModelProto()
        made.CopyFrom(model)
        graph = list(_graphs(made.graph))[self.graph]
        if self.node < 0:
            number, place = self.element
            _add(graph.initializer[number], place, self.delta)
            return made
        node = graph.node[self.node]
        if len(self.element) == 2:
            a, b = self.element
            node.input[a], node.input[b] = node.input[b], node.input[a]
        elif node.op_type in SWAPS:
            node.op_type = SWAPS[node.op_type]
        elif node.op_type == "Constant":
            _add(_tensor(node), self.element[0], self.delta)
        else:
            negated = helper.make_node("Not", [node.input[0]], ["mutant condition"])
            node.input[0] = "mutant condition"
            nodes = [NodeProto.FromString(n.SerializeToString()) for n in graph.node]
            del graph.node[:]
            graph.node.extend([*nodes[: self.node], negated, *nodes[self.node :]])
        return made


def iterate_model_mutants(model: ModelProto) -> list[ModelMutant]:
    """Yield all mutants of a model."""
    found = list[ModelMutant]()
    for g, graph in enumerate(_graphs(model.graph)):
        for number, tensor in enumerate(graph.initializer):
            found += [
                ModelMutant(f"`{tensor.name}`[{place}] {by:+d}", g, -1, (number, place), by)
                for place, by in _changes(tensor)
            ]
        for n, node in enumerate(graph.node):
            if (
                node.op_type in OPERANDS
                and len({node.input[k] for k in OPERANDS[node.op_type]}) > 1
            ):
                kind = f"swapped operands of {node.op_type} `{node.name}`"
                found.append(ModelMutant(kind, g, n, OPERANDS[node.op_type]))
            if node.op_type in SWAPS:
                kind = f"{SWAPS[node.op_type]} for {node.op_type} `{node.name}`"
                found.append(ModelMutant(kind, g, n))
            elif node.op_type == "If":
                found.append(ModelMutant(f"negated If `{node.name}`", g, n))
            elif node.op_type == "Constant" and any(a.HasField("t") for a in node.attribute):
                found += [
                    ModelMutant(f"`{node.output[0]}`[{place}] {by:+d}", g, n, (place,), by)
                    for place, by in _changes(_tensor(node))
                ]
    return found


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _tensor(node: NodeProto) -> TensorProto:
    return next(a.t for a in node.attribute if a.HasField("t"))


def _changes(tensor: TensorProto) -> Iterator[tuple[int, int]]:
    """Yield each element of a small constant, plus 1 and minus 1."""
    size = int(np.prod(tensor.dims))
    whole = tensor.data_type in INTEGER_TYPES and size <= MAX_ELEMENTS
    if whole or (tensor.data_type == TensorProto.FLOAT and size == 1):
        yield from ((place, by) for place in range(size) for by in (1, -1))


def _add(tensor: TensorProto, place: int, by: int) -> None:
    value = numpy_helper.to_array(tensor).copy()
    with np.errstate(over="ignore"):
        value.reshape(-1)[place] += by
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


class MutantJudge:
    """The rounds of `verify` of a model: inputs, expected outputs, and their rounding errors."""

    def __init__(self, path: Path) -> None:
        self.loaded = specc.load(path).scoring_model
        self.model = ModelProto.FromString(path.read_bytes())
        graph, weights = self.loaded.manifest.graph, self.loaded.weights()
        self.graph = graph
        self.rounds = list[
            tuple[dict[str, Array], dict[str, Array], dict[str, Array], PerturbedRun]
        ]()
        for _, inputs in iterate_verification_inputs(
            self.loaded, SubgraphCoverage.from_model(self.loaded)
        ):
            expected = backend.load_reference_backend().evaluate_graph(graph, inputs, weights)
            expected = {n: np.asarray(v) for n, v in expected.items()}
            sample = make_perturbed_evaluator(graph, inputs, weights)
            self.rounds.append(
                (inputs, expected, compute_position_error_bounds(sample, expected), sample)
            )
        self.session = _open(self.model)

    def is_killed(self, mutant: ModelMutant) -> bool:
        """Whether a round distinguishes the mutant from the original, or the mutant
        does not run.
        """
        try:
            session = _open(mutant.apply(self.model))
            for inputs, expected, bounds, sample in self.rounds:
                actual = _run(session, inputs)
                for name, value in expected.items():
                    if compare_result(
                        name, actual[name], value
                    ).description and not is_rounding_difference(
                        sample, name, actual[name], value, bounds[name]
                    ):
                        return True
        except Exception:  # whatever ONNX Runtime raises
            return True
        return False

    def find_difference(self, mutant: ModelMutant, tries: int = 8) -> Mapping[str, int] | None:
        """Return lengths up to 400 at which the mutant gives other outputs for valid inputs, some
        of them large; None if none are found.
        """
        session = _open(mutant.apply(self.model))
        rng = np.random.default_rng(7)
        bounds = {s: limit.max_length for s, limit in find_length_limits(self.graph).items()}
        for n in range(tries):
            least = choose_dim_sizes(self.graph, 0)
            long = rng.choice(list(least)) if least else ""
            sizes = {s: int(rng.integers(1, 400 if s == long and n % 2 else 30)) for s in least}
            sizes = {s: max(least[s], min(k, bounds.get(s, k))) for s, k in sizes.items()}
            found = find_valid_dim_sizes(self.graph, sizes, bounds)
            if found is None:
                continue
            inputs = make_random_inputs(self.graph, found, rng, (0.7, 0.02, 1.0)[n % 3])
            if n % 4 == 3:
                inputs = {k: v * 30 if v.dtype == np.float32 else v for k, v in inputs.items()}
            with suppress(
                Exception
            ):  # inputs that the model rejects, such as an index out of range
                expected = _run(self.session, inputs)
                actual = _try(session, inputs)
                if actual is None or _differ(actual, expected):
                    return found
        return None


def _try(session: Any, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
    """Return the outputs of a mutant; None if it does not run."""
    try:
        return _run(session, inputs)
    except Exception:  # whatever ONNX Runtime raises
        return None


def _differ(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> bool:
    """Whether an output has another shape, or other values than rounding explains."""
    wide = {name: np.asarray(value) for name, value in expected.items()}
    return any(actual[n].shape != w.shape or _share(actual[n], w) > 1e-3 for n, w in wide.items())


def _share(actual: Array, expected: Array) -> float:
    if expected.dtype.kind in "iub":
        return float((actual != expected).any())
    if (np.isnan(actual) != np.isnan(expected)).any():
        return np.inf
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(np.abs(actual.astype("f8") - expected))
    return float(apart.max(initial=0)) / (
        float(np.nan_to_num(np.abs(expected)).max(initial=0)) or 1
    )


def _open(model: ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(model.SerializeToString(), options)


def _run(session: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    names = {i.name for i in session.get_inputs()}
    with flush_denormals():
        made = session.run(None, {n: v for n, v in inputs.items() if n in names})
    return dict(zip((o.name for o in session.get_outputs()), made, strict=True))


def find_survivors(
    path: Path, limit: int, seed: int = 0
) -> tuple[int, list[ModelMutant], list[str]]:
    """Judge up to `most` mutants: return the number of judged ones, the survivors that are
    equivalent as far as is known, and messages for the others.
    """
    judge = MutantJudge(path)
    every = iterate_model_mutants(judge.model)
    rng = np.random.default_rng(seed)
    chosen = [every[n] for n in sorted(rng.permutation(len(every))[:limit])]
    alive = [m for m in chosen if not judge.is_killed(m)]
    missed, equivalent = list[str](), list[ModelMutant]()
    for mutant in alive:
        if sizes := judge.find_difference(mutant):
            missed.append(f"{mutant.kind}: {sizes}")
        else:
            equivalent.append(mutant)
    return len(chosen), equivalent, missed
