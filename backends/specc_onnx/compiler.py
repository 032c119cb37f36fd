"""The members of `specc.backend.CompilerBackend`."""

from specc_onnx.emit.kv_buffers import find_kv_buffers
from specc_onnx.emit.onnx_graph import BuiltModel, build_model
from specc_onnx.generate.generation_model import build_generation_model
from specc_onnx.lower.onnx_targets import DEFAULT_OPSET, TARGETS, get_target
from specc_onnx.write.model_writer import write_model
from specc_onnx.write.package_writer import write_package

__all__ = [
    "DEFAULT_OPSET",
    "TARGETS",
    "BuiltModel",
    "build_generation_model",
    "build_model",
    "find_kv_buffers",
    "get_target",
    "write_model",
    "write_package",
]
