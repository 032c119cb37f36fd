"""Calibration factors of weights, for a model that the reference runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from specc import backend
from specc.backend import TensorSpec
from specc.calibration import calibration_stages_and_gram_matrices as gram_matrices
from specc.calibration.calibration_activations import CalibrationTargets
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.weights.int_quantization import QuantizationErrorStats
from specc.weights.quantized_weights import GetFactor, QuantizedWeightFiles


def compute_weight_factors(
    readers: CalibrationTargets,
    weights: Mapping[str, Array],
    sample: Mapping[str, Array],
    directory: Path,
) -> dict[str, list[Array]]:
    """Return the calibration factor of each weight, or of each matrix of a stack of experts."""
    found: dict[str, list[Array]] = {}

    @dataclass(frozen=True)
    class Part:
        graph: Graph
        outputs: Mapping[str, TensorSpec] = field(default_factory=dict)

        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            given = {name: weights[name] for name in self.graph.parameters}
            return backend.load_reference_backend().evaluate_graph(self.graph, inputs, given)

    @contextmanager
    def opened(graph: Graph) -> Iterator[Part]:
        yield Part(graph)

    def round_one(name: str, factor: GetFactor, stem: Path) -> QuantizedWeightFiles:
        found[name] = [factor(n) for n in range(readers.expert_counts[name])]
        return QuantizedWeightFiles(stem, stem, QuantizationErrorStats())

    gram_matrices.quantize_with_gptq(opened, readers, lambda: [sample], directory, round_one)
    return found
