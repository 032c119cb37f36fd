"""Texts of a block that are written one after the other, as room becomes free: as many
beside each other as the limits of a plan allow.

Which rows stand beside each other hangs on the block and the plan alone, as batches do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specc.map.inputs import Row
from specc.map.journal import Journal
from specc.map.model import Mapped
from specc.map.plan import Limits
from specc.run.generation import Result
from specc.text.diagnostic import Failed

Made = tuple[int, dict[str, object] | Failed]
"""The number of a row in its block, and its results, or what is wrong with it."""


@dataclass(kw_only=True)
class Flow:
    """A model that writes; `first` is the number that the block's first row has in all
    data, by which the seed draws. Of all `places` that were computed so many were padding.
    """

    model: Mapped
    limits: Limits
    first: int
    places: int = 0
    padding: int = 0
    work: int = 0

    def write(self, rows: Sequence[Row], journal: Journal) -> Iterator[Made]:
        """Every row, as it ends: those of one shape together, the shortest first."""
        padded = self.model.taking.padded
        # beside each other stand only rows that differ in what is padded
        groups: dict[object, list[Row]] = {}
        for row in sorted(rows, key=lambda r: (r.length(padded), r.number)):
            groups.setdefault(row.shape(padded), []).append(row)
        for group in groups.values():
            yield from self._group(group, group[-1].length(padded), journal)

    def _group(
        self, rows: Sequence[Row], longest: int, journal: Journal
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

    def _work(self, length: int, made: Sequence[Result]) -> int:
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
