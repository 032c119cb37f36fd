"""Shipped specs under the names of a profile: as graphs for the reference, in ONNX
Runtime, and as a package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc_numpy
from specc.backend import ExtraFile, PackageGraph, PackageMetadata
from specc.driver import weight_sources as loading
from specc.driver.profiles.export_profiles import RETURNED_LOGITS, apply_profile
from specc.driver.profiles.hf_decoder import ProfiledGraphs
from specc.driver.weights_section import required_parameters
from specc.incremental.derivation import derive_encoder_and_step
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.weight_rules import WeightRules
from specc_onnx import build_model, get_target, write_package
from support.onnx_runtime import open_quietly
from support.spec_models import Arrays, Opened, opened, random_weights


@dataclass(frozen=True)
class InProfile:
    """A spec with random weights, and its derived graphs as a profile names them."""

    spec: Opened
    weights: Arrays
    made: ProfiledGraphs

    def by_reference(self, name: str, given: Mapping[str, NDArray[Any]]) -> Arrays:
        """The results of one graph in float64."""
        graph = self.made.graphs[name]
        return specc_numpy.evaluate_graph(
            graph, given, {n: self.weights[n] for n in graph.parameters}
        )


def in_profile(profile: str, spec: str, seed: int = 0, **sets: object) -> InProfile:
    """`in_profile("hf", "gpt2", layers=2)`. Fails with E0752 where the profile cannot
    say the model.
    """
    found = opened(spec, **sets)
    generation = found.model.generation
    assert generation
    derived = derive_encoder_and_step(
        found.model.graph, generation.growing, {generation.source: RETURNED_LOGITS[profile]}
    )
    return InProfile(
        found, random_weights(found, seed), apply_profile(profile, found.model, derived)
    )


def lively(model: InProfile) -> InProfile:
    """The same with weights that write more than one word again and again.

    A table that is the head too, drawn as large as the rest, answers every word with
    itself.
    """
    tied = {n for rule in model.spec.rules.ties for n in (rule.name, rule.source)}
    louder = {
        n: w * np.float32(0.3 if n in tied else 2 if w.ndim > 1 else 1)
        for n, w in model.weights.items()
    }
    return replace(model, weights=louder)


class InSessions:
    """The graphs of a profile in ONNX Runtime, each opened once."""

    def __init__(self, model: InProfile, where: str = "ort-cpu") -> None:
        self.sessions: dict[str, Any] = {}
        self.names: dict[str, list[str]] = {}
        for name, graph in model.made.graphs.items():
            built = build_model(graph, get_target(where))
            for parameter, initializer in built.weights.items():
                initializer.raw_data = model.weights[parameter].astype("<f4").tobytes()
            self.sessions[name], self.names[name] = (open_quietly(built.model), list(graph.outputs))

    def run(self, name: str, given: Mapping[str, NDArray[Any]]) -> Arrays:
        """The results of one graph by name."""
        feeds = {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in given.items()}
        return dict(
            zip(self.names[name], self.sessions[name].run(self.names[name], feeds), strict=True)
        )


def written(model: InProfile, directory: Path, weights_as: str = "copy") -> Path:
    """The model as a package in `directory`, its weights by way of a checkpoint beside it."""
    directory.parent.mkdir(exist_ok=True)
    checkpoint = directory.parent / f"{directory.name}.safetensors"
    write_safetensors(checkpoint, model.weights)
    # the file has the parameters as they are
    plain = WeightRules(model.spec.rules.ties, (), ())
    values = loading.bind_checkpoint(
        required_parameters(model.spec.model.graph), plain, str(checkpoint)
    )
    parts = {name: PackageGraph(graph, f"{name}.onnx") for name, graph in model.made.graphs.items()}
    extras = [ExtraFile.of_data(name, content) for name, content in model.made.files.items()]
    about = PackageMetadata(model.spec.model.name)
    write_package(
        parts,
        directory,
        values,
        target=get_target("onnx"),
        about=about,
        weights_as=weights_as,
        extras=extras,  # type: ignore[arg-type]
    )
    return directory
