"""Quantization error of a model, result by result, and of int8 KV caches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_max_lengths, find_min_lengths
from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.ir.length_constraints import find_valid_lengths
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import choose_lengths, make_random_inputs
from specc.verification.tolerance import RELATIVE_TOLERANCE

After: TypeAlias = Callable[[Value, Array], Array]


def reference_cache_values(
    graph: Graph, got: Mapping[str, Array], weights: Mapping[str, Array]
) -> After | None:
    """Return a hook that replaces the reference's quantized KV cache entries by the model's results
    `got`, where equal up to rounding ties; None for a graph without.
    """
    kept = {v: got[name] for v, name in _keep_sample(graph).items()}
    if not kept:
        return None
    names = {value: name for name, value in graph.parameters.items()}
    before = {v.node.args[0] for v in kept if v.node}
    exact: dict[Value, Array] = {}

    def quantize_array(value: Value, array: Array) -> Array:
        if value in before:
            exact[value] = array
        theirs, node = kept.get(value), value.node
        if theirs is None or node is None:
            return array
        x, scale = node.args
        assert x is not None
        assert scale is not None
        # new positions follow the existing ones
        new = theirs[:, :, theirs.shape[2] - array.shape[2] :]
        return match_rounding_edge(array, new, exact[x], weights[names[scale]])

    return quantize_array


def match_rounding_edge(ours: Array, theirs: Array, x: Array, scale: Array) -> Array:
    """Return integers of `x / scale`: theirs if adjacent to ours and `x` lies on the rounding edge
    between both within float32 accuracy; otherwise ours.
    """
    units = x / scale.astype(np.float64)
    to_edge = np.abs(np.abs(units - np.rint(units)) - 0.5)
    blur = RELATIVE_TOLERANCE * np.abs(x).max(initial=0.0) / scale
    apart = np.abs(theirs.astype(np.int16) - ours)
    made: Array = np.where((apart == 1) & (to_edge <= blur), theirs, ours)
    return made


def _keep_sample(graph: Graph) -> dict[Value, str]:
    """Return the results that hold quantized KV caches, keyed by their new entries."""
    found = {}
    for name, value in graph.outputs.items():
        if value.node is None or not isinstance(value.node.op, ops.Concat):
            continue
        new = value.node.args[-1]
        if new is not None and new.node and isinstance(new.node.op, ops.Quantize):
            found[new] = name
    return found


ERROR_MEASURES = {
    "error": "the largest difference, of the largest value",
    "cosine_distance": "1 - cosine",
    "kl": "mean Kullback-Leibler divergence of the token distributions",
    "top1_changed": "share of positions with a different most likely token",
}
"""The available measures, and their descriptions."""
FREE_AXIS_LENGTH = 24
"""Length of each axis whose length is free."""


@dataclass(kw_only=True)
class QuantizationLoss:
    """Accumulated error of one output over all compared batches."""

    apart: float = 0.0
    largest: float = 0.0
    dot: float = 0.0
    squares: tuple[float, float] = (0.0, 0.0)
    divergence: float = 0.0
    changed: int = 0
    rows: int = 0

    def see(self, low: Array, full: Array, drawn: bool) -> None:
        """Add one result of both models; `drawn`: it is the logits."""
        a, b = low.astype(np.float64), full.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)
        a, b = np.where(both, a, 0), np.where(both, b, 0)
        self.apart = max(self.apart, float(np.abs(a - b).max(initial=0)))
        self.largest = max(self.largest, float(np.abs(b).max(initial=0)))
        self.dot += float((a * b).sum())
        one, other = self.squares
        self.squares = one + float((a * a).sum()), other + float((b * b).sum())
        if drawn and a.size:
            p, q = log_probabilities(b), log_probabilities(a)
            self.divergence += float((np.exp(p) * (p - q)).sum())
            self.changed += int((a.argmax(-1) != b.argmax(-1)).sum())
            self.rows += a[..., 0].size

    @property
    def measures(self) -> dict[str, float]:
        """Return the error measures of this output."""
        size = (self.squares[0] * self.squares[1]) ** 0.5
        found = {
            "error": self.apart / self.largest if self.largest else self.apart,
            "cosine_distance": max(0.0, 1 - self.dot / size) if size else 0.0,
        }
        if self.rows:
            found["kl"] = max(0.0, self.divergence / self.rows)
            found["top1_changed"] = self.changed / self.rows
        return found


def log_probabilities(x: Array) -> Array:
    """Compute log-probabilities along the last axis."""
    moved = x - x.max(-1, keepdims=True)
    made: Array = moved - np.log(np.exp(moved).sum(-1, keepdims=True))
    return made


@dataclass
class QuantizationComparison:
    """The quantization error of a model against a baseline on the same inputs, by output."""

    low: LoadedModel
    full: LoadedModel
    losses: dict[str, QuantizationLoss] = field(default_factory=dict)

    def run(self, seed: int, rounds: int) -> None:
        """Compare on random inputs. E0857 where the two are not of one spec."""
        graph = self.low.manifest.graph
        self._check_pair()
        rng = np.random.default_rng(seed)
        generates = self.low.manifest.generate_section
        for _ in range(max(rounds, 1)):
            inputs = make_random_inputs(graph, comparison_sizes(graph), rng)
            low, full = (m.session.run(inputs) for m in (self.low, self.full))
            for name, value in low.items():
                if value.dtype.kind == "f":
                    drawn = generates is not None and name == generates.source
                    self.losses.setdefault(name, QuantizationLoss()).see(value, full[name], drawn)

    def to_json(self) -> list[dict[str, object]]:
        """Return the error of each output as JSON values."""
        return [{"result": n, **loss.measures} for n, loss in self.losses.items()]

    def lines(self) -> Iterator[str]:
        """Format one line per result."""
        for name, loss in self.losses.items():
            told = ", ".join(f"{n} {v:.2e}" for n, v in loss.measures.items())
            yield f"`{name}` against the baseline: {told}"

    def layers(self, seed: int) -> Iterator[tuple[str, float]]:
        """Yield each scope with a quantized weight, in order, with the relative error of its
        results in float64 due to weight quantization alone.
        """
        graph = self.low.manifest.graph
        made = _map_scope_results(
            graph, {n.rpartition(".")[0] for n in self.low.manifest.quantized}
        )
        graph, scopes = replace(graph, names=made), tuple(made)
        inputs = make_random_inputs(graph, comparison_sizes(graph), np.random.default_rng(seed))
        reference = backend.load_reference()
        low, full = (
            reference.evaluate_graph(graph, inputs, model.weights(), value_names=scopes)
            for model in (self.low, self.full)
        )
        for scope in scopes:
            off, size = (np.linalg.norm(x) for x in (low[scope] - full[scope], full[scope]))
            yield scope, float(off / size if size else off)

    def check(self, most: Mapping[str, float]) -> None:
        """Raise E0856 if a measure of a result exceeds its bound."""
        for name, loss in self.losses.items():
            for measure, value in loss.measures.items():
                if value > most.get(measure, np.inf):
                    raise_error(
                        "E0856",
                        f"`{name}` lost more than it may: {measure} {value:.2e}, at "
                        f"most {most[measure]:g}",
                        notes=[f"{measure} is {ERROR_MEASURES[measure]}"],
                        helps=["quantize fewer weights: `--quantize-exclude PATTERN`"],
                    )

    def _check_pair(self) -> None:
        one, other = (
            [(n, str(v.type)) for n, v in (*g.inputs.items(), *g.outputs.items())]
            for g in (self.low.manifest.graph, self.full.manifest.graph)
        )
        if one != other:
            raise_error(
                "E0857",
                "the two models have different inputs or outputs",
                notes=[f"only in one: {', '.join(n for n, _ in {*one} ^ {*other})}"],
                helps=["compile both from one spec, with the same config"],
            )


def _map_scope_results(graph: Graph, places: set[str]) -> dict[str, Value]:
    """Return the result of the last op of each of these scopes; loops are not inspected."""
    made: dict[str, Value] = {}
    for node, results in graph.nodes:
        for scope in graph.get_origin(node).scopes:
            if scope in places:
                made[scope] = results[0]
    return made


def comparison_sizes(graph: Graph) -> dict[str, int]:
    """Return lengths of about `FREE_AXIS_LENGTH`, within the graph's limits."""
    above = find_max_lengths(graph)
    least = find_min_lengths(graph)
    usual = choose_lengths(graph, 1)
    wanted = {
        symbol: max(
            min(FREE_AXIS_LENGTH, above.get(symbol, FREE_AXIS_LENGTH)), least.get(symbol, 1)
        )
        for symbol in usual
    }
    return find_valid_lengths(graph, wanted, above) or usual
