"""Run batch inference over a data set and write one output row per input row.

Running the same command again resumes an interrupted job.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specc.batch_inference.job import ENGINES, ERRORS_FILE, JobReport, run_job
from specc.batch_inference.job_plan_and_part_files import OUTPUT_FORMATS, BatchLimits, JobPlan
from specc.batch_inference.job_planner import BLOCK_ROWS, JobRequest
from specc.cli.options import (
    COUNT_OPTION,
    FLOAT_OPTION,
    NO_DEFAULT,
    PACKAGE_GRAPH_OPTION,
    PROVIDER_OPTION,
    add_generation_options,
    add_option_groups,
    collect_generation_settings,
    make_output_option,
)
from specc.cli.terminal import is_progress_shown, print_json_result, print_note, print_result_line
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_thousands
from specc.driver.option_kinds import (
    STRING_LIST_OPTION,
    STRING_OPTION,
    Option,
    make_choice_option_type,
    make_int_parser,
)
from specc.io.safe_read import escape_text
from specc.model_loading import check_model_is_compiled

DEFAULT_LIMITS = BatchLimits()
INPUT_OPTIONS: Mapping[str, Option] = {
    "column": Option(
        STRING_LIST_OPTION, "COLUMN=INPUT", "pass a column of the data to a model input"
    ),
    **PACKAGE_GRAPH_OPTION,
    "execution_provider": PROVIDER_OPTION,
}
OUTPUT_OPTIONS: Mapping[str, Option] = {
    **make_output_option("DIR", "output directory", required=True),
    "keep_columns": Option(
        STRING_OPTION,
        "NAMES",
        "columns to copy to the output, comma-separated (default: all)",
        extra_arguments=NO_DEFAULT,
    ),
    "raw": Option(
        STRING_LIST_OPTION,
        "NAME",
        "also write the array of this output, in addition to the decoded result",
    ),
    "output_format": Option(
        make_choice_option_type(OUTPUT_FORMATS),
        "",
        "file format of the output (default: the format of the input)",
    ),
}
EXECUTION_OPTIONS: Mapping[str, Option] = {
    "workers": Option(
        COUNT_OPTION,
        "N",
        "number of worker processes (default: one per CPU core)",
        extra_arguments={"default": 0},
    ),
    "engine": Option(
        make_choice_option_type(ENGINES, "local"), "", "execution engine (default: local)"
    ),
    "address": Option(STRING_OPTION, "ADDRESS", "with --engine ray: address of the Ray cluster"),
    "gpus": Option(
        FLOAT_OPTION,
        "N",
        "with --engine ray: GPUs per worker (default: 0)",
        extra_arguments={"default": 0},
    ),
    "rows_per_part": Option(
        COUNT_OPTION,
        "N",
        f"number of rows per output file, and per work item of a worker (default: {BLOCK_ROWS})",
        extra_arguments={"default": BLOCK_ROWS},
    ),
    "batch_size": Option(
        COUNT_OPTION,
        "N",
        f"maximum rows per batch (default: {DEFAULT_LIMITS.max_rows})",
        extra_arguments={"default": DEFAULT_LIMITS.max_rows},
    ),
    "max_batch_tokens": Option(
        COUNT_OPTION,
        "N",
        f"maximum tokens per batch, including padding (default: {DEFAULT_LIMITS.max_tokens})",
        extra_arguments={"default": DEFAULT_LIMITS.max_tokens},
    ),
    "max_batch_memory": Option(
        COUNT_OPTION,
        "MB",
        f"maximum activation memory of a batch in MB (default: {DEFAULT_LIMITS.max_bytes >> 20})",
        extra_arguments={"default": DEFAULT_LIMITS.max_bytes >> 20},
    ),
    "max_errors": Option(
        COUNT_OPTION,
        "N",
        "stop when more than N rows have failed (default: never)",
        extra_arguments={"type": make_int_parser(0, 2**31 - 1, "a count")},
    ),
}


def add_map_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc map`."""
    parser.add_argument("model", metavar="MODEL", help="compiled model or package")
    parser.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help="data files (.parquet, .jsonl, .csv, .txt), or directories of data files or images",
    )
    add_option_groups(
        parser, input=INPUT_OPTIONS, output=OUTPUT_OPTIONS, execution=EXECUTION_OPTIONS
    )
    add_generation_options(parser)


def execute_map_command(args: Namespace) -> int:
    """Run the batch inference job and print its report."""
    check_model_is_compiled(args.model)
    job = JobRequest(
        model=args.model,
        data=args.data,
        out=args.output,
        input_columns=_parse_columns(args.column),
        copied_columns=None
        if args.keep_columns is None
        else list(filter(None, args.keep_columns.split(","))),
        settings=collect_generation_settings(args),
        raw_outputs=args.raw,
        graph=args.graph,
        provider=args.execution_provider,
        output_format=args.output_format,
        rows_per_block=args.rows_per_part,
        limits=BatchLimits(
            max_rows=args.batch_size,
            max_tokens=args.max_batch_tokens,
            max_bytes=args.max_batch_memory << 20,
        ),
        workers=args.workers,
        engine=args.engine,
        address=args.address,
        gpus_per_worker=args.gpus,
        max_errors=args.max_errors,
    )
    progress_line = _JobProgressLine(is_progress_shown())
    try:
        report = run_job(job, progress_line.show_report)
    finally:
        progress_line.finish()
    status = int(bool(report.rows) and report.errors == report.rows)
    if print_json_result(job_report_to_json(report)):
        return status
    _print_report(report)
    if report.block_costs:
        # print the run time as a note, which `--quiet` suppresses
        print_result_line(format_job_run_times(report), to_stderr=True)
    return status


def job_report_to_json(report: JobReport) -> dict[str, object]:
    """Return the report of a batch inference job as a JSON object."""
    return {
        "directory": str(report.output_dir),
        "rows": report.rows,
        "resumed_rows": report.resumed_rows,
        "parts": [*map(report.plan.get_part_file_name, range(len(report.plan.blocks)))],
        "errors": report.errors,
        "errors_file": str(report.output_dir / ERRORS_FILE) if report.errors else None,
        "null_rows": report.null_rows,
        "seconds": report.elapsed_seconds,
        "startup_seconds": report.startup_seconds,
        "compute_seconds": report.compute_seconds,
        "predicted_seconds": report.predicted_seconds,
        "padding_share": report.padding_ratio,
    }


def _parse_columns(assignments: list[str]) -> dict[str, str]:
    """Parse `COLUMN=INPUT` options. Return the data set column that supplies each model input.
    Raise E0880 if an option is invalid, or if two columns are assigned to an input.
    """
    columns: dict[str, str] = {}
    for assignment in assignments:
        column, equals, name = assignment.rpartition("=")
        if not equals or not column or not name or name in columns:
            problem = "twice" if name in columns else "expected `COLUMN=INPUT`"
            raise_error(
                "E0880",
                f"invalid option `--column {escape_text(assignment)}`",
                notes=[f"the input `{escape_text(name)}` is mapped to two columns"]
                if problem == "twice"
                else [problem],
                helps=["for example --column text=source"],
            )
        columns[name] = column
    return columns


@dataclass
class _JobProgressLine:
    """The progress line of a batch inference job on stderr. `width` is the length of the line in
    characters.
    """

    is_terminal: bool
    width: int = 0
    has_printed_notes: bool = False

    def show_report(self, report: JobReport) -> None:
        """Update the progress line. The first call also prints notes on the job plan."""
        if not self.has_printed_notes:
            for note in _iterate_notes(report.plan):
                print_note(note)
        self.has_printed_notes = True
        if self.is_terminal:
            text = format_job_progress(report)
            print(f"\r{text:<{self.width}}", end="", file=sys.stderr, flush=True)
            self.width = len(text)

    def finish(self) -> None:
        """Print a newline after the progress line."""
        if self.width:
            print(file=sys.stderr)


def _iterate_notes(plan: JobPlan) -> Iterator[str]:
    """Yield notes on the job plan: the reason for static batching, and a warning if the results of
    a row depend on other rows in the batch.
    """
    if plan.static_batching_reason:
        yield (
            f"a batch takes as long as its longest sequence: {plan.static_batching_reason}; "
            "rows of similar length are batched together"
        )
    if plan.has_batch_shared_scales:
        yield (
            "all rows of a batch share one quantization scale, so results depend slightly on "
            "the batch, and on --rows-per-part, --batch-size, --max-batch-tokens and "
            "--max-batch-memory; --quantize int8 avoids this"
        )


def format_job_progress(report: JobReport) -> str:
    """Format the progress of a job: rows, rows per second, padding, errors, estimated time left."""
    total = report.plan.row_count
    seconds_left = (
        (total - report.rows) / report.rows_per_second if report.rows_per_second > 0 else 0
    )
    parts = [
        f"{format_thousands(report.rows)} of {format_thousands(total)} rows",
        f"{format_thousands(round(report.rows_per_second))} rows/s",
        f"{report.padding_ratio:.0%} padding".replace("%", " %"),
    ]
    if report.errors:
        parts.append(f"{report.errors} errors")
    if report.rows < total:
        parts.append(f"{int(seconds_left) // 60}:{int(seconds_left) % 60:02} left")
    return ", ".join(parts)


def format_job_run_times(report: JobReport) -> str:
    """Format the times of a job: startup, elapsed and compute time, and the predicted time."""
    elapsed_seconds = report.elapsed_seconds
    work_seconds = max(elapsed_seconds - report.startup_seconds, 0.0)
    parts = [
        f"{elapsed_seconds:.1f} s: {report.startup_seconds:.1f} startup",
        f"{work_seconds:.1f} compute",
        f"{format_thousands(round(report.rows_per_second))} rows/s",
        f"{report.padding_ratio:.0%} padding".replace("%", " %"),
    ]
    model_text = f"{report.compute_seconds:.1f} s of model execution"
    if report.predicted_seconds is not None:
        model_text += f", {report.predicted_seconds:.1f} s predicted from the first block"
    return f"{', '.join(parts)}; {model_text}"


def _print_report(report: JobReport) -> None:
    """Print a one-line report of a batch inference job."""
    count = len(report.plan.blocks)
    part_text = "1 part" if count == 1 else f"{count} parts"
    resumed_text = (
        f", {report.resumed_rows} of them from an earlier run" if report.resumed_rows else ""
    )
    print(f"{report.rows} rows in {part_text} in {escape_text(report.output_dir)}{resumed_text}")
    if report.errors:
        row_text = "1 row has" if report.errors == 1 else f"{report.errors} rows have"
        print(f"{row_text} failed: see {escape_text(report.output_dir / ERRORS_FILE)}")
    if report.null_rows:
        row_text = "1 row has" if report.null_rows == 1 else f"{report.null_rows} rows have"
        print_note(f"{row_text} NaN or infinity, stored as null in JSON Lines")
