"""Flush denormals to zero on the calling thread.

A softmax over masked scores produces denormals, which are up to 100 times slower on CPUs; flushing
denormals does not change results, because every softmax sum also contains a term of 1. ONNX
Runtime's option `session.set_denormal_as_zero` applies to its thread pool but not to the calling
thread, which also runs kernels. This module sets the mode through C's `fenv.h`, if the platform has
this header, and restores the previous mode after every run, so that NumPy on the same thread keeps
its denormals.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

FENV_BYTES = 256
"""Buffer size in bytes for C's `fenv_t`, which has at most 32 bytes on all platforms."""

FLUSH_CONTROL_BITS = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
"""Offset of the control register (MXCSR, FPCR) in Linux's `fenv_t`, and its flush-to-zero and
denormals-are-zero bits."""

FLUSH_DENORMALS_OPTION = "session.set_denormal_as_zero"
"""The session option that makes ONNX Runtime flush denormals on the threads of its pool."""


class FloatMode:
    """Controls the flush-to-zero mode of the calling thread through C's `fenv_t`."""

    def __init__(self, offset: int, bits: int) -> None:
        library = ctypes.PyDLL(None)
        self._get, self._set = library.fegetenv, library.fesetenv
        self._offset, self._bits = offset, bits

    def flush(self) -> ctypes.Array[ctypes.c_char]:
        """Flush denormals to zero; return the previous mode."""
        previous_mode = ctypes.create_string_buffer(FENV_BYTES)
        self._get(previous_mode)
        mode = ctypes.create_string_buffer(previous_mode.raw, FENV_BYTES)
        register = ctypes.c_uint32.from_buffer(mode, self._offset)
        register.value |= self._bits
        self._set(mode)
        return previous_mode

    def restore(self, previous_mode: ctypes.Array[ctypes.c_char]) -> None:
        """Restore the mode that `flush` returned."""
        self._set(previous_mode)


@cache
def get_float_mode() -> FloatMode | None:
    """Return the flush-to-zero mode of this platform (probed once), or None if it is
    unsupported.
    """
    control = FLUSH_CONTROL_BITS.get(platform.machine())
    if control is None or not sys.platform.startswith("linux"):
        return None
    try:
        mode = FloatMode(*control)
    except (OSError, AttributeError):
        # The C library has no `fenv.h`.
        return None
    previous_mode = mode.flush()
    flushes_denormals = compute_half_min_normal() == 0
    mode.restore(previous_mode)
    return mode if flushes_denormals and compute_half_min_normal() > 0 else None


def compute_half_min_normal() -> float:
    """Compute half of the smallest normal float; the result is 0 if denormals are flushed."""
    return sys.float_info.min * float("0.5")


@contextmanager
def flush_denormals() -> Iterator[None]:
    """A context manager that flushes denormals on the current thread."""
    if (mode := get_float_mode()) is None:
        yield
        return
    previous_mode = mode.flush()
    try:
        yield
    finally:
        mode.restore(previous_mode)
