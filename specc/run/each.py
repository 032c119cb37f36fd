"""Texts by themselves: any number of them in, what is written of each out, in order.

    for made in model.generate_each(lines, max_tokens=64):
        print(made.text if isinstance(made, specc.Result) else made.title)

As many as `at_once` stand beside each other; where the model bears texts of unequal age,
one that has ended makes room for the next. A bad one fails no other.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import SupportsIndex

from specc.data.batch import keep_of
from specc.decode.settings import Settings
from specc.files.read import shown
from specc.run.beside import shape_of, together
from specc.run.generation import Result, Writing
from specc.run.refill import Batch, Ended, refills
from specc.run.writer import Writer
from specc.text.diagnostic import Diagnostic, Failed, fail

MOST = 4096
"""Texts beside each other."""

Row = tuple[int, Writing]


def each(
    writer: Writer, rows: object, at_once: object, settings: Settings
) -> Iterator[Result | Diagnostic]:
    """What is written of every row, or what is wrong with it, in the order of the rows.

    A row is what is given for the first input that is asked for, or inputs by name; none
    of it has an axis for the batch. E0891 for rows that are none, for texts beside each
    other that are no count, and for several of one row.
    """
    count = _count(at_once)
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        fail(
            "E0891",
            f"{shown(repr(rows))[:60]} is no list of rows",
            notes=["each row is a text, a list of ids, or inputs by name"],
            helps=["for one row: generate_each([row])"],
        )
    if settings.n_best > 1:
        fail(
            "E0891",
            f"{settings.n_best} texts are asked for, and one is given for each row",
            helps=["leave out `n_best`, or call `generate` with a list"],
        )
    return _in_order(writer, rows, count, settings)


def _in_order(
    writer: Writer, rows: Iterable[object], at_once: int, settings: Settings
) -> Iterator[Result | Diagnostic]:
    done: dict[int, Result | Diagnostic] = {}

    def begun() -> Iterator[Row]:
        for number, row in enumerate(rows):
            try:
                yield number, writer.begin(inputs_of(writer, row), settings)
            except Failed as failed:
                done[number] = _where(failed, number)

    number = 0
    if refills(writer, settings):
        made = refilling(writer, at_once).write(begun())
    else:
        made = in_batches(writer, begun(), at_once)
    for which, result in made:
        done[which] = _where(result, which) if isinstance(result, Failed) else result[0]
        while number in done:
            yield done.pop(number)
            number += 1
    yield from (done[left] for left in sorted(done))


def refilling(writer: Writer, at_once: int) -> Batch[Writing]:
    """A batch of texts that are prepared one by one."""

    def ask(texts: Sequence[Writing]) -> Writing:
        return _joined(texts, ())

    def shape(text: Writing) -> object:
        return shape_of(writer.entrance, text.prepared)

    return Batch(writer=writer, at_once=at_once, ask=ask, shape=shape)


def in_batches(writer: Writer, rows: Iterable[Row], at_once: int) -> Iterator[Ended]:
    """Texts that begin together and end with the last of them: rows of one shape that
    follow each other.
    """
    some: list[Row] = []
    for number, text in rows:
        if some and (len(some) == at_once or _apart(writer, some[0][1], text)):
            yield from _written(some)
            some = []
        some.append((number, text))
    yield from _written(some) if some else ()


def _apart(writer: Writer, one: Writing, other: Writing) -> bool:
    """Whether two texts cannot be in one batch: for padding of prompts that nothing hides
    the room would differ as well.
    """
    shapes = {shape_of(writer.entrance, t.prepared) for t in (one, other)}
    return len(shapes) > 1 or one.room != other.room


def _written(some: Sequence[Row]) -> Iterator[Ended]:
    """All of a batch; each alone where something is wrong with one of them."""
    numbers = [number for number, _ in some]
    try:
        made = _joined([text for _, text in some], numbers).results()
    except Failed as failed:
        if len(some) == 1:
            yield numbers[0], failed
            return
        for one in some:
            yield from _written([one])
        return
    yield from zip(numbers, made, strict=True)


def _joined(texts: Sequence[Writing], numbers: Sequence[int]) -> Writing:
    """Texts that are prepared alone, as one batch."""
    first = texts[0]
    entrance = first.writer.entrance
    prepared = together(entrance, [text.prepared for text in texts])
    keep = keep_of(entrance.graph, entrance.growing)
    return replace(
        first,
        prepared=prepared,
        prompt=prepared[entrance.growing],
        keep=prepared.get(keep) if keep else None,
        numbers=tuple(numbers),
    )


def inputs_of(writer: Writer, row: object) -> dict[str, object]:
    """What is given for one row, as a batch of one. E0910 where nothing is asked for that
    could be meant.
    """
    asked = writer.entrance.asked
    if not isinstance(row, Mapping) and not asked:
        fail(
            "E0910",
            "the model asks for no input, so a row has to name its own",
            helps=["give inputs by name, as in {'ids': [1, 2]}"],
        )
    named = row if isinstance(row, Mapping) else {asked[0]: row}
    known = [*writer.entrance.graph.inputs]
    for name in (name for name in named if name not in known):
        fail(
            "E0910",
            f"the model has no input `{shown(str(name))[:60]}`",
            helps=[f"its inputs are {', '.join(known)}"],
        )
    # a text is one row, however many characters it has
    return {str(n): v if isinstance(v, str) else [v] for n, v in named.items()}


def _count(at_once: object) -> int:
    """E0891 for what is no count of texts."""
    count = 0
    if isinstance(at_once, SupportsIndex) and at_once is not True:
        count = operator.index(at_once)
    if 0 < count <= MOST:
        return count
    fail(
        "E0891",
        f"`at_once` is {shown(repr(at_once))[:60]}, and so many texts cannot be written",
        helps=[f"a whole number from 1 to {MOST}"],
    )


def _where(failed: Failed, number: int) -> Diagnostic:
    """What is wrong with a row, and with which."""
    first = failed.diagnostics[0]
    return replace(first, notes=(*first.notes, f"it is row {number + 1}"))
