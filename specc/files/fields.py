"""Takes apart a JSON value that nobody vouches for.

Each method gives one field in the type asked for or complains with the path of the
field. Nothing is converted: `true` is not 1, "3" is not 3, 3.0 is not 3. `done` refuses
fields that were never asked for.
"""

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

from specc.text.diagnostic import fail

Path: TypeAlias = tuple[str, ...]
Complain: TypeAlias = Callable[[Path, str], NoReturn]
MOST = 1e30
"""The greatest size of a number: it leaves room for every scale there is, and its square
is still a float.
"""


def damaged(path: Path, what: str) -> NoReturn:
    """The complaint about a record that a model file carries. Fails with E0915."""
    fail(
        "E0915",
        "the model file says in a way specc does not understand how its inputs are read",
        notes=[f"`{'.'.join(path)[:200]}` {what}"],
        helps=["compile the spec again with this version of specc"],
    )


class Fields:
    """The fields of one JSON object, read once each."""

    def __init__(
        self, value: object, path: Path = (), complain: Complain = damaged
    ) -> None:
        if not isinstance(value, dict) or not all(
            isinstance(key, str) for key in value
        ):
            complain(path, "is not an object")
        self._values: dict[str, object] = value
        self._unread = set(value)
        self.path = path
        self.complain = complain

    def refuse(self, key: str, what: str) -> NoReturn:
        """Complain about field `key`."""
        self.complain((*self.path, key), what)

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        self._unread.discard(key)
        return self._values.get(key) is not None

    def get(self, key: str) -> object:
        """The field as it stands."""
        if key not in self._values:
            self.refuse(key, "is missing")
        self._unread.discard(key)
        return self._values[key]

    def maybe(self, key: str) -> object:
        """The field as it stands, None where it is not there."""
        return self.get(key) if key in self._values else None

    def names(self) -> tuple[str, ...]:
        """The names of all fields, in order."""
        return tuple(self._values)

    def integer(self, key: str, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return _integer(self, key, self.get(key), low, high)

    def integers(self, key: str, count: int, low: int, high: int) -> tuple[int, ...]:
        """A list of exactly `count` such integers."""
        values = self.items(key, count)
        if len(values) != count:
            self.refuse(key, f"holds {len(values)} values where {count} are due")
        return tuple(
            _integer(self, f"{key}[{i}]", value, low, high)
            for i, value in enumerate(values)
        )

    def identity(self, key: str, below: int) -> int | None:
        """The id of a token, from 0 to `below` - 1, or nothing."""
        return self.integer(key, 0, below - 1) if self.has(key) else None

    def number(self, key: str, most: float = MOST) -> float:
        """A finite number, of a size of at most `most`."""
        return _number(self, key, self.get(key), most)

    def numbers(self, key: str, most: int) -> tuple[float, ...]:
        """A list of at most `most` finite numbers."""
        return tuple(
            _number(self, f"{key}[{i}]", value)
            for i, value in enumerate(self.items(key, most))
        )

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.get(key)
        if not isinstance(value, bool):
            self.refuse(key, "is neither true nor false")
        return value

    def choice(self, key: str, options: Sequence[str]) -> str:
        """One of the texts `options`."""
        value = self.get(key)
        if not isinstance(value, str) or value not in options:
            self.refuse(key, f"is none of {', '.join(options)}")
        return value

    def texts(self, key: str, most: int, longest: int) -> tuple[str, ...]:
        """A list of at most `most` texts of at most `longest` characters each."""
        values = self.items(key, most)
        for i, value in enumerate(values):
            if not isinstance(value, str) or len(value) > longest:
                self.refuse(
                    f"{key}[{i}]", f"is not a text of at most {longest} characters"
                )
            if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                self.refuse(f"{key}[{i}]", "holds half of a character pair")
        return tuple(str(value) for value in values)

    def items(self, key: str, most: int) -> list[object]:
        """A list of at most `most` values."""
        value = self.get(key)
        if not isinstance(value, list | tuple):
            self.refuse(key, "is not a list")
        if len(value) > most:
            self.refuse(key, f"holds {len(value)} values; at most {most} are allowed")
        return list(value)

    def text(self, key: str) -> str:
        """A text."""
        value = self.maybe(key)
        if not isinstance(value, str):
            self.refuse(key, "is missing")
        return value

    def listed(self, key: str) -> list[object]:
        """A list of anything."""
        value = self.maybe(key)
        if not isinstance(value, list):
            self.refuse(key, "is no list")
        return value

    def table(self, key: str) -> dict[str, object]:
        """An object as it stands, by the names in it."""
        value = self.maybe(key)
        if not isinstance(value, dict):
            self.refuse(key, "is missing")
        return value

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object of nothing but texts."""
        found = self.table(key)
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        if len(texts) < len(found):
            self.refuse(key, "holds something that is no text")
        return texts

    def child(self, key: str) -> "Fields":
        """An object inside this one."""
        return Fields(self.get(key), (*self.path, key), self.complain)

    def done(self) -> None:
        """Complain about fields that no one asked for."""
        for key in sorted(self._unread):
            self.refuse(key, "is not known")


def _integer(fields: Fields, key: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        fields.refuse(key, "is not a whole number")
    if not low <= value <= high:
        fields.refuse(key, f"is not between {low} and {high}")
    return value


def _number(fields: Fields, key: str, value: object, most: float = MOST) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.refuse(key, "is not a number")
    if not abs(value) <= most or not math.isfinite(value):
        fields.refuse(key, "is too large or not a number")
    return float(value)
