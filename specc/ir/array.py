"""The type `Array` for annotations: any NumPy array. The rest of `ir` does not import NumPy."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array of any element type. Element types are checked at run time."""
Arrays: TypeAlias = Mapping[str, Array]
"""Arrays by name (inputs, outputs or parameters)."""
