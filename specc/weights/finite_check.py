"""Check weights for NaN and infinity."""

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array

_FIRST_NONFINITE = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7C,
}
"""The smallest bit pattern of a non-finite magnitude."""


def check_finite(block: Array, place: str) -> None:
    """Raise E0507 for NaN, infinity, or a bool other than 0 or 1."""
    if block.dtype.kind in "iu":
        return
    if block.dtype.kind == "b":
        # NumPy reads any nonzero byte as true, other readers only 1
        wrong = int((block.view(np.uint8) > 1).sum())
        what = "a truth value that is neither 0 nor 1"
    else:
        wrong = _not_finite(block) if _suspect(block) else 0
        what = "a value that is not a finite number"
    if wrong:
        raise_error(
            "E0507",
            f"the weights hold {what}",
            notes=[
                f"in {place}, {wrong} of the first {block.size} values checked",
                "nothing was written",
            ],
            helps=[
                "such a file is mostly a broken download or a training run that "
                "diverged; download it again"
            ],
        )


def _suspect(block: Array) -> bool:
    """Return whether a block of floats may contain non-finite values."""
    first = _FIRST_NONFINITE.get(block.dtype.name)
    if first is None or not block.size:
        # checking whether all are finite takes a fifth of counting them
        with np.errstate(invalid="ignore"):
            return not np.isfinite(block).all()
    signed, plain = (np.int16, np.uint16) if block.itemsize == 2 else (np.int8, np.uint8)
    # The sign is the highest bit: if set, a signed value is negative, and an unsigned one larger
    # than all without it.
    sign = 1 << (8 * block.itemsize - 1)
    return bool(block.view(signed).max() >= first or block.view(plain).max() >= sign + first)


def _not_finite(block: Array) -> int:
    """Count the non-finite values."""
    with np.errstate(invalid="ignore"):  # ml_dtypes raises a warning on NaN
        return int(block.size - np.isfinite(block).sum())
