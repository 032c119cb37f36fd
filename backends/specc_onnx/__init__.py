"""The ONNX backend: lower IR to ONNX models for a target, then verify, write and run these models.

The module `specc.backend` defines the protocols. Names are imported on first access, so that
running a model does not import the lowering rules.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import specc_onnx
    from specc.backend import CompilerBackend, RunnerBackend
    from specc_onnx.generate.generator_model import build_generation_model
    from specc_onnx.lower.kv_buffer_attention import find_in_place_kv_caches
    from specc_onnx.lower.onnx_targets import DEFAULT_OPSET, TARGETS, get_default_opset, get_target
    from specc_onnx.model_reader import parse_model, read_model
    from specc_onnx.write.model_writer import write_model
    from specc_onnx.write.onnx_graph import OnnxBuildResult, build_model
    from specc_onnx.write.package_writer import write_package

    _COMPILER: CompilerBackend = specc_onnx
    _RUNNER: RunnerBackend = specc_onnx

__all__ = [
    "DEFAULT_OPSET",
    "TARGETS",
    "OnnxBuildResult",
    "build_generation_model",
    "build_model",
    "find_in_place_kv_caches",
    "get_default_opset",
    "get_target",
    "parse_model",
    "read_model",
    "write_model",
    "write_package",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first access, so that reading a model imports no compiler code."""
    if name not in __all__:
        raise AttributeError(f"module 'specc_onnx' has no attribute {name!r}")
    if name in ("parse_model", "read_model"):
        from specc_onnx import model_reader

        return vars(model_reader)[name]
    from specc_onnx.generate import generator_model
    from specc_onnx.lower import kv_buffer_attention, onnx_targets
    from specc_onnx.write import model_writer, onnx_graph, package_writer

    compiler = (onnx_targets, kv_buffer_attention, onnx_graph, generator_model, model_writer)
    return next(vars(m)[name] for m in (*compiler, package_writer) if name in vars(m))
