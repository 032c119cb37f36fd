"""Parse config.json strictly, every value with its source span (E0410 to E0415)."""

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
MAX_JSON_VALUES = 1 << 16  # names of 21 843 classes, both ways, are 43 690

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD = re.compile(r"[-+]?[A-Za-z_][A-Za-z_0-9]*|[-+.0-9A-Za-z]+")
_PLAIN_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS: dict[str, bool | float | None] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def decode_config_source(data: bytes, name: str) -> Source:
    """The text of a configuration file. Fails with E0410 if it is none."""
    if found := identify_foreign_file(data[:64], name):
        raise_error("E0410", f"`{name}` is not a configuration but {found[0]}", helps=[found[1]])
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise_error(
            "E0410",
            f"`{name}` is not UTF-8 text",
            notes=[f"byte {error.start} cannot be read"],
            helps=["save it again as UTF-8, or download it again"],
        )


def parse_config_json(source: Source) -> JsonObject:
    """The object a configuration holds. Fails with E0411 to E0415."""
    if found := identify_foreign_file(source.text[:64].encode("utf-8", "replace"), source.name):
        raise_error(
            "E0410", f"`{source.name}` is not a configuration but {found[0]}", helps=[found[1]]
        )
    reader = _JsonParser(source)
    value = reader.document()
    if not isinstance(value, JsonObject):
        raise_error(
            "E0414",
            "a configuration is a table of names and values",
            value.span,
            "but this is " + ("a list" if isinstance(value, JsonList) else "a single value"),
            helps=["give the config.json that belongs to the checkpoint"],
        )
    return value


class _JsonScanner:
    """A place in the text, and what can be taken from it without knowing what is around."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.at = 1 if source.text.startswith("\ufeff") else 0

    @property
    def next(self) -> str:
        """The next character; nothing at the end."""
        return self.text[self.at : self.at + 1]

    def space(self) -> None:
        """Passes over spaces and line ends."""
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def string(self) -> str:
        """The text in double quotes that begins here."""
        start, parts = self.at, list[str]()
        self.at += 1
        while True:
            run = _PLAIN_CHARACTERS.match(self.text, self.at)
            assert run is not None
            parts.append(run[0])
            self.at = run.end()
            match self.next:
                case '"':
                    self.at += 1
                    return self.whole("".join(parts), start)
                case "\\":
                    parts.append(self.escape())
                case "":
                    self.at = start
                    self.refuse("this text is never closed", help='close it with "')
                case _:
                    self.refuse(
                        "a control character stands in a text", help="write line breaks as \\n"
                    )

    def escape(self) -> str:
        """A character behind a backslash; halves of pairs are joined by `whole`."""
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in _ESCAPES and letter:
            self.at += 2
            return _ESCAPES[letter]
        digits = self.text[self.at + 2 : self.at + 6]
        if letter != "u" or not re.fullmatch("[0-9a-fA-F]{4}", digits):
            self.refuse("this escape is not known", help="a backslash is written \\\\")
        self.at += 6
        return chr(int(digits, 16))

    def whole(self, text: str, start: int) -> str:
        """The text with pairs of surrogates joined."""
        if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text):
            return text
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self.at = start
            self.refuse("this text holds half of a character pair")

    def span(self, start: int) -> Span:
        """From `start` to here."""
        return Span(self.source, start, self.at)

    def here(self, length: int) -> Span:
        """The next characters; at the end of the text, the last one."""
        start = min(self.at, max(0, len(self.text) - 1))
        return Span(self.source, start, min(start + length, len(self.text)))

    def refuse(self, what: str, *, help: str = "") -> NoReturn:
        """Fails with E0411 at this place."""
        raise_error(
            "E0411",
            f"`{self.source.name}` is not valid JSON",
            self.here(1),
            what,
            helps=[help] if help else ["mend this place, or get the file again"],
        )


class _JsonParser:
    """One pass over the text, by recursive descent no deeper than the limit."""

    def __init__(self, source: Source) -> None:
        self.scan = _JsonScanner(source)
        self.values = 0

    def document(self) -> JsonNode:
        """The one value of the text."""
        value = self.value(0)
        self.scan.space()
        if self.scan.at < len(self.scan.text):
            self.scan.refuse(
                "nothing more is expected here",
                help="a configuration is one { … }; take the rest away",
            )
        return value

    def value(self, level: int) -> JsonNode:
        """The value that begins here, behind spaces."""
        self.scan.space()
        self.values += 1
        if level >= MAX_JSON_DEPTH or self.values > MAX_JSON_VALUES:
            what = f"is nested deeper than {MAX_JSON_DEPTH} levels"
            if level < MAX_JSON_DEPTH:
                what = f"holds more than {MAX_JSON_VALUES} values"
            helps = ["no model's configuration is; get the file again"]
            raise_error("E0415", f"the configuration {what}", self.scan.here(1), helps=helps)
        match self.scan.next:
            case "{":
                return self.object(level)
            case "[":
                return self.list(level)
            case '"':
                start = self.scan.at
                return JsonScalar(self.scan.string(), self.scan.span(start))
            case "":
                return self.scan.refuse(
                    "the text ends where a value is due", help="the file is cut off; get it again"
                )
            case _:
                return self.scalar()

    def object(self, level: int) -> JsonObject:
        """`{ "key": value, … }`."""
        start, members = self.scan.at, dict[str, JsonMember]()
        self.scan.at += 1
        while not self.closes("}", bool(members), "a key"):
            key_start = self.scan.at
            if self.scan.text[self.scan.at] != '"':
                self.scan.refuse("a key in double quotes is due here", help='write keys as "key"')
            key = self.scan.string()
            key_span = self.scan.span(key_start)
            # RFC 8259 leaves open which counts, and programs differ
            if key in members:
                raise_error(
                    "E0412",
                    f"the configuration gives `{key}` twice",
                    key_span,
                    "again here",
                    others=[Label(members[key].key, "first here")],
                    helps=["keep the one that is right; programs disagree on which of two counts"],
                )
            self.scan.space()
            if self.scan.next != ":":
                self.scan.refuse("a colon is due here, between a key and its value")
            self.scan.at += 1
            members[key] = JsonMember(key_span, self.value(level + 1))
        return JsonObject(members, self.scan.span(start))

    def list(self, level: int) -> JsonList:
        """`[ value, … ]`."""
        start, items = self.scan.at, list[JsonNode]()
        self.scan.at += 1
        while not self.closes("]", bool(items), "a value"):
            items.append(self.value(level + 1))
        return JsonList(tuple(items), self.scan.span(start))

    def closes(self, bracket: str, some: bool, due: str) -> bool:
        """Whether the list ends here; if not, the comma before the next item is passed over."""
        self.scan.space()
        if self.scan.next == bracket:
            self.scan.at += 1
            return True
        if some:
            if self.scan.next != ",":
                self.scan.refuse(f"a comma or `{bracket}` is due here")
            # to point at the comma, not at what follows it
            comma = self.scan.at
            self.scan.at += 1
            self.scan.space()
            if self.scan.next == bracket:
                self.scan.at = comma
                self.scan.refuse("a comma with nothing behind it", help="take the comma away")
        if self.scan.at >= len(self.scan.text):
            self.scan.refuse(
                f"the text ends where {due} or `{bracket}` is due",
                help="the file is cut off; get it again",
            )
        return False

    def scalar(self) -> JsonScalar:
        """Read a number or one of the words of `_WORDS`."""
        start = self.scan.at
        word = _WORD.match(self.scan.text, self.scan.at)
        if not word:
            self.scan.refuse("no value can begin like this")
        self.scan.at = word.end()
        span = self.scan.span(start)
        if word[0] in _WORDS:
            return JsonScalar(_WORDS[word[0]], span)
        number = _NUMBER.fullmatch(word[0])
        if number:
            return JsonScalar(_convert_number(word[0], bool(number[1] or number[2]), span), span)
        self.scan.at = start
        lower = word[0].lower()
        close = {"none": "null", "nil": "null", "nan": "NaN"}.get(
            lower, lower if lower in _WORDS else ""
        )
        return self.scan.refuse(
            f"`{word[0][:40]}` is no JSON value", help=format_suggestion(close) if close else ""
        )


def _convert_number(text: str, real: bool, span: Span) -> int | float:
    """The number a text denotes, if a 53-bit integer or a finite float holds it."""
    if real:
        value = float(text)
        if not math.isfinite(value):
            raise_bad_number("too large for a floating-point number", span)
        return value
    # the length first: `int` of a million digits takes long
    if len(text) > 17 or abs(int(text)) >= MAX_JSON_INTEGER:
        raise_bad_number("not below 2^53", span)
    return int(text)
