"""Read GloVe word vectors in text format."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import UnreadableFileError, escape_text, open_regular_file
from specc.ir.array import Array

MAX_LINE_BYTES = 1 << 20
MAX_WORDS = 1 << 24
DEFAULT_TENSOR = "embedding.weight"
"""Default name of the tensor that contains the word vectors."""


@dataclass(frozen=True)
class WordVectors:
    """Word vectors, float32 [words, dim]. Row n is the vector of the word `words[n]`."""

    words: tuple[str, ...]
    vectors: Array


class _InvalidLineError(Exception):
    """Raised if a line of a GloVe file is invalid. The message contains the reason."""


def read_glove(path: str | Path) -> WordVectors:
    """Read word vectors in file order. Raise E0524 (invalid line) or E0802 (unreadable file)."""
    words: dict[str, int] = {}
    rows: list[Array] = []
    number = 0
    try:
        fd = open_regular_file(path)
    except UnreadableFileError as error:
        title = f"cannot read the vectors `{escape_text(path)}`: {error.reason}"
        raise_error(
            "E0802", title, helps=["check the path, which is relative to the working directory"]
        )
    try:
        with os.fdopen(fd, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES or number > MAX_WORDS:
                    raise _InvalidLineError(
                        f"at most {MAX_WORDS} lines of {MAX_LINE_BYTES} bytes are read"
                    )
                word, row = _parse_vector(_decode_line(line), rows[0].size if rows else 0)
                if word in words:
                    first = words[word]
                    raise _InvalidLineError(
                        f"duplicate word `{escape_text(word)}`, first in line {first}"
                    )
                words[word] = number
                rows.append(row)
    except _InvalidLineError as error:
        _raise_invalid_file(path, f"line {number}: {error}")
    if not rows:
        _raise_invalid_file(path, "it is empty")
    return WordVectors(tuple(words), np.stack(rows))


def _decode_line(line: bytes) -> str:
    """Decode a UTF-8 line and remove the line terminator. Raise an error for invalid UTF-8."""
    try:
        return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise _InvalidLineError(f"it is not UTF-8 (byte {error.start + 1})") from None


def _parse_vector(line: str, width: int) -> tuple[str, Array]:
    """Parse a line into a word (which may contain spaces) and a vector of `width` values. If
    `width` is 0, all fields after the first are values.
    """
    # do not use `split()`, because words in published files may contain whitespace other than
    # U+0020
    fields = line.split(" ")
    if not width:
        _reject_word2vec_header(fields)
        width = len(fields) - 1
    if width < 1 or len(fields) <= width:
        raise _InvalidLineError(
            f"expected {max(width, 1)} numbers after the word, got {len(fields) - 1}"
        )
    word = " ".join(fields[:-width])
    # If the word contains a number, the line has more values than expected.
    extra = [f for f in fields[1:-width] if _parse_number(f) is not None]
    if extra or not word:
        message = f"expected a word and {width} numbers, got {len(fields)} fields"
        raise _InvalidLineError(message if extra else "expected a word")
    return word, _parse_row(fields[-width:])


def _reject_word2vec_header(fields: list[str]) -> None:
    """Raise an error for the header line of a word2vec file."""
    # a word2vec header contains the number of words and the dimension, such as `400000 300`
    if len(fields) == 2 and fields[0].isdecimal() and fields[1].isdecimal():
        raise _InvalidLineError("this is the header of a word2vec file; GloVe files have none")


def _parse_row(fields: list[str]) -> Array:
    """Parse the vector of one word, float32 [dim]."""
    numbers = [_parse_number(text) for text in fields]
    if None in numbers:
        raise _InvalidLineError(
            f"`{escape_text(fields[numbers.index(None)][:40])}` is not a number"
        )
    # 1e39 is finite in float64 but overflows in float32
    with np.errstate(over="ignore"):
        row = np.array(numbers, np.float32)
    if not np.isfinite(row).all():
        raise _InvalidLineError("a value is too large for float32")
    return row


def _parse_number(text: str) -> float | None:
    """Parse a finite decimal number as written by `printf`. Return None for any other text."""
    if not text.isascii() or not text.strip("+-.eE") or not set(text) <= set("0123456789+-.eE"):
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _raise_invalid_file(path: str | Path, reason: str) -> NoReturn:
    raise_error(
        "E0524",
        f"`{escape_text(path)}` is not a word vector file",
        notes=[reason],
        helps=[
            "in the GloVe format each line is a word and its values, separated by "
            "single spaces: `the 0.418 0.24968`"
        ],
    )
