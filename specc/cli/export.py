"""Export a compiled model as a model repository for Triton Inference Server: `export triton`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from specc.cli.options import (
    COUNT_OPTION,
    FORCE_OPTION,
    PACKAGE_GRAPH_OPTION,
    add_option_groups,
    make_output_option,
)
from specc.cli.terminal import print_done, print_json_result
from specc.driver.option_kinds import TEXT_OPTION, Option, parse_bounded_int
from specc.driver.uncompiled_model import refuse_uncompiled
from specc.io.safe_read import escape_text
from specc.runtime.open_model import open_compiled
from specc.runtime.triton_export import write_triton_repository

OUTPUT_OPTIONS: Mapping[str, Option] = {
    **make_output_option("DIR", "the model repository", required=True),
    "name": Option(
        TEXT_OPTION, "NAME", "name of the model in the repository (default: that of the spec)"
    ),
    "max_batch_size": Option(
        COUNT_OPTION,
        "N",
        "maximum batch size of the server; 0: requests are not joined (default: 64)",
        more={"type": parse_bounded_int(0, 2**31 - 1, "a count"), "default": 64},
    ),
    **FORCE_OPTION,
}


def add_export_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc export`."""
    parser.add_argument("to", choices=["triton"], help="NVIDIA's Triton Inference Server")
    parser.add_argument("model", metavar="MODEL", help="a compiled model, or a package")
    add_option_groups(parser, input=PACKAGE_GRAPH_OPTION, output=OUTPUT_OPTIONS)


def run_export(args: Namespace) -> int:
    """Write the directory, and print its files."""
    refuse_uncompiled(args.model)
    model = open_compiled(args.model, graph=args.graph).whole
    name = args.name or model.manifest.name
    directory, max_batch_size = Path(args.output), args.max_batch_size
    files = list(write_triton_repository(model, name, directory, max_batch_size, force=args.force))
    if not print_json_result("export", {"files": [*map(str, files)]}):
        for path in files:
            print_done(escape_text(path))
    return 0
