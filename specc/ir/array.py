"""The type `Array` for annotations. This is the only module of `specc.ir` that imports NumPy."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array of any element type. The element type is checked at run time."""
Arrays: TypeAlias = Mapping[str, Array]
"""Arrays, keyed by the name of an input, output or parameter."""
