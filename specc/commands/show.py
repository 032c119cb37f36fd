"""Show an architecture as a tree, with shapes, weights and multiply-adds as formulas or numbers."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from specc.commands.spec_options import spec_arguments, spec_of
from specc.driver import elaborated
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.passes.cost import parameters
from specc.passes.outline import outline, walk
from specc.text.diagnostic import fail


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)
    parser.add_argument("--at", default="", metavar="batch=8,seq=4096", help="put numbers in place of the lengths")


def run(given: Namespace) -> int:
    """Print the tree."""
    graph = graph_of(given)
    at = sizes(given.at, graph)
    for name, value in graph.inputs.items():
        print(f"input   {name}: {value.type}")
    rows = [("", "gives", "weights", "multiply-adds")]
    for depth, part in walk(outline(graph)):
        shown = f" ({part.op})" if not part.parts and part.op else ""
        times = f" × {part.times}" if part.times > 1 else ""
        type_ = "" if part.type is None else f"[{', '.join(formula(d, at) for d in part.type.shape)}]"
        weights, work = part.all_weights(), part.all_work()
        name = f"{'  ' * depth}{part.name or graph.name}{times}{shown}"
        rows.append((name, type_, formula(weights, {}) if weights.terms else "", formula(work, at) if work.terms else ""))
    widths = [max(len(r[n]) for r in rows) for n in range(3)]
    for row in rows:
        print("  ".join(text.ljust(w) for text, w in zip(row, (*widths, 0), strict=True)).rstrip())
    for name, value in graph.outputs.items():
        print(f"result  {name}: {value.type}")
    print(f"{grouped(parameters(graph).number or 0)} parameters")
    return 0


def graph_of(given: Namespace) -> Graph:
    """The graph of a spec, or of a compiled model."""
    if given.spec.endswith(".onnx"):
        from specc.running import manifest_of  # noqa: PLC0415 — needs onnx, which a spec does not

        return manifest_of(given.spec).graph
    return elaborated(spec_of(given), given.graph).graph


def sizes(text: str, graph: Graph) -> Mapping[str, int]:
    """`batch=8,seq=4096`. E0407 for anything else."""
    known = {s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()}
    found = {}
    for part in text.split(",") if text else []:
        name, _, number = part.partition("=")
        if name.strip() not in known or not number.strip().isdigit():
            fail("E0407", f"`--at {part}` is no length of this model", helps=[f"it has {', '.join(sorted(known))}"])
        found[name.strip()] = int(number)
    return found


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
