"""Identify file types by content: files written by specc, and files with a misleading name, such as
LFS pointers, HTML pages and pickles.
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
"""Pattern of the file name ending of a checkpoint shard."""

_WEB_PAGE = (
    "a web page: the download returned a page instead of the file",
    "download it again, from the link to the raw file; gated files require a login",
)
_PICKLE_DESCRIPTION = "a Python pickle, which can run code when it is loaded"
_CONVERT_HELP = "convert it to safetensors: {convert}"
_SAFETENSORS_HELP = "specc reads weights from safetensors files"
_NPZ_CONVERSION_COMMAND = (
    'python -c "import sys, numpy, safetensors.numpy as s; '
    's.save_file(dict(numpy.load(sys.argv[2])), sys.argv[1])" {target} {source}'
)
_NPZ_START = re.compile(rb"PK\x03\x04.{0,250}?\.npy", re.DOTALL)
"""Pattern of the first bytes of an .npz file, a zip archive whose first member is an array."""
_ONNX_START = re.compile(rb"\x08[\x03-\x1f]\x12[\x01-\x40][ -~]")
"""Pattern of the first bytes of an ONNX model: the IR version and the producer name."""
_FOREIGN_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer: the file itself was not downloaded",
        "run `git lfs pull` in the repository of the file",
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
"""Shell command that converts a PyTorch checkpoint of one or several files to safetensors. The
command loads the files with `weights_only`, so that no code in them is run."""


def is_gguf_path(path: str | Path) -> bool:
    """Return True if a path has the suffix of a GGUF file, the format of llama.cpp."""
    return Path(path).suffix.lower() == ".gguf"


def identify_file_format(head: bytes, name: str = "FILE") -> tuple[str, str] | None:
    """Identify a file of another format by its first bytes. Return a description of the format and
    a suggested fix, or None if the format is unknown.
    """
    if _ONNX_START.match(head):
        return "an ONNX model", "pass the spec or the checkpoint that it was compiled from"
    if _NPZ_START.match(head):
        command = format_conversion_command(name, command=_NPZ_CONVERSION_COMMAND)
        return "a NumPy archive (.npz)", _CONVERT_HELP.format(convert=command)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")[:64].lower()
    for signature, description, fix in _FOREIGN_SIGNATURES:
        if start.startswith(signature):
            return description, fix.replace("{convert}", format_conversion_command(name))
    return None


def format_conversion_command(*names: str, command: str = CONVERSION_COMMAND) -> str:
    """Return the command that converts a checkpoint (by default of PyTorch) to safetensors."""
    stem = names[0].rsplit(".", 1)[0] if "." in names[0] else names[0]
    target_stem = stem if len(names) == 1 else _SHARD_SUFFIX.sub("", stem)
    sources = " ".join(map(shlex.quote, names))
    target = shlex.quote(f"{target_stem}.safetensors")
    return command.replace("{source}", sources).replace("{target}", target)


PRODUCER_NAME = "specc"
SIDECAR_FILE_SUFFIXES = (".data", ".tokenizer.json")
"""Suffixes of a model's sidecar files, whose names contain the model name and a content hash."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PRODUCER, _METADATA = 2, 14
"""Protobuf field numbers in an ONNX model: producer name and metadata."""
_GENERATOR_COMMENT, _MAX_COMMENT_OFFSET = b"<!-- specc -->", 2048
"""The comment that specc writes near the start of drawings, and the number of bytes to search."""
_MAX_HEADER_BYTES = 100_000_000
"""Maximum header size that the safetensors format allows."""
_MAX_FIELDS = 10_000
"""Maximum number of parsed protobuf fields. The limit is needed because files of other formats may
resemble a long sequence of fields.
"""


def _make_content_test(test: Callable[[mmap.mmap], bool]) -> Callable[[Path], bool]:
    """Wrap a test of a file's content so that it returns False for an unreadable file."""

    @wraps(test)
    def has_content(path: Path) -> bool:
        return _has_content(path, test)

    return has_content


@_make_content_test
def is_specc_model(data: mmap.mmap) -> bool:
    """Return True if a file is an ONNX model with a specc manifest."""
    has_producer = has_manifest = False
    key = PRODUCER_NAME.encode()
    for number, start, end in islice(_iterate_protobuf_fields(data), _MAX_FIELDS):
        has_producer |= number == _PRODUCER and data[start:end] == key
        has_manifest |= (
            number == _METADATA
            and data[start : start + 2 + len(key)] == bytes([10, len(key)]) + key
        )
    return has_producer and has_manifest


@_make_content_test
def is_specc_png(data: mmap.mmap) -> bool:
    """Return True if a file is a PNG image written by specc."""
    offset = len(_PNG_SIGNATURE)
    while data[: len(_PNG_SIGNATURE)] == _PNG_SIGNATURE and offset + 8 <= len(data):
        length = int.from_bytes(data[offset : offset + 4], "big")
        chunk_type, body_offset = data[offset + 4 : offset + 8], offset + 8
        if (
            chunk_type == b"tEXt"
            and data[body_offset : body_offset + length] == b"Software\0" + PRODUCER_NAME.encode()
        ):
            return True
        offset = body_offset + length + 4
    return False


@_make_content_test
def _is_specc_page(data: mmap.mmap) -> bool:
    """Return True if an SVG or HTML page starts with the generator comment of specc."""
    head = data[:_MAX_COMMENT_OFFSET]
    return head.startswith((b"<svg ", b"<!doctype html>")) and _GENERATOR_COMMENT in head


def is_specc_drawing(path: Path) -> bool:
    """Return True if a file is an SVG, HTML page or PNG written by specc."""
    return is_specc_png(path) or _is_specc_page(path)


@_make_content_test
def is_specc_npz(data: mmap.mmap) -> bool:
    """Return True if a file contains arrays that `specc run -o` wrote."""
    return data[:2] == b"PK" and data[-7:] == b"\x05\x00" + PRODUCER_NAME.encode()


@_make_content_test
def is_specc_safetensors(data: mmap.mmap) -> bool:
    """Return True if a file is a safetensors file written by specc."""
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, len(data) - 8) or data[8:9] != b"{":
        return False
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__")
    return isinstance(metadata, dict) and PRODUCER_NAME in metadata


@_make_content_test
def is_package_index(data: mmap.mmap) -> bool:
    """Return True if a file is the index of a package, even if it is corrupted."""
    return data[:1] == b"{" and data.find(b'"specc":') > 0 and data.find(b'"graphs":') > 0


def find_unused_sidecar_files(path: Path) -> list[str]:
    """Return the sidecar files of the model `path` that no other model in its directory uses."""
    name_pattern = re.compile(
        rf".*-([0-9a-f]{{16}})(?:{'|'.join(map(re.escape, SIDECAR_FILE_SUFFIXES))})", re.DOTALL
    )
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    candidates = [
        (n, m[1])
        for n in names
        if (m := name_pattern.fullmatch(n)) and n.isprintable() and _is_referenced(path, n)
    ]
    written_names = [
        name
        for name, digest in candidates
        if (compute_file_sha256(path.parent / name) or "").startswith(digest)
    ]
    return filter_unreferenced_files(path.parent, written_names, excluded_models={path.name})


def filter_unreferenced_files(
    directory: Path, names: Collection[str], *, excluded_models: Collection[str]
) -> list[str]:
    """Return those of the file names `names` that no model in the directory uses. The models in
    `excluded_models` are not considered.
    """
    unreferenced = list(names)
    try:
        # List the directory only if necessary, because it may be large.
        file_names = os.listdir(directory) if unreferenced else []
    except OSError:
        return []
    for model_path in [directory / n for n in file_names if n not in {*excluded_models, *names}]:
        if model_path.suffix.lower() == ".onnx" or is_specc_model(model_path):
            unreferenced = [name for name in unreferenced if not _is_referenced(model_path, name)]
    return unreferenced


def _has_content(path: Path, test: Callable[[mmap.mmap], bool]) -> bool:
    """Return True if the content of a regular file passes `test`."""
    try:
        with (
            os.fdopen(open_regular_file(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return test(data)
    except (UnreadableFileError, OSError, ValueError, IndexError, RecursionError):
        return False


def _is_referenced(path: Path, name: str) -> bool:
    """Return True if the content of a model file contains the file name `name`."""
    return _has_content(path, lambda data: data.find(name.encode()) >= 0)


def _iterate_protobuf_fields(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Yield the field number, start and end of the value of each top-level protobuf field. Raise
    ValueError or IndexError if the data is corrupted.
    """
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        start, wire_type = offset, tag & 7
        if wire_type == 2:
            length, start = _read_varint(data, offset)
            offset = start + length
        elif wire_type == 0:
            _, offset = _read_varint(data, offset)
        else:
            offset += {1: 8, 5: 4}.get(wire_type, len(data))
        if offset > len(data):
            raise ValueError("truncated")
        yield tag >> 3, start, offset


def _read_varint(data: mmap.mmap, offset: int) -> tuple[int, int]:
    """Read a protobuf varint of at most ten bytes. Return the value and the offset of its end."""
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
    raise ValueError("no number")
