"""Files of a job: its plan (files, blocks, columns, settings), and one part file per block."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, NoReturn, TypeAlias

from specc.artifact.package_index import INDEX_FILE, is_package_directory
from specc.batch_inference.data_files import find_images
from specc.batch_inference.file_format import (
    BadRow,
    ColumnType,
    RowBlock,
    Rows,
    TableColumn,
    plain_value,
)
from specc.batch_inference.parquet import encode_parquet
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.io.atomic_write import write_file_atomically
from specc.io.json_io import InvalidJson, JsonFields, Record, parse_strict_json, to_json_value
from specc.io.safe_read import describe_os_error, escape_text, raise_unreadable
from specc.version import __version__

PLAN_DIRECTORY = "_specc"
PLAN_FILE = "plan.json"
OUTPUT_FORMATS = ("parquet", "jsonl")
BLOCK_FIELDS = tuple(f.name for f in fields(RowBlock))


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of rows, with its size and hash to detect changes."""

    path: str
    bytes: int
    changed: int
    """Modification time in nanoseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of a batch: rows, rows times length, bytes of live values."""

    cap: int = 64
    tokens: int = 16384
    memory: int = 2**30


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """`columns` is the column of each input, `kept` are copied, `results` computed; `settings`
    are those of generation. `waits` (why batches are static) and `shares` are not stored.
    """

    model: str
    model_hash: str
    files: tuple[PlannedFile, ...]
    blocks: tuple[RowBlock, ...]
    columns: Mapping[str, str]
    kept: tuple[TableColumn, ...]
    results: tuple[TableColumn, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    limits: BatchLimits = field(default_factory=BatchLimits)
    to: str = "parquet"
    graph: str = ""
    raw: tuple[str, ...] = ()
    provider: str = "cpu"
    version: str = __version__
    waits: str = ""
    shares: bool = False

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(b.rows for b in self.blocks)

    @cached_property
    def first_rows(self) -> list[int]:
        """Return the index of the first row of each block in the data set."""
        return [0, *accumulate(block.rows for block in self.blocks)]

    def get_part_file(self, number: int) -> str:
        """Return the part file of a block. Names sort in row order."""
        return f"part-{number:06}.{self.to}"

    def as_json(self) -> dict[str, object]:
        """Return the plan as deterministic JSON data."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        del data["waits"], data["shares"]
        # compact: a plan may have millions of blocks
        for name in ("files", "blocks"):
            data[name] = [astuple(item) for item in data[name]]
        for name in ("kept", "results"):
            data[name] = [(column.name, str(column.kind)) for column in data[name]]
        return {name: to_json_value(value) for name, value in data.items()}

    def write(self, out: Path) -> None:
        """Write the plan to the directory of the parts."""
        # file names may contain undecodable bytes, which round-trip
        text = json.dumps(self.as_json(), ensure_ascii=False, indent=1)
        write_file_atomically(
            out / PLAN_DIRECTORY / PLAN_FILE, [text.encode("utf-8", "surrogatepass")]
        )


def read_plan(out: Path) -> JobPlan | None:
    """Return the plan in a directory, if any. Raise E0802 if unreadable, E0876 if damaged."""
    path = out / PLAN_DIRECTORY / PLAN_FILE
    try:
        text = path.read_bytes().decode("utf-8", "surrogatepass")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        _fail_damaged(path)
    except OSError as error:
        fix = "make the directory readable, or write to another one"
        raise_unreadable(path, describe_os_error(error), fix)
    try:
        return _plan_of(parse_strict_json(text))
    except (InvalidJson, ValueError, KeyError, TypeError, AttributeError):
        _fail_damaged(path)


def _fail_damaged(path: Path) -> NoReturn:
    raise_error(
        "E0876",
        f"the plan `{escape_text(path)}` is damaged",
        helps=["write to another directory, or remove this one"],
    )


def _plan_of(data: object) -> JobPlan:
    """Parse a plan from JSON data. Raises several exception types for invalid data."""
    if not isinstance(data, dict):
        raise TypeError("a plan is an object")
    return JobPlan(
        model=str(data["model"]),
        model_hash=str(data["model_hash"]),
        files=tuple(PlannedFile(str(p), int(b), int(c)) for p, b, c in data["files"]),
        blocks=tuple(
            RowBlock(**dict(zip(BLOCK_FIELDS, map(int, numbers), strict=True)))
            for numbers in data["blocks"]
        ),
        columns={str(k): str(v) for k, v in data["columns"].items()},
        kept=_read_columns(data["kept"]),
        results=_read_columns(data["results"]),
        settings={str(k): v for k, v in data["settings"].items()},
        limits=BatchLimits(**{k: int(v) for k, v in data["limits"].items()}),
        to=str(data["to"]),
        graph=str(data["graph"]),
        raw=tuple(map(str, data["raw"])),
        provider=str(data["provider"]),
        version=str(data["version"]),
    )


def _read_columns(data: list[list[str]]) -> tuple[TableColumn, ...]:
    return tuple(TableColumn(name, ColumnType.read(kind)) for name, kind in data)


def check_same(found: JobPlan, wanted: JobPlan, out: Path) -> None:
    """Raise E0875 if a directory contains the parts of another plan. The notes have both values
    of a difference if they are short.
    """
    a, b, notes = found.as_json(), wanted.as_json(), []
    for key in a:
        # the model's path does not matter as long as its content is the same
        if key != "model" and a[key] != b[key]:
            old, new = (json.dumps(data[key], ensure_ascii=False) for data in (a, b))
            values = f": {escape_text(old)} in the plan, {escape_text(new)} now"
            notes.append(key + (values if max(len(old), len(new)) <= 120 else " differ"))
    if notes:
        raise_error(
            "E0875",
            f"`{escape_text(out)}` contains another job",
            notes=notes,
            helps=["write to another directory with -o, or remove this one"],
        )


def hash_model(path: Path) -> str:
    """Return the SHA-256 of a model file or package index, which hold the hashes of other files."""
    file = path / INDEX_FILE if is_package_directory(path) else path
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def describe_file(path: Path) -> PlannedFile:
    """Describe the current state of a file, or of the images in a directory."""
    if not path.is_dir():
        facts = path.stat()
        return PlannedFile(str(path), facts.st_size, facts.st_mtime_ns)
    inside = [p.stat() for p in find_images(path)]
    newest = max((f.st_mtime_ns for f in inside), default=0)
    return PlannedFile(str(path), sum(f.st_size for f in inside), newest)


def _read_errors(found: JsonFields, name: str) -> list[tuple[int, str, str]]:
    errors: list[tuple[int, str, str]] = []
    for item in found.read_list(name):
        match item:
            case [int(row), str(code), str(text)]:
                errors.append((row, code, text))
            case _:
                found.refuse(name, "contains values other than rows, codes and strings")
    return errors


Count: TypeAlias = Annotated[int, partial(JsonFields.read_int, low=0, high=2**63)]


@dataclass(kw_only=True)
class BlockStatistics(Record):
    """Rows, errors by row, positions and padding of a block; rows with NaN or infinity that JSON
    Lines store as null (`nulls`); `seconds` computed, and multiply-adds (`work`) by the cost
    formulas.
    """

    tag = "block"
    number: Count
    rows: Count
    errors: Annotated[list[tuple[int, str, str]], _read_errors] = field(default_factory=list)
    places: Count = 0
    padding: Count = 0
    seconds: float = 0.0
    work: Count = 0
    nulls: Count = 0


def write_part(
    plan: JobPlan,
    out: Path,
    table: Rows,
    values: Sequence[Mapping[str, object]],
    done: BlockStatistics,
) -> None:
    """Write kept columns and results of a block; an existing part means that the block is done."""
    kept = {
        c.name: [None if isinstance(v, BadRow) else v for v in table[c.name]] for c in plan.kept
    }
    results = {c.name: [v.get(c.name) for v in values] for c in plan.results}
    data, done.nulls = encode_part(plan.to, (*plan.kept, *plan.results), kept | results)
    text = json.dumps(done.to_json(), ensure_ascii=False)
    # the part file comes last: if it exists, so does its description
    description = out / PLAN_DIRECTORY / f"{done.number:06}.json"
    write_file_atomically(description, [text.encode("utf-8", "backslashreplace")])
    write_file_atomically(out / plan.get_part_file(done.number), [data])


def read_block_statistics(plan: JobPlan, out: Path, number: int) -> BlockStatistics | None:
    """Return the statistics of a block; None if it is not complete."""
    if not (out / plan.get_part_file(number)).is_file():
        return None
    try:
        text = (out / PLAN_DIRECTORY / f"{number:06}.json").read_text("utf-8")
        return BlockStatistics.from_fields(JsonFields(json.loads(text)))
    # whatever is wrong with the description, the block is simply computed again
    except (OSError, ValueError, Failed):
        return None


def encode_part(
    to: str, columns: Sequence[TableColumn], values: dict[str, list[object]]
) -> tuple[bytes, int]:
    """Return a part file of these columns, and in how many rows NaN or infinity became null."""
    if to == "parquet":
        columns_as_text(columns, values)
        return encode_parquet(columns, values), 0
    names = [c.name for c in columns]
    rows = zip(*(values[n] for n in names), strict=True)
    lines, nulls = list[str](), 0
    for row in rows:
        cells = dict(zip(names, row, strict=True))
        try:
            lines.append(JSON_ENCODER.encode(cells))
        except ValueError:  # NaN or infinity
            lines.append(JSON_ENCODER.encode(_to_json_text(cells)))
            nulls += 1
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"), nulls


def columns_as_text(columns: Sequence[TableColumn], values: dict[str, list[object]]) -> None:
    """Convert values without a column type to JSON text."""
    for column in columns:
        if column.kind.of == "json" and not column.kind.sizes:
            values[column.name] = [
                None if v is None else JSON_ENCODER.encode(_to_json_text(v))
                for v in values[column.name]
            ]


def _to_json_text(value: object) -> object:
    """Convert a value to JSON: NaN and infinity to null, bytes to base64."""
    match value:
        # table readers do not treat NaN as missing
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case list() | tuple():
            return [_to_json_text(item) for item in value]
        case dict():
            return {str(k): _to_json_text(v) for k, v in value.items()}
        case bool() | int() | float() | str() | None:
            return value
    return _to_json_text(_to_json_fallback(value))


def _to_json_fallback(value: object) -> object:
    """Return a value that JSON lacks: arrays as lists, bytes as base64, others as text."""
    value = plain_value(value)
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case bool() | int() | float() | str() | list() | None:
            return value
    return str(value)


JSON_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, default=_to_json_fallback
)
"""Shared encoder; it raises ValueError for NaN and infinity."""
