"""Files of weights beside a model: what is recorded of them at compile time, and
compared when the model is opened.

They are regular files in or below the model's folder, reached without links and under
one name only: ONNX's loader, ONNX Runtime and others agree on nothing less. The size
and the beginning, which holds a checkpoint's header, are compared at every opening; all
of the content where that is asked for.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.files.json import whole
from specc.files.read import Unreadable, open_regular, shown

HEAD = 1 << 20
"""So many bytes at the beginning of a file are compared whenever a model is opened."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Beside:
    """A file of weights: its size, the hash of its first mebibyte (empty: not known),
    and of all of it.
    """

    bytes: int
    sha256: str
    head: str = ""


def load(data: object) -> dict[str, Beside] | None:
    """Facts by the file's path below the model's folder; None where they are damaged."""
    if not isinstance(data, dict):
        return None
    found = {}
    for name, facts in data.items():
        match facts:
            case {"bytes": int() as size, "sha256": str(digest), "head": str(head)} if (
                is_size(size) and is_hash(digest) and (not head or is_hash(head))
            ):
                found[str(name)] = Beside(size, digest, head)
            case _:
                return None
    return found


def is_size(value: object) -> bool:
    """Whether this can be the size of a file: what any program reads exactly."""
    size = whole(value)
    return size is not None and 0 <= size < 2**53


def is_hash(text: str) -> bool:
    """Whether this is a SHA-256 as we write it."""
    return _HASH.fullmatch(text) is not None


def of_checkpoint(path: Path, sha256: str) -> Beside:
    """What is recorded of a checkpoint whose content has that hash."""
    size, head = size_of(path), hash_of(path, HEAD)
    assert size is not None, f"{path} was read a moment ago"
    assert head is not None, f"{path} was read a moment ago"
    return Beside(size, sha256, head)


def _linked(folder: Path, location: str) -> str:
    """Why a path does not lead to one file of one name; empty where it does."""
    path = folder / location
    straight = os.path.join(os.path.realpath(folder), *location.split("/"))
    try:
        if os.path.realpath(path) != straight:
            return "a link leads to it"
        # Whoever writes to the other name changes these weights.
        if (links := os.lstat(path).st_nlink) != 1:
            return f"it is one of {links} links to its file, which ONNX refuses to read"
    except (OSError, RuntimeError, ValueError):
        # links in a circle, a name that no file has
        return "it cannot be looked at"
    return ""


def fault(folder: Path, location: str, facts: Beside, *, contents: bool = False) -> str:
    """Why a file is not the one that was recorded, as the end of a sentence; empty where it is."""
    path = folder / location
    if not below(location):
        return "it lies outside of the model's folder"
    if (size := size_of(path)) is None:
        return "it is missing, or it is no regular file"
    if why := _linked(folder, location):
        return why
    if size != facts.bytes:
        return (
            f"it has {size} bytes, {facts.bytes} were there when the model was compiled"
        )
    # The beginning of a checkpoint is its header: names, shapes and places.
    if facts.head and hash_of(path, HEAD) != facts.head:
        return "the weights file has changed since the model was compiled"
    if contents and hash_of(path) != facts.sha256:
        return "its content is not what it was when the model was compiled"
    return ""


def out_of_place(outside: Iterable[tuple[str, int]], sizes: Mapping[str, int]) -> str:
    """Why tensors cannot lie where a model says: in a file that is not recorded, or
    behind its end; empty: they can.
    """
    for location, end in outside:
        if location not in sizes:
            return f"it reads weights from `{shown(location)[:200]}`, which is no part of it"
        # What is told may be negative, and end at or before the first byte.
        if not 0 < end <= sizes[location]:
            return f"it reads weights behind the end of `{shown(location)[:200]}`"
    return ""


def below(path: str) -> bool:
    """Whether a relative path with `/` stays below where it starts."""
    parts = path.split("/")
    # A drive or a stream of Windows has a colon in it, a path there backslashes.
    return bool(path) and not any(
        p in ("", ".", "..") or "\0" in p or "\\" in p or ":" in p for p in parts
    )


def size_of(path: Path) -> int | None:
    """The bytes of a regular file that is no link to another one, else None."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def hash_of(path: Path, most: int | None = None) -> str | None:
    """The SHA-256 of a regular file, or of its first `most` bytes; None where it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            if most is not None:
                return hashlib.sha256(file.read(most)).hexdigest()
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (Unreadable, OSError):
        return None
