"""Load and run models with ONNX Runtime on the requested execution provider.

Inputs are checked first (`specc_onnx.ort_input_check`). Errors of ONNX Runtime are converted to
diagnostics and not printed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto

from specc.backend import DeviceTensor, TensorSpec
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc_onnx.denormals_and_huge_pages import (
    FLUSH_DENORMALS_OPTION,
    SessionMemory,
    flush_denormals,
)
from specc_onnx.execution_providers import (
    FORBID_CPU_FALLBACK_OPTION,
    PROVIDER_DEVICES,
    PROVIDER_OPTIONS,
    RECORD_PLACEMENT_OPTION,
    SILENT_LOG_LEVEL,
    can_report_placement,
    check_node_placement,
    concat_on_device,
    copy_to_host,
    gather_on_device,
    get_ort_provider,
    raise_missing_provider,
    silence_provider_startup,
)
from specc_onnx.int8_saturation import avoid_saturation, read_graph
from specc_onnx.ort_input_check import check_input_lengths, prepare_ort_input

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
"""Spin time of idle threads: longer than the gap between two decode steps. By default, threads spin
for tens of milliseconds and slow down the other graphs of a package: an encoder run after a decode
step took 40 ms instead of 21 ms.
"""
CUDA_GRAPH_OPTION = {"enable_cuda_graph": "1"}
"""The CUDA provider's option that captures a run as a CUDA graph and replays it."""


@dataclass(frozen=True, kw_only=True)
class OrtModel:
    """An ONNX Runtime session for a model on one execution provider. `name` denotes the model in
    error messages; `optional_inputs` have default values; the session reads `converted_weights` in
    place, so they must live as long as the session.
    """

    session: onnxruntime.InferenceSession
    name: str
    provider: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    optional_inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    converted_weights: Sequence[onnxruntime.OrtValue] = ()
    memory: SessionMemory = field(default_factory=SessionMemory, repr=False, compare=False)

    def run(
        self, inputs: Mapping[str, Array], output_names: tuple[str, ...] = ()
    ) -> dict[str, Array]:
        """Run the model; return all outputs, or those in `output_names`. Raise E0907, E0910 to
        E0912 or E0924.
        """
        arrays = self.prepare_inputs(inputs)
        names = list(output_names or self.outputs)
        # `InferenceSession.run` does not support bfloat16 arrays
        specs = (*self.inputs.values(), *self.outputs.values())
        if any(spec.dtype == ml_dtypes.bfloat16 for spec in specs):
            tensors = self.run_on_device(arrays)
            return {name: self.copy_to_host(tensors[name]) for name in names}
        with self.guard_run():
            results = self.session.run(names, arrays)
        return dict(zip(names, results, strict=True))

    @contextmanager
    def guard_run(self) -> Iterator[None]:
        """A context manager that flushes denormals and converts exceptions of a run to E0924."""
        try:
            with flush_denormals():
                yield
            self.memory.count_run()
        except Exception as error:  # the exceptions of ONNX Runtime have no common base class
            _raise_ort_error("E0924", f"`{self.name}` failed while running", error)

    def run_interruptibly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model on a separate thread, so that Ctrl-C, which ONNX Runtime ignores, stops the
        run; return all outputs. Raise the errors of `run`.
        """
        arrays = self.prepare_inputs(inputs)
        options = onnxruntime.RunOptions()
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(self._run_session, arrays, options)
            try:
                results = future.result()
            except KeyboardInterrupt:
                options.terminate = True
                raise
        return dict(zip(self.outputs, results, strict=True))

    def copy_to_device(self, array: Array) -> DeviceTensor:
        """Return a copy of an array on the device of the execution provider."""
        array = np.asarray(array, order="C")
        tensor: DeviceTensor
        if array.dtype == ml_dtypes.bfloat16:
            # bfloat16 values are passed as their bits
            tensor = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                array.view(np.uint16), TensorProto.BFLOAT16
            )
            is_on_host = self.provider not in PROVIDER_DEVICES or not array.ndim
            return tensor if is_on_host else self.concat([tensor], 0)
        device = PROVIDER_DEVICES.get(self.provider, "cpu")
        tensor = onnxruntime.OrtValue.ortvalue_from_numpy(array, device)
        return tensor

    def concat(self, tensors: Sequence[DeviceTensor], axis: int) -> DeviceTensor:
        """Concatenate tensors along an axis on the device of the model."""
        result: DeviceTensor = concat_on_device(tensors, axis, self.provider)
        return result

    def copy_to_host(self, tensor: DeviceTensor) -> Array:
        """Copy a tensor to the host."""
        return copy_to_host(tensor, self.provider)

    def gather(self, tensor: DeviceTensor, axis: int, indices: Array) -> DeviceTensor:
        """Return the entries at `indices` (int64 [n]) along an axis, on the device of the model."""
        if self.provider not in PROVIDER_DEVICES:
            return self.copy_to_device(np.take(tensor.numpy(), indices, axis))
        result: DeviceTensor = gather_on_device(tensor, axis, indices, self.provider)
        return result

    def run_on_device(
        self,
        inputs: Mapping[str, Array | DeviceTensor],
        output_buffers: Mapping[str, DeviceTensor] | None = None,
    ) -> dict[str, DeviceTensor]:
        """Run on device tensors or arrays without input checks and return device tensors. Outputs
        in `output_buffers` are written to these buffers, which may also be inputs. Raise E0924 on
        failure.
        """
        return self.bind({}, output_buffers or {}).run(inputs)

    def bind(
        self, inputs: Mapping[str, DeviceTensor], output_buffers: Mapping[str, DeviceTensor]
    ) -> "OrtIOBindingRun":
        """Return a runner that binds `inputs` once for all runs and writes outputs to
        `output_buffers`.
        """
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in output_buffers.items():
            binding.bind_ortvalue_output(name, value)
        return OrtIOBindingRun(self, binding, output_buffers)

    def _run_session(
        self, arrays: Mapping[str, Array], options: onnxruntime.RunOptions
    ) -> list[Array]:
        """Run the session on the calling thread; return the values of all outputs."""
        with self.guard_run():
            results: list[Array] = self.session.run(list(self.outputs), arrays, options)
        return results

    def prepare_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs as contiguous arrays after checking names, element types and shapes.
        Raise E0907 or one of E0910 to E0912.
        """
        specs = {**self.optional_inputs, **self.inputs}
        arrays = {
            name: prepare_ort_input(name, specs.get(name), self.inputs, inputs)
            for name in (*self.inputs, *inputs)
        }
        check_input_lengths({**self.inputs, **self.optional_inputs}, arrays)
        return arrays


@dataclass(frozen=True)
class OrtIOBindingRun:
    """Repeated runs of a model in which some inputs and the `bound_outputs` are bound to device
    buffers.
    """

    model: OrtModel
    binding: onnxruntime.IOBinding
    bound_outputs: Mapping[str, DeviceTensor]

    def run(self, inputs: Mapping[str, Array | DeviceTensor]) -> dict[str, DeviceTensor]:
        """Run the model on `inputs` and the bound inputs; return all outputs, by name, on the
        device. Raise E0924 on failure.
        """
        model, binding = self.model, self.binding
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                value = model.copy_to_device(value)
            binding.bind_ortvalue_input(name, value)
        # outputs are bound again, so that a run does not overwrite the previous results
        unbound_outputs = [name for name in model.outputs if name not in self.bound_outputs]
        for name in unbound_outputs:
            binding.bind_output(name, PROVIDER_DEVICES.get(model.provider, "cpu"))
        with model.guard_run():
            model.session.run_with_iobinding(binding)
        if not unbound_outputs:
            return dict(self.bound_outputs)
        names = (*self.bound_outputs, *unbound_outputs)
        return dict(zip(names, binding.get_outputs(), strict=True))


def open_ort_model(path: Path, provider: str = "cpu", *, threads: int = 0) -> OrtModel:
    """Open a model file and its external weights with `threads` threads (0: ONNX Runtime's
    default). Raise one of E0921 to E0923 on failure.
    """
    directory = _format_directory(path.parent, path.name)
    options = _make_session_options(provider, threads, directory)
    model, weights = avoid_saturation(str(path), provider, directory, options)
    return _create_session(model, str(path), provider, options, {}, weights)


def open_ort_model_bytes(
    model: bytes,
    provider: str = "cpu",
    *,
    directory: Path | None = None,
    name: str = "the model",
    threads: int = 0,
    without_activation_quantization: bool = False,
    lengths: Mapping[str, int] | None = None,
    as_cuda_graph: bool = False,
) -> OrtModel:
    """Open a serialized model, whose external weights are in `directory`. If
    `without_activation_quantization`, `MatMulNBits` does not quantize activations; `lengths` maps
    symbolic dimensions to static sizes; if `as_cuda_graph`, runs are captured as a CUDA graph.
    Raise one of E0921 to E0923 on failure.
    """
    weight_directory = _format_directory(directory, name) if directory else ""
    options = _make_session_options(
        provider, threads, weight_directory, without_activation_quantization
    )
    for symbol, length in (lengths or {}).items():
        options.add_free_dimension_override_by_name(symbol, length)
    exact_model, weights = avoid_saturation(model, provider, weight_directory, options)
    provider_options = CUDA_GRAPH_OPTION if as_cuda_graph else {}
    return _create_session(exact_model, name, provider, options, provider_options, weights)


def _create_session(
    model: str | bytes,
    name: str,
    provider: str,
    options: onnxruntime.SessionOptions,
    provider_options: Mapping[str, str],
    converted_weights: Sequence[onnxruntime.OrtValue],
) -> OrtModel:
    ort_provider = get_ort_provider(provider)
    memory = SessionMemory()
    try:
        # The first session of a process changes the floating-point mode of its thread.
        with silence_provider_startup(provider), flush_denormals(), memory.record():
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
        raise_missing_provider(
            provider,
            ["the provider is installed, but cannot be loaded; check the driver and its libraries"],
        )
    if provider != "cpu" and can_report_placement():
        check_node_placement(session, model, name, provider)
    return OrtModel(
        session=session,
        name=name,
        provider=provider,
        inputs=_make_tensor_specs(session.get_inputs()),
        outputs=_make_tensor_specs(session.get_outputs()),
        optional_inputs=_make_tensor_specs(session.get_overridable_initializers()),
        converted_weights=converted_weights,
        memory=memory if provider == "cpu" else SessionMemory(),
    )


def _raise_load_error(model: str | bytes, name: str, provider: str, error: Exception) -> NoReturn:
    """Raise E0923 with the exception `error` of ONNX Runtime as a note, or, for a bf16 model on the
    CPU, with the explanation that the CPU does not support bf16.
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
    _raise_ort_error("E0923", title, error)


def _has_bf16_values(model: str | bytes) -> bool:
    """Return True if a model casts values to bf16."""
    proto = read_graph(model)
    return proto is not None and any(
        node.op_type == "Cast" and any(a.i == TensorProto.BFLOAT16 for a in node.attribute)
        for node in proto.graph.node
    )


def _make_session_options(
    provider: str, threads: int, directory: str, without_activation_quantization: bool = False
) -> onnxruntime.SessionOptions:
    """Return the session options for a provider: the number of threads, the directory of external
    weights ("" for none), logging, denormals, activation quantization and node placement.
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
            RECORD_PLACEMENT_OPTION if can_report_placement() else FORBID_CPU_FALLBACK_OPTION, "1"
        )
    return options


def _format_directory(directory: Path, name: str) -> str:
    """Return a directory as a string for ONNX Runtime. Raise E0923 if it is not valid UTF-8."""
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


UNCHANGED_HELP = "run `specc verify` to check that the model is unchanged"
"""Help text for other errors of ONNX Runtime."""
INDEX_HELP = "check that computed indices are at least 0 and less than the axis length"
"""Help text for a failed `GatherND` node, to which indexing such as `x[:, t]` is lowered."""


def _raise_ort_error(code: str, title: str, error: Exception) -> NoReturn:
    """Raise the error `code` with the message of the ONNX Runtime exception `error` as a note."""
    message = escape_text(" ".join(str(error).split()))[:600]
    raise_error(
        code,
        title,
        notes=[f"ONNX Runtime reports: {message}"],
        helps=[INDEX_HELP if "index found" in message else UNCHANGED_HELP],
    )
