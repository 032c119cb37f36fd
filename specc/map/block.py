"""One block of a plan, from rows to a part file: the same whoever does it, however
often.

Its part appears in one step, under a name that says which block it is. That the file
is there means that the block is done.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specc.files.read import shown
from specc.map.batches import batches, waste
from specc.map.done import Done
from specc.map.flow import Flow
from specc.map.formats.registry import format_of
from specc.map.formats.source import Format, Rows, reading
from specc.map.inputs import BROKEN, Row
from specc.map.journal import Journal
from specc.map.model import Mapped
from specc.map.part import done_before, write_part
from specc.map.plan import FOLDER, File, Plan, file_of
from specc.map.results import ERROR
from specc.text.diagnostic import Diagnostic, Failed, fail

FATAL = "E0882"
"""The code of a row whose process died of it."""

MOST_TEXT = 500
"""Characters of a message that a table holds."""

Report = Callable[[int], None]
"""Told how many rows more are done."""


@dataclass
class Blocks:
    """Does blocks of one plan, with a model that is opened once."""

    plan: Plan
    out: Path
    model: Mapped
    formats: dict[int, Format] = field(default_factory=dict)

    @staticmethod
    def open(plan: Plan, out: Path) -> "Blocks":
        """The model of a plan, ready."""
        model = Mapped.open(
            plan.model,
            plan.columns,
            settings=plan.settings,
            raw=plan.raw,
            graph=plan.graph,
            provider=plan.provider,
        )
        return Blocks(plan, out, model)

    def do(self, number: int, report: Report = lambda rows: None) -> Done:
        """One block. E0802 and E0881 where its file cannot be read any more, or has changed
        since the plan was made.
        """
        before = done_before(self.plan, self.out, number)
        if before is not None:  # by somebody else who is at work on the same plan
            report(before.rows)
            return before
        # what is begun stands in the journal, so that a row that kills its process is
        # known to whoever does the block again
        with Journal.open(self.out / FOLDER / f"{number:06}.now") as journal:
            with reading(Path(self.plan.files[self.plan.blocks[number].file].path)):
                table = self._read(number)
            count = self.plan.blocks[number].rows
            done = Done(number=number, rows=count)
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
            self.formats[block.file] = format_of(path)
        kept = [c.name for c in self.plan.kept]
        # one column may be read for two inputs, and kept besides
        wanted = list(dict.fromkeys([*self.plan.columns.values(), *kept]))
        table = self.formats[block.file].read(path, block, wanted)
        _check_rows(table, block.rows, file)
        return table

    def _values(
        self, table: Rows, count: int, done: Done, journal: Journal, report: Report
    ) -> list[dict[str, object]]:
        """The results of every row, in order."""
        values: list[dict[str, object]] = [{} for _ in range(count)]
        taking, padded = self.model.taking, self.model.taking.padded
        good: list[Row] = []
        for number, row in enumerate(taking.rows(table, count)):
            if isinstance(row, Row):
                good.append(row)
            else:
                _fault(values, done, number, row)
        report(count - len(good))
        # texts end at different times, so that their batches are not fixed beforehand
        if self.model.flows:
            good = self._flow(good, values, done, journal, report)
        memory = self.model.formulas.memory
        for batch in batches(good, padded, self.plan.limits, memory):
            places, padding = waste(batch, padded)
            done.places, done.padding = done.places + places, done.padding + padding
            self._batch(batch, values, done, journal)
            report(len(batch))
        # batches are sorted by length, the list of errors by row
        done.errors.sort()
        return values

    def _flow(
        self,
        rows: Sequence[Row],
        values: list[dict[str, object]],
        done: Done,
        journal: Journal,
        report: Report,
    ) -> list[Row]:
        """Texts of rows, as room becomes free. Gives the rows that processes died of:
        those are done by themselves.
        """
        blamed, began = journal.blamed(), time.perf_counter()
        flow = Flow(
            model=self.model,
            limits=self.plan.limits,
            first=self.plan.firsts[done.number],
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
        batch: Sequence[Row],
        values: list[dict[str, object]],
        done: Done,
        journal: Journal,
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
        batch: Sequence[Row],
        values: list[dict[str, object]],
        done: Done,
        journal: Journal,
    ) -> None:
        for row in batch:
            self._batch([row], values, done, journal)


def _check_same(path: Path, file: File) -> None:
    """E0881 for a file that is not the one which was planned for."""
    if not path.exists() or file_of(path) != file:
        fail(
            "E0881",
            f"`{shown(file.path)}` has changed since the job was planned",
            helps=["put the file back, or begin anew in another folder"],
        )


def _check_rows(table: Rows, count: int, file: File) -> None:
    """E0881 where a block is no longer as long as it was planned."""
    if any(len(column) != count for column in table.values()):
        fail(
            "E0881",
            f"`{shown(file.path)}` has other rows than when the job was planned",
            helps=["begin anew in another folder"],
        )


def _fault(
    values: list[dict[str, object]], done: Done, number: int, fault: Diagnostic
) -> None:
    """Says in a row what is wrong with it."""
    notes = f": {fault.notes[0]}" if fault.notes and fault.code != BROKEN else ""
    text = shown(f"{fault.title}{notes}")[:MOST_TEXT]
    values[number] = {ERROR.name: f"{fault.code} {text}"}
    done.errors.append((number, fault.code, text))
