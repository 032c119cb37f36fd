"""Encodings of texts and text pairs with offsets and segments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.preprocessing.records import TextReading
from specc.preprocessing.text_batches import batch_rows, is_left_padded
from specc.preprocessing.text_codec import encode_text_ids, pad_rows
from specc.preprocessing.tokenizer_files import TextTokenizer
from specc.preprocessing.tokenizer_library import token_parts

TOKEN_TYPES = "token_type_ids"
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoding:
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

    def chosen(self, places: Sequence[int]) -> "TextEncoding":
        """The tokens at these places."""

        def at(values: Sequence[Item]) -> tuple[Item, ...]:
            return tuple(values[i] for i in places) if values else ()

        return TextEncoding(
            ids=at(self.ids),
            types=at(self.types),
            offsets=at(self.offsets),
            special=at(self.special),
            parts=at(self.parts),
            words=at(self.words),
        )

    def padded(self, length: int, fill: int) -> "TextEncoding":
        """With `fill` behind the tokens up to `length`, and no more tokens than that."""
        ids = (*self.ids, *[fill] * (length - len(self.ids)))[:length]
        return replace(self, ids=ids, types=(0,) * length)


def encode_text(text: str, pair: str | None, record: TextReading) -> TextEncoding:
    """The tokens of a text, or of a pair. E0906 for a pair where no tokenizer.json says
    how two texts are joined, and as `specc.preprocessing.text_codec.encode_text_ids` fails.
    """
    ids = encode_text_ids(text, record).tolist()
    if not isinstance(record, TextTokenizer):
        if pair is not None:
            _no_pairs()
        return TextEncoding(ids=tuple(ids), types=(0,) * len(ids))
    if pair is not None:
        encode_text_ids(pair, record)  # the same faults as for a text alone
    made = token_parts(text, pair, record)
    found = TextEncoding(
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


def _surrounded(found: TextEncoding, ids: Sequence[int], before: int, after: int) -> TextEncoding:
    """The tokens with special ones of the spec around them."""
    none: list[int | None] = [None]
    return TextEncoding(
        ids=tuple(ids),
        types=(*[0] * before, *found.types, *[0] * after),
        offsets=(*[(0, 0)] * before, *found.offsets, *[(0, 0)] * after),
        special=(*[True] * before, *found.special, *[True] * after),
        parts=(*none * before, *found.parts, *none * after),
        words=(*none * before, *found.words, *none * after),
    )


def truncate_encoding(found: TextEncoding, most: int) -> TextEncoding:
    """At most so many tokens; special tokens at the end stay."""
    over = len(found.ids) - most
    if over <= 0 or not most:
        return found
    end = len(found.ids)
    while end and found.special and found.special[end - 1]:
        end -= 1
    places = [*range(max(end - over, 0)), *range(end, len(found.ids))]
    return found.chosen(places)


def context_windows(found: TextEncoding, most: int, stride: int) -> list[TextEncoding]:
    """The pair with its second text in overlapping windows, each of at most `most`
    tokens, `stride` of which it shares with the next.
    """
    second = [i for i, part in enumerate(found.parts) if part == 1]
    room = most - (len(found.ids) - len(second))
    if len(found.ids) <= most:
        return [found]
    if room < 1:
        raise_error(
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


def batch_encodings(
    graph: Graph, name: str, rows: Sequence[TextEncoding], *, types: bool, growing: str
) -> dict[str, Array]:
    """The input `name` [batch, longest], its keep input and, with `types`, the segment
    ids, where the graph has such inputs. E0912 as `batch_rows`.
    """
    ids = [np.array(row.ids, np.int64) for row in rows]
    made = batch_rows(graph, name, ids, growing=growing)
    if types and TOKEN_TYPES in graph.inputs:
        segments = [np.array(row.types, np.int64) for row in rows]
        left = is_left_padded(graph, name, growing)
        made[TOKEN_TYPES], _ = pad_rows(segments, 0, left=left)
    return made


def _no_pairs() -> NoReturn:
    raise_error(
        "E0906",
        "this model reads one text at a time, and a pair is given",
        notes=["only a tokenizer.json says how two texts are joined"],
        helps=["give one text"],
    )
