"""Check input arrays against the declared types and shapes of a model; errors name the arrays.
Flush denormals to zero during a run.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import numpy as np

from specc.backend import TensorSpec
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc_onnx.execution_providers import format_quoted_names


def prepare_ort_input(
    name: str,
    slot: TensorSpec | None,
    required: Mapping[str, TensorSpec],
    inputs: Mapping[str, Array],
) -> Array:
    """Return input `name` as a contiguous array in native byte order. All inputs in `required` must
    be present. Raise E0907 for a wrong element type, and E0910 for an unknown or missing input.
    """
    if slot is None:
        helps = suggest_similar_name(
            name, required, f"expected one of {format_quoted_names(required)}"
        )
        raise_error("E0910", f"unknown model input `{escape_text(name)}`", helps=helps)
    if name not in inputs:
        raise_error(
            "E0910",
            f"missing model input `{name}`",
            helps=[f"pass {format_quoted_names(required)}"],
        )
    array = np.asarray(inputs[name])
    # big-endian arrays are valid; they are converted below
    if array.dtype.newbyteorder("=") != slot.dtype:
        raise_error(
            "E0907",
            f"the input `{name}` has element type {array.dtype}, expected {slot.dtype}",
            helps=[f"convert it first: array.astype({str(slot.dtype)!r})"],
        )
    # np.ascontiguousarray would add an axis to scalars
    return np.asarray(array, dtype=slot.dtype, order="C")


def check_input_lengths(slots: Mapping[str, TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Raise E0911 or E0912 if shapes contradict the declared shapes or each other."""
    bound: dict[str, tuple[int, str, int]] = {}
    for name, slot in slots.items():
        if name not in arrays:
            continue
        shape = arrays[name].shape
        if len(shape) != len(slot.shape):
            raise_error(
                "E0911",
                f"`{name}` has {len(shape)} axes, expected {len(slot.shape)}",
                notes=[_format_declared_type(slot)],
            )
        for axis, (declared, length) in enumerate(zip(slot.shape, shape, strict=True)):
            if isinstance(declared, int) and declared != length:
                raise_error(
                    "E0912",
                    f"`{name}` has length {length} along axis {axis + 1}, expected {declared}",
                    notes=[_format_declared_type(slot)],
                )
            if isinstance(declared, str):
                expected, other, other_axis = bound.setdefault(declared, (length, name, axis))
                if expected != length:
                    raise_error(
                        "E0912",
                        f"`{declared}` is {expected} in `{other}` but {length} in `{name}`",
                        notes=[
                            f"axis {other_axis + 1} of `{other}` and axis {axis + 1} of "
                            f"`{name}` must have equal lengths"
                        ],
                    )


def _format_declared_type(slot: TensorSpec) -> str:
    return f"`{slot.name}` is declared {slot.dtype}[{', '.join(map(str, slot.shape))}]"


FENV_BYTES = 256
"""Buffer size in bytes for C's `fenv_t`, which has at most 32 bytes on all platforms."""

FLUSH_CONTROL_BITS = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
"""Offset of the control register (MXCSR, FPCR) in Linux's `fenv_t`, and its flush-to-zero and
denormals-are-zero bits."""

FLUSH_DENORMALS_OPTION = "session.set_denormal_as_zero"
"""The session option that makes ONNX Runtime flush denormals on its own threads."""


class FloatMode:
    """Controls the flush-to-zero mode of the calling thread through C's `fenv_t`."""

    def __init__(self, offset: int, bits: int) -> None:
        library = ctypes.PyDLL(None)
        self._get, self._set = library.fegetenv, library.fesetenv
        self._offset, self._bits = offset, bits

    def flush(self) -> ctypes.Array[ctypes.c_char]:
        """Flush denormals to zero; return the previous mode."""
        former = ctypes.create_string_buffer(FENV_BYTES)
        self._get(former)
        flushed = ctypes.create_string_buffer(former.raw, FENV_BYTES)
        register = ctypes.c_uint32.from_buffer(flushed, self._offset)
        register.value |= self._bits
        self._set(flushed)
        return former

    def restore(self, former_mode: ctypes.Array[ctypes.c_char]) -> None:
        """Restore the previous mode."""
        self._set(former_mode)


@cache
def get_float_mode() -> FloatMode | None:
    """Return the flush-to-zero mode of this platform (tested once), or None if unsupported."""
    control = FLUSH_CONTROL_BITS.get(platform.machine())
    if control is None or not sys.platform.startswith("linux"):
        return None
    try:
        mode = FloatMode(*control)
    except (OSError, AttributeError):
        # The C library has no `fenv.h`.
        return None
    former = mode.flush()
    works = compute_half_min_normal() == 0
    mode.restore(former)
    return mode if works and compute_half_min_normal() > 0 else None


def compute_half_min_normal() -> float:
    """Compute half of the smallest normal float; the result is 0 if denormals are flushed."""
    return sys.float_info.min * float("0.5")


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormals on this thread inside the context."""
    if (mode := get_float_mode()) is None:
        yield
        return
    former = mode.flush()
    try:
        yield
    finally:
        mode.restore(former)
