"""Show an architecture as a tree, with shapes, weights and multiply-adds as formulas or numbers."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from specc.cli.messages import answer
from specc.cli.show_drawn import check_drawn, drawing_arguments, write_drawn
from specc.cli.show_told import told_graph
from specc.cli.spec_options import is_compiled, spec_arguments, spec_of
from specc.compiler.architecture.graphs import WHOLE, graphs_of
from specc.compiler.architecture.page import Architecture
from specc.compiler.spec import elaborated
from specc.compiler.ties import own_parameters
from specc.files.read import shown
from specc.ir.dim import Dim, product, total
from specc.ir.graph import Graph
from specc.ir.write import write
from specc.passes import pipeline
from specc.passes.measure.cost import parameters
from specc.passes.measure.formula import formula, grouped, rounded, substituted, type_at
from specc.passes.measure.limits import limits
from specc.passes.measure.outline import Part, outline, walk
from specc.text.diagnostic import fail
from specc.text.suggest import suggest

if TYPE_CHECKING:
    from specc.artifact.manifest import Manifest

BEAM = ("beams", "n_best", "length_penalty", "early_stopping")
"""Settings that only a search over beams has."""


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser, "a compiled model or a package, which tells what it holds, ")
    parser.add_argument(
        "--at",
        default="",
        metavar="batch=8,seq=4096",
        help="put numbers in place of the lengths",
    )
    parser.add_argument(
        "--ir",
        action="store_true",
        help="print the graph itself as text, a line a node",
    )
    parser.add_argument(
        "--after",
        default="",
        metavar="PASS",
        help="the graph behind this pass of compile: "
        + ", ".join(each.name for each in pipeline.PASSES),
    )
    drawing_arguments(parser)


def run(given: Namespace) -> int:
    """Print the tree, or with `--ir` the graph as text; of a package without `--graph`,
    what it holds. With `--html` or `--svg` a file is written.
    """
    if check_drawn(given):
        return _draw(given)
    as_ir = given.ir or given.after
    if _is_whole_package(given) and not as_ir:
        from specc.run.overview import overview
        from specc.run.package import open_package

        return _say("\n".join(overview(open_package(given.spec))))
    manifest = _manifest_of(given)
    if manifest is not None and manifest.decodes is not None:
        if given.after:
            _no_pass(given.after, "none runs on a model that decodes by itself")
        return _say("\n".join(_itself(manifest)))
    if as_ir:
        return _say(write(*_behind(given, manifest).graphs()).rstrip("\n"))
    graph, own = graph_of(given, manifest)
    at = sizes(given.at, graph)
    lines = tree_of(graph, at, _count(graph, own))
    if not answer("show", told_graph(graph, at, own)):
        print("\n".join(lines))
    return 0


def _draw(given: Namespace) -> int:
    """The drawings that were asked for."""
    write_drawn(given, _architecture(given))
    written = [path for path in (given.html, given.svg) if path]
    answer("show", {"written": written})
    return 0


def _say(text: str) -> int:
    """What is text for programs, too."""
    if not answer("show", {"text": text}):
        print(text)
    return 0


def _architecture(given: Namespace) -> Architecture:
    """What is drawn: a spec with what is derived from it, or what is compiled."""
    if _is_whole_package(given):
        manifests = _manifests(given.spec)
        first = next(iter(manifests.values()))
        graphs = {role: each.graph for role, each in manifests.items()}
        return _drawn(given, first.name, first.doc, graphs, _counted(given, first))
    manifest = _manifest_of(given)
    if manifest is None:
        model = elaborated(spec_of(given), given.graph)
        count = _count(model.graph, own_parameters(model.graph))
        return _drawn(given, model.name, model.doc, graphs_of(model), count)
    if manifest.decodes is not None:
        fail(
            "E0956",
            f"`{shown(given.spec)}` decodes by itself and shows no graph to draw",
            helps=["draw its spec, or a package made of it with `--for all`"],
        )
    graphs = {WHOLE: manifest.graph}
    return _drawn(given, manifest.name, manifest.doc, graphs, _counted(given, manifest))


def _counted(given: Namespace, manifest: "Manifest") -> str:
    """How many parameters a compiled model has."""
    return _count(*graph_of(given, manifest))


def _drawn(
    given: Namespace, name: str, doc: str, graphs: Mapping[str, Graph], count: str
) -> Architecture:
    at = sizes(given.at, next(iter(graphs.values())))
    return Architecture(name=name, doc=doc, graphs=graphs, count=count, at=at)


def _manifests(path: str) -> "dict[str, Manifest]":
    """Those of a package's graphs that say what they are, the whole one first."""
    from specc.run.package import open_package

    package = open_package(path)
    roles = [role for role in package.roles if package.described(role)]
    found = {role: package.manifest(role) for role in roles}
    whole = {n: m for n, m in found.items() if m.decodes is None and n == "score"}
    shows = whole | {n: m for n, m in found.items() if m.decodes is None}
    if not shows:
        fail(
            "E0956",
            f"`{shown(path)}` holds no graph that can be drawn",
            helps=["draw its spec, or make a package of it with `--for all`"],
        )
    return shows


def _behind(given: Namespace, manifest: "Manifest | None") -> pipeline.Work:
    """The graphs behind the pass that is asked for; as they were elaborated, or are
    stored, where none is.
    """
    names = [each.name for each in pipeline.PASSES]
    if given.after and given.after not in names:
        listed = f"there are {', '.join(names)}"
        _no_pass(given.after, *suggest(given.after, names, listed))
    work = _work_of(given, manifest)
    return pipeline.run(work, pipeline.up_to(given.after)) if given.after else work


def _no_pass(name: str, *helps: str) -> NoReturn:
    fail("E0890", f"there is no pass `{shown(name)[:60]}` to look behind", helps=helps)


def _work_of(given: Namespace, manifest: "Manifest | None") -> pipeline.Work:
    """The elaborated graph with what is known beside it."""
    if manifest is None:
        model = elaborated(spec_of(given), given.graph)
        return pipeline.Work(
            graph=model.graph,
            defaults=model.defaults,
            generation=model.generation,
            streaming=model.streaming,
        )
    return pipeline.Work(
        graph=manifest.graph,
        defaults=manifest.defaults,
        generation=manifest.generates,
        streaming=manifest.streaming,
    )


Row = tuple[str, str, str, str, str]
"""A line of the tree: a scope, what it gives, its weights, its multiply-adds, and those
of attention that is not done in blocks.
"""


def tree_of(graph: Graph, at: Mapping[str, int], count: str) -> list[str]:
    """What is printed of a graph: its inputs, the tree of its scopes, its results."""
    rows = [("", "gives", "weights", "multiply-adds", "all at once")]
    tree = outline(graph, at)
    rows += [_row(graph, depth, part, at) for depth, part in walk(tree)]
    if not tree.all_spared().terms:
        rows = [(*row[:4], "") for row in rows]
    lines = [f"input   {n}: {type_at(v.type, at)}" for n, v in graph.inputs.items()]
    lines += _table(rows)
    lines += [f"result  {n}: {type_at(v.type, at)}" for n, v in graph.outputs.items()]
    done = substituted(tree.all_work() - tree.all_spared(), at).number
    # in letters only where it is a number: a formula stands in the tree
    return [*lines, count, *([f"{rounded(done)} multiply-adds"] if done else [])]


def _table(rows: Sequence[Row]) -> list[str]:
    """Rows with every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _row(graph: Graph, depth: int, part: Part, at: Mapping[str, int]) -> Row:
    op = f" ({part.op})" if part.op and not part.parts else ""
    times = f" × {part.times}" if part.times > 1 else ""
    shape = ""
    if part.type is not None:
        shape = f"[{', '.join(formula(d, at) for d in part.type.shape)}]"
    weights, work, spared = part.all_weights(), part.all_work(), part.all_spared()
    return (
        f"{'  ' * depth}{part.name or graph.name}{times}{op}",
        shape,
        formula(weights, {}) if weights.terms else "",
        formula(work - spared, at) if work.terms else "",
        formula(work, at) if spared.terms else "",
    )


def _count(graph: Graph, own: Dim) -> str:
    both = parameters(graph)
    shared = (
        f", {grouped(both.number or 0)} with those that are tied counted twice"
        if both != own
        else ""
    )
    return f"{grouped(own.number or 0)} parameters{shared}"


def _is_whole_package(given: Namespace) -> bool:
    """Return whether a package is shown, rather than one graph of it."""
    package = is_compiled(given.spec) and not given.spec.endswith(".onnx")
    return package and not given.graph


def _manifest_of(given: Namespace) -> "Manifest | None":
    """The manifest of what is compiled; None for a spec, for which nothing that runs
    models is imported.
    """
    if not is_compiled(given.spec):
        return None
    if given.spec.endswith(".onnx"):
        from specc.run.loaded import manifest_of

        return manifest_of(given.spec)
    from specc.run.package import open_package

    package = open_package(given.spec)
    return package.manifest(package.role(given.graph))


def _itself(manifest: "Manifest") -> list[str]:
    """What a model that decodes by itself says: it shows no graph, its step is that of
    a package.
    """
    settings = manifest.decodes or {}
    beam = settings.get("strategy") == "beam"
    said = {n: v for n, v in settings.items() if beam or n not in BEAM}
    settled = [
        f"{name} {value}" for name, value in said.items() if value not in (None, [], ())
    ]
    lines = [f"{manifest.name}: decodes by itself ({', '.join(settled)})"]
    lines += [
        f"input   {name}: {value.type}" for name, value in manifest.graph.inputs.items()
    ]
    return [*lines, "its parts are seen in a package: --for step"]


def graph_of(given: Namespace, manifest: "Manifest | None") -> tuple[Graph, Dim]:
    """The graph of a spec or of a compiled model, and how many numbers its weights have."""
    if manifest is not None:
        stored = set(manifest.stored.values())
        held = [
            f
            for n, f in manifest.graph.parameter_facts.items()
            if manifest.stored.get(n) in stored
        ]
        own = {manifest.stored[f.name]: product(f.type.shape) for f in held}
        return manifest.graph, total(own.values())
    spec = spec_of(given)
    graph = elaborated(spec, given.graph).graph
    return graph, own_parameters(graph)


def _lengths_of(graph: Graph) -> set[str]:
    """The lengths that are known only when the model runs."""
    dims = [dim for value in graph.inputs.values() for dim in value.type.shape]
    return {symbol for dim in dims for symbol in dim.symbols()}


def sizes(text: str, graph: Graph) -> Mapping[str, int]:
    """`batch=8,seq=4096`. E0407 for anything else."""
    known = _lengths_of(graph)
    most = limits(graph)
    found: dict[str, int] = {}
    for part in text.split(",") if text else []:
        name, _, number = (word.strip() for word in part.partition("="))
        # `isdecimal` alone takes digits of every script
        if name not in known or not number.isdecimal() or not number.isascii():
            fail(
                "E0407",
                f"`--at {part}` is no length of this model",
                helps=[f"it has {', '.join(sorted(known))}"],
            )
        found[name] = int(number)
        if name in most and found[name] > most[name].most:
            fail(
                "E0407",
                f"`--at {part}`: this model takes at most {most[name].most}",
                notes=[most[name].reason],
            )
    return found
