"""A spec of two graphs over shared weights, compiled to a package: what the tests of
packages share.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specc.artifact.manifest import KEY, Manifest
from specc.backend import About, Emitted, Part, Texts, Written
from specc.compiler import reading as readings
from specc.compiler import weights as loading
from specc.compiler.job import Options
from specc.compiler.model import compile_spec
from specc.compiler.rules import rules_of, wanted_of
from specc.compiler.spec import Spec, elaborated, open_spec
from specc.data.reading import Reading
from specc.elaborate.context import Env
from specc.elaborate.model import context_of, requirements
from specc.ir.graph import Graph
from specc.ir.model import Model
from specc.weights.rules import tied_pairs
from specc.weights.values import Seeded, Values
from specc_onnx import package_graphs, target

SPEC = """specc 1
model pair "Tags words, or gives their rows"
config { vocab: int = 11  d: int = 8 }
dims batch >= 1, seq >= 1
graph score(ids: int[batch, seq]) -> (tags: float[batch, seq, 3]) {
  x = embedding(ids, size=vocab, dim=d) @ words
  x = layer_norm(x, eps=1e-5) @ norm
  return linear(x, out=3) @ out
}
graph encode(ids: int[batch, seq]) -> (rows: float[batch, seq, d]) {
  x = embedding(ids, size=vocab, dim=d) @ words
  x = layer_norm(x, eps=1e-5) @ norm
  return linear(x, out=d) @ more
}
"""
SHARED = {"words.weight": 11 * 8, "norm.weight": 8, "norm.bias": 8}
ALL = {**SHARED, "out.weight": 24, "out.bias": 3, "more.weight": 64, "more.bias": 8}
"""How many numbers each parameter has."""


@cache
def elaborated_pair() -> tuple[Spec, Mapping[str, Model]]:
    """The spec and its two graphs, read once."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "pair.specc"
        source.write_text(SPEC, encoding="utf-8")
        spec = open_spec(str(source))
    return spec, {name: elaborated(spec, name) for name in ("score", "encode")}


def manifest_text(
    model: Model,
    graph: Graph,
    reading: Reading,
    sources: Mapping[str, str],
    weights: Mapping[str, Any],
) -> Texts:
    """The manifest of a graph, once it is built."""

    def made(emitted: Emitted) -> dict[str, str]:
        held = {n: emitted.held[n] for n in graph.parameters}
        manifest = Manifest(
            name=model.name,
            doc=model.doc,
            graph=graph,
            defaults=model.defaults,
            reading=reading,
            config=model.config,
            generation=None,
            sources=sources,
            weights=weights,
            stored=held,
            target="onnx",
            opset=23,
            attentions=emitted.attentions,
        )
        return {KEY: manifest.dump()}

    return made


def packed(
    folder: Path,
    seed: int = 0,
    graphs: tuple[str, ...] = ("score", "encode"),
    weights: str = "",
    **options: Any,
) -> Written:
    """The spec's graphs as a package, with random weights or those of a checkpoint."""
    folder.parent.mkdir(exist_ok=True)
    spec, found = elaborated_pair()
    models = {name: found[name] for name in graphs}
    values = values_of(spec, [m.graph for m in models.values()], seed, weights)
    parts = {}
    for name, model in models.items():
        reading = readings.reading_of(spec.program, model)
        metadata = manifest_text(
            model, model.graph, reading, {}, {} if weights else {"seed": seed}
        )
        parts[name] = Part(model.graph, f"{name}.onnx", metadata)
    about = options.pop(
        "about", About("pair", {"growing": "ids"}, {"pair.specc": SPEC})
    )
    return package_graphs(
        parts, folder, values, target=target("onnx"), about=about, **options
    )


def values_of(spec: Spec, graphs: list[Graph], seed: int, weights: str) -> Values:
    """The numbers of all graphs' parameters together."""
    wanted = {w.name: w for graph in graphs for w in wanted_of(graph)}
    context = context_of(spec.library)
    config = requirements(context, spec.program, spec.reader)
    rules = rules_of(
        context, spec.program, Env(module=spec.program.module, config=config)
    )
    if weights:
        return loading.bound(list(wanted.values()), rules, weights)
    facts = {n: f for graph in graphs for n, f in graph.parameter_facts.items()}
    return Seeded(
        seed,
        wanted,
        {n: f.initial for n, f in facts.items()},
        tied_pairs(wanted, rules),
    )


def single(folder: Path, graph: str, seed: int = 0) -> Path:
    """The same graph as a model of one file."""
    source = folder / "pair.specc"
    source.write_text(SPEC, encoding="utf-8")
    path = folder / f"{graph}-single.onnx"
    options = Options(output=str(path), init=seed, target="onnx", graph=graph)
    compile_spec(open_spec(str(source)), options)
    return path
