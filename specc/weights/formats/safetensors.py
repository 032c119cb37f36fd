"""Read safetensors files, memory-mapped or in chunks, and write safetensors files."""

import hashlib
import json
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.atomic_write import write_file_atomically
from specc.io.file_type_detection import PRODUCER_NAME, identify_file_format
from specc.io.output_paths import WEIGHTS_OUTPUT, resolve_output_path
from specc.io.platform_and_signals import read_at_offset, read_into_buffer
from specc.io.safe_read import (
    Closeable,
    UnreadableFileError,
    escape_text,
    open_regular_file,
    suggest_similar_path,
)
from specc.ir.array import Array
from specc.weights.formats.safetensors_header import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    NATIVE_ORDER_DTYPES,
    NUMPY_DTYPES,
    TensorEntry,
    get_array_dtype,
    read_header,
)

FileIdentity: TypeAlias = tuple[int, int, int, int]
"""A file's device, inode, size and modification time."""
SPEC_LAYOUT_METADATA = {"specc.layout": "spec"}
"""File metadata that marks tensor names and shapes as those of the spec (no `load` rules)."""

CHUNK_BYTES = 1 << 20
"""Number of bytes read at once when a tensor is streamed: a multiple of every element size."""


class TensorFile(Closeable):
    """An open, validated safetensors file. The values of `transformed_tensors` are transformed when
    they are read.
    """

    transformed_tensors: Set[str] = frozenset()

    def __init__(
        self,
        path: Path,
        fd: int,
        tensors: dict[str, TensorEntry],
        metadata: dict[str, str],
        header: bytes,
    ) -> None:
        self.path = path
        self.tensors: Mapping[str, TensorEntry] = tensors
        self.metadata: Mapping[str, str] = metadata
        self.header_hash = hashlib.sha256(header).hexdigest()
        self._fd = fd
        self._identity = get_file_identity(os.fstat(fd))
        self.size = self._identity[2]

    def get_array(self, name: str) -> Array:
        """Return a tensor as a read-only view of the memory-mapped file, in its stored dtype."""
        entry = self.tensors[name]
        dtype = self._to_numpy(entry)
        self.check_unchanged()
        count = entry.nbytes // dtype.itemsize
        if count == 0:
            return np.zeros(entry.shape, dtype)
        flat = np.frombuffer(self._map_file, dtype, count, entry.offset)
        return _to_native_order(flat).reshape(entry.shape)

    def read_tensor(self, name: str) -> Array:
        """Return a copy of a tensor."""
        entry = self.tensors[name]
        dtype = self._to_numpy(entry)
        raw = np.empty(entry.nbytes, np.uint8)
        self._fill_buffer(entry.offset, memoryview(raw.data))
        self.check_unchanged()
        return _to_native_order(raw.view(dtype)).reshape(entry.shape)

    def iterate_chunks(
        self, name: str, offset: int = 0, nbytes: int | None = None
    ) -> Iterator[memoryview]:
        """Yield the stored bytes of a tensor, or `nbytes` bytes starting at `offset`. A chunk
        remains valid while the next chunk is read.
        """
        entry = self.tensors[name]
        count = entry.nbytes - offset if nbytes is None else nbytes
        assert 0 <= offset <= offset + count <= entry.nbytes, f"{name}: bytes outside the tensor"
        buffers = [memoryview(bytearray(min(CHUNK_BYTES, count))) for _ in range(2)]
        yield from self._read_blocks(entry, offset, count, buffers)

    def _read_blocks(
        self, entry: TensorEntry, offset: int, count: int, buffers: list[memoryview]
    ) -> Iterator[memoryview]:
        """Yield bytes of a tensor with double buffering: one buffer is filled while the other is
        read.
        """
        self.check_unchanged()
        for position in range(0, count, CHUNK_BYTES):
            buffers.reverse()
            buffer = buffers[0][: min(CHUNK_BYTES, count - position)]
            self._fill_buffer(entry.offset + offset + position, buffer)
            yield buffer
        self.check_unchanged()

    def iterate_all_bytes(self) -> Iterator[tuple[str, int, memoryview]]:
        """Yield all bytes in chunks, each with its tensor name ("" between tensors) and offset."""
        order = sorted(self.tensors.values(), key=lambda t: (t.offset, t.nbytes))
        # all tensors use the same pair of buffers, because allocating new memory is slow
        buffers = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(2)]
        position = 0
        for entry in [*order, TensorEntry("", "u8", (0,), self.size, 0)]:
            # yield the header, or the bytes between two tensors
            gap = TensorEntry("", "u8", (), position, entry.offset - position)
            for part in (gap, entry):
                offset = 0
                for chunk in self._read_blocks(part, 0, part.nbytes, buffers):
                    yield part.name, offset, chunk
                    offset += len(chunk)
            position = entry.end

    def check_unchanged(self) -> None:
        """Raise E0512 if the file has changed since its header was read."""
        if get_file_identity(os.fstat(self._fd)) != self._identity:
            self._raise_changed("it was modified")
        try:
            identity = get_file_identity(os.stat(self.path))
        except OSError:
            self._raise_changed("it no longer exists")
        if identity != self._identity:
            self._raise_changed("it was replaced")

    def close(self) -> None:
        """Close the file. Views returned by `get_array` remain valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fill_buffer(self, offset: int, view: memoryview) -> None:
        """Fill `view` with bytes starting at `offset`. Raise E0512 if the file ends too early."""
        while view:
            byte_count = read_into_buffer(self._fd, view, offset)
            if byte_count == 0:
                self._raise_changed("it became shorter")
            view, offset = view[byte_count:], offset + byte_count

    @cached_property
    def _map_file(self) -> mmap.mmap:
        return mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)

    def _to_numpy(self, entry: TensorEntry) -> np.dtype[np.generic]:
        if entry.dtype not in NUMPY_DTYPES:
            raise_error(
                "E0508",
                f"specc cannot read tensors of dtype {entry.dtype}",
                notes=[f"`{escape_text(entry.name)}` in `{escape_text(self.path)}` is {entry}"],
                helps=["use the checkpoint in f32, f16 or bf16"],
            )
        return NUMPY_DTYPES[entry.dtype]

    def _raise_changed(self, reason: str) -> NoReturn:
        raise_error(
            "E0512",
            f"`{escape_text(self.path)}` changed while it was read",
            notes=[reason, "nothing was written"],
            helps=["wait until the file is complete, then run the command again"],
        )


def open_weights_file(path: Path) -> int:
    """Open a regular file and return its descriptor. Raise E0802 if the file is unreadable."""
    try:
        return open_regular_file(path)
    except UnreadableFileError as error:
        helps = ["download the file again"] if path.is_symlink() else []
        helps += suggest_similar_path(
            path, lambda p: p.suffix == path.suffix and (path.suffix != "" or p.is_dir())
        )
        helps += ["check the path, which is relative to the working directory"]
        raise_error(
            "E0802",
            f"cannot read the weights `{escape_text(path)}`: {error.reason}",
            helps=helps[:1],
        )


def open_safetensors(path: str | Path) -> TensorFile:
    """Open a safetensors file and check its header. Raise E0502, E0506 or E0802 on failure."""
    path = Path(path)
    fd = open_weights_file(path)
    try:
        size = os.fstat(fd).st_size
        # a safetensors file begins with an 8-byte header length, followed by `{`
        first_bytes = read_at_offset(fd, 64, 0)
        if (
            int.from_bytes(first_bytes[:8], "little") > MAX_HEADER_BYTES
            or first_bytes[8:].lstrip()[:1] != b"{"
        ):
            check_file_signature(path, first_bytes, "a safetensors file")
        tensors, metadata, header = read_header(fd, size, str(path))
        return TensorFile(path, fd, {t.name: t for t in tensors}, metadata, header)
    except BaseException:
        os.close(fd)
        raise


def write_safetensors(
    path: str | Path,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
    *,
    force: bool = False,
) -> None:
    """Write a safetensors file atomically. The order of `tensors` does not affect the output.

    A file that specc did not write is replaced only with `force` (E0833). The metadata includes the
    producer's name, which `specc.io.file_type_detection` reads. Pass `SPEC_LAYOUT_METADATA` if the
    tensor names and shapes are those of the spec.

    Tensors are sorted by decreasing element width, then by name. Each tensor is thus aligned to its
    element width. The data section is aligned to 64 bytes.
    """
    names = sorted(tensors, key=lambda n: (-DTYPE_BITS[get_array_dtype(tensors[n])], n))
    header: dict[str, object] = {
        "__metadata__": dict(sorted({PRODUCER_NAME: "weights", **(metadata or {})}.items()))
    }
    offset = 0
    for name in names:
        array = tensors[name]
        header[name] = {
            "dtype": get_array_dtype(array).upper(),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % 64)
    output_path = resolve_output_path(path, WEIGHTS_OUTPUT, force=force)
    write_file_atomically(output_path, _iterate_file_chunks(text, (tensors[n] for n in names)))


def _iterate_file_chunks(header: bytes, arrays: Iterable[Array]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little") + header
    for array in arrays:
        if array.size:
            flat = np.ascontiguousarray(_to_native_order(array).reshape(-1))
            yield flat.view(np.uint8).data


def _to_native_order(array: Array) -> Array:
    """Convert between little-endian and native byte order, which does nothing on little-endian
    machines.

    NumPy dtypes have a byte order. ml_dtypes types always have native byte order.
    """
    if get_array_dtype(array) in NATIVE_ORDER_DTYPES:
        return array.byteswap() if sys.byteorder == "big" else array
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def get_file_identity(status: os.stat_result) -> FileIdentity:
    """Return a key that changes when the file is modified or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_file_signature(path: Path, first_bytes: bytes, expected: str) -> None:
    """Raise E0502 if `first_bytes`, the first bytes of a file, indicate another known format."""
    match = identify_file_format(first_bytes, escape_text(path.name))
    if match:
        format_name, help = match
        raise_error(
            "E0502", f"`{escape_text(path)}` is not {expected} but {format_name}", helps=[help]
        )
