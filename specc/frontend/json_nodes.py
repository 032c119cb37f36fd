"""JSON values with their source spans."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Origin, Span

PlainJson: TypeAlias = bool | int | float | str | list["PlainJson"] | dict[str, "PlainJson"] | None


@dataclass(frozen=True, slots=True)
class JsonScalar:
    """A number, text, truth value or null."""

    value: bool | int | float | str | None
    span: Span

    def plain(self) -> PlainJson:
        """The value alone."""
        return self.value


@dataclass(frozen=True, slots=True)
class JsonList:
    """`[…]`."""

    items: tuple["JsonNode", ...]
    span: Span

    def plain(self) -> PlainJson:
        """The values alone."""
        return [item.plain() for item in self.items]


@dataclass(frozen=True, slots=True)
class JsonMember:
    """`"key": value`; `span` is that of both."""

    key: Span
    value: "JsonNode"

    @property
    def span(self) -> Span:
        """From the key to the end of the value."""
        return self.key.to(self.value.span)

    @property
    def null(self) -> bool:
        """Whether the value is null, which counts as absent."""
        return isinstance(self.value, JsonScalar) and self.value.value is None

    def origin(self) -> Origin:
        """For messages: `ck/config.json:9 "hidden_size"`."""
        return Origin(self.span, f"{self.key.source.name}:{self.key.line} {self.key.text}")


@dataclass(frozen=True, slots=True)
class JsonObject:
    """`{…}`, its members in the order of the file."""

    members: Mapping[str, JsonMember]
    span: Span

    def find(self, path: str) -> JsonMember | None:
        """The member at `rope_parameters.rope_theta`. A key that itself holds dots is
        found first.
        """
        if path in self.members:
            return self.members[path]
        head, dot, rest = path.partition(".")
        member = self.members.get(head)
        return (
            member.value.find(rest)
            if dot and member and isinstance(member.value, JsonObject)
            else None
        )

    def given(self, path: str) -> JsonMember | None:
        """The member at a path, unless it is null."""
        member = self.find(path)
        return None if member is None or member.null else member

    def walk(self, prefix: str = "") -> Iterator[tuple[str, JsonMember]]:
        """Every member of this object and of the objects in it, by path."""
        for key, member in self.members.items():
            yield prefix + key, member
            if isinstance(member.value, JsonObject):
                yield from member.value.walk(f"{prefix}{key}.")

    def plain(self) -> dict[str, PlainJson]:
        """The values alone."""
        return {key: member.value.plain() for key, member in self.members.items()}


JsonNode: TypeAlias = JsonScalar | JsonList | JsonObject


def get_finite_number(value: JsonNode) -> int | float | None:
    """Return the number that a value holds, None where it holds something else.

    Raises E0413 for NaN and the infinities, which a file may hold where nothing reads
    them, and which no size, scale or length can be.
    """
    number = value.value if isinstance(value, JsonScalar) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if not math.isfinite(number):
        raise_bad_number("not finite, and the value is used here", value.span)
    return number


def raise_bad_number(why: str, span: Span) -> NoReturn:
    """Raise E0413 for a number of a configuration, with the reason."""
    text = span.text
    shown = text if len(text) <= 24 else f"{text[:20]}…"
    raise_error(
        "E0413",
        f"`{shown}` is not a number a configuration may hold",
        span,
        f"it is {why}",
        helps=["write a finite number with fewer digits, or null where none is meant"],
    )
