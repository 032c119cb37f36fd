"""The reference backend: what every operation means, in float64 and the plainest NumPy there is."""

from specc_numpy import loop, nn, position, recurrent, tensor
from specc_numpy.run import run
from specc_numpy.table import evaluate

__all__ = ["evaluate", "loop", "nn", "position", "recurrent", "run", "tensor"]
