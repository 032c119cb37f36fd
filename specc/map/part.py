"""The part file of a block, behind what there is to say of it."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from specc.files.write import atomic_write
from specc.map.done import Done
from specc.map.formats.parquet import table_bytes
from specc.map.formats.source import Bad, Rows
from specc.map.kinds import Column, plain_value
from specc.map.plan import FOLDER, Plan


def write_part(
    plan: Plan,
    out: Path,
    table: Rows,
    values: Sequence[Mapping[str, object]],
    done: Done,
) -> None:
    """The columns of a block that are carried over, and the results of its rows. That the
    part is there means that the block is done.
    """
    kept = {
        c.name: [None if isinstance(v, Bad) else v for v in table[c.name]]
        for c in plan.kept
    }
    results = {c.name: [v.get(c.name) for v in values] for c in plan.results}
    data = content(plan.to, (*plan.kept, *plan.results), kept | results)
    says = json.dumps(done.as_json(), ensure_ascii=False)
    # the part comes last: where it is there, so is what is said of it
    told = out / FOLDER / f"{done.number:06}.json"
    atomic_write(told, [says.encode("utf-8", "backslashreplace")])
    atomic_write(out / plan.part(done.number), [data])


def done_before(plan: Plan, out: Path, number: int) -> Done | None:
    """What is said of a block, if somebody has done it."""
    if not (out / plan.part(number)).is_file():
        return None
    try:
        text = (out / FOLDER / f"{number:06}.json").read_text("utf-8")
        return Done.read(json.loads(text))
    # whatever is wrong with what is said, the block is simply done again
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        return None


def content(
    to: str, columns: Sequence[Column], values: dict[str, list[object]]
) -> bytes:
    """A part file of these columns."""
    if to == "parquet":
        columns_as_text(columns, values)
        return table_bytes(columns, values)
    names = [c.name for c in columns]
    rows = zip(*(values[n] for n in names), strict=True)
    lines = (_line(dict(zip(names, row, strict=True))) for row in rows)
    return "".join(lines).encode("utf-8", "backslashreplace")


def _line(row: Mapping[str, object]) -> str:
    """A row as a line of JSON."""
    try:
        text = QUICK.encode(row)
    except ValueError:  # numbers that JSON has not, which become nothing
        text = QUICK.encode(_json(row))
    return f"{text}\n"


def columns_as_text(columns: Sequence[Column], values: dict[str, list[object]]) -> None:
    """What has no type of its own becomes JSON text."""
    for column in columns:
        if column.kind.of == "json" and not column.kind.sizes:
            values[column.name] = [
                None if v is None else QUICK.encode(_json(v))
                for v in values[column.name]
            ]


def _json(value: object) -> object:
    """A value as JSON has it: no number that is none, bytes as base64."""
    match value:
        # readers of tables take nothing for what is no number
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case list() | tuple():
            return [_json(item) for item in value]
        case dict():
            return {str(k): _json(v) for k, v in value.items()}
        case bool() | int() | float() | str() | None:
            return value
    return _json(_other(value))


def _other(value: object) -> object:
    """What JSON has no word for: arrays as lists, bytes as base64, a date or a decimal
    as text.
    """
    value = plain_value(value)
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case bool() | int() | float() | str() | list() | None:
            return value
    return str(value)


QUICK = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, default=_other
)
"""Made once, and not asked for each number whether it is one; ValueError where one is not."""
