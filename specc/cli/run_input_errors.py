"""Errors about command-line arguments that are not model inputs."""

from collections.abc import Sequence
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text

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
