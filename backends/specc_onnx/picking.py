"""Rows of a tensor that the runtime holds, picked on the device where it lies: the caches
of beams change places without a way to the host and back.
"""

from functools import cache

import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, TensorProto, helper

from specc.ir.array import Array
from specc_onnx.providers import DEVICE, OPTIONS, PROVIDERS, SILENT

OPSET, IR = 17, 8
"""The oldest of what specc writes, and the version of the format that goes with it."""


def picked(
    held: onnxruntime.OrtValue, axis: int, rows: Array, provider: str
) -> onnxruntime.OrtValue:
    """`held` with row `rows[n]` of an axis in the place of row n; i64[n]."""
    session = _gather(provider, held.element_type(), len(held.shape()), axis)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", held)
    binding.bind_cpu_input("rows", np.asarray(rows, np.int64))
    binding.bind_output("y", DEVICE.get(provider, "cpu"))
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]


@cache
def _gather(
    provider: str, kind: int, rank: int, axis: int
) -> onnxruntime.InferenceSession:
    """A model of one `Gather` for tensors of an element type, as ONNX numbers it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    lengths = [f"d{n}" for n in range(rank)]
    graph = GraphProto(
        name="rows",
        node=[helper.make_node("Gather", ["x", "rows"], ["y"], name="rows", axis=axis)],
        input=[
            helper.make_tensor_value_info("x", kind, lengths),
            helper.make_tensor_value_info("rows", TensorProto.INT64, ["n"]),
        ],
        output=[helper.make_tensor_value_info("y", kind, None)],
    )
    model = ModelProto(
        ir_version=IR,
        graph=graph,
        opset_import=[helper.make_opsetid("", OPSET)],
    )
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=[(PROVIDERS[provider], OPTIONS.get(provider, {}))],
        enable_fallback=0,
    )
