"""What the far side has: one row a target, and nothing in the rules asks for a target
by name.

The choices are measured. Both forms of a linear map keep the weight in the layout the
checkpoint stores it in, so that it need not be copied or turned over when a model is
loaded. On BERT-base the form of `ort-cpu` was 2 to 7 % faster than `Gemm` (ONNX Runtime
1.31, 2 cores, best of 7, batch 1 and 8), hardly more than the noise.

Sums stay apart from the norms behind them. 24 sums with their norms over 128 rows of 768,
milliseconds of one processor (ONNX Runtime 1.31, median of 8): `Add` and
`LayerNormalization` 1.6, `SkipLayerNormalization` 12.3; `Add` and `RMSNormalization` 1.0,
`SkipSimplifiedLayerNormalization` 2.1. Over a single row the latter are alike.
"""

from collections.abc import Mapping

from specc.ir.target import Target
from specc.text.diagnostic import fail

FUSED = frozenset({"Attention", "Gelu", "RMSNormalization", "RotaryEmbedding"})

LENGTHS = frozenset({"lengths"})
"""Layers over rows of different lengths."""

CELLS = LENGTHS | {"activation", "reset before", "peepholes"}
"""Besides, an `RNN` of other than tanh, a `GRU` that resets before its linear map, an
`LSTM` whose gates see its cell.
"""

WHOLE_NUMBERS = "whole numbers"
"""An `LSTM` by weights of 8 bits, which rounds what it reads: `DynamicQuantizeLSTM`."""

CUDA_LACKS = frozenset({"ArgMax i64", "ArgMax i32", "Equal bf16", "MaxPool"})
"""What the CUDA provider of ONNX Runtime 1.31 has no kernel of: of `MaxPool` it has those
up to opset 21 alone.
"""

TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        Target(
            name="onnx",
            provider="cpu",
            linear="gemm",
            packed_heads=True,
            fused=FUSED,
            cells=CELLS,
            about="standard operators only, for any runtime",
            blocks=True,
        ),
        Target(
            name="ort-cpu",
            provider="cpu",
            linear="product",
            packed_heads=True,
            fused=FUSED,
            cells=CELLS | {WHOLE_NUMBERS},
            about="ONNX Runtime on the processor",
            in_place=frozenset({"f32"}),
            joins_norms=True,
            blocks=True,
            rounded="rows",
        ),
        Target(
            name="ort-cuda",
            provider="cuda",
            linear="gemm",
            packed_heads=True,
            fused=FUSED,
            cells=LENGTHS,
            about="ONNX Runtime on an NVIDIA card",
            # the kernel gives scores alone, before cap and mask (1.31)
            attends=frozenset({"f32", "f16", "bf16"}),
            lacks=CUDA_LACKS,
            alignment=16,
            computes=frozenset({"f16", "bf16"}),
            rounded="weights",
            in_place=frozenset({"f16", "bf16"}),
            unmasked=True,
        ),
        Target(
            name="openvino",
            provider="cpu",
            linear="gemm",
            packed_heads=True,
            fused=FUSED,
            # its LSTM goes on behind the end of a row; its Scan sees nothing from
            # outside (OpenVINO 2026.4)
            cells=CELLS - LENGTHS,
            loops="loop",
            decodes=False,
            about="OpenVINO",
        ),
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
