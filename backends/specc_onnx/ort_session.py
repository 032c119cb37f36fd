"""Open ONNX Runtime sessions on the requested execution provider.

Errors of ONNX Runtime are converted to diagnostics and not printed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto

from specc.backend import TensorSpec
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc_onnx.denormals_and_huge_pages import (
    FLUSH_DENORMALS_OPTION,
    SessionMemoryMappings,
    flush_denormals,
)
from specc_onnx.execution_providers import (
    FORBID_CPU_FALLBACK_OPTION,
    PROVIDER_OPTIONS,
    RECORD_PLACEMENT_OPTION,
    SILENT_LOG_LEVEL,
    can_report_node_placement,
    check_node_placement,
    get_ort_provider,
    raise_missing_provider_error,
    silence_provider_startup,
)
from specc_onnx.int8_saturation import avoid_int8_saturation, parse_model_proto
from specc_onnx.ort_model import OrtModel, raise_ort_error

NUMPY_DTYPES_BY_ORT_TYPE: dict[str, np.dtype[np.generic]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(bool)": np.dtype(np.bool_),
}
"""NumPy dtype of each ONNX Runtime tensor type."""

SPIN_DURATION_OPTION = ("session.intra_op.spin_duration_us", "1000")
"""The session option that sets how long idle threads spin. The spin time (in microseconds) is
longer than the time between two decode steps. By default, threads spin for tens of milliseconds and
slow down a package's other graphs. For example, an encoder that ran after a decode step took 40 ms
instead of 21 ms.
"""
CUDA_GRAPH_OPTION = {"enable_cuda_graph": "1"}
"""The option of the CUDA provider that captures a run as a CUDA graph and replays it."""


def open_serialized_ort_model(
    model: bytes,
    provider: str = "cpu",
    *,
    directory: Path | None = None,
    name: str = "the model",
    threads: int = 0,
    without_activation_quantization: bool = False,
    lengths: Mapping[str, int] | None = None,
    enable_cuda_graph: bool = False,
) -> OrtModel:
    """Open a serialized model, whose external weights are in `directory`. If
    `without_activation_quantization` is True, `MatMulNBits` does not quantize activations.
    `lengths` maps symbolic dimensions to static sizes. If `enable_cuda_graph` is True, runs are
    captured as a CUDA graph. Raise one of E0921 to E0923 on failure.
    """
    weight_directory = _format_directory(directory, name) if directory else ""
    options = _make_session_options(
        provider, threads, weight_directory, without_activation_quantization
    )
    for symbol, length in (lengths or {}).items():
        options.add_free_dimension_override_by_name(symbol, length)
    exact_model, weights = avoid_int8_saturation(model, provider, weight_directory, options)
    provider_options = CUDA_GRAPH_OPTION if enable_cuda_graph else {}
    return _create_session(exact_model, name, provider, options, provider_options, weights)


def _create_session(
    model: bytes,
    name: str,
    provider: str,
    options: onnxruntime.SessionOptions,
    provider_options: Mapping[str, str],
    converted_weights: Sequence[onnxruntime.OrtValue],
) -> OrtModel:
    ort_provider = get_ort_provider(provider)
    memory = SessionMemoryMappings()
    try:
        # The first session of a process changes the floating-point mode of the thread that creates
        # it.
        with silence_provider_startup(provider), flush_denormals(), memory.record_mappings():
            session = onnxruntime.InferenceSession(
                model,
                options,
                providers=[
                    (ort_provider, {**PROVIDER_OPTIONS.get(provider, {}), **provider_options})
                ],
                enable_fallback=0,
            )
    except Exception as error:  # the exceptions of ONNX Runtime have no common base class
        _raise_load_error(model, name, provider, error)
    if ort_provider not in session.get_providers():
        raise_missing_provider_error(
            provider,
            ["the provider is installed, but cannot be loaded; check the driver and its libraries"],
        )
    if provider != "cpu" and can_report_node_placement():
        check_node_placement(session, model, name, provider)
    return OrtModel(
        session=session,
        name=name,
        provider=provider,
        inputs=_make_tensor_specs(session.get_inputs()),
        outputs=_make_tensor_specs(session.get_outputs()),
        optional_inputs=_make_tensor_specs(session.get_overridable_initializers()),
        converted_weights=converted_weights,
        memory=memory if provider == "cpu" else SessionMemoryMappings(),
    )


def _raise_load_error(model: bytes, name: str, provider: str, error: Exception) -> NoReturn:
    """Raise E0923 with ONNX Runtime's exception `error` as a note. For a bf16 model on the CPU, the
    note says instead that the CPU does not support bf16.
    """
    title = f"ONNX Runtime cannot load `{escape_text(name)}` for {provider}"
    if provider == "cpu" and _has_bf16_values(model):
        raise_error(
            "E0923",
            title,
            notes=["the model computes in bf16, which the CPU kernels do not support"],
            helps=[
                "run it on a GPU: `--execution-provider cuda`",
                "compile it with `--target ort-cpu`, which stores bf16 and computes in f32",
            ],
        )
    raise_ort_error("E0923", title, error)


def _has_bf16_values(model: bytes) -> bool:
    """Return True if a model casts values to bf16."""
    proto = parse_model_proto(model)
    return proto is not None and any(
        node.op_type == "Cast" and any(a.i == TensorProto.BFLOAT16 for a in node.attribute)
        for node in proto.graph.node
    )


def _make_session_options(
    provider: str, threads: int, directory: str, without_activation_quantization: bool = False
) -> onnxruntime.SessionOptions:
    """Return the ONNX Runtime session options for an execution provider. `threads` is the number of
    threads, and `directory` contains the external weights ("" for none).
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT_LOG_LEVEL
    options.intra_op_num_threads = threads
    options.add_session_config_entry(FLUSH_DENORMALS_OPTION, "1")
    options.add_session_config_entry(*SPIN_DURATION_OPTION)
    if without_activation_quantization:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if directory:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", directory
        )
    if provider != "cpu":
        options.add_session_config_entry(
            RECORD_PLACEMENT_OPTION if can_report_node_placement() else FORBID_CPU_FALLBACK_OPTION,
            "1",
        )
    return options


def _format_directory(directory: Path, name: str) -> str:
    """Return a directory as a string for ONNX Runtime. Raise E0923 for an invalid UTF-8 path."""
    path = str(directory.resolve())
    try:
        path.encode()
    except UnicodeEncodeError:
        raise_error(
            "E0923",
            f"ONNX Runtime cannot load `{escape_text(name)}`: its directory name is not UTF-8",
            notes=[f"the directory is `{escape_text(path)}`"],
            helps=["rename the directory"],
        )
    return path


def _make_tensor_specs(values: Iterable[onnxruntime.NodeArg]) -> dict[str, TensorSpec]:
    unknown_dtype = np.dtype(np.void)
    return {
        v.name: TensorSpec(
            v.name, NUMPY_DTYPES_BY_ORT_TYPE.get(v.type, unknown_dtype), tuple(v.shape)
        )
        for v in values
    }
