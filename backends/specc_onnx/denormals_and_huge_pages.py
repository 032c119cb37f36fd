"""Speed up runs on the CPU by flushing denormals to zero on the calling thread, and by moving a
session's memory to huge pages.

A softmax over masked scores produces denormals, which are up to 100 times slower on CPUs. Flushing
denormals does not change the results of a softmax, because every sum also contains a term of 1.
ONNX Runtime's option `session.set_denormal_as_zero` applies to the threads of the session's thread
pool, but not to the calling thread, which also runs kernels. This module sets the flush-to-zero
mode through C's `fenv.h` if the platform has this header. The module restores the previous mode
after every run, so NumPy on the same thread keeps denormals.

A decode step reads all packed weights once, so address translation takes a large part of the step's
time. ONNX Runtime allocates each weight separately, so the operating system does not use huge pages
for weights. With huge pages (Linux 6.1), a decode step of a Llama with 134 M parameters takes 0.76
to 0.80 times as long. Moving 100 MB takes 0.03 to 0.4 s, depending on memory fragmentation, so a
background thread moves the memory after `RUNS_BEFORE_MOVE` runs. On systems other than Linux, this
function has no effect.
"""

import ctypes
import itertools
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

FENV_BYTES = 256
"""Size in bytes of a buffer for C's `fenv_t`, which has at most 32 bytes on all platforms."""

FLUSH_CONTROL_BITS = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
"""For each CPU architecture, the offset of the floating-point control register (MXCSR or FPCR) in
Linux's `fenv_t`, and the bits of the register that flush results to zero and treat denormals as
zero.
"""

FLUSH_DENORMALS_OPTION = "session.set_denormal_as_zero"
"""The session option that makes ONNX Runtime flush denormals on the threads of its pool."""


class FlushToZeroMode:
    """The flush-to-zero mode of the calling thread, set through C's `fenv_t`."""

    def __init__(self, offset: int, bits: int) -> None:
        library = ctypes.PyDLL(None)
        self._get, self._set = library.fegetenv, library.fesetenv
        self._offset, self._bits = offset, bits

    def enable(self) -> ctypes.Array[ctypes.c_char]:
        """Flush denormals to zero. Return the previous mode."""
        previous_mode = ctypes.create_string_buffer(FENV_BYTES)
        self._get(previous_mode)
        mode = ctypes.create_string_buffer(previous_mode.raw, FENV_BYTES)
        register = ctypes.c_uint32.from_buffer(mode, self._offset)
        register.value |= self._bits
        self._set(mode)
        return previous_mode

    def restore(self, previous_mode: ctypes.Array[ctypes.c_char]) -> None:
        """Restore the mode that `enable` returned."""
        self._set(previous_mode)


@cache
def get_flush_to_zero_mode() -> FlushToZeroMode | None:
    """Return the flush-to-zero mode of this platform (probed once), or None if unsupported."""
    control = FLUSH_CONTROL_BITS.get(platform.machine())
    if control is None or not sys.platform.startswith("linux"):
        return None
    try:
        mode = FlushToZeroMode(*control)
    except (OSError, AttributeError):
        # The C library has no `fenv.h`.
        return None
    previous_mode = mode.enable()
    flushes_denormals = is_flush_to_zero_enabled()
    mode.restore(previous_mode)
    return mode if flushes_denormals and not is_flush_to_zero_enabled() else None


def is_flush_to_zero_enabled() -> bool:
    """Return True if denormals are flushed on the current thread."""
    return sys.float_info.min * float("0.5") == 0


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormals on the current thread inside a `with` block."""
    if (mode := get_flush_to_zero_mode()) is None:
        yield
        return
    previous_mode = mode.enable()
    try:
        yield
    finally:
        mode.restore(previous_mode)


MAPPINGS_FILE = Path("/proc/self/maps")
MODE_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGE_BYTES = 2 << 20
RUNS_BEFORE_MOVE = 128
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25

Interval: TypeAlias = tuple[int, int]
"""The start address and the end address (exclusive) of a memory mapping."""


class SessionMemoryMappings:
    """The memory mappings that were created with a session: a sorted list of disjoint intervals."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self._runs = itertools.count(1)

    @contextmanager
    def record_mappings(self) -> Iterator[None]:
        """Record the memory mappings that are created inside a `with` block."""
        previous_mappings = list_anonymous_mappings()
        yield
        self.intervals = align_to_huge_pages(
            subtract_intervals(list_anonymous_mappings(), previous_mappings)
        )

    def record_run(self) -> None:
        """Count a run. A thread that moves memory to huge pages starts after `RUNS_BEFORE_MOVE`
        runs.
        """
        if self.intervals and next(self._runs) == RUNS_BEFORE_MOVE:
            threading.Thread(target=self.move_to_huge_pages, daemon=True).start()

    def move_to_huge_pages(self) -> None:
        """Ask the kernel to move the session's memory to huge pages."""
        library = ctypes.CDLL(None)
        for start, end in self.intervals:
            for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
                # older kernels reject MADV_COLLAPSE, but move the memory to huge pages later, in
                # the background
                library.madvise(
                    ctypes.c_size_t(start), ctypes.c_size_t(end - start), ctypes.c_int(advice)
                )


def list_anonymous_mappings() -> list[Interval]:
    """Return this process's private, writable, anonymous memory mappings in ascending order. Return
    [] if transparent huge pages are unsupported or disabled.
    """
    if not sys.platform.startswith("linux"):
        return []
    try:
        if "[never]" in MODE_FILE.read_text():
            return []
        lines = [line.split() for line in MAPPINGS_FILE.read_text().splitlines()]
    except OSError:
        return []
    return [
        (int(start, 16), int(end, 16))
        for (start, _, end), (_, mode, *_, file) in (
            (fields[0].partition("-"), (*fields, "")[:6]) for fields in lines
        )
        if mode == "rw-p" and file in ("", "[heap]")
    ]


def subtract_intervals(intervals: list[Interval], excluded: list[Interval]) -> list[Interval]:
    """Return the parts of `intervals` outside `excluded`. Both lists are sorted and disjoint."""
    remaining = []
    for start, end in intervals:
        for excluded_start, excluded_end in excluded:
            if excluded_end <= start or excluded_start >= end:
                continue
            if excluded_start > start:
                remaining.append((start, excluded_start))
            start = max(start, excluded_end)
        if start < end:
            remaining.append((start, end))
    return remaining


def align_to_huge_pages(intervals: list[Interval]) -> list[Interval]:
    """Return the parts of `intervals` that consist of complete huge pages."""
    aligned_intervals = (
        (-(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)
        for start, end in intervals
    )
    return [(start, end) for start, end in aligned_intervals if start < end]
