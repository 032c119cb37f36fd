"""Element types of what goes from one step to the next, as NumPy has them."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from specc.ir.array import Array
from specc.ir.derived import State

NUMPY: Mapping[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "bool": np.dtype(np.bool_),
}
"""NumPy's form of the element types that states and prompts have."""


def zeros_of(state: State, env: Mapping[str, int]) -> Array:
    """A state before the first row: zeros, without rows where it has an axis of them."""
    shape = [
        0 if n == state.rows else d.at(env) for n, d in enumerate(state.type.shape)
    ]
    return np.zeros(shape, NUMPY[state.type.dtype])
