"""Lexer of the textual IR: lines and tokens (names, numbers, strings, types).

Everything is checked when read; an error raises E0928 with its location.
"""

import json
import re
from collections.abc import Iterator
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source, Span
from specc.ir.dim import Dim, DimError
from specc.ir.dim_parser import parse_dim
from specc.ir.types import ALL_DTYPES, Type

MAX_RANK = 32

STRING_PATTERN = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
NAME_PATTERN = re.compile(r"[A-Za-z_][\w.]*")
KEYWORD_PATTERN = re.compile(r"[a-z_][a-z0-9_]*")
VALUE_PATTERN = re.compile(r"%(0|[1-9]\d{0,8})(?!\d)")
NUMBER_PATTERN = re.compile(r"-?(?:inf|nan|\d[\d.]*(?:[eE][-+]?\d+)?)")
TYPE_PATTERN = re.compile(r"(\w+)\[([^\[\]]*)\]")
DIM_PATTERN = re.compile(r"<([^<>]*)>")
REST_OF_LINE_PATTERN = re.compile(r".+")


class IrLineReader:
    """The lines of a text, one at a time, and a place in the current one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.nodes = 0
        self.line = ""
        self.column = 0
        self._load()

    def _load(self) -> None:
        self.start = self.at
        end = self.source.text.find("\n", self.at)
        end = len(self.source.text) if end < 0 else end
        whole = self.source.text[self.at : end]
        self.line, self.column = whole, len(whole) - len(whole.lstrip(" "))

    def advance(self) -> None:
        """Go to the next line; the current one must be consumed."""
        if self.column != len(self.line):
            self.wrong("this is not expected here")
        self.at = min(self.start + len(self.line) + 1, len(self.source.text))
        self._load()

    def here(self) -> Span:
        """Return the rest of the current line."""
        return Span(self.source, self.start + self.column, self.start + len(self.line))

    def wrong(self, what: str, span: Span | None = None) -> NoReturn:
        """Raise E0928 at the current position, or at `span`."""
        span = span or self.here()
        raise_error(
            "E0928", f"the graph text is wrong: {what}", span, helps=["compile the model again"]
        )

    def peek(self, word: str) -> bool:
        """Return whether `word` is next."""
        return self.line.startswith(word, self.column)

    def skip(self, word: str) -> bool:
        """Consume `word` if it is next; return whether it was."""
        if not self.peek(word):
            return False
        self.column += len(word)
        return True

    def expect(self, word: str) -> None:
        """Consume `word`; E0928 if it is not next."""
        if not self.skip(word):
            self.wrong(f"`{word}` is expected")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Step over what `pattern` matches here."""
        found = pattern.match(self.line, self.column)
        if not found:
            self.wrong(f"{what} is expected")
        self.column = found.end()
        return found

    def text(self) -> str:
        """Read a quoted string."""
        raw = self.match(STRING_PATTERN, "a text between quotes").group()
        try:
            value = json.loads(raw)
        except ValueError:
            self.wrong("this text has an escape that does not exist")
        assert isinstance(value, str)
        return value

    def dim(self, text: str) -> Dim:
        """Parse a length."""
        try:
            return parse_dim(text)
        except DimError as error:
            self.wrong(str(error))

    def number(self) -> int | float:
        """Read an int, or a float if it has a point or an exponent."""
        raw = self.match(NUMBER_PATTERN, "a number").group()
        try:
            if raw.lstrip("-").isdecimal():
                if len(raw) > 17:
                    self.wrong("this number is too long")
                return int(raw)
            return float(raw)
        except ValueError:
            self.wrong(f"`{raw}` is no number")

    def type(self) -> Type:
        """Read an element type and a shape."""
        dtype, inside = self.match(TYPE_PATTERN, "a type").groups()
        if dtype not in ALL_DTYPES:
            self.wrong(f"there is no element type `{dtype}`")
        dims = tuple(self.dim(d) for d in _split_at_commas(inside))
        if len(dims) > MAX_RANK:
            self.wrong(f"more than {MAX_RANK} axes")
        return Type(dtype, dims)


def _split_at_commas(text: str) -> Iterator[str]:
    """Split `a, min(b, c), d` at commas outside of brackets."""
    depth, start = 0, 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            yield text[start:n]
            start = n + 1
    if text.strip():
        yield text[start:]
