"""Verify every graph of a package."""

from collections.abc import Iterator
from dataclasses import replace

from specc.artifact.generation_facts import parse_generation_facts as load_facts
from specc.artifact.package_index import is_package_directory, read_index
from specc.io.safe_read import escape_text
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.model_package import ModelPackage, open_package
from specc.runtime.open_model import OpenedModel
from specc.runtime.step_inputs import StepInputs, sample_step_inputs, states_by_name
from specc.verification.verification_round import VerificationRound
from specc.verification.verify_model import Draw, iterate_rounds


def verify_opened(opened: OpenedModel, *, seed: int, rounds: int) -> Iterator[str]:
    """A line a round of all that can be compared."""
    return (str(one) for one in iterate_opened_rounds(opened, seed=seed, rounds=rounds))


def iterate_opened_rounds(
    opened: OpenedModel, *, seed: int, rounds: int
) -> Iterator[VerificationRound]:
    """What each round of all that can be compared found. E0930 at the first difference,
    E0932 where rounding decides.
    """
    package, graph = opened.package, opened.graph
    if package is None and (package := _package_of_step(opened)):
        graph = "step"
    if package is None:
        return _rounds_alone(opened.whole, seed, rounds)
    return iterate_package_rounds(
        package, graph=graph, provider=opened.provider, seed=seed, rounds=rounds
    )


def _rounds_alone(model: LoadedModel, seed: int, rounds: int) -> Iterator[VerificationRound]:
    """What each round of a single file found. A step that was taken out of its package
    has inputs that its graph does not tell of.
    """
    decodes = model.manifest.decodes is not None
    if decodes or model.runtime.inputs.keys() <= model.manifest.graph.inputs.keys():
        return iterate_rounds(model, seed=seed, rounds=rounds)
    why = "it writes into buffers, which only the package tells of that it was made for"
    return iter(
        (VerificationRound(compared=False, agrees=None, note=f"not compared, because {why}"),)
    )


def _package_of_step(opened: OpenedModel) -> ModelPackage | None:
    """The package that a file is the step of; None for any other. Only its index says
    which states are buffers, and what a step may be given.
    """
    folder = opened.path.parent
    if not is_package_directory(folder):
        return None
    if read_index(folder).graphs.get("step") != opened.path.name:
        return None
    return open_package(folder, contents=opened.contents)


def verify_package(
    package: ModelPackage, *, graph: str = "", seed: int = 0, rounds: int = 3
) -> Iterator[str]:
    """A line a graph and round, of `iterate_package_rounds` the same."""
    found = iterate_package_rounds(package, graph=graph, seed=seed, rounds=rounds)
    return (str(one) for one in found)


def iterate_package_rounds(
    package: ModelPackage, *, graph: str = "", provider: str = "cpu", seed: int = 0, rounds: int = 3
) -> Iterator[VerificationRound]:
    """What each graph and round found, of the graphs that have a manifest. E0930 at the
    first difference.
    """
    for role in (package.role(graph),) if graph else package.roles:
        if not package.described(role):
            why = "not compared, because it does not say what it computes"
            yield VerificationRound(graph=escape_text(role), compared=False, agrees=None, note=why)
            continue
        model = package.load(role, provider=provider)
        if role == "step" and package.index.about:
            draw, most = _as_written(package, model)
            found = iterate_rounds(model, seed=seed, rounds=rounds, draw=draw, most=most)
        elif states_by_name(model.manifest.graph):
            draw = sample_step_inputs(model.weights())
            found = iterate_rounds(model, seed=seed, rounds=rounds, draw=draw)
        else:
            found = iterate_rounds(model, seed=seed, rounds=rounds)
        for one in found:
            yield replace(one, graph=escape_text(role))


def _as_written(package: ModelPackage, model: LoadedModel) -> tuple[Draw, dict[str, int]]:
    """How inputs of a step are made that writing would give it, and how long they may be."""
    step = model.manifest.graph
    facts = load_facts(package.index.about, step, str(package.path))
    encode = package.load("encode") if "encode" in package.roles else None
    weights = encode.weights() if encode else {}
    graph = encode.manifest.graph if encode else None
    prior = StepInputs(facts, model.weights(), graph, weights)
    return prior.draw, prior.most(step)
