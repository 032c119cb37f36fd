"""Gather, concatenate and copy tensors on the device of an execution provider."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, TensorProto, helper

from specc.ir.array import Array
from specc_onnx.execution_providers import (
    ORT_PROVIDER_NAMES,
    PROVIDER_DEVICES,
    PROVIDER_OPTIONS,
    SILENT_LOG_LEVEL,
)

HELPER_OPSET, HELPER_IR_VERSION = 17, 8
"""The oldest opset that specc writes, and its IR version."""


def gather_on_device(
    held: onnxruntime.OrtValue, axis: int, rows: Array, provider: str
) -> onnxruntime.OrtValue:
    """`held` with row `rows[n]` of an axis in the place of row n; i64[n]."""
    kinds = (held.element_type(), TensorProto.INT64)
    ranks = (len(held.shape()), 1)
    session = _make_helper_session("Gather", kinds, ranks, kinds[0], provider, axis=axis)
    at = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(rows, np.int64))
    return _run_helper_model(session, (held, at), PROVIDER_DEVICES.get(provider, "cpu"))


def concat_on_device(
    parts: Sequence[onnxruntime.OrtValue], axis: int, provider: str
) -> onnxruntime.OrtValue:
    """Tensors of one type behind each other along an axis, on the provider's device."""
    kind = parts[0].element_type()
    kinds, ranks = (kind,) * len(parts), (len(parts[0].shape()),) * len(parts)
    session = _make_helper_session("Concat", kinds, ranks, kind, provider, axis=axis)
    return _run_helper_model(session, parts, PROVIDER_DEVICES.get(provider, "cpu"))


def copy_to_host(held: onnxruntime.OrtValue, provider: str) -> Array:
    """Copy a tensor to the host; bfloat16, which NumPy lacks, by way of float32."""
    kind = held.element_type()
    if kind != TensorProto.BFLOAT16:
        plain: Array = held.numpy()
        return plain
    rank, to = len(held.shape()), TensorProto.FLOAT
    session = _make_helper_session("Cast", (kind,), (rank,), to, provider, to=to)
    wide: Array = _run_helper_model(session, (held,), "cpu").numpy()
    return wide.astype(ml_dtypes.bfloat16)


def _run_helper_model(
    session: onnxruntime.InferenceSession, given: Sequence[onnxruntime.OrtValue], device: str
) -> onnxruntime.OrtValue:
    """Run a model of one node on a device."""
    binding = session.io_binding()
    for n, value in enumerate(given):
        binding.bind_ortvalue_input(f"x{n}", value)
    binding.bind_output("y", device)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]


@cache
def _make_helper_session(
    operator: str,
    kinds: tuple[int, ...],
    ranks: tuple[int, ...],
    made: int,
    provider: str,
    **attributes: Any,
) -> onnxruntime.InferenceSession:
    """Build a one-node model for the given ONNX element types and ranks."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT_LOG_LEVEL
    names = [f"x{n}" for n in range(len(kinds))]
    node = helper.make_node(operator, names, ["y"], name="one", **attributes)
    given = [
        helper.make_tensor_value_info(name, kind, [f"{name}{n}" for n in range(rank)])
        for name, kind, rank in zip(names, kinds, ranks, strict=True)
    ]
    graph = GraphProto(
        name="one",
        node=[node],
        input=given,
        output=[helper.make_tensor_value_info("y", made, None)],
    )
    model = ModelProto(
        ir_version=HELPER_IR_VERSION,
        graph=graph,
        opset_import=[helper.make_opsetid("", HELPER_OPSET)],
    )
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=[(ORT_PROVIDER_NAMES[provider], PROVIDER_OPTIONS.get(provider, {}))],
        enable_fallback=0,
    )
