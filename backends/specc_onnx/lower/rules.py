"""All lowering rules, and lowering by them. `lower` is complete once this module is imported."""

from specc_onnx.lower import (
    attention,
    conv,
    einsum,
    elementwise,
    loop,
    nn,
    position,
    quantized,
    recurrent,
    resize,
    route,
    rows,
    tensor,
)
from specc_onnx.lower.registry import lower, lower_nodes

__all__ = ["LOWERING_MODULES", "lower", "lower_nodes"]

LOWERING_MODULES = (
    attention,
    einsum,
    elementwise,
    conv,
    loop,
    nn,
    position,
    quantized,
    recurrent,
    resize,
    rows,
    route,
    tensor,
)
"""The modules that register lowering rules in `lower`, one family of ops each."""
