"""Lower `Resize` and `GridSample`.

`Resize` is lowered to ONNX's `Resize` if that operator is exact, and otherwise to gathers and
weighted sums.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_targets import HALF_DTYPES
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import emit_arange, emit_reshape

CUBIC_COEFFICIENT = -0.75
"""The coefficient `a` of cubic convolution (Keys, 1981) in PyTorch."""


@lower
def resize(op: ops.Resize, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower a resize to ONNX's `Resize` only if the result is exact. `Resize` computes coordinates
    in float32, with errors of 1e-5 from 50 positions on (except for factors of 2). Its cubic mode
    is slow, and it rounds nearest-neighbor coordinates differently from PyTorch.
    """
    if op.mode == "bilinear" and not op.antialias and _is_exact_in_float32(op, x):
        return _emit_resize(op, g, x)
    result: OnnxValue = x
    for index in _order_resized_axes(op, x):
        axis, size = op.axis + index, op.sizes[index]
        sampler = _AxisSampler(g, op, x.shape[axis], size, index)
        if op.antialias:
            result = sampler.emit_antialiased(result, axis, x.rank)
        elif op.is_interpolating:
            result = sampler.emit_interpolated(result, axis, x.rank)
        else:
            result = result.gather(sampler.emit_nearest(), axis)
    return result


def _order_resized_axes(op: ops.Resize, x: Tensor) -> list[int]:
    """Return the axes in the order in which they are resized. Downsampled axes come before
    upsampled axes, and each group is ordered from the last axis to the first.
    """

    def get_axis_order(n: int) -> tuple[bool, int]:
        length, size = x.shape[op.axis + n].number, op.sizes[n].number
        is_upsampled = length is None or size is None or size > length
        return is_upsampled, -n if is_upsampled else n

    return sorted(range(len(op.sizes)), key=get_axis_order)


def _is_exact_in_float32(op: ops.Resize, x: Tensor) -> bool:
    """Return True if every sampled coordinate is exact in float32."""
    if op.align_corners:
        return False
    # compute the scale from the axis sizes, because 0.5 times an odd size would be rounded
    lengths = zip(x.shape[op.axis :], op.sizes, strict=False)
    factors = op.factors or (None,) * len(op.sizes)
    # `np.frexp` returns the mantissa 0.5 for a power of two.
    return all(
        np.frexp(_compute_scale_factor(n, m, factor))[0] == 0.5
        for (n, m), factor in zip(lengths, factors, strict=True)
    )


def _compute_scale_factor(length: Dim, target_length: Dim, factor: float | None) -> float:
    """Return the scale factor of a resized axis, or 0 if it is unknown at compile time."""
    if factor is not None and factor == int(factor):
        return factor
    if length.number is None or target_length.number is None:
        return 0.0
    ratio = target_length.number / length.number
    return ratio if factor in (None, ratio) else 0.0


def _emit_resize(op: ops.Resize, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit `Resize` with all other axes merged into the batch axis. The shape is `[n, 1, height,
    width]` for two resized axes and `[n, 1, 1, width]` for one.
    """
    count, rank = len(op.sizes), x.rank
    resized_axes = range(op.axis, op.axis + count)
    order = [*(n for n in range(rank) if n not in resized_axes), *resized_axes]
    is_transposed = order != [*range(rank)]
    shape = [x.shape[n] for n in order]
    leading_shape = shape[: rank - count]
    unit_axes = [Dim.from_value(1)] * (2 if count == 1 else 1)
    transposed = x.transpose(order) if is_transposed else x
    result_shape = (multiply_dims(leading_shape), *unit_axes, *op.sizes)
    source_shape = (multiply_dims(leading_shape), *unit_axes, *shape[rank - count :])
    resized = emit_reshape(transposed, source_shape, source_shape=shape).apply_op(
        "Resize",
        None,
        None,
        g.emit_shape(result_shape),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    resized = emit_reshape(resized, (*leading_shape, *op.sizes), source_shape=result_shape)
    if not is_transposed:
        return resized
    return resized.transpose([order.index(n) for n in range(rank)])


LINEAR_GRID_SINCE = 20
"""The first opset in which the bilinear mode of `GridSample` is named `linear`."""


@lower
def grid_sample(op: ops.GridSample, g: Emitter, x: Tensor, grid: Tensor) -> OnnxValue:
    """Emit a `GridSample` with a grid of width 1. 16-bit floats are computed in f32."""
    batch, channels = x.shape[:2]
    count = multiply_dims(grid.shape[1:-1])
    points = (batch, count, 1, 2)
    compute_dtype = "f32" if x.dtype in HALF_DTYPES else x.dtype
    operands = (x, emit_reshape(grid, points))
    mode = "linear" if op.mode == "bilinear" and g.opset >= LINEAR_GRID_SINCE else op.mode
    sampled = g.emit_node(
        "GridSample",
        *(operand.cast(compute_dtype) for operand in operands),
        mode=mode,
        padding_mode=op.padding_mode,
        align_corners=int(op.align_corners),
    )
    sampled = sampled.cast(x.dtype)
    sampled_shape = (batch, channels, count, 1)
    return emit_reshape(sampled, (batch, channels, *grid.shape[1:-1]), source_shape=sampled_shape)


def compute_antialias_weights(
    mode: str, length: int, target_length: int
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return the source positions and weights of each filter tap for `target_length` outputs."""
    step = length / target_length
    filter_scale = max(step, 1.0)
    radius = filter_scale if mode == "bilinear" else 2 * filter_scale
    centers = (np.arange(target_length) + 0.5) * step
    first_positions = np.floor(centers - radius + 0.5)
    # the first axis of `positions` is the filter tap, and the second axis is the output position
    positions = first_positions + np.arange(np.ceil(2 * radius) + 1)[:, None]
    distance = np.abs(positions + 0.5 - centers) / filter_scale
    weights = ANTIALIAS_KERNELS[mode](distance) * ((positions >= 0) & (positions < length))
    weights = weights / weights.sum(axis=0)
    indices = positions.clip(0, length - 1).astype(np.int64)
    return [(n, weight) for n, weight in zip(indices, weights, strict=True) if weight.any()]


def _evaluate_cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evaluate the cubic kernel of Keys (1981) with a = -0.5."""
    inner = 1.5 * distance**3 - 2.5 * distance**2 + 1
    outer = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    weights: NDArray[np.float64] = np.select([distance < 1, distance < 2], [inner, outer])
    return weights


ANTIALIAS_KERNELS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "bilinear": lambda distance: np.maximum(1 - distance, 0),
    "bicubic": _evaluate_cubic,
}
"""The antialiasing filter function of each mode. The function maps distances between source
positions and the center of an output position, divided by the filter scale, to filter weights.
"""


@dataclass(frozen=True)
class _AxisSampler:
    """An emitter for nodes that resize one axis to `target_length`. `index` is the axis's index in
    `op.factors`.
    """

    g: Emitter
    op: ops.Resize
    length: Dim
    target_length: Dim
    index: int

    def emit_nearest(self) -> OnnxValue:
        """Emit nearest-neighbor positions `⌊i · n / m⌋`, computed in float32 as in PyTorch."""
        points = emit_arange(self.g, self.target_length).cast("f32")
        if self.op.mode == "nearest_exact":
            points = points + 0.5
        indices = (points * self._emit_step("f32")).floor()
        return self._clamp_positions(indices.cast("i64"))

    def emit_antialiased(self, x: OnnxValue, axis: int, rank: int) -> OnnxValue:
        """Resize `axis` of `x`, which has `rank` axes, with an antialiasing filter whose weights
        are constants. The axis size and the target size are static.
        """
        length, size = self.length.number, self.target_length.number
        assert length is not None, "antialiased `resize` requires a static axis size"
        assert size is not None, "antialiased `resize` requires a static target size"
        terms = []
        for indices, weights in compute_antialias_weights(self.op.mode, length, size):
            values = x.gather(indices.tolist(), axis)
            weight = self.g.emit_constant(weights.reshape(-1, *[1] * (rank - axis - 1)), "f32")
            terms.append(values * weight)
        return sum(terms[1:], terms[0])

    def emit_interpolated(self, x: OnnxValue, axis: int, rank: int) -> OnnxValue:
        """Resize `axis` of `x`, which has `rank` axes, by linear or cubic interpolation."""
        coordinates = self._emit_positions()
        if self.op.mode == "bilinear":
            coordinates = coordinates.maximum(0.0)
        lower = coordinates.floor()
        fraction = (coordinates - lower).cast("f32")
        fraction = fraction.unsqueeze(*range(1, rank - axis))
        lower_index = lower.cast("i64")
        if self.op.mode == "bilinear":
            left_values, right_values = (
                self._emit_neighbor(x, axis, lower_index, step) for step in (0, 1)
            )
            left_weight = 1.0 - fraction
            # Multiply each of the two neighbors by its weight. Do not interpolate with the
            # difference of the neighbors, because the difference of two infinities is NaN.
            return left_values * left_weight + right_values * fraction
        terms = [
            self._emit_neighbor(x, axis, lower_index, step) * self._emit_weight(fraction, step)
            for step in (-1, 0, 1, 2)
        ]
        return sum(terms[1:], terms[0])

    def _emit_positions(self) -> OnnxValue:
        """Emit the source coordinates in float64."""
        g = self.g
        points = emit_arange(g, self.target_length).cast("f64")
        if self.op.align_corners:
            # for an output axis of size 1, the divisor is replaced by 1
            last_index = g.emit_length(self.target_length - 1).maximum(1)
            last_source = g.emit_length(self.length - 1).cast("f64")
            return points * (last_source / last_index.cast("f64"))
        return (points + 0.5) * self._emit_step("f64") - 0.5

    def _emit_step(self, dtype: str) -> OnnxValue:
        """Emit the distance between the source coordinates of two adjacent output positions."""
        g = self.g
        if self.op.factors:
            return g.emit_constant(1 / self.op.factors[self.index], dtype)
        length, target_length = (
            g.emit_length(d).cast(dtype) for d in (self.length, self.target_length)
        )
        return length / target_length

    def _emit_neighbor(
        self, x: OnnxValue, axis: int, lower_index: OnnxValue, step: int
    ) -> OnnxValue:
        """Emit the values of `x` at index `lower_index + step`, clamped to the range of `axis`."""
        positions = lower_index + step if step else lower_index
        if self.op.mode == "bicubic":
            positions = positions.maximum(0)
        return x.gather(self._clamp_positions(positions), axis)

    def _clamp_positions(self, positions: OnnxValue) -> OnnxValue:
        return positions.minimum(self.g.emit_length(self.length - 1))

    def _emit_weight(self, fraction: OnnxValue, step: int) -> OnnxValue:
        """Emit the cubic interpolation weight at distance `|fraction - step|`."""
        a = CUBIC_COEFFICIENT
        distance = (fraction - float(step)).abs()
        is_inner = step in (0, 1)
        # ((a + 2) d - (a + 3)) d d + 1 for d <= 1, and ((a d - 5 a) d + 8 a) d - 4 a for d > 1
        coefficients = (a + 2, -(a + 3), 0.0, 1.0) if is_inner else (a, -5 * a, 8 * a, -4 * a)
        weight = self.g.emit_constant(coefficients[0], "f32")
        for coefficient in coefficients[1:]:
            weight = weight * distance
            weight = weight + coefficient if coefficient else weight
        return weight
