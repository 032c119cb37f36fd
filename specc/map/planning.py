"""What a job asks for, made into a plan: which files, which columns, which results."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specc.data.batch import keep_of
from specc.files.read import shown
from specc.map.formats.lines import JsonLines
from specc.map.formats.parquet import arrow
from specc.map.formats.registry import files_of, format_of
from specc.map.formats.source import Block, reading
from specc.map.kinds import NULL, Column, Kind
from specc.map.model import Mapped, text_inputs
from specc.map.plan import (
    FILE,
    FOLDER,
    FORMATS,
    File,
    Limits,
    Plan,
    file_of,
    hash_of_model,
)
from specc.map.results import ERROR
from specc.run.opened import open_compiled
from specc.text.diagnostic import fail

ROWS = 4096
"""Rows of a block: so many that sorting them by length leaves little padding."""

USUAL = ("text", "image")
"""Columns that tables of texts and of pictures have."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked for. `columns` says for inputs which column each is read from;
    `keep` are the columns that are carried over, None for all that are not read.
    """

    model: str
    data: Sequence[str]
    out: str
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Sequence[str] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    raw: Sequence[str] = ()
    graph: str = ""
    provider: str = "cpu"
    to: str = ""
    rows: int = ROWS
    limits: Limits = field(default_factory=Limits)
    workers: int = 0
    engine: str = "local"
    address: str = ""
    gpus: float = 0
    most_errors: int | None = None


def plan_of(job: Job) -> Plan:
    """The plan of a job. E0870 to E0885 for what cannot be read, mapped or written."""
    files = _files(job)
    columns = _table(files)
    to = _format_to(job, files)
    chosen = dict(job.columns) or _obvious(job, columns)
    for name, column in chosen.items():
        if column not in columns:
            _no_column(column, columns, f"the input `{name}`")
    model = Mapped.open(
        job.model,
        chosen,
        settings=job.settings,
        raw=job.raw,
        graph=job.graph,
        provider=job.provider,
    )
    results = (*model.result_columns(), ERROR)
    kept = _kept(job, columns, chosen, results)
    blocks: list[Block] = []
    for number, path in enumerate(files):
        with reading(path):
            blocks += format_of(path).blocks(path, number, job.rows)
    return Plan(
        model=os.path.abspath(job.model),
        model_hash=hash_of_model(Path(job.model)),
        files=tuple(_absolute(path) for path in files),
        blocks=tuple(blocks),
        columns=chosen,
        kept=kept,
        results=results,
        settings=dict(job.settings),
        limits=job.limits,
        to=to,
        graph=job.graph,
        raw=tuple(job.raw),
        provider=job.provider,
        waits=model.texts.waits if model.writes else "",
    )


def _files(job: Job) -> list[Path]:
    """What is read; no parts that the job itself has written into the same folder."""
    files, out = files_of(job.data), Path(job.out).resolve()
    if not (out / FOLDER / FILE).is_file():
        return files
    return [
        p
        for p in files
        if not (p.name.startswith("part-") and p.resolve().parent == out)
    ]


def _absolute(path: Path) -> File:
    return file_of(Path(os.path.abspath(path)))


def _table(files: Sequence[Path]) -> dict[str, Column]:
    """The columns of all files. E0884 where one has others, but an object of JSON may
    lack any.
    """
    first: dict[str, Kind] = {}
    lacked = True
    for path in files:
        reader = format_of(path)
        with reading(path):
            found = {c.name: c.kind for c in reader.columns(path)}
        lacks = isinstance(reader, JsonLines)
        both = {
            n: _both(
                first.get(n, found.get(n) if lacked else None),
                found.get(n, first.get(n) if lacks else None),
            )
            for n in {**first, **found}
        }
        lacked = lacked and lacks
        odd = sorted(n for n, kind in both.items() if kind is None)
        if odd:
            fail(
                "E0884",
                f"`{shown(str(path))}` has other columns than `{shown(str(files[0]))}`",
                notes=[f"they differ in {', '.join(map(shown, odd))}"],
                helps=["give files of one kind together, others in a run of their own"],
            )
        first = {n: kind for n, kind in both.items() if kind is not None}
    return {
        n: Column(n, Kind("json") if kind.of == NULL else kind)
        for n, kind in first.items()
    }


def _both(one: Kind | None, other: Kind | None) -> Kind | None:
    """The kind of a column that is of these kinds in two files; None for no such kind."""
    if one is None or other is None or one == other:
        return other if one is not None else None
    if NULL in (one.of, other.of):
        return one if other.of == NULL else other
    numbers = {"i64", "f64"}
    plain = not one.sizes and not other.sizes
    return Kind("f64") if plain and {one.of, other.of} == numbers else None


def _format_to(job: Job, files: Sequence[Path]) -> str:
    """What is written: as asked for, else as what is read."""
    tables = any(p.suffix.lower() == ".parquet" for p in files)
    to = job.to or ("parquet" if tables else "jsonl")
    if to not in FORMATS:
        fail(
            "E0873",
            f"rows cannot be written as `{shown(to)}`",
            helps=[f"one of {', '.join(FORMATS)}"],
        )
    if to == "parquet":
        arrow()
    return to


def _obvious(job: Job, columns: Mapping[str, Column]) -> dict[str, str]:
    """Inputs whose names are columns; else a column `text` or `image` for the only
    input that nothing else fills in. E0880 where that does not tell.
    """
    opened = open_compiled(job.model, graph=job.graph, provider=job.provider)
    entrance = opened.entrance
    named = {n: n for n in entrance.graph.inputs if n in columns}
    if named:
        return named
    beside = {keep_of(entrance.graph, n) for n in entrance.asked}
    asked = [n for n in entrance.asked if n not in beside]
    usual = next((c for c in USUAL if c in columns), "")
    if usual and (texts := text_inputs(opened) or asked)[1:] == []:
        return {texts[0]: usual}
    column = next(iter(columns), "") if len(columns) == 1 else ""
    column = column if column.isidentifier() else "COLUMN"
    fail(
        "E0880",
        "which column is read for which input is not said",
        notes=[f"the columns are {shown(', '.join(columns))}"],
        helps=[f"--column {column}={n}" for n in asked],
    )


def _no_column(name: str, columns: Mapping[str, Column], what: str) -> None:
    fail(
        "E0885",
        f"the data has no column `{shown(name)}` for {what}",
        notes=[
            f"the columns are {', '.join(map(shown, columns))}"
            if columns
            else "it has no row that can be read"
        ],
        helps=["check the name"],
    )


def _kept(
    job: Job,
    columns: Mapping[str, Column],
    read: Mapping[str, str],
    results: Sequence[Column],
) -> tuple[Column, ...]:
    """The columns that stand beside the results. E0886 for two of one name."""
    for name in job.keep or ():
        if name not in columns:
            _no_column(name, columns, "the rows that are written")
    pictures = {"image"} & {*read.values()}
    names = (
        job.keep if job.keep is not None else [n for n in columns if n not in pictures]
    )
    made = {c.name for c in results}
    twice = [n for n in names if n in made]
    if twice and job.keep is not None:
        fail(
            "E0886",
            f"`{shown(twice[0])}` is a column of the data and of the results",
            helps=["leave it out of --keep, or rename it in the data"],
        )
    return tuple(columns[n] for n in dict.fromkeys(names) if n not in made)
