"""The table `lower` of all lowering rules. Importing this module registers all rules."""

from specc_onnx.lower import (  # noqa: F401  each module registers the rules of a family of ops
    attention,
    conv,
    elementwise,
    indexing,
    loop,
    nn,
    quantized,
    recurrent,
    route,
    tensor,
)
from specc_onnx.lower.registry import lower, lower_nodes

__all__ = ["lower", "lower_nodes"]
