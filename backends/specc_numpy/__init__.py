"""The reference backend: what every operation means, in float64 and the plainest NumPy there is."""

from typing import TYPE_CHECKING

from specc_numpy import (
    conv,
    loop,
    nn,
    position,
    quantized,
    recurrent,
    route,
    rows,
    tensor,
)
from specc_numpy.run import run
from specc_numpy.table import evaluate

__all__ = [
    "conv",
    "evaluate",
    "loop",
    "nn",
    "position",
    "quantized",
    "recurrent",
    "route",
    "rows",
    "run",
    "tensor",
]

if TYPE_CHECKING:
    import specc_numpy
    from specc.backend import Reference

    _REFERENCE: Reference = specc_numpy
