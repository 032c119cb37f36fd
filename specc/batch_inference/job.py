"""A batch inference job: check, plan, run on an engine, report."""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from specc.batch_inference.block_runner import BlockRunner
from specc.batch_inference.engines import BlockProgress, LocalEngine, RayEngine
from specc.batch_inference.job_files import (
    PLAN_DIRECTORY,
    BlockStatistics,
    JobPlan,
    check_same,
    read_block_statistics,
    read_plan,
)
from specc.batch_inference.job_planner import JobRequest, make_plan
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.render import format_repr
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import NOTHING_WRITTEN, raise_os_error
from specc.io.safe_read import escape_text

ENGINES = ("local", "serial", "ray")
ERRORS_FILE = f"{PLAN_DIRECTORY}/errors.jsonl"


@dataclass(kw_only=True)
class JobReport:
    """The result of a job; while it runs, its progress."""

    plan: JobPlan
    out: Path
    rows: int = 0
    blocks: int = 0
    before: int = 0
    """Number of rows that an earlier run completed."""
    errors: int = 0
    nulls: int = 0
    """Number of rows with NaN or infinity that JSON Lines store as null."""
    places: int = 0
    padding: int = 0
    began: float = field(default_factory=time.monotonic)
    ready: float | None = None
    """Time at which the first worker was ready."""
    ended: float | None = None
    computed: list[tuple[float, int]] = field(default_factory=list)
    """Seconds and multiply-adds of each block of this run, in order of completion."""

    def __repr__(self) -> str:
        faults = f", {self.errors} without a result" if self.errors else ""
        return format_repr(f"map: {self.rows} rows{faults}, in {self.out}")

    @property
    def seconds(self) -> float:
        """Return the elapsed time in seconds."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def start_up(self) -> float:
        """Return the seconds until the first worker started."""
        return 0.0 if self.ready is None else self.ready - self.began

    @property
    def rate(self) -> float:
        """Return the rows per second of this run, since the first worker started."""
        # blocks of an earlier run took no time of this one
        done = self.rows - self.before
        return done / max(self.seconds - self.start_up, 1e-9)

    @property
    def computing(self) -> float:
        """Return the total compute time of all processes, in seconds."""
        return sum(seconds for seconds, _ in self.computed)

    @property
    def predicted(self) -> float | None:
        """Return the compute time predicted from the first block and the cost formulas; None for
        one block.
        """
        seconds, work = self.computed[0] if self.computed else (0.0, 0)
        if len(self.computed) < 2 or not work:
            return None
        everything = sum(w for _, w in self.computed)
        return seconds * everything / work

    @property
    def waste(self) -> float:
        """Return the ratio of padding to valid positions."""
        return self.padding / max(self.places - self.padding, 1)

    def take(self, done: BlockStatistics) -> None:
        """Add the statistics of a completed block."""
        self.blocks += 1
        self.errors += len(done.errors)
        self.nulls += done.nulls
        self.places += done.places
        self.padding += done.padding


Watch = Callable[[JobReport], None]


def run_job(job: JobRequest, watch: Watch = lambda report: None) -> JobReport:
    """Compute the remaining blocks and return the result of the whole job."""
    began = time.monotonic()
    out, plan = Path(job.out), make_plan(job)
    if job.engine == "ray":
        _make_ray_engine(job, out).check()  # before files are written
    found = read_plan(out)
    if found is not None:
        check_same(found, plan, out)
    else:
        _check_empty(out)
        plan.write(out)
    _check_writable(out)
    report = JobReport(plan=plan, out=out, began=began)
    todo = []
    for number, block in enumerate(plan.blocks):
        done = read_block_statistics(plan, out, number)
        if done is None:
            todo.append(number)
        else:
            report.take(done)
            report.before += block.rows
    report.rows = report.before
    # an earlier run may have had more errors than this one allows
    _check_errors(job, report)
    watch(report)
    with _noting_complete_parts(report):
        for progress in _run_engine(job, plan, out, todo):
            report.rows += progress.rows
            if progress.ready and report.ready is None:
                report.ready = time.monotonic()
            if progress.done is not None:
                report.take(progress.done)
                report.computed.append((progress.done.seconds, progress.done.work))
                _check_errors(job, report)
            watch(report)
        _write_errors(report)
    for left in (out / PLAN_DIRECTORY).glob("*.now"):  # from killed processes
        left.unlink(missing_ok=True)
    report.ended = time.monotonic()
    return report


@contextmanager
def _noting_complete_parts(report: JobReport) -> Iterator[None]:
    """Replace the note that nothing was written by the number of complete parts."""
    try:
        yield
    except Failed as failed:
        complete = f"{report.blocks} of {len(report.plan.blocks)} parts are complete"
        note = f"{complete}: the same command computes the others"
        found = (
            replace(one, notes=tuple(note if n == NOTHING_WRITTEN else n for n in one.notes))
            for one in failed.diagnostics
        )
        raise Failed(*found) from None


def _make_ray_engine(job: JobRequest, out: Path) -> RayEngine:
    return RayEngine(out, job.workers, job.address, job.gpus)


def _check_writable(out: Path) -> None:
    """Raise E0812 for a directory that is not writable, before anything is computed."""
    for directory in (out, out / PLAN_DIRECTORY):
        if not os.access(directory, os.W_OK):
            raise_os_error(PermissionError(errno.EACCES, "Permission denied"), directory)


def _check_empty(out: Path) -> None:
    """Raise E0875 for a directory with parts but without a plan."""
    if out.is_dir() and any(out.glob("part-*")):
        raise_error(
            "E0875",
            f"`{escape_text(out)}` contains parts, but no plan",
            helps=["write to another directory with -o"],
        )


def _run_engine(
    job: JobRequest, plan: JobPlan, out: Path, todo: Sequence[int]
) -> Iterator[BlockProgress]:
    """Run the job with the requested engine."""
    if not todo:
        return
    if job.engine == "ray":
        yield from _make_ray_engine(job, out).run(todo)
    elif job.engine == "serial":
        blocks = BlockRunner.open(plan, out)
        yield BlockProgress(ready=True)
        for number in todo:
            done = blocks.do(number)
            yield BlockProgress(rows=done.rows, done=done)
    else:
        yield from LocalEngine(out=out, workers=job.workers or count_cores()).run(todo)


def count_cores() -> int:
    """Return the number of CPUs that this process may use."""
    count = os.cpu_count()
    with suppress(AttributeError):  # not every system reports which CPUs the process may use
        count = len(os.sched_getaffinity(0))
    return count or 1


def _check_errors(job: JobRequest, report: JobReport) -> None:
    """Raise E0887 if more rows failed than allowed."""
    if job.most_errors is not None and report.errors > job.most_errors:
        _write_errors(report)
        rows = "1 row has" if report.errors == 1 else f"{report.errors} rows have"
        raise_error(
            "E0887",
            f"{rows} no result; at most {job.most_errors} are allowed",
            notes=[f"they are in `{escape_text(report.out / ERRORS_FILE)}`"],
            helps=["correct the rows, or allow more: --max-errors N"],
        )


def _write_errors(report: JobReport) -> None:
    """Write the rows without results, in order."""
    plan, lines = report.plan, []
    for number, block in enumerate(plan.blocks):
        done = read_block_statistics(plan, report.out, number)
        for row, code, text in done.errors if done else ():
            path = plan.files[block.file].path
            error = {"file": path, "row": block.start + row, "code": code, "why": text}
            lines.append(json.dumps(error, ensure_ascii=False))
    if lines or (report.out / ERRORS_FILE).exists():
        data = [f"{line}\n".encode("utf-8", "backslashreplace") for line in lines]
        write_file_atomically(report.out / ERRORS_FILE, data)
