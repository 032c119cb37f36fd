"""Recorded size and hash of weight files next to a model, checked on open."""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.io.json_io import as_exact_integer
from specc.io.safe_read import UnreadableFile, escape_text, open_regular_file

COMPARED_BYTES = 1 << 20
"""Number of bytes at the start of a weights file that are checked whenever a model is opened."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class WeightFileFacts:
    """A file of weights: size, hash, and the hash of its first mebibyte if known."""

    bytes: int
    sha256: str
    head: str = ""


def parse_weight_files(data: object) -> dict[str, WeightFileFacts] | None:
    """Facts by the file's path below the model's folder; None where they are damaged."""
    if not isinstance(data, dict):
        return None
    found = {}
    for name, facts in data.items():
        match facts:
            case {"bytes": int() as size, "sha256": str(digest), "head": str(head)} if (
                is_file_size(size) and is_sha256(digest) and (not head or is_sha256(head))
            ):
                found[str(name)] = WeightFileFacts(size, digest, head)
            case _:
                return None
    return found


def is_file_size(value: object) -> bool:
    """Whether this can be the size of a file: what any program reads exactly."""
    size = as_exact_integer(value)
    return size is not None and 0 <= size < 2**53


def is_sha256(text: str) -> bool:
    """Whether this is a SHA-256 as we write it."""
    return _HASH.fullmatch(text) is not None


def checkpoint_facts(path: Path, sha256: str) -> WeightFileFacts:
    """What is recorded of a checkpoint whose content has that hash."""
    size, head = regular_file_size(path), file_sha256(path, COMPARED_BYTES)
    assert size is not None, f"{path} was read a moment ago"
    assert head is not None, f"{path} was read a moment ago"
    return WeightFileFacts(size, sha256, head)


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


def explain_mismatch(
    folder: Path, location: str, facts: WeightFileFacts, *, contents: bool = False
) -> str:
    """Why a file is not the one that was recorded, as the end of a sentence; empty where it is."""
    path = folder / location
    if not is_path_below(location):
        return "it lies outside of the model's folder"
    if (size := regular_file_size(path)) is None:
        return "it is missing, or it is no regular file"
    if why := _linked(folder, location):
        return why
    if size != facts.bytes:
        return f"it has {size} bytes, {facts.bytes} were there when the model was compiled"
    # The beginning of a checkpoint is its header: names, shapes and places.
    if facts.head and file_sha256(path, COMPARED_BYTES) != facts.head:
        return "the weights file has changed since the model was compiled"
    if contents and file_sha256(path) != facts.sha256:
        return "its content is not what it was when the model was compiled"
    return ""


def find_misplaced_tensors(outside: Iterable[tuple[str, int]], sizes: Mapping[str, int]) -> str:
    """Why tensors lie in no recorded file, or after its end; empty where they do not."""
    for location, end in outside:
        if location not in sizes:
            return f"it reads weights from `{escape_text(location)[:200]}`, which is no part of it"
        # What is told may be negative, and end at or before the first byte.
        if not 0 < end <= sizes[location]:
            return f"it reads weights behind the end of `{escape_text(location)[:200]}`"
    return ""


def is_path_below(path: str) -> bool:
    """Whether a relative path with `/` stays below where it starts."""
    parts = path.split("/")
    # A drive or a stream of Windows has a colon in it, a path there backslashes.
    return bool(path) and not any(
        p in ("", ".", "..") or "\0" in p or "\\" in p or ":" in p for p in parts
    )


def regular_file_size(path: Path) -> int | None:
    """The bytes of a regular file that is no link to another one, else None."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def file_sha256(path: Path, most: int | None = None) -> str | None:
    """The SHA-256 of a regular file, or of its first `most` bytes; None where it cannot be read."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            if most is not None:
                return hashlib.sha256(file.read(most)).hexdigest()
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (UnreadableFile, OSError):
        return None
