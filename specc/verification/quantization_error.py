"""Measure the quantization error of each output of a model relative to a baseline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_max_lengths, find_min_lengths
from specc.analysis.valid_axis_sizes import find_valid_dim_sizes
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.runtime.single_model_file import LoadedModel

ERROR_METRICS = {
    "error": "the largest difference relative to the largest value",
    "cosine_distance": "1 - cosine",
    "kl": "mean Kullback-Leibler divergence of the token distributions",
    "top1_changed": "fraction of positions with a different most likely token",
}
"""The available error metrics and their descriptions."""
DYNAMIC_AXIS_LENGTH = 24
"""Preferred size of each dynamic axis of the random inputs."""


@dataclass(kw_only=True)
class OutputErrorStats:
    """The accumulated quantization error of one output over all compared batches."""

    max_difference: float = 0.0
    max_magnitude: float = 0.0
    dot_product: float = 0.0
    squared_norms: tuple[float, float] = (0.0, 0.0)
    kl_divergence_sum: float = 0.0
    top1_change_count: int = 0
    position_count: int = 0

    def add_result(self, quantized_result: Array, baseline_result: Array, is_logits: bool) -> None:
        """Add a result of the quantized model, and the same result of the baseline. If `is_logits`
        is True, also compare token distributions.
        """
        a, b = quantized_result.astype(np.float64), baseline_result.astype(np.float64)
        is_finite = np.isfinite(a) & np.isfinite(b)
        a, b = np.where(is_finite, a, 0), np.where(is_finite, b, 0)
        self.max_difference = max(self.max_difference, float(np.abs(a - b).max(initial=0)))
        self.max_magnitude = max(self.max_magnitude, float(np.abs(b).max(initial=0)))
        self.dot_product += float((a * b).sum())
        quantized_norm, baseline_norm = self.squared_norms
        self.squared_norms = (
            float(quantized_norm + (a * a).sum()),
            float(baseline_norm + (b * b).sum()),
        )
        if is_logits and a.size:
            p, q = compute_log_softmax(b), compute_log_softmax(a)
            self.kl_divergence_sum += float((np.exp(p) * (p - q)).sum())
            self.top1_change_count += int((a.argmax(-1) != b.argmax(-1)).sum())
            self.position_count += a[..., 0].size

    @property
    def metrics(self) -> dict[str, float]:
        """Return the error metrics of this output."""
        norms = (self.squared_norms[0] * self.squared_norms[1]) ** 0.5
        metrics = {
            "error": self.max_difference / self.max_magnitude
            if self.max_magnitude
            else self.max_difference,
            "cosine_distance": max(0.0, 1 - self.dot_product / norms) if norms else 0.0,
        }
        if self.position_count:
            metrics["kl"] = max(0.0, self.kl_divergence_sum / self.position_count)
            metrics["top1_changed"] = self.top1_change_count / self.position_count
        return metrics


def compute_log_softmax(x: Array) -> Array:
    """Compute the log-probabilities along the last axis."""
    shifted = x - x.max(-1, keepdims=True)
    log_probs: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probs


@dataclass
class QuantizationComparison:
    """The quantization error of each output, relative to a baseline with the same inputs."""

    quantized_model: LoadedModel
    baseline_model: LoadedModel
    output_errors: dict[str, OutputErrorStats] = field(default_factory=dict)

    def compare_outputs_on_random_inputs(self, seed: int, rounds: int) -> None:
        """Compare the quantized model and the baseline on random inputs. Raise E0857 if the two
        models were compiled from different specs.
        """
        graph = self.quantized_model.manifest.graph
        self._check_same_signature()
        rng = np.random.default_rng(seed)
        section = self.quantized_model.manifest.generate_section
        logits_output = section.logits_output if section else None
        for _ in range(max(rounds, 1)):
            inputs = make_random_inputs(graph, choose_verification_axis_sizes(graph), rng)
            quantized, baseline = (
                m.session.run(inputs) for m in (self.quantized_model, self.baseline_model)
            )
            for name, value in quantized.items():
                if value.dtype.kind == "f":
                    is_logits = name == logits_output
                    error = self.output_errors.setdefault(name, OutputErrorStats())
                    error.add_result(value, baseline[name], is_logits)

    def to_json(self) -> list[dict[str, object]]:
        """Return the error metrics of all outputs as JSON values."""
        return [{"result": n, **error.metrics} for n, error in self.output_errors.items()]

    def format_lines(self) -> Iterator[str]:
        """Yield one line of error metrics per output."""
        for name, error in self.output_errors.items():
            # the first metric is `error`
            metrics = [f"{n} {v:.2e}" for n, v in error.metrics.items()]
            metrics[0] += " of the largest value"
            yield f"`{name}` against the baseline: {', '.join(metrics)}"

    def iterate_errors_by_scope(self, seed: int) -> Iterator[tuple[str, float]]:
        """Yield each scope that has a quantized weight, in graph order, and the relative error of
        its output. The output is computed in float64, so weight quantization is the only cause of
        the error.
        """
        graph = self.quantized_model.manifest.graph
        scope_results = _map_scope_results(
            graph, {n.rpartition(".")[0] for n in self.quantized_model.manifest.quantized}
        )
        graph, scopes = replace(graph, names=scope_results), tuple(scope_results)
        inputs = make_random_inputs(
            graph, choose_verification_axis_sizes(graph), np.random.default_rng(seed)
        )
        reference = backend.load_reference_backend()
        quantized, baseline = (
            reference.evaluate_graph(graph, inputs, model.weights(), value_names=scopes)
            for model in (self.quantized_model, self.baseline_model)
        )
        for scope in scopes:
            difference, exact = quantized[scope] - baseline[scope], baseline[scope]
            error_norm, norm = np.linalg.norm(difference), np.linalg.norm(exact)
            yield scope, float(error_norm / norm if norm else error_norm)

    def check_error_limits(self, limits: Mapping[str, float]) -> None:
        """Raise E0856 if an error metric of an output exceeds its limit."""
        for name, error in self.output_errors.items():
            for metric, value in error.metrics.items():
                if value > limits.get(metric, np.inf):
                    raise_error(
                        "E0856",
                        f"`{name}` exceeds its limit: {metric} {value:.2e} > {limits[metric]:g}",
                        notes=[f"{metric} is {ERROR_METRICS[metric]}"],
                        helps=["quantize fewer weights: `--quantize-exclude PATTERN`"],
                    )

    def _check_same_signature(self) -> None:
        quantized, baseline = (
            [(n, str(v.type)) for n, v in (*g.inputs.items(), *g.outputs.items())]
            for g in (self.quantized_model.manifest.graph, self.baseline_model.manifest.graph)
        )
        if quantized != baseline:
            different = {*quantized} ^ {*baseline}
            raise_error(
                "E0857",
                "the model and its baseline have different inputs or outputs",
                notes=[f"present in only one model: {', '.join(n for n, _ in different)}"],
                helps=["compile both from the same spec with the same config"],
            )


def _map_scope_results(graph: Graph, scope_names: set[str]) -> dict[str, Value]:
    """Map each scope to the result of the last op of the scope. Loop bodies are excluded."""
    results_by_scope: dict[str, Value] = {}
    for node, results in graph.nodes:
        for scope in graph.get_origin(node).scopes:
            if scope in scope_names:
                results_by_scope[scope] = results[0]
    return results_by_scope


def choose_verification_axis_sizes(graph: Graph) -> dict[str, int]:
    """Return axis sizes of about `DYNAMIC_AXIS_LENGTH`, within the limits of the graph."""
    max_lengths, min_lengths = find_max_lengths(graph), find_min_lengths(graph)
    typical_sizes = choose_dim_sizes(graph, 1)
    preferred_lengths = {
        symbol: max(
            min(DYNAMIC_AXIS_LENGTH, max_lengths.get(symbol, DYNAMIC_AXIS_LENGTH)),
            min_lengths.get(symbol, 1),
        )
        for symbol in typical_sizes
    }
    return find_valid_dim_sizes(graph, preferred_lengths, max_lengths) or typical_sizes
