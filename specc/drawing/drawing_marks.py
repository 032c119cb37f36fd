"""Marks of a drawing (text, boxes, lines, cells) and panels of marks in rows."""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from specc.drawing.colormap import Bytes

INK, FAINT, PAPER = "#1d1d24", "#6b6b76", "#ffffff"

MAX_LABEL = 28
"""Maximum number of characters of a label."""

Anchor: TypeAlias = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMark:
    """One line of text anchored at (x, y) on its base line; `upright` rotates it by 90°."""

    x: float = 0
    y: float = 0
    text: str
    size: float = 11
    color: str = INK
    anchor: Anchor = "start"
    upright: bool = False
    bold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxMark:
    """A rectangle with corner `radius`; `part` is the block it stands for on a page."""

    x: float = 0
    y: float = 0
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    weight: float = 1
    radius: float = 0
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineMark:
    """A line through points with corner `radius`, and an `arrow` at its end."""

    points: tuple[tuple[float, float], ...]
    color: str = INK
    weight: float = 1.25
    radius: float = 0
    arrow: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsMark:
    """A table of colors `u8[rows, columns, 3]`, stretched over a rectangle, its edges sharp."""

    x: float = 0
    y: float = 0
    width: float
    height: float
    colors: Bytes


Mark: TypeAlias = TextMark | BoxMark | LineMark | CellsMark


@dataclass(kw_only=True)
class Drawing:
    """Marks on white paper, in drawing order; `title` is the text for screen readers."""

    width: float
    height: float
    title: str = ""
    marks: list[Mark] = field(default_factory=list)

    def add(self, marks: Iterable[Mark]) -> None:
        """Put more marks above those there are."""
        self.marks.extend(marks)


NARROW_CHARACTERS = frozenset("iljtfrI.,:;'|!()[]{}· /-")
"""Characters that are about half as wide as others."""


def estimate_text_width(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text; the fonts are not known."""
    return sum(map(_ems, text)) * size


def _ems(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in NARROW_CHARACTERS:
        return 0.36
    return 0.66 if character.isupper() or character in "mwMW%@…" else 0.56


def printable_label(text: str, most: int = MAX_LABEL) -> str:
    """Return a label of at most `most` characters, with control characters and edge spaces
    visible.
    """
    shown = "".join(
        "↵" if c == "\n" else c if c.isprintable() else ascii(c)[1:-1] for c in text[: most + 1]
    )
    inner = shown.strip(" ")
    if inner != shown or not inner:
        left = len(shown) - len(shown.lstrip(" "))
        shown = "␣" * left + inner + "␣" * (len(shown) - left - len(inner))
    return shown if len(shown) <= most else shown[: max(1, most - 1)] + "…"


MARGIN = 18.0


@dataclass(kw_only=True)
class PanelBlock:
    """Marks relative to a corner, with their size. `head` is the height above the first panel;
    `first_column` and `first_row` are corners of panels.
    """

    width: float
    height: float
    head: float = 0
    marks: list[Mark] = field(default_factory=list)
    first_column: list[tuple[float, float]] = field(default_factory=list)
    first_row: list[tuple[float, float]] = field(default_factory=list)

    def at(self, x: float, y: float) -> list[Mark]:
        """The marks with their corner there."""
        return [move_mark(mark, x, y) for mark in self.marks]


def move_mark(mark: Mark, x: float, y: float) -> Mark:
    """The mark elsewhere."""
    if isinstance(mark, LineMark):
        return replace(mark, points=tuple((a + x, b + y) for a, b in mark.points))
    return replace(mark, x=mark.x + x, y=mark.y + y)


def arrange_panels(
    panels: Sequence[Sequence[Mark]],
    size: tuple[float, float],
    *,
    left: float,
    top: float,
    title_room: float,
    title: str,
) -> PanelBlock:
    """Return panels of one size (width, height) in rows under a title, with room `left` and
    `top`.
    """
    across = _across(len(panels))
    width, height = size
    down = math.ceil(len(panels) / across)
    head = 22.0 + top
    pitch = width + MARGIN * 0.7, height + title_room + MARGIN * 0.7
    block = PanelBlock(
        width=left + across * pitch[0],
        height=head + down * pitch[1] + title_room,
        head=head + title_room,
    )
    name = printable_label(title, 80)
    block.marks.append(TextMark(y=13, text=name, size=12, bold=True))
    # bold letters are wider than those that are measured
    block.width = max(block.width, estimate_text_width(name, 12) * 1.06)
    corners = list(_corners(len(panels), across, pitch))
    for marks, (x, y) in zip(panels, corners, strict=True):
        x, y = x + left, y + head + title_room
        block.marks += [move_mark(mark, x, y) for mark in marks]
        if x == left:
            block.first_column.append((x, y))
        if y == head + title_room:
            block.first_row.append((x, y))
    return block


def _across(panels: int) -> int:
    """Panels in a row: up to four, and then as many rows as columns, or a few less."""
    return panels if panels <= 4 else min(panels, 6, math.ceil(math.sqrt(panels * 1.4)))


def _corners(panels: int, across: int, pitch: tuple[float, float]) -> Iterator[tuple[float, float]]:
    for n in range(panels):
        yield (n % across) * pitch[0], (n // across) * pitch[1]
