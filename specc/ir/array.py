"""The type `Array` for annotations: a NumPy array of any element type and shape.

It stands apart from the rest of `ir`, which needs no NumPy: whoever annotates with it
has arrays in hand.
"""

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""Element types are data here (a spec's, a file's), so no annotation can name them."""
