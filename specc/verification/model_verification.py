"""Verify a compiled model, or every graph of a package, on random inputs of several sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_min_lengths
from specc.artifact.generation_metadata import parse_generation_metadata
from specc.artifact.package_index_and_format_versions import (
    is_package_directory,
    read_package_index,
)
from specc.diagnostics.diagnostic import raise_error
from specc.io.memory_check import check_free_memory
from specc.io.safe_read import escape_text
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.runtime.inference_model import InferenceModel
from specc.runtime.model_package import ModelPackage, open_package
from specc.runtime.random_inputs import (
    SampleInputs,
    StepInputSampler,
    find_past_key_value_states,
    make_step_input_sampler,
)
from specc.runtime.single_model_file import LoadedModel
from specc.verification.generation_verification import verify_generation
from specc.verification.quantized_matmul_check import QuantizedMatMulChecker
from specc.verification.result_comparison import (
    MAX_INFORMATIVE_BOUND,
    ResultDifference,
    VerificationRound,
    compare_results,
    format_axis_sizes,
    get_max_magnitude,
    is_error_bound_tight,
    make_kv_cache_rounding_hook,
    make_skipped_verification_round,
)
from specc.verification.round_coverage import SubgraphCoverage, iterate_verification_inputs
from specc.verification.rounding_errors_and_overflow import (
    MAX_FLOAT32,
    HalfPrecisionErrorEstimator,
    PerturbedRun,
    compute_position_error_bounds,
    find_half_precision_dtype,
    is_rounding_difference,
    make_perturbed_evaluator,
    raise_overflow_error,
)


def verify_graph(
    model: LoadedModel,
    *,
    seed: int = 0,
    rounds: int = 3,
    sample_inputs: SampleInputs | None = None,
    max_lengths: Mapping[str, int] | None = None,
) -> Iterator[VerificationRound]:
    """Compare a model with the reference on random inputs. Yield the result of each round. Raise
    E0930 at the first output that differs by more than the tolerance.

    A model with quantized weights is compared with a reference that has dequantized weights. This
    comparison does not quantize activations. Each quantized MatMul is compared with integer
    arithmetic (E0855). Additional rounds execute branches and loop bodies that no earlier round
    executed. The last entry lists the subgraphs that no round executed, and the axis sizes that
    exceed the cost limit. After the last round, raise E0932 if a result is too sensitive to
    rounding errors in at least half of the rounds.

    `sample_inputs` replaces the random inputs, and `max_lengths` limits axis sizes that the graph
    does not limit.
    """
    if model.manifest.decoding is not None:
        yield from verify_generation(model, seed=seed, rounds=rounds)
        return
    weight_sizes = model.file.compute_weight_footprint()
    # The reference needs memory for a second copy of the stored weights.
    check_free_memory(
        str(model.path),
        weight_sizes.stored_bytes,
        weight_sizes.stored_bytes,
        weight_sizes.element_count,
    )
    comparison = _ReferenceComparison.from_model(model)
    coverage = SubgraphCoverage.from_model(model)
    compared_sizes = []
    for sizes, inputs in iterate_verification_inputs(
        model, coverage, seed, rounds, sample_inputs, max_lengths
    ):
        yield comparison.compare_round(sizes, inputs)
        compared_sizes.append(sizes)
    yield from coverage.iterate_uncovered_cases(comparison.graph, compared_sizes, max_lengths)
    if inconclusive := comparison.find_inconclusive_results():
        _raise_inconclusive(inconclusive)


@dataclass(kw_only=True)
class _ReferenceComparison:
    """A compiled model together with its float64 reference. `inconclusive_counts` maps each result
    to the number of rounds in which it is too sensitive to rounding. `compared_rounds` is the total
    number of rounds.
    """

    graph: Graph
    weights: Mapping[str, Array]
    weight_only_model: LoadedModel
    quantized_matmuls: QuantizedMatMulChecker
    half_dtype: str
    inconclusive_counts: Counter[str] = field(default_factory=Counter)
    compared_rounds: int = 0

    @classmethod
    def from_model(cls, model: LoadedModel) -> "_ReferenceComparison":
        graph = model.manifest.graph
        return cls(
            graph=graph,
            weights=model.weights(),
            weight_only_model=model.without_activation_quantization(),
            quantized_matmuls=QuantizedMatMulChecker.from_model(model),
            half_dtype=find_half_precision_dtype(graph),
        )

    def find_inconclusive_results(self) -> list[str]:
        """Return the results that are too sensitive to rounding errors in at least half of the
        rounds.
        """
        return sorted(
            name
            for name, count in self.inconclusive_counts.items()
            if 2 * count >= self.compared_rounds
        )

    def compare_round(
        self, sizes: Mapping[str, int], inputs: Mapping[str, Array]
    ) -> VerificationRound:
        """Compare all results of the model with those of the reference. Raise E0930, E0855 or
        E0980.
        """
        results = self.weight_only_model.session.run(inputs)
        result_hook = make_kv_cache_rounding_hook(self.graph, results, self.weights)
        reference_results = backend.load_reference_backend().evaluate_graph(
            self.graph, inputs, self.weights, result_hook=result_hook
        )
        expected = {name: np.asarray(value) for name, value in reference_results.items()}
        self.compared_rounds += any(value.size for value in expected.values())
        differences, max_error = compare_results(results, expected)
        mismatches = {n: d for n, d in differences.items() if d.description}
        sizes_text, inconclusive = format_axis_sizes(sizes), set[str]()
        if self.half_dtype:
            errors = HalfPrecisionErrorEstimator(
                graph=self.graph, inputs=inputs, weights=self.weights, expected=expected
            )
            note = _check_half_rounding(errors, results, differences, sizes_text)
        elif not mismatches:
            note = self.quantized_matmuls.compare_matmuls(inputs, sizes_text)
        else:
            # Error bounds are computed only if results differ, because their computation evaluates
            # the reference several times.
            _check_float32_overflow(self.graph, inputs, self.weights)
            run_perturbed = make_perturbed_evaluator(self.graph, inputs, self.weights, result_hook)
            inconclusive, note = _explain_by_rounding(
                mismatches, results, expected, run_perturbed, sizes_text
            )
        self.inconclusive_counts.update(inconclusive)
        return VerificationRound(
            sizes=sizes,
            is_within_tolerance=None if inconclusive else True,
            result_count=len(differences),
            max_error=max_error,
            note=note,
        )


def _explain_by_rounding(
    mismatches: Mapping[str, ResultDifference],
    results: Mapping[str, Array],
    expected: Mapping[str, Array],
    run_perturbed: PerturbedRun,
    sizes_text: str,
) -> tuple[set[str], str]:
    """Return the names of results that are too sensitive to rounding errors, and a note about
    differences that float32 rounding errors explain. Raise E0930 for any other difference.
    """
    bounds = compute_position_error_bounds(run_perturbed, expected)
    relative_bounds = {n: _compute_relative_bound(expected[n], bounds[n]) for n in mismatches}
    for name, difference in mismatches.items():
        result = np.asarray(results[name])
        if not is_rounding_difference(run_perturbed, name, result, expected[name], bounds[name]):
            explanation = f"float32 rounding explains up to {relative_bounds[name]:.1e} here"
            notes = [*difference.notes, explanation, sizes_text]
            raise_error("E0930", difference.description, notes=notes)
    inconclusive = {n for n in mismatches if not is_error_bound_tight(expected[n], bounds[n])}
    name = max(inconclusive or mismatches, key=lambda n: relative_bounds[n])
    size, relative_bound = mismatches[name].relative_size, relative_bounds[name]
    if not inconclusive:
        return inconclusive, f", of which float32 rounding explains {relative_bound:.1e}"
    return inconclusive, (
        f"ill-conditioned: `{name}` differs by {size:.1e}, and changes by up to "
        f"{relative_bound:.1e} when values are rounded to float32"
    )


def _check_float32_overflow(
    graph: Graph, inputs: Mapping[str, Array], weights: Mapping[str, Array]
) -> None:
    """Raise E0980 if a value, or the square of a value in a norm, exceeds the range of float32."""
    max_magnitudes: dict[Value, float] = {}

    def check_value(value: Value, array: Array) -> Array:
        if array.dtype.kind == "f":
            magnitudes = np.abs(array[np.isfinite(array)])
            max_magnitudes[value] = float(magnitudes.max(initial=0))
        if max_magnitudes.get(value, 0) > MAX_FLOAT32:
            raise_overflow_error(graph, value, max_magnitudes[value])
        node = value.node
        if node and isinstance(node.op, ops.RMSNorm | ops.LayerNorm | ops.GroupNorm):
            operand = node.get_operand()
            if max_magnitudes.get(operand, 0) ** 2 > MAX_FLOAT32:
                use = ", and the norm sums its square"
                raise_overflow_error(graph, operand, max_magnitudes[operand], use)
        return array

    backend.load_reference_backend().evaluate_graph(graph, inputs, weights, result_hook=check_value)


def _compute_relative_bound(expected: Array, error_bound: Array) -> float:
    """Return the largest error bound relative to the largest magnitude of the expected result."""
    max_bound = float(error_bound.max(initial=0))
    return max_bound if expected.dtype.kind in "iub" else max_bound / get_max_magnitude(expected)


def _check_half_rounding(
    rounding_errors: HalfPrecisionErrorEstimator,
    results: Mapping[str, Array],
    differences: Mapping[str, ResultDifference],
    sizes_text: str,
) -> str:
    """Return a note about the errors of results that the model computes in a 16-bit float type.
    Raise E0930 if 16-bit rounding errors do not explain a difference, and E0980 if a value is out
    of range.
    """
    for name, difference in differences.items():
        rounding_note = rounding_errors.describe_excess_error(name, np.asarray(results[name]))
        if difference.description and rounding_note:
            notes = [*difference.notes, rounding_note, sizes_text]
            raise_error("E0930", difference.description, notes=notes)
    max_error = max((x.max(initial=0.0) for x in rounding_errors.changes.values()), default=0.0)
    return f", of which {find_half_precision_dtype(rounding_errors.graph)} explains {max_error:.1e}"


def _raise_inconclusive(names: list[str]) -> NoReturn:
    """Raise E0932 because the results `names` are too sensitive to rounding errors."""
    results = ", ".join(f"`{n}`" for n in names)
    raise_error(
        "E0932",
        f"{results}: too sensitive to rounding to be compared",
        notes=[
            "even in float64, perturbing every value by the size of a float32 rounding error "
            f"changes most positions by more than {MAX_INFORMATIVE_BOUND:g} of the largest value"
        ],
        helps=["check for differences of nearly equal values, and for very large values"],
    )


def verify_model(model: InferenceModel, *, seed: int, rounds: int) -> Iterator[VerificationRound]:
    """Yield the verification rounds of a model file or of all graphs of a package. Raise E0930 if a
    result differs, and E0932 if a result is too sensitive to rounding.
    """
    package, graph = model.package, model.graph
    if package is None and (package := _open_package_of_step(model)):
        graph = "step"
    if package is None:
        return _verify_single_file(model.selected_model, seed, rounds)
    return verify_package(package, graph=graph, provider=model.provider, seed=seed, rounds=rounds)


def _verify_single_file(model: LoadedModel, seed: int, rounds: int) -> Iterator[VerificationRound]:
    """Yield the verification rounds of a model file. A decode step is compared only as part of its
    package.
    """
    is_generator = model.manifest.decoding is not None
    if is_generator or model.raw_session.inputs.keys() <= model.manifest.graph.inputs.keys():
        return verify_graph(model, seed=seed, rounds=rounds)
    reason = "the model writes to buffers that only its package describes"
    return iter((make_skipped_verification_round(reason),))


def _open_package_of_step(model: InferenceModel) -> ModelPackage | None:
    """Open the package that contains `model` as its decode step, or return None."""
    directory = model.path.parent
    if not is_package_directory(directory):
        return None
    if read_package_index(directory).graphs.get("step") != model.path.name:
        return None
    return open_package(directory, verify_contents=model.verify_contents)


def verify_package(
    package: ModelPackage, *, graph: str = "", provider: str = "cpu", seed: int = 0, rounds: int = 3
) -> Iterator[VerificationRound]:
    """Yield the verification rounds of all graphs of a package, or only of the graph with the role
    `graph`. Skip graphs without a manifest. Raise E0930 at the first difference.
    """
    for role in (package.resolve_graph_name(graph),) if graph else package.graph_names:
        if not package.has_manifest(role):
            reason = "the model has no specc metadata"
            yield make_skipped_verification_round(reason, graph=escape_text(role))
            continue
        model = package.load_graph(role, provider=provider)
        if role == "step" and package.index.metadata:
            sample_inputs, max_lengths, step = _make_generation_sampler(package, model)
            rounds_of_graph = verify_graph(
                replace(model, manifest=replace(model.manifest, graph=step)),
                seed=seed,
                rounds=rounds,
                sample_inputs=sample_inputs,
                max_lengths=max_lengths,
            )
        elif find_past_key_value_states(model.manifest.graph):
            sample_inputs = make_step_input_sampler(model.weights())
            rounds_of_graph = verify_graph(
                model, seed=seed, rounds=rounds, sample_inputs=sample_inputs
            )
        else:
            rounds_of_graph = verify_graph(model, seed=seed, rounds=rounds)
        for verification_round in rounds_of_graph:
            yield replace(verification_round, graph=escape_text(role))


def _make_generation_sampler(
    package: ModelPackage, model: LoadedModel
) -> tuple[SampleInputs, dict[str, int], Graph]:
    """Return a sampler of realistic decode step inputs, the maximum axis sizes of the inputs, and
    the step graph with the minimum axis sizes of the encoder graph.
    """
    step = model.manifest.graph
    facts = parse_generation_metadata(package.index.metadata, step, str(package.path))
    has_encoder = "encode" in package.graph_names
    encoder = package.load_graph("encode", provider=model.provider) if has_encoder else None
    weights = encoder.weights() if encoder else {}
    graph = encoder.manifest.graph if encoder else None
    sampler = StepInputSampler(facts, model.weights(), graph, weights)
    if graph is not None:
        step = replace(step, min_lengths={**step.min_lengths, **find_min_lengths(graph)})
    return sampler.sample_step_inputs, sampler.get_max_lengths(step), step
