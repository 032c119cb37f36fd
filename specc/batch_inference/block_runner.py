"""Compute one block of rows to a part file."""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.batch_inference.data_files import find_format
from specc.batch_inference.file_format import DataFile, Rows, translate_os_errors
from specc.batch_inference.job_files import (
    PLAN_DIRECTORY,
    BatchLimits,
    BlockStatistics,
    JobPlan,
    PlannedFile,
    describe_file,
    read_block_statistics,
    write_part,
)
from specc.batch_inference.result_columns import ERROR_COLUMN
from specc.batch_inference.row_batches import (
    UNREADABLE_ROW_CODE,
    InputRow,
    count_padding,
    group_by_shape,
    make_batches,
)
from specc.batch_inference.row_model import RowModel
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.io.json_io import parse_strict_json
from specc.io.output_paths import raise_os_error
from specc.io.safe_read import escape_text
from specc.runtime.generation import GenerationResult

MAX_ATTEMPTS = 2


@dataclass
class CrashJournal:
    """Number of crashes by rows of a block; `now` are the rows in progress. A journal that another
    live process writes is `shared` and only read. `lock` is a file descriptor.
    """

    path: Path
    died: dict[str, int] = field(default_factory=dict)
    now: str = ""
    shared: bool = False
    lock: int | None = None

    @staticmethod
    def open(path: Path) -> "CrashJournal":
        """Open the journal of a block, counting the crash that it records."""
        try:
            journal = CrashJournal(path, lock=lock_journal(path))
        except BlockingIOError:
            return CrashJournal(path, shared=True)
        found = _read_last_line(path)
        if isinstance(found, dict):
            died, now = found.get("died"), found.get("now")
            counts = died.items() if isinstance(died, dict) else ()
            journal.died = {k: n for k, n in counts if isinstance(n, int)}
            # the process that began this did not complete it and holds no lock any more
            if isinstance(now, str) and now:
                journal.died[now] = journal.died.get(now, 0) + 1
        return journal

    def begin(self, rows: Sequence[int]) -> None:
        """Record the rows in progress."""
        self.now = journal_key(rows)
        if self.shared:
            return
        data = {"died": self.died, "now": self.now}
        append_journal_line(self.path, f"{json.dumps(data)}\n")

    def fatal(self, rows: Sequence[int]) -> bool:
        """Return whether these rows crashed a process twice."""
        return self.died.get(journal_key(rows), 0) >= MAX_ATTEMPTS

    def find_crashing_rows(self) -> set[int]:
        """Return the rows that crashed processes twice, alone or together."""
        keys = (key for key, count in self.died.items() if count >= MAX_ATTEMPTS)
        return {int(n) for key in keys for n in key.split() if n.isdecimal()}

    def close(self) -> None:
        """Delete the journal of a completed block."""
        if not self.shared:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "CrashJournal":
        return self

    def __exit__(self, *fault: object) -> None:
        """Release the lock."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def lock_journal(path: Path) -> int | None:
    """Return the locked file descriptor, None without locks. Raise BlockingIOError if it is
    locked, E0811 to E0815 if it cannot be created.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise_os_error(error, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # its owner has exited and removed the file
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # a file system without locks
            os.close(descriptor)
            return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def append_journal_line(path: Path, line: str) -> None:
    """Append a line to the journal. Raise E0811 to E0815 if it cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as journal:
            journal.write(line)
    except OSError as error:
        raise_os_error(error, path)


def _read_last_line(path: Path) -> object:
    """Return the last complete line; None without a journal."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):
        with suppress(ValueError):  # the last line may be incomplete
            return parse_strict_json(line)
    return None


def journal_key(rows: Sequence[int]) -> str:
    """Format row indices."""
    return " ".join(map(str, rows))


CRASHED_ROW_CODE = "E0882"
"""The error code of a row that crashed its worker process."""

MAX_TEXT = 500
"""Maximum number of characters of a message in a table."""

Report = Callable[[int], None]
"""Called with the number of rows completed since the last call."""


@dataclass
class BlockRunner:
    """Computes blocks of one plan with a model that is opened once."""

    plan: JobPlan
    out: Path
    model: RowModel
    formats: dict[int, DataFile] = field(default_factory=dict)

    @staticmethod
    def open(plan: JobPlan, out: Path) -> "BlockRunner":
        """Open the model of a plan."""
        model = RowModel.open(
            plan.model,
            plan.columns,
            settings=plan.settings,
            raw=plan.raw,
            graph=plan.graph,
            provider=plan.provider,
        )
        return BlockRunner(plan, out, model)

    def do(self, number: int, report: Report = lambda rows: None) -> BlockStatistics:
        """Compute one block. Raise E0802 or E0881 if its file is gone or has changed."""
        before = read_block_statistics(self.plan, self.out, number)
        if before is not None:  # by another process that works on the same plan
            report(before.rows)
            return before
        # started rows are in the journal, so that the next worker knows a row that crashed this one
        with CrashJournal.open(self.out / PLAN_DIRECTORY / f"{number:06}.now") as journal:
            with translate_os_errors(Path(self.plan.files[self.plan.blocks[number].file].path)):
                table = self._read_columns(number)
            count = self.plan.blocks[number].rows
            block = OpenBlock(
                model=self.model,
                limits=self.plan.limits,
                first=self.plan.first_rows[number],
                journal=journal,
                report=report,
                done=BlockStatistics(number=number, rows=count),
                values=[{} for _ in range(count)],
            )
            block.compute(table)
            write_part(self.plan, self.out, table, block.values, block.done)
            journal.close()
        return block.done

    def _read_columns(self, number: int) -> Rows:
        """Return the columns that are needed. Raise E0881 for a file that has changed."""
        block = self.plan.blocks[number]
        file = self.plan.files[block.file]
        path = Path(file.path)
        if not path.exists() or describe_file(path) != file:
            _fail_changed(file, "changed since", "restore the file, or start")
        if block.file not in self.formats:
            self.formats[block.file] = find_format(path)
        kept = [c.name for c in self.plan.kept]
        # one column may be read for two inputs, and be copied to the output
        wanted = list(dict.fromkeys([*self.plan.columns.values(), *kept]))
        table = self.formats[block.file].read(block, wanted)
        if any(len(column) != block.rows for column in table.values()):
            _fail_changed(file, "different rows than when", "start")
        return table


@dataclass(kw_only=True)
class OpenBlock:
    """A block in progress: results of its rows in `values`. `first` is the index of its first
    row in all data, which seeds sampling.
    """

    model: RowModel
    limits: BatchLimits
    first: int
    journal: CrashJournal
    report: Report
    done: BlockStatistics
    values: list[dict[str, object]]

    @property
    def padded(self) -> tuple[str, ...]:
        """Return the names of the padded inputs."""
        return self.model.taking.padded

    def compute(self, table: Rows) -> None:
        """Compute the results of all rows of the block; failed rows get an error."""
        good: list[InputRow] = []
        for number, row in enumerate(self.model.taking.rows(table, self.done.rows)):
            if isinstance(row, InputRow):
                good.append(row)
            else:
                self._record_error(number, row)
        self.report(self.done.rows - len(good))
        # sequences end at different times, so that their batches are not fixed in advance
        if self.model.uses_continuous_batching:
            good = self._generate(good)
        memory = self.model.cost_formulas.memory
        for batch in make_batches(good, self.padded, self.limits, memory):
            self._count_rows(*count_padding(batch, self.padded))
            self._batch(batch)
            self.report(len(batch))
        # batches are sorted by length, the list of errors by row
        self.done.errors.sort()

    def _count_rows(self, places: int, padding: int) -> None:
        self.done.places += places
        self.done.padding += padding

    def _generate(self, rows: Sequence[InputRow]) -> list[InputRow]:
        """Generate texts by continuous batching, those of one shape together, the shortest first.
        Return the rows that crashed a process.
        """
        blamed, began = self.journal.find_crashing_rows(), time.perf_counter()
        some = [row for row in rows if row.number not in blamed]
        for group in group_by_shape(some, self.padded):
            self._generate_group(group)
        self.done.seconds += time.perf_counter() - began
        return [row for row in rows if row.number in blamed]

    def _generate_group(self, rows: Sequence[InputRow]) -> None:
        texts, first = self.model.texts, self.first
        lengths = {row.number: row.length(self.padded) for row in rows}

        # sequences are numbered globally, the journal counts within its block
        def record_begun_rows(numbers: Sequence[int]) -> None:
            self.journal.begin([number - first for number in numbers])

        batch = texts.batch(self._at_once(max(lengths.values())), record_begun_rows)
        for index, made in batch.generate((first + row.number, row) for row in rows):
            number = index - first
            if isinstance(made, Failed):
                self._record_error(number, made.diagnostics[0])
            else:
                self.done.work += self._estimate_work(lengths[number], made)
                self.values[number] = texts.results.values(made)
            self.report(1)
        self._count_rows(batch.fed_tokens, batch.fed_tokens - batch.used_tokens)

    def _estimate_work(self, length: int, made: Sequence[GenerationResult]) -> int:
        """Return the multiply-adds of a generated text with its prompt."""
        taking, count = self.model.taking, len(made[0].tokens)
        # prompt and generated tokens are one sequence of one input
        is_prompt = taking.input_signature.sequence_input in taking.columns
        return self.model.cost_formulas.compute_flops(
            1, length + count if is_prompt else max(length, count)
        )

    def _at_once(self, longest: int) -> int:
        """Return the batch size for texts of this length."""
        memory, limits = self.model.cost_formulas.memory, self.limits
        # one sequence is always generated: no memory limit shortens it
        count = max(min(limits.cap, limits.tokens // max(longest, 1)), 1)
        while count > 1 and memory(count, longest) > limits.memory:
            count -= 1
        return count

    def _batch(self, batch: Sequence[InputRow]) -> None:
        """Compute a batch; row by row where something is wrong with one of them."""
        numbers = [row.number for row in batch]
        # a process crashed in this batch before: only row by row shows which row it was
        if self.journal.fatal(numbers):
            title = "the process crashed twice while computing this row"
            return self._retry_rows(batch, Diagnostic(CRASHED_ROW_CODE, title))
        self.journal.begin(numbers)
        try:
            began = time.perf_counter()
            made = self.model.compute(batch, self.first)
            self.done.seconds += time.perf_counter() - began
            longest = max(row.length(self.padded) for row in batch)
            self.done.work += self.model.cost_formulas.compute_flops(len(batch), longest)
            for row, value in zip(batch, made, strict=True):
                self.values[row.number] = value
        except Failed as failed:
            return self._retry_rows(batch, failed.diagnostics[0])
        return None

    def _retry_rows(self, batch: Sequence[InputRow], fault: Diagnostic) -> None:
        """Compute the rows of a failed batch one by one; a single row has the error."""
        if len(batch) == 1:
            return self._record_error(batch[0].number, fault)
        for row in batch:
            self._batch([row])
        return None

    def _record_error(self, number: int, fault: Diagnostic) -> None:
        """Store an error in place of the results of a row."""
        notes = f": {fault.notes[0]}" if fault.notes and fault.code != UNREADABLE_ROW_CODE else ""
        text = escape_text(f"{fault.title}{notes}")[:MAX_TEXT]
        self.values[number] = {ERROR_COLUMN.name: f"{fault.code} {text}"}
        self.done.errors.append((number, fault.code, text))


def _fail_changed(file: PlannedFile, what: str, fix: str) -> NoReturn:
    raise_error(
        "E0881",
        f"`{escape_text(file.path)}` has {what} the job was planned",
        helps=[f"{fix} again in another directory"],
    )
