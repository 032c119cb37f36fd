"""ONNX external data: which weights stay in place and which are copied."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.io.safe_read import escape_text
from specc.weights.formats.safetensors_header import BITS
from specc.weights.parameter_values import ByteRange

ALIGNMENT = 64
PAGE = 4096
LARGE = 1 << 20
MOST_INLINE = (1 << 31) - (1 << 24)
"""Bytes of weights that fit in one ONNX file: protobuf ends at 2 GiB, and the graph
needs room too.
"""


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A tensor to be stored. `run`: the bytes already lie in a file as they are to be."""

    name: str
    dtype: str
    nbytes: int
    run: ByteRange | None = None


@dataclass(frozen=True, slots=True)
class ExternalLocation:
    """External data of ONNX: a path relative to the model's folder, and a range of bytes."""

    location: str
    offset: int
    length: int


@dataclass(frozen=True)
class ExternalDataPlan:
    """`linked` tensors stay where they are; `copied` ones go into a file of ours of
    `size` bytes.

    `reasons` says, for each weights file that was to be linked and cannot be, why not.
    """

    linked: Mapping[str, ExternalLocation]
    copied: Mapping[str, tuple[int, int]]
    size: int
    reasons: Mapping[Path, str]

    def places(self, location: str) -> dict[str, ExternalLocation]:
        """Every tensor's place, once the name of our own file is known."""
        own = {
            name: ExternalLocation(location, offset, length)
            for name, (offset, length) in self.copied.items()
        }
        return {**self.linked, **own}


def plan_external_data(
    pieces: Iterable[TensorPiece], folder: Path, *, link: bool, alignment: int = 1
) -> ExternalDataPlan:
    """Where each piece goes; `folder` is that of the model. With `link`, what can stay
    in its file does.

    `alignment` is what the execution provider needs of an offset, in bytes, beside
    whole elements; a piece of a foreign file at another offset is copied.
    """
    linked: dict[str, ExternalLocation] = {}
    copied: dict[str, tuple[int, int]] = {}
    answers: dict[Path, str | tuple[str]] = {}
    end = 0
    for piece in pieces:
        run = piece.run
        # nothing can be mapped of an empty tensor, so it is always ours
        if link and run is not None and piece.nbytes:
            if run.path not in answers:
                # asked once a file: it costs system calls, and there are many tensors
                answers[run.path] = link_location(run.path, folder)
            answer = answers[run.path]
            # What cannot be linked is not refused but copied; the reason is told once a
            # file.
            if not isinstance(answer, str) and run.offset % alignment == 0:
                linked[piece.name] = ExternalLocation(answer[0], run.offset, run.nbytes)
                continue
        # Pieces lie in the order of the parameters: the same model has the same bytes.
        start = align_offset(end, piece)
        copied[piece.name] = (start, piece.nbytes)
        end = start + piece.nbytes
    return ExternalDataPlan(
        linked, copied, end, {p: a for p, a in answers.items() if isinstance(a, str)}
    )


def link_location(path: Path, folder: Path) -> str | tuple[str]:
    """The location of a file, seen from a model's folder, as a tuple of one; or why not."""
    try:
        status = os.stat(path)
        file, home = os.path.realpath(path), os.path.realpath(folder)
    except OSError as error:
        return (
            f"`{escape_text(str(path))}` cannot be looked at: "
            f"{(error.strerror or 'unknown error').lower()}"
        )
    name = escape_text(str(path))
    if not stat.S_ISREG(status.st_mode):
        return f"`{name}` is not a regular file"
    # another name of the same file could lead out of the folder
    if status.st_nlink != 1:
        return f"`{name}` is one of {status.st_nlink} links to its file, which ONNX refuses to read"
    if os.path.commonpath([file, home]) != home:
        what = f"what `{name}` is a link to" if os.path.islink(path) else f"`{name}`"
        return f"{what} does not lie in the folder of the output or below it"
    location = os.path.relpath(file, home).replace(os.sep, "/")
    try:
        location.encode("utf-8")
    except UnicodeEncodeError:
        return f"`{name}` has a name that is not UTF-8"
    return (location,)


def align_offset(end: int, piece: TensorPiece) -> int:
    """The first good place for a piece at or behind `end`."""
    step = PAGE if piece.nbytes >= LARGE else ALIGNMENT
    return -(-end // step) * step


def can_store_inline(pieces: Iterable[TensorPiece]) -> bool:
    """Whether the weights can stand inside the ONNX file."""
    return sum(p.nbytes for p in pieces) <= MOST_INLINE


def count_tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    """The bytes a tensor takes."""
    count = 1
    for length in shape:
        count *= length
    return -(-count * BITS[dtype] // 8)


def external_data_chunks(
    plan: ExternalDataPlan, chunks: Callable[[str], Iterable[memoryview]]
) -> Iterator[bytes | memoryview]:
    """The bytes of our own file; `chunks` gives those of a tensor by name."""
    at = 0
    for name, (offset, length) in plan.copied.items():
        if offset > at:  # the gap that alignment leaves
            yield bytes(offset - at)
        at = offset
        for chunk in chunks(name):
            yield chunk
            at += len(chunk)
        assert at == offset + length, f"{name}: {at - offset} bytes where {length} were planned"
