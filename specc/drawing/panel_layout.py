"""Lay out panels in rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from specc.drawing.drawing_marks import (
    LineMark,
    Mark,
    TextMark,
    estimate_text_width,
    printable_label,
)

MARGIN = 18.0


@dataclass(kw_only=True)
class PanelBlock:
    """Marks around a corner of their own, with the room that they take. `head` is what
    stands above the first panel; `first_column` and `first_row` are the corners of panels.
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
    """Panels of one size (width, height) in rows, below a title; `left` and `top` is the
    room for what stands beside the first column and above the first row.
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
    block.marks.append(TextMark(x=0, y=13, text=name, size=12, bold=True))
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
