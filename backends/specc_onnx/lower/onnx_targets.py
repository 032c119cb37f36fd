"""The compile targets, and the ONNX opsets and types that they support.

The lowest supported opset is 17, so `OPERATOR_SINCE` lists only operators of later opsets. A test
compares the table with ONNX's schemas. `Swish` is not used, because ONNX Runtime 1.31 has no
`Swish` kernel from opset 25 on.

With ONNX Runtime 1.31, the linear layer of `ort-cpu` (`FusedMatMul`) was measured to be 2 to 7 %
faster than `Gemm` on BERT-base. Additions are not fused with norms: 24 additions and norms of 128
tokens with 768 features took 1.6 ms with `Add` and `LayerNormalization`, and 12.3 ms with
`SkipLayerNormalization`. The variants with RMS norms took 1.0 ms and 2.1 ms.
"""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from specc.diagnostics.diagnostic import raise_error
from specc.ir.target import Target

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
    "u8": np.dtype(np.uint8),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""The NumPy dtype of each IR element type."""

ONNX_TYPE_CODES: dict[str, int] = {
    name: helper.np_dtype_to_tensor_dtype(dtype) for name, dtype in NUMPY_DTYPES.items()
}
"""The ONNX data type of each IR element type."""

FLOAT_DTYPES = frozenset({"f32", "f64", "f16", "bf16"})
"""Floating-point types that a graph may use for computations."""

HALF_DTYPES = frozenset({"f16", "bf16"})
"""16-bit floating-point types, for which sums along an axis are accumulated in f32."""


MIN_OPSET, MAX_OPSET, DEFAULT_OPSET = 17, 26, 23
"""The range of supported opsets, and the default opset."""

OPERATOR_SINCE: dict[str, int] = {
    "Attention": 23,
    "BitwiseAnd": 18,
    "BitwiseXor": 18,
    "Gelu": 20,
    "RMSNormalization": 23,
    "RotaryEmbedding": 23,
}
"""The first opset that has each ONNX operator missing from the oldest supported opset.
"""

BF16_CONV_SINCE = 22
"""The first opset whose convolutions support bfloat16."""

REDUCE_AXES_INPUT_SINCE = 18
"""The first opset in which the axes of `ReduceMean`, `ReduceMax` and `ReduceMin` are an operand."""
PROBABILITIES_OUTPUT_MODE = 3
"""The `qk_matmul_output_mode` that returns attention weights after softcap, mask and softmax."""


def get_default_opset() -> int:
    """Return the default opset of compiled models."""
    return DEFAULT_OPSET


def is_operator_available(op_type: str, opset: int) -> bool:
    """Return True if the standard operator `op_type` exists at `opset`."""
    return OPERATOR_SINCE.get(op_type, MIN_OPSET) <= opset


def get_ir_version(opset: int) -> int:
    """Return the ONNX IR version that was current at the release of `opset`, at most 10."""
    return 8 if opset < 19 else 9 if opset < 21 else 10


def check_opset(opset: int) -> None:
    """Raise E0821 for an unsupported opset."""
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise_error(
            "E0821",
            f"unsupported opset {opset}: expected {MIN_OPSET} to {MAX_OPSET}",
            helps=[f"remove `--opset` to use the default, {DEFAULT_OPSET}"],
        )


FUSED_OPERATORS = frozenset({"Attention", "Gelu", "RMSNormalization", "RotaryEmbedding"})

VARIABLE_LENGTH_LAYERS = frozenset({"lengths"})
"""The feature of recurrent operators that support an operand with sequence lengths."""

CELL_VARIANTS = VARIABLE_LENGTH_LAYERS | {"activation", "reset before", "peepholes"}
"""Additional features of recurrent operators: `RNN` with an activation other than tanh, `GRU` with
linear_before_reset=0, `LSTM` with peepholes.
"""

INT8_LSTM = "int8 lstm"
"""The feature of an LSTM with int8 weights and dynamic quantization (`DynamicQuantizeLSTM`)."""

CUDA_MISSING_KERNELS = frozenset(
    {
        *("ArgMax i64", "ArgMax i32", "Equal bf16", "MatMulInteger", "MaxPool"),
        *("Pad i64", "TopK inf f32", "stable TopK"),
    }
)
"""Operators, some with an element type or condition, that have no usable kernel in the CUDA
provider of ONNX Runtime 1.31. The CUDA provider has kernels for `MaxPool` up to opset 21.
Measurements on an H200 show that `MatMulInteger` fails for many shapes with 521 rows, because
cuBLAS does not support them. They also show that `TopK` returns indices out of range for -inf
(`TopK inf`), and orders equal elements arbitrarily on axes longer than 256 (`stable TopK`).
"""

TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        Target(
            name="onnx",
            provider="cpu",
            linear_operator="gemm",
            uses_3d_attention_inputs=True,
            fused_operators=FUSED_OPERATORS,
            recurrent_features=CELL_VARIANTS,
            description="standard operators only, for any runtime",
            uses_blocked_attention=True,
        ),
        Target(
            name="ort-cpu",
            provider="cpu",
            linear_operator="product",
            uses_3d_attention_inputs=True,
            fused_operators=FUSED_OPERATORS,
            recurrent_features=CELL_VARIANTS | {INT8_LSTM},
            description="ONNX Runtime on the CPU",
            in_place_cache_dtypes=frozenset({"f32"}),
            fuses_add_into_norm=True,
            uses_blocked_attention=True,
            quantized_matmul_mode="rows",
        ),
        Target(
            name="ort-cuda",
            provider="cuda",
            linear_operator="gemm",
            uses_3d_attention_inputs=True,
            fused_operators=FUSED_OPERATORS,
            recurrent_features=VARIABLE_LENGTH_LAYERS,
            description="ONNX Runtime on an NVIDIA GPU",
            # the CUDA kernel of `Attention` in ONNX Runtime 1.31 returns no attention weights
            attention_dtypes=frozenset({"f32", "f16", "bf16"}),
            missing_kernels=CUDA_MISSING_KERNELS,
            alignment=16,
            compute_dtypes=frozenset({"f16", "bf16"}),
            quantized_matmul_mode="weights",
            in_place_cache_dtypes=frozenset({"f16", "bf16"}),
            has_unmasked_attention_kernel=True,
        ),
        Target(
            name="openvino",
            provider="cpu",
            linear_operator="gemm",
            uses_3d_attention_inputs=True,
            fused_operators=FUSED_OPERATORS,
            # in OpenVINO 2026.4, `LSTM` ignores sequence lengths, and `Scan` cannot capture outer
            # values
            recurrent_features=CELL_VARIANTS - VARIABLE_LENGTH_LAYERS,
            loop_operator="loop",
            supports_decode_loop=False,
            description="OpenVINO",
        ),
    )
}
"""All targets by name."""


def get_target(name: str) -> Target:
    """Return the target `name`. Raise E0822 for an unknown target."""
    if name not in TARGETS:
        raise_error(
            "E0822",
            f"unknown target `{name}`",
            helps=[f"`--target {t.name}`: {t.description}" for t in TARGETS.values()],
        )
    return TARGETS[name]
