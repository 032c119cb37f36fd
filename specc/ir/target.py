"""Target runtimes and their capabilities. Passes test capabilities, not target names."""

from typing import Literal

from specc.diagnostics.immutable_dataclass import immutable_dataclass


@immutable_dataclass(kw_only=True)
class Target:
    """A target runtime and its capabilities.

    `linear_operator` selects the lowering of linear layers. `gemm` flattens the leading axes for
    `Gemm`. `product` uses ONNX Runtime's `FusedMatMul` and a separate bias addition. The optimizer
    of ONNX Runtime fuses the bias addition. If `uses_3d_attention_inputs` is True, the attention
    kernel reads `[b, t, h·d]` without a transpose. `fused_operators` are ONNX operators that are
    used if the opset contains them. `recurrent_features` are supported features of the operators
    `RNN`, `GRU` and `LSTM` beyond PyTorch's layers without padding. `alignment` is the alignment,
    in bytes, of weights in a file. `provider` is the execution provider.
    """

    name: str
    provider: str
    linear_operator: Literal["gemm", "product"]
    uses_3d_attention_inputs: bool
    fused_operators: frozenset[str]
    recurrent_features: frozenset[str]
    description: str
    alignment: int = 1
    attention_dtypes: frozenset[str] = frozenset({"f32", "f16", "weights"})
    """The element types that the operator `Attention` supports, and `weights` if it returns
    weights.
    """
    missing_kernels: frozenset[str] = frozenset()
    """Operators without a kernel (such as `MaxPool`), or without a kernel for an element type (such
    as `Equal bf16`).
    """
    in_place_cache_dtypes: frozenset[str] = frozenset()
    """The supported element types of in-place KV buffers (`KVBufferGraph`)."""
    has_unmasked_attention_kernel: bool = False
    """True if attention without a mask has a faster kernel. A model with in-place KV caches checks
    at run time whether the mask is purely causal. If the mask is purely causal, the model uses the
    faster kernel.
    """
    fuses_add_into_norm: bool = False
    """True if the runtime fuses an addition with a layer norm into a slower kernel."""
    uses_blocked_attention: bool = False
    """True if local attention is lowered to a loop over query blocks (blocked attention)."""
    loop_operator: Literal["scan", "loop"] = "scan"
    """The ONNX operator that a loop over all time steps is lowered to."""
    supports_decode_loop: bool = True
    """True if the runtime supports a `Loop` with loop-carried KV caches that grow."""
    max_unrolled_experts: int = 16
    """Maximum number of unrolled experts. Larger mixtures of experts are lowered to a loop."""
    quantized_matmul_mode: Literal["", "rows", "weights"] = ""
    """The ONNX Runtime contrib operators for quantized MatMul with weights in PyTorch's layout.
    `rows` quantizes activations per token, `weights` is weight-only, and "" uses standard ONNX
    operators.
    """
    compute_dtypes: frozenset[str] = frozenset()
    """The 16-bit element types in which the runtime can compute with weights of the same type."""
