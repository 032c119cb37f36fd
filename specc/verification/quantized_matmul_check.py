"""Compare results of quantized MatMul nodes of a model with exact integer arithmetic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from specc.backend import Executable, QuantizedMatMul
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.runtime.single_model_file import LoadedModel
from specc.verification.result_comparison import RELATIVE_TOLERANCE
from specc.verification.rounding_errors_and_overflow import UNIT_ROUNDOFF, find_half_precision_dtype

UINT8_ZERO_POINT = 128
"""The zero point of quantized uint8 values."""
KERNEL_LANES = 16
"""Number of products in each partial sum of a kernel. The kernel adds partial sums in float32."""
ERROR_FACTOR = 10
"""Error bound in units of `√n u Σ|terms|`, with the unit roundoff `u` and the number of terms `n`.
The largest measured error was 4.4 (for K from 20 to 136 and group sizes from 32 to 256).
"""


@dataclass(frozen=True)
class QuantizedMatMulChecker:
    """The quantized MatMul nodes of a model, and a session that outputs their values."""

    session: Executable | None = None
    matmuls: tuple[QuantizedMatMul, ...] = ()

    @classmethod
    def from_model(cls, model: LoadedModel) -> "QuantizedMatMulChecker":
        """Collect the quantized MatMul nodes of a model. For a 16-bit model, collect no nodes."""
        if not model.manifest.quantized or find_half_precision_dtype(model.manifest.graph):
            return cls()
        return cls(*model.open_with_quantized_matmul_outputs())

    def compare_matmuls(self, inputs: Mapping[str, Array], sizes_text: str) -> str:
        """Run the model and compare its quantized MatMul nodes. Return the text that is appended to
        the line of the verification round. Raise E0855 if a result differs. Its message contains
        `sizes_text`, the formatted axis sizes.
        """
        if self.session is None or not self.matmuls:
            return ""
        results = self.session.run(inputs)
        max_error = compare_quantized_matmuls(self.matmuls, results, sizes_text)
        return f"; {len(self.matmuls)} quantized products agree, worst difference {max_error:.1e}"


def compare_quantized_matmuls(
    matmuls: Iterable[QuantizedMatMul], results: Mapping[str, Array], sizes_text: str
) -> float:
    """Return the largest relative error among the MatMul nodes. `results` contains their operands
    and results. Raise E0855 if the error exceeds the tolerance. Its message contains `sizes_text`,
    the formatted axis sizes.
    """
    max_error = 0.0
    for matmul in matmuls:
        values_by_role = {role: results[name] for role, name in matmul.value_names.items()}
        if not values_by_role["y"].size:
            continue
        error = _compute_matmul_error(matmul, values_by_role)
        max_error = max(max_error, error)
        if not error <= RELATIVE_TOLERANCE:
            raise_error(
                "E0855",
                f"a quantized matrix product differs by {error:.1e} of its largest value",
                notes=[f"`{matmul.value_names['y']}`, a {matmul.operator}", sizes_text],
                helps=[
                    "compile with `--quantize int8-weights`, and report this error with the "
                    "CPU model"
                ],
            )
    return max_error


def _compute_matmul_error(matmul: QuantizedMatMul, values_by_role: Mapping[str, Array]) -> float:
    x, y = values_by_role["x"], values_by_role["y"]
    match matmul.operator:
        # Integer errors are relative to the range of the integers, so an error of 1 exceeds the
        # tolerance.
        case "QuantizeLinear":
            expected = np.clip(
                np.rint(x), -UINT8_ZERO_POINT, UINT8_ZERO_POINT - 1
            ) + _get_zero_point(y)
            return float(np.abs(expected - y.astype(np.float64)).max()) / UINT8_ZERO_POINT
        case "DynamicQuantizeLinear":
            return _compute_per_tensor_error(values_by_role)
        case "DynamicQuantizeLSTM":
            expected = compute_quantized_lstm(
                values_by_role, reverse=bool(matmul.attributes["reverse"])
            )
            expected, y = expected.reshape(-1, expected.shape[-1]), y.reshape(-1, y.shape[-1])
        case "MatMulNBits":
            return _compute_group_matmul_error(values_by_role, matmul.attributes)
        case kind:
            weight = _get_first_iteration(values_by_role["w"]).astype(np.float64)
            weight = weight.T if kind == "QGemm" else weight
            zero_point = (
                values_by_role["middle"] if "middle" in values_by_role else _get_zero_point(x)
            )
            expected = _multiply_integers(x, weight, np.asarray(zero_point))
            if kind == "MatMulIntegerToFloat":
                token_scales = _flatten_leading_axes(values_by_role["token scales"])
                expected = expected * values_by_role["scales"] * token_scales
    max_difference = float(np.abs(expected - _flatten_leading_axes(y)).max())
    return max_difference / (float(np.abs(expected).max()) or 1.0)


def _compute_group_matmul_error(
    values_by_role: Mapping[str, Array], attributes: Mapping[str, int]
) -> float:
    """Return the largest relative error above the bound of a group-quantized MatMul, or 0."""
    expected, error_bound = _multiply_quantized_groups(values_by_role, attributes)
    difference = np.abs(expected - _flatten_leading_axes(values_by_role["y"]))
    max_difference = float(np.where(difference <= error_bound, 0.0, difference).max())
    return max_difference / (float(np.abs(expected).max()) or 1.0)


def _multiply_integers(x: Array, w: Array, zero_point: Array) -> Array:
    """Return `(x - zero_point) @ w`. A product in a loop has one zero point per loop iteration."""
    broadcast_shape = (*zero_point.shape, *[1] * (x.ndim - zero_point.ndim))
    centered = x.astype(np.float64) - zero_point.reshape(broadcast_shape)
    products: Array = _flatten_leading_axes(centered) @ w
    return products


def _compute_per_tensor_error(values_by_role: Mapping[str, Array]) -> float:
    """Return the maximum error of the codes and scales of per-tensor quantization."""
    x, y, scale = values_by_role["x"], values_by_role["y"], values_by_role["scale"]
    # there is one scale per iteration of all enclosing loops
    value_axes = tuple(range(scale.ndim, x.ndim))
    low = np.minimum(x.min(value_axes, initial=0), 0)
    high = np.maximum(x.max(value_axes, initial=0), 0)
    expected_scale = ((high - low) / np.float32(255)).astype(np.float32)
    expected_scale = np.where(expected_scale > 0, expected_scale, np.float32(1))
    broadcast_shape = (*scale.shape, *[1] * (x.ndim - scale.ndim))
    zero_point = np.clip(np.rint(-low / expected_scale), 0, 255)
    expected_codes = np.rint(x / expected_scale.reshape(broadcast_shape)) + zero_point.reshape(
        broadcast_shape
    )
    code_error = (
        np.abs(np.clip(expected_codes, 0, 255) - y.astype(np.float64)).max() / UINT8_ZERO_POINT
    )
    scale_error = np.abs(expected_scale.astype(np.float64) - scale).max() / expected_scale.max()
    return float(max(code_error, scale_error))


def _get_zero_point(x: Array) -> int:
    """Return the zero point of an integer element type."""
    return 0 if x.dtype == np.int8 else UINT8_ZERO_POINT


def _multiply_quantized_groups(
    values_by_role: Mapping[str, Array], attributes: Mapping[str, int]
) -> tuple[Array, Array]:
    """Multiply group-quantized activations and weights. Return the results and their float32 error
    bounds `λ √n u Σ|terms|` (Higham and Mary 2019, doi:10.1137/18M1226312). If a result is much
    smaller than its terms, the bound may exceed the result.
    """
    x, width, group_size = (
        _flatten_leading_axes(values_by_role["x"]),
        attributes["K"],
        attributes["block_size"],
    )
    # a weight has the shape [outputs, blocks, block size]
    w, scales = (
        _get_first_iteration(values_by_role["w"], 3),
        _get_first_iteration(values_by_role["scales"]),
    )
    bits = attributes["bits"]
    w = _unpack_codes(w, bits)
    zero_points = np.full(scales.shape, 1 << (bits - 1))
    if "zero points" in values_by_role:
        packed = _get_first_iteration(values_by_role["zero points"])
        zero_points = _unpack_codes(packed, bits)[:, : scales.shape[1]]
    expected, terms = (np.zeros((len(x), len(w))), np.zeros((len(x), len(w))))
    for n, start in enumerate(range(0, width, group_size)):
        group = x[:, start : start + group_size]
        # at accuracy level 4, the kernel also quantizes activations
        if attributes.get("accuracy_level") == 4:
            group = _quantize_dequantize_group(group)
        # the last block of a weight is padded and may be longer than the group
        zeros = zero_points[:, n].astype(np.float64)
        group_weights = w[:, n, : group.shape[1]].astype(np.float64) - zeros[:, None]
        for lane in range(0, group.shape[1], KERNEL_LANES):
            x_part = group[:, lane : lane + KERNEL_LANES].astype(np.float64)
            partial_sums = x_part @ group_weights[:, lane : lane + KERNEL_LANES].T
            # kernels multiply unsigned values and subtract the zero point last
            zero_point_terms = zeros * np.abs(x_part.sum(-1, keepdims=True))
            expected += partial_sums * scales[:, n]
            terms += (np.abs(partial_sums) + 2 * zero_point_terms) * np.abs(scales[:, n])
    return expected, ERROR_FACTOR * np.sqrt(-(-width // KERNEL_LANES)) * UNIT_ROUNDOFF * terms


def _unpack_codes(packed: Array, bits: int) -> Array:
    """Unpack quantized codes from bytes. A byte contains two 4-bit codes. The first code is in the
    low nibble.
    """
    if bits != 4:
        return packed
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def _quantize_dequantize_group(group: Array) -> Array:
    """Quantize and dequantize the values of a group in float32, as the kernel does. If the factor
    `127 / absmax` overflows float32 (absmax < 1e-36), return zeros.
    """
    absmax = np.abs(group).max(-1, keepdims=True)
    scale, factor = absmax / np.float32(127), np.zeros_like(absmax)
    with np.errstate(over="ignore"):
        np.divide(np.float32(127), absmax, out=factor, where=absmax != 0)
    factor[np.isinf(factor)] = 0
    dequantized: Array = np.rint(group * factor).astype(np.float64) * scale
    return dequantized


def _flatten_leading_axes(x: Array) -> Array:
    """Flatten all axes except the last, including loop iterations."""
    return x.reshape(-1, x.shape[-1])


def _get_first_iteration(w: Array, rank: int = 2) -> Array:
    """Return the weight of the first loop iteration. All iterations use the same weight."""
    while w.ndim > rank:
        w = w[0]
    return w


QUANTIZATION_STEPS = np.float32(255)
"""The number of steps between the minimum and maximum of an 8-bit integer."""


def compute_quantized_lstm(values_by_role: Mapping[str, Array], *, reverse: bool) -> Array:
    """Return the hidden states `[time, 1, batch, state]` that `DynamicQuantizeLSTM` computes."""
    x, model_outputs = values_by_role["x"].astype(np.float32), values_by_role["y"][:, 0]
    lengths = values_by_role.get("lengths")
    lengths = np.full(x.shape[1], len(x)) if lengths is None else lengths
    # In the reverse direction, each sequence is processed from its last to its first position, and
    # its outputs are reversed.
    if reverse:
        x, model_outputs = (
            _reverse_sequences(x, lengths),
            _reverse_sequences(model_outputs, lengths),
        )
    max_length = int(lengths.max(initial=0))
    # If there is a single scale, the kernel quantizes all positions of all iterations before the
    # first iteration.
    input_gates = _quantize_dequantize_tensor(x[:max_length]) @ _dequantize_weights(
        values_by_role["w"], values_by_role["w scales"]
    )
    # ONNX concatenates the biases of both weight matrices.
    if "b" in values_by_role:
        input_gates = input_gates + values_by_role["b"][0].reshape(2, -1).sum(0, dtype=np.float64)
    recurrent_weights = _dequantize_weights(values_by_role["u"], values_by_role["u scales"])
    zeros = np.zeros(model_outputs.shape[1:])
    cell = values_by_role["cell"][0] if "cell" in values_by_role else zeros
    state = values_by_role["state"][0] if "state" in values_by_role else zeros
    expected = np.zeros(model_outputs.shape)
    for step in range(max_length):
        # outputs of a finished sequence are zero
        state = model_outputs[step - 1] if step else state
        gates = input_gates[step] + _quantize_dequantize_tensor(state) @ recurrent_weights
        hidden, cell = _apply_lstm_gates(gates, cell, values_by_role.get("peepholes"))
        expected[step] = np.where(step < lengths[:, None], hidden, 0)
    return (_reverse_sequences(expected, lengths) if reverse else expected)[:, None]


def _quantize_dequantize_tensor(x: Array) -> Array:
    """Quantize and dequantize a tensor in float32 with one scale, as ONNX Runtime does."""
    x = x.astype(np.float32)
    low, high = x.min(initial=0), x.max(initial=0)
    scale = (high - low) / QUANTIZATION_STEPS if high > low else np.float32(1)
    zero_point = np.rint(-low / scale)
    codes = np.clip(np.rint(x / scale) + zero_point, 0, QUANTIZATION_STEPS) - zero_point
    dequantized: Array = codes.astype(np.float64) * np.float64(scale)
    return dequantized


def _dequantize_weights(codes: Array, scales: Array) -> Array:
    weights: Array = codes[0].astype(np.float64) * scales[0]
    return weights


def _apply_lstm_gates(gates: Array, cell: Array, peepholes: Array | None) -> tuple[Array, Array]:
    """Return the hidden and cell states of an LSTM from gates in the ONNX order i, o, f, c."""
    i, o, f, g = np.split(gates, 4, axis=1)
    peephole_weights = np.zeros((1, 3 * cell.shape[1])) if peepholes is None else peepholes
    p_i, p_o, p_f = np.split(peephole_weights[0], 3)
    kept_cell = _compute_sigmoid(f + p_f * cell) * cell
    new_cell = _compute_sigmoid(i + p_i * cell) * np.tanh(g)
    next_cell = kept_cell + new_cell
    # the peephole of the output gate reads the new cell state
    return _compute_sigmoid(o + p_o * next_cell) * np.tanh(next_cell), next_cell


def _compute_sigmoid(x: Array) -> Array:
    # compute 1 / (1 + exp(-x)) without overflow
    result: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return result


def _reverse_sequences(x: Array, lengths: Array) -> Array:
    """Reverse the valid positions of each sequence. Padded positions are not moved."""
    reversed_x = x.copy()
    for batch_index, length in enumerate(lengths):
        reversed_x[:length, batch_index] = x[:length, batch_index][::-1]
    return reversed_x
