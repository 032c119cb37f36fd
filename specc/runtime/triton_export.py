"""Export a compiled model as a model repository of NVIDIA Triton Inference Server."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from specc.analysis.batch_independence import check_batch_independence
from specc.diagnostics.diagnostic import raise_error
from specc.io.atomic_write import OutputDirectory
from specc.io.output_paths import raise_not_replaceable
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.runtime.loaded_model import LoadedModel

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
"""Number of bytes copied at a time."""


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
                raise_not_replaceable(config, "the file was not written by specc", "use --force")
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
        # write config.pbtxt last, because a server that finds it also loads the other files
        out.write_named_file("model.onnx", _read_chunks(model.path))
    with OutputDirectory(directory) as out:
        out.write_named_file(config.name, [text.encode("utf-8")])
    return [*(directory / "1" / n for n in (*weight_files, "model.onnx")), config]


def format_triton_config(graph: Graph, name: str, max_batch_size: int) -> str:
    """Format the `config.pbtxt` of a graph; dynamic dimensions are -1. If `max_batch_size` is 0,
    the server does not batch requests. With batching, raise E0889 if inputs and outputs have no
    common batch axis, or if batched requests would affect each other.
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
    """Format inputs or outputs as config lines; omit the batch axis if requests are batched."""
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
