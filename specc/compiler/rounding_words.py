"""The values of words in a spec's `quantize { … }`."""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from specc.lang import tree
from specc.passes.quantize.plan import BLOCK
from specc.text.diagnostic import fail
from specc.text.suggest import suggest


def one_of(words: Mapping[str, tree.Rounds], name: str, known: Iterable[str]) -> str:
    """The one value of a word, empty where it is not said. E0858."""
    entry = words.get(name)
    if entry is None:
        return ""
    known = tuple(known)
    if len(entry.values) != 1 or entry.values[0].value not in known:
        wrong_value(entry, f"`{name}` is one of {', '.join(known)}", known)
    return entry.values[0].value


def whole_number(entry: tree.Rounds) -> int | None:
    """The one number that a word has; None where it is something else."""
    text = entry.values[0].value if len(entry.values) == 1 else ""
    # more digits are no count of anything here, whatever they say
    fits = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if fits else None


def wrong_value(entry: tree.Rounds, title: str, known: tuple[str, ...]) -> NoReturn:
    """E0858."""
    given = entry.values[0].value if len(entry.values) == 1 else ""
    example = f"{entry.name} = {known[0] if known else BLOCK}"
    fail(
        "E0858",
        title,
        entry.span,
        "this is something else",
        helps=suggest(given, known, f"for example `{example}`"),
    )
