"""Lines of a drawing: each begins and ends at a box, a name or another line, and none crosses a
box."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import pytest
from visualize.test_data_flow import SOME, elaborate_small

from specc.drawing.drawing_marks import BoxMark, Drawing, LineMark, Mark, TextMark
from specc.library.spec_file_lookup import find_builtin_specs
from specc.visualize.block_layout import BLOCK_COLORS, draw_block
from specc.visualize.block_tree import build_block_tree, choose_expanded_blocks

Point: TypeAlias = tuple[float, float]
PORT_SIZE = 11.5
ALL = [
    pytest.param(name, marks=[] if name in (*SOME, "mpnet") else pytest.mark.slow)
    for name in find_builtin_specs()
]


def list_contacts(mark: Mark) -> list[Point]:
    """Return the points of a box or of the name of an input where lines may begin or end."""
    if isinstance(mark, BoxMark) and mark.stroke:
        x, y, middle = mark.x, mark.y, mark.x + mark.width / 2
        top = [(middle, y), (middle - 8, y), (x, y + mark.height / 2)]
        return [*top, (middle, y + mark.height)]
    if isinstance(mark, TextMark) and (mark.anchor, mark.size) == ("middle", PORT_SIZE):
        return [(mark.x, mark.y + 5), (mark.x, mark.y - 12)]
    return []


def is_contact(point: Point, contacts: list[Point]) -> bool:
    """Return True if one of the contacts is at a point."""
    return any(abs(point[0] - x) < 0.5 and abs(point[1] - y) < 0.5 for x, y in contacts)


def is_beside_name(point: Point, marks: list[Mark]) -> bool:
    """Return True if a point is at the side of a short name, halfway up."""
    names = [m for m in marks if isinstance(m, TextMark) and m.size == PORT_SIZE]
    return any(0 < m.x - point[0] <= 12 and abs(point[1] - m.y + 3.5) < 0.5 for m in names)


def find_loose_ends(drawing: Drawing) -> list[Point]:
    """Return the ends of lines that touch neither a box, nor a name, nor another line's end."""
    lines = [mark.points for mark in drawing.marks if isinstance(mark, LineMark)]
    contacts = [p for mark in drawing.marks for p in list_contacts(mark)]
    starts, ends = [line[0] for line in lines], [line[-1] for line in lines]
    loose = [p for p in starts if not is_contact(p, contacts + ends)]
    return loose + [
        p
        for p in ends
        if not is_contact(p, contacts + starts) and not is_beside_name(p, drawing.marks)
    ]


def find_crossings(drawing: Drawing) -> list[Point]:
    """Return the middles of line segments that are inside a filled box."""
    boxes = [m for m in drawing.marks if isinstance(m, BoxMark) and m.fill != "#fafafc"]
    lines = [mark.points for mark in drawing.marks if isinstance(mark, LineMark)]
    middles = [
        ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for points in lines for a, b in pairwise(points)
    ]
    return [
        (x, y)
        for x, y in middles
        if any(b.x + 1 < x < b.x + b.width - 1 and b.y + 1 < y < b.y + b.height - 1 for b in boxes)
    ]


def draw_all_blocks(name: str) -> list[Drawing]:
    """Return the drawing of every block with parts."""
    root = build_block_tree(elaborate_small(name))
    blocks = [b for b in root.walk_blocks() if b.inner_blocks or len(b.flow.items) > 2]
    return [draw_block(b, choose_expanded_blocks(b, 60 if b is root else 14), name) for b in blocks]


@pytest.mark.parametrize("name", ALL)
def test_lines_join_boxes(name: str) -> None:
    for drawing in draw_all_blocks(name):
        assert not find_loose_ends(drawing)
        assert not find_crossings(drawing)


def test_moved_lines_are_found() -> None:
    (drawing, *_) = draw_all_blocks("elman")
    line = next(mark for mark in drawing.marks if isinstance(mark, LineMark))
    (x, y), *others = line.points
    drawing.marks.append(replace(line, points=((x + 20, y), *others)))
    assert find_loose_ends(drawing)


def test_weighted_sums_have_the_color_and_name_of_attention() -> None:
    drawings = draw_all_blocks("decomposable")
    plates = [
        box.fill
        for drawing in drawings
        for box, text in pairwise(drawing.marks)
        if isinstance(box, BoxMark) and isinstance(text, TextMark) and text.text == "weigh"
    ]
    assert plates
    assert set(plates) == {BLOCK_COLORS["attention"][0]}
