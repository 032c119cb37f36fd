"""Built-in specs in an export profile: graphs for the reference, ONNX Runtime sessions, packages, and the inputs and
outputs that Optimum's model classes use.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc_numpy
from specc.backend import ExtraFile, PackageGraph, PackageMetadata
from specc.driver import weight_sources as loading
from specc.driver.genai_config_and_export_profiles import RETURNED_LOGITS, apply_export_profile
from specc.driver.hf_decoder_profile import ExportedGraphs
from specc.driver.weights_section_and_load_transforms import list_model_parameters
from specc.ir.graph import Graph
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.weight_rules_and_initializers import WeightRules
from specc_onnx import build_model, get_target, write_package
from support.derived_graphs import derive_encoder_and_step
from support.elaborated_specs import (
    Arrays,
    ElaboratedSpec,
    elaborate_with_config,
    sample_spec_weights,
)
from support.onnx_sessions import open_silent_session

Run = Callable[[str, Arrays], Mapping[str, NDArray[Any]]]
"""Runs one graph of a package: graph name and inputs to results by name."""


@dataclass(frozen=True)
class ProfiledModel:
    """A spec with random weights, and its derived graphs in an export profile."""

    spec: ElaboratedSpec
    weights: Arrays
    profiled: ExportedGraphs

    def run_reference(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs of one graph in float64."""
        graph = self.profiled.graphs[name]
        return specc_numpy.evaluate_graph(
            graph, inputs, {n: self.weights[n] for n in graph.parameters}
        )


def open_profiled_model(profile: str, spec: str, seed: int = 0, **sets: object) -> ProfiledModel:
    """Apply an export profile to a spec: `open_profiled_model("hf", "gpt2", layers=2)`.

    Raises E0752 if the profile does not support the model.
    """
    elaborated = elaborate_with_config(spec, **sets)
    generation = elaborated.model.generation
    assert generation
    derived_graphs = derive_encoder_and_step(
        elaborated.model.graph,
        generation.sequence_input,
        {generation.logits_output: RETURNED_LOGITS[profile]},
    )
    return ProfiledModel(
        elaborated,
        sample_spec_weights(elaborated, seed),
        apply_export_profile(profile, elaborated.model, derived_graphs),
    )


def vary_generated_tokens(model: ProfiledModel) -> ProfiledModel:
    """Return the model with scaled weights, so that it generates different tokens.

    With a tied embedding and weights of equal scale, the model would repeat each token.
    """
    tied = {n for rule in model.spec.rules.ties for n in (rule.name, rule.source)}
    scaled = {
        n: w * np.float32(0.3 if n in tied else 2 if w.ndim > 1 else 1)
        for n, w in model.weights.items()
    }
    return replace(model, weights=scaled)


class ProfiledSessions:
    """The graphs of a profile in ONNX Runtime, one session each."""

    def __init__(self, model: ProfiledModel, target: str = "ort-cpu") -> None:
        self.sessions: dict[str, Any] = {}
        self.names: dict[str, list[str]] = {}
        for name, graph in model.profiled.graphs.items():
            built = build_model(graph, get_target(target))
            for parameter, initializer in built.weights.items():
                initializer.raw_data = model.weights[parameter].astype("<f4").tobytes()
            self.sessions[name], self.names[name] = (
                open_silent_session(built.model),
                list(graph.outputs),
            )

    def run(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs of one graph by name."""
        feeds = {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in inputs.items()}
        return dict(
            zip(self.names[name], self.sessions[name].run(self.names[name], feeds), strict=True)
        )


def write_profiled_package(model: ProfiledModel, directory: Path, weights_as: str = "copy") -> Path:
    """Write the model as a package in `directory`, with its weights in a checkpoint next to it."""
    directory.parent.mkdir(exist_ok=True)
    checkpoint = directory.parent / f"{directory.name}.safetensors"
    write_safetensors(checkpoint, model.weights)
    # the file contains the parameters unchanged
    rules = WeightRules(model.spec.rules.ties, (), ())
    values = loading.bind_checkpoint(
        list_model_parameters(model.spec.model.graph), rules, str(checkpoint)
    )
    graphs = {
        name: PackageGraph(graph, f"{name}.onnx") for name, graph in model.profiled.graphs.items()
    }
    extras = [
        ExtraFile.from_json(name, content) for name, content in model.profiled.json_files.items()
    ]
    metadata = PackageMetadata(model.spec.model.name)
    write_package(
        graphs,
        directory,
        values,
        target=get_target("onnx"),
        metadata=metadata,
        weights_as=weights_as,
        extra_files=extras,  # type: ignore[arg-type]
    )
    return directory


def list_cache_names(names: list[str]) -> list[str]:
    """Return the names of KV caches in the order of the graph."""
    return [n for n in names if ".key" in n or ".value" in n]


def make_empty_caches(graph: Graph, batch: int) -> Arrays:
    """Return caches before the first token: [batch, heads, 0, features]."""
    caches = {}
    for name in list_cache_names(list(graph.inputs)):
        _, heads, _, features = graph.inputs[name].type.shape
        caches[name] = np.zeros((batch, heads.number or 0, 0, features.number or 0), np.float32)
    return caches


def run_decoder_only(
    run: Run, graph: Graph, ids: NDArray[Any], mask: NDArray[Any], chunks: list[int]
) -> Iterator[NDArray[Any]]:
    """Return the logits of each chunk of `ids`, as ORTModelForCausalLM runs it: full mask, caches
    by order.
    """
    past, at = make_empty_caches(graph, len(ids)), 0
    for count in chunks:
        inputs: Arrays = {
            "input_ids": ids[:, at : at + count],
            "attention_mask": mask[:, : at + count].astype(np.int64),
        }
        at += count
        outputs = run("model", {n: v for n, v in {**inputs, **past}.items() if n in graph.inputs})
        after = [outputs[n] for n in list_cache_names(list(graph.outputs))]
        past = dict(zip(list_cache_names(list(graph.inputs)), after, strict=True))
        yield outputs["logits"]


def run_encoder_decoder(
    run: Run,
    graphs: Mapping[str, Graph],
    source: NDArray[Any],
    mask: NDArray[Any],
    target: NDArray[Any],
    chunks: list[int],
) -> Iterator[NDArray[Any]]:
    """Return the logits of each chunk of `target`, as ORTModelForSeq2SeqLM runs it.

    It runs `decoder_model` once, keeps its encoder results, and continues with
    `decoder_with_past_model`.
    """
    seen = mask.astype(np.int64)
    inputs: Arrays = {"input_ids": source, "attention_mask": seen}
    hidden = run("encoder_model", inputs)["last_hidden_state"]
    at, own, cross = 0, [np.zeros(0)], [np.zeros(0)]
    for count in chunks:
        name = "decoder_model" if at == 0 else "decoder_with_past_model"
        graph = graphs[name]
        inputs = {
            "input_ids": target[:, at : at + count],
            "encoder_hidden_states": hidden,
            "encoder_attention_mask": seen,
        }
        if at:
            by_layer = [
                v for n in range(0, len(own), 2) for v in (*own[n : n + 2], *cross[n : n + 2])
            ]
            inputs |= dict(zip(list_cache_names(list(graph.inputs)), by_layer, strict=True))
        at += count
        made = run(name, {n: v for n, v in inputs.items() if n in graph.inputs})
        outputs = list_cache_names(list(graph.outputs))
        own = [made[n] for n in outputs if "encoder" not in n]
        if name == "decoder_model":
            cross = [made[n] for n in outputs if "encoder" in n]
        yield made["logits"]
