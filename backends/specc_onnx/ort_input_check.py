"""Check input arrays against a model's declared types and shapes, with errors that name them."""

from collections.abc import Mapping

import numpy as np

from specc.backend import TensorSlot
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc_onnx.execution_providers import format_quoted_names


def prepare_ort_input(
    name: str, slot: TensorSlot | None, known: Mapping[str, TensorSlot], inputs: Mapping[str, Array]
) -> Array:
    """Return input `name` as a contiguous native array; `known` inputs are required. Raise E0907 or
    E0910 for a wrong element type or name.
    """
    if slot is None:
        helps = suggest_similar_name(name, known, f"its inputs are {format_quoted_names(known)}")
        raise_error("E0910", f"the model has no input called `{escape_text(name)}`", helps=helps)
    if name not in inputs:
        raise_error(
            "E0910", f"the input `{name}` is missing", helps=[f"pass {format_quoted_names(known)}"]
        )
    array = np.asarray(inputs[name])
    # big-endian arrays are valid and converted below
    if array.dtype.newbyteorder("=") != slot.dtype:
        raise_error(
            "E0907",
            f"the input `{name}` has element type {array.dtype}, expected {slot.dtype}",
            helps=[f"convert it first: array.astype({str(slot.dtype)!r})"],
        )
    # not ascontiguousarray, which adds an axis to scalars
    return np.asarray(array, dtype=slot.dtype, order="C")


def check_input_lengths(slots: Mapping[str, TensorSlot], given: Mapping[str, Array]) -> None:
    """Raise E0911 or E0912 if shapes contradict the declared ones or each other."""
    found: dict[str, tuple[int, str, int]] = {}
    for name, slot in slots.items():
        if name not in given:
            continue
        shape = given[name].shape
        if len(shape) != len(slot.shape):
            raise_error(
                "E0911",
                f"`{name}` has {len(shape)} axes, expected {len(slot.shape)}",
                notes=[_format_declared_type(slot)],
            )
        for axis, (wanted, length) in enumerate(zip(slot.shape, shape, strict=True)):
            if isinstance(wanted, int) and wanted != length:
                raise_error(
                    "E0912",
                    f"`{name}` has length {length} along axis {axis + 1}, expected {wanted}",
                    notes=[_format_declared_type(slot)],
                )
            if isinstance(wanted, str):
                first, where, at = found.setdefault(wanted, (length, name, axis))
                if first != length:
                    raise_error(
                        "E0912",
                        f"`{wanted}` is {first} in `{where}` but {length} in `{name}`",
                        notes=[
                            f"axis {at + 1} of `{where}` and axis {axis + 1} of "
                            f"`{name}` must be equally long"
                        ],
                    )


def _format_declared_type(slot: TensorSlot) -> str:
    return f"`{slot.name}` is declared {slot.dtype}[{', '.join(map(str, slot.shape))}]"
