"""Write genai_config.json for onnxruntime-genai."""

from collections.abc import Mapping
from typing import Any

from specc.analysis.length_limits import find_length_limits
from specc.driver.profiles.hf_decoder import IDS, LOGITS, MASK, POSITIONS
from specc.ir.derived_graphs import DecodeState
from specc.ir.graph import Graph
from specc.ir.model import GenerateSection, ModelDefinition

FILE = "genai_config.json"
UNBOUNDED = 131072
"""The longest text of a model that sets no bound; caches grow as they are needed, so
the number costs nothing.
"""

CACHES = {
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}


def build_genai_config(
    model: ModelDefinition,
    generation: GenerateSection,
    graph: Graph,
    states: tuple[DecodeState, ...],
    stem: str,
) -> dict[str, Any]:
    """The content of the file. `graph` and `states` bear the profile's names; `stem` is
    the graph's file's.
    """
    said = generation.settings
    inputs = {n: n for n in (IDS, MASK, POSITIONS) if n in graph.inputs}
    heads, features = states[0].type.shape[1].number, states[0].type.shape[3].number
    decoder = {
        "filename": f"{stem}.onnx",
        "head_size": features,
        "num_hidden_layers": len(states) // 2,
        "num_key_value_heads": heads,
        "inputs": inputs | {n: p for n, p in CACHES.items() if n.startswith("past")},
        "outputs": {"logits": LOGITS}
        | {n: p for n, p in CACHES.items() if n.startswith("present")},
    }
    longest = max_sequence_length(model, generation)
    tokens = {
        "bos_token_id": _start(said),
        "eos_token_id": _stops(said),
        "pad_token_id": _pad(said),
    }
    return {
        "model": {
            "type": "decoder",
            "vocab_size": graph.outputs[LOGITS].type.shape[-1].number,
            "context_length": longest,
            **{name: value for name, value in tokens.items() if value is not None},
            "decoder": decoder,
        },
        "search": {**_search(said), "max_length": longest, "past_present_share_buffer": False},
    }


def max_sequence_length(model: ModelDefinition, generation: GenerateSection) -> int:
    """How many tokens the model can read: as many as the smallest table of positions
    has, or its config's `context`.
    """
    symbol = model.graph.inputs[generation.growing].type.shape[1].name or ""
    if limit := find_length_limits(model.graph).get(symbol):
        return limit.most
    context = model.config.get("context")
    return (
        context
        if isinstance(context, int) and not isinstance(context, bool) and context > 0
        else UNBOUNDED
    )


def _start(said: Mapping[str, object]) -> object:
    """The first of the tokens that a text starts with."""
    start = said.get("start")
    return start[0] if isinstance(start, list | tuple) and start else start


def _stops(said: Mapping[str, object]) -> object:
    stop = said.get("stop")
    if isinstance(stop, list | tuple):
        return list(stop) if len(stop) != 1 else stop[0]
    return stop


def _pad(said: Mapping[str, object]) -> object:
    """Texts of a batch that have ended are filled with a token that ends them, where
    none is named.
    """
    stop = _stops(said)
    return said.get("pad", stop[0] if isinstance(stop, list) and stop else stop)


def _search(said: Mapping[str, object]) -> dict[str, object]:
    """What the spec says of the search, in their words."""
    strategy = said.get("strategy")
    settings: Mapping[str, object] = (
        strategy if isinstance(strategy, Mapping) else {"kind": strategy or "greedy"}
    )
    words = {"width": "num_beams", "n_best": "num_return_sequences"}
    same = ("temperature", "top_k", "top_p", "repetition_penalty", "length_penalty")
    made: dict[str, object] = {"do_sample": settings.get("kind") == "sample"}
    for name, value in settings.items():
        if name in same or name in words:
            made[words.get(name, name)] = value
    if settings.get("early_stopping") is not None:
        made["early_stopping"] = settings["early_stopping"] is True
    return made
