"""Compare a compiled model with the float64 reference on random inputs of several sizes."""

from argparse import ArgumentParser, Namespace

from specc.commands.spec_options import rounds, seed
from specc.running import open_model
from specc.verifying import verify


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--provider", default="cpu", help="cpu, cuda, … (an execution provider of ONNX Runtime)")
    parser.add_argument("--seed", type=seed, default=0, help="for the random inputs")
    parser.add_argument("--rounds", type=rounds, default=3, metavar="N", help="how many sizes to try")


def run(given: Namespace) -> int:
    """Print a line a round; exit code 4 (E0930) when one differs."""
    model = open_model(given.model, provider=given.provider)
    for line in verify(model, seed=given.seed, rounds=given.rounds):
        print(line)
    return 0
