"""Export a compiled model as a model repository for Triton Inference Server: `export triton`."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from specc.cli.terminal import print_done, print_json_result
from specc.driver.compile_options import refuse_uncompiled
from specc.io.safe_read import escape_text
from specc.runtime.open_model import open_compiled
from specc.runtime.triton_export import write_triton_repository


def add_export_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("to", choices=["triton"], help="NVIDIA's Triton Inference Server")
    add("model", metavar="MODEL", help="a compiled model, or a package")
    add("-o", "--output", required=True, metavar="DIR", help="the model repository")
    add(
        "--name", default="", help="name of the model in the repository (default: that of the spec)"
    )
    add("--graph", default="", metavar="ROLE", help="select a graph of a package")
    add(
        "--max-batch-size",
        type=_count,
        default=64,
        metavar="N",
        help="maximum batch size of the server; 0: requests are not joined (default: 64)",
    )
    add("--force", action="store_true", help="overwrite files that specc did not write")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 <= int(text[:12]) < 2**31:
        raise ArgumentTypeError(f"{text[:40]!r} is no count")
    return int(text[:12])


def run_export(given: Namespace) -> int:
    """Write the folder, and say which files it has."""
    refuse_uncompiled(given.model)
    model = open_compiled(given.model, graph=given.graph).whole
    name = given.name or model.manifest.name
    folder, most = Path(given.output), given.max_batch_size
    files = list(write_triton_repository(model, name, folder, most, force=given.force))
    if not print_json_result("export", {"files": [str(path) for path in files]}):
        for path in files:
            print_done(escape_text(str(path)))
    return 0
