"""Which standard operators a target may use: those that exist at its opset.

The lowest opset here is 17, so only what came later is listed; a test compares the
table with ONNX's own schemas. `SWISH` is not used at all: ONNX Runtime 1.31 has no
kernel for it from opset 25 on.
"""

from specc.text.diagnostic import fail

FIRST, LAST, USUAL = 17, 26, 23
"""The opsets we write, and the one we write when nobody asks for another."""

SINCE: dict[str, int] = {
    "Attention": 23,
    "BitwiseAnd": 18,
    "BitwiseXor": 18,
    "Gelu": 20,
    "RMSNormalization": 23,
    "RotaryEmbedding": 23,
}
"""The opset in which an operator appeared, for those younger than the oldest opset we write."""

CONV_OF_BF16 = 22
"""From this opset on convolutions take bfloat16."""

AXES_ARE_INPUTS = 18
"""From this opset on `ReduceMean`, `ReduceMax` and `ReduceMin` take their axes as an operand."""


def exists(kind: str, opset: int) -> bool:
    """Whether the standard operator `kind` is known at `opset`."""
    return SINCE.get(kind, FIRST) <= opset


def ir_version(opset: int) -> int:
    """The file format that the first tools to know `opset` could read; 10 for all newer ones."""
    return 8 if opset < 19 else 9 if opset < 21 else 10


def check_opset(opset: int) -> None:
    """E0821 for an opset we do not write."""
    if not FIRST <= opset <= LAST:
        fail(
            "E0821",
            f"opset {opset} cannot be written; opsets {FIRST} to {LAST} can",
            helps=[f"leave `--opset` out for the usual one, {USUAL}"],
        )
