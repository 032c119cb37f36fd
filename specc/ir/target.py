"""Target runtimes and their capabilities. Passes and lowering rules ask a `Target`,
never its name.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A runtime and its preferences.

    `linear_operator`: `gemm` flattens leading axes around a `Gemm`; `product` uses ONNX Runtime's
    `FusedMatMul` and adds the bias separately, which its optimizer fuses. `packed_heads`: the
    attention kernel reads `[b, t, h·d]`, without a transpose. `fused_operators`: ONNX operators
    that are used if the opset has them. `recurrent_features`: features of `RNN`, `GRU` and `LSTM`
    there, beyond PyTorch's layers without padding. `alignment` is that of weight offsets in a file.
    `provider` is its execution provider.
    """

    name: str
    provider: str
    linear_operator: Literal["gemm", "product"]
    packed_heads: bool
    fused_operators: frozenset[str]
    recurrent_features: frozenset[str]
    description: str
    alignment: int = 1
    attention_dtypes: frozenset[str] = frozenset({"f32", "f16", "weights"})
    """The element types that `Attention` supports, and whether it returns its `weights`."""
    missing_kernels: frozenset[str] = frozenset()
    """Operators without a kernel (`MaxPool`), or without one for an element type (`Equal bf16`)."""
    in_place_cache_dtypes: frozenset[str] = frozenset()
    """The element types of in-place KV buffers (`specc.ir.model.KVBufferGraph`)."""
    has_unmasked_kernel: bool = False
    """Whether attention has a faster kernel without a mask: with buffers, it is checked at run time
    whether the mask hides anything but future positions."""
    fuses_add_into_norm: bool = False
    """Whether the runtime fuses an addition with the following layer norm into a slower kernel."""
    uses_blocked_attention: bool = False
    """Whether local attention is lowered to a loop over blocks of queries."""
    loop_operator: Literal["scan", "loop"] = "scan"
    """The operator of a loop over all time steps."""
    supports_decode_loop: bool = True
    """Whether it runs a `Loop` with growing caches."""
    max_unrolled_experts: int = 16
    """Maximum number of experts that are unrolled; more are lowered to a loop."""
    quantized_operators: Literal["", "rows", "weights"] = ""
    """Whether quantized products are ONNX Runtime's contrib operators with weights in PyTorch's
    layout: they quantize activation `rows` too, or `weights` only."""
    compute_dtypes: frozenset[str] = frozenset()
    """16-bit types that it computes in if weights are stored so."""
