"""What a profile makes of derived graphs, and how it says that it cannot."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from specc.ir.derived import State
from specc.ir.graph import Graph
from specc.text.diagnostic import fail


@dataclass(frozen=True)
class Dressed:
    """Derived graphs under the names of a profile.

    `graphs` holds each by the stem of its file (`decoder_model` for
    `decoder_model.onnx`). `states` are those between steps, under the names they have
    there. `files` are JSON data to be written beside them, by file name.
    """

    graphs: Mapping[str, Graph]
    states: tuple[State, ...]
    files: Mapping[str, object] = field(default_factory=dict)


READERS = {
    "hf": "programs that read this form (Optimum, transformers.js)",
    "genai": "onnxruntime-genai",
}
"""Who reads what each profile writes, as a message says it."""


def cannot(profile: str, why: str, notes: Iterable[str] = ()) -> NoReturn:
    """E0752: the model has something that the names of a profile have no place for."""
    fail(
        "E0752",
        f"this model cannot be written in the form `{profile}`: {why}",
        notes=notes,
        helps=[
            "`--names specc` writes every model: each state is an input and an output of its own"
        ],
    )
