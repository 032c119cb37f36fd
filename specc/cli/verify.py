"""Compare a compiled model with the float64 reference on random inputs of several sizes."""

from argparse import ArgumentParser, Namespace

from specc.cli.spec_options import rounds, seed
from specc.run.opened import open_compiled
from specc.run.verify_package import verify_opened


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "model", metavar="MODEL.onnx|DIR", help="a compiled model, or a package"
    )
    parser.add_argument(
        "--graph",
        default="",
        metavar="NAME",
        help="only this one of a package's graphs",
    )
    parser.add_argument(
        "--provider",
        default="cpu",
        help="cpu, cuda, … (an execution provider of ONNX Runtime)",
    )
    parser.add_argument("--seed", type=seed, default=0, help="for the random inputs")
    parser.add_argument(
        "--rounds", type=rounds, default=3, metavar="N", help="how many sizes to try"
    )


def run(given: Namespace) -> int:
    """Print a line a round; exit code 4 (E0930) when one differs, 5 (E0932) when
    rounding decides what comes out.
    """
    opened = open_compiled(
        given.model, graph=given.graph, provider=given.provider, contents=True
    )
    for line in verify_opened(opened, seed=given.seed, rounds=given.rounds):
        print(line)
    return 0
