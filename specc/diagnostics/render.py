"""Render diagnostics as human-readable text: in full with source excerpts and underlines, or on one
line each. Control characters of source files are escaped.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from specc.diagnostics.immutable_dataclass import immutable_dataclass

if TYPE_CHECKING:
    from specc.diagnostics.diagnostic import Diagnostic, Label, Span


TAB_WIDTH = 4


def escape_control_characters(text: str) -> str:
    r"""Escape control characters, direction marks and line separators, as in `\u{1b}`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == " " else f"\\u{{{ord(c):x}}}" for c in text)


def get_display_width(text: str) -> int:
    """Return the display width in columns of a string without control characters."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def render_source_line(line: str) -> tuple[str, list[int]]:
    """Return the displayed text of a source line, and the display column of each character."""
    pieces: list[str] = []
    columns = [0]
    for character in line:
        text = (
            " " * (TAB_WIDTH - columns[-1] % TAB_WIDTH)
            if character == "\t"
            else escape_control_characters(character)
        )
        pieces.append(text)
        columns.append(columns[-1] + get_display_width(text))
    return "".join(pieces), columns


MAX_EXCERPT_WIDTH = 160
"""Maximum number of columns in a displayed source line. Longer lines are truncated on both sides of
the label.
"""

LONG_LINE_LENGTH = 1000
"""Maximum length of a completely processed source line. Longer lines are cut around the labels."""

ANSI_COLORS = {
    "error": "1;31",
    "warning": "1;33",
    "primary": "1;31",
    "other": "1;34",
    "margin": "34",
    "note": "1",
    "help": "1;32",
}


@immutable_dataclass
class Colorizer:
    """A function that colors text with ANSI escape sequences if `is_enabled` is set."""

    is_enabled: bool

    def __call__(self, role: str, text: str) -> str:
        """Return `text` in the color of `role`, which is a key of ANSI_COLORS."""
        return f"\x1b[{ANSI_COLORS[role]}m{text}\x1b[0m" if self.is_enabled and text else text


def group_labels_by_source(diagnostic: "Diagnostic") -> list[list["Label"]]:
    """Group the labels of a diagnostic by source file, beginning with the primary label's file."""
    groups: dict[int, list[Label]] = {}
    for label in diagnostic.labels:
        groups.setdefault(id(label.span.source), []).append(label)
    return list(groups.values())


def render_excerpt(
    labels: Sequence["Label"],
    primary: "Label | None",
    margin: str,
    colorize: Colorizer,
    *,
    is_first: bool,
) -> list[str]:
    """Render the labeled lines of one file. `margin` is the indentation of unnumbered lines."""
    # `-->` marks the location of the error, and `:::` marks related locations in other files
    source = labels[0].span.source
    arrow = "-->" if is_first else ":::"
    location = escape_control_characters(str(labels[0].span))
    lines = [f"{margin}{colorize('margin', arrow)} {location}"]
    if not source.text:  # the file could not be read, so there is no text to display
        return lines
    labels_by_line: dict[int, list[Label]] = {}
    for label in labels:
        labels_by_line.setdefault(locate_underline(label.span)[0], []).append(label)
    bar = colorize("margin", "|")
    lines.append(f"{margin} {bar}")
    previous = None
    for number in sorted(labels_by_line):
        skipped_count = number - previous - 1 if previous is not None else 0
        # if only one line would be skipped, print it, because the marker `...` would take a line,
        # too
        if skipped_count == 1:
            hidden_line = SourceLineExcerpt.from_line(source.get_line_text(number - 1), [(0, 0, 0)])
            lines.append(render_numbered_line(number - 1, hidden_line, margin, colorize))
        elif skipped_count > 1:
            lines.append(colorize("margin", "..."))
        line_labels = labels_by_line[number]
        line_labels.sort(key=lambda label: locate_underline(label.span)[1])
        underlines = [locate_underline(label.span) for label in line_labels]
        excerpt = SourceLineExcerpt.from_line(source.get_line_text(number), underlines)
        lines.append(render_numbered_line(number, excerpt, margin, colorize))
        underline_rows = render_underlines(excerpt, line_labels, primary, colorize)
        lines += [f"{margin} {bar} {row}" for row in underline_rows]
        previous = number
    return lines


def locate_underline(span: "Span") -> tuple[int, int, int]:
    """Return (line number, start column, exclusive end column) of the first line of a span."""
    number, column = span.source.get_line_and_column(span.start)
    line = span.source.get_line_text(number)
    # a span may begin at a line break or end on a later line than it begins
    start = min(column - 1, len(line))
    end = min(start + span.end - span.start, len(line))
    return number, start, max(end, start)


@immutable_dataclass
class SourceLineExcerpt:
    """The displayed part of a source line: at most MAX_EXCERPT_WIDTH columns, beginning at column
    `start`.

    `text` begins at character `first_character` of the line. `columns[n]` is the column of
    character `n` of `text`, relative to the first character of `text`.
    """

    text: str
    columns: list[int]
    first_character: int
    start: int
    is_truncated_right: bool

    @classmethod
    def from_line(cls, line: str, anchors: Sequence[tuple[int, int, int]]) -> "SourceLineExcerpt":
        """Return the excerpt of a line to display: the complete line if it is short, otherwise the
        part around its first label. `anchors` are the underline positions that `locate_underline`
        returned for the labels of the line.
        """
        anchor = min(a[1] for a in anchors)
        offset = max(0, anchor - LONG_LINE_LENGTH // 2) if len(line) > LONG_LINE_LENGTH else 0
        part = line[offset : offset + LONG_LINE_LENGTH]
        text, columns = render_source_line(part)
        is_complete = len(part) == len(line) and columns[-1] <= MAX_EXCERPT_WIDTH
        start = 0 if is_complete else max(0, columns[anchor - offset] - MAX_EXCERPT_WIDTH // 2)
        return cls(text, columns, offset, start, len(part) < len(line) - offset)

    def get_column(self, index: int) -> int:
        """Return the 0-based display column of the character at `index` of the source line."""
        column = self.columns[max(0, min(index - self.first_character, len(self.columns) - 1))]
        return max(0, min(column - self.start + self.is_truncated_left, MAX_EXCERPT_WIDTH + 1))

    @property
    def is_truncated_left(self) -> bool:
        """True if the beginning of the line is omitted."""
        return self.start > 0 or self.first_character > 0

    def render_text(self) -> str:
        """Return the displayed text of the excerpt, with `…` in place of omitted parts."""
        column, stop, shown_text = 0, self.start + MAX_EXCERPT_WIDTH, ""
        # the position of a wide character is its first column
        for character in self.text:
            if self.start <= column < stop:
                shown_text += character
            column += get_display_width(character)
        end = "…" if self.is_truncated_right or column > stop else ""
        return ("…" if self.is_truncated_left else "") + shown_text + end


def render_numbered_line(
    number: int, excerpt: SourceLineExcerpt, margin: str, colorize: Colorizer
) -> str:
    """Format a source line with its line number in the margin."""
    return f"{colorize('margin', str(number).rjust(len(margin)) + ' |')} {excerpt.render_text()}"


def render_underlines(
    excerpt: SourceLineExcerpt,
    labels: Sequence["Label"],
    primary: "Label | None",
    colorize: Colorizer,
) -> list[str]:
    """Render the underlines (`^^^^`, `----`) and label messages below a source line."""
    underlines: list[tuple[int, int, Label]] = []
    for label in labels:
        _, start, end = locate_underline(label.span)
        start_column = excerpt.get_column(start)
        underlines.append((start_column, max(start_column + 1, excerpt.get_column(end)), label))
    _, _, last_label = underlines[-1]
    suffix = " " + render_label_text(last_label, primary, colorize) if last_label.text else ""
    lines = [render_underline_row(underlines, primary, colorize) + suffix]
    # print the rightmost message next to its underline, and the other messages below, from right to
    # left, each connected to its underline by a bar
    for n in range(len(underlines) - 2, -1, -1):
        start_column, _, label = underlines[n]
        if label.text:
            bar_columns = [column for column, _, earlier in underlines[:n] if earlier.text]
            bars = ["|" if column in bar_columns else " " for column in range(start_column)]
            lines.append("".join(bars) + render_label_text(label, primary, colorize))
    return lines


def render_underline_row(
    underlines: Sequence[tuple[int, int, "Label"]], primary: "Label | None", colorize: Colorizer
) -> str:
    """Render underlines `(start column, end column, label)` as one line of text."""
    characters: list[str] = []
    # draw the primary label last, so that its underline overwrites other underlines
    for first, last, label in sorted(underlines, key=lambda s: s[2] is primary):
        sign, role = ("^", "primary") if label is primary else ("-", "other")
        characters += [" "] * (last - len(characters))
        characters[first:last] = [colorize(role, sign)] * (last - first)
    return "".join(characters)


def render_label_text(label: "Label", primary: "Label | None", colorize: Colorizer) -> str:
    """Render a label's message in the color of its underline."""
    role = "primary" if label is primary else "other"
    return colorize(role, escape_control_characters(label.text))


SYNTAX_CODE_PREFIX = "E01"
"""The prefix of diagnostic codes for syntax errors."""


def render_diagnostics(diagnostics: Iterable["Diagnostic"], *, color: bool = False) -> str:
    """Render diagnostics in full, separated by empty lines, after merging similar diagnostics."""
    return "\n".join(
        render_full_diagnostic(d, color=color) for d in merge_similar_diagnostics(diagnostics)
    )


def render_full_diagnostic(diagnostic: "Diagnostic", *, color: bool = False) -> str:
    """Render a diagnostic with its source lines, notes and help messages."""
    colorize = Colorizer(color)
    mark = colorize(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
    lines = [f"{mark}{colorize('note', ': ' + escape_control_characters(diagnostic.title))}"]
    groups = group_labels_by_source(diagnostic)
    numbers = [
        label.span.source.get_line_and_column(label.span.end)[0]
        for labels in groups
        for label in labels
    ]
    margin = " " * len(str(max(numbers, default=0)))
    for n, labels in enumerate(groups):
        lines += render_excerpt(labels, diagnostic.primary, margin, colorize, is_first=n == 0)
    for word, texts in (
        ("note", (*diagnostic.notes, *_render_repetitions(diagnostic))),
        ("help", diagnostic.helps),
    ):
        for text in texts:
            head, *rest = text.split("\n")
            mark = f"{colorize('margin', '=')} {colorize(word, word)}"
            lines.append(f"{margin} {mark}: {escape_control_characters(head)}")
            lines += [f"{margin}         {escape_control_characters(line)}" for line in rest]
    return "\n".join(line.rstrip() for line in lines) + "\n"


MAX_SHOWN_LOCATIONS = 6
"""Maximum number of locations displayed for one message."""


def _render_repetitions(diagnostic: "Diagnostic") -> Iterator[str]:
    """Yield lines that state the number and the locations of a diagnostic's duplicates."""
    if diagnostic.count > 1:
        yield f"the same diagnostic occurs {diagnostic.count} times here"
    if not (spans := diagnostic.related_locations):
        return
    spans_text = ", ".join(str(span) for span in spans[:MAX_SHOWN_LOCATIONS])
    hidden_count = len(spans) - MAX_SHOWN_LOCATIONS
    plural = "s" if len(spans) > 1 else ""
    suffix = f" and {hidden_count} more" if hidden_count > 0 else ""
    yield f"also at {len(spans)} more place{plural}: {spans_text}{suffix}"


def render_short_diagnostic(diagnostic: "Diagnostic") -> str:
    """Render a diagnostic on one line, as in `file:line:column: error[E0101]: title`."""
    location = (
        f"{escape_control_characters(str(diagnostic.primary.span))}: " if diagnostic.primary else ""
    )
    suffix = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    title = escape_control_characters(diagnostic.title)
    return f"{location}{diagnostic.severity}[{diagnostic.code}]: {title}{suffix}"


def merge_similar_diagnostics(diagnostics: Iterable["Diagnostic"]) -> list["Diagnostic"]:
    """Merge diagnostics that differ only in location. Syntax errors are never merged."""
    merged: dict[object, Diagnostic] = {}
    for diagnostic in diagnostics:
        label = diagnostic.primary.text if diagnostic.primary else ""
        message = (
            diagnostic.code,
            diagnostic.title,
            diagnostic.notes,
            diagnostic.helps,
            label,
            diagnostic.severity,
        )
        # diagnostics without a location are never merged
        is_unique = diagnostic.primary is None or diagnostic.code.startswith(SYNTAX_CODE_PREFIX)
        key = diagnostic if is_unique else message
        first = merged.setdefault(key, diagnostic)
        if first is not diagnostic and diagnostic.primary and not is_unique:
            locations = (*first.related_locations, diagnostic.primary.span)
            merged[key] = replace(first, related_locations=locations)
    return list(merged.values())


MAX_REPR_LENGTH = 199
"""Maximum number of characters in a `repr`."""
MAX_TABLE_ROWS = 40
MAX_CELL_LENGTH = 500


def format_repr(text: str) -> str:
    """Format a `repr` such as `<specc text>`, truncated to MAX_REPR_LENGTH characters."""
    length = MAX_REPR_LENGTH - len("<specc >")
    return f"<specc {_truncate_text(escape_control_characters(text), length)}>"


def render_html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Render an HTML table of (name, value) rows. Rows with an empty value are omitted."""
    shown_rows = [(name, text) for name, text in rows if text]
    if (hidden_count := len(shown_rows) - MAX_TABLE_ROWS) > 0:
        shown_rows = [*shown_rows[:MAX_TABLE_ROWS], ("…", f"{hidden_count} more")]
    lines = "".join(
        f"<tr><th>{_escape_html_cell(name)}</th><td>{_escape_html_cell(text)}</td></tr>"
        for name, text in shown_rows
    )
    return f"<table><caption>{_escape_html_cell(title)}</caption>{lines}</table>"


def format_value_types(types: Mapping[str, object]) -> str:
    """Format the types of inputs or outputs: `pixels f32[batch, 3, 224, 224], keep bool[b, n]`."""
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def format_thousands(count: int) -> str:
    """Format an integer with thousands separators, as in `85 798 656`."""
    return f"{count:,}".replace(",", " ")


def align_table_columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Pad the cells of a table so that its columns are aligned. Return one line per row."""
    rows = [*rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _escape_html_cell(text: str) -> str:
    """Truncate the text of a table cell to MAX_CELL_LENGTH characters and escape it for HTML."""
    return escape(_truncate_text(escape_control_characters(text), MAX_CELL_LENGTH))


def _truncate_text(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def extract_docstring_summary(doc: str | None) -> str:
    """Return the first paragraph of a docstring on one line, or "" if there is none."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())
