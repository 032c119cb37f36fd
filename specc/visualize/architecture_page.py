"""Render an architecture as an HTML page or an SVG image."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from html import escape

from specc.analysis.model_cost import (
    format_dim_formula,
    format_large_number,
    format_type_with_sizes,
)
from specc.diagnostics.diagnostic import Source
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_thousands
from specc.drawing.drawing_elements import make_printable_label
from specc.drawing.svg_and_html_pages import (
    read_page_resource,
    render_html_page,
    render_inline_svg,
    render_svg,
)
from specc.io.json_io import Json
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.visualize.block_layout import draw_block
from specc.visualize.block_tree import (
    Block,
    SpecLine,
    build_diagram_block_tree,
    choose_blocks_to_expand,
)
from specc.visualize.cost_plot import CostCurves, compute_cost_curves, plot_cost_curves

MAX_ITEMS = 60
"""The maximum number of boxes in one diagram. If a diagram would have more boxes, blocks are
collapsed.
"""

PANEL_ITEMS = 14
"""Maximum number of boxes in the diagram that is shown in a block's own panel."""

MAX_BLOCKS = 2000
"""Maximum number of blocks with their own panel. All other blocks appear only in the panels of
their enclosing blocks.
"""

THOUSANDS_SPACE = re.compile(r"(?<=\d) (?=\d)")
"""The pattern of a space between groups of three digits."""

MAX_SOURCE = 400_000
"""Maximum total number of characters of spec source code on a page."""


@immutable_dataclass(kw_only=True)
class ArchitectureView:
    """The content of an architecture page: graphs by name. The graph of the full forward pass comes
    first. `sizes` maps symbolic dimensions to the sizes for which costs are shown, and
    `parameter_count_text` is the formatted parameter count.
    """

    name: str
    doc: str
    graphs: Mapping[str, Graph]
    parameter_count_text: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


def render_architecture_svg(architecture: ArchitectureView) -> str:
    """Render a graph as an SVG diagram, with nested blocks expanded up to MAX_ITEMS boxes."""
    graph = next(iter(architecture.graphs.values()))
    block = build_diagram_block_tree(graph, architecture.sizes)
    return render_svg(
        draw_block(block, choose_blocks_to_expand(block, MAX_ITEMS), architecture.name)
    )


def render_architecture_page(architecture: ArchitectureView) -> str:
    """Render an architecture as a self-contained HTML page without external resources."""
    trees = {
        name: build_diagram_block_tree(g, architecture.sizes)
        for name, g in architecture.graphs.items()
    }
    anchors = _Anchors(trees)
    cost = compute_cost_curves(next(iter(architecture.graphs.values())))
    sources = _collect_sources(list(architecture.graphs.values()), anchors)
    body = "\n".join(
        [
            _render_header(architecture),
            _render_tabs(list(trees)),
            *(
                _render_graph_section(n, name, trees[name], architecture, anchors)
                for n, name in enumerate(trees)
            ),
            _render_costs(cost),
            *_render_listings(sources),
        ]
    )
    return render_html_page(
        f"Architecture: {make_printable_label(architecture.name, 80)}",
        body,
        styles=[read_page_resource("page.css"), read_page_resource("architecture.css")],
        scripts=[read_page_resource("page.js"), read_page_resource("architecture.js")],
        data={"graphs": [anchors.get_graph_anchors(n) for n in range(len(trees))]},
    )


class _Anchors:
    """The HTML anchors of blocks and of spec source lines."""

    def __init__(self, trees: Mapping[str, Block]) -> None:
        self.blocks: dict[tuple[int, str], str] = {}
        self.files: dict[str, int] = {}
        for n, tree in enumerate(trees.values()):
            for block in list(tree.walk_blocks())[:MAX_BLOCKS]:
                self.blocks.setdefault((n, block.path), f"b{n}-{len(self.blocks)}")
                for line in block.lines:
                    self.files.setdefault(line.file, len(self.files))

    def get_graph_anchors(self, graph_index: int) -> Json:
        """Return the anchors of the blocks of one graph, by block path."""
        return {path: anchor for (n, path), anchor in self.blocks.items() if n == graph_index}

    def format_line_link(self, line: SpecLine) -> str:
        """Render a link to a source line of a spec."""
        location = f"{escape(make_printable_label(line.file, 80))}:{line.line_number}"
        return f'<a href="#s{self.files[line.file]}-{line.line_number}">{location}</a>'


def _render_header(architecture: ArchitectureView) -> str:
    doc = (
        f'<p class="doc">{escape(make_printable_label(architecture.doc, 600))}</p>'
        if architecture.doc
        else ""
    )
    text = architecture.parameter_count_text
    count = f'<p class="count">{escape(text)}</p>' if text else ""
    title = escape(make_printable_label(architecture.name, 80))
    return (
        f"<header><div><h1>{title}</h1>{doc}{count}</div>"
        '<div class="tools"><button type="button" id="fold">open all</button>'
        '<button type="button" id="theme" aria-label="dark or light">◐</button></div></header>'
    )


def _render_tabs(names: Sequence[str]) -> str:
    """Render one tab per graph. Return "" if there is only one graph."""
    if len(names) < 2:
        return ""
    tabs = "".join(_render_tab(n, name) for n, name in enumerate(names))
    return f'<nav class="graphs" role="tablist" aria-label="graphs">{tabs}</nav>'


def _render_tab(graph_index: int, name: str) -> str:
    is_selected = "true" if graph_index == 0 else "false"
    return (
        f'<button type="button" role="tab" aria-selected="{is_selected}" '
        f'data-graph="{graph_index}">{escape(name)}</button>'
    )


def _render_graph_section(
    graph_index: int, name: str, tree: Block, architecture: ArchitectureView, anchors: _Anchors
) -> str:
    graph = architecture.graphs[name]
    hidden = "" if graph_index == 0 else " hidden"
    ports = [
        *_render_ports("input", {k: v.type for k, v in graph.inputs.items()}, architecture.sizes),
        *_render_ports("result", {k: v.type for k, v in graph.outputs.items()}, architecture.sizes),
    ]
    panels = [
        _render_panel(anchors.blocks[graph_index, block.path], block, architecture, anchors)
        for block in tree.walk_blocks()
        if (graph_index, block.path) in anchors.blocks
    ]
    return "\n".join(
        [
            f'<section class="graph" id="g{graph_index}"{hidden}>',
            f'<ul class="ports">{"".join(ports)}</ul>',
            '<div class="columns"><div class="tree" role="tree">',
            '<div class="titles"><span>block</span><span>output</span>'
            "<span>weights</span><span>multiply-adds</span></div>",
            *_render_rows(graph_index, tree, architecture.sizes, anchors, 0),
            '</div><div class="panels">',
            *panels,
            "</div></div></section>",
        ]
    )


def _render_ports(kind: str, types: Mapping[str, Type], sizes: Mapping[str, int]) -> Iterator[str]:
    for name, type_ in types.items():
        shape = escape(format_type_with_sizes(type_, sizes))
        label = escape(make_printable_label(name, 60))
        yield f'<li><span class="what">{kind}</span> {label} <code>{shape}</code></li>'


def _render_rows(
    graph_index: int, block: Block, sizes: Mapping[str, int], anchors: _Anchors, depth: int
) -> Iterator[str]:
    """Render the table rows of a block and its nested blocks. Rows below the second level are
    collapsed.
    """
    cells = _render_cells(block, sizes, depth)
    panel_id = anchors.blocks.get((graph_index, block.path), "")
    attributes = f'class="row k-{block.kind}" data-panel="{panel_id}"'
    button = f'<button type="button" {attributes}>{cells}</button>'
    if not block.inner_blocks:
        yield f'<div class="leaf">{button}</div>'
        return
    is_open = " open" if depth < 2 else ""
    yield f"<details{is_open}><summary>{button}</summary>"
    for inner_block in block.inner_blocks.values():
        yield from _render_rows(graph_index, inner_block, sizes, anchors, depth + 1)
    yield "</details>"


def _render_cells(block: Block, sizes: Mapping[str, int], depth: int) -> str:
    repeats = f' <b class="times">× {block.repeats}</b>' if block.repeats > 1 else ""
    name = escape(make_printable_label(block.name or "graph", 60))
    op = f' <span class="op">{escape(block.op)}</span>' if block.op else ""
    weights = format_dim_formula(block.parameter_count, {}) if block.parameter_count.terms else ""
    return (
        f'<span class="name indent-{min(depth, 8)}">{name}{repeats}{op}</span>'
        f'<span class="shape">{escape(block.output_type)}</span>'
        f'<span class="number">{escape(weights)}</span>'
        f'<span class="number">{escape(_format_multiply_adds(block, sizes))}</span>'
    )


def _format_multiply_adds(block: Block, sizes: Mapping[str, int]) -> str:
    """Format the multiply-adds of a block as a formula."""
    multiply_adds = block.multiply_adds - block.saved_multiply_adds
    return (
        _use_no_break_spaces(format_dim_formula(multiply_adds, sizes))
        if multiply_adds.terms
        else ""
    )


def _use_no_break_spaces(text: str) -> str:
    """Replace the spaces that separate groups of three digits with no-break spaces."""
    return THOUSANDS_SPACE.sub("\N{NO-BREAK SPACE}", text)


def _render_panel(
    panel_id: str, block: Block, architecture: ArchitectureView, anchors: _Anchors
) -> str:
    """Render a block's panel with type, weights, cost, description, spec lines and dataflow."""
    repeats = f" × {block.repeats}" if block.repeats > 1 else ""
    properties = [
        ("gives", block.output_type),
        ("weights", format_dim_formula(block.parameter_count, {})),
    ]
    properties.append(("multiply-adds", _format_multiply_adds(block, architecture.sizes)))
    if block.saved_multiply_adds.terms:
        properties.append(
            (
                "full forward",
                _use_no_break_spaces(format_dim_formula(block.multiply_adds, architecture.sizes)),
            )
        )
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>"
        for name, text in properties
        if text and text != "0"
    )
    title = escape(make_printable_label(f"{block.path or architecture.name}{repeats}", 120))
    description = (
        f'<p class="meaning">{_render_code(block.description)}</p>' if block.description else ""
    )
    drawing = _render_block(block, block.path or architecture.name)
    return (
        f'<article class="panel" id="{panel_id}" hidden><h2 class="path">{title}</h2>'
        f"<dl>{rows}</dl>{description}{_render_lines(block.lines, anchors)}{drawing}</article>"
    )


def _render_block(block: Block, title: str) -> str:
    """Render the dataflow graph of a block as inline SVG. Return "" if the block is a single
    operation.
    """
    if len(block.flow.items) <= 2 and not block.inner_blocks:
        return ""
    is_expanded = choose_blocks_to_expand(block, PANEL_ITEMS)
    return render_inline_svg(draw_block(block, is_expanded, title, has_heading=False))


def _render_lines(lines: Sequence[SpecLine], anchors: _Anchors) -> str:
    """Render the spec lines of a block."""
    if not lines:
        return ""
    items = "".join(
        f"<li><code>{escape(make_printable_label(line.text, 200))}</code> "
        f"{anchors.format_line_link(line)}</li>"
        for line in lines
    )
    return f'<ol class="lines" aria-label="in the spec">{items}</ol>'


def _render_code(text: str) -> str:
    """Convert text to HTML, with text in backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))


def _render_costs(cost: CostCurves | None) -> str:
    """Render the cost plot and the cost table, or a sentence if the cost is constant."""
    if cost is None:
        return (
            '<section class="costs"><h3>Cost</h3><p class="doc">The cost does not depend on a '
            "sequence length.</p></section>"
        )
    header_cells = "".join(f"<th>{escape(curve.name)}</th>" for curve in cost.curves)
    rows = "".join(
        f"<tr><th>{format_thousands(n)}</th>"
        + "".join(
            f"<td>{format_large_number(round(curve.values[k]))}</td>" for curve in cost.curves
        )
        + "</tr>"
        for k, n in enumerate(cost.lengths)
    )
    limit_text = f'<p class="doc">{escape(cost.limit_reason)}</p>' if cost.limit_reason else ""
    drawing = render_inline_svg(plot_cost_curves(cost))
    return (
        f'<section class="costs"><h3>Cost</h3>{drawing}{limit_text}'
        f"<table><thead><tr><th>{escape(' = '.join(cost.symbols))}</th>{header_cells}</tr></thead>"
        f"<tbody>{rows}</tbody></table></section>"
    )


def _collect_sources(graphs: Sequence[Graph], anchors: _Anchors) -> dict[str, Source]:
    """Return the spec sources to which blocks link, in the order of their anchors."""
    sources: dict[str, Source] = {}
    for graph in graphs:
        for origin in graph.node_origins.values():
            for span in origin.spans:
                if span.source.name in anchors.files:
                    sources.setdefault(span.source.name, span.source)
    return {name: sources[name] for name in anchors.files if name in sources}


def _render_listings(sources: Mapping[str, Source]) -> Iterator[str]:
    """Render each spec source with line numbers. A source is collapsed until a link opens it."""
    remaining_characters = MAX_SOURCE
    for n, (name, source) in enumerate(sources.items()):
        lines = source.text.splitlines()
        remaining_characters -= len(source.text)
        if remaining_characters < 0:
            return
        rows = "".join(
            f'<li id="s{n}-{k}"><code>{escape(escape_text(line)[:400]) or " "}</code></li>'
            for k, line in enumerate(lines, 1)
        )
        yield (
            f'<details class="source"><summary>{escape(make_printable_label(name, 120))}</summary>'
            f"<ol>{rows}</ol></details>"
        )
