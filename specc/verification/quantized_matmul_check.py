"""Check matrix products of quantized weights against integer arithmetic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from specc.backend import Computation, QuantizedProduct
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.runtime.loaded_model import LoadedModel
from specc.verification.rounding_errors import UNIT_ROUNDOFF, half_format_of
from specc.verification.tolerance import RELATIVE_TOLERANCE

UINT8_ZERO_POINT = 128
"""The zero point of uint8 codes."""
KERNEL_LANES = 16
"""Number of terms that kernels accumulate at once before adding partial sums in float32."""
ERROR_FACTOR = 10
"""Measured errors were up to 4.4 √n u times the terms (K from 20 to 136, groups of 32 to 256)."""


@dataclass(frozen=True)
class QuantizedProducts:
    """The quantized matrix products of a model, if any."""

    session: Computation | None = None
    products: tuple[QuantizedProduct, ...] = ()

    @classmethod
    def of(cls, model: LoadedModel) -> "QuantizedProducts":
        """Build from an open model; empty for 16-bit models, which round each product again."""
        if not model.manifest.quantized or half_format_of(model.manifest.graph):
            return cls()
        return cls(*model.with_products())

    def compare_run(self, inputs: Mapping[str, Array], shown: str) -> str:
        """Compare the products of one run and format the suffix of its line. E0855 if one
        differs.
        """
        if self.session is None or not self.products:
            return ""
        results = self.session.run(inputs)
        worst = compare_products(self.products, results, shown)
        return f"; {len(self.products)} roundings and products too, worst {worst:.1e}"


def compare_products(
    products: Iterable[QuantizedProduct], results: Mapping[str, Array], shown: str
) -> float:
    """Return the largest relative difference of any product. E0855 if it exceeds the tolerance;
    `shown` names the lengths.
    """
    worst = 0.0
    for product in products:
        given = {role: results[name] for role, name in product.value_names.items()}
        if not given["y"].size:
            continue
        apart = _apart(product, given)
        worst = max(worst, apart)
        if not apart <= RELATIVE_TOLERANCE:
            raise_error(
                "E0855",
                f"a quantized matrix product differs by {apart:.1e} of its largest value",
                notes=[f"`{product.value_names['y']}`, a {product.operator}", shown],
                helps=[
                    "this processor multiplies integers differently; compile "
                    "with `--quantize int8-weights`, or report it"
                ],
            )
    return worst


def _apart(product: QuantizedProduct, given: Mapping[str, Array]) -> float:
    x, y = given["x"], given["y"]
    match product.operator:
        # Integers are compared relative to their range, so that an error of one is far above the
        # tolerance.
        case "QuantizeLinear":
            want = np.clip(np.rint(x), -UINT8_ZERO_POINT, UINT8_ZERO_POINT - 1) + _middle(y)
            return float(np.abs(want - y.astype(np.float64)).max()) / UINT8_ZERO_POINT
        case "DynamicQuantizeLinear":
            return _together_apart(given)
        case "DynamicQuantizeLSTM":
            want = integer_lstm_results(given, reverse=bool(product.attributes["reverse"]))
            want, y = want.reshape(-1, want.shape[-1]), y.reshape(-1, y.shape[-1])
        case "MatMulNBits":
            return _compare_block_product(given, product.attributes)
        case kind:
            w = _product_matrix(given["w"]).astype(np.float64)
            w = w.T if kind == "QGemm" else w
            middle = given["middle"] if "middle" in given else _middle(x)
            want = _products(x, w, np.asarray(middle))
    gap = float(np.abs(want - _rows(y)).max())
    return gap / (float(np.abs(want).max()) or 1.0)


def _compare_block_product(given: Mapping[str, Array], numbers: Mapping[str, int]) -> float:
    """Return the relative error of a product in blocks, beyond the rounding error of float32
    sums.
    """
    want, allowed = _in_blocks(given, numbers)
    gap = np.abs(want - _rows(given["y"]))
    largest = float(np.where(gap <= allowed, 0.0, gap).max())
    return largest / (float(np.abs(want).max()) or 1.0)


def _products(x: Array, w: Array, middle: Array) -> Array:
    """Multiply integers after subtracting the zero point. In a loop each iteration has its own."""
    turns = (*middle.shape, *[1] * (x.ndim - middle.ndim))
    whole = x.astype(np.float64) - middle.reshape(turns)
    made: Array = _rows(whole) @ w
    return made


def _together_apart(given: Mapping[str, Array]) -> float:
    """Return the error of per-tensor quantization: in integers, and of the scale. In a loop each
    iteration has its own.
    """
    x, y, scale = given["x"], given["y"], given["scale"]
    # a scale per iteration of each enclosing loop
    numbers = tuple(range(scale.ndim, x.ndim))
    low = np.minimum(x.min(numbers, initial=0), 0)
    high = np.maximum(x.max(numbers, initial=0), 0)
    wanted = ((high - low) / np.float32(255)).astype(np.float32)
    wanted = np.where(wanted > 0, wanted, np.float32(1))
    each = (*scale.shape, *[1] * (x.ndim - scale.ndim))
    middle = np.clip(np.rint(-low / wanted), 0, 255)
    whole = np.rint(x / wanted.reshape(each)) + middle.reshape(each)
    off = np.abs(np.clip(whole, 0, 255) - y.astype(np.float64)).max() / UINT8_ZERO_POINT
    of_scale = np.abs(wanted.astype(np.float64) - scale).max() / wanted.max()
    return float(max(off, of_scale))


def _middle(x: Array) -> int:
    """Return the zero point of an integer element type."""
    return 0 if x.dtype == np.int8 else UINT8_ZERO_POINT


def _in_blocks(given: Mapping[str, Array], numbers: Mapping[str, int]) -> tuple[Array, Array]:
    """Return products of group-quantized activations and weights, and the error bounds of float32,
    since a result may be far smaller than its terms: `λ √n u` of the terms (Higham and Mary 2019,
    doi:10.1137/18M1226312).
    """
    x, wide, block = _rows(given["x"]), numbers["K"], numbers["block_size"]
    # weights are [outputs, blocks, elements of a block]
    w, scales = _product_matrix(given["w"], 3), _product_matrix(given["scales"])
    # two codes per byte, the first in the low nibble
    if numbers["bits"] == 4:
        halves = np.stack([w & 15, w >> 4], -1)
        w = halves.reshape(*w.shape[:2], -1)
    middle = 1 << (numbers["bits"] - 1)
    want, terms = np.zeros((len(x), len(w))), np.zeros((len(x), len(w)))
    for n, start in enumerate(range(0, wide, block)):
        piece = x[:, start : start + block]
        # at this accuracy level the kernel quantizes activations too
        if numbers.get("accuracy_level") == 4:
            piece = _rounded(piece)
        # the last block is padded, and a row ends before it
        whole = w[:, n, : piece.shape[1]].astype(np.float64) - middle
        for lane in range(0, piece.shape[1], KERNEL_LANES):
            x_part = piece[:, lane : lane + KERNEL_LANES].astype(np.float64)
            made = x_part @ whole[:, lane : lane + KERNEL_LANES].T
            # kernels multiply unsigned codes and subtract the zero point last
            taken = middle * np.abs(x_part.sum(-1, keepdims=True))
            want += made * scales[:, n]
            terms += (np.abs(made) + 2 * taken) * np.abs(scales[:, n])
    return want, ERROR_FACTOR * np.sqrt(-(-wide // KERNEL_LANES)) * UNIT_ROUNDOFF * terms


def _rounded(piece: Array) -> Array:
    """Quantize and dequantize the values of a group, as the kernel does in float32. A group whose
    factor overflows float32 is zero: it is below 1e-36.
    """
    most = np.abs(piece).max(-1, keepdims=True)
    scale, part = most / np.float32(127), np.zeros_like(most)
    with np.errstate(over="ignore"):
        np.divide(np.float32(127), most, out=part, where=most != 0)
    part[np.isinf(part)] = 0
    made: Array = np.rint(piece * part).astype(np.float64) * scale
    return made


def _rows(x: Array) -> Array:
    """Flatten all axes but the last, including loop iterations."""
    return x.reshape(-1, x.shape[-1])


def _product_matrix(w: Array, axes: int = 2) -> Array:
    """Return a weight; one that a loop returned is the same in each iteration."""
    while w.ndim > axes:
        w = w[0]
    return w


QUANTIZATION_STEPS = np.float32(255)
"""The number of steps between the minimum and maximum of 256 integers."""


def integer_lstm_results(given: Mapping[str, Array], *, reverse: bool) -> Array:
    """Return the results `[time, 1, batch, state]` that `DynamicQuantizeLSTM` should compute."""
    x, made = given["x"].astype(np.float32), given["y"][:, 0]
    counts = given.get("lengths")
    counts = np.full(x.shape[1], len(x)) if counts is None else counts
    # In reverse direction each sequence is processed from right to left, and so are the outputs.
    if reverse:
        x, made = _turned(x, counts), _turned(made, counts)
    longest = int(counts.max(initial=0))
    # One scale for all positions of all iterations: the kernel quantizes them before the first
    # iteration.
    sums = _whole(x[:longest]) @ _matrix(given["w"], given["w scales"])
    # ONNX has a bias for each matrix, concatenated.
    if "b" in given:
        sums = sums + given["b"][0].reshape(2, -1).sum(0, dtype=np.float64)
    states = _matrix(given["u"], given["u scales"])
    zeros = np.zeros(made.shape[1:])
    cell = given["cell"][0] if "cell" in given else zeros
    fed = given["state"][0] if "state" in given else zeros
    want = np.zeros(made.shape)
    for turn in range(longest):
        # a finished sequence counts with zeros, which is what it output
        fed = made[turn - 1] if turn else fed
        gates = sums[turn] + _whole(fed) @ states
        out, cell = _through(gates, cell, given.get("peepholes"))
        want[turn] = np.where(turn < counts[:, None], out, 0)
    return (_turned(want, counts) if reverse else want)[:, None]


def _whole(x: Array) -> Array:
    """Quantize and dequantize per tensor, as ONNX Runtime does in float32."""
    x = x.astype(np.float32)
    low, high = x.min(initial=0), x.max(initial=0)
    scale = (high - low) / QUANTIZATION_STEPS if high > low else np.float32(1)
    middle = np.rint(-low / scale)
    units = np.clip(np.rint(x / scale) + middle, 0, QUANTIZATION_STEPS) - middle
    made: Array = units.astype(np.float64) * np.float64(scale)
    return made


def _matrix(numbers: Array, scales: Array) -> Array:
    made: Array = numbers[0].astype(np.float64) * scales[0]
    return made


def _through(gates: Array, cell: Array, peepholes: Array | None) -> tuple[Array, Array]:
    """Return hidden state and cell from gates in ONNX's order: input, output, forget, cell."""
    i, o, f, g = np.split(gates, 4, axis=1)
    peep = np.zeros((1, 3 * cell.shape[1])) if peepholes is None else peepholes
    p_i, p_o, p_f = np.split(peep[0], 3)
    kept = _sigmoid(f + p_f * cell) * cell
    taken = _sigmoid(i + p_i * cell) * np.tanh(g)
    new = kept + taken
    # the output gate's peephole reads the new cell
    return _sigmoid(o + p_o * new) * np.tanh(new), new


def _sigmoid(x: Array) -> Array:
    # 1 / (1 + exp(-x)) without an overflow
    made: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return made


def _turned(x: Array, counts: Array) -> Array:
    """Reverse each sequence up to its length; padding stays."""
    made = x.copy()
    for text, count in enumerate(counts):
        made[:count, text] = x[:count, text][::-1]
    return made
