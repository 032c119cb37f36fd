"""Render diagnostics as human-readable text: in full (with source excerpts and underlines), or as
one line each. Control characters from files are escaped.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from specc.diagnostics.source import Span

if TYPE_CHECKING:
    from specc.diagnostics.diagnostic import Diagnostic, Label


TAB_WIDTH = 4


def escape_control_characters(text: str) -> str:
    r"""Escape control characters, direction marks and line separators as `\u{1b}`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == " " else f"\\u{{{ord(c):x}}}" for c in text)


def measure_display_width(text: str) -> int:
    """Return the number of terminal columns of a string without control characters."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def expand_source_line(line: str) -> tuple[str, list[int]]:
    """Return a source line as displayed, and the display column of each of its characters and of
    its end.
    """
    shown: list[str] = []
    places = [0]
    for character in line:
        text = (
            " " * (TAB_WIDTH - places[-1] % TAB_WIDTH)
            if character == "\t"
            else escape_control_characters(character)
        )
        shown.append(text)
        places.append(places[-1] + measure_display_width(text))
    return "".join(shown), places


MAX_EXCERPT_WIDTH = 160
"""Maximum number of columns of a displayed source line; longer lines are truncated around the
label."""

LONG_LINE_LENGTH = 1000
"""Number of characters above which only the part of a source line near the labels is processed."""

ANSI_COLORS = {
    "error": "1;31",
    "warning": "1;33",
    "primary": "1;31",
    "other": "1;34",
    "margin": "34",
    "note": "1",
    "help": "1;32",
}


@dataclass(frozen=True, slots=True)
class Colorizer:
    """ANSI colors for a terminal."""

    is_enabled: bool

    def __call__(self, role: str, text: str) -> str:
        """Return a string in the color of its role."""
        return f"\x1b[{ANSI_COLORS[role]}m{text}\x1b[0m" if self.is_enabled and text else text


def group_labels_by_source(diagnostic: "Diagnostic") -> list[list["Label"]]:
    """Group labels by source file, beginning with the file of the primary label."""
    labels = [
        label for label in (diagnostic.primary, *diagnostic.related_labels) if label is not None
    ]
    groups: dict[int, list[Label]] = {}
    for label in labels:
        groups.setdefault(id(label.span.source), []).append(label)
    return list(groups.values())


def render_excerpt(
    labels: Sequence["Label"],
    primary: "Label | None",
    margin: str,
    paint: Colorizer,
    *,
    is_first: bool,
) -> list[str]:
    """Render the labeled source lines of one file."""
    # `-->` points to the error, `:::` to related locations in other files
    source = labels[0].span.source
    arrow = "-->" if is_first else ":::"
    out = [f"{margin}{paint('margin', arrow)} {escape_control_characters(str(labels[0].span))}"]
    if not source.text:  # the file could not be read
        return out
    by_line: dict[int, list[Label]] = {}
    for label in labels:
        by_line.setdefault(locate_underline(label.span)[0], []).append(label)
    bar = paint("margin", "|")
    out.append(f"{margin} {bar}")
    previous = None
    for number in sorted(by_line):
        skipped = number - previous - 1 if previous is not None else 0
        # a `...` in place of a single line would save no space
        if skipped == 1:
            between = SourceLineExcerpt.from_line(source.get_line_text(number - 1), [(0, 0, 0)])
            out.append(render_numbered_line(number - 1, between, margin, paint))
        elif skipped > 1:
            out.append(paint("margin", "..."))
        here = sorted(by_line[number], key=lambda label: locate_underline(label.span)[1])
        view = SourceLineExcerpt.from_line(
            source.get_line_text(number), [locate_underline(label.span) for label in here]
        )
        out.append(render_numbered_line(number, view, margin, paint))
        out += [f"{margin} {bar} {line}" for line in render_underlines(view, here, primary, paint)]
        previous = number
    return out


def locate_underline(span: Span) -> tuple[int, int, int]:
    """Return the number of the first line of a span, and the underlined columns `start` to `end`
    (exclusive) in that line.
    """
    number, column = span.source.get_line_and_column(span.start)
    line = span.source.get_line_text(number)
    # a span may begin at a line break or end on a later line
    start = min(column - 1, len(line))
    end = min(start + span.end - span.start, len(line))
    return number, start, max(end, start)


@dataclass(frozen=True, slots=True)
class SourceLineExcerpt:
    """The displayed part of a source line: MAX_EXCERPT_WIDTH columns from `start` on.

    `text` begins at `first_character` of the line; `columns[n]` is the column of character `n` of
    `text`, relative to the first character.
    """

    text: str
    columns: list[int]
    first_character: int
    start: int
    is_truncated_right: bool

    @classmethod
    def from_line(cls, line: str, anchors: Sequence[tuple[int, int, int]]) -> "SourceLineExcerpt":
        """Return the complete line if it is short, or the part around its first label."""
        mark = min(a[1] for a in anchors)
        first = max(0, mark - LONG_LINE_LENGTH // 2) if len(line) > LONG_LINE_LENGTH else 0
        part = line[first : first + LONG_LINE_LENGTH]
        text, columns = expand_source_line(part)
        is_whole = len(part) == len(line) and columns[-1] <= MAX_EXCERPT_WIDTH
        start = 0 if is_whole else max(0, columns[mark - first] - MAX_EXCERPT_WIDTH // 2)
        return cls(text, columns, first, start, len(part) < len(line) - first)

    def column(self, character: int) -> int:
        """Return the 0-based display column of a character."""
        column = self.columns[max(0, min(character - self.first_character, len(self.columns) - 1))]
        return max(0, min(column - self.start + self.is_truncated_left, MAX_EXCERPT_WIDTH + 1))

    @property
    def is_truncated_left(self) -> bool:
        """True if the beginning of the line is omitted."""
        return self.start > 0 or self.first_character > 0

    def render(self) -> str:
        """Return the displayed text, with `…` for omitted parts."""
        column, stop, out = 0, self.start + MAX_EXCERPT_WIDTH, ""
        # a wide character belongs to its first column
        for character in self.text:
            if self.start <= column < stop:
                out += character
            column += measure_display_width(character)
        end = "…" if self.is_truncated_right or column > stop else ""
        return ("…" if self.is_truncated_left else "") + out + end


def render_numbered_line(
    number: int, excerpt: SourceLineExcerpt, margin: str, paint: Colorizer
) -> str:
    """Format a source line with its number."""
    return f"{paint('margin', str(number).rjust(len(margin)) + ' |')} {excerpt.render()}"


def render_underlines(
    excerpt: SourceLineExcerpt, labels: Sequence["Label"], primary: "Label | None", paint: Colorizer
) -> list[str]:
    """Render the underlines of a source line (`^^^^`, `----`) and their messages."""
    underlines: list[tuple[int, int, Label]] = []
    for label in labels:
        _, start, end = locate_underline(label.span)
        first = excerpt.column(start)
        underlines.append((first, max(first + 1, excerpt.column(end)), label))
    _, _, final = underlines[-1]
    suffix = " " + render_label_text(final, primary, paint) if final.text else ""
    out = [render_underline_row(underlines, primary, paint) + suffix]
    # the message of the rightmost label is on the line of the underlines; other messages are below,
    # from right to left, connected to their underlines by bars
    for n in range(len(underlines) - 2, -1, -1):
        first, _, label = underlines[n]
        if label.text:
            bar_columns = [column for column, _, earlier in underlines[:n] if earlier.text]
            bars = ["|" if column in bar_columns else " " for column in range(first)]
            out.append("".join(bars) + render_label_text(label, primary, paint))
    return out


def render_underline_row(
    underlines: Sequence[tuple[int, int, "Label"]], primary: "Label | None", paint: Colorizer
) -> str:
    """Render a line of underlines, given as `(first column, last column + 1, label)`."""
    row: list[str] = []
    # the primary label is drawn over other labels
    for first, last, label in sorted(underlines, key=lambda s: s[2] is primary):
        sign, role = ("^", "primary") if label is primary else ("-", "other")
        row += [" "] * (last - len(row))
        row[first:last] = [paint(role, sign)] * (last - first)
    return "".join(row)


def render_label_text(label: "Label", primary: "Label | None", paint: Colorizer) -> str:
    """Render the message of a label in the color of its underline."""
    role = "primary" if label is primary else "other"
    return paint(role, escape_control_characters(label.text))


SYNTAX_CODE_PREFIX = "E01"
"""Prefix of the codes of syntax errors."""


def render_diagnostics(diagnostics: Iterable["Diagnostic"], *, color: bool = False) -> str:
    """Render diagnostics in full, separated by empty lines. A repeated message is rendered once, at
    its first location.
    """
    return "\n".join(
        render_full_diagnostic(d, color=color) for d in merge_similar_diagnostics(diagnostics)
    )


def render_full_diagnostic(diagnostic: "Diagnostic", *, color: bool = False) -> str:
    """Render a diagnostic with its source lines, notes and helps, ending with a line break."""
    paint = Colorizer(color)
    mark = paint(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
    out = [f"{mark}{paint('note', ': ' + escape_control_characters(diagnostic.title))}"]
    groups = group_labels_by_source(diagnostic)
    numbers = [
        label.span.source.get_line_and_column(label.span.end)[0]
        for labels in groups
        for label in labels
    ]
    margin = " " * len(str(max(numbers, default=0)))
    for n, labels in enumerate(groups):
        out += render_excerpt(labels, diagnostic.primary, margin, paint, is_first=n == 0)
    for word, texts in (
        ("note", (*diagnostic.notes, *_render_repetitions(diagnostic))),
        ("help", diagnostic.helps),
    ):
        for text in texts:
            head, *rest = text.split("\n")
            mark = f"{paint('margin', '=')} {paint(word, word)}"
            out.append(f"{margin} {mark}: {escape_control_characters(head)}")
            out += [f"{margin}         {escape_control_characters(line)}" for line in rest]
    return "\n".join(line.rstrip() for line in out) + "\n"


MAX_SHOWN_LOCATIONS = 6
"""Maximum number of locations of one message."""


def _render_repetitions(diagnostic: "Diagnostic") -> Iterator[str]:
    """Yield lines that state how often and where a message is repeated."""
    if diagnostic.count > 1:
        yield f"the same diagnostic occurs {diagnostic.count} times here"
    if not (others := diagnostic.related_locations):
        return
    shown = ", ".join(str(span) for span in others[:MAX_SHOWN_LOCATIONS])
    more = len(others) - MAX_SHOWN_LOCATIONS
    plural = "s" if len(others) > 1 else ""
    rest = f" and {more} more" if more > 0 else ""
    yield f"also at {len(others)} more place{plural}: {shown}{rest}"


def render_short_diagnostic(diagnostic: "Diagnostic") -> str:
    """Render `file:line:column: error[E0101]: title`."""
    place = (
        f"{escape_control_characters(str(diagnostic.primary.span))}: " if diagnostic.primary else ""
    )
    times = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    title = escape_control_characters(diagnostic.title)
    return f"{place}{diagnostic.severity}[{diagnostic.code}]: {title}{times}"


def merge_similar_diagnostics(diagnostics: Iterable["Diagnostic"]) -> list["Diagnostic"]:
    """Merge diagnostics that differ only in location into the first one, which then lists the other
    locations. Syntax errors are not merged.
    """
    firsts: dict[object, Diagnostic] = {}
    for found in diagnostics:
        label = found.primary.text if found.primary else ""
        message = (found.code, found.title, found.notes, found.helps, label, found.severity)
        # diagnostics without a location are not merged
        is_unique = found.primary is None or found.code.startswith(SYNTAX_CODE_PREFIX)
        key = found if is_unique else message
        first = firsts.setdefault(key, found)
        if first is not found and found.primary and not is_unique:
            elsewhere = (*first.related_locations, found.primary.span)
            firsts[key] = replace(first, related_locations=elsewhere)
    return list(firsts.values())


MAX_REPR_LENGTH = 199
"""Maximum number of characters of a `repr`, which notebooks display."""
MAX_TABLE_ROWS = 40
MAX_CELL_LENGTH = 500


def format_repr(text: str) -> str:
    """Format a `repr` such as `<specc text>`, truncated to MAX_REPR_LENGTH characters."""
    length = MAX_REPR_LENGTH - len("<specc >")
    return f"<specc {_truncate(escape_control_characters(text), length)}>"


def render_html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Render an HTML table of names and values. Rows with an empty value are omitted."""
    shown = [(name, text) for name, text in rows if text]
    if (more := len(shown) - MAX_TABLE_ROWS) > 0:
        shown = [*shown[:MAX_TABLE_ROWS], ("…", f"{more} more")]
    lines = "".join(
        f"<tr><th>{_escape_html_cell(name)}</th><td>{_escape_html_cell(text)}</td></tr>"
        for name, text in shown
    )
    return f"<table><caption>{_escape_html_cell(title)}</caption>{lines}</table>"


def format_io_types(types: Mapping[str, object]) -> str:
    """Format the types of inputs or outputs, e.g. `pixels f32[batch, 3, 224, 224], keep bool[batch,
    seq]`.
    """
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def format_thousands(count: int) -> str:
    """Format an integer with thousands separators, e.g. `85 798 656`."""
    return f"{count:,}".replace(",", " ")


def align_columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines with aligned columns."""
    rows = [*rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _escape_html_cell(text: str) -> str:
    return escape(_truncate(escape_control_characters(text), MAX_CELL_LENGTH))


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def extract_docstring_summary(doc: str | None) -> str:
    """Return the first paragraph of a docstring on one line, or "" if there is none."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())
