"""Lines of a drawing: each begins and ends at a box, a name or another line, and none crosses a
box."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import pytest
from visualize.test_data_flow import SOME, elaborate_small

from specc.drawing.drawing_elements import (
    BoxElement,
    Drawing,
    DrawingElement,
    LineElement,
    TextElement,
)
from specc.library.spec_file_lookup import find_builtin_specs
from specc.visualize.block_layout import BLOCK_COLORS, draw_block
from specc.visualize.block_tree import build_diagram_block_tree, choose_blocks_to_expand

Point: TypeAlias = tuple[float, float]
PORT_SIZE = 11.5
ALL = [
    pytest.param(name, marks=[] if name in (*SOME, "mpnet") else pytest.mark.slow)
    for name in find_builtin_specs()
]


def list_contacts(element: DrawingElement) -> list[Point]:
    """Return the points of a box or of the name of an input where lines may begin or end."""
    if isinstance(element, BoxElement) and element.stroke:
        x, y, middle = element.x, element.y, element.x + element.width / 2
        top = [(middle, y), (middle - 8, y), (x, y + element.height / 2)]
        return [*top, (middle, y + element.height)]
    if isinstance(element, TextElement) and (element.anchor, element.size) == ("middle", PORT_SIZE):
        return [(element.x, element.y + 5), (element.x, element.y - 12)]
    return []


def is_contact(point: Point, contacts: list[Point]) -> bool:
    """Return True if one of the contacts is at a point."""
    return any(abs(point[0] - x) < 0.5 and abs(point[1] - y) < 0.5 for x, y in contacts)


def is_beside_name(point: Point, elements: list[DrawingElement]) -> bool:
    """Return True if a point is at the side of a short name, halfway up."""
    names = [m for m in elements if isinstance(m, TextElement) and m.size == PORT_SIZE]
    return any(0 < m.x - point[0] <= 12 and abs(point[1] - m.y + 3.5) < 0.5 for m in names)


def find_loose_ends(drawing: Drawing) -> list[Point]:
    """Return the ends of lines that touch neither a box, nor a name, nor another line's end."""
    lines = [element.points for element in drawing.elements if isinstance(element, LineElement)]
    contacts = [p for element in drawing.elements for p in list_contacts(element)]
    starts, ends = [line[0] for line in lines], [line[-1] for line in lines]
    loose = [p for p in starts if not is_contact(p, contacts + ends)]
    return loose + [
        p
        for p in ends
        if not is_contact(p, contacts + starts) and not is_beside_name(p, drawing.elements)
    ]


def find_crossings(drawing: Drawing) -> list[Point]:
    """Return the middles of line segments that are inside a filled box."""
    boxes = [m for m in drawing.elements if isinstance(m, BoxElement) and m.fill != "#fafafc"]
    lines = [element.points for element in drawing.elements if isinstance(element, LineElement)]
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
    root = build_diagram_block_tree(elaborate_small(name))
    blocks = [b for b in root.walk_blocks() if b.inner_blocks or len(b.flow.items) > 2]
    return [
        draw_block(b, choose_blocks_to_expand(b, 60 if b is root else 14), name) for b in blocks
    ]


@pytest.mark.parametrize("name", ALL)
def test_lines_join_boxes(name: str) -> None:
    for drawing in draw_all_blocks(name):
        assert not find_loose_ends(drawing)
        assert not find_crossings(drawing)


def test_moved_lines_are_found() -> None:
    (drawing, *_) = draw_all_blocks("elman")
    line = next(element for element in drawing.elements if isinstance(element, LineElement))
    (x, y), *others = line.points
    drawing.elements.append(replace(line, points=((x + 20, y), *others)))
    assert find_loose_ends(drawing)


def test_weighted_sums_have_the_color_and_name_of_attention() -> None:
    drawings = draw_all_blocks("decomposable")
    plates = [
        box.fill
        for drawing in drawings
        for box, text in pairwise(drawing.elements)
        if isinstance(box, BoxElement) and isinstance(text, TextElement) and text.text == "weigh"
    ]
    assert plates
    assert set(plates) == {BLOCK_COLORS["attention"][0]}
