"""Derived graphs under the names of a profile: the one way in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from specc.compiler.profiles import genai
from specc.compiler.profiles.decoder import decoder
from specc.compiler.profiles.encoder_decoder import encoder_decoder
from specc.compiler.profiles.result import Dressed
from specc.files.read import shown
from specc.ir.derived import Derived
from specc.ir.graph import Graph
from specc.ir.model import Model
from specc.text.diagnostic import fail
from specc.text.suggest import suggest

PROFILES = ("specc", "hf", "genai")
"""Ours, which every model has; that of Optimum and transformers.js; that of onnxruntime-genai."""

ROWS: Mapping[str, Literal["newest", "new"]] = {
    "specc": "newest",
    "hf": "new",
    "genai": "newest",
}
"""Which rows of the logits `derive` is to give: readers of `hf` may look at all of the new ones."""


def check_profile(profile: str) -> None:
    """E0751 for a profile there is none of."""
    if profile not in PROFILES:
        fail(
            "E0751",
            f"there is no form of inputs and outputs called `{shown(profile)}`",
            helps=suggest(profile, PROFILES, f"there are {', '.join(PROFILES)}"),
        )


def dressed(profile: str, model: Model, derived: Derived) -> Dressed:
    """The graphs of `derived`, renamed and put together as the readers of `profile`
    want them.

    `specc`: `encode` (where there is one) and `step` as they are. `hf`: `model`, or
    `encoder_model`, `decoder_model` and `decoder_with_past_model`. `genai`: `model`,
    and `genai_config.json`. Fails with E0751 for an unknown profile, with E0752 where
    the model has something a profile has no place for.
    """
    check_profile(profile)
    generation = model.generation
    assert generation is not None, f"{model.name} does not say what it generates"
    if profile == "specc":
        encode = {"encode": derived.encode} if derived.encode else {}
        return Dressed({**encode, "step": derived.step}, derived.states)
    if profile == "hf" and derived.encode is not None:
        return _named(encoder_decoder(derived, generation.source))
    graph, states = decoder(profile, derived, generation.source)
    if profile == "hf":
        return _named(Dressed({"model": graph}, states))
    files = {genai.FILE: genai.config(model, generation, graph, states, "model")}
    return _named(Dressed({"model": graph}, states, files))


def _named(made: Dressed) -> Dressed:
    """Graphs under the names of their files."""
    named = {
        stem: Graph(**{**graph.__dict__, "name": stem})
        for stem, graph in made.graphs.items()
    }
    return replace(made, graphs=named)
