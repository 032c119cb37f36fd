"""Plan a batch inference job: files, columns and results. Check a resumed job's plan."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.batch_inference.batch_inference_model import BatchInferenceModel, find_text_inputs
from specc.batch_inference.columns_and_parquet import (
    NULL_TYPE,
    ColumnType,
    RowBlock,
    TableColumn,
    import_pyarrow,
    translate_os_errors,
)
from specc.batch_inference.data_files import JsonLinesFile, find_data_files, open_data_file
from specc.batch_inference.job_plan_and_part_files import (
    OUTPUT_FORMATS,
    PLAN_DIRECTORY,
    PLAN_FILE,
    BatchLimits,
    JobPlan,
    get_file_fingerprint,
    hash_model,
)
from specc.batch_inference.result_columns import ERROR_COLUMN
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.preprocessing.preprocessing_records import ArrayConfig
from specc.preprocessing.text_batches_and_windows import find_mask_input
from specc.runtime.inference_model import has_per_tensor_scales, open_compiled_model

BLOCK_ROWS = 4096
"""Number of rows per block, large enough to form batches of rows of similar length."""

DEFAULT_COLUMNS = ("text", "image")
"""Names of the default columns for a single text input and for a single image input."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A request for a batch inference job. `input_columns` maps model inputs to columns.
    `copied_columns` are the columns to copy to the output (None: all columns).
    """

    model: str
    data: Sequence[str]
    out: str
    input_columns: Mapping[str, str] = field(default_factory=dict)
    copied_columns: Sequence[str] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    raw_outputs: Sequence[str] = ()
    graph: str = ""
    provider: str = "cpu"
    output_format: str = ""
    rows_per_block: int = BLOCK_ROWS
    limits: BatchLimits = field(default_factory=BatchLimits)
    workers: int = 0
    engine: str = "local"
    address: str = ""
    gpus_per_worker: float = 0
    max_errors: int | None = None


def plan_job(request: JobRequest) -> JobPlan:
    """Plan a job. Raise E0870 to E0885 if the data cannot be read, mapped or written."""
    files = _list_files(request)
    columns = _read_table_columns(files)
    output_format = _choose_output_format(request, files)
    input_columns = dict(request.input_columns) or _infer_columns(request, columns)
    for name, column in input_columns.items():
        if column not in columns:
            _raise_missing_column(column, columns, f"the input `{name}`")
    model = BatchInferenceModel.open(
        request.model,
        input_columns,
        settings=request.settings,
        raw_outputs=request.raw_outputs,
        graph=request.graph,
        provider=request.provider,
    )
    _check_csv_columns(model, input_columns, files)
    results = (*model.result_columns.iterate_columns(), ERROR_COLUMN)
    copied_columns = _select_copied_columns(request, columns, input_columns, results)
    blocks: list[RowBlock] = []
    for number, path in enumerate(files):
        with translate_os_errors(path):
            blocks += open_data_file(path).split_into_blocks(number, request.rows_per_block)
    return JobPlan(
        model=os.path.abspath(request.model),
        model_hash=hash_model(Path(request.model)),
        files=tuple(get_file_fingerprint(Path(os.path.abspath(path))) for path in files),
        blocks=tuple(blocks),
        input_columns=input_columns,
        copied_columns=copied_columns,
        result_columns=results,
        settings=dict(request.settings),
        limits=request.limits,
        output_format=output_format,
        graph=request.graph,
        raw_outputs=tuple(request.raw_outputs),
        provider=request.provider,
        static_batching_reason=model.generative_model.static_batching_reason
        if model.is_generative
        else "",
        has_batch_shared_scales=has_per_tensor_scales(model.model),
    )


def check_job_plans_match(
    existing_plan: JobPlan, requested_plan: JobPlan, output_dir: Path
) -> None:
    """Raise E0875 if a directory has parts of a different plan. The error lists the differences."""
    existing, requested, notes = existing_plan.to_json(), requested_plan.to_json(), []
    for key in existing:
        # a model file with the same content at another path is the same model
        if key != "model" and existing[key] != requested[key]:
            old, new = (json.dumps(data[key], ensure_ascii=False) for data in (existing, requested))
            values = f": {escape_text(old)} in the plan, {escape_text(new)} now"
            notes.append(key + (values if max(len(old), len(new)) <= 120 else " differ"))
    if notes:
        raise_error(
            "E0875",
            f"`{escape_text(output_dir)}` contains the output of another job",
            notes=notes,
            helps=["write to another directory with -o, or delete this directory"],
        )


def _check_csv_columns(
    model: BatchInferenceModel, columns: Mapping[str, str], files: Sequence[Path]
) -> None:
    """Raise E0906 if a numeric input is mapped to a CSV column, because CSV values are strings."""
    preprocessing = model.input_signature.preprocessing
    records = {name: preprocessing.get_input_config(name) for name in columns}
    numeric = [n for n, r in records.items() if r is None or isinstance(r, ArrayConfig)]
    if numeric and any(path.suffix.lower() == ".csv" for path in files):
        name = numeric[0]
        raise_error(
            "E0906",
            f"the input `{escape_text(name)}` expects numbers, but CSV values are strings",
            helps=["write the data as JSON Lines or Parquet"],
        )


def _list_files(request: JobRequest) -> list[Path]:
    """Return the input files, excluding part files that this job wrote to the input directory."""
    files, out = find_data_files(request.data), Path(request.out).resolve()
    # a directory without a plan file contains no output of a job
    if not (out / PLAN_DIRECTORY / PLAN_FILE).is_file():
        return files
    return [p for p in files if not (p.name.startswith("part-") and p.resolve().parent == out)]


def _read_table_columns(files: Sequence[Path]) -> dict[str, TableColumn]:
    """Return the columns of all data files. Raise E0884 if the columns of files differ, except for
    keys that are missing in JSON Lines files.
    """
    column_types: dict[str, ColumnType] = {}
    # a new column in this file is not a conflict if columns may be missing in all previous files
    earlier_may_lack = True
    for path in files:
        reader = open_data_file(path)
        with translate_os_errors(path):
            file_types = {c.name: c.type for c in reader.read_schema()}
        file_may_lack = isinstance(reader, JsonLinesFile)
        merged_types = {
            name: _merge_column_types(
                column_types.get(name, file_types.get(name) if earlier_may_lack else None),
                file_types.get(name, column_types.get(name) if file_may_lack else None),
            )
            for name in {**column_types, **file_types}
        }
        earlier_may_lack = earlier_may_lack and file_may_lack
        if unsupported := sorted(n for n, type in merged_types.items() if type is None):
            raise_error(
                "E0884",
                f"`{escape_text(path)}` and `{escape_text(files[0])}` have different columns",
                notes=[f"they differ in {', '.join(map(escape_text, unsupported))}"],
                helps=["process files with different columns in separate jobs"],
            )
        column_types = {n: type for n, type in merged_types.items() if type is not None}
    # a column that contains only nulls in every file gets the type `json`, which fits any value
    return {
        n: TableColumn(n, ColumnType("json") if type.element_type == NULL_TYPE else type)
        for n, type in column_types.items()
    }


def _merge_column_types(first: ColumnType | None, second: ColumnType | None) -> ColumnType | None:
    """Return a column type that represents both types, or None if the types conflict."""
    if first is None or second is None or first == second:
        return second if first is not None else None
    # a column of nulls is compatible with any type
    if NULL_TYPE in (first.element_type, second.element_type):
        return first if second.element_type == NULL_TYPE else second
    # JSON has a single number type, so a column can contain 1 in one file and 1.5 in another
    is_number_column = {first, second} == {ColumnType("i64"), ColumnType("f64")}
    return ColumnType("f64") if is_number_column else None


def _choose_output_format(request: JobRequest, files: Sequence[Path]) -> str:
    """Return the requested output format. The default is the format of the input files."""
    has_parquet = any(p.suffix.lower() == ".parquet" for p in files)
    output_format = request.output_format or ("parquet" if has_parquet else "jsonl")
    if output_format not in OUTPUT_FORMATS:
        raise_error(
            "E0873",
            f"unsupported output format `{escape_text(output_format)}`",
            helps=[f"expected one of {', '.join(OUTPUT_FORMATS)}"],
        )
    if output_format == "parquet":
        import_pyarrow()  # report a missing pyarrow before the first block is computed
    return output_format


def _infer_columns(request: JobRequest, columns: Mapping[str, TableColumn]) -> dict[str, str]:
    """Map model inputs to columns of the same name. If no column has the name of an input, map the
    only text input or the only required input to the column `text` or `image`. Raise E0880 if no
    mapping is found.
    """
    model = open_compiled_model(request.model, graph=request.graph, provider=request.provider)
    input_signature = model.input_signature
    columns_by_input = {n: n for n in input_signature.graph.inputs if n in columns}
    if columns_by_input:
        return columns_by_input
    # padding masks need no column, because they are computed from the padded inputs
    mask_inputs = {
        find_mask_input(input_signature.graph, n) for n in input_signature.required_inputs
    }
    required = [n for n in input_signature.required_inputs if n not in mask_inputs]
    default = next((c for c in DEFAULT_COLUMNS if c in columns), "")
    open_inputs = find_text_inputs(model) or required
    if default and len(open_inputs) == 1:
        return {open_inputs[0]: default}
    _raise_unmapped(columns, required)


def _raise_unmapped(columns: Mapping[str, TableColumn], required: Sequence[str]) -> NoReturn:
    """Raise E0880, and suggest a `--column` option for each model input without a column."""
    column = next(iter(columns)) if len(columns) == 1 else ""
    column = column if column.isidentifier() else "COLUMN"
    inputs = ", ".join(f"`{escape_text(name)}`" for name in required)
    raise_error(
        "E0880",
        f"no column is mapped to {inputs or 'any input'}",
        notes=[_describe_columns(columns)],
        helps=[f"--column {column}={n}" for n in required],
    )


def _raise_missing_column(name: str, columns: Mapping[str, TableColumn], use: str) -> None:
    raise_error(
        "E0885",
        f"the data has no column `{escape_text(name)}` for {use}",
        notes=[_describe_columns(columns)],
        helps=["check the name"],
    )


def _describe_columns(columns: Mapping[str, TableColumn]) -> str:
    """Format the names of the columns as a note for an error."""
    if not columns:
        return "the data has no readable row"
    return f"the columns are {', '.join(map(escape_text, columns))}"


def _select_copied_columns(
    request: JobRequest,
    columns: Mapping[str, TableColumn],
    input_columns: Mapping[str, str],
    results: Sequence[TableColumn],
) -> tuple[TableColumn, ...]:
    """Return the columns to copy to the output. Raise E0885 if a column does not exist, and E0886
    if a result has the same name.
    """
    outputs = {c.name for c in results}
    if request.copied_columns is None:
        # do not copy columns with input images, because images are large
        images = {"image"} & {*input_columns.values()}
        return tuple(column for name, column in columns.items() if name not in images | outputs)
    for name in request.copied_columns:
        if name not in columns:
            _raise_missing_column(name, columns, "the output rows")
    if duplicates := [name for name in request.copied_columns if name in outputs]:
        raise_error(
            "E0886",
            f"`{escape_text(duplicates[0])}` is the name of both a data column and an output",
            helps=["remove it from --keep-columns, or rename it in the data"],
        )
    return tuple(columns[name] for name in dict.fromkeys(request.copied_columns))
