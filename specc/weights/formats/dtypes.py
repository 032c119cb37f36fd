"""Element types of weights files: how we call them, how safetensors does, and NumPy's
dtype for each.
"""

import ml_dtypes
import numpy as np

from specc.ir.array import Array
from specc.text.diagnostic import fail

_TABLE: tuple[tuple[str, str, int, str | type | None], ...] = (
    ("bool", "BOOL", 8, "?"),
    ("u8", "U8", 8, "u1"),
    ("i8", "I8", 8, "i1"),
    ("u16", "U16", 16, "<u2"),
    ("i16", "I16", 16, "<i2"),
    ("u32", "U32", 32, "<u4"),
    ("i32", "I32", 32, "<i4"),
    ("u64", "U64", 64, "<u8"),
    ("i64", "I64", 64, "<i8"),
    ("f16", "F16", 16, "<f2"),
    ("bf16", "BF16", 16, ml_dtypes.bfloat16),
    ("f32", "F32", 32, "<f4"),
    ("f64", "F64", 64, "<f8"),
    ("c64", "C64", 64, "<c8"),
    ("f8_e4m3", "F8_E4M3", 8, ml_dtypes.float8_e4m3fn),
    ("f8_e5m2", "F8_E5M2", 8, ml_dtypes.float8_e5m2),
    ("f8_e4m3fnuz", "F8_E4M3FNUZ", 8, ml_dtypes.float8_e4m3fnuz),
    ("f8_e5m2fnuz", "F8_E5M2FNUZ", 8, ml_dtypes.float8_e5m2fnuz),
    ("f8_e8m0", "F8_E8M0", 8, ml_dtypes.float8_e8m0fnu),
    ("f6_e2m3", "F6_E2M3", 6, None),
    ("f6_e3m2", "F6_E3M2", 6, None),
    ("f4", "F4", 4, None),
)

BITS: dict[str, int] = {ours: bits for ours, _, bits, _ in _TABLE} | {"i4": 4}
"""Bits an element takes; of 4-bit whole numbers too, which no checkpoint holds."""

NUMPY: dict[str, np.dtype[np.generic]] = {
    ours: np.dtype(kind) for ours, _, _, kind in _TABLE if kind is not None
}
"""NumPy's dtype, little-endian, of those that have one. Packed types have none."""

FROM_FILE: dict[str, str] = {theirs: ours for ours, theirs, _, _ in _TABLE}
"""Our name of a safetensors dtype."""

FLOATS = frozenset(n for n in BITS if n.startswith(("f", "bf")))
"""The types whose values are rounded real numbers."""

NATIVE_ONLY = frozenset(
    ours
    for ours, _, _, kind in _TABLE
    if kind is not None and not isinstance(kind, str)
)
"""The types of ml_dtypes, which have no byte order of their own."""

# both ways round: no two of our types have one name or one NumPy dtype
_TO_FILE = {ours: theirs for theirs, ours in FROM_FILE.items()}
_BY_NAME = {kind.name: ours for ours, kind in NUMPY.items()}


def file_name_of(dtype: str) -> str:
    """The name safetensors has for a type."""
    return _TO_FILE[dtype]


def of_array(array: Array) -> str:
    """Our name for the element type of an array. Fails with E0508 if weights cannot be of it."""
    name = array.dtype.name
    if name not in _BY_NAME:
        fail(
            "E0508",
            f"weights cannot be stored as {name}",
            helps=["store them as f32, f16 or bf16"],
        )
    return _BY_NAME[name]
