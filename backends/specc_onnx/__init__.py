"""The ONNX backend: lower IR to ONNX models for a target, verify, write and run them.

`specc.backend` defines the protocols. Names are imported on first access, because running a
model needs no lowering rules.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import specc_onnx
    from specc.backend import CompilerBackend, RunnerBackend
    from specc_onnx.compiler import (
        DEFAULT_OPSET,
        TARGETS,
        BuiltModel,
        build_generation_model,
        build_model,
        find_kv_buffers,
        get_target,
        write_model,
        write_package,
    )
    from specc_onnx.write.model_file import parse_model, read_model

    _COMPILER: CompilerBackend = specc_onnx
    _RUNNER: RunnerBackend = specc_onnx

__all__ = [
    "DEFAULT_OPSET",
    "TARGETS",
    "BuiltModel",
    "build_generation_model",
    "build_model",
    "find_kv_buffers",
    "get_target",
    "parse_model",
    "read_model",
    "write_model",
    "write_package",
]


def __getattr__(name: str) -> Any:
    """Import the module of a public name: the model reader or the compiler."""
    if name not in __all__:
        raise AttributeError(f"module 'specc_onnx' has no attribute {name!r}")
    if name in ("parse_model", "read_model"):
        from specc_onnx.write import model_file

        return vars(model_file)[name]
    from specc_onnx import compiler

    return vars(compiler)[name]
