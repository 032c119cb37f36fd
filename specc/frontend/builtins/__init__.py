"""The built-in functions of the spec language, which are registered by importing this package."""

from specc.frontend.builtins import (  # noqa: F401  each module registers functions
    attention,
    attention_normalizers,
    conv,
    elementwise,
    indexing,
    interpolation,
    nn,
    position,
    recurrent,
    reductions,
    registry,
    route,
    tensor,
)
from specc.frontend.builtins.registry import BUILTINS

__all__ = ["BUILTINS"]
