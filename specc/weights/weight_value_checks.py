"""Check weights for NaN and infinity, and convert weights to another dtype."""

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.ops.quantized import QuantizationFormat
from specc.weights.formats.safetensors_header import FLOAT_DTYPES, NUMPY_DTYPES

_FIRST_NONFINITE = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7C,
}
"""The smallest bit pattern (without the sign bit) of a non-finite value, keyed by dtype."""


def check_finite(block: Array, location: str) -> None:
    """Raise E0507 if a block of values contains NaN, infinity, or a boolean other than 0 and 1.
    `location` is the name of the weight in the message.
    """
    if block.dtype.kind in "iu":
        return
    if block.dtype.kind == "b":
        # NumPy reads any nonzero byte as True, but other programs accept only 1 as true
        invalid_count = int((block.view(np.uint8) > 1).sum())
        description = "a boolean that is neither 0 nor 1"
    else:
        invalid_count, description = 0, "a NaN or infinite value"
        if _has_possible_nonfinite(block):
            invalid_count = _count_nonfinite(block)
    if invalid_count:
        raise_error(
            "E0507",
            f"the weights contain {description}",
            notes=[
                f"in {location}, {invalid_count} of the first {block.size} values checked",
                "nothing was written",
            ],
            helps=[
                "usual causes are an incomplete download and a diverged training run; "
                "download the file again"
            ],
        )


def _has_possible_nonfinite(block: Array) -> bool:
    """Return True if a block of floats may contain non-finite values."""
    first = _FIRST_NONFINITE.get(block.dtype.name)
    if first is None or not block.size:
        # this check is five times faster than counting non-finite values
        with np.errstate(invalid="ignore"):
            return not np.isfinite(block).all()
    signed, unsigned = (np.int16, np.uint16) if block.itemsize == 2 else (np.int8, np.uint8)
    # The highest bit of a float is the sign bit. If the sign bit is set, the value is negative as a
    # signed integer, and larger than all values without the sign bit as an unsigned integer.
    sign = 1 << (8 * block.itemsize - 1)
    return bool(block.view(signed).max() >= first or block.view(unsigned).max() >= sign + first)


def _count_nonfinite(block: Array) -> int:
    """Return the number of non-finite values in a block."""
    with np.errstate(invalid="ignore"):  # ml_dtypes emits a warning for NaN
        return int(block.size - np.isfinite(block).sum())


WIDENING_CASTS = {("bfloat16", "f32"), ("float16", "f32"), ("float32", "f64")}
"""Pairs of a dtype and a wider dtype that can represent all values of the narrower dtype."""


CHECKED_VALUES = "values checked, the largest"
"""Default description of the checked values in error messages, which append the largest value."""


def convert_dtype(
    block: Array, dtype: str, location: str, *fixes: str, description: str = CHECKED_VALUES
) -> Array:
    """Convert a block of values to `dtype`. Raise E0517 if a value is out of range.

    In the message, `location` names the weight, `fixes` are suggestions in addition to another
    dtype, and `description` describes the values.
    """
    numpy_dtype = NUMPY_DTYPES[dtype]
    if block.dtype == numpy_dtype:
        return block
    if (block.dtype.name, dtype) in WIDENING_CASTS:
        return block.astype(numpy_dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        result = block.astype(numpy_dtype)
        # floats may be rounded but must not overflow, whereas integers must be converted exactly
        if dtype in FLOAT_DTYPES:
            is_changed = ~np.isfinite(result)
        else:
            is_changed = result.astype(block.dtype) != block
    if is_changed.any():
        largest = float(np.abs(block[is_changed].astype(np.float64)).max())
        raise_error(
            "E0517",
            f"the weights have values out of range for {dtype}",
            notes=[
                f"in {location}, {int(is_changed.sum())} of {block.size} {description} {largest:g}"
            ],
            helps=[*fixes, "compile with another --dtype"],
        )
    return result


def check_quantized_weight_range(
    name: str, relative_error: float, format: QuantizationFormat, in_channels: int, scales: Array
) -> None:
    """Raise E0517 if the relative quantization error `relative_error` is so large that most values
    of the weight became zero. Also raise E0517 if integer products of activations and weights,
    multiplied by their scales, overflow float32.
    """
    largest = float(np.abs(scales).max(initial=0)) * 127
    reason = ""
    if relative_error > MAX_QUANTIZATION_ERROR:
        reason = "most of its values are below 1.5e-36, and are quantized to 0"
    elif format.rounding in ("row", "tensor") and largest * 127 * in_channels > MAX_FLOAT32:
        reason = f"scaled integer products overflow float32: its largest value is {largest:.1e}"
    if reason:
        raise_error(
            "E0517",
            f"`{escape_text(name)}` is out of range for int{format.bits}",
            notes=[reason],
            helps=[f"exclude it from quantization: `--quantize-exclude '{escape_text(name)}'`"],
        )


MAX_QUANTIZATION_ERROR = 0.9
"""Maximum relative quantization error. At 4 bits, typical relative errors are at most 0.3."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)


def to_little_endian_bytes(block: Array) -> memoryview:
    """Return the values of a block as little-endian bytes."""
    little = (
        block.astype(block.dtype.newbyteorder("<"), copy=False)
        if block.dtype.kind in "fiuc"
        else block
    )
    return little.view(np.uint8).data
