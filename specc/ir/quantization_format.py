"""Storage formats of quantized weights: bits, group size, layout, activation rounding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from specc.ir.ops.quantized import ActivationRoundingMode, WeightLayout, count_groups

ActivationRounding: TypeAlias = ActivationRoundingMode | Literal["layer"]
"""Quantization of the activations of a quantized linear layer."""
QUANTIZED_BITS = (4, 8)
MIN_GROUP_SIZE, MAX_GROUP_SIZE = 16, 256
"""Range of group sizes, which are powers of two as kernels require."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationFormat:
    """Quantized weights of `bits` bits, group size `block` (0: per channel).

    `is_transposed` weights are `[in, out]` in the checkpoint. `rounding` is the activation
    quantization; `layer`: that of `lstm_q`, which reads both weights of a layer. Layouts are those
    of `specc.ir.ops.quantized`.
    """

    bits: int
    group_size: int
    layout: WeightLayout
    rounding: ActivationRounding
    is_transposed: bool = False

    def format_codes_name(self, name: str) -> str:
        """Return the tensor name of the quantized integers of the weight `name`."""
        return f"{name}:int{self.bits}"

    def format_scales_name(self, name: str) -> str:
        """Return the tensor name of its scales."""
        return f"{name}:scale"

    @property
    def dtype(self) -> str:
        """The element type of the stored integers."""
        if self.layout == "rows":
            return "u8" if self.group_size else "i8"
        return "i4" if self.bits == 4 else "i8"

    def compute_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of integers and scales of a weight, or of a stack of weights."""
        *stack, out, wide = shape
        numbers, scales = self._compute_matrix_shapes((out, wide))
        return (*stack, *numbers), (*stack, *scales)

    def _compute_matrix_shapes(
        self, shape: tuple[int, int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        out, wide = shape[::-1] if self.is_transposed else shape
        count = count_groups(wide, self.group_size) if self.group_size else 0
        if self.layout == "columns":
            return (wide, out), ((count, out) if count else (out,))
        if count:
            return (out, count, self.group_size * self.bits // 8), (out, count)
        return (out, wide), (out,)


@dataclass(frozen=True, slots=True)
class NormFold:
    """A norm whose weight is folded into the following linear layers: the parameters `gain` and
    `bias` ("" if absent), and each weight with whether it is stored `[in, out]`.
    """

    weight: str
    bias: str
    linear_weights: tuple[tuple[str, bool], ...]


def is_quantized_part_name(name: str) -> bool:
    """Return whether this names the integers or scales of a quantized weight."""
    return name.endswith((":scale", *(f":int{bits}" for bits in QUANTIZED_BITS)))


QuantizationPlan: TypeAlias = Mapping[str, QuantizationFormat]
"""The format of each quantized weight, by its name."""
