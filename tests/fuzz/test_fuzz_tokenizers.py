"""Mutated tokenizer files: a tokenizer or a diagnostic, never another exception of the library."""

import json
import random
from typing import Any

import pytest

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
from support.tokenizer_files import KINDS, LINES, train_tokenizer

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import parse_tokenizer_file

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**40,
    1e300,
    "",
    "x",
    "(",
    "Ġ",
    [],
    [[]],
    [["a", "b"]],
    {},
    {"a": 1},
    {"type": "BPE"},
]


def mutate_document(rng: random.Random, data: Any) -> Any:
    """Return a document with one value, at any depth, replaced by an odd one or dropped."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(sorted(data))
        if rng.random() < 0.1:
            return {k: v for k, v in data.items() if k != key}
        return {**data, key: mutate_document(rng, data[key])}
    if isinstance(data, list) and data and rng.random() < 0.9:
        at = rng.randrange(len(data))
        return [*data[:at], mutate_document(rng, data[at]), *data[at + 1 :]]
    return rng.choice(ODD)


def assert_read_or_refused(data: bytes) -> None:
    try:
        record = HfTokenizer(file=parse_tokenizer_file(data, "tokenizer.json"))
        for text in LINES:
            decode_text([0, 1, *encode_text_to_ids(text, record), 7], record)
    except SpeccError as failed:
        assert {d.code for d in failed.diagnostics} <= {"E0941", "E0908", "E0916"}
    except BaseException as error:
        error.add_note(data.decode(errors="replace")[:2000])
        raise


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_tokenizer_values_are_read_or_refused(kind: str) -> None:
    data = json.loads(train_tokenizer(kind))
    for seed in range(150):
        assert_read_or_refused(json.dumps(mutate_document(random.Random(seed), data)).encode())


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_tokenizer_bytes_are_read_or_refused(kind: str) -> None:
    data = train_tokenizer(kind).encode()
    for seed in range(80):
        rng = random.Random(seed)
        made = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            made[rng.randrange(len(made))] = rng.randrange(256)
        assert_read_or_refused(bytes(made[: rng.choice([len(made), rng.randrange(len(made))])]))
