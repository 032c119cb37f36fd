"""Write an architecture as HTML or SVG (`specc show --html`, `--svg`)."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from specc.cli.terminal import print_done
from specc.diagnostics.diagnostic import raise_error
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import DRAWING_OUTPUT, HTML_OUTPUT, resolve_output_path
from specc.io.safe_read import escape_text
from specc.visualize.architecture_page import (
    ArchitectureView,
    render_architecture_page,
    render_architecture_svg,
)


def check_drawing_options(given: Namespace) -> bool:
    """Whether a drawing is asked for, and may be written. E0955 where a text is, too."""
    if not given.html and not given.svg:
        return False
    if given.ir or given.print_after:
        option = "--ir" if given.ir else "--print-after"
        raise_error(
            "E0955",
            f"`{option}` prints a graph as text, and a drawing is asked for",
            helps=[f"leave out `{option}`, or `--html` and `--svg`"],
        )
    for path, kind in ((given.html, HTML_OUTPUT), (given.svg, DRAWING_OUTPUT)):
        if path:
            resolve_output_path(path, kind, inputs=_inputs(given), force=given.force)
    return True


def write_drawings(given: Namespace, architecture: ArchitectureView) -> None:
    """The files that are asked for."""
    makers = (
        (given.html, HTML_OUTPUT, render_architecture_page),
        (given.svg, DRAWING_OUTPUT, render_architecture_svg),
    )
    for path, kind, make in makers:
        if not path:
            continue
        content = make(architecture).encode("utf-8")
        at = resolve_output_path(path, kind, inputs=_inputs(given), force=given.force)
        write_file_atomically(at, [content])
        print_done(f"{escape_text(path)} written", aside=True)


def _inputs(given: Namespace) -> Sequence[Path]:
    """Files that are read: none of them is written over."""
    return [Path(p) for p in (given.spec, given.own, given.config) if p]
