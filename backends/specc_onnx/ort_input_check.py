"""Check input arrays against the declared types and shapes of a model; errors name the input."""

from collections.abc import Mapping

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
    # `np.ascontiguousarray` converts scalars to 1-D arrays
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
