"""Recognizes by its content a file that specc wrote, and so may replace.

Each kind carries a mark where its format has room for one: a model its producer and its
manifest, a picture the program it was made by, arrays a comment, weights an entry of
their metadata. A file that cannot be read is not ours.
"""

import hashlib
import json
import mmap
import os
import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path

from specc.files.read import Unreadable, open_regular

MARK = "specc"
PARTS = (".data", ".tokenizer.json")
"""How the files that lie beside a model, under its name and their content's hash, end."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PRODUCER, _METADATA = 2, 14
"""Fields of a model: who made it, and texts that it carries."""
_MADE_BY, _HEAD = b"<!-- specc -->", 2048
"""What drawings and pages say of themselves, and how far from their beginning."""
_LONGEST_HEADER = 100_000_000
_MOST_FIELDS = 10_000
"""A model of ours has a few; a file of any content may look like many."""


def is_model(path: Path) -> bool:
    """Whether a file is an ONNX model with our manifest in it."""
    return _holds(path, _model)


def is_picture(path: Path) -> bool:
    """Whether a file is a PNG of ours."""
    return _holds(path, _picture)


def is_drawing(path: Path) -> bool:
    """Whether a file is an SVG, a page or a PNG of ours."""
    return is_picture(path) or _holds(path, _drawing)


def is_arrays(path: Path) -> bool:
    """Whether a file holds arrays that `run -o` wrote."""
    return _holds(
        path,
        lambda data: data[:2] == b"PK" and data[-7:] == b"\x05\x00" + MARK.encode(),
    )


def is_weights(path: Path) -> bool:
    """Whether a file is a safetensors file of ours."""
    return _holds(path, _weights)


def is_index(path: Path) -> bool:
    """Whether a file describes a package of ours, whole or damaged."""
    return _holds(
        path,
        lambda data: (
            data[:1] == b"{"
            and data.find(b'"specc":') > 0
            and data.find(b'"graphs":') > 0
        ),
    )


def parts_beside(path: Path) -> list[str]:
    """Files that specc wrote beside the model `path` and that no other model in the
    folder reads.
    """
    shape = re.compile(
        rf".*-([0-9a-f]{{16}})(?:{'|'.join(map(re.escape, PARTS))})", re.DOTALL
    )
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    found = [
        (n, m[1])
        for n in names
        if (m := shape.fullmatch(n)) and n.isprintable() and _mentions(path, n)
    ]
    ours = [
        name
        for name, digest in found
        if (_hash(path.parent / name) or "").startswith(digest)
    ]
    return unread(path.parent, ours, but={path.name})


def unread(folder: Path, names: Collection[str], *, but: Collection[str]) -> list[str]:
    """Those of `names` that no model in the folder reads, whatever the model is called;
    `but` are not looked into.
    """
    left = list(names)
    try:
        # Nothing is looked for in folders that may be large where nothing is asked.
        there = os.listdir(folder) if left else []
    except OSError:
        return []
    for other in [folder / n for n in there if n not in {*but, *names}]:
        if other.suffix.lower() == ".onnx" or is_model(other):
            left = [name for name in left if not _mentions(other, name)]
    return left


def _holds(path: Path, test: Callable[[mmap.mmap], bool]) -> bool:
    """Whether the content of a regular file passes a test."""
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return test(data)
    except (Unreadable, OSError, ValueError, IndexError, RecursionError):
        return False


def _mentions(path: Path, name: str) -> bool:
    return _holds(path, lambda data: data.find(name.encode()) >= 0)


def _hash(path: Path) -> str | None:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (Unreadable, OSError):
        return None


def _model(data: mmap.mmap) -> bool:
    made = described = False
    key = MARK.encode()
    for number, begin, end in islice(_fields(data), _MOST_FIELDS):
        made |= number == _PRODUCER and data[begin:end] == key
        described |= (
            number == _METADATA
            and data[begin : begin + 2 + len(key)] == bytes([10, len(key)]) + key
        )
    return made and described


def _fields(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """The fields of a protobuf message with their places. ValueError or IndexError
    where it is none.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        begin, kind = at, tag & 7
        if kind == 2:
            length, begin = _varint(data, at)
            at = begin + length
        elif kind == 0:
            _, at = _varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(kind, len(data))
        if at > len(data):
            raise ValueError("cut short")
        yield tag >> 3, begin, at


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("no number")


def _picture(data: mmap.mmap) -> bool:
    at = len(_PNG)
    while data[: len(_PNG)] == _PNG and at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], at + 8
        if (
            kind == b"tEXt"
            and data[body : body + length] == b"Software\0" + MARK.encode()
        ):
            return True
        at = body + length + 4
    return False


def _drawing(data: mmap.mmap) -> bool:
    """An SVG or a page that says who made it before anything that a user wrote."""
    head = data[:_HEAD]
    return head.startswith((b"<svg ", b"<!doctype html>")) and _MADE_BY in head


def _weights(data: mmap.mmap) -> bool:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(_LONGEST_HEADER, len(data) - 8) or data[8:9] != b"{":
        return False
    header = json.loads(data[8 : 8 + length])
    about = header.get("__metadata__")
    return isinstance(about, dict) and MARK in about
