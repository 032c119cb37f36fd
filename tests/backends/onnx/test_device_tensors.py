"""Tensors are gathered and concatenated on the device with the results of NumPy."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from specc_onnx.execution_providers import concat_on_device, copy_to_host, gather_on_device

TYPES = (np.float32, np.float16, np.int64, np.int32, np.bool_)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_equals_numpy(dtype: type, axis: int) -> None:
    x = (np.random.default_rng(0).standard_normal((3, 3, 3, 2)) * 9).astype(dtype)
    rows = np.array([2, 2, 0], np.int64)
    held = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    found = gather_on_device(held, axis, rows, "cpu").numpy()
    np.testing.assert_array_equal(found, np.take(x, rows, axis))
    assert found.dtype == x.dtype


def test_gather_of_no_and_repeated_indices() -> None:
    x = np.zeros((2, 4, 0, 8), np.float16)
    held = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    rows = np.array([1, 0, 1, 1, 0])
    assert gather_on_device(held, 0, rows, "cpu").shape() == [5, 4, 0, 8]


def test_gather_of_bfloat16() -> None:
    x = np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16)
    held = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        x.view(np.uint16), TensorProto.BFLOAT16
    )
    found = gather_on_device(held, 0, np.array([2, 0]), "cpu")
    assert found.element_type() == TensorProto.BFLOAT16
    assert found.shape() == [2, 2]


@pytest.mark.parametrize("dtype", TYPES)
def test_concat_equals_numpy(dtype: type) -> None:
    x = (np.random.default_rng(0).standard_normal((2, 3, 4)) * 9).astype(dtype)
    parts = [x, x[:, :0], x[:, 1:]]
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(part) for part in parts]
    found = copy_to_host(concat_on_device(held, 1, "cpu"), "cpu")
    np.testing.assert_array_equal(found, np.concatenate(parts, 1))
    assert found.dtype == x.dtype


def test_bfloat16_is_copied_to_the_host() -> None:
    x = np.array([1.5, -0.0, np.inf, 3e38, 1e-40]).astype(ml_dtypes.bfloat16)
    held = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        x.view(np.uint16), TensorProto.BFLOAT16
    )
    found = copy_to_host(concat_on_device([held, held], 0, "cpu"), "cpu")
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.view(np.uint16), np.tile(x.view(np.uint16), 2))
