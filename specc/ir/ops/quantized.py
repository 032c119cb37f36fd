"""Layers with quantized weights, the storage formats of quantized weights, and the quantization of
KV cache entries.

Weights in the layout `rows` are `[out, in]` as in PyTorch. With a group size, each row is split
into groups with one scale per group, and the last group is padded. Codes are packed into bytes: one
8-bit code plus 128, or two 4-bit codes plus 8 each, with the first code in the low nibble. If there
are zero points, codes are stored without an offset, and the zero points of a row's groups are
packed like codes. Weights in the layout `columns` are `[in, out]`, signed and not packed. Without a
group size, there is one scale per channel.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError

WeightLayout: TypeAlias = Literal["rows", "columns"]
TensorRole: TypeAlias = Literal["codes", "scales", "zero_points"]
TENSOR_ROLES: tuple[TensorRole, ...] = ("codes", "scales", "zero_points")
ActivationRoundingMode: TypeAlias = Literal["none", "row", "block", "tensor"]

_WEIGHT_TERMS = {
    ("rows", False): "q[o i], f[o]",
    ("rows", True): "q[o k p], f[o k]",
    ("columns", False): "q[i o], f[o]",
    ("columns", True): "q[i o], f[k o]",
}
"""Signatures of the weight operands, keyed by layout and by whether there is a group size."""
_LINEAR_SIGNATURES = {
    form: Signature.parse(f"f[*s i], {weights}, f[o]?, q[o z]? -> f[*s o]")
    for form, weights in _WEIGHT_TERMS.items()
}
_PER_TENSOR_SIGNATURES = {
    form: Signature.parse(rule.text.replace("*s i", "*s~ i"))
    for form, rule in _LINEAR_SIGNATURES.items()
}
"""Signatures for per-tensor activation scales, which depend on all positions of the tensor."""
_EMBEDDING_SIGNATURES = {
    form: Signature.parse(
        f"i[*s], {weights.replace('o', 'v').replace('i ', 'd ').replace(' i', ' d')} -> f[*s d]"
    )
    for form, weights in _WEIGHT_TERMS.items()
}


class QuantizedLinear(
    Op, sig="f[*s i], q[o i], f[o], f[o]?, q[o z]? -> f[*s o]", is_compute_intensive=True
):
    """Linear layer with quantized weights: `x' @ (w · scale).T + b`, or `(w - z) · scale` with zero
    points.

    `rounding` is the quantization of the activations `x` to `x'`. `none` leaves the activations
    unquantized. `row` is per-token int8 with the scale absmax / 127. `block` is int8 per group of
    `group_size` values. `tensor` is per-tensor uint8 with a zero point as in ONNX
    `DynamicQuantizeLinear`: the 256 levels span the range of the values, including 0. Scales and
    quotients are float32.
    """

    bits: int = 8
    group_size: int = 0
    layout: WeightLayout = "rows"
    rounding: ActivationRoundingMode = "none"

    x, weights, scales, bias = Operand(0), Operand(1), Operand(2), OptionalOperand(3)
    zero_points = OptionalOperand(4)

    def get_signature(self) -> Signature:
        signatures = _PER_TENSOR_SIGNATURES if self.rounding == "tensor" else _LINEAR_SIGNATURES
        return signatures[self.layout, bool(self.group_size)]

    def infer_result_axes(self, axes: AxisBindings) -> None:
        if self.group_size:
            check_quantization_groups(axes, axes["i"], self.bits, self.group_size)
        if "z" in axes.dims:
            group_count = (axes["k"].number or 0) if self.group_size else 0
            if axes["z"] != count_packed_bytes(group_count, self.bits):
                title = (
                    f"{group_count} zero points of {self.bits} bits do not occupy {axes['z']} bytes"
                )
                raise ShapeError(title, (4,), name="z")


class QuantizedLstm(
    Op,
    sig="f[b~ t~ i], q[i g], q[r~ g], f[g], f[g], f[g]?, f[g]?, b[b~ t~]?, f[b~ r~]?,"
    " f[b~ r~]?, f[p]? -> f[b t r], f[b r], f[b r]",
    is_compute_intensive=True,
):
    """LSTM with quantized weights, `[in, gates]`. The results are all hidden states, the final
    hidden state and the final cell state.

    The equations are those of `lstm`. Inputs are quantized per tensor (the rounding `tensor` of
    `quantized_linear`), with one scale for all valid positions of the batch. In each iteration, the
    hidden states of all batch elements are quantized with one scale. The states of finished
    sequences are treated as zeros. The results for a batch element therefore depend on the other
    batch elements. The operands are the sequence, both weights, their scales, then the remaining
    operands of `lstm`.
    """

    reverse: bool = False

    sequence, input_weights, recurrent_weights = Operand(0), Operand(1), Operand(2)
    scales, state_scales = Operand(3), Operand(4)
    input_bias, recurrent_bias, keep = OptionalOperand(5), OptionalOperand(6), OptionalOperand(7)
    initial_states = (OptionalOperand(8), OptionalOperand(9))
    peepholes = OptionalOperand(10)

    def infer_result_axes(self, axes: AxisBindings) -> None:
        gates, state = axes["g"], axes["r"]
        if gates != state * 4:
            title = f"expected {state * 4} columns for four gates of size {state}, got {gates}"
            raise ShapeError(title, (1, 2), (gates, state * 4), "g")
        if "p" in axes.dims and axes["p"] != state * 3:
            title = f"expected {state * 3} peephole weights, got {axes['p']}"
            raise ShapeError(title, (10,), name="p")


class QuantizedEmbedding(Op, sig="i[*s], q[v d], f[v] -> f[*s d]"):
    """Embedding lookup in a quantized table with `width` values per row."""

    width: Dim
    bits: int = 8
    group_size: int = 0
    layout: WeightLayout = "rows"

    ids, table, scales = Operand(0), Operand(1), Operand(2)

    def get_signature(self) -> Signature:
        return _EMBEDDING_SIGNATURES[self.layout, bool(self.group_size)]

    def infer_result_axes(self, axes: AxisBindings) -> None:
        if "d" not in axes.dims:
            axes["d"] = self.width
        if axes["d"] != self.width:
            title = f"rows have {axes['d']} values, expected {self.width}"
            raise ShapeError(title, (1,))
        if self.group_size:
            check_quantization_groups(axes, self.width, self.bits, self.group_size)


class Quantize(Op, sig="f[b h t d], f[h #t d] -> q[b h t d]"):
    """Quantize keys or values of the KV cache to int8: `x / scale`, rounded half to even and
    clamped to [-128, 127].

    The scales are per channel within each head. Quotients are float32.
    """

    x, scale = Operand(0), Operand(1)

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes.dtypes["q"] = "i8"


class Dequantize(Op, sig="q[b h t d], f[h #t d] -> f[b h t d]"):
    """Dequantize keys or values of the KV cache: `x · scale`."""

    x, scale = Operand(0), Operand(1)


def count_groups_per_row(width: int, group_size: int) -> int:
    """Return the number of quantization groups in a row of a weight matrix."""
    return -(-width // group_size)


def count_packed_bytes(count: int, bits: int) -> int:
    """Return the size in bytes of `count` packed codes of `bits` bits."""
    return -(-count * bits // 8)


def check_quantization_groups(axes: AxisBindings, width: Dim, bits: int, group_size: int) -> None:
    """Raise ShapeError if the number or size of the groups does not fit a row of `width` values."""
    row_width, group_count = width.number, axes["k"].number
    if row_width is None or group_count is None:
        raise ShapeError("quantized weights require static shapes", (1,))
    if group_count != count_groups_per_row(row_width, group_size):
        title = f"{row_width} values cannot be divided into {group_count} blocks of {group_size}"
        raise ShapeError(title, (1, 2), (width, axes["k"]), "k")
    if "p" in axes.dims and axes["p"] != group_size * bits // 8:
        title = f"{group_size} codes of {bits} bits do not occupy {axes['p']} bytes"
        raise ShapeError(title, (1,), name="p")


ActivationRounding: TypeAlias = ActivationRoundingMode | Literal["layer"]
"""The activation quantization in a `QuantizationFormat`."""
QUANTIZED_BITS = (4, 8)
MIN_GROUP_SIZE, MAX_GROUP_SIZE = 16, 256
"""The minimum and maximum group size. Group sizes must be powers of two."""


@immutable_dataclass(kw_only=True)
class QuantizationFormat:
    """A format of quantized weights with `bits` bits and `group_size` (0: per-channel scales).

    If `is_transposed` is True, the checkpoint stores weights as `[in, out]`. `rounding` is the
    activation quantization, or `layer` for the weights of a `quantized_lstm`. If `has_zero_points`
    is True, each group has a zero point. The docstring of `specc.ir.ops.quantized` describes the
    layouts.
    """

    bits: int
    group_size: int
    layout: WeightLayout
    rounding: ActivationRounding
    is_transposed: bool = False
    has_zero_points: bool = False

    @property
    def tensor_roles(self) -> tuple[TensorRole, ...]:
        """The roles of the tensors that store a weight: codes, scales and any zero points."""
        return TENSOR_ROLES if self.has_zero_points else TENSOR_ROLES[:2]

    def format_tensor_name(self, name: str, role: TensorRole) -> str:
        """Return the tensor name of the codes, scales or zero points of the weight `name`."""
        suffixes = {"codes": f"int{self.bits}", "scales": "scale", "zero_points": "zero"}
        return f"{name}:{suffixes[role]}"

    def get_dtype(self, role: TensorRole) -> str:
        """Return the dtype of the stored codes, scales or zero points."""
        return "f32" if role == "scales" else self.dtype

    @property
    def dtype(self) -> str:
        """The element type of the stored codes."""
        if self.layout == "rows":
            return "u8" if self.group_size else "i8"
        return "i4" if self.bits == 4 else "i8"

    def compute_tensor_shape(self, shape: tuple[int, ...], role: TensorRole) -> tuple[int, ...]:
        """Return the shape of the codes, scales or zero points of a weight (or a stack of weights)
        of shape `shape`.
        """
        *stack_sizes, out_features, in_features = shape
        if self.is_transposed:
            out_features, in_features = in_features, out_features
        group_count = count_groups_per_row(in_features, self.group_size) if self.group_size else 0
        is_packed = group_count and self.layout == "rows"
        group_bytes = self.group_size * self.bits // 8
        sizes: Mapping[TensorRole, list[int]] = {
            "codes": [group_count, group_bytes] if is_packed else [in_features],
            "scales": [group_count] if group_count else [],
            "zero_points": [count_packed_bytes(group_count, self.bits)],
        }
        axes = [out_features, *sizes[role]]
        if self.layout == "columns":
            axes = [*sizes[role], out_features]
        return (*stack_sizes, *axes)


@immutable_dataclass
class PackedWeightFormat:
    """The format of packed 4-bit weights in a checkpoint."""

    group_size: int
    has_zero_points: bool = False


@immutable_dataclass
class FoldedNorm:
    """A norm layer whose parameters `weight` and `bias` ("" if absent) are folded into the
    following linear layers. Each linear weight is paired with a flag that is True if the weight is
    stored as [in, out].
    """

    weight: str
    bias: str
    linear_weights: tuple[tuple[str, bool], ...]


def is_quantized_tensor_name(name: str) -> bool:
    """Return True if `name` is the tensor name of the codes, scales or zero points of a weight."""
    return name.endswith((":scale", ":zero", *(f":int{bits}" for bits in QUANTIZED_BITS)))


QuantizationPlan: TypeAlias = Mapping[str, QuantizationFormat]
"""The quantization format of each quantized weight, by the name of the weight."""
