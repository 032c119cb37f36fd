"""Characters of a text ↔ lines and columns as the protocol counts them: from 0, columns
in UTF-16 code units unless client and server agree on another.
"""

import re
from bisect import bisect_right
from functools import cached_property, lru_cache
from typing import NamedTuple

LINE_END = re.compile(r"\r\n|\r|\n")
UNITS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
"""How each way to count encodes a text, and the bytes of one unit."""


class Place(NamedTuple):
    """A line and a column, both from 0."""

    line: int
    column: int


class Lines:
    """The lines of one text. Only what the protocol calls a line end is one: a form feed
    inside a line is a character like others.
    """

    def __init__(self, text: str, encoding: str = "utf-16") -> None:
        self.text = text
        self.name = encoding
        self.encoding, self.unit = UNITS.get(encoding, UNITS["utf-16"])

    @cached_property
    def _ends(self) -> list[re.Match[str]]:
        return list(LINE_END.finditer(self.text))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(end.end() for end in self._ends)]

    def place(self, offset: int) -> Place:
        """Where a character stands; one past the end stands at the end."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._starts, offset) - 1
        return Place(line, self._units(self.text[self._starts[line] : offset]))

    def offset(self, line: int, column: int) -> int:
        """The character at a place; what lies past a line is its end."""
        if line < 0:
            return 0
        if line >= len(self._starts):
            return len(self.text)
        start = self._starts[line]
        end = self._ends[line].start() if line < len(self._ends) else len(self.text)
        for offset in range(start, end):
            if column <= 0:
                return offset
            column -= self._units(self.text[offset])
        return end

    def _units(self, text: str) -> int:
        # half a pair may stand in a text that an editor sends
        return len(text.encode(self.encoding, "surrogatepass")) // self.unit


@lru_cache(maxsize=16)
def lines_of(text: str, encoding: str) -> Lines:
    """The lines of a text, counted once: every request asks for them."""
    return Lines(text, encoding)
