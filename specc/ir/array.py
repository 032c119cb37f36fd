"""The type `Array` for annotations: a NumPy array of any element type and shape.

The rest of `ir` does not import NumPy; modules that use this type work with arrays.
"""

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""Element types are data here (a spec's, a file's), so no annotation can name them."""
