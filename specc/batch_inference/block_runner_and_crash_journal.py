"""Run inference on one block of rows and write the results to a part file."""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.batch_inference.batch_inference_model import BatchInferenceModel
from specc.batch_inference.columns_and_parquet import ColumnValues, DataFile, translate_os_errors
from specc.batch_inference.data_files import open_data_file
from specc.batch_inference.job_plan_and_part_files import (
    PLAN_DIRECTORY,
    BatchLimits,
    BlockStatistics,
    InputFileFingerprint,
    JobPlan,
    get_file_fingerprint,
    read_block_statistics,
    write_part_file,
)
from specc.batch_inference.result_columns import ERROR_COLUMN
from specc.batch_inference.row_batches_and_cost_model import (
    UNREADABLE_ROW_CODE,
    InputRow,
    count_batch_positions,
    group_rows_by_shape,
    make_batches,
)
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.io.json_io import parse_strict_json
from specc.io.output_paths import raise_os_error
from specc.io.safe_read import escape_text
from specc.runtime.generation_stream_and_results import GenerationResult

MAX_ATTEMPTS = 2


@dataclass
class CrashJournal:
    """A journal file that counts worker crashes for each group of rows in a block. `current_key`
    identifies the rows in progress. `is_read_only` is true if another process has locked the
    journal file. `lock_descriptor` is the file descriptor of the lock.
    """

    path: Path
    crash_counts: dict[str, int] = field(default_factory=dict)
    current_key: str = ""
    is_read_only: bool = False
    lock_descriptor: int | None = None

    @staticmethod
    def open(path: Path) -> "CrashJournal":
        """Open the journal of a block, and count a crash for the rows in its last entry."""
        try:
            journal = CrashJournal(path, lock_descriptor=lock_journal(path))
        except BlockingIOError:
            return CrashJournal(path, is_read_only=True)
        entry = _read_last_line(path)
        if isinstance(entry, dict):
            crash_counts, current_key = entry.get("crash_counts"), entry.get("current_key")
            count_items = crash_counts.items() if isinstance(crash_counts, dict) else ()
            journal.crash_counts = {k: n for k, n in count_items if isinstance(n, int)}
            # the journal is not locked, so the process that started these rows has crashed
            if isinstance(current_key, str) and current_key:
                journal.crash_counts[current_key] = journal.crash_counts.get(current_key, 0) + 1
        return journal

    def record_started_rows(self, row_numbers: Sequence[int]) -> None:
        """Record in the journal that the given rows are in progress."""
        self.current_key = format_journal_key(row_numbers)
        if self.is_read_only:
            return
        data = {"crash_counts": self.crash_counts, "current_key": self.current_key}
        append_journal_line(self.path, f"{json.dumps(data)}\n")

    def has_repeated_crashes(self, row_numbers: Sequence[int]) -> bool:
        """Return True if workers have crashed twice on exactly this group of rows."""
        return self.crash_counts.get(format_journal_key(row_numbers), 0) >= MAX_ATTEMPTS

    def find_crashing_rows(self) -> set[int]:
        """Return the rows in all row groups on which workers have crashed twice."""
        keys = (key for key, count in self.crash_counts.items() if count >= MAX_ATTEMPTS)
        return {int(n) for key in keys for n in key.split() if n.isdecimal()}

    def close(self) -> None:
        """Delete the journal after the block is complete."""
        if not self.is_read_only:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "CrashJournal":
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the lock of the journal."""
        if self.lock_descriptor is not None:
            os.close(self.lock_descriptor)
            self.lock_descriptor = None


def lock_journal(path: Path) -> int | None:
    """Lock a journal file and return its file descriptor, or None if the system has no file locks.
    Raise BlockingIOError if the file is locked, and E0811 to E0815 if the file cannot be created.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no `fcntl`
        return None
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise_os_error(error, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at_path(descriptor, path):
                return descriptor
            os.close(descriptor)  # the previous owner of the lock has deleted the journal file
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # the file system does not support file locks
            os.close(descriptor)
            return None


def _is_file_at_path(descriptor: int, path: Path) -> bool:
    """Return True if the path still refers to the open file of the descriptor."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def append_journal_line(path: Path, line: str) -> None:
    """Append a line to a journal file. Raise E0811 to E0815 if the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as journal:
            journal.write(line)
    except OSError as error:
        raise_os_error(error, path)


def _read_last_line(path: Path) -> object:
    """Return the last complete line of a journal file, or None if the file does not exist."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):
        with suppress(ValueError):  # a crash may leave an incomplete last line
            return parse_strict_json(line)
    return None


def format_journal_key(row_numbers: Sequence[int]) -> str:
    """Format row indices as a key of the crash journal."""
    return " ".join(map(str, row_numbers))


CRASHED_ROW_CODE = "E0882"
"""The error code of a row whose computation crashed the worker process."""

MAX_ERROR_LENGTH = 500
"""Maximum number of characters in an error message of a part file."""

ReportRows = Callable[[int], None]
"""A progress callback that receives the number of rows completed since the previous call."""


@dataclass
class BlockRunner:
    """A runner for the blocks of a job plan, which opens the model once for all blocks."""

    plan: JobPlan
    out: Path
    model: BatchInferenceModel
    data_files: dict[int, DataFile] = field(default_factory=dict)

    @staticmethod
    def open(plan: JobPlan, output_dir: Path) -> "BlockRunner":
        """Open the model of a job plan."""
        model = BatchInferenceModel.open(
            plan.model,
            plan.input_columns,
            settings=plan.settings,
            raw_outputs=plan.raw_outputs,
            graph=plan.graph,
            provider=plan.provider,
        )
        return BlockRunner(plan, output_dir, model)

    def run_block(
        self, block_number: int, on_progress: ReportRows = lambda rows: None
    ) -> BlockStatistics:
        """Compute one block. Raise E0802 or E0881 if the data file is missing or changed."""
        existing_statistics = read_block_statistics(self.plan, self.out, block_number)
        if existing_statistics is not None:  # another process has computed the block
            on_progress(existing_statistics.row_count)
            return existing_statistics
        # record the rows in progress, because the next worker uses the journal to identify a row
        # that crashes its process
        with CrashJournal.open(self.out / PLAN_DIRECTORY / f"{block_number:06}.now") as journal:
            with translate_os_errors(
                Path(self.plan.files[self.plan.blocks[block_number].file_index].path)
            ):
                table = self._read_columns(block_number)
            count = self.plan.blocks[block_number].row_count
            processor = RowBlockProcessor(
                model=self.model,
                limits=self.plan.limits,
                first_row_number=self.plan.first_row_numbers[block_number],
                journal=journal,
                report=on_progress,
                statistics=BlockStatistics(block_number=block_number, row_count=count),
                results=[{} for _ in range(count)],
            )
            processor.compute_results(table)
            write_part_file(self.plan, self.out, table, processor.results, processor.statistics)
            journal.close()
        return processor.statistics

    def _read_columns(self, block_number: int) -> ColumnValues:
        """Read the required columns of a block. Raise E0881 if the data file has changed."""
        block = self.plan.blocks[block_number]
        file = self.plan.files[block.file_index]
        path = Path(file.path)
        if not path.exists() or get_file_fingerprint(path) != file:
            _raise_changed(file, "changed since", "restore the file, or start")
        if block.file_index not in self.data_files:
            self.data_files[block.file_index] = open_data_file(path)
        copied_names = [c.name for c in self.plan.copied_columns]
        # remove duplicates, because a column may be mapped to several inputs and copied to the
        # output
        column_names = list(dict.fromkeys([*self.plan.input_columns.values(), *copied_names]))
        table = self.data_files[block.file_index].read_block(block, column_names)
        if any(len(column) != block.row_count for column in table.values()):
            _raise_changed(file, "different rows than when", "start")
        return table


@dataclass(kw_only=True)
class RowBlockProcessor:
    """A processor of one block that holds the results of its rows. `first_row_number` is the index
    of the block's first row in the data set, from which sampling seeds are derived.
    """

    model: BatchInferenceModel
    limits: BatchLimits
    first_row_number: int
    journal: CrashJournal
    report: ReportRows
    statistics: BlockStatistics
    results: list[dict[str, object]]

    def compute_results(self, table: ColumnValues) -> None:
        """Compute the results of all rows of the block. The result of a failed row is an error
        message.
        """
        readable_rows: list[InputRow] = []
        for number, row in enumerate(
            self.model.row_converter.convert_rows(table, self.statistics.row_count)
        ):
            if isinstance(row, InputRow):
                readable_rows.append(row)
            else:
                self._record_error(number, row)
        self.report(self.statistics.row_count - len(readable_rows))
        # sequences end at different times, so continuous batching has no fixed batches
        if self.model.uses_continuous_batching:
            readable_rows = self._generate_continuously(readable_rows)
        memory = self.model.batch_cost_model.estimate_bytes
        for batch in make_batches(readable_rows, self.limits, memory):
            self._count_positions(*count_batch_positions(batch))
            self._compute_batch(batch)
            self.report(len(batch))
        # batches are processed in order of length, but errors are listed in row order
        self.statistics.errors.sort()

    def _count_positions(self, positions: int, padding: int) -> None:
        self.statistics.position_count += positions
        self.statistics.padding_position_count += padding

    def _generate_continuously(self, rows: Sequence[InputRow]) -> list[InputRow]:
        """Generate results by continuous batching. Return the rows that crashed workers."""
        crashing_rows, start_time = self.journal.find_crashing_rows(), time.perf_counter()
        safe_rows = [row for row in rows if row.row_number not in crashing_rows]
        for group in group_rows_by_shape(safe_rows):
            self._generate_group(group)
        self.statistics.seconds += time.perf_counter() - start_time
        return [row for row in rows if row.row_number in crashing_rows]

    def _generate_group(self, rows: Sequence[InputRow]) -> None:
        generator, first_row_number = self.model.generative_model, self.first_row_number
        lengths = {row.row_number: row.padded_length for row in rows}

        # sequence indices refer to the data set, whereas journal indices are relative to the block
        def record_started_rows(numbers: Sequence[int]) -> None:
            self.journal.record_started_rows(
                [row_number - first_row_number for row_number in numbers]
            )

        batch = generator.make_continuous_batch(
            self._choose_batch_size(max(lengths.values())), record_started_rows
        )
        for index, sequences in batch.generate(
            (first_row_number + row.row_number, row) for row in rows
        ):
            row_number = index - first_row_number
            if isinstance(sequences, SpeccError):
                self._record_error(row_number, sequences.diagnostics[0])
            else:
                self.statistics.multiply_adds += self._count_generation_multiply_adds(
                    lengths[row_number], sequences
                )
                self.results[row_number] = generator.result_columns.format_row(sequences)
            self.report(1)
        self._count_positions(batch.processed_tokens, batch.processed_tokens - batch.valid_tokens)

    def _count_generation_multiply_adds(
        self, input_length: int, sequences: Sequence[GenerationResult]
    ) -> int:
        """Return the number of multiply-adds for generating a sequence, including its prompt."""
        row_converter, best = self.model.row_converter, sequences[0]
        token_count = len(best.tokens) // max(best.num_codebooks, 1)
        # the prompt and the generated tokens count as one sequence
        is_prompt = row_converter.input_signature.sequence_input in row_converter.input_columns
        return self.model.batch_cost_model.estimate_multiply_adds(
            1, input_length + token_count if is_prompt else max(input_length, token_count)
        )

    def _choose_batch_size(self, max_length: int) -> int:
        """Return the largest batch size for sequences of `max_length` within the batch limits."""
        estimate_bytes, limits = self.model.batch_cost_model.estimate_bytes, self.limits
        # a batch has at least one sequence, even if the sequence exceeds the memory limit
        count = max(min(limits.max_rows, limits.max_tokens // max(max_length, 1)), 1)
        while count > 1 and estimate_bytes(count, max_length) > limits.max_bytes:
            count -= 1
        return count

    def _compute_batch(self, batch: Sequence[InputRow]) -> None:
        """Compute the results of a batch. If the batch fails, compute its rows one at a time."""
        row_numbers = [row.row_number for row in batch]
        # a process has crashed twice in this batch: compute single rows to identify the failing row
        if self.journal.has_repeated_crashes(row_numbers):
            title = "the process crashed twice on this row"
            return self._retry_rows(batch, Diagnostic(CRASHED_ROW_CODE, title))
        self.journal.record_started_rows(row_numbers)
        try:
            start_time = time.perf_counter()
            batch_results = self.model.run_batch(batch, self.first_row_number)
            self.statistics.seconds += time.perf_counter() - start_time
            max_length = max(row.padded_length for row in batch)
            self.statistics.multiply_adds += self.model.batch_cost_model.estimate_multiply_adds(
                len(batch), max_length
            )
            for row, value in zip(batch, batch_results, strict=True):
                self.results[row.row_number] = value
        except SpeccError as failed:
            return self._retry_rows(batch, failed.diagnostics[0])
        return None

    def _retry_rows(self, batch: Sequence[InputRow], error: Diagnostic) -> None:
        """Compute each row of a failed batch separately, or record the error of a single row."""
        if len(batch) == 1:
            return self._record_error(batch[0].row_number, error)
        for row in batch:
            self._compute_batch([row])
        return None

    def _record_error(self, row_number: int, error: Diagnostic) -> None:
        """Record an error as the result of a row, and in the statistics of the block."""
        notes = f": {error.notes[0]}" if error.notes and error.code != UNREADABLE_ROW_CODE else ""
        text = escape_text(f"{error.title}{notes}")[:MAX_ERROR_LENGTH]
        self.results[row_number] = {ERROR_COLUMN.name: f"{error.code} {text}"}
        self.statistics.errors.append((row_number, error.code, text))


def _raise_changed(file: InputFileFingerprint, change: str, fix: str) -> NoReturn:
    raise_error(
        "E0881",
        f"`{escape_text(file.path)}` has {change} the job was planned",
        helps=[f"{fix} again in another directory"],
    )
