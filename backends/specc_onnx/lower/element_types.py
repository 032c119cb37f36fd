"""Element types: names in the IR, in NumPy and in ONNX.

`f8_e4m3` and `f8_e5m2` occur only as stored weights; the graph widens them before it
computes.
"""

from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
    "u8": np.dtype(np.uint8),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""NumPy dtype of each element type."""

ONNX_TYPE_CODES: dict[str, int] = {
    name: helper.np_dtype_to_tensor_dtype(dtype) for name, dtype in NUMPY_DTYPES.items()
}
"""ONNX data type of each element type."""

DTYPES_BY_CODE: dict[int, str] = {code: name for name, code in ONNX_TYPE_CODES.items()}
"""Element type of each ONNX data type."""

FLOAT_DTYPES = frozenset({"f32", "f64", "f16", "bf16"})
"""Floating-point types that a graph computes with."""

HALF_DTYPES = frozenset({"f16", "bf16"})
"""The 16-bit floating-point types, in which no long sum is accumulated."""
