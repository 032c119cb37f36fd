"""The type `Array` for annotations: a NumPy array of any element type and shape.

The rest of `ir` does not import NumPy; modules that use this type work with arrays.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""An array of any element type: types are data here, not annotations."""
Arrays: TypeAlias = Mapping[str, Array]
"""Arrays by name: inputs, outputs or parameters."""
