"""Lower ops that select, reorder or resample positions.

`Resize` becomes ONNX's operator where that is exact, else gathers and weighted sums.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specc.ir import ops
from specc.ir.dim import Dim, mod_dims, multiply_dims
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.onnx_targets import HALF_DTYPES
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_arange,
    emit_cast,
    emit_checked_length,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
)


@lower
def sort(op: ops.Sort, g: Emitter, x: Tensor) -> tuple[str, ...]:
    """Emit a full `TopK`; ONNX orders equal elements by index."""
    count = g.shape([x.shape[op.axis]])
    largest = int(op.descending)
    return g.nodes("TopK", 2, x, count, axis=op.axis, largest=largest, sorted=1)


@lower
def top_k(op: ops.TopK, g: Emitter, x: Tensor) -> tuple[str, ...]:
    """Emit one operator; ONNX orders equal elements by index."""
    rest = x.shape[op.axis] - op.k
    count = emit_checked_length(g, op.k, op.k, rest)
    return g.nodes("TopK", 2, x, count, axis=op.axis, largest=op.largest, sorted=1)


@lower
def stride(op: ops.Stride, g: Emitter, x: Tensor) -> str:
    """Lower to `Slice` with a step."""
    length = x.shape[op.axis]
    start = emit_checked_length(g, op.start, op.start, op.stop - op.start)
    stop = emit_checked_length(g, op.stop, length - op.stop, op.step - 1)
    return g.node("Slice", x, start, stop, [op.axis], g.shape([op.step]))


@lower
def roll(op: ops.Roll, g: Emitter, x: Tensor) -> str:
    """Lower to `Concat` of two slices."""
    length = x.shape[op.axis]
    # with length 0 nothing moves; the undefined remainder by 0 does not matter
    by = op.by if length == 0 else mod_dims(op.by, length)
    if by == 0:
        return x.name
    first = emit_slice(g, x, op.axis, length - by, length)
    second = emit_slice(g, x, op.axis, 0, length - by)
    return g.node("Concat", first, second, axis=op.axis)


@lower
def pad(op: ops.Pad, g: Emitter, x: Tensor) -> str:
    """Lower to `Pad` with widths for both ends of every axis."""
    if op.before == 0 == op.after:
        return x.name
    length = x.shape[op.axis]
    # ONNX takes the starts of all axes first, then the ends.
    ends = [Dim.of(0)] * (2 * x.rank)
    ends[op.axis], ends[op.axis + x.rank] = op.before, op.after
    first, *others = op.list_nonnegative_lengths(length)
    before = emit_checked_length(g, op.before, first, *others)
    widths = [g.shape([end]) for end in ends]
    widths[op.axis] = before
    value = g.constant(op.value, x.dtype) if op.mode == "constant" else None
    every = g.node("Concat", *widths, axis=0)
    return g.node("Pad", x, every, value, mode=op.mode)


CUBIC_COEFFICIENT = -0.75
"""The coefficient `a` of cubic convolution (Keys, 1981) in PyTorch."""


@lower
def resize(op: ops.Resize, g: Emitter, x: Tensor) -> str:
    """Lower to `Resize` only where it is exact: it computes positions in float32 (errors of 1e-5
    from 50 positions on, except for factors of 2); its cubic mode is slow, and its nearest pixels
    are not PyTorch's.
    """
    if op.mode == "bilinear" and not op.antialias and _is_exact_in_float32(op, x):
        return _emit_resize(op, g, x)
    name = x.name
    for n in _order_resized_axes(op, x):
        axis, size = op.axis + n, op.sizes[n]
        places = _AxisSampler(g, op, x.shape[axis], size, n)
        if op.antialias:
            name = places.emit_antialiased(name, axis, x.rank)
        elif op.interpolates:
            name = places.emit_interpolated(name, axis, x.rank)
        else:
            name = g.node("Gather", name, places.emit_nearest(), axis=axis)
    return name


def _order_resized_axes(op: ops.Resize, x: Tensor) -> list[int]:
    """Order the axes: those that shrink first, the last axis while there is little to read."""

    def get_axis_order(n: int) -> tuple[bool, int]:
        before, after = x.shape[op.axis + n].number, op.sizes[n].number
        grows = before is None or after is None or after > before
        return grows, -n if grows else n

    return sorted(range(len(op.sizes)), key=get_axis_order)


def _is_exact_in_float32(op: ops.Resize, x: Tensor) -> bool:
    """Return whether every sampled position is exact in single precision."""
    if op.align_corners:
        return False
    # computed from the lengths: factor 0.5 of an odd length gives a rounded length
    lengths = zip(x.shape[op.axis :], op.sizes, strict=False)
    factors = op.factors or (None,) * len(op.sizes)
    return all(
        np.frexp(_compute_scale(n, m, factor))[0] == 0.5  # a power of two
        for (n, m), factor in zip(lengths, factors, strict=True)
    )


def _compute_scale(before: Dim, after: Dim, factor: float | None) -> float:
    """Return the scale factor of an axis; 0 if it is unknown."""
    if factor is not None and factor == int(factor):
        return factor
    if before.number is None or after.number is None:
        return 0.0
    by = after.number / before.number
    return by if factor in (None, by) else 0.0


def _emit_resize(op: ops.Resize, g: Emitter, x: Tensor) -> str:
    """Emit `Resize` over `[n, 1, …]`; a single axis is resized as an image of height 1."""
    count, rank = len(op.sizes), x.rank
    changed = range(op.axis, op.axis + count)
    order = [*(n for n in range(rank) if n not in changed), *changed]
    is_transposed = order != [*range(rank)]
    shape = [x.shape[n] for n in order]
    stay = shape[: rank - count]
    line = [Dim.of(1)] * (2 if count == 1 else 1)
    name = g.node("Transpose", x, perm=order) if is_transposed else x.name
    outer = (multiply_dims(stay), *line, *op.sizes)
    before = (multiply_dims(stay), *line, *shape[rank - count :])
    made = g.node(
        "Resize",
        emit_reshape(g, name, before, before=shape),
        None,
        None,
        g.shape(outer),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    made = emit_reshape(g, made, (*stay, *op.sizes), before=outer)
    if not is_transposed:
        return made
    return g.node("Transpose", made, perm=[order.index(n) for n in range(rank)])


LINEAR_GRID_SINCE = 20
"""From this opset on `GridSample` calls its bilinear mode `linear`."""


@lower
def grid_sample(op: ops.GridSample, g: Emitter, x: Tensor, grid: Tensor) -> str:
    """Lower to `GridSample` over a grid of one column; 16-bit floats compute in f32."""
    batch, channels = x.shape[:2]
    count = multiply_dims(grid.shape[1:-1])
    points = (batch, count, 1, 2)
    dtype = x.dtype
    wide = "f32" if dtype in HALF_DTYPES else dtype
    names = (x.name, emit_reshape(g, grid, points))
    mode = "linear" if op.mode == "bilinear" and g.opset >= LINEAR_GRID_SINCE else op.mode
    made = g.node(
        "GridSample",
        *(emit_cast(g, name, wide, before=dtype) for name in names),
        mode=mode,
        padding_mode=op.padding_mode,
        align_corners=int(op.align_corners),
    )
    made = emit_cast(g, made, dtype, before=wide)
    before = (batch, channels, count, 1)
    return emit_reshape(g, made, (batch, channels, *grid.shape[1:-1]), before=before)


def compute_antialias_weights(
    mode: str, rows: int, size: int
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return source positions and weights of the `size` points, one pair per filter tap."""
    step = rows / size
    wide = max(step, 1.0)
    reach = wide if mode == "bilinear" else 2 * wide
    middle = (np.arange(size) + 0.5) * step
    first = np.floor(middle - reach + 0.5)
    # positions × points
    at = first + np.arange(np.ceil(2 * reach) + 1)[:, None]
    far = np.abs(at + 0.5 - middle) / wide
    share = ANTIALIAS_KERNELS[mode](far) * ((at >= 0) & (at < rows))
    share = share / share.sum(axis=0)
    numbers = at.clip(0, rows - 1).astype(np.int64)
    return [(n, s) for n, s in zip(numbers, share, strict=True) if s.any()]


def _evaluate_cubic(far: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evaluate the cubic kernel of Keys (1981) with a = -0.5."""
    inside = 1.5 * far**3 - 2.5 * far**2 + 1
    outside = -0.5 * far**3 + 2.5 * far**2 - 4 * far + 2
    shares: NDArray[np.float64] = np.select([far < 1, far < 2], [inside, outside])
    return shares


ANTIALIAS_KERNELS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "bilinear": lambda far: np.maximum(1 - far, 0),
    "bicubic": _evaluate_cubic,
}
"""The weight of a source position by its distance, in units of the scale."""


@dataclass(frozen=True)
class _AxisSampler:
    """Emitter that resizes one axis, the `number`-th resized one, from `length` to `size`."""

    g: Emitter
    op: ops.Resize
    length: Dim
    size: Dim
    number: int

    def emit_nearest(self) -> str:
        """Emit nearest positions `⌊i · n / m⌋`, in single precision as in PyTorch."""
        g = self.g
        points = emit_cast(g, emit_arange(g, self.size), "f32")
        if self.op.mode == "nearest_exact":
            points = g.node("Add", points, 0.5)
        taken = g.node("Floor", g.node("Mul", points, self._emit_step("f32")))
        return self._clamp_positions(emit_cast(g, taken, "i64"))

    def emit_antialiased(self, x: str, axis: int, rank: int) -> str:
        """Emit sums over source positions with constant weights; lengths are static."""
        g, length, size = self.g, self.length.number, self.size.number
        assert length is not None, "`resize` requires static lengths here"
        assert size is not None, "of both"
        parts = []
        for row, share in compute_antialias_weights(self.op.mode, length, size):
            taken = g.node("Gather", x, row.tolist(), axis=axis)
            weight = g.constant(share.reshape(-1, *[1] * (rank - axis - 1)), "f32")
            parts.append(g.node("Mul", taken, weight))
        return self._emit_weighted_sum(parts)

    def _emit_weighted_sum(self, parts: list[str]) -> str:
        total = parts[0]
        for part in parts[1:]:
            total = self.g.node("Add", total, part)
        return total

    def emit_interpolated(self, x: str, axis: int, rank: int) -> str:
        """Emit linear or cubic interpolation between neighboring positions."""
        g, at = self.g, self._emit_positions()
        if self.op.mode == "bilinear":
            at = g.node("Max", at, g.constant(0.0, "f64"))
        low = g.node("Floor", at)
        share = emit_cast(g, g.node("Sub", at, low), "f32")
        share = emit_unsqueeze(g, share, *range(1, rank - axis))
        first = emit_cast(g, low, "i64")
        if self.op.mode == "bilinear":
            one, other = (self._emit_row(x, axis, first, step) for step in (0, 1))
            rest = g.node("Sub", 1.0, share)
            # both are weighted: a difference of two infinities is NaN
            return g.node("Add", g.node("Mul", one, rest), g.node("Mul", other, share))
        parts = [
            g.node("Mul", self._emit_row(x, axis, first, step), self._emit_weight(share, step))
            for step in (-1, 0, 1, 2)
        ]
        return self._emit_weighted_sum(parts)

    def _emit_positions(self) -> str:
        """Emit the sampled positions, in double precision."""
        g = self.g
        points = emit_cast(g, emit_arange(g, self.size), "f64")
        half = g.constant(0.5, "f64")
        if self.op.align_corners:
            # a single point has no second corner
            most = g.node("Max", g.dim(self.size - 1), 1)
            whole = emit_cast(g, g.dim(self.length - 1), "f64")
            step = g.node("Div", whole, emit_cast(g, most, "f64"))
            return g.node("Mul", points, step)
        shifted = g.node("Mul", g.node("Add", points, half), self._emit_step("f64"))
        return g.node("Sub", shifted, half)

    def _emit_step(self, dtype: str) -> str:
        """Emit the distance of two sampled positions as a float."""
        g = self.g
        if self.op.factors:
            return g.constant(1 / self.op.factors[self.number], dtype)
        return g.node("Div", *(emit_cast(g, g.dim(d), dtype) for d in (self.length, self.size)))

    def _emit_row(self, x: str, axis: int, first: str, step: int) -> str:
        """Emit the positions `step` after the first, clamped to the border."""
        g = self.g
        at = g.node("Add", first, step) if step else first
        if self.op.mode == "bicubic":
            at = g.node("Max", at, 0)
        return g.node("Gather", x, self._clamp_positions(at), axis=axis)

    def _clamp_positions(self, at: str) -> str:
        return self.g.node("Min", at, self.g.dim(self.length - 1))

    def _emit_weight(self, share: str, step: int) -> str:
        """Emit the cubic kernel at distance `|share - step|`."""
        g, a = self.g, CUBIC_COEFFICIENT
        far = g.node("Abs", g.node("Sub", share, float(step)))
        near = step in (0, 1)
        # ((a + 2) d - (a + 3)) d d + 1, and ((a d - 5 a) d + 8 a) d - 4 a beyond 1
        factors = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
        total = g.constant(factors[0], "f32")
        for factor in factors[1:]:
            total = g.node("Mul", total, far)
            total = g.node("Add", total, factor) if factor else total
        return total
