"""Compare a compiled model with the float64 reference on random inputs of several sizes."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from specc.cli import messages
from specc.cli.progress import counted
from specc.cli.spec_options import rounds, seed
from specc.files.read import shown
from specc.run.loaded import Loaded
from specc.run.losses import MEASURES, Compared
from specc.run.opened import Opened, open_compiled
from specc.run.verify_package import verify_opened
from specc.text.diagnostic import fail


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
    parser.add_argument(
        "--against",
        default="",
        metavar="MODEL.onnx|DIR",
        help="the same model without rounded weights: say what the rounding lost",
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="with --against: say it of each part with a rounded weight, too",
    )
    parser.add_argument(
        "--at-most",
        action="append",
        default=[],
        type=bound,
        metavar="MEASURE=NUMBER",
        help=f"end with an error where it lost more: {', '.join(MEASURES)}",
    )


def bound(text: str) -> tuple[str, float]:
    """A measure and the most that it may be."""
    name, _, number = text.partition("=")
    if name not in MEASURES:
        raise ArgumentTypeError(f"there is no measure `{shown(name)[:40]}`")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"`{shown(number)[:40]}` is no number from 0 on")
    return name, value


def run(given: Namespace) -> int:
    """Print a line a round; exit code 4 (E0930) when one differs, 5 (E0932) when
    rounding decides what comes out.
    """
    if given.at_most and not given.against:
        fail(
            "E0753",
            "`--at-most` bounds what was lost beside another model, and none is named",
            helps=["add `--against MODEL`, the same without rounded weights"],
        )
    if given.layers and not given.against:
        fail(
            "E0753",
            "`--layers` tells what was lost beside another model, and none is named",
            helps=["add `--against MODEL`, the same without rounded weights"],
        )
    opened = open_compiled(
        given.model, graph=given.graph, provider=given.provider, contents=True
    )
    lines = []
    found = verify_opened(opened, seed=given.seed, rounds=given.rounds)
    for line in counted(found, "comparing rounds"):
        messages.done(line)
        lines.append(line)
    lost: list[str] = []
    if given.against:
        full = open_compiled(given.against, graph=given.graph, provider=given.provider)
        compared = Compared(_whole(opened), _whole(full))
        compared.run(given.seed, given.rounds)
        each = compared.layers(given.seed) if given.layers else ()
        for line in (*each, *compared.lines()):
            messages.done(line)
            lost.append(line)
        compared.check(dict(given.at_most))
    messages.answer("verify", {"agrees": True, "rounds": lines, "lost": lost})
    return 0


def _whole(opened: Opened) -> Loaded:
    """The graph that scores. E0832 where a package lacks it."""
    if opened.scoring is None:
        fail(
            "E0832",
            "the package has no `score` graph, by which models are compared",
            helps=["compile it with `--for score,encode,step`"],
        )
    return opened.scoring
