"""A job from its words to its end: planned, checked against what the folder holds, run
by an engine, told.

    made = run_job(Job(model="dates/", data=["rows.jsonl"], columns={"source": "text"},
                       out="out/"))
    made.rows, made.errors
"""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specc.files.place import explain
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.map.block import Blocks
from specc.map.done import Done
from specc.map.engines.local import Local, Progress
from specc.map.part import done_before
from specc.map.plan import FOLDER, Plan, check_same, read_plan
from specc.map.planning import Job, plan_of
from specc.text.brief import brief
from specc.text.diagnostic import fail

if TYPE_CHECKING:
    from specc.map.engines.ray import Ray

ENGINES = ("local", "serial", "ray")
ERRORS = f"{FOLDER}/errors.jsonl"


@dataclass(kw_only=True)
class Report:
    """What came of a job; while it runs, what has so far."""

    plan: Plan
    out: Path
    rows: int = 0
    blocks: int = 0
    before: int = 0
    """Rows that a former run has done."""
    errors: int = 0
    places: int = 0
    padding: int = 0
    began: float = field(default_factory=time.monotonic)
    ready: float | None = None
    """When the first of those who work was ready to begin."""
    ended: float | None = None
    computed: list[tuple[float, int]] = field(default_factory=list)
    """Seconds and multiply-adds of each block of this run, as they were done."""

    def __repr__(self) -> str:
        faults = f", {self.errors} without a result" if self.errors else ""
        return brief(f"map: {self.rows} rows{faults}, in {self.out}")

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def start_up(self) -> float:
        """Seconds until somebody began."""
        return 0.0 if self.ready is None else self.ready - self.began

    @property
    def rate(self) -> float:
        """Rows a second of this run, since somebody began."""
        # what a former run has done took no time of this one
        done = self.rows - self.before
        return done / max(self.seconds - self.start_up, 1e-9)

    @property
    def computing(self) -> float:
        """Seconds in which models computed, of all processes together."""
        return sum(seconds for seconds, _ in self.computed)

    @property
    def predicted(self) -> float | None:
        """What `computing` would be by the cost formulas, as fast as the first block was;
        None of a single block, or of a model of which nothing is known.
        """
        seconds, work = self.computed[0] if self.computed else (0.0, 0)
        if len(self.computed) < 2 or not work:
            return None
        everything = sum(w for _, w in self.computed)
        return seconds * everything / work

    @property
    def waste(self) -> float:
        """Padding, as a share of what is no padding."""
        return self.padding / max(self.places - self.padding, 1)

    def take(self, done: Done) -> None:
        """A block is done."""
        self.blocks += 1
        self.errors += len(done.errors)
        self.places += done.places
        self.padding += done.padding


Watch = Callable[[Report], None]


def run_job(job: Job, watch: Watch = lambda report: None) -> Report:
    """Does what is not done yet, and tells what came of all."""
    began = time.monotonic()
    out, plan = Path(job.out), plan_of(job)
    _check_engine(job, out)
    found = read_plan(out)
    if found is not None:
        check_same(found, plan, out)
    else:
        _check_empty(out)
        plan.write(out)
    _check_writable(out)
    report = Report(plan=plan, out=out, began=began)
    todo = []
    for number, block in enumerate(plan.blocks):
        done = done_before(plan, out, number)
        if done is None:
            todo.append(number)
            continue
        report.take(done)
        report.rows += block.rows
        report.before += block.rows
    # a former run may have met more faults than this one grants
    _check_errors(job, report)
    watch(report)
    for progress in _progress(job, plan, out, todo):
        report.rows += progress.rows
        if progress.ready and report.ready is None:
            report.ready = time.monotonic()
        if progress.done is not None:
            report.take(progress.done)
            report.computed.append((progress.done.seconds, progress.done.work))
            _check_errors(job, report)
        watch(report)
    _errors_of(report)
    for left in (out / FOLDER).glob("*.now"):  # of who was killed behind a part
        left.unlink(missing_ok=True)
    report.ended = time.monotonic()
    return report


def _check_engine(job: Job, out: Path) -> None:
    """E0888 for an engine that is not there, before anything is written."""
    if job.engine == "ray":
        _ray(job, out).check()


def _ray(job: Job, out: Path) -> "Ray":
    from specc.map.engines.ray import Ray  # a second, where nobody asks for it

    return Ray(out, job.workers, job.address, job.gpus)


def _check_writable(out: Path) -> None:
    """E0812 before anything is computed for a folder that takes no files."""
    for folder in (out, out / FOLDER):
        if not os.access(folder, os.W_OK):
            explain(PermissionError(errno.EACCES, "Permission denied"), folder)


def _check_empty(out: Path) -> None:
    """E0875 for a folder of parts that no plan explains: they would be mixed up."""
    if out.is_dir() and any(out.glob("part-*")):
        fail(
            "E0875",
            f"`{shown(str(out))}` holds parts, and no plan that says of what",
            helps=["write into another folder with -o"],
        )


def _progress(
    job: Job, plan: Plan, out: Path, todo: Sequence[int]
) -> Iterator[Progress]:
    """The work, by the engine that is asked for."""
    if not todo:
        return
    if job.engine == "ray":
        yield from _ray(job, out).run(todo)
    elif job.engine == "serial":
        blocks = Blocks.open(plan, out)
        yield Progress(ready=True)
        for number in todo:
            done = blocks.do(number)
            yield Progress(rows=done.rows, done=done)
    else:
        yield from Local(out, job.workers or cores()).run(todo)


def cores() -> int:
    """The processors that this process may use."""
    count = os.cpu_count()
    with suppress(AttributeError):  # not every system says which are ours
        count = len(os.sched_getaffinity(0))
    return count or 1


def _check_errors(job: Job, report: Report) -> None:
    """E0887 where more rows are wrong than is granted."""
    if job.most_errors is not None and report.errors > job.most_errors:
        _errors_of(report)
        fail(
            "E0887",
            f"{_rows(report.errors)} no result, and {job.most_errors} may be without",
            notes=[f"they are in `{shown(str(report.out / ERRORS))}`"],
            helps=["mend the rows, or grant more: --max-errors N"],
        )


def _rows(count: int) -> str:
    return "1 row has" if count == 1 else f"{count} rows have"


def _errors_of(report: Report) -> None:
    """Writes down which rows have no result, in the order of the rows."""
    plan, lines = report.plan, []
    for number, block in enumerate(plan.blocks):
        done = done_before(plan, report.out, number)
        for row, code, text in done.errors if done else ():
            path = plan.files[block.file].path
            told = {"file": path, "row": block.start + row, "code": code, "why": text}
            lines.append(json.dumps(told, ensure_ascii=False))
    text = "".join(f"{line}\n" for line in lines)
    if lines or (report.out / ERRORS).exists():
        data = text.encode("utf-8", "backslashreplace")
        atomic_write(report.out / ERRORS, [data])
