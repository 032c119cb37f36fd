"""An architecture as a page: its blocks to open and close, a drawing, a formula and the
lines of the spec for each, the graphs derived from it beside it, and what it costs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from specc.compiler.architecture.blocks import Block, Line, blocks_of
from specc.compiler.architecture.cost import Cost, cost_of
from specc.compiler.architecture.expansion import opened_to
from specc.compiler.architecture.layout import drawing_of
from specc.compiler.architecture.plot import plot
from specc.data.pictures.drawing import visible
from specc.data.pictures.page import page, resource
from specc.data.pictures.svg import inline, svg
from specc.files.json import Json
from specc.files.read import shown as printable
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.passes.measure.formula import formula, grouped, rounded, type_at
from specc.text.source import Source

MOST_ITEMS = 60
"""Boxes in one drawing: more are closed."""

MOST_BLOCKS = 2000
"""Blocks that have a panel of their own; those further inside are seen in the others."""

THOUSANDS = re.compile(r"(?<=\d) (?=\d)")
"""A space between thousands."""

MOST_SOURCE = 400_000
"""Characters of spec text on a page."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a page shows: graphs by what they are called, the whole first, and the lengths
    that are numbers (`at`). `count` says how many parameters there are.
    """

    name: str
    doc: str
    graphs: Mapping[str, Graph]
    count: str = ""
    at: Mapping[str, int] = field(default_factory=dict)


def architecture_svg(shown: Architecture) -> str:
    """The whole graph as one drawing, blocks inside blocks as long as they have room."""
    graph = next(iter(shown.graphs.values()))
    block = blocks_of(graph, shown.at)
    return svg(drawing_of(block, opened_to(block, MOST_ITEMS), shown.name))


def architecture_page(shown: Architecture) -> str:
    """The page: one file, no network, nothing that runs but our own program."""
    trees = {name: blocks_of(g, shown.at) for name, g in shown.graphs.items()}
    places = _Places(trees)
    cost = cost_of(next(iter(shown.graphs.values())))
    sources = _sources(list(shown.graphs.values()), places)
    body = "\n".join(
        [
            _head(shown),
            _tabs(list(trees)),
            *(
                _graph(n, name, trees[name], shown, places)
                for n, name in enumerate(trees)
            ),
            _costs(cost),
            *_listings(sources),
        ]
    )
    return page(
        f"Architecture: {visible(shown.name, 80)}",
        body,
        styles=[resource("page.css"), resource("architecture.css")],
        programs=[resource("page.js"), resource("architecture.js")],
        data={"graphs": [places.of(n) for n in range(len(trees))]},
    )


class _Places:
    """Where on a page a block and a line of a spec are."""

    def __init__(self, trees: Mapping[str, Block]) -> None:
        self.blocks: dict[tuple[int, str], str] = {}
        self.files: dict[str, int] = {}
        for n, tree in enumerate(trees.values()):
            for block in list(tree.all())[:MOST_BLOCKS]:
                self.blocks.setdefault((n, block.path), f"b{n}-{len(self.blocks)}")
                for line in block.lines:
                    self.files.setdefault(line.file, len(self.files))

    def of(self, graph: int) -> Json:
        """The places of the blocks of one graph, by their paths."""
        return {path: at for (n, path), at in self.blocks.items() if n == graph}

    def line(self, line: Line) -> str:
        """A link to a line."""
        where = f"{escape(visible(line.file, 80))}:{line.number}"
        return f'<a href="#s{self.files[line.file]}-{line.number}">{where}</a>'


def _head(shown: Architecture) -> str:
    doc = f'<p class="doc">{escape(visible(shown.doc, 600))}</p>' if shown.doc else ""
    count = f'<p class="count">{escape(shown.count)}</p>' if shown.count else ""
    return (
        f"<header><div><h1>{escape(visible(shown.name, 80))}</h1>{doc}{count}</div>"
        '<div class="tools"><button type="button" id="fold">open all</button>'
        '<button type="button" id="theme" aria-label="dark or light">◐</button></div></header>'
    )


def _tabs(names: Sequence[str]) -> str:
    """A button a graph, where there are several."""
    if len(names) < 2:
        return ""
    tabs = "".join(_tab(n, name) for n, name in enumerate(names))
    return f'<nav class="graphs" role="tablist" aria-label="graphs">{tabs}</nav>'


def _tab(n: int, name: str) -> str:
    chosen = "true" if n == 0 else "false"
    return (
        f'<button type="button" role="tab" aria-selected="{chosen}" data-graph="{n}">'
        f"{escape(name)}</button>"
    )


def _graph(n: int, name: str, tree: Block, shown: Architecture, places: _Places) -> str:
    graph = shown.graphs[name]
    hidden = "" if n == 0 else " hidden"
    ports = [
        *_ports("input", {k: v.type for k, v in graph.inputs.items()}, shown.at),
        *_ports("result", {k: v.type for k, v in graph.outputs.items()}, shown.at),
    ]
    panels = [
        _panel(places.blocks[n, block.path], block, shown, places)
        for block in tree.all()
        if (n, block.path) in places.blocks
    ]
    return "\n".join(
        [
            f'<section class="graph" id="g{n}"{hidden}>',
            f'<ul class="ports">{"".join(ports)}</ul>',
            '<div class="columns"><div class="tree" role="tree">',
            '<div class="titles"><span>block</span><span>gives</span>'
            "<span>weights</span><span>multiply-adds</span></div>",
            *_rows(n, tree, shown.at, places, 0),
            '</div><div class="panels">',
            *panels,
            "</div></div></section>",
        ]
    )


def _ports(
    what: str, types: Mapping[str, Type], at: Mapping[str, int]
) -> Iterator[str]:
    for name, type_ in types.items():
        shape = escape(type_at(type_, at))
        label = escape(visible(name, 60))
        yield f'<li><span class="what">{what}</span> {label} <code>{shape}</code></li>'


def _rows(
    n: int, block: Block, at: Mapping[str, int], places: _Places, depth: int
) -> Iterator[str]:
    """A line of the tree, and below it those inside, closed from the third level on."""
    cells = _cells(block, at, depth)
    place = places.blocks.get((n, block.path), "")
    kind = f'class="row k-{block.kind}" data-panel="{place}"'
    button = f'<button type="button" {kind}>{cells}</button>'
    if not block.inner:
        yield f'<div class="leaf">{button}</div>'
        return
    is_open = " open" if depth < 2 else ""
    yield f"<details{is_open}><summary>{button}</summary>"
    for inner in block.inner.values():
        yield from _rows(n, inner, at, places, depth + 1)
    yield "</details>"


def _cells(block: Block, at: Mapping[str, int], depth: int) -> str:
    times = f' <b class="times">× {block.times}</b>' if block.times > 1 else ""
    name = escape(visible(block.name or "graph", 60))
    op = f' <span class="op">{escape(block.op)}</span>' if block.op else ""
    weights = formula(block.weights, {}) if block.weights.terms else ""
    return (
        f'<span class="name indent-{min(depth, 8)}">{name}{times}{op}</span>'
        f'<span class="shape">{escape(block.gives)}</span>'
        f'<span class="number">{escape(weights)}</span>'
        f'<span class="number">{escape(_work(block, at))}</span>'
    )


def _work(block: Block, at: Mapping[str, int]) -> str:
    """The multiply-adds that are done, as a formula."""
    work = block.work - block.spared
    return _kept(formula(work, at)) if work.terms else ""


def _kept(text: str) -> str:
    """A formula whose numbers are not broken at the end of a line."""
    return THOUSANDS.sub("\N{NO-BREAK SPACE}", text)


def _panel(place: str, block: Block, shown: Architecture, places: _Places) -> str:
    """All that is known of a block."""
    times = f" × {block.times}" if block.times > 1 else ""
    facts = [("gives", block.gives), ("weights", formula(block.weights, {}))]
    facts.append(("multiply-adds", _work(block, shown.at)))
    if block.spared.terms:
        facts.append(("all at once", _kept(formula(block.work, shown.at))))
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>"
        for name, text in facts
        if text and text != "0"
    )
    title = escape(visible(f"{block.path or shown.name}{times}", 120))
    meaning = f'<p class="meaning">{_code(block.meaning)}</p>' if block.meaning else ""
    picture = ""
    if len(block.flow.items) > 2 or block.inner:
        opens = opened_to(block, 14)
        title_of = block.path or shown.name
        drawing = drawing_of(block, opens, title_of, headed=False)
        picture = inline(drawing, "drawing")
    return (
        f'<article class="panel" id="{place}" hidden><h2 class="path">{title}</h2>'
        f"<dl>{rows}</dl>{meaning}{_lines(block.lines, places)}{picture}</article>"
    )


def _lines(lines: Sequence[Line], places: _Places) -> str:
    """The lines of the spec that say so."""
    if not lines:
        return ""
    said = "".join(
        f"<li><code>{escape(visible(line.text, 200))}</code> {places.line(line)}</li>"
        for line in lines
    )
    return f'<ol class="lines" aria-label="in the spec">{said}</ol>'


def _code(text: str) -> str:
    """Prose in which what stands between backticks is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))


def _costs(cost: Cost | None) -> str:
    """The plot of costs and its numbers; a sentence where there is nothing to plot."""
    if cost is None:
        return (
            '<section class="costs"><h3>Cost</h3><p class="doc">No length is open but the number '
            "of examples: the formulas above are all there is to say.</p></section>"
        )
    head = "".join(f"<th>{escape(c.name)}</th>" for c in cost.curves)
    rows = "".join(
        f"<tr><th>{grouped(n)}</th>"
        + "".join(f"<td>{rounded(round(c.values[k]))}</td>" for c in cost.curves)
        + "</tr>"
        for k, n in enumerate(cost.lengths)
    )
    stops = f'<p class="doc">{escape(cost.stops)}</p>' if cost.stops else ""
    drawing = inline(plot(cost, "Multiply-adds against length"), "drawing")
    return (
        f'<section class="costs"><h3>Cost</h3>{drawing}{stops}'
        f"<table><thead><tr><th>{escape(' = '.join(cost.symbols))}</th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></section>"
    )


def _sources(graphs: Sequence[Graph], places: _Places) -> dict[str, Source]:
    """The texts that the links lead to, in the order in which they are numbered."""
    found: dict[str, Source] = {}
    for graph in graphs:
        for made in graph.made.values():
            for span in made.spans:
                if span.source.name in places.files:
                    found.setdefault(span.source.name, span.source)
    return {name: found[name] for name in places.files if name in found}


def _listings(sources: Mapping[str, Source]) -> Iterator[str]:
    """Each text with its lines numbered, closed until a link leads there."""
    room = MOST_SOURCE
    for n, (name, source) in enumerate(sources.items()):
        lines = source.text.splitlines()
        room -= len(source.text)
        if room < 0:
            return
        rows = "".join(
            f'<li id="s{n}-{k}"><code>{escape(printable(line)[:400]) or " "}</code></li>'
            for k, line in enumerate(lines, 1)
        )
        yield (
            f'<details class="source"><summary>{escape(visible(name, 120))}</summary>'
            f"<ol>{rows}</ol></details>"
        )
