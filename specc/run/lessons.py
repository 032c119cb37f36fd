"""Rows of training data as arrays: what a model is given, and what it should have said.

A row names inputs as `run` takes them, and results as people would write them: a label,
a text, numbers. A model that writes learns from whole texts under the name of its
growing input: it is given each text up to a token, behind what texts start with, and
should have said the next one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn, cast

from specc.data.reading import Reading
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.model import Generation
from specc.run.inputs import Entrance, entrance_of
from specc.run.taught import Texts, answers, given
from specc.text.diagnostic import fail
from specc.text.suggest import suggest

Row = Mapping[str, object]


class Batch(NamedTuple):
    """What the model is given by input, and what it should have said by result."""

    inputs: dict[str, Array]
    wanted: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """How rows become arrays for `graph`: as `reading` and `defaults` say, and
    `generation` where the model writes.
    """

    graph: Graph
    reading: Reading
    defaults: Graph | None = None
    generation: Generation | None = None

    @cached_property
    def entrance(self) -> Entrance:
        """What may be given to the model."""
        growing = self.generation.growing if self.generation else ""
        return entrance_of(self.graph, self.reading, self.defaults, growing)

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Rows that name the same inputs and results, as arrays: inputs checked and
        completed, results i64 or f32, -100 where nothing should have been said.

        Fails with E0946 and E0947, and E09xx on inputs as `run` does.
        """
        rows = rows_of(rows)
        names = self._names(rows)
        self._check_wanted(names)
        columns = {name: [row[name] for row in rows] for name in names}
        wanted = {
            name: answers(self.reading, name, values)
            for name, values in columns.items()
            if name not in self.graph.inputs
        }
        inputs: dict[str, object] = {}
        for name in (name for name in names if name in self.graph.inputs):
            known: Mapping[str, object]
            if texts := self._texts(name, names):
                known, wanted[texts.generation.source] = texts.shifted(columns[name])
            else:
                known = given(self.graph, self.reading, name, columns[name])
            # a row's own word on padding goes before what is made out here
            inputs |= {n: x for n, x in known.items() if n == name or n not in columns}
        return Batch(self.entrance.prepared(inputs), wanted)

    def _texts(self, name: str, names: Sequence[str]) -> Texts | None:
        """How an input's texts are learned, where it holds any: who also says what should
        have been said has taken them apart already.
        """
        made = self.generation
        if made is None or name != made.growing or made.source in names:
            return None
        return Texts(self.graph, self.reading, made)

    def _check_wanted(self, names: Sequence[str]) -> None:
        """E0946 where nothing should have been said."""
        results = [name for name in names if name in self.graph.outputs]
        if results or any(self._texts(name, names) for name in names):
            return
        self._nothing_wanted()

    def _names(self, rows: Sequence[Row]) -> list[str]:
        """The inputs and results that every row names. E0946."""
        if not rows:
            fail("E0946", "a batch without rows teaches nothing")
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                fail(
                    "E0946",
                    f"row {number} is {_kind(row)}, and a row names inputs and results",
                    helps=[f"write {{{self._example()}}}"],
                )
        first = list(rows[0])
        for number, row in enumerate(rows):
            if set(row) != set(first):
                odd = sorted(map(repr, set(row) ^ set(first)))
                fail(
                    "E0946",
                    f"row {number} does not name what row 0 names",
                    notes=[f"one of them lacks {shown(', '.join(odd))[:200]}"],
                    helps=["give all rows of a batch the same names"],
                )
        known = [*self.graph.inputs, *self.graph.outputs]
        for name in first:
            if name not in known:
                called = shown(str(name))
                there = f"it has {', '.join(known)}"
                fail(
                    "E0946",
                    f"the model has no input and no result `{called}`",
                    helps=suggest(str(name), known, there),
                )
        return first

    def _example(self) -> str:
        """What a row may look like."""
        made = self.generation
        asked = [
            name for name in self.entrance.asked if not made or name != made.growing
        ]
        last = made.growing if made else next(iter(self.graph.outputs))
        return ", ".join(f'"{name}": …' for name in (*asked, last))

    def _nothing_wanted(self) -> NoReturn:
        made = self.generation
        there = ", ".join(f"`{name}`" for name in self.graph.outputs)
        helps = [f"name a result: {there}"]
        if made is not None:
            helps = [f"give whole texts as `{made.growing}`, which the model writes"]
        fail("E0946", "rows without a result teach nothing", helps=helps)


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def rows_of(given: object) -> Sequence[Row]:
    """Rows that have an order and a length. E0946 for one row alone, for a frame, whose
    rows go by other names, and for what is no collection.
    """
    if isinstance(given, list | tuple):
        return given
    methods = dir(type(given))
    if isinstance(given, Mapping) or "to_dict" in methods:
        fail(
            "E0946",
            f"rows are given as {_kind(given)}",
            helps=[
                "give a list of rows, though it be one: [row]",
                'of a frame of pandas: frame.to_dict("records")',
            ],
        )
    if isinstance(given, str | bytes) or not {"__len__", "__getitem__"} <= {*methods}:
        if isinstance(given, Iterable) and not isinstance(given, str | bytes):
            return list(given)
        fail(
            "E0946",
            f"rows are given as {_kind(given)}",
            helps=["give a list of mappings, a row each"],
        )
    # a data set of another library: what it holds is read when it is asked for
    return cast("Sequence[Row]", given)
