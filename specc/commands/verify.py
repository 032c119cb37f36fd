"""Compare a compiled model with the float64 reference on random inputs of several sizes."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.commands.spec_options import rounds, seed
from specc.packages import open_either, open_package, verify_package
from specc.verifying import verify


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package")
    parser.add_argument("--graph", default="", metavar="NAME", help="only this one of a package's graphs")
    parser.add_argument("--provider", default="cpu", help="cpu, cuda, … (an execution provider of ONNX Runtime)")
    parser.add_argument("--seed", type=seed, default=0, help="for the random inputs")
    parser.add_argument("--rounds", type=rounds, default=3, metavar="N", help="how many sizes to try")


def run(given: Namespace) -> int:
    """Print a line a round; exit code 4 (E0930) when one differs, 5 (E0932) when rounding decides what comes out."""
    settings = {"seed": given.seed, "rounds": given.rounds}
    if Path(given.model).is_dir():
        package = open_package(given.model, contents=True)
        lines = verify_package(package, graph=given.graph, provider=given.provider, **settings)
    else:
        model = open_either(given.model, graph=given.graph, provider=given.provider, contents=True)
        lines = verify(model, **settings)
    for line in lines:
        print(line)
    return 0
