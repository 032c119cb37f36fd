"""Texts that a model writes behind rows, with settings that are checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specc.decode.settings import Settings
from specc.map.inputs import Row, Taking
from specc.map.results import Written
from specc.run.generation import Writing
from specc.run.refill import Batch, refills, waits
from specc.run.writer import Writer


@dataclass(frozen=True)
class Texts:
    """A model that writes behind the rows that `taking` makes."""

    writer: Writer
    taking: Taking
    settings: Settings

    @property
    def flow(self) -> bool:
        """Whether texts that have ended make room for others."""
        return refills(self.writer, self.settings)

    @property
    def waits(self) -> str:
        """Why they do not; empty where they do."""
        return waits(self.writer, self.settings)

    @property
    def written(self) -> Written:
        """What is given of each."""
        chosen = self.settings
        beam = chosen.strategy == "beam"
        return Written(
            text=self.writer.decode is not None,
            scores=beam,
            log_probs=chosen.log_probabilities,
            several=beam and chosen.n_best > 1,
        )

    def batch(self, at_once: int, began: Callable[[Sequence[int]], None]) -> Batch[Row]:
        """Texts beside each other that `flow`; `began` is told the numbers of those that
        are worked on from now.
        """
        padded = self.taking.padded
        return Batch(
            writer=self.writer,
            at_once=at_once,
            ask=self.begun,
            shape=lambda row: row.shape(padded),
            began=began,
        )

    def begun(self, rows: Sequence[Row], first: int = 0) -> Writing:
        """Texts that begin together. The seed draws a row by its number in all data,
        `first` being that of the block's first. Fails with E09xx.
        """
        writing = self.writer.begin(self.taking.inputs(rows), self.settings)
        return replace(writing, numbers=[first + row.number for row in rows])
