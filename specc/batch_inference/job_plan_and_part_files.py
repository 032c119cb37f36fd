"""The plan of a batch inference job, and the part files of the job (one per block of rows)."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeAlias

import numpy as np

from specc.artifact.package_index_and_format_versions import INDEX_FILE, is_package_directory
from specc.batch_inference.columns_and_parquet import (
    ColumnType,
    ColumnValues,
    RowBlock,
    TableColumn,
    UnreadableRow,
    encode_parquet,
)
from specc.batch_inference.data_files import find_image_files
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.atomic_write import write_file_atomically
from specc.io.json_io import (
    InvalidJsonError,
    JsonReader,
    JsonRecord,
    parse_strict_json,
    to_json_value,
)
from specc.io.safe_read import describe_os_error, escape_text, raise_unreadable_file_error
from specc.version import __version__

PLAN_DIRECTORY = "_specc"
PLAN_FILE = "plan.json"
OUTPUT_FORMATS = ("parquet", "jsonl")
BLOCK_FIELDS = tuple(f.name for f in fields(RowBlock))


@dataclass(frozen=True, slots=True)
class InputFileFingerprint:
    """An input file or image directory, with its size and modification time to detect changes."""

    path: str
    size: int
    modified_ns: int
    """Modification time in nanoseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits of a batch: rows, tokens (rows × padded length), and bytes of live activations."""

    max_rows: int = 64
    max_tokens: int = 16384
    max_bytes: int = 2**30


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """The plan of a batch inference job. `input_columns` maps model inputs to columns.
    `copied_columns` are copied to the output, and `result_columns` are computed. `settings` are the
    generation settings. The fields `static_batching_reason` and `has_batch_shared_scales` are not
    stored in the plan file.
    """

    model: str
    model_hash: str
    files: tuple[InputFileFingerprint, ...]
    blocks: tuple[RowBlock, ...]
    input_columns: Mapping[str, str]
    copied_columns: tuple[TableColumn, ...]
    result_columns: tuple[TableColumn, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    limits: BatchLimits = field(default_factory=BatchLimits)
    output_format: str = "parquet"
    graph: str = ""
    raw_outputs: tuple[str, ...] = ()
    provider: str = "cpu"
    version: str = __version__
    static_batching_reason: str = ""
    has_batch_shared_scales: bool = False

    @property
    def row_count(self) -> int:
        """The total number of rows in the data set."""
        return sum(b.row_count for b in self.blocks)

    @cached_property
    def first_row_numbers(self) -> list[int]:
        """The index in the data set of each block's first row."""
        return [0, *accumulate(block.row_count for block in self.blocks)]

    def get_part_file_name(self, block_number: int) -> str:
        """Return the name of a block's part file. Sorting part files by name puts them in row
        order.
        """
        return f"part-{block_number:06}.{self.output_format}"

    def to_json(self) -> dict[str, object]:
        """Convert the plan to JSON data. The encoding is deterministic."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        del data["static_batching_reason"], data["has_batch_shared_scales"]
        # blocks are compact arrays, because a plan may have millions of blocks
        for name in ("files", "blocks"):
            data[name] = [astuple(item) for item in data[name]]
        for name in ("copied_columns", "result_columns"):
            data[name] = [(column.name, str(column.type)) for column in data[name]]
        return {name: to_json_value(value) for name, value in data.items()}

    def write_file(self, output_dir: Path) -> None:
        """Write the plan file to the output directory."""
        # preserve undecodable bytes in file names
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=1)
        write_file_atomically(
            output_dir / PLAN_DIRECTORY / PLAN_FILE, [text.encode("utf-8", "surrogatepass")]
        )


def read_plan(output_dir: Path) -> JobPlan | None:
    """Read the plan file in a directory, or return None if there is no plan file. Raise E0802 if
    the file is unreadable, and E0876 if it is invalid.
    """
    path = output_dir / PLAN_DIRECTORY / PLAN_FILE
    try:
        text = path.read_bytes().decode("utf-8", "surrogatepass")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        _raise_invalid_plan(path)
    except OSError as error:
        fix = "make the directory readable, or write to another one"
        raise_unreadable_file_error(path, describe_os_error(error), fix)
    try:
        return _parse_plan(parse_strict_json(text))
    except (InvalidJsonError, ValueError, KeyError, TypeError, AttributeError):
        _raise_invalid_plan(path)


def _raise_invalid_plan(path: Path) -> NoReturn:
    raise_error(
        "E0876",
        f"the plan `{escape_text(path)}` is invalid",
        helps=["write to another directory with -o, or delete this directory"],
    )


def _parse_plan(data: object) -> JobPlan:
    """Parse a job plan from JSON data. Invalid data can raise exceptions of various types."""
    if not isinstance(data, dict):
        raise TypeError("a plan is an object")
    names = ("model", "model_hash", "output_format", "graph", "provider", "version")
    strings: dict[str, Any] = {name: str(data[name]) for name in names}
    return JobPlan(
        **strings,
        files=tuple(InputFileFingerprint(str(p), int(b), int(c)) for p, b, c in data["files"]),
        blocks=tuple(
            RowBlock(**dict(zip(BLOCK_FIELDS, map(int, numbers), strict=True)))
            for numbers in data["blocks"]
        ),
        input_columns={str(k): str(v) for k, v in data["input_columns"].items()},
        copied_columns=_parse_columns(data["copied_columns"]),
        result_columns=_parse_columns(data["result_columns"]),
        settings={str(k): v for k, v in data["settings"].items()},
        limits=BatchLimits(**{k: int(v) for k, v in data["limits"].items()}),
        raw_outputs=tuple(map(str, data["raw_outputs"])),
    )


def _parse_columns(data: list[list[str]]) -> tuple[TableColumn, ...]:
    return tuple(TableColumn(name, ColumnType.parse(kind)) for name, kind in data)


def hash_model(path: Path) -> str:
    """Return the SHA-256 hash of a model file, or of a package index with its file hashes."""
    file = path / INDEX_FILE if is_package_directory(path) else path
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def get_file_fingerprint(path: Path) -> InputFileFingerprint:
    """Return the size and modification time of a file. For an image directory, return the total
    size and the latest modification time of the images.
    """
    if not path.is_dir():
        status = path.stat()
        return InputFileFingerprint(str(path), status.st_size, status.st_mtime_ns)
    statuses = [p.stat() for p in find_image_files(path)]
    newest = max((status.st_mtime_ns for status in statuses), default=0)
    return InputFileFingerprint(str(path), sum(status.st_size for status in statuses), newest)


def _read_errors(fields: JsonReader, name: str) -> list[tuple[int, str, str]]:
    errors: list[tuple[int, str, str]] = []
    for item in fields.read_list(name):
        match item:
            case [int(row), str(code), str(text)]:
                errors.append((row, code, text))
            case _:
                fields.raise_invalid(name, "contains values other than rows, codes and strings")
    return errors


Count: TypeAlias = Annotated[int, partial(JsonReader.read_int, low=0, high=2**63)]


@dataclass(kw_only=True)
class BlockStatistics(JsonRecord):
    """Statistics of a block, such as its errors, padding positions and compute time in `seconds`.
    `multiply_adds` is computed from the cost formulas. `null_row_count` is the number of rows with
    NaN or infinity, which JSON Lines files store as null.
    """

    tag = "block"
    json_keys: ClassVar[Mapping[str, str]] = {
        "block_number": "number", "row_count": "rows", "position_count": "positions",
        "padding_position_count": "padding", "multiply_adds": "work", "null_row_count": "null_rows",
    }  # fmt: skip
    block_number: Count
    row_count: Count
    errors: Annotated[list[tuple[int, str, str]], _read_errors] = field(default_factory=list)
    position_count: Count = 0
    padding_position_count: Count = 0
    seconds: float = 0.0
    multiply_adds: Count = 0
    null_row_count: Count = 0


def write_part_file(
    plan: JobPlan,
    output_dir: Path,
    table: ColumnValues,
    values: Sequence[Mapping[str, object]],
    statistics: BlockStatistics,
) -> None:
    """Write the statistics of a complete block, and then the part file with its columns."""
    copied = {
        c.name: [None if isinstance(v, UnreadableRow) else v for v in table[c.name]]
        for c in plan.copied_columns
    }
    results = {c.name: [v.get(c.name) for v in values] for c in plan.result_columns}
    data, statistics.null_row_count = encode_part_file(
        plan.output_format, (*plan.copied_columns, *plan.result_columns), copied | results
    )
    text = json.dumps(statistics.to_json(), ensure_ascii=False)
    # write the part file last: if the part file exists, the statistics also exist
    statistics_file = output_dir / PLAN_DIRECTORY / f"{statistics.block_number:06}.json"
    write_file_atomically(statistics_file, [text.encode("utf-8", "backslashreplace")])
    write_file_atomically(output_dir / plan.get_part_file_name(statistics.block_number), [data])


def read_block_statistics(
    plan: JobPlan, output_dir: Path, block_number: int
) -> BlockStatistics | None:
    """Return the statistics of a block, or None if the block is not complete."""
    if not (output_dir / plan.get_part_file_name(block_number)).is_file():
        return None
    try:
        text = (output_dir / PLAN_DIRECTORY / f"{block_number:06}.json").read_text("utf-8")
        return BlockStatistics.from_fields(JsonReader(json.loads(text)))
    # a block with invalid statistics is computed again
    except (OSError, ValueError, SpeccError):
        return None


def encode_part_file(
    output_format: str, columns: Sequence[TableColumn], values: dict[str, list[object]]
) -> tuple[bytes, int]:
    """Encode columns as a part file. Return the bytes, and the number of rows in which null
    replaces NaN or infinity.
    """
    if output_format == "parquet":
        convert_json_columns_to_text(columns, values)
        return encode_parquet(columns, values), 0
    names = [c.name for c in columns]
    rows = zip(*(values[n] for n in names), strict=True)
    lines, null_row_count = list[str](), 0
    for row in rows:
        cells = dict(zip(names, row, strict=True))
        try:
            lines.append(JSON_ENCODER.encode(cells))
        except ValueError:  # a cell contains NaN or infinity
            lines.append(JSON_ENCODER.encode(_to_json_data(cells)))
            null_row_count += 1
    return "".join(f"{line}\n" for line in lines).encode(
        "utf-8", "backslashreplace"
    ), null_row_count


def convert_json_columns_to_text(
    columns: Sequence[TableColumn], values: dict[str, list[object]]
) -> None:
    """Convert the values in columns of type `json` to JSON strings."""
    for column in columns:
        if column.type.element_type == "json" and not column.type.list_sizes:
            values[column.name] = [
                None if v is None else JSON_ENCODER.encode(_to_json_data(v))
                for v in values[column.name]
            ]


def _to_json_data(value: object) -> object:
    """Convert a value to JSON data. NaN and infinity become null, and bytes become base64."""
    match value:
        # write null, because most programs that read tables do not treat NaN as a missing value
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case list() | tuple():
            return [_to_json_data(item) for item in value]
        case dict():
            return {str(k): _to_json_data(v) for k, v in value.items()}
        case bool() | int() | float() | str() | None:
            return value
    return _to_json_data(_to_json_fallback(value))


def _to_json_fallback(value: object) -> object:
    """Convert a value for JSON: arrays to lists, bytes to base64, other objects to strings."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case bool() | int() | float() | str() | list() | None:
            return value
    return str(value)


JSON_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, default=_to_json_fallback
)
"""The JSON encoder for part files. NaN and infinity raise ValueError."""
