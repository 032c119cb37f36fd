"""What the tests of the ONNX backend share: a quiet session, and what `equal` means."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray


def open_quietly(model: onnx.ModelProto) -> Any:
    """A session on one thread that prints nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def agree(wanted: Mapping[str, NDArray[Any]], got: Sequence[NDArray[Any]]) -> None:
    """`max|a - b| <= 1e-5 · max|b|`, shapes and infinities alike, whole numbers exactly."""
    for (name, b), a in zip(wanted.items(), got, strict=True):
        assert a.shape == b.shape, f"{name}: {a.shape}, not {b.shape}"
        if b.dtype.kind in "bi":
            assert (a == b).all(), name
            continue
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        scale = np.abs(b[np.isfinite(b)]).max(initial=0)
        gap = np.abs(np.subtract(a, b, where=~same, out=np.zeros(b.shape)))
        assert (gap <= 1e-5 * scale).all(), name
