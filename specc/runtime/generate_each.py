"""Generate for many prompts, one result per prompt."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import SupportsIndex

from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.io.safe_read import escape_text
from specc.runtime.batch_slots import stack_prompts, unpadded_lengths
from specc.runtime.continuous_batching import ContinuousBatch, EndedSequence, explain_waiting
from specc.runtime.generation import GenerationResult, GenerationStream
from specc.runtime.generator import Generator

MAX_BATCH = 4096
"""Maximum batch size."""

Row = tuple[int, GenerationStream]


def generate_each(
    writer: Generator, rows: object, at_once: object, settings: GenerationSettings
) -> Iterator[GenerationResult | Diagnostic]:
    """Yield the generation or the diagnostic of every row, in order. A row is the value of the
    first required input, or inputs by name, without a batch axis.

    E0891 for invalid rows, for an invalid batch size, and for several sequences in one row.
    """
    count = _check_batch_size(at_once)
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise_error(
            "E0891",
            f"{escape_text(repr(rows))[:60]} is not a list of prompts",
            notes=["each prompt is a string, a list of ids, or inputs by name"],
            helps=["for one prompt: generate_each([row])"],
        )
    if settings.num_return_sequences > 1:
        raise_error(
            "E0891",
            f"`num_return_sequences` is {settings.num_return_sequences}, but only 1 is supported",
            helps=["leave out `num_return_sequences`, or call `generate` with a list"],
        )
    return _in_order(writer, rows, count, settings)


def _in_order(
    writer: Generator, rows: Iterable[object], at_once: int, settings: GenerationSettings
) -> Iterator[GenerationResult | Diagnostic]:
    done: dict[int, GenerationResult | Diagnostic] = {}

    def begin_rows() -> Iterator[Row]:
        for number, row in enumerate(rows):
            try:
                yield number, writer.begin(prompt_inputs(writer, row), settings)
            except Failed as failed:
                done[number] = _add_index(failed, number)

    number = 0
    if explain_waiting(writer, settings):
        made = generate_in_batches(writer, begin_rows(), at_once)
    else:
        made = make_continuous_batch(writer, at_once).write(begin_rows())
    for which, result in made:
        done[which] = _add_index(result, which) if isinstance(result, Failed) else result[0]
        while number in done:
            yield done.pop(number)
            number += 1
    yield from (done[left] for left in sorted(done))


def make_continuous_batch(writer: Generator, at_once: int) -> ContinuousBatch[GenerationStream]:
    """Make a continuous batch of sequences that are prepared one by one."""
    return ContinuousBatch(
        writer=writer,
        at_once=at_once,
        ask=_join_prompts,
        shape=lambda text: unpadded_lengths(writer.input_signature, text.prepared),
    )


def generate_in_batches(
    writer: Generator, rows: Iterable[Row], at_once: int
) -> Iterator[EndedSequence]:
    """Generate consecutive prompts of one shape in batches that end with their longest."""
    some: list[Row] = []
    for number, text in rows:
        if some and (len(some) == at_once or _must_be_separate(writer, some[0][1], text)):
            yield from _generate_prompts(some)
            some = []
        some.append((number, text))
    yield from _generate_prompts(some) if some else ()


def _must_be_separate(writer: Generator, one: GenerationStream, other: GenerationStream) -> bool:
    """Return whether two prompts cannot share a batch: their shapes or maximum lengths differ."""
    shapes = {unpadded_lengths(writer.input_signature, t.prepared) for t in (one, other)}
    return len(shapes) > 1 or one.room != other.room


def _generate_prompts(some: Sequence[Row]) -> Iterator[EndedSequence]:
    """Generate a batch; on an error retry its sequences one by one."""
    numbers = [number for number, _ in some]
    try:
        made = _join_prompts([text for _, text in some], numbers).results()
    except Failed as failed:
        if len(some) == 1:
            yield numbers[0], failed
            return
        for one in some:
            yield from _generate_prompts([one])
        return
    yield from zip(numbers, made, strict=True)


def _join_prompts(
    texts: Sequence[GenerationStream], numbers: Sequence[int] = ()
) -> GenerationStream:
    """Join sequences that were prepared alone into one batch."""
    first = texts[0]
    input_signature = first.writer.input_signature
    prepared = stack_prompts(input_signature, [text.prepared for text in texts])
    return replace(
        first,
        prepared=prepared,
        prompt=prepared[input_signature.growing],
        keep=prepared.get(input_signature.mask),
        numbers=tuple(numbers),
    )


def prompt_inputs(writer: Generator, row: object) -> dict[str, object]:
    """Return the inputs of one row as a batch of one. Raise E0910 if they are ambiguous."""
    asked = writer.input_signature.asked
    if not isinstance(row, Mapping) and not asked:
        raise_error(
            "E0910",
            "the model has no text input, so prompts need input names",
            helps=["pass inputs by name, as in {'ids': [1, 2]}"],
        )
    named = row if isinstance(row, Mapping) else {asked[0]: row}
    known = [*writer.input_signature.graph.inputs]
    for name in (name for name in named if name not in known):
        raise_error(
            "E0910",
            f"the model has no input `{escape_text(name)[:60]}`",
            helps=[f"its inputs are {', '.join(known)}"],
        )
    # a text is one batch element, however many characters it has
    return {str(n): v if isinstance(v, str) else [v] for n, v in named.items()}


def _check_batch_size(at_once: object) -> int:
    """Raise E0891 unless the batch size is a valid count."""
    count = 0
    if isinstance(at_once, SupportsIndex) and at_once is not True:
        count = operator.index(at_once)
    if 0 < count <= MAX_BATCH:
        return count
    raise_error(
        "E0891",
        f"invalid `batch_size` {escape_text(repr(at_once))[:60]}",
        helps=[f"use an integer from 1 to {MAX_BATCH}"],
    )


def _add_index(failed: Failed, number: int) -> Diagnostic:
    """Return the diagnostic of a row, with its index."""
    first = failed.diagnostics[0]
    return replace(first, notes=(*first.notes, f"prompt {number + 1}"))
