"""The words of the language that are not written in it. Importing this package makes
them all known.
"""

from specc.elaborate.vocabulary import (
    attention,
    elementwise,
    layers,
    positions,
    recurrent,
    routing,
    rows,
    shapes,
    static,
    weighing,
    windows,
)
from specc.elaborate.vocabulary.registry import WORDS

__all__ = [
    "WORDS",
    "attention",
    "elementwise",
    "layers",
    "positions",
    "recurrent",
    "routing",
    "rows",
    "shapes",
    "static",
    "weighing",
    "windows",
]
