"""Show an architecture as a tree, with shapes, weights and multiply-adds as formulas or numbers."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from specc.commands.spec_options import spec_arguments, spec_of
from specc.driver import elaborated
from specc.ir.dim import Dim, DimError, product, total
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.package_index import is_package
from specc.passes.cost import parameters
from specc.passes.limits import limits
from specc.passes.outline import outline, walk
from specc.text.diagnostic import fail
from specc.ties import own_parameters

BEAM = ("beams", "n_best", "length_penalty", "early_stopping")
"""Settings that only a search over beams has."""


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)
    parser.add_argument("--at", default="", metavar="batch=8,seq=4096", help="put numbers in place of the lengths")


def run(given: Namespace) -> int:
    """Print the tree; of a package without `--graph`, what it holds."""
    if is_package(given.spec) and not given.graph:
        packages = import_module("specc.packages")
        print("\n".join(packages.overview(packages.open_package(given.spec))))
        return 0
    if (manifest := _manifest_of(given)) is not None and manifest.decodes is not None:
        print("\n".join(_itself(manifest)))
        return 0
    graph, count = graph_of(given)
    at = sizes(given.at, graph)
    inputs = [f"input   {name}: {type_at(value.type, at)}" for name, value in graph.inputs.items()]
    results = [f"result  {name}: {type_at(value.type, at)}" for name, value in graph.outputs.items()]
    rows = [("", "gives", "weights", "multiply-adds")]
    for depth, part in walk(outline(graph)):
        shown = f" ({part.op})" if not part.parts and part.op else ""
        times = f" × {part.times}" if part.times > 1 else ""
        type_ = "" if part.type is None else f"[{', '.join(formula(d, at) for d in part.type.shape)}]"
        weights, work = part.all_weights(), part.all_work()
        name = f"{'  ' * depth}{part.name or graph.name}{times}{shown}"
        rows.append(
            (name, type_, formula(weights, {}) if weights.terms else "", formula(work, at) if work.terms else "")
        )
    widths = [max(len(r[n]) for r in rows) for n in range(3)]
    print("\n".join(inputs))
    for row in rows:
        print("  ".join(text.ljust(w) for text, w in zip(row, (*widths, 0), strict=True)).rstrip())
    print("\n".join([*results, count]))
    return 0


def _count(graph: Graph, own: Dim) -> str:
    both = parameters(graph)
    shared = f", {grouped(both.number or 0)} with those that are tied counted twice" if both != own else ""
    return f"{grouped(own.number or 0)} parameters{shared}"


def _manifest_of(given: Namespace) -> Any:
    """The manifest of what is compiled; None for a spec."""
    if given.spec.endswith(".onnx"):
        return import_module("specc.running").manifest_of(given.spec)
    return _in_package(given) if is_package(given.spec) else None


def _itself(manifest: Any) -> list[str]:
    """What a model that decodes by itself says: it shows no graph, its step is that of a package."""
    beam = manifest.decodes.get("strategy") == "beam"
    said = {n: v for n, v in manifest.decodes.items() if beam or n not in BEAM}
    settled = [f"{name} {value}" for name, value in said.items() if value not in (None, [], ())]
    lines = [f"{manifest.name}: decodes by itself ({', '.join(settled)})"]
    lines += [f"input   {name}: {value.type}" for name, value in manifest.graph.inputs.items()]
    return [*lines, "its parts are seen in a package: --for step"]


def graph_of(given: Namespace) -> tuple[Graph, str]:
    """The graph of a spec or of a compiled model, and how many parameters it has."""
    if (manifest := _manifest_of(given)) is not None:
        stored = set(manifest.stored.values())
        held = [f for n, f in manifest.graph.parameter_facts.items() if manifest.stored.get(n) in stored]
        own = {manifest.stored[f.name]: product(f.type.shape) for f in held}
        return manifest.graph, _count(manifest.graph, total(own.values()))
    spec = spec_of(given)
    graph = elaborated(spec, given.graph).graph
    return graph, _count(graph, own_parameters(spec.program, graph))


def _in_package(given: Namespace) -> Any:
    """The manifest of one graph of a package."""
    package = import_module("specc.packages").open_package(given.spec)
    return package.manifest(package.role(given.graph))


def sizes(text: str, graph: Graph) -> Mapping[str, int]:
    """`batch=8,seq=4096`. E0407 for anything else."""
    known = {s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()}
    found = {}
    for part in text.split(",") if text else []:
        name, _, number = part.partition("=")
        if name.strip() not in known or not (number.strip().isascii() and number.strip().isdecimal()):
            fail("E0407", f"`--at {part}` is no length of this model", helps=[f"it has {', '.join(sorted(known))}"])
        found[name.strip()] = int(number)
        limit = limits(graph).get(name.strip())
        if limit and found[name.strip()] > limit.most:
            notes = [f"the table `{limit.table}` has no row for a later position"]
            fail("E0407", f"`--at {part}`: this model takes at most {limit.most}", notes=notes)
    return found


def type_at(type: Type, at: Mapping[str, int]) -> str:
    """`f32[batch, 128, 768]`."""
    return f"{type.dtype}[{', '.join(formula(d, at) for d in type.shape)}]"


def formula(dim: Dim, at: Mapping[str, int]) -> str:
    """A dim as mathematics writes it: `2·batch·seq²·768`, or a number where all is known."""
    try:
        dim = dim.substitute(at)
    except DimError as error:
        fail("E0407", f"these lengths do not fit the model: {error}")
    if dim.number is not None:
        return grouped(dim.number)
    text = str(dim)
    for power, sign in (("^2", "²"), ("^3", "³")):
        text = text.replace(power, sign)
    return text.replace("*", "·")


def grouped(number: int) -> str:
    """`124 439 808`."""
    return f"{number:,}".replace(",", " ")
