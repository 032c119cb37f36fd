"""Errors about command-line arguments that are not model inputs, or missing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Failed, raise_error
from specc.io.safe_read import escape_text
from specc.preprocessing.records import TEXT, FilterBanks, ImageRecord, LogMel, Waveform
from specc.preprocessing.task_kinds import Task
from specc.runtime.model_inputs import ModelInputs

SOUND = (Waveform, LogMel, FilterBanks)
ENDINGS = (".json", ".npy", ".npz")
"""A word that ends so is the name of a file that holds numbers."""


def fail_too_many_arguments(word: str, asked: Sequence[str], *, many: bool) -> NoReturn:
    """E0910 where every input has what it needs."""
    helps = [f"the inputs are {', '.join(asked)}"]
    if many:
        helps.append(f"a batch is given by name: {asked[0]}=… {asked[0]}=…")
    raise_error("E0910", f"`{escape_text(word)[:200]}` is one argument too many", helps=helps)


def fail_missing_file(word: str) -> NoReturn:
    """E0802 for a word that names a file which cannot be read, with what to do if it
    was meant as text.
    """
    path = word.removeprefix("@")
    kinds = (
        "a word that begins with `@`"
        if word.startswith("@")
        else f"a word that ends in {', '.join(ENDINGS)}"
    )
    raise_error(
        "E0802",
        f"cannot read `{escape_text(path)}`: there is no such file, or none that can be read",
        notes=[f"{kinds} is the name of a file"],
        helps=[
            "if the file is meant, check its path, which starts in the folder you are in",
            "if these words are the text, give them on standard input: echo "
            f"'{escape_text(word)}' | specc run MODEL -",
        ],
    )


SLOT_EXAMPLES = {
    "question": '"Who lives there?"',
    "context": '"Sarah lives in London."',
    "image": "image.png",
    "candidate_labels": '"a cat" "a dog"',
    "choices": '"one" "another"',
}
"""Example words for the inputs of a task; any other input takes a text."""


def add_run_example(failed: Failed, path: str, model: ModelInputs, task: Task | None) -> Failed:
    """Return the errors about missing inputs with a command line that gives them."""
    if task:
        words = [SLOT_EXAMPLES.get(s.name, '"a text"') for s in task.slots if not s.optional]
    else:
        words = [_example_argument(model, name) for name in model.asked]
    example = f"example: `specc run {escape_text(path)} {' '.join(words)}`"
    return Failed(
        *(replace(d, helps=(example,)) if d.code == "E0910" else d for d in failed.diagnostics)
    )


def _example_argument(model: ModelInputs, name: str) -> str:
    """Return an example argument for an input of the graph."""
    record, given = model.reading.of_input(name), model.graph.inputs[name].type
    if isinstance(record, TEXT):
        return '"a text"'
    if isinstance(record, ImageRecord):
        return f"{name}=image.png"
    if isinstance(record, SOUND):
        return f"{name}=audio.wav"
    return f'{name}="[[1, 2, 3]]"' if given.dtype == "i64" and given.rank == 2 else f"{name}=x.npy"
