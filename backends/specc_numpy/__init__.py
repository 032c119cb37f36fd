"""Reference backend: evaluates every op in float64 with NumPy."""

from typing import TYPE_CHECKING

from specc_numpy import conv, indexing, interpolation, loop, nn, quantized, recurrent, tensor
from specc_numpy.numpy_interpreter import evaluate, evaluate_graph

__all__ = [
    "conv",
    "evaluate",
    "evaluate_graph",
    "indexing",
    "interpolation",
    "loop",
    "nn",
    "quantized",
    "recurrent",
    "tensor",
]

if TYPE_CHECKING:
    import specc_numpy
    from specc.backend import ReferenceBackend

    _REFERENCE: ReferenceBackend = specc_numpy
