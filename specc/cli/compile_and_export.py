"""Compile a spec to an ONNX model or a package of graphs (`specc compile`), and export a compiled
model as a model repository of NVIDIA Triton Inference Server (`specc export`).
"""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from specc.analysis.batch_independence import check_batch_independence
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
    get_generation_option_flag,
    make_output_option,
    open_spec_from_arguments,
)
from specc.cli.terminal import print_json_result, print_result_line, show_write_progress
from specc.diagnostics.diagnostic import raise_error
from specc.driver.compile_model_and_graph_selection import compile_model
from specc.driver.compile_options import COMPILE_GROUPS, COMPILE_OPTIONS, build_compile_options
from specc.driver.option_kinds import BOOLEAN_OPTION, STRING_OPTION, Option, make_int_parser
from specc.driver.output_files_and_compile_report import CompileReport
from specc.io.atomic_write import OutputDirectory
from specc.io.output_paths import raise_overwrite_error
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.library.spec_file_lookup import format_shadowing_note
from specc.model_loading import check_model_is_compiled
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.single_model_file import LoadedModel

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


def execute_compile_command(args: Namespace) -> int:
    """Compile a spec and print the written files."""
    _check_option_combinations(args)
    with show_write_progress("writing weights"):
        report = _compile(args)
    terminal.print_diagnostics(report.warnings, args.format, args.color)
    result = {
        "files": [{"path": str(path), "bytes": size} for path, size in report.files],
        "notes": list(report.remarks),
        "attention_lowerings": list(report.attention_lowerings),
    }
    if terminal.print_json_result(result):
        return 0
    for form in report.attention_lowerings if args.explain else ():
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
    # export profiles other than `specc` only rename KV caches, which the full-forward graph does
    # not have
    if args.io_names != "specc" and not {"encode", "step"} & set(args.graphs):
        raise_error(
            "E0753",
            f"`--io-names {args.io_names}` requires a package with a step graph",
            helps=["add `--graphs step`"],
        )
    generation_flags = [*map(get_generation_option_flag, collect_generation_settings(args))]
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
    # only a standalone generator can be written as a single file; other package graphs cannot
    if args.graphs and args.graphs != ("generate",) and args.output.endswith(".onnx"):
        raise_error(
            "E0753",
            f"`--graphs {','.join(args.graphs)}` writes a directory, but `{args.output}` is "
            "the name of a model file",
            helps=[f"write `-o {args.output.removesuffix('.onnx')}`"],
        )


def format_byte_count(size: float) -> str:
    """Format a byte count with a unit, such as `1.5 GB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


TRITON_TYPES = {
    "f32": "TYPE_FP32",
    "f64": "TYPE_FP64",
    "f16": "TYPE_FP16",
    "i64": "TYPE_INT64",
    "i32": "TYPE_INT32",
    "bool": "TYPE_BOOL",
}
FILE_HEADER = "# written by specc\n"
"""The first line of the `config.pbtxt` files that specc writes and may overwrite."""

MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

COPY_CHUNK_BYTES = 1 << 22
"""Chunk size in bytes for copying files."""


def write_triton_repository(
    model: LoadedModel, name: str, repository: Path, max_batch_size: int, *, force: bool = False
) -> list[Path]:
    """Write a Triton model repository for a model, and return the paths of its files.

    Raise E0889 if the graph has no common batch axis, and E0833 if specc did not write the existing
    directory.
    """
    if not MODEL_NAME.fullmatch(name):
        raise_error(
            "E0889",
            f"`{escape_text(name)[:80]}` is not a valid Triton model name",
            helps=["use only letters, digits, `_`, `-` and `.`, for example --name small_reader"],
        )
    text = format_triton_config(model.manifest.graph, name, max_batch_size)
    directory = repository / name
    config = directory / "config.pbtxt"
    if config.exists() and not force:
        with config.open(encoding="utf-8", errors="replace") as file:
            if file.readline() != FILE_HEADER:
                raise_overwrite_error(config, "the file was not written by specc", "use --force")
    source = model.path.parent
    weight_files = [location for location, _ in model.file.list_external_files()]
    for location in weight_files:
        if Path(location).name != location:
            raise_error(
                "E0889",
                f"the weights are in `{escape_text(location)}`, outside the directory of the model",
                helps=["compile it with -o in another directory, which copies the weights"],
            )
    with OutputDirectory(directory / "1") as out:
        for location in weight_files:
            out.write_named_file(location, _read_chunks(source / location))
        # write config.pbtxt last, because a server may load the model as soon as this file exists
        out.write_named_file("model.onnx", _read_chunks(model.path))
    with OutputDirectory(directory) as out:
        out.write_named_file(config.name, [text.encode("utf-8")])
    return [*(directory / "1" / n for n in (*weight_files, "model.onnx")), config]


def format_triton_config(graph: Graph, name: str, max_batch_size: int) -> str:
    """Format the `config.pbtxt` that Triton requires for a graph. Dynamic dimensions are written as
    -1. If `max_batch_size` is 0, the server does not batch requests. If it is positive, raise E0889
    if inputs and outputs have no common batch axis, or if batched requests affect each other.
    """
    inputs = {n: v.type for n, v in graph.inputs.items()}
    outputs = {n: v.type for n, v in graph.outputs.items()}
    if max_batch_size:
        _check_batch_axes(inputs, outputs)
        _check_independence(graph)
    port_lines = [
        *_format_ports("input", inputs, max_batch_size),
        *_format_ports("output", outputs, max_batch_size),
    ]
    port_lines += ["dynamic_batching { }"] if max_batch_size else []
    header_lines = [
        f'name: "{name}"',
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {max_batch_size}",
    ]
    return FILE_HEADER + "".join(f"{line}\n" for line in (*header_lines, *port_lines))


def _check_batch_axes(inputs: Mapping[str, Type], outputs: Mapping[str, Type]) -> None:
    """Raise E0889 unless the first axis of every input and output is the batch axis."""
    batch_size = next((t.shape[0] for t in inputs.values() if t.rank), None)
    for name, type in (*inputs.items(), *outputs.items()):
        if batch_size is None or batch_size.number is not None or type.shape[:1] != (batch_size,):
            raise_error(
                "E0889",
                f"`{escape_text(name)}` is {type}, but Triton batches requests along the first "
                "axis",
                notes=["the first axis of every input and output must be the batch axis"],
                helps=["write `--max-batch-size 0` to disable batching"],
            )


def _check_independence(graph: Graph) -> None:
    """Raise E0889 if the outputs of one batch element depend on other batch elements."""
    batch_size = next(v.shape[0] for v in graph.inputs.values())
    for warning in check_batch_independence(graph, str(batch_size)):
        raise_error(
            "E0889",
            f"{warning.title}, but Triton batches requests along this axis",
            helps=["write `--max-batch-size 0` to disable batching"],
        )


def _format_ports(kind: str, types: Mapping[str, Type], max_batch_size: int) -> Iterator[str]:
    """Format inputs or outputs as config lines. If requests are batched, omit the batch axis."""
    yield f"{kind} ["
    for n, (name, type) in enumerate(types.items()):
        shape = type.shape[1:] if max_batch_size else type.shape
        # Triton requires at least one axis, so a scalar becomes an array with one axis of size 1
        dims = ", ".join("-1" if d.number is None else str(d.number) for d in shape) or "1"
        reshape = "" if shape else " reshape { shape: [ ] }"
        comma = "," if n + 1 < len(types) else ""
        triton_type = TRITON_TYPES[type.dtype]
        yield (f'  {{ name: "{name}" data_type: {triton_type} dims: [ {dims} ]{reshape} }}{comma}')
    yield "]"


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(COPY_CHUNK_BYTES):
            yield piece


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


def execute_export_command(args: Namespace) -> int:
    """Write the Triton model repository and print the paths of its files."""
    check_model_is_compiled(args.model)
    model = open_compiled_model(args.model, graph=args.graph).selected_model
    name = args.name or model.manifest.name
    directory, max_batch_size = Path(args.output), args.max_batch_size
    files = list(write_triton_repository(model, name, directory, max_batch_size, force=args.force))
    if not print_json_result({"files": [*map(str, files)]}):
        for path in files:
            print_result_line(escape_text(path))
    return 0
