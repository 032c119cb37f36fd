"""A spec of two graphs with shared weights, compiled to a package."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specc.artifact.manifest import METADATA_KEY, Manifest
from specc.backend import EmittedModel, MetadataBuilder, PackageGraph, PackageMetadata, WriteResult
from specc.driver import preprocessing_section
from specc.driver import weight_sources as loading
from specc.driver.compile_model_and_graph_selection import compile_model
from specc.driver.compile_options import CompileOptions
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.driver.weights_section_and_load_transforms import (
    list_model_parameters,
    read_weight_rules,
)
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_to_graph import create_context, evaluate_and_check_config
from specc.ir.graph import Graph
from specc.ir.model_definition import ModelDefinition
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.runtime.model_package import ModelPackage
from specc.runtime.package_integrity import read_package_file
from specc.weights.parameter_sources import ParameterSource, RandomInitWeights
from specc.weights.weight_rules_and_initializers import resolve_weight_ties
from specc_onnx import get_target, write_package

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
SHARED_SIZES = {"words.weight": 11 * 8, "norm.weight": 8, "norm.bias": 8}
ALL_SIZES = {**SHARED_SIZES, "out.weight": 24, "out.bias": 3, "more.weight": 64, "more.bias": 8}
"""Number of values of each parameter."""


@cache
def elaborate_pair() -> tuple[LoadedSpec, Mapping[str, ModelDefinition]]:
    """Return the spec and its two graphs, elaborated once."""
    with TemporaryDirectory() as directory:
        source = Path(directory) / "pair.specc"
        source.write_text(SPEC, encoding="utf-8")
        spec = open_spec(str(source))
    return spec, {name: elaborate_spec(spec, name) for name in ("score", "encode")}


def build_manifest_text(
    model: ModelDefinition,
    graph: Graph,
    preprocessing: PreprocessingConfig,
    sources: Mapping[str, str],
    weights: Mapping[str, Any],
) -> MetadataBuilder:
    """Return the manifest of a compiled graph."""

    def built(emitted_model: EmittedModel) -> dict[str, str]:
        held = {n: emitted_model.initializer_names[n] for n in graph.parameters}
        manifest = Manifest(
            name=model.name,
            doc=model.doc,
            graph=graph,
            defaults=model.defaults,
            preprocessing=preprocessing,
            config=model.config,
            generation=None,
            sources=sources,
            weights=weights,
            initializers=held,
            target="onnx",
            opset=23,
            attentions=emitted_model.attention_weight_locations,
        )
        return {METADATA_KEY: manifest.serialize()}

    return built


def write_pair_package(
    directory: Path,
    seed: int = 0,
    graphs: tuple[str, ...] = ("score", "encode"),
    weights: str = "",
    **options: Any,
) -> WriteResult:
    """Write the graphs as a package, with random weights or those of a checkpoint."""
    directory.parent.mkdir(exist_ok=True)
    spec, found = elaborate_pair()
    models = {name: found[name] for name in graphs}
    values = bind_pair_weights(spec, [m.graph for m in models.values()], seed, weights)
    parts = {}
    for name, model in models.items():
        preprocessing = preprocessing_section.build_preprocessing_config(spec.program, model)
        build_metadata = build_manifest_text(
            model, model.graph, preprocessing, {}, {} if weights else {"seed": seed}
        )
        parts[name] = PackageGraph(model.graph, f"{name}.onnx", build_metadata)
    metadata = options.pop(
        "metadata", PackageMetadata("pair", {"growing": "ids"}, {"pair.specc": SPEC})
    )
    return write_package(
        parts, directory, values, target=get_target("onnx"), metadata=metadata, **options
    )


def bind_pair_weights(
    spec: LoadedSpec, graphs: list[Graph], seed: int, weights: str
) -> ParameterSource:
    """Return the weights of all graphs together."""
    wanted = {w.name: w for graph in graphs for w in list_model_parameters(graph)}
    context = create_context(spec.program)
    config = evaluate_and_check_config(context, spec.program, spec.config_options)
    rules = read_weight_rules(
        spec.program, LexicalScope(context=context, module=spec.program.module, config=config)
    )
    if weights:
        return loading.bind_checkpoint(list(wanted.values()), rules, weights)
    facts = {n: f for graph in graphs for n, f in graph.parameter_facts.items()}
    return RandomInitWeights(
        seed,
        wanted,
        {n: f.initializer for n, f in facts.items()},
        resolve_weight_ties(wanted, rules),
    )


def write_single_graph(directory: Path, graph: str, seed: int = 0) -> Path:
    """Write one of the graphs as a model in a single file."""
    source = directory / "pair.specc"
    source.write_text(SPEC, encoding="utf-8")
    path = directory / f"{graph}-single.onnx"
    options = CompileOptions(output=str(path), init=seed, target="onnx", graph=graph)
    compile_model(open_spec(str(source)), options)
    return path


def read_extra_file(package: ModelPackage, role: str) -> bytes:
    """Return the content of an extra file after a hash check."""
    name = package.index.extras[role]
    return read_package_file(package.path, name, package.index.files[name])
