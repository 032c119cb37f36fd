"""A piece of expression text and where each of its characters stands in the user's
file.

In a `.specc` file the piece is the file. In YAML it is one scalar, whose characters may
have been written with quotes and escapes.
"""

from dataclasses import dataclass

from specc.text.source import Source, Span


@dataclass(frozen=True, slots=True)
class Fragment:
    """`text`, with `places[n]` the offset in `source` of character `n` and one more for
    the end.

    Without `places` the text stands in `source` as it is, from `start` on. `scalar`
    says that the text is the value of a YAML scalar, where a `#` starts no comment.
    """

    source: Source
    text: str
    start: int = 0
    places: tuple[int, ...] | None = None
    scalar: bool = False

    def span(self, start: int, end: int) -> Span:
        """Where characters `start` to `end` of the text stand in the file."""
        if self.places is None:
            return Span(self.source, self.start + start, self.start + end)
        first = self.places[start]
        last = self.places[end] if end > start else first
        return Span(self.source, first, max(first, last))


def whole(source: Source) -> Fragment:
    """The whole file as one piece."""
    return Fragment(source, source.text)
