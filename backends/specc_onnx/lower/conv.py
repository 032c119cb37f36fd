"""Lower convolutions and pooling.

ONNX's operators are channels-first, so inputs and results are transposed. A runtime removes the
transposes between consecutive layers. The convolution operators reject empty axes. An axis that may
be empty is padded with one window of zeros, and the result for this window is sliced off.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_targets import BF16_CONV_SINCE
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_checked_length,
    emit_padding_to_min_length,
)

MIN_2D_KERNEL_LENGTH = 7
"""The minimum kernel size at which depthwise 1-D convolutions are emitted as 2-D convolutions of
height 1. At kernel size 31, ONNX Runtime's 2-D kernels are 3 times as fast, and at size 3, they are
equally fast.
"""


@lower
def conv(op: ops.Conv, g: Emitter, x: Tensor, weight: Tensor, bias: Tensor | None) -> OnnxValue:
    """Lower a convolution to `Conv` with explicit padding, because `auto_pad` ignores dilation."""
    is_depthwise = len(op.kernel) == 1 and op.groups == x.shape[-1]
    height_axes = [2] if is_depthwise and op.kernel[0] >= MIN_2D_KERNEL_LENGTH else []
    ones, zeros = [1 for _ in height_axes], [0 for _ in height_axes]

    def emit_windows(x: OnnxValue) -> OnnxValue:
        x, w = (tensor.unsqueeze(*height_axes) for tensor in (x, weight))
        result = emit_convolution(
            g,
            "Conv",
            (x, w, bias),
            kernel_shape=[*ones, *op.kernel],
            strides=[*ones, *op.stride],
            dilations=[*ones, *op.dilation],
            pads=[*zeros, *op.padding_before, *zeros, *op.padding_after],
            group=op.groups.number,
        )
        return result.squeeze(*height_axes) if height_axes else result

    return _EmptyWindowGuard(g, op).emit_channels_first(x, emit_windows)


def emit_convolution(
    g: Emitter,
    op_type: str,
    operands: tuple[OnnxValue, OnnxValue, OnnxValue | None],
    **attributes: Any,
) -> OnnxValue:
    """Emit the operator `op_type` (`Conv` or `ConvTranspose`) for input, weight and optional bias.
    A bfloat16 convolution is computed in f32 if the opset has no bfloat16 convolution.
    """
    dtype = operands[0].dtype
    needs_f32 = dtype == "bf16" and g.opset < BF16_CONV_SINCE
    inputs = (x and x.cast("f32" if needs_f32 else dtype) for x in operands)
    return g.emit_node(op_type, *inputs, **attributes).cast(dtype)


@lower
def conv_transpose(
    op: ops.ConvTranspose, g: Emitter, x: Tensor, weight: Tensor, bias: Tensor | None
) -> OnnxValue:
    """Emit `ConvTranspose`. Negative padding at the end becomes `output_padding`."""
    first_axis = len(op.kernel)
    axes = range(first_axis, 2 * first_axis)
    may_be_empty = [a for a in axes if not g.lengths.is_positive(x.shape[a])]
    padded_input = x
    for axis in may_be_empty:
        padded_input = emit_padding_to_min_length(padded_input, axis).with_type(x.type)
    result_channels_first = emit_convolution(
        g,
        "ConvTranspose",
        (_emit_channels_first(op.kernel, padded_input), weight, bias),
        **_make_window_attributes(op),
        pads=[*op.padding_before, *(max(n, 0) for n in op.padding_after)],
        output_padding=[max(-n, 0) for n in op.padding_after],
        group=op.groups.number,
    )
    result = _emit_channels_first(op.kernel, result_channels_first)
    for axis in may_be_empty:
        length = op.compute_output_length(x.shape[axis], axis - first_axis)
        stop = emit_checked_length(g, length, length)
        result = result.apply_op("Slice", [0], stop, [axis])
    return result


@lower
def max_pool(op: ops.MaxPool, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower max pooling to `MaxPool`, which pads with -inf."""
    return _EmptyWindowGuard(g, op).emit_channels_first(x, partial(_emit_max_pool, op))


def _emit_max_of_slices(op: ops.MaxPool, x: OnnxValue) -> OnnxValue:
    """Emit a max pool as the maximum of strided slices, axis by axis."""
    dtype = x.dtype
    # `Pad` does not support bf16, but f32 represents bf16 values exactly.
    x = x.cast("f32" if dtype == "bf16" else dtype)
    if any(op.pads):
        x = _emit_window_padding(op, x, float("-inf"))
    window_params = zip(op.kernel, op.stride, op.dilation, strict=True)
    for axis, (count, step, dilation) in enumerate(window_params, 2):
        span = (count - 1) * dilation
        slices = []
        for start in range(0, span + 1, dilation):
            stop = start - span if start < span else MAX_SLICE_END
            slices.append(x.apply_op("Slice", [start], [stop], [axis], [step]))
        x = x.g.emit_node("Max", *slices) if count > 1 else slices[0]
    return x.cast(dtype)


MAX_SLICE_END = 2**62
"""An end index that exceeds the size of any axis."""


def _emit_max_pool(op: ops.MaxPool, x: OnnxValue) -> OnnxValue:
    """Emit `MaxPool`. Padding that is at least as large as the kernel becomes a separate `Pad`."""
    if not x.g.has_kernel("MaxPool", x.dtype):
        return _emit_max_of_slices(op, x)
    pads = list(op.pads)
    # ONNX Runtime rejects padding that is at least as large as the kernel.
    if any(n >= k for n, k in zip(pads, op.kernel * 2, strict=True)):
        x, pads = _emit_window_padding(op, x, float("-inf")), [0] * len(pads)
    return x.apply_op("MaxPool", **_make_window_attributes(op), pads=pads)


def _emit_window_padding(
    op: ops.MaxPool | ops.AveragePool, x: OnnxValue, value: float
) -> OnnxValue:
    """Emit a Pad node that pads a feature map (NCHW) with `value`, and return its output."""
    sides = [0, 0, *op.padding_before, 0, 0, *op.padding_after]
    return x.apply_op("Pad", sides, x.g.emit_constant(value, x.dtype))


@lower
def average_pool(op: ops.AveragePool, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower average pooling to `AveragePool` with explicit padding. `ceil_mode` is not used,
    because older opsets count windows differently in this mode. Padding that is included in the
    average is added as zeros.
    """

    def emit_windows(x: OnnxValue) -> OnnxValue:
        padding_before, padding_after, counts_padding = (
            op.padding_before,
            op.end_padding,
            op.count_include_pad,
        )
        if counts_padding and any(op.ceil_mode_padding):
            x = _emit_window_padding(op, x, 0.0)
            padding_before, padding_after, counts_padding = (
                (0,) * len(op.kernel),
                op.ceil_mode_padding,
                False,
            )
        return x.apply_op(
            "AveragePool",
            kernel_shape=list(op.kernel),
            strides=list(op.stride),
            pads=[*padding_before, *padding_after],
            count_include_pad=int(counts_padding),
        )

    return _EmptyWindowGuard(g, op).emit_channels_first(x, emit_windows)


@lower
def downsample_padding_mask(op: ops.DownsamplePaddingMask, g: Emitter, keep: Tensor) -> OnnxValue:
    """Downsample a padding mask by converting it to floats and applying a `MaxPool`. For a positive
    lag, a result is true if all mask values in the window are true, so both the mask and the result
    are inverted.
    """
    is_any, pad = op.lag < 0, max(-op.lag, 0)
    pool = ops.MaxPool((abs(op.lag) + 1,), (op.stride,), (1,), (pad, pad))
    flag_mask = keep if is_any else ~keep
    flags = flag_mask.cast("f32").with_shape(keep.shape)
    # `Conv` accepts an empty axis, but `MaxPool` does not.
    guard = _EmptyWindowGuard(g, ops.Conv(pool.kernel, pool.stride, pool.dilation, pool.pads))
    result = _emit_max_pool(pool, guard.pad_input(flags).unsqueeze(1))
    pooled = guard.remove_placeholder(result.squeeze(1), flags)
    mask = pooled > 0.5
    return mask if is_any else ~mask


@dataclass(frozen=True)
class _EmptyWindowGuard:
    """A helper that pads window axes that are empty at run time, and removes the added results."""

    g: Emitter
    op: ops.SlidingWindowOp

    @property
    def first_window_axis(self) -> int:
        """Return the index of the first window axis: 1 for sequences, 2 for images."""
        return len(self.op.kernel)

    def emit_channels_first(
        self, x: Tensor, emit_windows: Callable[[OnnxValue], OnnxValue]
    ) -> OnnxValue:
        """Apply `emit_windows`, which maps channels-first tensors, to `x`. Return the result."""
        kernel = self.op.kernel
        result = emit_windows(_emit_channels_first(kernel, self.pad_input(x)))
        return self.remove_placeholder(_emit_channels_first(kernel, result), x)

    def pad_input(self, x: Tensor) -> OnnxValue:
        """Zero-pad each window axis of `x` that is empty at run time to one window."""
        result = self._emit_length_checks(x)
        for n in self._list_empty_axes(x):
            window_length = max(self.op.get_output_lag(n) + 1, 1)
            axis = self.first_window_axis + n
            result = emit_padding_to_min_length(result.with_type(x.type), axis, window_length)
        return result

    def _emit_length_checks(self, x: Tensor) -> OnnxValue:
        """Emit a reshape of `x` that fails at run time if an axis is shorter than a window."""
        lengths = [self.g.emit_shape([length]) for length in x.shape]
        checked_lengths = list(lengths)
        for n in set(range(len(self.op.kernel))).difference(self._list_empty_axes(x)):
            axis = self.first_window_axis + n
            checked_lengths[axis] = self._require_positions(lengths[axis], x, n)
        if checked_lengths == lengths:
            return x
        shape = self.g.emit_node("Concat", *checked_lengths, axis=0)
        return x.apply_op("Reshape", shape, allowzero=1)

    def remove_placeholder(self, result: OnnxValue, x: Tensor) -> OnnxValue:
        """Remove from `result` the windows that contain only the zeros that `pad_input` added to an
        empty axis.
        """
        for n in self._list_empty_axes(x):
            axis = self.first_window_axis + n
            length = self.op.compute_output_length(x.shape[axis], n)
            stop = self._require_positions(self.g.emit_shape([length]), x, n)
            result = result.apply_op("Slice", [0], stop, [axis])
        return result

    def _require_positions(self, length: OnnxValue, x: Tensor, n: int) -> OnnxValue:
        """Emit `length` as i64[1]. The model fails at run time if axis `n` of `x` is too short for
        a single window.
        """
        constraint = self.op.build_length_constraint(x.shape[self.first_window_axis + n], n)
        return self.g.lengths.emit_nonnegative_check(self.g, length, constraint)

    def _list_empty_axes(self, x: Tensor) -> list[int]:
        """Return the window axes that may be empty, or [] if the op requires nonempty axes."""
        zero = Dim.from_value(0)
        return [
            n
            for n in range(len(self.op.kernel))
            if not self.g.lengths.is_positive(x.shape[self.first_window_axis + n])
            and (self.op.build_length_constraint(zero, n).number or 0) >= 0
        ]


def _make_window_attributes(op: ops.Conv | ops.ConvTranspose | ops.MaxPool) -> dict[str, Any]:
    """Return the kernel, stride and dilation attributes of a convolution or pooling operator."""
    return {
        "kernel_shape": list(op.kernel),
        "strides": list(op.stride),
        "dilations": list(op.dilation),
    }


def _emit_channels_first(kernel: Sequence[int], x: OnnxValue) -> OnnxValue:
    """Transpose [b, t, c] to [b, c, t] or back. The feature maps of images are already
    channels-first.
    """
    return x.transpose([0, 2, 1]) if len(kernel) == 1 else x
