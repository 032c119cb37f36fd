"""Compile a spec to an ONNX model or a package of graphs (`specc compile`), and export a compiled
model for Triton Inference Server (`specc export`).
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path

from specc.cli import terminal
from specc.cli.options import (
    COUNT_OPTION,
    FORCE_OPTION,
    PACKAGE_GRAPH_OPTION,
    SAMPLING_OPTIONS,
    add_generation_options,
    add_option_groups,
    add_spec_arguments,
    collect_generation_settings,
    get_generation_flag,
    make_output_option,
    open_spec_from_arguments,
)
from specc.cli.terminal import print_json_result, print_result_line, show_write_progress
from specc.diagnostics.diagnostic import raise_error
from specc.driver.compile_model import compile_model
from specc.driver.compile_options import (
    COMPILE_GROUPS,
    COMPILE_OPTIONS,
    CompileReport,
    build_compile_options,
)
from specc.driver.option_kinds import BOOLEAN_OPTION, STRING_OPTION, Option, make_int_parser
from specc.driver.uncompiled_model import check_model_is_compiled
from specc.io.safe_read import escape_text
from specc.library.spec_files import format_shadowing_note
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.triton_export import write_triton_repository

EXPLAIN_OPTION = {
    "explain": Option(
        BOOLEAN_OPTION,
        "",
        "print whether each attention layer is computed blocked or dense, and why",
    )
}


def add_compile_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc compile`."""
    add_spec_arguments(parser)
    output = make_output_option(
        "MODEL.onnx|DIR",
        "output file, or output directory with --graphs",
        required=True,
        type=parse_output_path,
    )
    groups = {
        title: {n: COMPILE_OPTIONS[n] for n in names} for title, names in COMPILE_GROUPS.items()
    }
    add_option_groups(parser, **{**groups, "output": {**output, **groups["output"]}})
    add_generation_options(
        parser,
        SAMPLING_OPTIONS,
        "default generation settings of a standalone generator (--graphs generate)",
    )
    add_option_groups(parser, diagnostics=EXPLAIN_OPTION)


def execute_compile(args: Namespace) -> int:
    """Compile a spec and print the written files."""
    _check_option_combinations(args)
    with show_write_progress("writing weights"):
        report = _compile(args)
    terminal.print_diagnostics(report.warnings, args.format, args.color)
    result = {
        "files": [{"path": str(path), "bytes": size} for path, size in report.files],
        "notes": list(report.remarks),
        "attention_lowerings": list(report.attention_forms),
    }
    if terminal.print_json_result(result):
        return 0
    for form in report.attention_forms if args.explain else ():
        print(form)
    for remark in report.remarks:
        # warnings about the spec were printed when the spec was opened
        if remark != format_shadowing_note(args.spec):
            terminal.print_note(remark)
    for path, size in report.files:
        terminal.print_result_line(f"{escape_text(path)}  {format_byte_count(size)}")
    return 0


def _compile(args: Namespace) -> CompileReport:
    """Compile the spec of a command line to a model file or, with `--graphs`, to a package."""
    settings = {"generation_config": collect_generation_settings(args)}
    return compile_model(
        open_spec_from_arguments(args, args.weights),
        build_compile_options({**vars(args), **settings}),
    )


def parse_output_path(text: str) -> str:
    """Parse an output path. Raise an argparse error if the path is empty."""
    if not text:
        raise ArgumentTypeError("expected a file or directory name, got an empty string")
    return text


def _check_option_combinations(args: Namespace) -> None:
    """Raise E0753 for an option that has no effect in combination with other options."""
    # Export profiles other than `specc` rename KV caches, but the full-forward graph has no KV
    # cache.
    if args.io_names != "specc" and not {"encode", "step"} & set(args.graphs):
        raise_error(
            "E0753",
            f"`--io-names {args.io_names}` requires a package with a step graph",
            helps=["add `--graphs step`"],
        )
    generation_flags = [*map(get_generation_flag, collect_generation_settings(args))]
    if generation_flags and "generate" not in args.graphs:
        raise_error(
            "E0753",
            f"`{generation_flags[0]}` configures a standalone generator, but `--graphs` does "
            "not contain `generate`",
            helps=[
                "add `--graphs generate`",
                f"or pass `{generation_flags[0]}` to specc run instead",
            ],
        )
    # Only a standalone generator can be written as a single file.
    if args.graphs and args.graphs != ("generate",) and args.output.endswith(".onnx"):
        raise_error(
            "E0753",
            f"`--graphs {','.join(args.graphs)}` writes a directory, but `{args.output}` is "
            "the name of a model file",
            helps=[f"write `-o {args.output.removesuffix('.onnx')}`"],
        )


def format_byte_count(size: float) -> str:
    """Format a byte count with a unit, as in `1.5 GB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


EXPORT_OPTIONS: Mapping[str, Option] = {
    **make_output_option("DIR", "directory of the model repository", required=True),
    "name": Option(
        STRING_OPTION, "NAME", "name of the model in the repository (default: the name of the spec)"
    ),
    "max_batch_size": Option(
        COUNT_OPTION,
        "N",
        "maximum batch size of the server; 0: no dynamic batching (default: 64)",
        extra_arguments={"type": make_int_parser(0, 2**31 - 1, "a count"), "default": 64},
    ),
    **FORCE_OPTION,
}


def add_export_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc export`."""
    parser.add_argument(
        "to",
        choices=["triton"],
        help="export format: model repository of NVIDIA Triton Inference Server",
    )
    parser.add_argument("model", metavar="MODEL", help="compiled model or package")
    add_option_groups(parser, input=PACKAGE_GRAPH_OPTION, output=EXPORT_OPTIONS)


def execute_export(args: Namespace) -> int:
    """Write the Triton model repository and print the paths of its files."""
    check_model_is_compiled(args.model)
    model = open_compiled_model(args.model, graph=args.graph).default_model
    name = args.name or model.manifest.name
    directory, max_batch_size = Path(args.output), args.max_batch_size
    files = list(write_triton_repository(model, name, directory, max_batch_size, force=args.force))
    if not print_json_result({"files": [*map(str, files)]}):
        for path in files:
            print_result_line(escape_text(path))
    return 0
