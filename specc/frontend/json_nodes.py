"""JSON values with their source spans."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Origin, Span

PlainJson: TypeAlias = bool | int | float | str | list["PlainJson"] | dict[str, "PlainJson"] | None


@dataclass(frozen=True, slots=True)
class JsonScalar:
    """A number, string, boolean or null."""

    value: bool | int | float | str | None
    span: Span

    def to_plain(self) -> PlainJson:
        """Return the plain value."""
        return self.value


@dataclass(frozen=True, slots=True)
class JsonList:
    """A JSON list."""

    items: tuple["JsonNode", ...]
    span: Span

    def to_plain(self) -> PlainJson:
        """Return the items as plain values."""
        return [item.to_plain() for item in self.items]


@dataclass(frozen=True, slots=True)
class JsonMember:
    """`"key": value`; `span` covers both."""

    key: Span
    value: "JsonNode"

    @property
    def span(self) -> Span:
        """The span from the key to the end of the value."""
        return self.key.to(self.value.span)

    @property
    def is_null(self) -> bool:
        """Whether the value is null, which counts as absent."""
        return isinstance(self.value, JsonScalar) and self.value.value is None

    def get_origin(self) -> Origin:
        """Return where the value is, for messages: `ck/config.json:9 "hidden_size"`."""
        return Origin(self.span, f"{self.key.source.name}:{self.key.line} {self.key.text}")


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object with its members in file order."""

    members: Mapping[str, JsonMember]
    span: Span

    def find(self, path: str) -> JsonMember | None:
        """Return the member at a path such as `rope_parameters.rope_theta`, or None. A key
        that contains dots itself takes precedence. `*` matches every key:
        `per_layer_config.*.head_dim` is the value that all layers with one agree on, or
        E0403.
        """
        if path in self.members:
            return self.members[path]
        head, dot, rest = path.partition(".")
        if head == "*":
            return self._find_common(rest)
        member = self.members.get(head)
        return (
            member.value.find(rest)
            if dot and member and isinstance(member.value, JsonObject)
            else None
        )

    def _find_common(self, path: str) -> JsonMember | None:
        """Return the member that the values of all keys have at a path."""
        inner = [m.value for m in self.members.values() if isinstance(m.value, JsonObject)]
        found = [member for value in inner if (member := value.find(path))]
        for member in found[1:]:
            if member.value.to_plain() != found[0].value.to_plain():
                title = f"{member.key.text} differs between keys, expected one value"
                others = [Label(found[0].span, "the first value")]
                raise_error("E0403", title, member.span, others=others)
        return found[0] if found else None

    def find_non_null(self, path: str) -> JsonMember | None:
        """Return the member at a path unless it is null."""
        member = self.find(path)
        return None if member is None or member.is_null else member

    def iterate_members(self, prefix: str = "") -> Iterator[tuple[str, JsonMember]]:
        """Yield every member of this object and of nested objects, with its path."""
        for key, member in self.members.items():
            yield prefix + key, member
            if isinstance(member.value, JsonObject):
                yield from member.value.iterate_members(f"{prefix}{key}.")

    def to_plain(self) -> dict[str, PlainJson]:
        """Return the members as plain values."""
        return {key: member.value.to_plain() for key, member in self.members.items()}


JsonNode: TypeAlias = JsonScalar | JsonList | JsonObject


def get_finite_number(value: JsonNode) -> int | float | None:
    """Return the number, or None if the value is something else.

    Raise E0413 for NaN and infinities, which a file may contain where they are not read,
    but which cannot be a size, scale or length.
    """
    number = value.value if isinstance(value, JsonScalar) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if not math.isfinite(number):
        raise_bad_number("not finite, but the value is used here", value.span)
    return number


def raise_bad_number(reason: str, span: Span) -> NoReturn:
    """Raise E0413 for a number of a config file, with the reason."""
    text = span.text
    shown = text if len(text) <= 24 else f"{text[:20]}…"
    raise_error(
        "E0413",
        f"`{shown}` is out of range for a config file",
        span,
        f"it is {reason}",
        helps=["write a finite number with fewer digits, or null for no value"],
    )
