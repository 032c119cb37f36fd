"""Diagnostics → text: for people (full or one line each), for programs (JSON, SARIF 2.1.0).

The user's own line is shown, never a reconstruction. Whatever comes from a file is escaped: control
characters are shown, not sent, and blanks of other widths keep the marks under the right characters.
"""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specc.text.diagnostic import Diagnostic, Label
from specc.text.source import Span

TAB = 4
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


def render(diagnostics: Iterable[Diagnostic], *, color: bool = False) -> str:
    """The full form, an empty line between two."""
    return "\n".join(full(d, color=color) for d in diagnostics)


def full(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """One diagnostic with its source lines, notes and helps; ends with a line break."""
    paint = Paint(color)
    mark = paint(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
    out = [f"{mark}{paint('note', ': ' + escaped(diagnostic.title))}"]
    groups = by_source(diagnostic)
    numbers = [label.span.source.position(label.span.end)[0] for labels in groups for label in labels]
    rim = " " * len(str(max(numbers, default=0)))
    for n, labels in enumerate(groups):
        out += excerpt(labels, diagnostic.primary, rim, paint, first=n == 0)
    times = (f"the same is to be said {diagnostic.count} times here",) if diagnostic.count > 1 else ()
    for word, texts in (("note", (*diagnostic.notes, *times)), ("help", diagnostic.helps)):
        for text in texts:
            head, *rest = text.split("\n")
            out.append(f"{rim} {paint('rim', '=')} {paint(word, word)}: {escaped(head)}")
            out += [f"{rim}         {escaped(line)}" for line in rest]
    return "\n".join(line.rstrip() for line in out) + "\n"


def short(diagnostic: Diagnostic) -> str:
    """`file:line:column: error[E0101]: title`."""
    place = f"{escaped(str(diagnostic.primary.span))}: " if diagnostic.primary else ""
    times = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    return f"{place}{diagnostic.severity}[{diagnostic.code}]: {escaped(diagnostic.title)}{times}"


@dataclass(frozen=True, slots=True)
class Paint:
    """Colors for a terminal that wants them."""

    on: bool

    def __call__(self, role: str, text: str) -> str:
        """A text in the color of its role."""
        return f"\x1b[{COLORS[role]}m{text}\x1b[0m" if self.on and text else text


# --- characters ------------------------------------------------------------------------------


def escaped(text: str) -> str:
    r"""A text whose control characters, direction marks and line separators are shown as `\u{1b}`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == " " else f"\\u{{{ord(c):x}}}" for c in text)


def width(text: str) -> int:
    """Columns of an escaped text in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def columns(line: str) -> tuple[str, list[int]]:
    """A source line as it is shown, and the column at which each of its characters starts, and its end."""
    shown: list[str] = []
    places = [0]
    for character in line:
        text = " " * (TAB - places[-1] % TAB) if character == "\t" else escaped(character)
        shown.append(text)
        places.append(places[-1] + width(text))
    return "".join(shown), places


# --- excerpts --------------------------------------------------------------------------------


def by_source(diagnostic: Diagnostic) -> list[list[Label]]:
    """The labels by file, that of the primary label first."""
    labels = [label for label in (diagnostic.primary, *diagnostic.others) if label is not None]
    groups: dict[int, list[Label]] = {}
    for label in labels:
        groups.setdefault(id(label.span.source), []).append(label)
    return list(groups.values())


def excerpt(labels: Sequence[Label], primary: Label | None, rim: str, paint: Paint, *, first: bool) -> list[str]:
    """The lines of one file that labels point at."""
    source = labels[0].span.source
    arrow = "-->" if first else ":::"
    out = [f"{rim}{paint('rim', arrow)} {escaped(str(labels[0].span))}"]
    if not source.text:
        return out
    by_line: dict[int, list[Label]] = {}
    for label in labels:
        by_line.setdefault(anchor(label.span)[0], []).append(label)
    bar = paint("rim", "|")
    out.append(f"{rim} {bar}")
    previous = None
    for number in sorted(by_line):
        if previous is not None and number == previous + 2:
            out.append(numbered(number - 1, View.of(source.line(number - 1), [(0, 0, 0)]), rim, paint))
        elif previous is not None and number > previous + 2:
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
    start = min(column - 1, len(line))
    end = min(start + span.end - span.start, len(line))
    return number, start, max(end, start)


@dataclass(frozen=True, slots=True)
class View:
    """What is shown of a source line: columns `start` to `start + WIDEST` of its characters from `base` on.

    `places[n]` is the column of character `base + n`, counted from the column of character `base`.
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
        for character in self.text:
            if self.start <= at < self.start + WIDEST:
                out.append(character)
            at += width(character)
        return ("…" if self.cut else "") + "".join(out) + ("…" if self.more or at > self.start + WIDEST else "")


def numbered(number: int, view: View, rim: str, paint: Paint) -> str:
    """A source line behind its number."""
    return f"{paint('rim', str(number).rjust(len(rim)) + ' |')} {view.shown()}"


def marks(view: View, labels: Sequence[Label], primary: Label | None, paint: Paint) -> list[str]:
    """The lines under a source line: `^^^^` and `----`, then what they say."""
    spots: list[tuple[int, int, Label]] = []
    for label in labels:
        _, start, end = anchor(label.span)
        first = view.column(start)
        spots.append((first, max(first + 1, view.column(end)), label))
    row: list[str] = []
    for first, last, label in sorted(spots, key=lambda s: s[2] is primary):  # the primary mark lies on top
        sign, role = ("^", "primary") if label is primary else ("-", "other")
        row += [" "] * (last - len(row))
        row[first:last] = [paint(role, sign)] * (last - first)
    _, _, final = spots[-1]
    role = "primary" if final is primary else "other"
    out = ["".join(row) + (" " + paint(role, escaped(final.text)) if final.text else "")]
    for n in range(len(spots) - 2, -1, -1):
        first, _, label = spots[n]
        if label.text:
            bars = [" "] * first
            for column, _, earlier in spots[:n]:
                if earlier.text and column < first:
                    bars[column] = "|"
            role = "primary" if label is primary else "other"
            out.append("".join(bars) + paint(role, escaped(label.text)))
    return out


# --- for programs ----------------------------------------------------------------------------


def place(span: Span) -> dict[str, Any]:
    """A span as numbers: lines and columns from 1, offsets in characters and in UTF-8 bytes from 0."""
    source = span.source
    line, column = source.position(span.start)
    end_line, end_column = source.position(span.end)
    start_byte = len(source.text[: span.start].encode("utf-8", "replace"))
    return {
        "file": source.name, "line": line, "column": column, "end_line": end_line, "end_column": end_column,
        "start": span.start, "end": span.end,
        "start_byte": start_byte, "end_byte": start_byte + len(span.text.encode("utf-8", "replace")),
    }  # fmt: skip


def record(diagnostic: Diagnostic) -> dict[str, Any]:
    """A diagnostic as JSON holds it."""
    labels = [label for label in (diagnostic.primary, *diagnostic.others) if label is not None]
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.title,
        "labels": [
            {**place(label.span), "text": label.text, "primary": label is diagnostic.primary} for label in labels
        ],
        "notes": list(diagnostic.notes),
        "helps": list(diagnostic.helps),
        "fixes": [{**place(fix.span), "text": fix.text} for fix in diagnostic.fixes],
        **({"count": diagnostic.count} if diagnostic.count > 1 else {}),
    }


def as_json(diagnostics: Iterable[Diagnostic]) -> str:
    """One JSON object a line, one line a diagnostic."""
    return "".join(json.dumps(record(d)) + "\n" for d in diagnostics)


def as_sarif(diagnostics: Iterable[Diagnostic], version: str, help_uri: str = "") -> str:
    """A SARIF 2.1.0 log. `help_uri` is where the pages of the codes are, with `{code}` for the code."""
    found = list(diagnostics)
    codes = sorted({d.code for d in found})
    rules: list[dict[str, Any]] = [
        {"id": code, **({"helpUri": help_uri.format(code=code)} if help_uri else {})} for code in codes
    ]
    driver = {"name": "specc", "version": version, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [result(d, codes.index(d.code)) for d in found]}],
    }
    return json.dumps(log, indent=2) + "\n"


def result(diagnostic: Diagnostic, rule: int) -> dict[str, Any]:
    """One SARIF result."""
    text = "\n".join([diagnostic.title, *diagnostic.notes, *(f"help: {h}" for h in diagnostic.helps)])
    out: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": escaped_lines(text)},
    }
    if diagnostic.count > 1:
        out["occurrenceCount"] = diagnostic.count
    if diagnostic.primary is not None:
        out["locations"] = [location(diagnostic.primary)]
    if diagnostic.others:
        out["relatedLocations"] = [{"id": n, **location(label)} for n, label in enumerate(diagnostic.others)]
    if diagnostic.fixes:
        out["fixes"] = [
            {
                "artifactChanges": [
                    {
                        "artifactLocation": {"uri": uri(fix.span.source.name)},
                        "replacements": [{"deletedRegion": region(fix.span), "insertedContent": {"text": fix.text}}],
                    }
                ]
            }
            for fix in diagnostic.fixes
        ]
    return out


def escaped_lines(text: str) -> str:
    """A text escaped line by line."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def location(label: Label) -> dict[str, Any]:
    """A SARIF location."""
    found: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(label.span.source.name)},
            "region": region(label.span),
        }
    }
    if label.text:
        found["message"] = {"text": escaped(label.text)}
    return found


def region(span: Span) -> dict[str, int]:
    """A SARIF region."""
    line, column = span.source.position(span.start)
    end_line, end_column = span.source.position(span.end)
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def uri(name: str) -> str:
    """A file name as a relative URI."""
    safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/"
    data = name.replace("\\", "/").encode("utf-8", "replace")
    return "".join(chr(b) if chr(b) in safe else f"%{b:02X}" for b in data)
