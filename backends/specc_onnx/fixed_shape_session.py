"""Run a model with fixed input shapes and preallocated buffers.

CUDA needs that to record a run as a CUDA graph, which ONNX Runtime does for models without
subgraphs. Known lengths also fold shape computations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import onnxruntime
from onnx import ModelProto

from specc.backend import TensorSlot
from specc.ir.array import Array
from specc_onnx.denormals import flush_denormals
from specc_onnx.execution_providers import PROVIDER_DEVICES
from specc_onnx.ort_session import OrtModel

CONTROL_FLOW_OPS = frozenset({"If", "Loop", "Scan"})
"""Operators whose control flow is decided on the CPU."""


def can_record_run(model: ModelProto, provider: str) -> bool:
    """Return True if runs of this model can be recorded as a CUDA graph."""
    branches = any(node.op_type in CONTROL_FLOW_OPS for node in model.graph.node)
    return provider == "cuda" and not branches


@dataclass(frozen=True, kw_only=True)
class FixedShapeModel:
    """`model` with a buffer of these `shapes` for each input and output; one run at a time."""

    model: OrtModel
    binding: onnxruntime.IOBinding
    given: Mapping[str, onnxruntime.OrtValue]
    made: Mapping[str, onnxruntime.OrtValue]
    free: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, model: OrtModel, shapes: Mapping[str, tuple[int, ...]]) -> "FixedShapeModel":
        """Allocate buffers for all inputs and outputs."""
        binding = model.session.io_binding()
        given = {n: _allocate_slot(model, s, shapes[n]) for n, s in model.inputs.items()}
        made = {n: _allocate_slot(model, s, shapes[n]) for n, s in model.outputs.items()}
        for name, value in given.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in made.items():
            binding.bind_ortvalue_output(name, value)
        return cls(model=model, binding=binding, given=given, made=made)

    @property
    def outputs(self) -> Mapping[str, TensorSlot]:
        """Return the outputs by name."""
        return self.model.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its outputs by name. Raise E0907 and E0910 to E0912 for
        inputs that do not fit, E0924 if the run fails.
        """
        given = self.model.prepare_inputs(inputs)
        with self.free, flush_denormals():
            for name, array in given.items():
                self.given[name].update_inplace(array)
            self.model.run_with_io_binding(self.binding)
            return {n: np.array(v.numpy()) for n, v in self.made.items()}


def _allocate_slot(
    model: OrtModel, slot: TensorSlot, shape: tuple[int, ...]
) -> onnxruntime.OrtValue:
    """Allocate a buffer for an input or output on the device of the model."""
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(shape), slot.dtype.type, PROVIDER_DEVICES.get(model.provider, "cpu")
    )
