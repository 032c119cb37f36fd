"""Run a model with fixed input shapes and preallocated buffers.

A CUDA graph, which ONNX Runtime captures for models without subgraphs, requires both. With static
shapes, ONNX Runtime also constant-folds shape computations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import onnxruntime
from onnx import ModelProto

from specc.backend import TensorSpec
from specc.ir.array import Array
from specc_onnx.execution_providers import PROVIDER_DEVICES
from specc_onnx.ort_session import OrtModel

CONTROL_FLOW_OPS = frozenset({"If", "Loop", "Scan"})
"""Control-flow operators, which run on the CPU and cannot be captured in a CUDA graph."""


def can_capture_cuda_graph(model: ModelProto, provider: str) -> bool:
    """Return True if a run of this model can be captured as a CUDA graph."""
    has_control_flow = any(node.op_type in CONTROL_FLOW_OPS for node in model.graph.node)
    return provider == "cuda" and not has_control_flow


@dataclass(frozen=True, kw_only=True)
class FixedShapeModel:
    """A model with preallocated input and output buffers; `lock` serializes its runs."""

    model: OrtModel
    binding: onnxruntime.IOBinding
    input_buffers: Mapping[str, onnxruntime.OrtValue]
    output_buffers: Mapping[str, onnxruntime.OrtValue]
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def allocate(cls, model: OrtModel, shapes: Mapping[str, tuple[int, ...]]) -> "FixedShapeModel":
        """Allocate and bind buffers for all inputs and outputs, whose `shapes` are
        given by name.
        """
        binding = model.session.io_binding()
        input_buffers = {n: _allocate_buffer(model, s, shapes[n]) for n, s in model.inputs.items()}
        output_buffers = {
            n: _allocate_buffer(model, s, shapes[n]) for n, s in model.outputs.items()
        }
        for name, value in input_buffers.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in output_buffers.items():
            binding.bind_ortvalue_output(name, value)
        return cls(
            model=model, binding=binding, input_buffers=input_buffers, output_buffers=output_buffers
        )

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Return the declared outputs by name."""
        return self.model.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its outputs by name. Raise E0907 or E0910 to E0912 for invalid
        inputs, and E0924 if the run fails.
        """
        arrays = self.model.prepare_inputs(inputs)
        with self.lock, self.model.guard_run():
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
