"""Part files: results of one block and its statistics."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

from specc.batch_inference.file_format import BadRow, Rows, TableColumn, plain_value
from specc.batch_inference.parquet import encode_parquet
from specc.batch_inference.plan_file import PLAN_DIRECTORY, JobPlan
from specc.diagnostics.diagnostic import Failed
from specc.io.atomic_write import write_file_atomically
from specc.io.json_io import JsonFields, Record


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
    says = json.dumps(done.to_json(), ensure_ascii=False)
    # the part file comes last: if it exists, so does its description
    told = out / PLAN_DIRECTORY / f"{done.number:06}.json"
    write_file_atomically(told, [says.encode("utf-8", "backslashreplace")])
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
