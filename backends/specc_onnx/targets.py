"""What the far side has: one row a target, and nothing in the rules asks for a target by name.

The choices are measured. Both forms of a linear map keep the weight in the layout the checkpoint stores it
in, so that it need not be copied or turned over when a model is loaded. On BERT-base the form of `ort-cpu` was
2 to 7 % faster than `Gemm` (ONNX Runtime 1.31, 2 cores, best of 7, batch 1 and 8), hardly more than the noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specc.text.diagnostic import fail


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime and what it is good at.

    `linear`: `gemm` flattens leading axes around a `Gemm`; `product` uses ONNX Runtime's `FusedMatMul` and
    adds the bias apart, which its optimizer then joins with the norm or activation that follows.
    `packed_heads`: the attention kernel reads `[b, t, h·d]`, so that no transpose is needed.
    `fused`: which of the standard's fused operators are used where the opset has them.
    `cells`: which recurrent layers `RNN`, `GRU` and `LSTM` compute there, beyond those that PyTorch has too.
    `in_place`: caches of a step are buffers that attention writes into (`specc_onnx.caches`).
    `alignment` is what an offset of weights in a file must be a multiple of.
    `provider` is the one that opens models of this target unless the user names another.
    """

    name: str
    provider: str
    linear: Literal["gemm", "product"]
    packed_heads: bool
    fused: frozenset[str]
    cells: frozenset[str]
    about: str
    alignment: int = 1
    in_place: bool = False


FUSED = frozenset({"Attention", "Gelu", "RMSNormalization", "RotaryEmbedding"})

CELLS = frozenset({"activation", "reset before", "peepholes"})
"""An `RNN` of other than tanh, a `GRU` that resets before its linear map, an `LSTM` whose gates see its cell."""

TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        Target("onnx", "cpu", "gemm", True, FUSED, CELLS, "standard operators only, for any runtime"),
        Target("ort-cpu", "cpu", "product", True, FUSED, CELLS, "ONNX Runtime on the processor", in_place=True),
        Target("ort-cuda", "cuda", "gemm", True, FUSED, frozenset(), "ONNX Runtime on an NVIDIA card", 16),
    )
}
"""Every target by name."""


def target(name: str) -> Target:
    """The target called `name`. E0822 when there is none."""
    if name not in TARGETS:
        fail(
            "E0822",
            f"there is no target `{name}`",
            helps=[f"`--target {t.name}`: {t.about}" for t in TARGETS.values()],
        )
    return TARGETS[name]
