"""JSON that comes from outside, read strictly, and plain values of ours as JSON.

Python's own reader is lenient: of two equal names the last wins, `NaN` is a number, an
integer may have any length, and lists nest until the stack ends. None of that means
the same to two programs, so here it is refused. What comes out is a `Json` value that
nobody has looked at yet: `specc.files.fields` takes it apart, field by field.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import NoReturn, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

BELOW = 2**64
"""Integers of our own files stay below this: the largest are seeds, of 64 bits."""
DEPTH = 100
"""So deep are lists and objects of our own files nested at most."""


class NotJson(ValueError):
    """What is wrong with a text, as the end of a sentence."""


class GivenTwice(NotJson):
    """One object has a name twice; which one would hold is anybody's guess."""


class NoNumber(NotJson):
    """`NaN` or an infinity, which JSON does not have."""


class TooDeep(NotJson):
    """Lists or objects are nested deeper than is granted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How deep values may be nested, and below what whole numbers stay; None: any."""

    depth: int | None = DEPTH
    below: int | None = BELOW


OURS = Limits()
ANY = Limits(depth=None, below=None)
"""For texts whose reader has limits of its own, with words of its own."""


def parse(text: str, limits: Limits = OURS) -> Json:
    """What a JSON text says. Raises NotJson, or json.JSONDecodeError with the place of
    a slip; both are ValueErrors.
    """
    if text.startswith("\ufeff"):  # nobody sees it, so it is named
        raise json.JSONDecodeError("Unexpected UTF-8 BOM", text, 0)
    try:
        value: Json = STRICT.decode(text)
    except RecursionError:
        raise TooDeep("it is nested too deep") from None
    if limits.depth is not None or limits.below is not None:
        _check(value, limits)
    return value


def plain(value: object) -> Json:
    """A value of ours as JSON: a record as an object of its fields, a tuple as a list."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
    return _fields(value)


def finite(value: object) -> object:
    """Return a value with texts for the numbers that JSON lacks: `inf`, `-inf`, `nan`."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(k): finite(v) for k, v in value.items()}
        case list() | tuple():
            return [finite(v) for v in value]
    return value


def tagged(kind: str, record: object) -> dict[str, Json]:
    """A record of ours as an object that says of which kind it is."""
    return {"kind": kind, **_fields(record)}


def _fields(record: object) -> dict[str, Json]:
    assert is_dataclass(record), f"{type(record).__name__} has no form in JSON"
    return {f.name: plain(getattr(record, f.name)) for f in fields(record)}


def whole(value: object) -> int | None:
    """A whole number, or None for anything else: `true` is not 1, and 3.0 is not 3."""
    return value if type(value) is int else None


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise GivenTwice("a name is given twice in one object")
    return found


def _no_number(text: str) -> NoReturn:
    raise NoNumber(f"{text} is not a number")


STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)
"""Made once: a file of rows has millions of texts."""


def _check_digits(level: Iterable[Json], below: int) -> None:
    numbers = [n for item in level if (n := whole(item)) is not None]
    if any(abs(n) >= below for n in numbers):
        raise NotJson("it holds a number with too many digits")


def _check(value: Json, limits: Limits) -> None:
    """Limits hold at every depth. Walks with a list, not with calls: the text decides
    how deep.
    """
    level, depth = [value], 0
    while level:
        if limits.below is not None:
            _check_digits(level, limits.below)
        holders = [item for item in level if isinstance(item, dict | list)]
        inner = [
            one
            for item in holders
            for one in (item.values() if isinstance(item, dict) else item)
        ]
        # a list with nothing in it is a level too, but nothing can hide below it
        depth += 1
        if limits.depth is not None and depth > limits.depth and inner:
            raise TooDeep("it is nested too deep")
        level = inner
