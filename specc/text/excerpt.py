"""Source lines with the marks under them, as a diagnostic shows them.

The user's own line is shown, never a reconstruction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specc.text.characters import columns, escaped, width
from specc.text.source import Span

if TYPE_CHECKING:
    # as in `specc.text.render`
    from specc.text.diagnostic import Diagnostic, Label

WIDEST = 160
"""Columns of a source line that are shown; of a longer one a window around the mark."""

LONG = 1000
"""Characters of a line from which on only those near the marks are looked at."""

COLORS = {
    "error": "1;31",
    "warning": "1;33",
    "primary": "1;31",
    "other": "1;34",
    "rim": "34",
    "note": "1",
    "help": "1;32",
}


@dataclass(frozen=True, slots=True)
class Paint:
    """Colors for a terminal that wants them."""

    on: bool

    def __call__(self, role: str, text: str) -> str:
        """A text in the color of its role."""
        return f"\x1b[{COLORS[role]}m{text}\x1b[0m" if self.on and text else text


def by_source(diagnostic: "Diagnostic") -> list[list["Label"]]:
    """The labels by file, that of the primary label first."""
    labels = [
        label for label in (diagnostic.primary, *diagnostic.others) if label is not None
    ]
    groups: dict[int, list[Label]] = {}
    for label in labels:
        groups.setdefault(id(label.span.source), []).append(label)
    return list(groups.values())


def excerpt(
    labels: Sequence["Label"],
    primary: "Label | None",
    rim: str,
    paint: Paint,
    *,
    first: bool,
) -> list[str]:
    """The lines of one file that labels point at."""
    # `-->` leads to the fault, `:::` to other files that have a part in it
    source = labels[0].span.source
    arrow = "-->" if first else ":::"
    out = [f"{rim}{paint('rim', arrow)} {escaped(str(labels[0].span))}"]
    if not source.text:  # said of a file that could not be read
        return out
    by_line: dict[int, list[Label]] = {}
    for label in labels:
        by_line.setdefault(anchor(label.span)[0], []).append(label)
    bar = paint("rim", "|")
    out.append(f"{rim} {bar}")
    previous = None
    for number in sorted(by_line):
        skipped = number - previous - 1 if previous is not None else 0
        # `...` for one line would take as much room as the line
        if skipped == 1:
            between = View.of(source.line(number - 1), [(0, 0, 0)])
            out.append(numbered(number - 1, between, rim, paint))
        elif skipped > 1:
            out.append(paint("rim", "..."))
        here = sorted(by_line[number], key=lambda label: anchor(label.span)[1])
        view = View.of(source.line(number), [anchor(label.span) for label in here])
        out.append(numbered(number, view, rim, paint))
        out += [f"{rim} {bar} {line}" for line in marks(view, here, primary, paint)]
        previous = number
    return out


def anchor(span: Span) -> tuple[int, int, int]:
    """Line, and first and last offset in it, of the mark of a span: its first line only."""
    number, column = span.source.position(span.start)
    line = span.source.line(number)
    # a span may begin at the line break, or end lines later
    start = min(column - 1, len(line))
    end = min(start + span.end - span.start, len(line))
    return number, start, max(end, start)


@dataclass(frozen=True, slots=True)
class View:
    """What is shown of a source line: columns `start` to `start + WIDEST` of its
    characters from `base` on.

    `places[n]` is the column of character `base + n`, counted from the column of
    character `base`.
    """

    text: str
    places: list[int]
    base: int
    start: int
    more: bool

    @classmethod
    def of(cls, line: str, anchors: Sequence[tuple[int, int, int]]) -> "View":
        """All of a short line; of a long one, what is around the first mark."""
        first = min(a[1] for a in anchors)
        base = max(0, first - LONG // 2) if len(line) > LONG else 0
        part = line[base : base + LONG]
        text, places = columns(part)
        whole = base == 0 and len(part) == len(line) and places[-1] <= WIDEST
        start = 0 if whole else max(0, places[first - base] - WIDEST // 2)
        return cls(text, places, base, start, len(part) < len(line) - base)

    def column(self, character: int) -> int:
        """Where a character of the line is shown, from 0."""
        place = self.places[max(0, min(character - self.base, len(self.places) - 1))]
        return max(0, min(place - self.start + (1 if self.cut else 0), WIDEST + 1))

    @property
    def cut(self) -> bool:
        """Whether something before the shown part is left out."""
        return self.start > 0 or self.base > 0

    def shown(self) -> str:
        """The text, `…` where something is left out."""
        at, out = 0, []
        # a character of two columns counts where it starts
        for character in self.text:
            if self.start <= at < self.start + WIDEST:
                out.append(character)
            at += width(character)
        return (
            ("…" if self.cut else "")
            + "".join(out)
            + ("…" if self.more or at > self.start + WIDEST else "")
        )


def numbered(number: int, view: View, rim: str, paint: Paint) -> str:
    """A source line behind its number."""
    return f"{paint('rim', str(number).rjust(len(rim)) + ' |')} {view.shown()}"


def marks(
    view: View, labels: Sequence["Label"], primary: "Label | None", paint: Paint
) -> list[str]:
    """The lines under a source line: `^^^^` and `----`, then what they say."""
    spots: list[tuple[int, int, Label]] = []
    for label in labels:
        _, start, end = anchor(label.span)
        first = view.column(start)
        spots.append((first, max(first + 1, view.column(end)), label))
    row: list[str] = []
    # the primary mark lies on top
    for first, last, label in sorted(spots, key=lambda s: s[2] is primary):
        sign, role = ("^", "primary") if label is primary else ("-", "other")
        row += [" "] * (last - len(row))
        row[first:last] = [paint(role, sign)] * (last - first)
    _, _, final = spots[-1]
    role = "primary" if final is primary else "other"
    out = [
        "".join(row) + (" " + paint(role, escaped(final.text)) if final.text else "")
    ]
    # the last text stands behind its mark, the others below, from the right, with bars
    # down to those that are still to come
    for n in range(len(spots) - 2, -1, -1):
        first, _, label = spots[n]
        if label.text:
            waiting = [column for column, _, earlier in spots[:n] if earlier.text]
            bars = ["|" if column in waiting else " " for column in range(first)]
            role = "primary" if label is primary else "other"
            out.append("".join(bars) + paint(role, escaped(label.text)))
    return out
