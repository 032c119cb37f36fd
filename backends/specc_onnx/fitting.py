"""Whether arrays are what a model declares, because ONNX Runtime does not look: it takes
big-endian arrays for little-endian ones and lets lengths that should be equal differ.
"""

from collections.abc import Mapping

import numpy as np

from specc.backend import Slot
from specc.files.read import shown
from specc.ir.array import Array
from specc.text.diagnostic import fail
from specc.text.suggest import suggest
from specc_onnx.providers import listed


def fitting(
    name: str, slot: Slot | None, known: Mapping[str, Slot], inputs: Mapping[str, Array]
) -> Array:
    """The input `name` as ONNX Runtime has to be given it: native byte order,
    contiguous. `known` are those that must be given.
    """
    if slot is None:
        helps = suggest(name, known, f"it takes {listed(known)}")
        fail("E0910", f"the model has no input called `{shown(name)}`", helps=helps)
    if name not in inputs:
        fail(
            "E0910",
            f"the input `{name}` is missing",
            helps=[f"give {listed(known)}"],
        )
    array = np.asarray(inputs[name])
    # big-endian numbers are the same numbers: they are turned around below
    if array.dtype.newbyteorder("=") != slot.dtype:
        fail(
            "E0907",
            f"the input `{name}` holds {array.dtype}, {slot.dtype} is expected",
            helps=[f"convert it first: array.astype({str(slot.dtype)!r})"],
        )
    # not ascontiguousarray, which makes an axis where there is none
    return np.asarray(array, dtype=slot.dtype, order="C")


def check_lengths(slots: Mapping[str, Slot], given: Mapping[str, Array]) -> None:
    """Lengths fit what is declared, and one symbol is one length everywhere. E0911 or
    E0912 where not.
    """
    found: dict[str, tuple[int, str, int]] = {}
    for name, slot in slots.items():
        if name not in given:
            continue
        shape = given[name].shape
        if len(shape) != len(slot.shape):
            fail(
                "E0911",
                f"`{name}` has {len(shape)} axes, {len(slot.shape)} are expected",
                notes=[_declared(slot)],
            )
        for axis, (wanted, length) in enumerate(zip(slot.shape, shape, strict=True)):
            if isinstance(wanted, int) and wanted != length:
                fail(
                    "E0912",
                    f"`{name}` has {length} rows along axis {axis + 1}, {wanted} are expected",
                    notes=[_declared(slot)],
                )
            if isinstance(wanted, str):
                first, where, at = found.setdefault(wanted, (length, name, axis))
                if first != length:
                    fail(
                        "E0912",
                        f"`{wanted}` is {first} in `{where}` but {length} in `{name}`",
                        notes=[
                            f"axis {at + 1} of `{where}` and axis {axis + 1} of "
                            f"`{name}` must be equally long"
                        ],
                    )


def _declared(slot: Slot) -> str:
    return f"`{slot.name}` is declared {slot.dtype}[{', '.join(map(str, slot.shape))}]"
