"""Apply an export profile to derived graphs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.profiles import genai_config
from specc.driver.profiles.graph_replay import ProfiledGraphs
from specc.driver.profiles.hf_decoder import build_decoder
from specc.driver.profiles.hf_encoder_decoder import build_encoder_decoder
from specc.io.safe_read import escape_text
from specc.ir.derived_graphs import DerivedGraphs
from specc.ir.graph import Graph
from specc.ir.model import ModelDefinition

PROFILES = ("specc", "hf", "genai")
"""Ours, which every model has; that of Optimum and transformers.js; that of onnxruntime-genai."""

ROWS: Mapping[str, Literal["newest", "new"]] = {"specc": "newest", "hf": "new", "genai": "newest"}
"""Which rows of the logits `derive` is to give: readers of `hf` may look at all of the new ones."""


def check_profile(profile: str) -> None:
    """E0751 for a profile there is none of."""
    if profile not in PROFILES:
        raise_error(
            "E0751",
            f"there is no form of inputs and outputs called `{escape_text(profile)}`",
            helps=suggest_similar_name(profile, PROFILES, f"there are {', '.join(PROFILES)}"),
        )


def apply_profile(profile: str, model: ModelDefinition, derived: DerivedGraphs) -> ProfiledGraphs:
    """The graphs of `derived`, renamed and put together as the readers of `profile`
    want them.

    `specc`: `encode` (where there is one) and `step` as they are. `hf`: `model`, or
    `encoder_model`, `decoder_model` and `decoder_with_past_model`. `genai_config`: `model`,
    and `genai_config.json`. Fails with E0751 for an unknown profile, with E0752 where
    the model has something a profile has no place for.
    """
    check_profile(profile)
    generation = model.generation
    assert generation is not None, f"{model.name} does not say what it generates"
    if profile == "specc":
        encode = {"encode": derived.encode} if derived.encode else {}
        return ProfiledGraphs({**encode, "step": derived.step}, derived.states)
    if profile == "hf" and derived.encode is not None:
        return _named(build_encoder_decoder(derived, generation.source))
    graph, states = build_decoder(profile, derived, generation.source)
    if profile == "hf":
        return _named(ProfiledGraphs({"model": graph}, states))
    files = {
        genai_config.FILE: genai_config.build_genai_config(
            model, generation, graph, states, "model"
        )
    }
    return _named(ProfiledGraphs({"model": graph}, states, files))


def _named(made: ProfiledGraphs) -> ProfiledGraphs:
    """Graphs under the names of their files."""
    named = {stem: Graph(**{**graph.__dict__, "name": stem}) for stem, graph in made.graphs.items()}
    return replace(made, graphs=named)
