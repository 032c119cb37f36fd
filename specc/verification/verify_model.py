"""Verify a compiled model, or every graph of a package, on random inputs of several sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from specc import backend
from specc.artifact.generation_facts import parse_generation_facts as load_facts
from specc.artifact.package_index import is_package_directory, read_index
from specc.diagnostics.diagnostic import raise_error
from specc.io.memory_check import check_free_memory
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.model_package import ModelPackage, open_package
from specc.runtime.open_model import OpenedModel
from specc.runtime.random_inputs import (
    SampleInputs,
    StepInputSampler,
    find_exported_states,
    make_step_sampler,
)
from specc.verification.length_coverage import find_skipped_lengths
from specc.verification.planned_rounds import planned_inputs
from specc.verification.quantization_error import reference_cache_values
from specc.verification.quantized_matmul_check import QuantizedProducts
from specc.verification.rounding_errors import MAX_EXPLAINED_RATIO as HALF_EXPLAINED
from specc.verification.rounding_errors import (
    Sample,
    half_format_of,
    half_rounding_error,
    is_rounding_difference,
    make_rounding_sample,
    rounding_bounds,
)
from specc.verification.subgraph_coverage import Coverage
from specc.verification.tolerance import (
    MAX_INFORMATIVE_BOUND,
    RELATIVE_TOLERANCE,
    ResultDifference,
    VerificationRound,
    compare_result,
    format_lengths,
    is_informative,
    largest_value,
    uncovered_round,
)
from specc.verification.verify_generation import iterate_generated_rounds


def iterate_rounds(
    model: LoadedModel,
    *,
    seed: int = 0,
    rounds: int = 3,
    draw: SampleInputs | None = None,
    most: Mapping[str, int] | None = None,
) -> Iterator[VerificationRound]:
    """Yield each round. E0930 at the first output beyond the tolerance.

    A model with quantized weights is compared without activation quantization, with its dequantized
    weights; and each of its products with an integer one, E0855. More rounds follow for branches
    and loop bodies not executed yet; the last names those left, and lengths that are too
    expensive. E0932 at the end if rounding decides a result in half of the rounds or more.

    `draw` replaces random inputs, `most` bounds lengths that the graph does not.
    """
    if model.manifest.decoding is not None:
        yield from iterate_generated_rounds(model, seed=seed, rounds=rounds)
        return
    room = model.file.measure_weights()
    # The reference holds another copy of the stored weights.
    check_free_memory(str(model.path), room.stored_bytes, room.stored_bytes, room.element_count)
    comparison, coverage = _Comparison.of(model), Coverage.of(model)
    compared = []
    for sizes, inputs in planned_inputs(model, coverage, seed, rounds, draw, most):
        yield comparison.compare_round(sizes, inputs)
        compared.append(sizes)
    skipped = find_skipped_lengths(comparison.graph, compared, most)
    if coverage.missing or skipped:
        yield uncovered_round(coverage.missing, skipped)
    if undecided := comparison.find_undecided_results():
        _fail_undecided(undecided)


@dataclass(kw_only=True)
class _Comparison:
    """A model and its reference; `inconclusive` counts the rounds in which rounding decides a
    result, of `rounds` that compared it.
    """

    graph: Graph
    weights: Mapping[str, Array]
    exact: LoadedModel
    whole: QuantizedProducts
    half: str
    inconclusive: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    @classmethod
    def of(cls, model: LoadedModel) -> "_Comparison":
        graph = model.manifest.graph
        return cls(
            graph=graph,
            weights=model.weights(),
            exact=model.with_weight_only_quantization(),
            whole=QuantizedProducts.of(model),
            half=half_format_of(graph),
        )

    def find_undecided_results(self) -> list[str]:
        """Return the results that rounding decides in at least half of the rounds."""
        return sorted(name for name, count in self.inconclusive.items() if 2 * count >= self.rounds)

    def compare_round(
        self, sizes: Mapping[str, int], inputs: Mapping[str, Array]
    ) -> VerificationRound:
        """Compare all results for these inputs. E0930, E0855 and E0980."""
        got = self.exact.session.run(inputs)
        after = reference_cache_values(self.graph, got, self.weights)
        made = backend.load_reference().evaluate_graph(
            self.graph, inputs, self.weights, result_hook=after
        )
        want = {name: np.asarray(value) for name, value in made.items()}
        self.rounds += any(value.size for value in want.values())
        apart = {n: compare_result(n, np.asarray(got[n]), x) for n, x in want.items()}
        worst = max((d.size for d in apart.values()), default=0.0)
        found = VerificationRound(sizes=sizes, results=len(apart), worst=worst)
        wrong = {n: d for n, d in apart.items() if d.what}
        if self.half:
            note = _in_half(self.half, self.graph, inputs, self.weights, want, apart)
            return replace(found, note=note)
        if not wrong:
            return replace(found, note=self.whole.compare_run(inputs, format_lengths(sizes)))
        # only now, because it runs the reference several times more
        sample = make_rounding_sample(self.graph, inputs, self.weights, after)
        inconclusive, note = _explained(wrong, got, want, sample, format_lengths(sizes))
        self.inconclusive.update(inconclusive)
        return replace(found, agrees=None if inconclusive else True, note=note)


def _explained(
    wrong: Mapping[str, ResultDifference],
    got: Mapping[str, Array],
    want: Mapping[str, Array],
    sample: Sample,
    sizes: str,
) -> tuple[set[str], str]:
    """Return the results with uninformative bounds, and a note on differences that float32 rounding
    explains. E0930 for one that it does not.
    """
    bounds = rounding_bounds(sample, want)
    moves = {n: _format_share(want[n], bounds[n]) for n in wrong}
    for name, difference in wrong.items():
        result = np.asarray(got[name])
        if not is_rounding_difference(sample, name, result, want[name], bounds[name]):
            explained = f"float32 rounding explains up to {moves[name]:.1e} here"
            notes = [*difference.notes, explained, sizes]
            raise_error("E0930", difference.what, notes=notes)
    inconclusive = {n for n in wrong if not is_informative(want[n], bounds[n])}
    name = max(inconclusive or wrong, key=lambda n: moves[n])
    size, own = wrong[name].size, moves[name]
    if not inconclusive:
        return inconclusive, f", of which float32 rounding explains {own:.1e}"
    return inconclusive, (
        f"ill-conditioned: `{name}` differs by {size:.1e}, and moves by up to {own:.1e} "
        "when values are rounded to float32"
    )


def _format_share(want: Array, bound: Array) -> float:
    """Return the maximum bound relative to the maximum value."""
    most = float(bound.max(initial=0))
    return most if want.dtype.kind in "iub" else most / largest_value(want)


def _in_half(
    half: str,
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    want: Mapping[str, Array],
    apart: Mapping[str, ResultDifference],
) -> str:
    """Return the note on results computed in 16 bits. E0930 for a difference beyond their rounding,
    E0980 for a value out of range.
    """
    moved = half_rounding_error(graph, inputs, weights, want)
    for name, difference in apart.items():
        most = max(RELATIVE_TOLERANCE, HALF_EXPLAINED * moved[name])
        if difference.size > most:
            lost = f"rounding to {half} makes {moved[name]:.1e} of it"
            raise_error("E0930", difference.what, notes=[*difference.notes, lost])
    most = max(moved.values(), default=0.0)
    return f", of which {half} explains {most:.1e}"


def _fail_undecided(names: list[str]) -> NoReturn:
    """Raise E0932: neither an agreement nor a difference."""
    results = ", ".join(f"`{n}`" for n in names)
    raise_error(
        "E0932",
        f"{results}: too sensitive to rounding to be compared",
        notes=[
            f"in float64 itself more than {MAX_INFORMATIVE_BOUND:g} of the largest value changes "
            "at most positions when every value changes by as much as float32 rounding "
            "may change it"
        ],
        helps=[
            "look for a difference of nearly equal numbers, or for numbers of a very large size"
        ],
    )


def iterate_opened_rounds(
    opened: OpenedModel, *, seed: int, rounds: int
) -> Iterator[VerificationRound]:
    """Compare everything that can be: E0930 at a difference, E0932 where rounding decides."""
    package, graph = opened.package, opened.graph
    if package is None and (package := _package_of_step(opened)):
        graph = "step"
    if package is None:
        return _rounds_alone(opened.default_model, seed, rounds)
    return iterate_package_rounds(
        package, graph=graph, provider=opened.provider, seed=seed, rounds=rounds
    )


def _rounds_alone(model: LoadedModel, seed: int, rounds: int) -> Iterator[VerificationRound]:
    """Yield the rounds of a single file. A step without its package has inputs that its graph does
    not declare.
    """
    decodes = model.manifest.decoding is not None
    if decodes or model.runtime.inputs.keys() <= model.manifest.graph.inputs.keys():
        return iterate_rounds(model, seed=seed, rounds=rounds)
    why = "it writes to buffers that only its package describes"
    return iter(
        (VerificationRound(compared=False, agrees=None, note=f"not compared, because {why}"),)
    )


def _package_of_step(opened: OpenedModel) -> ModelPackage | None:
    """Return the package whose step is this file, or None. Its index declares buffers and input
    bounds.
    """
    directory = opened.path.parent
    if not is_package_directory(directory):
        return None
    if read_index(directory).graphs.get("step") != opened.path.name:
        return None
    return open_package(directory, verify_contents=opened.verify_contents)


def iterate_package_rounds(
    package: ModelPackage, *, graph: str = "", provider: str = "cpu", seed: int = 0, rounds: int = 3
) -> Iterator[VerificationRound]:
    """Compare the graphs that have a manifest, round by round. E0930 at the first difference."""
    for role in (package.resolve_role(graph),) if graph else package.roles:
        if not package.has_manifest(role):
            why = "not compared, because it has no description"
            yield VerificationRound(graph=escape_text(role), compared=False, agrees=None, note=why)
            continue
        model = package.load_graph(role, provider=provider)
        if role == "step" and package.index.metadata:
            draw, most = _as_written(package, model)
            found = iterate_rounds(model, seed=seed, rounds=rounds, draw=draw, most=most)
        elif find_exported_states(model.manifest.graph):
            draw = make_step_sampler(model.weights())
            found = iterate_rounds(model, seed=seed, rounds=rounds, draw=draw)
        else:
            found = iterate_rounds(model, seed=seed, rounds=rounds)
        for one in found:
            yield replace(one, graph=escape_text(role))


def _as_written(package: ModelPackage, model: LoadedModel) -> tuple[SampleInputs, dict[str, int]]:
    """Return a sampler of step inputs as in generation, and their maximum lengths."""
    step = model.manifest.graph
    facts = load_facts(package.index.metadata, step, str(package.path))
    encode = package.load_graph("encode") if "encode" in package.roles else None
    weights = encode.weights() if encode else {}
    graph = encode.manifest.graph if encode else None
    prior = StepInputSampler(facts, model.weights(), graph, weights)
    return prior.sample, prior.get_max_lengths(step)
