"""JSON values with source spans, and a strict parser of config.json (E0410 to E0415)."""

import math
import re
from collections.abc import Iterator, Mapping
from json import JSONDecodeError, JSONDecoder
from typing import NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Label, Origin, Source, Span, raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.suggest import format_suggestion
from specc.io.file_type_detection import identify_file_format
from specc.io.json_io import Json

MAX_JSON_DEPTH, MAX_JSON_INTEGER = 64, 1 << 53
MAX_JSON_VALUES = 1 << 16  # enough for id2label and label2id with 21 843 classes each


@immutable_dataclass
class JsonScalar:
    """A JSON number, string, boolean or null."""

    value: bool | int | float | str | None
    span: Span

    def to_python(self) -> Json:
        """Return the JSON scalar as a Python value."""
        return self.value


@immutable_dataclass
class JsonArray:
    """A JSON array."""

    items: tuple["JsonNode", ...]
    span: Span

    def to_python(self) -> Json:
        """Return the items of the array as Python values."""
        return [item.to_python() for item in self.items]


WHOLE_OBJECT = "."
"""The path of the root object, by which a used spec reads the whole config file."""


@immutable_dataclass
class JsonMember:
    """A member `"key": value` of a JSON object."""

    key: Span
    value: "JsonNode"

    @property
    def span(self) -> Span:
        """The span from the start of the key to the end of the value."""
        return self.key.extend_to(self.value.span)

    @property
    def is_null(self) -> bool:
        """True if the value is null. A null member is treated like an absent member."""
        return isinstance(self.value, JsonScalar) and self.value.value is None

    def get_source_location(self) -> Origin:
        """Return the location of the value for messages, as in `config.json:9 "hidden_size"`."""
        return Origin(self.span, f"{self.key.source.name}:{self.key.line} {self.key.text}")


@immutable_dataclass
class JsonObject:
    """A JSON object with its members in file order."""

    members: Mapping[str, JsonMember]
    span: Span

    def find_member(self, path: str) -> JsonMember | None:
        """Return the member at a path such as `rope_parameters.rope_theta`, or None. A key that
        itself contains dots takes precedence over a path of nested keys. `*` matches every key:
        `per_layer_config.*.head_dim` is the common value of all layers that have the key
        `head_dim`. Raise E0403 if the layers have different values. The path `.` is the object
        itself.
        """
        if path == WHOLE_OBJECT:
            return JsonMember(self.span, self)
        if path in self.members:
            return self.members[path]
        head, dot, rest = path.partition(".")
        if head == "*":
            return self._find_common(rest)
        member = self.members.get(head)
        return (
            member.value.find_member(rest)
            if dot and member and isinstance(member.value, JsonObject)
            else None
        )

    def _find_common(self, path: str) -> JsonMember | None:
        """Return the member at a path of nested objects, which must have the same value in all of
        them. Raise E0403 if values differ.
        """
        objects = [m.value for m in self.members.values() if isinstance(m.value, JsonObject)]
        members = [member for value in objects if (member := value.find_member(path))]
        for member in members[1:]:
            if member.value.to_python() != members[0].value.to_python():
                title = (
                    f"{member.key.text} has different values, expected the same value under "
                    "every key"
                )
                related_labels = [Label(members[0].span, "the first value")]
                raise_error("E0403", title, member.span, related_labels=related_labels)
        return members[0] if members else None

    def find_non_null_member(self, path: str) -> JsonMember | None:
        """Return the member at a path, or None if the member is absent or null."""
        member = self.find_member(path)
        return None if member is None or member.is_null else member

    def iterate_members(self, prefix: str = "") -> Iterator[tuple[str, JsonMember]]:
        """Yield (path, member) for every member of the object and of nested objects."""
        for key, member in self.members.items():
            yield prefix + key, member
            if isinstance(member.value, JsonObject):
                yield from member.value.iterate_members(f"{prefix}{key}.")

    def to_python(self) -> dict[str, Json]:
        """Return the members of the object as Python values."""
        return {key: member.value.to_python() for key, member in self.members.items()}


JsonNode: TypeAlias = JsonScalar | JsonArray | JsonObject


def get_finite_number(value: JsonNode) -> int | float | None:
    """Return a JSON number as a Python number, or None if `value` is not a number.

    Raise E0413 if the number is NaN or infinite. Some JSON files contain NaN and infinity, which
    are invalid sizes and scales.
    """
    number = value.value if isinstance(value, JsonScalar) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if not math.isfinite(number):
        raise_invalid_number_error("this value must be finite", value.span)
    return number


def raise_invalid_number_error(reason: str, span: Span) -> NoReturn:
    """Raise E0413 for an invalid number in a config file."""
    text = span.text
    short_text = text if len(text) <= 24 else f"{text[:20]}…"
    raise_error(
        "E0413",
        f"`{short_text}` is out of range for a config file",
        span,
        f"{reason}",
        helps=["write a finite number with fewer digits, or null for no value"],
    )


_WHITESPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LITERAL_WORD = re.compile(r"[-+]?[A-Za-z_][A-Za-z_0-9]*|[-+.0-9A-Za-z]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING_DECODER = JSONDecoder()
_STRING_ERRORS = {
    "Unterminated string": ("this string is never closed", 'close it with "'),
    "Invalid control": ("unescaped control character", "write line breaks as \\n"),
    "Invalid \\": ("unknown escape sequence", "write a backslash as \\\\"),
}
"""The message and help for each error in a string, keyed by the start of the decoder's message."""
_LITERAL_VALUES: dict[str, bool | float | None] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_LITERAL_SPELLINGS = {"none": "null", "nil": "null", "nan": "NaN"}
"""The JSON literal that corresponds to each literal of another language, by lowercase spelling."""


def decode_config_source(data: bytes, name: str) -> Source:
    """Decode the bytes of a config file. Raise E0410 if the bytes are not text."""
    if foreign := identify_file_format(data[:64], name):
        raise_error("E0410", f"`{name}` is not a config file but {foreign[0]}", helps=[foreign[1]])
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise_error(
            "E0410",
            f"`{name}` is not valid UTF-8",
            notes=[f"invalid byte at offset {error.start}"],
            helps=["save it as UTF-8, or download it again"],
        )


def parse_config_json(source: Source) -> JsonObject:
    """Parse a config file. Raise E0411 to E0415 if the file is not a valid JSON object."""
    value = _JsonParser(source).parse_document()
    if not isinstance(value, JsonObject):
        raise_error(
            "E0414",
            "a config file must be a JSON object",
            value.span,
            "but this is " + ("a list" if isinstance(value, JsonArray) else "a single value"),
            helps=["use the config.json of the checkpoint"],
        )
    return value


class _JsonParser:
    """A recursive-descent parser of JSON. `position` is the index of the next character."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.position = 1 if source.text.startswith("\ufeff") else 0
        self.value_count = 0

    def peek_character(self) -> str:
        """Skip whitespace and return the next character, or "" at the end of the text."""
        whitespace = _WHITESPACE.match(self.text, self.position)
        assert whitespace is not None
        self.position = whitespace.end()
        return self.text[self.position : self.position + 1]

    def make_span_from_offset(self, start: int) -> Span:
        """Return the span from `start` to the current position."""
        return Span(self.source, start, self.position)

    def get_next_span(self) -> Span:
        """Return the span of the next character. At the end of the text, return the span of the
        last character.
        """
        start = min(self.position, max(0, len(self.text) - 1))
        return Span(self.source, start, min(start + 1, len(self.text)))

    def raise_syntax_error(self, label: str, help: str = "") -> NoReturn:
        """Raise E0411 at the current position."""
        helps = [help or "correct it, or download the file again"]
        title = f"`{self.source.name}` is not valid JSON"
        raise_error("E0411", title, self.get_next_span(), label, helps=helps)

    def parse_document(self) -> JsonNode:
        """Parse the single value of a JSON document."""
        value = self.parse_value(0)
        if self.peek_character():
            self.raise_syntax_error(
                "expected the end of the file",
                "a config file contains a single object; remove the text after it",
            )
        return value

    def parse_value(self, level: int) -> JsonNode:
        """Parse a JSON value after optional whitespace."""
        character, start = self.peek_character(), self.position
        self.value_count += 1
        if level >= MAX_JSON_DEPTH or self.value_count > MAX_JSON_VALUES:
            _raise_too_large(level, self.get_next_span())
        match character:
            case "{":
                return _decode_float_object(self.parse_object(level))
            case "[":
                items = [self.parse_value(level + 1) for _ in self.iterate_items("]", "a value")]
                return JsonArray(tuple(items), self.make_span_from_offset(start))
            case '"':
                return JsonScalar(self.parse_string(), self.make_span_from_offset(start))
            case "":
                self.raise_syntax_error(
                    "expected a value, got the end of the file",
                    "the file is truncated; download it again",
                )
        return self.parse_scalar()

    def parse_object(self, level: int) -> JsonObject:
        """Parse a JSON object, `{ "key": value, … }`."""
        start, members = self.position, dict[str, JsonMember]()
        for key_start in self.iterate_items("}", "a key"):
            if self.text[key_start] != '"':
                self.raise_syntax_error("expected a key in double quotes", 'write keys as "key"')
            key = self.parse_string()
            key_span = self.make_span_from_offset(key_start)
            # RFC 8259 does not define which of two duplicate keys takes precedence
            if key in members:
                raise_error(
                    "E0412",
                    f"duplicate key `{key}` in the config file",
                    key_span,
                    "again here",
                    related_labels=[Label(members[key].key, "first here")],
                    helps=["remove one of them: JSON parsers disagree on which one is used"],
                )
            if self.peek_character() != ":":
                self.raise_syntax_error("expected a colon between key and value")
            self.position += 1
            members[key] = JsonMember(key_span, self.parse_value(level + 1))
        return JsonObject(members, self.make_span_from_offset(start))

    def iterate_items(self, bracket: str, expected: str) -> Iterator[int]:
        """Yield the position of each item of an object or array. The caller parses the item."""
        is_first = True
        while True:
            separator, self.position = self.position, self.position + 1
            next_character = self.peek_character()
            if next_character == bracket and is_first:
                break
            if next_character == bracket:
                # report a trailing comma at the comma, not at the next character
                self.position = separator
                self.raise_syntax_error("trailing comma", "remove the comma")
            if not next_character:
                self.raise_syntax_error(
                    f"expected {expected} or `{bracket}`, got the end of the file",
                    "the file is truncated; download it again",
                )
            yield self.position
            is_first = False
            next_character = self.peek_character()
            if next_character == bracket:
                break
            if next_character != ",":
                self.raise_syntax_error(f"expected a comma or `{bracket}`")
        self.position += 1

    def parse_string(self) -> str:
        """Parse the string at the current position."""
        try:
            value, end = _STRING_DECODER.raw_decode(self.text, self.position)
        except JSONDecodeError as error:
            message_and_help = next(v for k, v in _STRING_ERRORS.items() if error.msg.startswith(k))
            # report an invalid escape sequence `\uXXXX` at the position of its backslash
            is_escape = error.msg.startswith("Invalid \\")
            self.position = self.text.rindex("\\", 0, error.pos + 1) if is_escape else error.pos
            self.raise_syntax_error(*message_and_help)
        assert isinstance(value, str)
        if _SURROGATE.search(value):
            self.raise_syntax_error("this string contains an unpaired surrogate")
        self.position = end
        return value

    def parse_scalar(self) -> JsonScalar:
        """Parse a number or a literal in `_LITERAL_VALUES`."""
        start = self.position
        word = _LITERAL_WORD.match(self.text, start)
        if not word:
            self.raise_syntax_error("expected a value")
        self.position = word.end()
        text, span = word[0], self.make_span_from_offset(start)
        if text in _LITERAL_VALUES:
            return JsonScalar(_LITERAL_VALUES[text], span)
        if number := _NUMBER.fullmatch(text):
            return JsonScalar(_convert_number(text, bool(number[1] or number[2]), span), span)
        self.position = start
        lower = text.lower()
        similar = _LITERAL_SPELLINGS.get(lower, lower if lower in _LITERAL_VALUES else "")
        help_ = format_suggestion(similar) if similar else ""
        self.raise_syntax_error(f"`{text[:40]}` is not a JSON value", help_)


def _raise_too_large(level: int, span: Span) -> NoReturn:
    """Raise E0415 for a file with too many nesting levels or too many values."""
    problem = f"is nested deeper than {MAX_JSON_DEPTH} levels"
    if level < MAX_JSON_DEPTH:
        problem = f"has more than {MAX_JSON_VALUES} values"
    helps = ["model config files are smaller; download the file again"]
    raise_error("E0415", f"the config file {problem}", span, helps=helps)


def _decode_float_object(value: JsonObject) -> JsonNode:
    """Decode `{"__float__": "Infinity"}`, which transformers writes because JSON has no infinity.
    Return any other object unchanged.
    """
    member = value.members.get("__float__")
    if member is None or len(value.members) > 1 or not isinstance(member.value, JsonScalar):
        return value
    name = member.value.value
    number = _LITERAL_VALUES.get(name) if isinstance(name, str) else None
    return JsonScalar(number, value.span) if isinstance(number, float) else value


def _convert_number(text: str, is_float: bool, span: Span) -> int | float:
    """Convert the text of a JSON number. Raise E0413 for a large integer or an infinite float."""
    if is_float:
        value = float(text)
        if not math.isfinite(value):
            raise_invalid_number_error("too large for a floating-point number", span)
        return value
    # check the number of digits first, because `int` is slow for a million digits
    if len(text) > 17 or abs(int(text)) >= MAX_JSON_INTEGER:
        raise_invalid_number_error("not less than 2^53", span)
    return int(text)
