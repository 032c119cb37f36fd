"""What `model.map` is given, looked at before anything is read."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specc.files.read import shown
from specc.map.job import ENGINES
from specc.text.diagnostic import fail


@dataclass(frozen=True)
class Kind:
    """What an argument is, in words, and whether a value is that."""

    words: str
    fits: Callable[[object], bool]


def _paths(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(_path, value))


def _path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)


def _names(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    return all(isinstance(name, str) for name in value)


def _table(value: object) -> bool:
    return isinstance(value, Mapping) and _names([*value, *value.values()])


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


KINDS = {
    "data": Kind("a path or more, each a text", _paths),
    "out": Kind("the path of a folder", _path),
    "columns": Kind("a table from inputs to names of columns", _table),
    "keep": Kind("a list of names of columns", _names),
    "raw": Kind("a list of names of outputs", _names),
    "to": Kind("a text", lambda value: isinstance(value, str)),
    "engine": Kind(f"one of {', '.join(ENGINES)}", lambda value: value in ENGINES),
    "workers": Kind("a whole number from 0 on", _count),
    "max_errors": Kind("a whole number from 0 on", _count),
}
OPTIONAL = ("columns", "keep", "max_errors")
"""What may be None as well."""


def check_asked(**asked: object) -> None:
    """E0970 for the first argument that is not of its kind."""
    for name, value in asked.items():
        fits = KINDS[name].fits(value) or (value is None and name in OPTIONAL)
        if not fits:
            fail(
                "E0970",
                f"`{name}` is {KINDS[name].words}, not {shown(repr(value))[:60]}",
                helps=["docs/scale.md says what a job is asked for"],
            )
