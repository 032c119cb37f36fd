"""A model at work on rows: opened once, asked for a batch at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.data.batch import keep_of
from specc.data.record import TEXT
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.map.batches import Formulas
from specc.map.inputs import Row, Taking
from specc.map.kinds import Column
from specc.map.results import ATTENTION, Padding, Shown, Written
from specc.map.texts import Texts
from specc.run.inputs import Entrance
from specc.run.opened import Opened, open_compiled
from specc.text.diagnostic import fail

GIVEN_ONE_BY_ONE = ("n_best", "log_probabilities")


@dataclass
class Mapped:
    """What is computed of each row: results of a graph, or texts that are written.

    `columns` names the column of each input, `settings` are those of writing, `raw`
    outputs that are given as numbers.
    """

    opened: Opened
    columns: Mapping[str, str]
    settings: Mapping[str, Any]
    raw: tuple[str, ...] = ()

    @staticmethod
    def open(
        path: str | Path,
        columns: Mapping[str, str],
        *,
        settings: Mapping[str, object] | None = None,
        raw: Sequence[str] = (),
        graph: str = "",
        provider: str = "cpu",
        threads: int = 1,
    ) -> "Mapped":
        """Open a model for rows. E0880 for a column without an input."""
        opened = open_compiled(path, graph=graph, provider=provider, threads=threads)
        made = Mapped(opened, columns, dict(settings or {}), tuple(raw))
        made.check()  # before any row is read
        return made

    @property
    def writes(self) -> bool:
        """Whether texts are written."""
        return not self.opened.computes(self.columns, self.settings)

    @cached_property
    def taking(self) -> Taking:
        """How rows become inputs."""
        return Taking(self.entrance, self.columns, self.writes)

    @property
    def entrance(self) -> Entrance:
        """What may be given."""
        return self.opened.entrance if self.writes else self.opened.whole.entrance

    def check(self) -> None:
        """E0880 for what is given to no input, and for inputs that nothing is given to."""
        entrance = self.entrance
        known = entrance.graph.inputs
        for name in self.columns:
            if name not in known:
                fail(
                    "E0880",
                    f"the model has no input `{name}`",
                    helps=[f"its inputs are {', '.join(known)}: --column COLUMN=INPUT"],
                )
        # a text that begins with a token of its own needs no column of prompts
        begins = self.writes and self._begins()
        beside = {keep_of(entrance.graph, n) for n in self.columns}
        for name in entrance.asked:
            first = begins and name == entrance.growing
            if name not in self.columns and name not in beside and not first:
                fail(
                    "E0880",
                    f"no column is given to the input `{name}`",
                    helps=[f"say which one: --column COLUMN={name}"],
                )

    def _begins(self) -> bool:
        """Whether a text needs no prompt."""
        writer = self.opened.writer
        start = self.settings.get("start")
        return writer is not None and (
            start is not None or writer.generation.settings.get("start") is not None
        )

    @cached_property
    def results(self) -> Shown | Written:
        """What is given of each row. E0731 to E0733 for settings, E0879 for outputs of
        a model that writes.
        """
        writer = self.opened.writer
        if not self.writes or writer is None:
            manifest = self.opened.whole.manifest
            return Shown(manifest.graph, manifest.reading, self.raw)
        if self.raw:
            fail(
                "E0879",
                f"the model writes, and gives no `{shown(self.raw[0])}`",
                helps=["name a graph that gives it: --graph ROLE"],
            )
        return self.texts.written

    @cached_property
    def texts(self) -> Texts:
        """What is written. E0731 to E0733 for settings."""
        writer = self.opened.writer
        assert writer is not None, "it writes"
        return Texts(writer, self.taking, writer.chosen(self.settings))

    @property
    def flows(self) -> bool:
        """Whether texts that have ended make room for others."""
        return self.writes and self.texts.flow

    def result_columns(self) -> tuple[Column, ...]:
        """The columns of the results."""
        return tuple(self.results.columns())

    @cached_property
    def formulas(self) -> Formulas:
        """What a batch takes, of the graph that sees a whole row."""
        return Formulas.of(self._graph)

    @property
    def _graph(self) -> Graph:
        scoring = self.opened.scoring
        # a model that decodes by itself has no whole graph to count in
        if scoring is not None and scoring.manifest.decodes is None:
            return scoring.manifest.graph
        return self.entrance.graph

    def compute(self, rows: Sequence[Row], first: int = 0) -> list[dict[str, object]]:
        """The results of a batch, row by row; `first` is the number of the block's first
        row in all data. Fails with E09xx.
        """
        if isinstance(self.results, Written):
            made = self.texts.begun(rows, first).results()
            return [self.results.values(row) for row in made]
        inputs = self.taking.inputs(rows)
        outputs = self._outputs(inputs)
        return self.results.values(outputs, rows, self._padding)

    def _outputs(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """All results of a batch; with the weights of attentions, where they are asked for."""
        whole = self.opened.whole
        if not (isinstance(self.results, Shown) and self.results.attends):
            return whole.run(**inputs)
        outputs, maps = whole.attention(**inputs)
        return {**outputs, **{f"{ATTENTION}{name}": w for name, w in maps.items()}}

    @cached_property
    def _padding(self) -> Padding:
        graph, growing = self.entrance.graph, self.entrance.growing
        sides = {}
        for name in self.taking.padded:
            side = graph.input_facts[keep_of(graph, name)].keep
            sides[name] = side == "left" or (side == "any" and name == growing)
        return Padding(graph, sides)


def text_inputs(opened: Opened) -> list[str]:
    """The inputs that are read as texts."""
    entrance = opened.entrance
    return [n for n in entrance.asked if isinstance(entrance.reading.of_input(n), TEXT)]
