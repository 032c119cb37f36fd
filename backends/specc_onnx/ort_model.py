"""Run a model with ONNX Runtime on checked arrays, on device tensors, or with static shapes and
preallocated buffers.

The messages of failed input checks name the input. Errors of ONNX Runtime are converted to
diagnostics. A CUDA graph, which ONNX Runtime captures for models without subgraphs, requires static
shapes and preallocated buffers. With static shapes, ONNX Runtime also constant-folds shape
computations.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import NoReturn

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto

from specc.backend import DeviceTensor, TensorSpec
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc_onnx.denormals_and_huge_pages import SessionMemoryMappings, flush_denormals
from specc_onnx.execution_providers import (
    PROVIDER_DEVICES,
    concat_on_device,
    copy_to_host,
    format_quoted_names,
    gather_on_device,
)


@dataclass(frozen=True, kw_only=True)
class OrtModel:
    """An ONNX Runtime session for a model on one execution provider. `name` is the model name in
    error messages. `optional_inputs` have default values. `converted_weights` must live as long as
    the session, because the session reads them in place.
    """

    session: onnxruntime.InferenceSession
    name: str
    provider: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    optional_inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    converted_weights: Sequence[onnxruntime.OrtValue] = ()
    memory: SessionMemoryMappings = field(
        default_factory=SessionMemoryMappings, repr=False, compare=False
    )

    def run(
        self, inputs: Mapping[str, Array], output_names: tuple[str, ...] = ()
    ) -> dict[str, Array]:
        """Run the model and return outputs by name (default: all outputs). Raise E0907, E0910 to
        E0912 or E0924.
        """
        arrays = self.prepare_inputs(inputs)
        names = list(output_names or self.outputs)
        # `InferenceSession.run` does not accept or return bfloat16 arrays
        specs = (*self.inputs.values(), *self.outputs.values())
        if any(spec.dtype == ml_dtypes.bfloat16 for spec in specs):
            tensors = self.run_on_device(arrays)
            return {name: self.copy_to_host(tensors[name]) for name in names}
        with self.guard_session_run():
            results = self.session.run(names, arrays)
        return dict(zip(names, results, strict=True))

    @contextmanager
    def guard_session_run(self) -> Iterator[None]:
        """Flush denormals and convert exceptions to E0924 in a `with` block that runs the model."""
        try:
            with flush_denormals():
                yield
            self.memory.record_run()
        except Exception as error:  # the exceptions of ONNX Runtime have no common base class
            raise_ort_error("E0924", f"`{self.name}` failed while running", error)

    def run_interruptibly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model on a separate thread, so that Ctrl-C stops the run (ONNX Runtime ignores
        Ctrl-C). Return all outputs. Raise the same errors as `run`.
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
            # bfloat16 values are passed as unsigned integers with the same bits
            tensor = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                array.view(np.uint16), TensorProto.BFLOAT16
            )
            is_on_host = self.provider not in PROVIDER_DEVICES or not array.ndim
            return tensor if is_on_host else self.concat([tensor], 0)
        device = PROVIDER_DEVICES.get(self.provider, "cpu")
        tensor = onnxruntime.OrtValue.ortvalue_from_numpy(array, device)
        return tensor

    def concat(self, tensors: Sequence[DeviceTensor], axis: int) -> DeviceTensor:
        """Concatenate tensors along an axis, on the device of the model."""
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
        """Run the model on device tensors or arrays without checking the inputs, and return device
        tensors. Outputs in `output_buffers` are written to these buffers, which may also be inputs.
        Raise E0924 on failure.
        """
        return self.bind({}, output_buffers or {}).run(inputs)

    def bind(
        self, inputs: Mapping[str, DeviceTensor], output_buffers: Mapping[str, DeviceTensor]
    ) -> "OrtIOBindingModel":
        """Return a runner that binds `inputs` once and writes outputs to `output_buffers`."""
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in output_buffers.items():
            binding.bind_ortvalue_output(name, value)
        return OrtIOBindingModel(self, binding, output_buffers)

    def _run_session(
        self, arrays: Mapping[str, Array], options: onnxruntime.RunOptions
    ) -> list[Array]:
        """Run the session on the calling thread and return all outputs."""
        with self.guard_session_run():
            results: list[Array] = self.session.run(list(self.outputs), arrays, options)
        return results

    def prepare_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return checked inputs as contiguous arrays. Raise E0907 or one of E0910 to E0912."""
        specs = {**self.optional_inputs, **self.inputs}
        arrays = {
            name: prepare_ort_input(name, specs.get(name), self.inputs, inputs)
            for name in (*self.inputs, *inputs)
        }
        check_input_shapes({**self.inputs, **self.optional_inputs}, arrays)
        return arrays


@dataclass(frozen=True)
class OrtIOBindingModel:
    """A model with the outputs `bound_outputs` and some inputs bound to device buffers."""

    model: OrtModel
    binding: onnxruntime.IOBinding
    bound_outputs: Mapping[str, DeviceTensor]

    def run(self, inputs: Mapping[str, Array | DeviceTensor]) -> dict[str, DeviceTensor]:
        """Run the model on `inputs` and the bound inputs. Return device tensors. Raise E0924."""
        model, binding = self.model, self.binding
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                value = model.copy_to_device(value)
            binding.bind_ortvalue_input(name, value)
        # bind the outputs again, so that a run does not overwrite the previous results
        unbound_outputs = [name for name in model.outputs if name not in self.bound_outputs]
        for name in unbound_outputs:
            binding.bind_output(name, PROVIDER_DEVICES.get(model.provider, "cpu"))
        with model.guard_session_run():
            model.session.run_with_iobinding(binding)
        if not unbound_outputs:
            return dict(self.bound_outputs)
        names = (*self.bound_outputs, *unbound_outputs)
        return dict(zip(names, binding.get_outputs(), strict=True))


UNCHANGED_HELP = "run `specc verify` to check that the model is unchanged"
"""The help text for ONNX Runtime errors that have no more specific help text."""
INDEX_HELP = "check that computed indices are at least 0 and less than the axis length"
"""The help text for a failed `GatherND` node, to which indexing such as `x[:, t]` is lowered."""


def raise_ort_error(code: str, title: str, error: Exception) -> NoReturn:
    """Raise the error `code`, with the message of ONNX Runtime's exception `error` as a note."""
    message = escape_text(" ".join(str(error).split()))[:600]
    raise_error(
        code,
        title,
        notes=[f"ONNX Runtime reports: {message}"],
        helps=[INDEX_HELP if "index found" in message else UNCHANGED_HELP],
    )


def prepare_ort_input(
    name: str,
    spec: TensorSpec | None,
    required_inputs: Mapping[str, TensorSpec],
    inputs: Mapping[str, Array],
) -> Array:
    """Return the input `name` of `inputs` as a contiguous array in native byte order. `spec` is the
    input's declared type, or None if the model has no such input. Messages list `required_inputs`.
    Raise E0907 for a wrong element type, and E0910 for an unknown or missing input.
    """
    if spec is None:
        helps = suggest_similar_name(
            name, required_inputs, f"expected one of {format_quoted_names(required_inputs)}"
        )
        raise_error("E0910", f"unknown model input `{escape_text(name)}`", helps=helps)
    if name not in inputs:
        raise_error(
            "E0910",
            f"missing model input `{name}`",
            helps=[f"pass {format_quoted_names(required_inputs)}"],
        )
    array = np.asarray(inputs[name])
    # Big-endian arrays are valid; `np.asarray` converts them to native byte order below.
    if array.dtype.newbyteorder("=") != spec.dtype:
        raise_error(
            "E0907",
            f"the input `{name}` has element type {array.dtype}, expected {spec.dtype}",
            helps=[f"convert it first: array.astype({str(spec.dtype)!r})"],
        )
    # `np.ascontiguousarray` converts scalars to 1-D arrays
    return np.asarray(array, dtype=spec.dtype, order="C")


def check_input_shapes(specs: Mapping[str, TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Raise E0911 if an array does not have its declared rank. Raise E0912 if an axis size differs
    from the declared size, or from another axis with the same symbolic dimension.
    """
    lengths_by_symbol: dict[str, tuple[int, str, int]] = {}
    for name, spec in specs.items():
        if name not in arrays:
            continue
        shape = arrays[name].shape
        if len(shape) != len(spec.shape):
            raise_error(
                "E0911",
                f"`{name}` has {len(shape)} axes, expected {len(spec.shape)}",
                notes=[_format_declared_type(spec)],
            )
        for axis, (dim, length) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(dim, int) and dim != length:
                raise_error(
                    "E0912",
                    f"`{name}` has length {length} along axis {axis}, expected {dim}",
                    notes=[_format_declared_type(spec)],
                )
            if isinstance(dim, str):
                other_length, other_name, other_axis = lengths_by_symbol.setdefault(
                    dim, (length, name, axis)
                )
                if other_length != length:
                    raise_error(
                        "E0912",
                        f"`{dim}` is {other_length} in `{other_name}` but {length} in `{name}`",
                        notes=[
                            f"axis {other_axis + 1} of `{other_name}` and axis {axis + 1} of "
                            f"`{name}` must have equal lengths"
                        ],
                    )


def _format_declared_type(spec: TensorSpec) -> str:
    return f"`{spec.name}` is declared {spec.dtype}[{', '.join(map(str, spec.shape))}]"


CONTROL_FLOW_OPS = frozenset({"If", "Loop", "Scan"})
"""Control-flow operators, which run on the CPU and cannot be captured in a CUDA graph."""


def can_capture_cuda_graph(model: ModelProto, provider: str) -> bool:
    """Return True if a run of this model can be captured as a CUDA graph."""
    has_control_flow = any(node.op_type in CONTROL_FLOW_OPS for node in model.graph.node)
    return provider == "cuda" and not has_control_flow


@dataclass(frozen=True, kw_only=True)
class StaticShapeModel:
    """A model with preallocated input and output buffers. `lock` serializes the model's runs."""

    model: OrtModel
    binding: onnxruntime.IOBinding
    input_buffers: Mapping[str, onnxruntime.OrtValue]
    output_buffers: Mapping[str, onnxruntime.OrtValue]
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def allocate(cls, model: OrtModel, shapes: Mapping[str, tuple[int, ...]]) -> "StaticShapeModel":
        """Allocate and bind buffers for all inputs and outputs. `shapes` maps names to shapes."""
        input_buffers = {n: _allocate_buffer(model, s, shapes[n]) for n, s in model.inputs.items()}
        output_buffers = {
            n: _allocate_buffer(model, s, shapes[n]) for n, s in model.outputs.items()
        }
        binding = model.bind(input_buffers, output_buffers).binding
        return cls(
            model=model, binding=binding, input_buffers=input_buffers, output_buffers=output_buffers
        )

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Return the declared outputs by name."""
        return self.model.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model. Return outputs by name. Raise E0907, E0910 to E0912 or E0924."""
        arrays = self.model.prepare_inputs(inputs)
        with self.lock, self.model.guard_session_run():
            for name, array in arrays.items():
                self.input_buffers[name].update_inplace(array)
            self.model.session.run_with_iobinding(self.binding)
            return {n: np.array(v.numpy()) for n, v in self.output_buffers.items()}


def _allocate_buffer(
    model: OrtModel, spec: TensorSpec, shape: tuple[int, ...]
) -> onnxruntime.OrtValue:
    """Allocate a buffer for an input or output on the device of the model."""
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(shape), spec.dtype.type, PROVIDER_DEVICES.get(model.provider, "cpu")
    )
