"""Where a graph's numbers come from: a seed, or the tensors of a file or folder; and
what a manifest says of that.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.artifact.external import Beside
from specc.compiler.adapter import open_adapter
from specc.compiler.rules import own_weights, rules_of, wanted_by, wanted_of
from specc.compiler.spec import Spec, others
from specc.elaborate.budget import deep
from specc.elaborate.context import Env
from specc.elaborate.model import context_of, requirements
from specc.files.json import plain
from specc.ir.graph import Graph
from specc.passes import pipeline
from specc.text.diagnostic import fail
from specc.weights.adapter import Adapted
from specc.weights.adapter_use import reached
from specc.weights.bind import bind
from specc.weights.checkpoint import open_weights
from specc.weights.fresh import Fresh
from specc.weights.rules import Rules, Wanted, of_graph, tied_pairs
from specc.weights.turned import as_they_lie, turned_in_files
from specc.weights.values import Binding, Seeded, Values


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where numbers are to come from: a checkpoint at `path`, with the `adapter` merged
    in and a head that it lacks drawn from the seed `missing`; or all from a seed `init`.
    """

    path: str = ""
    init: int | None = None
    missing: int | None = None
    adapter: str = ""


def values_of(spec: Spec, graph: Graph, sources: Sources) -> Binding | Seeded:
    """The numbers of the parameters: a checkpoint's, the spec's own file's, or a seed's.
    E0523 names the three.
    """
    context = context_of(spec.library)
    with deep(spec.program.module.file.span):
        config = requirements(context, spec.program, spec.reader)
    wanted = wanted_of(graph, config)
    env = Env(module=spec.program.module, config=config)
    rules = of_graph(
        rules_of(context, spec.program, env),
        {w.name: w for w in wanted},
        lambda: wanted_by(others(spec, graph.name)),
    )
    for number in (sources.init, sources.missing):
        _check_seed(number)
    if sources.init is not None:
        _check_alone(sources)
        return seeded(graph, wanted, rules, sources.init)
    path = sources.path or spec.checkpoint
    path = path or own_weights(spec.program, needed=True)
    if path:
        fresh = Fresh(sources.missing, _initials(graph), lambda: _body(spec, graph))
        modules = spec.modules if path == spec.checkpoint else {}
        return bound(wanted, rules, path, fresh, sources.adapter, modules)
    if wanted:
        fail(
            "E0523",
            f"nothing says where the weights of `{spec.program.name}` come from",
            helps=[
                "--weights FILE or DIR reads a checkpoint",
                '`weights { from "model.safetensors" }` in the spec names one beside it',
                "--init SEED draws random ones, to try the architecture",
            ],
        )
    # a model without parameters needs no numbers, whatever the seed
    return seeded(graph, wanted, rules, 0)


def _check_alone(sources: Sources) -> None:
    """E0525 for a seed of all weights beside anything else that gives some."""
    if sources.adapter:
        fail(
            "E0525",
            "an adapter belongs to trained weights, not to those of a seed",
            helps=["leave out --init, or --adapter"],
        )
    if sources.path:
        fail(
            "E0525",
            "weights come from a file or from a seed, not from both",
            helps=["leave out --weights or --init"],
        )
    if sources.missing is not None:
        fail(
            "E0525",
            "`--init` draws every weight, so that none is missing",
            helps=["leave out --init-missing, or --init and name a checkpoint"],
        )


def _check_seed(seed: int | None) -> None:
    if seed is not None and not 0 <= seed < 2**64:
        fail("E0525", f"the seed {seed} is no number from 0 to 2^64 - 1")


def _initials(graph: Graph) -> dict[str, str]:
    """How each parameter starts where no file gives it."""
    return {name: facts.initial for name, facts in graph.parameter_facts.items()}


def _body(spec: Spec, graph: Graph) -> frozenset[str]:
    """The parameters that every graph of a spec with several has."""
    names = [frozenset(other.parameters) for other in others(spec, graph.name)]
    if not names:
        return frozenset()
    return frozenset(graph.parameters).intersection(*names)


def seeded(graph: Graph, wanted: list[Wanted], rules: Rules, seed: int) -> Seeded:
    """Every parameter as its initializer and the seed make it."""
    by_name = {w.name: w for w in wanted}
    return Seeded(seed, by_name, _initials(graph), tied_pairs(by_name, rules))


def bound(
    wanted: list[Wanted],
    rules: Rules,
    path: str,
    fresh: Fresh | None = None,
    adapter: str = "",
    modules: Mapping[str, str] | None = None,
) -> Binding:
    """Every parameter matched with the tensors of a file or folder, into which the
    `adapter` of a folder is merged, or drawn as `fresh` says. `modules` are further
    folders by the prefix that their tensors get.
    """
    checkpoint = open_weights(path, modules or {})
    try:
        if adapter:
            checkpoint = Adapted(checkpoint, open_adapter(adapter))
        binding = bind(wanted, rules, checkpoint, fresh)
        return reached(binding) if isinstance(checkpoint, Adapted) else binding
    except BaseException:
        checkpoint.close()
        raise


def as_stored(graph: Graph, values: Binding | Seeded) -> tuple[Graph, Binding | Seeded]:
    """The graph reading matrices in the order that their file has them in, where products
    alone read them: they can stay there, and nothing has to be turned over.
    """
    if isinstance(values, Seeded):
        return graph, values
    made, names = pipeline.turned_over(graph, turned_in_files(values))
    return made, as_they_lie(values, names)


def facts_of(
    values: Values, seed: int | None, beside: Mapping[str, Beside], *, contents: bool
) -> dict[str, object]:
    """Where the numbers came from and where they are, for the manifest; with `contents`
    whole files are hashed, now and at every opening of the model.
    """
    facts = {
        **_origin(values, seed, contents),
        "beside": plain(beside),
    }
    return {**facts, "every_load": True} if contents else facts


def _origin(values: Values, seed: int | None, contents: bool) -> dict[str, object]:
    """The seed, or each file's size and header hash."""
    if not isinstance(values, Binding):
        return {} if seed is None else {"seed": seed}
    facts: list[dict[str, object]] = []
    for file in values.checkpoint.every_file:
        fact = {"name": file.path.name, "bytes": file.size, "header": file.header_hash}
        facts.append({**fact, "sha256": content_hash(file.path)} if contents else fact)
    origin: dict[str, object] = {
        "files": sorted(facts, key=lambda fact: str(fact["name"]))
    }
    if isinstance(values.checkpoint, Adapted):
        origin["adapted"] = sorted(values.checkpoint.computed)
    if (drawn := values.drawn) is not None:
        origin["drawn"] = {"seed": drawn.seed, "weights": sorted(drawn.wanted)}
    return origin


def content_hash(path: Path) -> str:
    """The SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
