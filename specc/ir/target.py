"""Target runtimes and their capabilities. Passes and lowering rules ask a `Target`,
never its name.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A runtime and its preferences.

    `linear`: `gemm` flattens leading axes around a `Gemm`; `product` uses ONNX Runtime's
    `FusedMatMul` and adds the bias separately, which its optimizer fuses. `packed_heads`: the
    attention kernel reads `[b, t, h·d]`, without a transpose. `fused`: ONNX operators that are used
    if the opset has them. `cells`: the recurrent layers that `RNN`, `GRU` and `LSTM` support there,
    beyond PyTorch's without padding. `alignment` is that of weight offsets in a file. `provider` is
    its execution provider. Other fields explain themselves.
    """

    name: str
    provider: str
    linear: Literal["gemm", "product"]
    packed_heads: bool
    fused: frozenset[str]
    cells: frozenset[str]
    about: str
    alignment: int = 1
    attends: frozenset[str] = frozenset({"f32", "f16", "weights"})
    """The element types that `Attention` takes, and whether it gives its `weights`."""
    lacks: frozenset[str] = frozenset()
    """Operators without a kernel there, said by others: `MaxPool`, or of an element type
    alone: `Equal bf16`.
    """
    in_place: frozenset[str] = frozenset()
    """The element types of caches that are buffers (`specc.ir.derived_graphs.KVBufferGraph`)."""
    unmasked: bool = False
    """Whether its attention has a faster kernel without a mask: one over buffers is asked
    when it runs whether its mask hides anything but later rows.
    """
    joins_norms: bool = False
    """Whether it joins a sum with the layer norm behind it, into a kernel that is slower."""
    blocks: bool = False
    """Whether attention that looks at a neighborhood is a loop over blocks of queries."""
    loops: Literal["scan", "loop"] = "scan"
    """The operator of a loop over all rows."""
    decodes: bool = True
    """Whether it runs a `Loop` in which caches grow."""
    few_experts: int = 16
    """More experts than this are looped over."""
    rounded: Literal["", "rows", "weights"] = ""
    """Whether products by rounded weights are ONNX Runtime's own operators, which read
    weights as PyTorch has them: they round the `rows` that they meet, or `weights`
    alone.
    """
    computes: frozenset[str] = frozenset()
    """Types of 16 bits that it computes in, where weights are stored so."""
