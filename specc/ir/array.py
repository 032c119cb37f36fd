"""The type `Array` for annotations: a NumPy array of any element type and shape. Other modules of
`ir` do not import NumPy.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array of any element type. Element types are checked at run time."""
Arrays: TypeAlias = Mapping[str, Array]
"""Arrays by name (inputs, outputs or parameters)."""
