"""The built-in functions of the language. Importing this package registers all of them."""

from specc.frontend.builtins import (
    attention,
    attention_normalizers,
    conv,
    elementwise,
    indexing,
    nn,
    position,
    recurrent,
    registry,
    route,
    tensor,
)
from specc.frontend.builtins.registry import BUILTINS

__all__ = [
    "BUILTINS",
    "attention",
    "attention_normalizers",
    "conv",
    "elementwise",
    "indexing",
    "nn",
    "position",
    "recurrent",
    "registry",
    "route",
    "tensor",
]
