"""Apply an export profile to derived graphs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.compile_options import PROFILES
from specc.driver.profiles.genai_config import GENAI_FILE, build_genai_config
from specc.driver.profiles.hf_decoder import ProfiledGraphs, build_decoder
from specc.driver.profiles.hf_encoder_decoder import build_encoder_decoder
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.model import DerivedGraphs, ModelDefinition

RETURNED_LOGITS: Mapping[str, Literal["newest", "new"]] = {
    "specc": "newest",
    "hf": "new",
    "genai": "newest",
}
"""Logits that the step graph returns: the newest token's, or all new tokens' (`hf` readers)."""


def check_profile(profile: str) -> None:
    """Raise E0751 if the profile does not exist."""
    if profile not in PROFILES:
        raise_error(
            "E0751",
            f"unknown export profile `{escape_text(profile)}`",
            helps=suggest_similar_name(profile, PROFILES, f"profiles are {', '.join(PROFILES)}"),
        )


def apply_profile(profile: str, model: ModelDefinition, derived: DerivedGraphs) -> ProfiledGraphs:
    """Return the graphs of `derived` with the names and layouts that `profile` prescribes.

    `specc`: `encode` (if there is one) and `step`, unchanged. `hf`: `model`, or
    `encoder_model`, `decoder_model` and `decoder_with_past_model`. `genai`: `model` and
    `genai_config.json`. Raise E0751 for an unknown profile, E0752 if the profile cannot
    represent the model.
    """
    check_profile(profile)
    generation = model.generation
    assert generation is not None, f"{model.name} has no `generate` section"
    if profile == "specc":
        encode = {"encode": derived.encode} if derived.encode else {}
        return ProfiledGraphs({**encode, "step": derived.step}, derived.states)
    if profile == "hf" and derived.encode is not None:
        return _rename_graphs(build_encoder_decoder(derived, generation.source))
    graph, states = build_decoder(profile, derived, generation.source)
    if profile == "hf":
        return _rename_graphs(ProfiledGraphs({"model": graph}, states))
    files = {GENAI_FILE: build_genai_config(model, generation, graph, states, "model")}
    return _rename_graphs(ProfiledGraphs({"model": graph}, states, files))


def _rename_graphs(made: ProfiledGraphs) -> ProfiledGraphs:
    """Return the graphs, each named after its file."""
    named = {stem: Graph(**{**graph.__dict__, "name": stem}) for stem, graph in made.graphs.items()}
    return replace(made, graphs=named)
