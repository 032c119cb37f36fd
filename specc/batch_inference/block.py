"""Compute one block of rows to a part file."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specc.batch_inference.crash_journal import CrashJournal
from specc.batch_inference.file_format import FileFormat, Rows, translate_os_errors
from specc.batch_inference.format_registry import find_format
from specc.batch_inference.length_batches import count_padding, make_batches
from specc.batch_inference.part_files import BlockStatistics, read_block_statistics, write_part
from specc.batch_inference.plan import FOLDER, BatchLimits, JobPlan, PlannedFile, describe_file
from specc.batch_inference.result_columns import ERROR
from specc.batch_inference.row_inputs import BROKEN, InputRow
from specc.batch_inference.row_model import RowModel
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.io.safe_read import escape_text
from specc.runtime.generation import GenerationResult

Made = tuple[int, dict[str, object] | Failed]
"""The number of a row in its block, and its results, or what is wrong with it."""


@dataclass(kw_only=True)
class ContinuousGeneration:
    """A generative model; `first` is the index of the block's first row in all data, which seeds
    sampling. `padding` of the `places` computed were padding.
    """

    model: RowModel
    limits: BatchLimits
    first: int
    places: int = 0
    padding: int = 0
    work: int = 0

    def write(self, rows: Sequence[InputRow], journal: CrashJournal) -> Iterator[Made]:
        """Every row, as it ends: those of one shape together, the shortest first."""
        padded = self.model.taking.padded
        # beside each other stand only rows that differ in what is padded
        groups: dict[object, list[InputRow]] = {}
        for row in sorted(rows, key=lambda r: (r.length(padded), r.number)):
            groups.setdefault(row.shape(padded), []).append(row)
        for group in groups.values():
            yield from self._group(group, group[-1].length(padded), journal)

    def _group(
        self, rows: Sequence[InputRow], longest: int, journal: CrashJournal
    ) -> Iterator[Made]:
        texts = self.model.texts

        # texts are numbered in all data, the journal counts within its block
        def began(numbers: Sequence[int]) -> None:
            journal.begin([number - self.first for number in numbers])

        batch = texts.batch(self._at_once(longest), began)
        lengths = {r.number: r.length(self.model.taking.padded) for r in rows}
        for number, made in batch.write((self.first + r.number, r) for r in rows):
            if not isinstance(made, Failed):
                self.work += self._work(lengths[number - self.first], made)
            told = made if isinstance(made, Failed) else texts.written.values(made)
            yield number - self.first, told
        self.places += batch.fed
        self.padding += batch.fed - batch.used

    def _work(self, length: int, made: Sequence[GenerationResult]) -> int:
        """What it takes to write a text, prompt and all."""
        taking, count = self.model.taking, len(made[0].tokens)
        # a prompt and what is written behind it are one row of one input
        behind = taking.entrance.growing in taking.columns
        whole = length + count if behind else max(length, count)
        return self.model.formulas.work(1, whole)

    def _at_once(self, longest: int) -> int:
        """How many texts of this length may stand beside each other."""
        memory, limits = self.model.formulas.memory, self.limits
        # one text is written whatever it takes: no limit makes it shorter
        count = max(min(limits.cap, limits.tokens // max(longest, 1)), 1)
        while count > 1 and memory(count, longest) > limits.memory:
            count -= 1
        return count


FATAL = "E0882"
"""The code of a row whose process died of it."""

MOST_TEXT = 500
"""Characters of a message that a table holds."""

Report = Callable[[int], None]
"""Told how many rows more are done."""


@dataclass
class BlockRunner:
    """Does blocks of one plan, with a model that is opened once."""

    plan: JobPlan
    out: Path
    model: RowModel
    formats: dict[int, FileFormat] = field(default_factory=dict)

    @staticmethod
    def open(plan: JobPlan, out: Path) -> "BlockRunner":
        """The model of a plan, ready."""
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
        if before is not None:  # by somebody else who is at work on the same plan
            report(before.rows)
            return before
        # what is begun stands in the journal, so that a row that kills its process is
        # known to whoever does the block again
        with CrashJournal.open(self.out / FOLDER / f"{number:06}.now") as journal:
            with translate_os_errors(Path(self.plan.files[self.plan.blocks[number].file].path)):
                table = self._read(number)
            count = self.plan.blocks[number].rows
            done = BlockStatistics(number=number, rows=count)
            values = self._values(table, count, done, journal, report)
            write_part(self.plan, self.out, table, values, done)
            journal.close()
        return done

    def _read(self, number: int) -> Rows:
        """The columns that are needed. E0881 for a file that has changed."""
        block = self.plan.blocks[number]
        file = self.plan.files[block.file]
        path = Path(file.path)
        _check_same(path, file)
        if block.file not in self.formats:
            self.formats[block.file] = find_format(path)
        kept = [c.name for c in self.plan.kept]
        # one column may be read for two inputs, and kept besides
        wanted = list(dict.fromkeys([*self.plan.columns.values(), *kept]))
        table = self.formats[block.file].read(path, block, wanted)
        _check_rows(table, block.rows, file)
        return table

    def _values(
        self, table: Rows, count: int, done: BlockStatistics, journal: CrashJournal, report: Report
    ) -> list[dict[str, object]]:
        """The results of every row, in order."""
        values: list[dict[str, object]] = [{} for _ in range(count)]
        taking, padded = self.model.taking, self.model.taking.padded
        good: list[InputRow] = []
        for number, row in enumerate(taking.rows(table, count)):
            if isinstance(row, InputRow):
                good.append(row)
            else:
                _fault(values, done, number, row)
        report(count - len(good))
        # texts end at different times, so that their batches are not fixed beforehand
        if self.model.flows:
            good = self._flow(good, values, done, journal, report)
        memory = self.model.formulas.memory
        for batch in make_batches(good, padded, self.plan.limits, memory):
            places, padding = count_padding(batch, padded)
            done.places, done.padding = done.places + places, done.padding + padding
            self._batch(batch, values, done, journal)
            report(len(batch))
        # batches are sorted by length, the list of errors by row
        done.errors.sort()
        return values

    def _flow(
        self,
        rows: Sequence[InputRow],
        values: list[dict[str, object]],
        done: BlockStatistics,
        journal: CrashJournal,
        report: Report,
    ) -> list[InputRow]:
        """Generate texts by continuous batching; return the rows that crashed a process."""
        blamed, began = journal.blamed(), time.perf_counter()
        flow = ContinuousGeneration(
            model=self.model, limits=self.plan.limits, first=self.plan.firsts[done.number]
        )
        some = [row for row in rows if row.number not in blamed]
        for number, made in flow.write(some, journal):
            if isinstance(made, Failed):
                _fault(values, done, number, made.diagnostics[0])
            else:
                values[number] = made
            report(1)
        done.places, done.padding, done.work = flow.places, flow.padding, flow.work
        done.seconds += time.perf_counter() - began
        return [row for row in rows if row.number in blamed]

    def _batch(
        self,
        batch: Sequence[InputRow],
        values: list[dict[str, object]],
        done: BlockStatistics,
        journal: CrashJournal,
    ) -> None:
        """A batch; row by row where something is wrong with one of them."""
        numbers = [row.number for row in batch]
        alone = len(batch) == 1
        # a process died in this batch before: only row by row is it seen of which one
        if journal.fatal(numbers):
            if alone:
                title = "the process that computed this row died, twice"
                return _fault(values, done, numbers[0], Diagnostic(FATAL, title))
            return self._each(batch, values, done, journal)
        journal.begin(numbers)
        try:
            began = time.perf_counter()
            made = self.model.compute(batch, self.plan.firsts[done.number])
            done.seconds += time.perf_counter() - began
            longest = max(row.length(self.model.taking.padded) for row in batch)
            done.work += self.model.formulas.work(len(batch), longest)
            for row, value in zip(batch, made, strict=True):
                values[row.number] = value
        except Failed as failed:
            if alone:
                return _fault(values, done, numbers[0], failed.diagnostics[0])
            return self._each(batch, values, done, journal)
        return None

    def _each(
        self,
        batch: Sequence[InputRow],
        values: list[dict[str, object]],
        done: BlockStatistics,
        journal: CrashJournal,
    ) -> None:
        for row in batch:
            self._batch([row], values, done, journal)


def _check_same(path: Path, file: PlannedFile) -> None:
    """E0881 for a file that is not the one which was planned for."""
    if not path.exists() or describe_file(path) != file:
        raise_error(
            "E0881",
            f"`{escape_text(file.path)}` has changed since the job was planned",
            helps=["put the file back, or begin anew in another folder"],
        )


def _check_rows(table: Rows, count: int, file: PlannedFile) -> None:
    """E0881 where a block is no longer as long as it was planned."""
    if any(len(column) != count for column in table.values()):
        raise_error(
            "E0881",
            f"`{escape_text(file.path)}` has other rows than when the job was planned",
            helps=["begin anew in another folder"],
        )


def _fault(
    values: list[dict[str, object]], done: BlockStatistics, number: int, fault: Diagnostic
) -> None:
    """Says in a row what is wrong with it."""
    notes = f": {fault.notes[0]}" if fault.notes and fault.code != BROKEN else ""
    text = escape_text(f"{fault.title}{notes}")[:MOST_TEXT]
    values[number] = {ERROR.name: f"{fault.code} {text}"}
    done.errors.append((number, fault.code, text))
