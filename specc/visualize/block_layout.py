"""Compute the layout of a block diagram: items in rows, and long edges in vertical lanes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.drawing.drawing_elements import (
    FAINT,
    INK,
    BoxElement,
    Drawing,
    DrawingElement,
    LineElement,
    TextElement,
    estimate_text_width,
    make_printable_label,
    move_element,
)
from specc.visualize.block_dataflow import BlockDataflow, DiagramItem
from specc.visualize.block_tree import Block, BlockPredicate

BLOCK_COLORS: Mapping[str, tuple[str, str]] = {
    "attention": ("#ffe3c9", "#d98936"),
    "experts": ("#f6d6e8", "#b8558c"),
    "recurrent": ("#d9efe3", "#3f8f68"),
    "convolution": ("#d5f0ee", "#2e8c86"),
    "linear": ("#d8e8f7", "#4a80b5"),
    "norm": ("#f5f0c4", "#a8992c"),
    "embedding": ("#f7dadb", "#b8565a"),
    "activation": ("#e9e3f5", "#7c63b3"),
    "other": ("#ececf0", "#8a8a96"),
}
"""Fill color and stroke color by block kind."""

ROW_GAP, COLUMN_GAP, LANE_WIDTH, PADDING = 22.0, 18.0, 13.0, 14.0
"""Distances in points. An edge that skips rows runs in a lane to the left of all items."""
SIGN_RADIUS = 11.0  # the radius of an operation symbol in points
EDGE_COLOR = "#4c4c57"


@dataclass(kw_only=True)
class DrawingFragment:
    """A diagram fragment: drawing elements with coordinates relative to its top left corner. Edges
    enter and leave at the horizontal center. `port_roles` contains the roles (`port` or `result`)
    that are drawn as lines to the frame.
    """

    width: float
    height: float
    elements: list[DrawingElement] = field(default_factory=list)
    port_roles: frozenset[str] = frozenset()


def draw_block(
    block: Block, is_expanded: BlockPredicate, title: str, *, has_heading: bool = True
) -> Drawing:
    """Draw the dataflow graph of a block, below the heading `title` if `has_heading` is True.
    `is_expanded` selects the nested blocks whose dataflow graph is also drawn.
    """
    piece = _draw_flow(block, is_expanded)
    heading = [TextElement(x=24, y=32, text=make_printable_label(title, 60), size=15, is_bold=True)]
    offset_y = 50 if has_heading else 20
    title_width = estimate_text_width(title[:60], 15) * 1.08 if has_heading else 0.0
    width = max(piece.width, title_width) + 48
    offset_x = (width - piece.width) / 2
    drawing = Drawing(
        width=width, height=piece.height + offset_y + 20, title=make_printable_label(title, 200)
    )
    drawing.add_elements(heading if has_heading else [])
    drawing.add_elements(move_element(element, offset_x, offset_y) for element in piece.elements)
    return drawing


@immutable_dataclass(kw_only=True)
class _PiecePlacement:
    """The position of a diagram fragment: its top left corner, and the top and bottom of its row.
    `is_leftmost` is True for the first fragment of a row.
    """

    piece: DrawingFragment
    corner: tuple[float, float]
    row_span: tuple[float, float]
    is_leftmost: bool

    @property
    def entry_point(self) -> tuple[float, float]:
        """The point at which incoming edges of the fragment end."""
        return self.corner[0] + self.piece.width / 2, self.corner[1]

    @property
    def exit_point(self) -> tuple[float, float]:
        """The point at which outgoing edges of the fragment begin."""
        return self.entry_point[0], self.corner[1] + self.piece.height


def _draw_flow(
    block: Block, is_expanded: BlockPredicate, *, has_frame: bool = False
) -> DrawingFragment:
    """Draw the dataflow graph of a block. If `has_frame` is True, a single port is drawn as a line
    to the frame.
    """
    flow = block.flow
    port_roles = _find_port_indices(flow) if has_frame else set()
    empty_piece = DrawingFragment(width=0, height=0)
    items = enumerate(flow.items)
    pieces = [
        empty_piece if n in port_roles else _draw_item(item, block, is_expanded)
        for n, item in items
    ]
    rows = _move_ports_to_own_rows(_arrange_rows(flow), flow, port_roles)
    skip_edges = _assign_lanes(flow, rows)
    max_lane = max(skip_edges.values(), default=-1)
    # the right margin has the width of the lanes on the left, so that the layout is centered
    left = LANE_WIDTH * (max_lane + 1) + (8 if skip_edges else 0)
    placements, (inner, height) = _place_rows(pieces, rows, left)
    # edges are drawn first, so that all other elements cover the edges
    sides = {edge: LANE_WIDTH * (max_lane - lane) + 4 for edge, lane in skip_edges.items()}
    elements: list[DrawingElement] = [
        _draw_edge(placements[a], placements[b], sides.get((a, b))) for a, b in flow.edges
    ]
    elements += [
        move_element(m, *placements[n].corner)
        for n, piece in enumerate(pieces)
        for m in piece.elements
    ]
    roles = frozenset(flow.items[n].role for n in port_roles)
    return DrawingFragment(
        width=left * 2 + inner, height=height, elements=elements, port_roles=roles
    )


def _place_rows(
    pieces: Sequence[DrawingFragment], rows: Sequence[Sequence[int]], left: float
) -> tuple[dict[int, _PiecePlacement], tuple[float, float]]:
    """Place the fragments of each row side by side, and center the rows. Return the placements and
    the total size.
    """
    widths = [sum(pieces[n].width + COLUMN_GAP for n in row) - COLUMN_GAP for row in rows]
    inner_width, top = max(widths, default=0.0), 0.0
    placements: dict[int, _PiecePlacement] = {}
    for row, width in zip(rows, widths, strict=True):
        x, height = left + (inner_width - width) / 2, max(pieces[n].height for n in row)
        for n in row:
            corner = (x, top + (height - pieces[n].height) / 2)
            span = (top, top + height)
            placements[n] = _PiecePlacement(
                piece=pieces[n], corner=corner, row_span=span, is_leftmost=n == row[0]
            )
            x += pieces[n].width + COLUMN_GAP
        top += height + ROW_GAP
    return placements, (inner_width, max(top - ROW_GAP, 0.0))


def _find_port_indices(flow: BlockDataflow) -> set[int]:
    """Return the index of the input and of the output, in each case only if there is just one."""
    single_ports = set()
    for role in ("port", "result"):
        indices = [n for n, item in enumerate(flow.items) if item.role == role]
        single_ports |= {*indices} if len(indices) == 1 else set()
    return single_ports


def _move_ports_to_own_rows(
    rows: Sequence[Sequence[int]], flow: BlockDataflow, port_roles: set[int]
) -> list[list[int]]:
    """Move the input that is drawn at the frame to a separate first row, and the output that is
    drawn at the frame to a separate last row.
    """
    inputs = [[n] for n in port_roles if flow.items[n].role == "port"]
    outputs = [[n] for n in port_roles if flow.items[n].role == "result"]
    inner_rows = [[n for n in row if n not in port_roles] for row in rows]
    return [*inputs, *(row for row in inner_rows if row), *outputs]


def _arrange_rows(flow: BlockDataflow) -> list[list[int]]:
    """Arrange items in rows. An item is placed below its producers, or above its first consumer."""
    depths = _compute_depths(flow)
    consumers = {b for _, b in flow.edges}
    for n in range(len(flow.items)):
        consumer_depths = [depths[b] for a, b in flow.edges if a == n]
        if n not in consumers and consumer_depths:
            depths[n] = min(consumer_depths) - 1
    rows: dict[int, list[int]] = {}
    for n, depth in enumerate(depths):
        rows.setdefault(depth, []).append(n)
    # a depth without items has no row
    return [rows[depth] for depth in sorted(rows)]


def _compute_depths(flow: BlockDataflow) -> list[int]:
    """Return the length of the longest path of forward edges that ends at each item."""
    depth = [0] * len(flow.items)
    # process edges in topological order, so that the depth of each producer is final
    for a, b in sorted(flow.edges, key=lambda edge: edge[1]):
        # an edge that closes a cycle points upward and does not change depths
        depth[b] = max(depth[b], depth[a] + 1) if a < b else depth[b]
    return depth


def _assign_lanes(flow: BlockDataflow, rows: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """Return the lane of each edge that skips rows or that points upward. Overlapping edges have
    different lanes. Shorter edges run in lanes closer to the items.
    """
    spans = _find_edge_rows(flow, rows)
    skip_edges = [edge for edge, (top, bottom) in spans.items() if bottom - top != 1]
    spans = {edge: (min(ends), max(ends) + 1) for edge, ends in spans.items()}
    skip_edges.sort(key=lambda edge: spans[edge][1] - spans[edge][0])
    lanes: dict[tuple[int, int], int] = {}
    for edge in skip_edges:
        used_lanes = {
            lane for other, lane in lanes.items() if _do_ranges_overlap(spans[other], spans[edge])
        }
        # there are at most as many lanes as edges that skip rows
        lanes[edge] = next(n for n in range(len(skip_edges)) if n not in used_lanes)
    return lanes


def _find_edge_rows(
    flow: BlockDataflow, rows: Sequence[Sequence[int]]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the row indices of the producer and the consumer of each edge."""
    row_indices = {n: r for r, row in enumerate(rows) for n in row}
    return {(a, b): (row_indices[a], row_indices[b]) for a, b in flow.edges}


def _do_ranges_overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Return True if two half-open ranges of row indices overlap."""
    return a[0] < b[1] and b[0] < a[1]


def _draw_edge(a: _PiecePlacement, b: _PiecePlacement, side: float | None) -> LineElement:
    """Draw an edge between two fragments. If `side` is not None, it is the x coordinate of the
    edge's lane.
    """
    start, end = a.exit_point, b.entry_point
    if side is None:
        bend_y = b.row_span[0] - ROW_GAP / 2
        is_straight = abs(start[0] - end[0]) < 0.5
        bends = () if is_straight else ((start[0], bend_y), (end[0], bend_y))
        # if an edge continues to the frame, its arrowhead is at the frame
        continues = b.piece.height == 0
        return LineElement(
            points=(start, *bends, end), color=EDGE_COLOR, corner_radius=6, has_arrow=not continues
        )
    exit_y, entry_y = a.row_span[1] + ROW_GAP * 0.35, b.row_span[0] - ROW_GAP * 0.6
    points = [start, (start[0], exit_y), (side, exit_y)]
    is_sign = 0 < b.piece.width <= 2 * SIGN_RADIUS + 1
    if is_sign and b.is_leftmost:
        # the edge enters an operation symbol from the side, as usual for residual connections
        middle_y = b.corner[1] + b.piece.height / 2
        points += [(side, middle_y), (b.corner[0], middle_y)]
    elif b.piece.height == 0:
        # the edge ends at the line to the frame, and the arrowhead is at the end of this line
        points += [(side, entry_y), (end[0], entry_y), end]
        return LineElement(points=tuple(points), color=EDGE_COLOR, corner_radius=7)
    else:
        entry_x = end[0] if is_sign else end[0] - 8
        points += [(side, entry_y), (entry_x, entry_y), (entry_x, end[1])]
    return LineElement(points=tuple(points), color=EDGE_COLOR, corner_radius=7, has_arrow=True)


def _draw_item(item: DiagramItem, block: Block, is_expanded: BlockPredicate) -> DrawingFragment:
    """Draw an item of a block's dataflow graph."""
    if item.role == "block":
        inner_block = block.inner_blocks[item.name]
        return (
            _draw_expanded_block(inner_block, is_expanded)
            if is_expanded(inner_block)
            else _draw_collapsed_block(inner_block)
        )
    if item.role == "op":
        return _draw_sign(item.name) if len(item.name) == 1 else _draw_operation(item.name)
    return _draw_port(item.name or ("x" if item.role == "port" else "y"))


def _draw_port(name: str) -> DrawingFragment:
    """Draw an input or output as a name without a box."""
    text = make_printable_label(name, 30)
    width = estimate_text_width(text, 11.5) + 8
    element = TextElement(x=width / 2, y=12, text=text, size=11.5, color=FAINT, anchor="middle")
    return DrawingFragment(width=width, height=17, elements=[element])


def _draw_sign(sign: str) -> DrawingFragment:
    """Draw an arithmetic operation as a symbol in a circle."""
    elements: list[DrawingElement] = [
        BoxElement(
            width=2 * SIGN_RADIUS,
            height=2 * SIGN_RADIUS,
            fill="#ffffff",
            stroke=EDGE_COLOR,
            corner_radius=SIGN_RADIUS,
        ),
        TextElement(x=SIGN_RADIUS, y=SIGN_RADIUS + 5, text=sign, size=15, anchor="middle"),
    ]
    return DrawingFragment(width=2 * SIGN_RADIUS, height=2 * SIGN_RADIUS, elements=elements)


def _draw_operation(name: str) -> DrawingFragment:
    kind = "attention" if name in ("attend", "weigh") else "activation"
    return _draw_plate(name, "", kind, "")


def _draw_collapsed_block(block: Block) -> DrawingFragment:
    repeats = f"  × {block.repeats}" if block.repeats > 1 else ""
    return _draw_plate(f"{block.label}{repeats}", block.output_type, block.kind, block.path)


def _draw_plate(name: str, output_type: str, kind: str, block_path: str) -> DrawingFragment:
    """Draw a box in the color of a block kind, with the name above the output type."""
    name, output_type = make_printable_label(name, 44), make_printable_label(output_type, 44)
    width = (
        max(estimate_text_width(name, 12.5) * 1.05, estimate_text_width(output_type, 9.5), 64) + 26
    )
    height = 40.0 if output_type else 28.0
    fill, stroke = BLOCK_COLORS[kind]
    elements: list[DrawingElement] = [
        BoxElement(
            width=width,
            height=height,
            fill=fill,
            stroke=stroke,
            corner_radius=7,
            block_path=block_path,
        ),
        TextElement(x=width / 2, y=18, text=name, size=12.5, anchor="middle", color=INK),
    ]
    if output_type:
        elements.append(
            TextElement(x=width / 2, y=32, text=output_type, size=9.5, anchor="middle", color=FAINT)
        )
    return DrawingFragment(width=width, height=height, elements=elements)


def _draw_expanded_block(block: Block, is_expanded: BlockPredicate) -> DrawingFragment:
    """Draw a block as a frame with its name, its number of repeats and its dataflow graph."""
    contents = _draw_flow(block, is_expanded, has_frame=True)
    name = make_printable_label(block.label, 44)
    repeats = f"× {block.repeats}" if block.repeats > 1 else ""
    heading_width = estimate_text_width(name, 12.5) * 1.1 + estimate_text_width(repeats, 13) + 44
    width = max(contents.width + 2 * PADDING, heading_width)
    height = contents.height + 30 + PADDING
    if "port" in contents.port_roles:
        # the edge from above must not cross the name of the block
        width = max(width, 2 * (estimate_text_width(name, 12.5) * 1.1 + 22))
    left = (width - contents.width) / 2
    color = BLOCK_COLORS[block.kind][1]
    frame = BoxElement(
        width=width, height=height, fill="#fafafc", stroke=color, block_path=block.path
    )
    elements: list[DrawingElement] = [
        replace(frame, stroke_width=1.25, corner_radius=11),
        TextElement(x=12, y=19, text=name, size=12.5, is_bold=True, color=color),
    ]
    if repeats:
        elements.append(
            TextElement(x=width - 12, y=19, text=repeats, size=13, is_bold=True, anchor="end")
        )
    middle = width / 2
    port_lines = {
        "port": ((middle, 0), (middle, 30)),
        "result": ((middle, height - PADDING), (middle, height)),
    }
    elements += [
        LineElement(points=port_lines[role], color=EDGE_COLOR)
        for role in sorted(contents.port_roles)
    ]
    elements += [move_element(element, left, 30) for element in contents.elements]
    return DrawingFragment(width=width, height=height, elements=elements)
