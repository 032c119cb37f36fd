"""Source text and spans."""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Source:
    """A named source text. `name` is shown in messages: the path as given by the user, or a
    placeholder such as `<input>`.
    """

    name: str
    text: str = field(repr=False)

    @cached_property
    def _line_starts(self) -> list[int]:
        """The offset of the first character of each line."""
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def get_line_and_column(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column of the character at an offset."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def get_line_text(self, number: int) -> str:
        """Return the text of line `number` (1-based), without its line end."""
        start = self._line_starts[number - 1]
        end = self._line_starts[number] - 1 if number < len(self._line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r")


@dataclass(frozen=True, slots=True)
class Span:
    """The characters of `source` from `start` to `end` (exclusive).

    `caller` is the span of the user's call if the text is in the standard library. `normalizer` is
    the name of the normalizer if the text computes values of a normalizer.
    """

    source: Source
    start: int
    end: int
    caller: "Span | None" = None
    normalizer: str = ""

    @property
    def text(self) -> str:
        """The text of the span."""
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        """The 1-based line of the first character."""
        return self.source.get_line_and_column(self.start)[0]

    @property
    def column(self) -> int:
        """The 1-based column of the first character."""
        return self.source.get_line_and_column(self.start)[1]

    def extend_to(self, other: "Span") -> "Span":
        """Return the span from the start of this span to the end of `other`, which is in the same
        source.
        """
        return replace(self, end=max(self.end, other.end))

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: its source span, and a description for messages."""

    span: Span | None
    text: str = ""
