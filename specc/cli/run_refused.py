"""Words of the command line that are no input, and what to write instead."""

from collections.abc import Sequence
from typing import NoReturn

from specc.files.read import shown
from specc.text.diagnostic import fail

ENDINGS = (".json", ".npy", ".npz")
"""A word that ends so is the name of a file that holds numbers."""


def too_many(word: str, asked: Sequence[str], *, many: bool) -> NoReturn:
    """E0910 where every input has what it needs."""
    helps = [f"the inputs are {', '.join(asked)}"]
    if many:
        helps.append(f"a batch is given by name: {asked[0]}=… {asked[0]}=…")
    fail("E0910", f"`{shown(word)[:200]}` is one argument too many", helps=helps)


def absent(word: str) -> NoReturn:
    """E0802 for a word that names a file which cannot be read, with what to do if it
    was meant as text.
    """
    path = word.removeprefix("@")
    kinds = (
        "a word that begins with `@`"
        if word.startswith("@")
        else f"a word that ends in {', '.join(ENDINGS)}"
    )
    fail(
        "E0802",
        f"cannot read `{shown(path)}`: there is no such file, or none that can be read",
        notes=[f"{kinds} is the name of a file"],
        helps=[
            "if the file is meant, check its path, which starts in the folder you are in",
            "if these words are the text, give them on standard input: echo "
            f"'{shown(word)}' | specc run MODEL -",
        ],
    )
