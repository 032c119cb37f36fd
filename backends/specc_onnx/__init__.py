"""The ONNX backend: lower IR to ONNX models for a target, verify, write and run them.

What passes in and out is defined in `specc.backend`.
"""

from typing import TYPE_CHECKING

from specc_onnx.emit.kv_buffers import find_kv_buffers
from specc_onnx.emit.onnx_graph import BuiltModel, build_model
from specc_onnx.generate.generation_model import build_generation_model
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
from specc_onnx.lower.onnx_targets import DEFAULT_OPSET, TARGETS, get_target
from specc_onnx.lower.registry import lower
from specc_onnx.write.model_file import parse_model, read_model
from specc_onnx.write.model_writer import write_model
from specc_onnx.write.package_writer import write_package

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

__all__ = [
    "DEFAULT_OPSET",
    "RULES",
    "TARGETS",
    "BuiltModel",
    "build_generation_model",
    "build_model",
    "find_kv_buffers",
    "get_target",
    "lower",
    "parse_model",
    "read_model",
    "write_model",
    "write_package",
]

if TYPE_CHECKING:
    import specc_onnx
    from specc.backend import CompilerBackend, RunnerBackend

    _COMPILER: CompilerBackend = specc_onnx
    _RUNNER: RunnerBackend = specc_onnx
