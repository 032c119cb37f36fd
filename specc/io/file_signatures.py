"""Recognize files by content: files written by specc, and LFS pointers, HTML pages or pickles with
misleading names.
"""

import json
import mmap
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from itertools import islice
from pathlib import Path

from specc.io.safe_read import UnreadableFileError, compute_file_sha256, open_regular_file

_SHARD_SUFFIX = re.compile(r"-\d+-of-\d+$")
"""The suffix of the files of a sharded checkpoint."""

_WEB_PAGE = (
    "a web page: the download returned a page instead of the file",
    "download it again, from the link to the raw file; gated files require a login",
)
_PICKLE_DESCRIPTION = "a Python pickle, which can run code when it is loaded"
_CONVERT_HELP = "convert it to safetensors: {convert}"
_SAFETENSORS_HELP = "specc reads weights from safetensors files"
_FOREIGN_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer: the file itself was not downloaded",
        "run `git lfs pull` in the repository it came from",
    ),
    (b"<!doctype", *_WEB_PAGE),
    (b"<html", *_WEB_PAGE),
    (
        b"pk\x03\x04",
        "a zip archive, probably a PyTorch checkpoint that torch.save wrote",
        _CONVERT_HELP,
    ),
    *((bytes([0x80, protocol]), _PICKLE_DESCRIPTION, _CONVERT_HELP) for protocol in (2, 3, 4, 5)),
    (b"\x1f\x8b", "a gzip archive", "unpack it first: gunzip FILE"),
    (b"\x93numpy", "a NumPy array", _SAFETENSORS_HELP),
    (b"\x89hdf", "an HDF5 file", _SAFETENSORS_HELP),
    (b"gguf", "a GGUF file", "give it a name that ends in .gguf"),
)

CONVERSION_COMMAND = (
    'python -c "import sys, torch, safetensors.torch as s; '
    "s.save_file({k: v.clone().contiguous() for f in sys.argv[2:] "
    "for k, v in torch.load(f, weights_only=True).items()}, "
    'sys.argv[1])" {target} {source}'
)
"""Python code that converts a PyTorch checkpoint of one or several files to safetensors, with
`weights_only`."""


def is_gguf_path(path: str | Path) -> bool:
    """Return True if a path names a GGUF file, the format of llama.cpp."""
    return Path(path).suffix.lower() == ".gguf"


def identify_foreign_file(head: bytes, name: str = "FILE") -> tuple[str, str] | None:
    """Identify a file of another format by its first bytes. Return a description of the format and
    a fix, or None if the format is unknown.
    """
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")[:64].lower()
    for mark, what, help in _FOREIGN_SIGNATURES:
        if start.startswith(mark):
            return what, help.replace("{convert}", format_conversion_command(name))
    return None


def format_conversion_command(*names: str) -> str:
    """Return the command that converts a file or the shards of a checkpoint."""
    stem = names[0].rsplit(".", 1)[0] if "." in names[0] else names[0]
    whole = stem if len(names) == 1 else _SHARD_SUFFIX.sub("", stem)
    sources = " ".join(map(shlex.quote, names))
    target = shlex.quote(f"{whole}.safetensors")
    return CONVERSION_COMMAND.replace("{source}", sources).replace("{target}", target)


PRODUCER_NAME = "specc"
SIDECAR_FILE_SUFFIXES = (".data", ".tokenizer.json")
"""Suffixes of files next to a model; they follow its name and their content hash."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PRODUCER, _METADATA = 2, 14
"""Protobuf field numbers of a model: producer name and metadata."""
_MADE_BY, _HEAD = b"<!-- specc -->", 2048
"""The text that identifies drawings and pages written by specc, and the number of bytes that are
searched for it."""
_LONGEST_HEADER = 100_000_000
_MAX_FIELDS = 10_000
"""Maximum number of parsed protobuf fields, because other files may appear to contain many
fields."""


def _make_content_test(test: Callable[[mmap.mmap], bool]) -> Callable[[Path], bool]:
    """Return a function that applies `test` to the content of a file and returns False for
    unreadable files.
    """

    @wraps(test)
    def has_content(path: Path) -> bool:
        return _has_content(path, test)

    return has_content


@_make_content_test
def is_specc_model(data: mmap.mmap) -> bool:
    """Return True if a file is an ONNX model with a specc manifest."""
    made = described = False
    key = PRODUCER_NAME.encode()
    for number, begin, end in islice(_iterate_protobuf_fields(data), _MAX_FIELDS):
        made |= number == _PRODUCER and data[begin:end] == key
        described |= (
            number == _METADATA
            and data[begin : begin + 2 + len(key)] == bytes([10, len(key)]) + key
        )
    return made and described


@_make_content_test
def is_specc_png(data: mmap.mmap) -> bool:
    """Return True if a file is a PNG written by specc."""
    at = len(_PNG_SIGNATURE)
    while data[: len(_PNG_SIGNATURE)] == _PNG_SIGNATURE and at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], at + 8
        if kind == b"tEXt" and data[body : body + length] == b"Software\0" + PRODUCER_NAME.encode():
            return True
        at = body + length + 4
    return False


@_make_content_test
def _is_specc_page(data: mmap.mmap) -> bool:
    """Return True if an SVG or HTML page starts with the generator comment of specc."""
    head = data[:_HEAD]
    return head.startswith((b"<svg ", b"<!doctype html>")) and _MADE_BY in head


def is_specc_drawing(path: Path) -> bool:
    """Return True if a file is an SVG, HTML page or PNG written by specc."""
    return is_specc_png(path) or _is_specc_page(path)


@_make_content_test
def is_specc_npz(data: mmap.mmap) -> bool:
    """Return True if a file contains arrays written by `run -o`."""
    return data[:2] == b"PK" and data[-7:] == b"\x05\x00" + PRODUCER_NAME.encode()


@_make_content_test
def is_specc_safetensors(data: mmap.mmap) -> bool:
    """Return True if a file is a safetensors file written by specc."""
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(_LONGEST_HEADER, len(data) - 8) or data[8:9] != b"{":
        return False
    about = json.loads(data[8 : 8 + length]).get("__metadata__")
    return isinstance(about, dict) and PRODUCER_NAME in about


@_make_content_test
def is_package_index(data: mmap.mmap) -> bool:
    """Return True if a file is the index of a package, even if it is corrupted."""
    return data[:1] == b"{" and data.find(b'"specc":') > 0 and data.find(b'"graphs":') > 0


def find_unused_sidecar_files(path: Path) -> list[str]:
    """Return the sidecar files of the model `path` that no other model in the directory uses."""
    shape = re.compile(
        rf".*-([0-9a-f]{{16}})(?:{'|'.join(map(re.escape, SIDECAR_FILE_SUFFIXES))})", re.DOTALL
    )
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    found = [
        (n, m[1])
        for n in names
        if (m := shape.fullmatch(n)) and n.isprintable() and _is_referenced(path, n)
    ]
    ours = [
        name
        for name, digest in found
        if (compute_file_sha256(path.parent / name) or "").startswith(digest)
    ]
    return filter_unreferenced_files(path.parent, ours, excluded_models={path.name})


def filter_unreferenced_files(
    directory: Path, names: Collection[str], *, excluded_models: Collection[str]
) -> list[str]:
    """Return the files in `names` that no model in the directory uses, ignoring the models in
    `excluded_models`.
    """
    left = list(names)
    try:
        # The directory, which may be large, is listed only if necessary.
        file_names = os.listdir(directory) if left else []
    except OSError:
        return []
    for other in [directory / n for n in file_names if n not in {*excluded_models, *names}]:
        if other.suffix.lower() == ".onnx" or is_specc_model(other):
            left = [name for name in left if not _is_referenced(other, name)]
    return left


def _has_content(path: Path, test: Callable[[mmap.mmap], bool]) -> bool:
    """Return True if the content of a regular file passes a test."""
    try:
        with (
            os.fdopen(open_regular_file(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return test(data)
    except (UnreadableFileError, OSError, ValueError, IndexError, RecursionError):
        return False


def _is_referenced(path: Path, name: str) -> bool:
    return _has_content(path, lambda data: data.find(name.encode()) >= 0)


def _iterate_protobuf_fields(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Yield the number and byte range of each protobuf field. Raise ValueError or IndexError if the
    data is corrupted.
    """
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        begin, kind = at, tag & 7
        if kind == 2:
            length, begin = _read_varint(data, at)
            at = begin + length
        elif kind == 0:
            _, at = _read_varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(kind, len(data))
        if at > len(data):
            raise ValueError("truncated")
        yield tag >> 3, begin, at


def _read_varint(data: mmap.mmap, offset: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
    raise ValueError("no number")
