"""Plan ONNX external data. Each weight remains in its checkpoint file, to which the model refers,
or is copied to a new file.
"""

import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.io.safe_read import escape_text
from specc.weights.formats.safetensors_header import DTYPE_BITS
from specc.weights.parameter_sources import ByteRange

ALIGNMENT = 64
PAGE_BYTES = 4096
PAGE_ALIGNED_BYTES = 1 << 20
MAX_INLINE = (1 << 31) - (1 << 24)
"""Maximum size in bytes of weights inside an ONNX file: protobuf messages are limited to 2 GiB."""


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A tensor to store. `byte_range` is its location in an existing file, or None."""

    name: str
    dtype: str
    nbytes: int
    byte_range: ByteRange | None = None


@dataclass(frozen=True, slots=True)
class ExternalDataLocation:
    """The location of ONNX external data: a path relative to the model, and a byte range."""

    location: str
    offset: int
    length: int


@dataclass(frozen=True)
class ExternalDataPlan:
    """The location of each tensor. `linked_tensors` remain in their checkpoint files.
    `copied_tensors` maps all other tensors to their offset and size in a new file of `copied_bytes`
    bytes. `copy_reasons` maps each checkpoint file that must be copied to the reason.
    """

    linked_tensors: Mapping[str, ExternalDataLocation]
    copied_tensors: Mapping[str, tuple[int, int]]
    copied_bytes: int
    copy_reasons: Mapping[Path, str]

    def get_tensor_locations(self, file_name: str) -> dict[str, ExternalDataLocation]:
        """Return the location of every tensor. `file_name` is the external data file."""
        copied = {
            name: ExternalDataLocation(file_name, offset, length)
            for name, (offset, length) in self.copied_tensors.items()
        }
        return {**self.linked_tensors, **copied}


def plan_external_data(
    tensors: Iterable[ExternalTensor], directory: Path, *, link: bool, alignment: int = 1
) -> ExternalDataPlan:
    """Plan the location of each tensor in `tensors`. `directory` is the directory of the model.

    If `link` is True, tensors remain in their checkpoint files where possible. `alignment` is the
    offset alignment in bytes that the execution provider requires, in addition to the element size.
    Tensors that are not aligned in their checkpoint file are copied.
    """
    linked: dict[str, ExternalDataLocation] = {}
    copied: dict[str, tuple[int, int]] = {}
    link_results: dict[Path, str | tuple[str]] = {}
    end = 0
    for piece in tensors:
        stored = piece.byte_range
        # an empty tensor cannot be memory-mapped, so it is always copied
        if link and stored is not None and piece.nbytes:
            if stored.path not in link_results:
                # check each file only once, because the check makes system calls and there are many
                # tensors
                link_results[stored.path] = resolve_external_path(stored.path, directory)
            link_result = link_results[stored.path]
            # Copy tensors that cannot be linked. The reason is reported once per file.
            if not isinstance(link_result, str) and stored.offset % alignment == 0:
                linked[piece.name] = ExternalDataLocation(
                    link_result[0], stored.offset, stored.nbytes
                )
                continue
        # The tensors are in parameter order, so the output is deterministic.
        start = align_offset(end, piece)
        copied[piece.name] = (start, piece.nbytes)
        end = start + piece.nbytes
    return ExternalDataPlan(
        linked, copied, end, {p: a for p, a in link_results.items() if isinstance(a, str)}
    )


def resolve_external_path(path: Path, directory: Path) -> str | tuple[str]:
    """Return a 1-tuple with the file's path relative to the model, or the reason why the model
    cannot refer to the file.
    """
    try:
        status = os.stat(path)
        file, root = os.path.realpath(path), os.path.realpath(directory)
    except OSError as error:
        return (
            f"`{escape_text(path)}` cannot be read: {(error.strerror or 'unknown error').lower()}"
        )
    name = escape_text(path)
    if not stat.S_ISREG(status.st_mode):
        return f"`{name}` is not a regular file"
    # ONNX rejects external data with several hard links, because a link could be outside the
    # directory
    if status.st_nlink != 1:
        return (
            f"`{name}` is one of {status.st_nlink} hard links to a file, which ONNX does not load"
        )
    if os.path.commonpath([file, root]) != root:
        subject = f"the target of the link `{name}`" if os.path.islink(path) else f"`{name}`"
        return f"{subject} is outside the output directory"
    location = os.path.relpath(file, root).replace(os.sep, "/")
    try:
        location.encode("utf-8")
    except UnicodeEncodeError:
        return f"`{name}` has a name that is not UTF-8"
    return (location,)


def align_offset(end: int, tensor: ExternalTensor) -> int:
    """Return the first offset >= `end` aligned to 64 bytes, or to a page for a large `tensor`."""
    alignment = PAGE_BYTES if tensor.nbytes >= PAGE_ALIGNED_BYTES else ALIGNMENT
    return -(-end // alignment) * alignment


def can_store_tensors_inline(tensors: Iterable[ExternalTensor]) -> bool:
    """Return True if the tensors fit into the ONNX file. Protobuf limits the size of this file."""
    return sum(p.nbytes for p in tensors) <= MAX_INLINE


def count_tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    """Return the size of a tensor in bytes."""
    return -(-math.prod(shape) * DTYPE_BITS[dtype] // 8)


def iterate_external_data(
    plan: ExternalDataPlan, read_chunks: Callable[[str], Iterable[memoryview]]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the external data file. `chunks(name)` yields the bytes of a tensor."""
    position = 0
    for name, (offset, length) in plan.copied_tensors.items():
        if offset > position:  # yield padding, because the next tensor must be aligned
            yield bytes(offset - position)
        position = offset
        for chunk in read_chunks(name):
            yield chunk
            position += len(chunk)
        assert position == offset + length, f"{name}: {position - offset} bytes, expected {length}"
