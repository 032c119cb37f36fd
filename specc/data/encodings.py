"""Texts and pairs of texts as tokens that know where in the text they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import numpy as np

from specc.data.batch import pads_left, row_inputs
from specc.data.record import TextReading
from specc.data.text import encode, pad
from specc.data.tokenizer import TextTokenizer
from specc.data.tokenizing import token_parts
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.text.diagnostic import fail

TOKEN_TYPES = "token_type_ids"
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The tokens of a text, or of a pair of texts.

    `types` are segment ids; `offsets` the characters of each token; `special` marks
    tokens that the tokenizer adds; `parts` says which text a token is of, 0 or 1, None
    for a special one; `words` numbers the words of each text.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] = ()
    special: tuple[bool, ...] = ()
    parts: tuple[int | None, ...] = ()
    words: tuple[int | None, ...] = ()

    def chosen(self, places: Sequence[int]) -> "Encoding":
        """The tokens at these places."""

        def at(values: Sequence[Item]) -> tuple[Item, ...]:
            return tuple(values[i] for i in places) if values else ()

        return Encoding(
            ids=at(self.ids),
            types=at(self.types),
            offsets=at(self.offsets),
            special=at(self.special),
            parts=at(self.parts),
            words=at(self.words),
        )

    def padded(self, length: int, fill: int) -> "Encoding":
        """With `fill` behind the tokens up to `length`, and no more tokens than that."""
        ids = (*self.ids, *[fill] * (length - len(self.ids)))[:length]
        return replace(self, ids=ids, types=(0,) * length)


def encode_text(text: str, pair: str | None, record: TextReading) -> Encoding:
    """The tokens of a text, or of a pair. E0906 for a pair where no tokenizer.json says
    how two texts are joined, and as `specc.data.text.encode` fails.
    """
    ids = encode(text, record).tolist()
    if not isinstance(record, TextTokenizer):
        if pair is not None:
            _no_pairs()
        return Encoding(ids=tuple(ids), types=(0,) * len(ids))
    if pair is not None:
        encode(pair, record)  # the same faults as for a text alone
    made = token_parts(text, pair, record)
    found = Encoding(
        ids=tuple(made.ids),
        types=tuple(made.type_ids),
        offsets=tuple(made.offsets),
        special=tuple(map(bool, made.special_tokens_mask)),
        parts=tuple(made.sequence_ids),
        words=tuple(made.word_ids),
    )
    # what the spec puts around a text, and the file does not
    if pair is None and len(ids) != len(found.ids):
        before = 1 if record.start is not None and ids[0] != found.ids[0] else 0
        after = len(ids) - len(found.ids) - before
        if before + after == len(ids) - len(found.ids) and after in (0, 1):
            return _surrounded(found, ids, before, after)
    return found


def _surrounded(
    found: Encoding, ids: Sequence[int], before: int, after: int
) -> Encoding:
    """The tokens with special ones of the spec around them."""
    none: list[int | None] = [None]
    return Encoding(
        ids=tuple(ids),
        types=(*[0] * before, *found.types, *[0] * after),
        offsets=(*[(0, 0)] * before, *found.offsets, *[(0, 0)] * after),
        special=(*[True] * before, *found.special, *[True] * after),
        parts=(*none * before, *found.parts, *none * after),
        words=(*none * before, *found.words, *none * after),
    )


def truncated(found: Encoding, most: int) -> Encoding:
    """At most so many tokens; special tokens at the end stay."""
    over = len(found.ids) - most
    if over <= 0 or not most:
        return found
    end = len(found.ids)
    while end and found.special and found.special[end - 1]:
        end -= 1
    places = [*range(max(end - over, 0)), *range(end, len(found.ids))]
    return found.chosen(places)


def context_windows(found: Encoding, most: int, stride: int) -> list[Encoding]:
    """The pair with its second text in overlapping windows, each of at most `most`
    tokens, `stride` of which it shares with the next.
    """
    second = [i for i, part in enumerate(found.parts) if part == 1]
    room = most - (len(found.ids) - len(second))
    if len(found.ids) <= most:
        return [found]
    if room < 1:
        fail(
            "E0907",
            f"the question leaves no room for the context among {most} tokens",
            helps=["give a shorter question, or a larger `max_seq_len`"],
        )
    step = room - min(stride, room - 1)
    first, last = second[0], second[-1]
    windows = []
    for start in range(0, len(second), step):
        some = second[start : start + room]
        places = [*range(first), *some, *range(last + 1, len(found.ids))]
        windows.append(found.chosen(places))
        if start + room >= len(second):
            break
    return windows


def encoding_inputs(
    graph: Graph, name: str, rows: Sequence[Encoding], *, types: bool, growing: str
) -> dict[str, Array]:
    """The input `name` [batch, longest], its keep input and, with `types`, the segment
    ids, where the graph has such inputs. E0912 as `row_inputs`.
    """
    ids = [np.array(row.ids, np.int64) for row in rows]
    made = row_inputs(graph, name, ids, growing=growing)
    if types and TOKEN_TYPES in graph.inputs:
        segments = [np.array(row.types, np.int64) for row in rows]
        left = pads_left(graph, name, growing)
        made[TOKEN_TYPES], _ = pad(segments, 0, left=left)
    return made


def _no_pairs() -> NoReturn:
    fail(
        "E0906",
        "this model reads one text at a time, and a pair is given",
        notes=["only a tokenizer.json says how two texts are joined"],
        helps=["give one text"],
    )
