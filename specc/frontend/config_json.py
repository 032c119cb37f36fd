"""Parse config.json strictly, with a source span for every value (E0410 to E0415)."""

import math
import re
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Source, Span
from specc.diagnostics.suggest import format_suggestion
from specc.frontend.json_nodes import (
    JsonList,
    JsonMember,
    JsonNode,
    JsonObject,
    JsonScalar,
    raise_bad_number,
)
from specc.io.file_signatures import identify_foreign_file

MAX_JSON_DEPTH, MAX_JSON_INTEGER = 64, 1 << 53
MAX_JSON_VALUES = 1 << 16  # 21 843 class names, in both directions, are 43 690 values

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LITERAL_WORD = re.compile(r"[-+]?[A-Za-z_][A-Za-z_0-9]*|[-+.0-9A-Za-z]+")
_PLAIN_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERAL_VALUES: dict[str, bool | float | None] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def decode_config_source(data: bytes, name: str) -> Source:
    """Decode a config file. Raise E0410 if it is not text."""
    if found := identify_foreign_file(data[:64], name):
        raise_error("E0410", f"`{name}` is not a config file but {found[0]}", helps=[found[1]])
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
    """Parse a config file to an object. Raise E0410 to E0415."""
    if found := identify_foreign_file(source.text[:64].encode("utf-8", "replace"), source.name):
        raise_error(
            "E0410", f"`{source.name}` is not a config file but {found[0]}", helps=[found[1]]
        )
    reader = _JsonParser(source)
    value = reader.parse_document()
    if not isinstance(value, JsonObject):
        raise_error(
            "E0414",
            "a config file must be a JSON object",
            value.span,
            "but this is " + ("a list" if isinstance(value, JsonList) else "a single value"),
            helps=["use the config.json of the checkpoint"],
        )
    return value


class _JsonScanner:
    """Scans tokens of JSON text from a position."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.position = 1 if source.text.startswith("\ufeff") else 0

    @property
    def next_character(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position : self.position + 1]

    def skip_whitespace(self) -> None:
        """Skip whitespace."""
        found = _WHITESPACE.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def read_string(self) -> str:
        """Parse the string that starts here."""
        start, parts = self.position, list[str]()
        self.position += 1
        while True:
            run = _PLAIN_CHARACTERS.match(self.text, self.position)
            assert run is not None
            parts.append(run[0])
            self.position = run.end()
            match self.next_character:
                case '"':
                    self.position += 1
                    return self.join_surrogates("".join(parts), start)
                case "\\":
                    parts.append(self.read_escape())
                case "":
                    self.position = start
                    self.raise_error_here("this string is never closed", help='close it with "')
                case _:
                    self.raise_error_here(
                        "a control character in a string", help="write line breaks as \\n"
                    )

    def read_escape(self) -> str:
        """Parse an escape sequence; `join_surrogates` joins surrogate pairs."""
        letter = self.text[self.position + 1 : self.position + 2]
        if letter in _ESCAPES and letter:
            self.position += 2
            return _ESCAPES[letter]
        digits = self.text[self.position + 2 : self.position + 6]
        if letter != "u" or not re.fullmatch("[0-9a-fA-F]{4}", digits):
            self.raise_error_here("unknown escape sequence", help="write a backslash as \\\\")
        self.position += 6
        return chr(int(digits, 16))

    def join_surrogates(self, text: str, start: int) -> str:
        """Join surrogate pairs in the string."""
        if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text):
            return text
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self.position = start
            self.raise_error_here("this string has half of a surrogate pair")

    def span_from(self, start: int) -> Span:
        """Return the span from `start` to the current position."""
        return Span(self.source, start, self.position)

    def span_ahead(self, length: int) -> Span:
        """Return the span of the next characters; at the end of the text, of the last one."""
        start = min(self.position, max(0, len(self.text) - 1))
        return Span(self.source, start, min(start + length, len(self.text)))

    def raise_error_here(self, what: str, *, help: str = "") -> NoReturn:
        """Raise E0411 at this position."""
        raise_error(
            "E0411",
            f"`{self.source.name}` is not valid JSON",
            self.span_ahead(1),
            what,
            helps=[help] if help else ["correct it, or download the file again"],
        )


class _JsonParser:
    """Recursive-descent parser with a depth limit."""

    def __init__(self, source: Source) -> None:
        self.scanner = _JsonScanner(source)
        self.value_count = 0

    def parse_document(self) -> JsonNode:
        """Parse the single value of the document."""
        value = self.parse_value(0)
        self.scanner.skip_whitespace()
        if self.scanner.position < len(self.scanner.text):
            self.scanner.raise_error_here(
                "expected the end of the file", help="a config file is one { … }; remove the rest"
            )
        return value

    def parse_value(self, level: int) -> JsonNode:
        """Parse a value after optional whitespace."""
        self.scanner.skip_whitespace()
        self.value_count += 1
        if level >= MAX_JSON_DEPTH or self.value_count > MAX_JSON_VALUES:
            what = f"is nested deeper than {MAX_JSON_DEPTH} levels"
            if level < MAX_JSON_DEPTH:
                what = f"has more than {MAX_JSON_VALUES} values"
            helps = ["config files of models are smaller; download it again"]
            raise_error("E0415", f"the config file {what}", self.scanner.span_ahead(1), helps=helps)
        match self.scanner.next_character:
            case "{":
                return _decode_float_object(self.parse_object(level))
            case "[":
                return self.parse_list(level)
            case '"':
                start = self.scanner.position
                return JsonScalar(self.scanner.read_string(), self.scanner.span_from(start))
            case "":
                return self.scanner.raise_error_here(
                    "expected a value, got the end of the file",
                    help="the file is truncated; download it again",
                )
            case _:
                return self.parse_scalar()

    def parse_object(self, level: int) -> JsonObject:
        """Parse `{ "key": value, … }`."""
        start, members = self.scanner.position, dict[str, JsonMember]()
        self.scanner.position += 1
        while not self.parse_end_or_comma("}", bool(members), "a key"):
            key_start = self.scanner.position
            if self.scanner.text[self.scanner.position] != '"':
                self.scanner.raise_error_here(
                    "expected a key in double quotes", help='write keys as "key"'
                )
            key = self.scanner.read_string()
            key_span = self.scanner.span_from(key_start)
            # RFC 8259 does not say which of two equal keys counts
            if key in members:
                raise_error(
                    "E0412",
                    f"duplicate key `{key}` in the config file",
                    key_span,
                    "again here",
                    others=[Label(members[key].key, "first here")],
                    helps=["remove the wrong one: JSON readers disagree on which counts"],
                )
            self.scanner.skip_whitespace()
            if self.scanner.next_character != ":":
                self.scanner.raise_error_here("expected a colon between key and value")
            self.scanner.position += 1
            members[key] = JsonMember(key_span, self.parse_value(level + 1))
        return JsonObject(members, self.scanner.span_from(start))

    def parse_list(self, level: int) -> JsonList:
        """Parse `[ value, … ]`."""
        start, items = self.scanner.position, list[JsonNode]()
        self.scanner.position += 1
        while not self.parse_end_or_comma("]", bool(items), "a value"):
            items.append(self.parse_value(level + 1))
        return JsonList(tuple(items), self.scanner.span_from(start))

    def parse_end_or_comma(self, bracket: str, some: bool, due: str) -> bool:
        """Return whether the list ends here; otherwise skip the comma before the next item."""
        self.scanner.skip_whitespace()
        if self.scanner.next_character == bracket:
            self.scanner.position += 1
            return True
        if some:
            if self.scanner.next_character != ",":
                self.scanner.raise_error_here(f"expected a comma or `{bracket}`")
            # point at the comma, not at what follows it
            comma = self.scanner.position
            self.scanner.position += 1
            self.scanner.skip_whitespace()
            if self.scanner.next_character == bracket:
                self.scanner.position = comma
                self.scanner.raise_error_here("trailing comma", help="remove the comma")
        if self.scanner.position >= len(self.scanner.text):
            self.scanner.raise_error_here(
                f"expected {due} or `{bracket}`, got the end of the file",
                help="the file is truncated; download it again",
            )
        return False

    def parse_scalar(self) -> JsonScalar:
        """Parse a number or one of `_LITERAL_VALUES`."""
        start = self.scanner.position
        word = _LITERAL_WORD.match(self.scanner.text, self.scanner.position)
        if not word:
            self.scanner.raise_error_here("expected a value")
        self.scanner.position = word.end()
        span = self.scanner.span_from(start)
        if word[0] in _LITERAL_VALUES:
            return JsonScalar(_LITERAL_VALUES[word[0]], span)
        number = _NUMBER.fullmatch(word[0])
        if number:
            return JsonScalar(_convert_number(word[0], bool(number[1] or number[2]), span), span)
        self.scanner.position = start
        lower = word[0].lower()
        close = {"none": "null", "nil": "null", "nan": "NaN"}.get(
            lower, lower if lower in _LITERAL_VALUES else ""
        )
        return self.scanner.raise_error_here(
            f"`{word[0][:40]}` is not a JSON value", help=format_suggestion(close) if close else ""
        )


def _decode_float_object(value: JsonObject) -> JsonNode:
    """Return the float that transformers writes as `{"__float__": "Infinity"}`, because
    standard JSON has no such number; any other object as it is.
    """
    member = value.members.get("__float__")
    if member is None or len(value.members) > 1 or not isinstance(member.value, JsonScalar):
        return value
    name = member.value.value
    number = _LITERAL_VALUES.get(name) if isinstance(name, str) else None
    return JsonScalar(number, value.span) if isinstance(number, float) else value


def _convert_number(text: str, real: bool, span: Span) -> int | float:
    """Convert a number that fits a 53-bit integer or a finite float. Raise E0413 otherwise."""
    if real:
        value = float(text)
        if not math.isfinite(value):
            raise_bad_number("too large for a floating-point number", span)
        return value
    # check the length first: `int` of a million digits is slow
    if len(text) > 17 or abs(int(text)) >= MAX_JSON_INTEGER:
        raise_bad_number("not below 2^53", span)
    return int(text)
