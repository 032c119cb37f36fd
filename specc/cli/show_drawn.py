"""`specc show --html` and `--svg`: an architecture as a page or as a drawing."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from specc.cli.messages import done
from specc.cli.spec_options import FORCE
from specc.compiler.architecture.page import (
    Architecture,
    architecture_page,
    architecture_svg,
)
from specc.files.place import DRAWING, PAGE, place
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.text.diagnostic import fail


def drawing_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--html",
        default="",
        metavar="OUT.html",
        help="write a page: blocks, drawings, formulas, lines of the spec, cost",
    )
    parser.add_argument(
        "--svg", default="", metavar="OUT.svg", help="write a drawing of the blocks"
    )
    parser.add_argument("--force", action="store_true", help=FORCE)


def check_drawn(given: Namespace) -> bool:
    """Whether a drawing is asked for, and may be written. E0955 where a text is, too."""
    if not given.html and not given.svg:
        return False
    if given.ir or given.after:
        option = "--ir" if given.ir else "--after"
        fail(
            "E0955",
            f"`{option}` prints a graph as text, and a drawing is asked for",
            helps=[f"leave out `{option}`, or `--html` and `--svg`"],
        )
    for path, kind in ((given.html, PAGE), (given.svg, DRAWING)):
        if path:
            place(path, kind, inputs=_inputs(given), force=given.force)
    return True


def write_drawn(given: Namespace, architecture: Architecture) -> None:
    """The files that are asked for."""
    makers = (
        (given.html, PAGE, architecture_page),
        (given.svg, DRAWING, architecture_svg),
    )
    for path, kind, make in makers:
        if not path:
            continue
        content = make(architecture).encode("utf-8")
        at = place(path, kind, inputs=_inputs(given), force=given.force)
        atomic_write(at, [content])
        done(f"{shown(path)} written", aside=True)


def _inputs(given: Namespace) -> Sequence[Path]:
    """Files that are read: none of them is written over."""
    return [Path(p) for p in (given.spec, given.own, given.config) if p]
