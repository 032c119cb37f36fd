"""Check, plan and run a batch inference job, and report the result."""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from specc.batch_inference.block_runner_and_crash_journal import BlockRunner
from specc.batch_inference.job_plan_and_part_files import (
    PLAN_DIRECTORY,
    BlockStatistics,
    JobPlan,
    read_block_statistics,
    read_plan,
)
from specc.batch_inference.job_planner import JobRequest, check_job_plans_match, plan_job
from specc.batch_inference.worker_processes_and_ray import (
    BlockProgress,
    LocalJobEngine,
    RayJobEngine,
)
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.diagnostics.render import format_repr
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import NOTHING_WRITTEN, raise_os_error
from specc.io.safe_read import escape_text

ENGINES = ("local", "serial", "ray")
ERRORS_FILE = f"{PLAN_DIRECTORY}/errors.jsonl"


@dataclass(kw_only=True)
class JobReport:
    """The report of a batch inference job: progress during the run, and the result at the end."""

    plan: JobPlan
    output_dir: Path
    rows: int = 0
    blocks: int = 0
    resumed_rows: int = 0
    """Number of rows completed by an earlier run of the job."""
    errors: int = 0
    null_rows: int = 0
    """Number of rows with NaN or infinity, which JSON Lines files store as null."""
    position_count: int = 0
    padding_position_count: int = 0
    start_time: float = field(default_factory=time.monotonic)
    ready_time: float | None = None
    """Monotonic time at which the first worker became ready, or None if no worker is ready yet."""
    end_time: float | None = None
    block_costs: list[tuple[float, int]] = field(default_factory=list)
    """Seconds and multiply-adds of each block of this run, in order of completion."""

    def __repr__(self) -> str:
        error_text = f", {self.errors} failed" if self.errors else ""
        return format_repr(f"map: {self.rows} rows{error_text}, in {self.output_dir}")

    @property
    def elapsed_seconds(self) -> float:
        """The elapsed time of this run in seconds."""
        return (self.end_time or time.monotonic()) - self.start_time

    @property
    def startup_seconds(self) -> float:
        """The time in seconds until the first worker was ready."""
        return 0.0 if self.ready_time is None else self.ready_time - self.start_time

    @property
    def rows_per_second(self) -> float:
        """The throughput of this run in rows per second, excluding startup."""
        # blocks completed by an earlier run are excluded
        row_count = self.rows - self.resumed_rows
        return row_count / max(self.elapsed_seconds - self.startup_seconds, 1e-9)

    @property
    def compute_seconds(self) -> float:
        """The total compute time of all processes, in seconds."""
        return sum(seconds for seconds, _ in self.block_costs)

    @property
    def predicted_seconds(self) -> float | None:
        """The compute time predicted from the first block, or None for a single block."""
        seconds, multiply_adds = self.block_costs[0] if self.block_costs else (0.0, 0)
        if len(self.block_costs) < 2 or not multiply_adds:
            return None
        total = sum(cost for _, cost in self.block_costs)
        return seconds * total / multiply_adds

    @property
    def padding_ratio(self) -> float:
        """The ratio of padding positions to valid positions in batches."""
        return self.padding_position_count / max(
            self.position_count - self.padding_position_count, 1
        )

    def add_statistics(self, statistics: BlockStatistics) -> None:
        """Add the statistics of a completed block."""
        self.blocks += 1
        self.errors += len(statistics.errors)
        self.null_rows += statistics.null_row_count
        self.position_count += statistics.position_count
        self.padding_position_count += statistics.padding_position_count


ProgressCallback = Callable[[JobReport], None]


def run_job(request: JobRequest, on_progress: ProgressCallback = lambda report: None) -> JobReport:
    """Compute the remaining blocks of a job, and return the report of the whole job."""
    start_time = time.monotonic()
    out, plan = Path(request.out), plan_job(request)
    engine = _make_engine(request, plan, out)  # check the request before files are written
    existing_plan = read_plan(out)
    if existing_plan is not None:
        check_job_plans_match(existing_plan, plan, out)
    else:
        _check_empty(out)
        plan.write_file(out)
    _check_writable(out)
    report = JobReport(plan=plan, output_dir=out, start_time=start_time)
    remaining_blocks = []
    for number, block in enumerate(plan.blocks):
        statistics = read_block_statistics(plan, out, number)
        if statistics is None:
            remaining_blocks.append(number)
        else:
            report.add_statistics(statistics)
            report.resumed_rows += block.row_count
    report.rows = report.resumed_rows
    # an earlier run may have allowed more errors than this run
    _check_errors(request, report)
    on_progress(report)
    with _note_complete_parts(report):
        for progress in engine.run_blocks(remaining_blocks) if remaining_blocks else ():
            report.rows += progress.row_count
            if progress.is_worker_ready and report.ready_time is None:
                report.ready_time = time.monotonic()
            if progress.statistics is not None:
                report.add_statistics(progress.statistics)
                report.block_costs.append(
                    (progress.statistics.seconds, progress.statistics.multiply_adds)
                )
                _check_errors(request, report)
            on_progress(report)
        _write_errors(report)
    for journal in (out / PLAN_DIRECTORY).glob("*.now"):  # remove the journals of killed processes
        journal.unlink(missing_ok=True)
    report.end_time = time.monotonic()
    return report


@contextmanager
def _note_complete_parts(report: JobReport) -> Iterator[None]:
    """A context manager that adds a note with the number of completed part files to each error."""
    try:
        yield
    except SpeccError as failed:
        complete = f"{report.blocks} of {len(report.plan.blocks)} parts are complete"
        note = f"{complete}: run the same command to compute the others"
        diagnostics = (
            replace(
                diagnostic,
                notes=tuple(note if n == NOTHING_WRITTEN else n for n in diagnostic.notes),
            )
            for diagnostic in failed.diagnostics
        )
        raise SpeccError(*diagnostics) from None


@dataclass(frozen=True)
class SerialJobEngine:
    """An engine that computes the blocks of a plan in this process."""

    out: Path
    plan: JobPlan

    def run_blocks(self, block_numbers: Sequence[int]) -> Iterator[BlockProgress]:
        """Compute blocks in order, and yield progress."""
        runner = BlockRunner.open(self.plan, self.out)
        yield BlockProgress(is_worker_ready=True)
        for number in block_numbers:
            statistics = runner.run_block(number)
            yield BlockProgress(row_count=statistics.row_count, statistics=statistics)


def _make_engine(
    request: JobRequest, plan: JobPlan, out: Path
) -> RayJobEngine | LocalJobEngine | SerialJobEngine:
    """Create the engine that computes the blocks of the job. Raise E0753 if a Ray option is used
    with another engine, and E0888 if Ray is not available.
    """
    if request.engine == "ray":
        engine = RayJobEngine(out, request.workers, request.address, request.gpus_per_worker)
        engine.import_ray()
        return engine
    options = {"--address": request.address, "--gpus": request.gpus_per_worker}
    for option in filter(options.get, options):
        helps = ["add --engine ray"]
        raise_error("E0753", f"`{option}` has no effect without a Ray cluster", helps=helps)
    if request.engine == "serial":
        return SerialJobEngine(out, plan)
    return LocalJobEngine(out=out, worker_count=request.workers or count_available_cpus())


def _check_writable(out: Path) -> None:
    """Raise E0812 before rows are computed if an output directory is not writable."""
    for directory in (out, out / PLAN_DIRECTORY):
        if not os.access(directory, os.W_OK):
            raise_os_error(PermissionError(errno.EACCES, "Permission denied"), directory)


def _check_empty(out: Path) -> None:
    """Raise E0875 if an output directory contains part files but no job plan."""
    if out.is_dir() and any(out.glob("part-*")):
        raise_error(
            "E0875",
            f"`{escape_text(out)}` contains output parts, but no job plan",
            helps=["write to another directory with -o"],
        )


def count_available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    count = os.cpu_count()
    with suppress(AttributeError):  # `sched_getaffinity` is not available on every system
        count = len(os.sched_getaffinity(0))
    return count or 1


def _check_errors(request: JobRequest, report: JobReport) -> None:
    """Raise E0887 if more rows failed than `max_errors` allows."""
    if request.max_errors is not None and report.errors > request.max_errors:
        _write_errors(report)
        row_text = "1 row" if report.errors == 1 else f"{report.errors} rows"
        raise_error(
            "E0887",
            f"{row_text} failed, expected at most {request.max_errors}",
            notes=[f"errors are listed in `{escape_text(report.output_dir / ERRORS_FILE)}`"],
            helps=["correct the rows, or allow more failed rows: --max-errors N"],
        )


def _write_errors(report: JobReport) -> None:
    """Write the list of failed rows to the errors file, in row order."""
    plan, lines = report.plan, []
    for number, block in enumerate(plan.blocks):
        statistics = read_block_statistics(plan, report.output_dir, number)
        for row, code, text in statistics.errors if statistics else ():
            path = plan.files[block.file_index].path
            error = {"file": path, "row": block.first_row + row, "code": code, "why": text}
            lines.append(json.dumps(error, ensure_ascii=False))
    if lines or (report.output_dir / ERRORS_FILE).exists():
        data = [f"{line}\n".encode("utf-8", "backslashreplace") for line in lines]
        write_file_atomically(report.output_dir / ERRORS_FILE, data)
