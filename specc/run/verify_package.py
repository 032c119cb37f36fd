"""`specc verify` of a package: each of its graphs, a step behind a first part of a text
that `encode` and the step itself have seen.
"""

from collections.abc import Iterator
from dataclasses import replace

from specc.artifact.facts import load as load_facts
from specc.artifact.index import is_package, read_index
from specc.files.read import shown
from specc.run.loaded import Loaded
from specc.run.opened import Opened
from specc.run.package import Package, open_package
from specc.run.prior import Prior, draw_behind_a_text, states_by_name
from specc.run.rounds import Round
from specc.run.verify import Draw, rounds_of


def verify_opened(opened: Opened, *, seed: int, rounds: int) -> Iterator[str]:
    """A line a round of all that can be compared."""
    return (str(one) for one in rounds_opened(opened, seed=seed, rounds=rounds))


def rounds_opened(opened: Opened, *, seed: int, rounds: int) -> Iterator[Round]:
    """What each round of all that can be compared found. E0930 at the first difference,
    E0932 where rounding decides.
    """
    package, graph = opened.package, opened.graph
    if package is None and (package := _package_of_step(opened)):
        graph = "step"
    if package is None:
        return _rounds_alone(opened.whole, seed, rounds)
    return rounds_packaged(
        package,
        graph=graph,
        provider=opened.provider,
        seed=seed,
        rounds=rounds,
    )


def _rounds_alone(model: Loaded, seed: int, rounds: int) -> Iterator[Round]:
    """What each round of a single file found. A step that was taken out of its package
    has inputs that its graph does not tell of.
    """
    decodes = model.manifest.decodes is not None
    if decodes or model.runtime.inputs.keys() <= model.manifest.graph.inputs.keys():
        return rounds_of(model, seed=seed, rounds=rounds)
    why = "it writes into buffers, which only the package tells of that it was made for"
    return iter(
        (Round(compared=False, agrees=None, note=f"not compared, because {why}"),)
    )


def _package_of_step(opened: Opened) -> Package | None:
    """The package that a file is the step of; None for any other. Only its index says
    which states are buffers, and what a step may be given.
    """
    folder = opened.path.parent
    if not is_package(folder):
        return None
    if read_index(folder).graphs.get("step") != opened.path.name:
        return None
    return open_package(folder, contents=opened.contents)


def verify_package(
    package: Package, *, graph: str = "", seed: int = 0, rounds: int = 3
) -> Iterator[str]:
    """A line a graph and round, of `rounds_packaged` the same."""
    found = rounds_packaged(package, graph=graph, seed=seed, rounds=rounds)
    return (str(one) for one in found)


def rounds_packaged(
    package: Package,
    *,
    graph: str = "",
    provider: str = "cpu",
    seed: int = 0,
    rounds: int = 3,
) -> Iterator[Round]:
    """What each graph and round found, of the graphs that have a manifest. E0930 at the
    first difference.
    """
    for role in (package.role(graph),) if graph else package.roles:
        if not package.described(role):
            why = "not compared, because it does not say what it computes"
            yield Round(graph=shown(role), compared=False, agrees=None, note=why)
            continue
        model = package.load(role, provider=provider)
        if role == "step" and package.index.about:
            draw, most = _as_written(package, model)
            found = rounds_of(model, seed=seed, rounds=rounds, draw=draw, most=most)
        elif states_by_name(model.manifest.graph):
            draw = draw_behind_a_text(model.weights())
            found = rounds_of(model, seed=seed, rounds=rounds, draw=draw)
        else:
            found = rounds_of(model, seed=seed, rounds=rounds)
        for one in found:
            yield replace(one, graph=shown(role))


def _as_written(package: Package, model: Loaded) -> tuple[Draw, dict[str, int]]:
    """How inputs of a step are made that writing would give it, and how long they may be."""
    step = model.manifest.graph
    facts = load_facts(package.index.about, step, str(package.path))
    encode = package.load("encode") if "encode" in package.roles else None
    weights = encode.weights() if encode else {}
    graph = encode.manifest.graph if encode else None
    prior = Prior(facts, model.weights(), graph, weights)
    return prior.draw, prior.most(step)
