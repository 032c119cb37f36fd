"""Reference backend: evaluates every op in float64 with NumPy."""

from typing import TYPE_CHECKING

from specc_numpy import conv, indexing, interpolation, loop, nn, quantized, recurrent, tensor  # noqa: F401
from specc_numpy.numpy_interpreter import evaluate, evaluate_graph

__all__ = ["evaluate", "evaluate_graph"]

if TYPE_CHECKING:
    import specc_numpy
    from specc.backend import ReferenceBackend

    _REFERENCE: ReferenceBackend = specc_numpy
