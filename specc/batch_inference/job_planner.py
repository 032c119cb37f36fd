"""Plan a job: choose files, columns and results."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.batch_inference.data_files import JsonLinesFile, find_files, find_format
from specc.batch_inference.file_format import (
    NULL_TYPE,
    ColumnType,
    RowBlock,
    TableColumn,
    translate_os_errors,
)
from specc.batch_inference.job_files import (
    OUTPUT_FORMATS,
    PLAN_DIRECTORY,
    PLAN_FILE,
    BatchLimits,
    JobPlan,
    describe_file,
    hash_model,
)
from specc.batch_inference.parquet import import_pyarrow
from specc.batch_inference.result_columns import ERROR_COLUMN
from specc.batch_inference.row_model import RowModel, find_text_inputs
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.preprocessing.text_batches import find_mask_input
from specc.runtime.open_model import has_batch_shared_scales, open_compiled

BLOCK_ROWS = 4096
"""Number of rows per block: enough that sorting by length leaves little padding."""

DEFAULT_COLUMNS = ("text", "image")
"""Usual names of text and image columns."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A requested job. `columns` is the column of each input; `keep` are copied columns, None for
    all.
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
    rows: int = BLOCK_ROWS
    limits: BatchLimits = field(default_factory=BatchLimits)
    workers: int = 0
    engine: str = "local"
    address: str = ""
    gpus: float = 0
    most_errors: int | None = None


def make_plan(job: JobRequest) -> JobPlan:
    """Plan a job. Raise E0870 to E0885 for data that cannot be read, mapped or written."""
    files = _list_files(job)
    columns = _table(files)
    to = _format_to(job, files)
    chosen = dict(job.columns) or _infer_columns(job, columns)
    for name, column in chosen.items():
        if column not in columns:
            _fail_missing_column(column, columns, f"the input `{name}`")
    model = RowModel.open(
        job.model,
        chosen,
        settings=job.settings,
        raw=job.raw,
        graph=job.graph,
        provider=job.provider,
    )
    results = (*model.result_columns(), ERROR_COLUMN)
    kept = _select_kept_columns(job, columns, chosen, results)
    blocks: list[RowBlock] = []
    for number, path in enumerate(files):
        with translate_os_errors(path):
            blocks += find_format(path).blocks(number, job.rows)
    return JobPlan(
        model=os.path.abspath(job.model),
        model_hash=hash_model(Path(job.model)),
        files=tuple(describe_file(Path(os.path.abspath(path))) for path in files),
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
        waits=model.texts.waits if model.is_generative else "",
        shares=has_batch_shared_scales(model.opened),
    )


def _list_files(job: JobRequest) -> list[Path]:
    """Return the input files, without parts that this job wrote to the same directory."""
    files, out = find_files(job.data), Path(job.out).resolve()
    # a directory without a plan contains no output of a job
    if not (out / PLAN_DIRECTORY / PLAN_FILE).is_file():
        return files
    return [p for p in files if not (p.name.startswith("part-") and p.resolve().parent == out)]


def _table(files: Sequence[Path]) -> dict[str, TableColumn]:
    """Return the columns of all files. Raise E0884 if one has others; JSON lines may lack some."""
    known: dict[str, ColumnType] = {}
    # whether a column may be missing in every file so far
    lacked = True
    for path in files:
        reader = find_format(path)
        with translate_os_errors(path):
            found = {c.name: c.kind for c in reader.columns()}
        lacks = isinstance(reader, JsonLinesFile)
        both = _merge_columns(known, found, lacked=lacked, lacks=lacks)
        lacked = lacked and lacks
        if odd := sorted(n for n, kind in both.items() if kind is None):
            raise_error(
                "E0884",
                f"`{escape_text(path)}` has different columns than `{escape_text(files[0])}`",
                notes=[f"they differ in {', '.join(map(escape_text, odd))}"],
                helps=["process files with equal columns in one job"],
            )
        known = {n: kind for n, kind in both.items() if kind is not None}
    # a column that is null in every file may hold any value
    kinds = {n: ColumnType("json") if k.of == NULL_TYPE else k for n, k in known.items()}
    return {n: TableColumn(n, kind) for n, kind in kinds.items()}


def _merge_columns(
    known: Mapping[str, ColumnType], found: Mapping[str, ColumnType], *, lacked: bool, lacks: bool
) -> dict[str, ColumnType | None]:
    """Merge the columns of files; None for a conflict. `lacked`, `lacks`: earlier files, this
    file may lack columns.
    """
    made = {}
    for name in {**known, **found}:
        before = known.get(name, found.get(name) if lacked else None)
        here = found.get(name, known.get(name) if lacks else None)
        made[name] = _merge_kinds(before, here)
    return made


def _merge_kinds(one: ColumnType | None, other: ColumnType | None) -> ColumnType | None:
    """Return the kind of a column that has these kinds in two files; None for a conflict."""
    if one is None or other is None or one == other:
        return other if one is not None else None
    # a column of nulls is compatible with any type
    if NULL_TYPE in (one.of, other.of):
        return one if other.of == NULL_TYPE else other
    # one file may contain 1 and another 1.5: JSON has one number type
    numbers = {"i64", "f64"}
    plain = not one.sizes and not other.sizes
    return ColumnType("f64") if plain and {one.of, other.of} == numbers else None


def _format_to(job: JobRequest, files: Sequence[Path]) -> str:
    """Return the output format: the requested one, else that of the input."""
    tables = any(p.suffix.lower() == ".parquet" for p in files)
    to = job.to or ("parquet" if tables else "jsonl")
    if to not in OUTPUT_FORMATS:
        raise_error(
            "E0873",
            f"rows cannot be written as `{escape_text(to)}`",
            helps=[f"one of {', '.join(OUTPUT_FORMATS)}"],
        )
    if to == "parquet":
        import_pyarrow()  # a missing package is reported now, not after the first block
    return to


def _infer_columns(job: JobRequest, columns: Mapping[str, TableColumn]) -> dict[str, str]:
    """Return inputs named like columns, else `text` or `image` for the only open input. Raise
    E0880.
    """
    opened = open_compiled(job.model, graph=job.graph, provider=job.provider)
    input_signature = opened.input_signature
    named = {n: n for n in input_signature.graph.inputs if n in columns}
    if named:
        return named
    # missing values are filled in from the columns that identify rows
    beside = {find_mask_input(input_signature.graph, n) for n in input_signature.required_inputs}
    required = [n for n in input_signature.required_inputs if n not in beside]
    usual = next((c for c in DEFAULT_COLUMNS if c in columns), "")
    open_inputs = find_text_inputs(opened) or required
    if usual and len(open_inputs) == 1:
        return {open_inputs[0]: usual}
    _fail_unmapped(columns, required)


def _fail_unmapped(columns: Mapping[str, TableColumn], required: Sequence[str]) -> NoReturn:
    """Raise E0880 with a `--map` option for each input that has no column."""
    column = next(iter(columns)) if len(columns) == 1 else ""
    column = column if column.isidentifier() else "COLUMN"
    inputs = ", ".join(f"`{escape_text(name)}`" for name in required)
    raise_error(
        "E0880",
        f"no column is mapped to {inputs or 'any input'}",
        notes=[_describe_columns(columns)],
        helps=[f"--column {column}={n}" for n in required],
    )


def _fail_missing_column(name: str, columns: Mapping[str, TableColumn], what: str) -> None:
    raise_error(
        "E0885",
        f"the data has no column `{escape_text(name)}` for {what}",
        notes=[_describe_columns(columns)],
        helps=["check the name"],
    )


def _describe_columns(columns: Mapping[str, TableColumn]) -> str:
    """Return the names of the columns as a note."""
    if not columns:
        return "the data has no row that can be read"
    return f"the columns are {', '.join(map(escape_text, columns))}"


def _select_kept_columns(
    job: JobRequest,
    columns: Mapping[str, TableColumn],
    read: Mapping[str, str],
    results: Sequence[TableColumn],
) -> tuple[TableColumn, ...]:
    """Return the columns that are copied. Raise E0885 for a missing column, E0886 for one that
    has the name of an output.
    """
    outputs = {c.name for c in results}
    if job.keep is None:
        # input images are too large to be written again
        images = {"image"} & {*read.values()}
        return tuple(column for n, column in columns.items() if n not in images | outputs)
    for name in job.keep:
        if name not in columns:
            _fail_missing_column(name, columns, "the output rows")
    if twice := [n for n in job.keep if n in outputs]:
        raise_error(
            "E0886",
            f"`{escape_text(twice[0])}` is a column of the data and of the results",
            helps=["leave it out of --keep-columns, or rename it in the data"],
        )
    return tuple(columns[n] for n in dict.fromkeys(job.keep))
